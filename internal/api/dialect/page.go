package dialect

import "context"

// pageLink answers hub/page/link.
func (s *Service) pageLink(c *call) action {
	viewOnly := c.boolean("viewOnly", false)
	return func(context.Context) (any, error) {
		link, ok := s.cfg.PageLink(viewOnly)
		if !ok {
			return nil, unsupported("the hub's page needs HTTP, which is off", "set http.enabled to true in the configuration and restart the hub")
		}
		return link, nil
	}
}

// ReadsOnly reports whether a method changes nothing.
func ReadsOnly(method string) bool {
	switch method {
	case MethodStatus, MethodAgentsList, MethodAgentsGet, MethodAgentsHealth, MethodTasksList, MethodTasksPage, MethodTasksTrace,
		MethodContextsList, MethodIDs, MethodSwarmGet, MethodSwarmList, MethodEvents, MethodTotals, MethodNeeds, MethodWorkList,
		MethodDocumentsList, MethodDocumentsGet, MethodDocumentsWait, MethodTaskGet, MethodTaskFollow, MethodClaimsList, MethodClaimsCheck,
		MethodThreadsList, MethodThreadGet:
		return true
	}
	return false
}
