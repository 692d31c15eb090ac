package server

import (
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	mcphttp "github.com/parleyhub/parley/internal/mcp/http"
)

// servers are those of a project that have been made for one session or one request, by those of the SDK.
type servers struct{ bySDK sync.Map } // *Server by *mcp.Server

func (x *servers) add(s *Server) *mcp.Server {
	x.bySDK.Store(s.mcp, s)
	return s.mcp
}

// end ends a server, unless it is shared.
func (x *servers) end(m *mcp.Server) {
	if s, mine := x.bySDK.LoadAndDelete(m); mine {
		s.(*Server).End()
	}
}

// gone implements Gone of mcphttp.Options. It does not keep the server.
func (x *servers) gone(m *mcp.Server) (gone *atomic.Bool, changed func()) {
	found, _ := x.bySDK.Load(m)
	c := found.(*Server).client
	return &c.gone, c.presenceChanged
}

// suspend implements Suspend of mcphttp.Options.
func (x *servers) suspend(m *mcp.Server) (drop func() mcphttp.Suspended) {
	found, mine := x.bySDK.Load(m)
	if !mine || !found.(*Server).canBeSuspended() {
		return nil
	}
	return func() mcphttp.Suspended {
		x.bySDK.Delete(m)
		return found.(*Server).suspend(x)
	}
}

// canBeSuspended reports whether a server can be made again from its client alone: it is the user's, has no subscriptions, and does
// nothing in the background. What an agent of the hub may see changes with others than the user's lists.
func (s *Server) canBeSuspended() bool {
	if s.client == nil || s.stays || s.caller != (Caller{}) || s.background.Load() > 0 {
		return false
	}
	idle := true
	s.values.Range(func(_, value any) bool {
		if of, ok := value.(*subscriptions); ok && of.exist() {
			idle = false
		}
		return idle
	})
	return idle
}

// suspended is what is left of a suspended server.
type suspended struct {
	servers *servers
	service *Service
	client  *Client
	ends    []func()
}

// suspend releases what groups hold for the server, but not for its client.
func (s *Server) suspend(x *servers) *suspended {
	releases, ends := s.end()
	callAll(releases)
	return &suspended{x, s.service, s.client, ends}
}

// Restore implements [mcphttp.Suspended].
func (s *suspended) Restore(id string) *mcp.Server {
	return s.servers.add(s.service.newServer(s.client, Caller{}, id))
}

// End implements [mcphttp.Suspended].
func (s *suspended) End() { callAll(s.ends) }

// watchLists returns the count of the changes of the groups' lists, and has notify called after each.
func (p *openProject) watchLists(notify func()) func() mcphttp.Lists {
	var all []func() mcphttp.Lists
	for _, g := range p.project.opts.Groups {
		if c, ok := g.(Changing); ok {
			lists, stop := c.WatchLists(notify)
			all, p.unwatch = append(all, lists), append(p.unwatch, stop)
		}
	}
	return func() (sum mcphttp.Lists) {
		for _, lists := range all {
			for i, n := range lists() {
				sum[i] += n
			}
		}
		return sum
	}
}
