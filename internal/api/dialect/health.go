package dialect

import "time"

// The values of HealthReport.Status.
const (
	HubHealthy   = "healthy"
	HubUnhealthy = "unhealthy"
)

// HealthReport is the body of GET /health. Callers without the token get no numbers.
type HealthReport struct {
	Status      string       `json:"status"`           // healthy, or unhealthy with HTTP 503
	Reason      string       `json:"reason,omitempty"` // why the hub is unhealthy
	Version     string       `json:"version,omitempty"`
	Uptime      int64        `json:"uptime,omitempty"` // milliseconds
	ActiveTasks *int         `json:"activeTasks,omitempty"`
	Agents      *AgentCounts `json:"agents,omitempty"`
}

// AgentCounts counts agents by health.
type AgentCounts struct {
	Total     int `json:"total"`
	Healthy   int `json:"healthy"`
	Degraded  int `json:"degraded"`
	Unhealthy int `json:"unhealthy"`
	Unknown   int `json:"unknown"`
}

// Health reports whether the hub's store answers, whatever the health of the agents.
func (s *Service) Health() HealthReport {
	status := fromStatusInfo(s.cfg.Hub.Status(), time.Now())
	report := HealthReport{
		Status: HubHealthy, Version: status.Version, Uptime: status.Uptime,
		ActiveTasks: &status.ActiveTasks, Agents: &status.AgentCounts,
	}
	if s.cfg.Bus != nil {
		if bus := s.cfg.Bus(); bus.Error != "" {
			report.Status, report.Reason = HubUnhealthy, "the hub's store does not answer: "+bus.Error
		}
	}
	return report
}
