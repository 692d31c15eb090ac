package server

import (
	"context"
	"testing"
	"time"
	"weak"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// BoundTokens sets the limit of tokens for clients of a project.
func BoundTokens(p *Project, n int) { p.tokens.max = n }

// ReportEvery sets the interval of progress notifications.
func ReportEvery(t *testing.T, d time.Duration) {
	before := progressEvery
	progressEvery = d
	t.Cleanup(func() { progressEvery = before })
}

// IdleClock replaces the clock of a project's idle agents, before the first one, and
// returns the function that deregisters idle agents.
func IdleClock(p *Project, now func() time.Time) (deregisterIdle func(context.Context)) {
	for _, group := range p.opts.Groups {
		if g, ok := group.(*Network); ok {
			g.now = now
			return g.deregisterIdle
		}
	}
	return nil
}

// AnswerOnce lets answers not be given again while the hub cannot be reached.
func AnswerOnce(p *Project) {
	for _, group := range p.opts.Groups {
		if g, ok := group.(*Network); ok {
			g.answerTime = 0
		}
	}
}

// ServersOf returns how many servers are in use for sessions, and for requests, that are not shared.
func ServersOf(h *Handler) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.projects {
		p.own.bySDK.Range(func(any, any) bool { n++; return true })
	}
	return n
}

// WeakServersOf is ServersOf with pointers to the servers that do not keep them in memory.
func WeakServersOf(h *Handler) (all []weak.Pointer[mcp.Server]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.projects {
		p.own.bySDK.Range(func(m, _ any) bool {
			all = append(all, weak.Make(m.(*mcp.Server)))
			return true
		})
	}
	return all
}
