package dialect

import (
	"context"
	"time"

	"github.com/parleyhub/parley/internal/hub"
)

// TotalsParams are the parameters of hub/totals.
type TotalsParams struct {
	AgentID string   `json:"agentId,omitempty"`
	Project string   `json:"project,omitempty"` // a directory
	Since   *Time    `json:"since,omitempty"`   // only tasks that were created at or after it
	By      []string `json:"by"`                // how tasks are grouped: agent, project, day; missing: all three
}

// Totals is the result of hub/totals.
type Totals struct {
	Totals []Total `json:"totals"` // the latest day first, then by agent and project
	// Truncated says that there are more groups than one answer may have.
	Truncated bool `json:"truncated,omitempty"`
}

// Total sums up the stored tasks of one group.
type Total struct {
	Agent        string  `json:"agent,omitempty"`
	Project      string  `json:"project,omitempty"`
	Day          string  `json:"day,omitempty"` // of the tasks' creation, such as 2026-01-31
	Tasks        int     `json:"tasks"`
	Completed    int     `json:"completed"`
	Failed       int     `json:"failed"` // and rejected
	Canceled     int     `json:"canceled"`
	DurationMS   int64   `json:"durationMs"` // of their turns
	InputTokens  int64   `json:"inputTokens"`
	OutputTokens int64   `json:"outputTokens"`
	CachedTokens int64   `json:"cachedTokens"`
	CostUSD      float64 `json:"costUsd"`
}

// totals answers hub/totals.
func (s *Service) totals(c *call) action {
	q := hub.TotalsQuery{AgentID: c.text("agentId", maxID), Project: c.text("project", maxPath), Since: c.since()}
	by := c.texts("by")
	if _, given := c.members["by"]; !given {
		by = []string{"agent", "project", "day"}
	}
	for _, group := range by {
		switch group {
		case "agent":
			q.ByAgent = true
		case "project":
			q.ByProject = true
		case "day":
			q.ByDay = true
		default:
			c.fail("by", "must have agent, project and day only")
		}
	}
	return func(context.Context) (any, error) {
		totals, more := s.cfg.Hub.Totals(q)
		return Totals{Totals: each(totals, fromTotal), Truncated: more}, nil
	}
}

// since reads the parameter of this name, a time.
func (c *call) since() time.Time {
	text := c.text("since", maxID)
	if text == "" {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		c.fail("since", "must be a time such as 2026-01-31T12:00:00Z")
	}
	return at
}

func fromTotal(t hub.Total) Total {
	return Total{
		Agent: t.Agent, Project: t.Project, Day: t.Day, Tasks: t.Tasks, Completed: t.Completed, Failed: t.Failed, Canceled: t.Canceled,
		DurationMS: t.Duration.Milliseconds(), InputTokens: t.Usage.InputTokens, OutputTokens: t.Usage.OutputTokens,
		CachedTokens: t.Usage.CachedTokens, CostUSD: t.Usage.CostUSD,
	}
}
