package hub

import (
	"context"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// spareKey is what a new conversation must have in common with a spare to get it.
type spareKey struct {
	agent string
	dir   DirRequest // as a session keeps it
}

// keepSpare makes a spare after a turn of s: a conversation that nobody has begun, in the same directory, whose process is ready.
// The first message without a context gets the spare's. A spare ends like any idle session. mu is held.
func (p *sessions) keepSpare(s *session) {
	key := spareKey{s.key.agent, s.asked}
	def := s.agent.definition()
	_, warm := s.session.(runner.Warmer)
	if _, kept := p.spares[key]; kept || !warm || def.Spare == nil || !*def.Spare || s.dir.Policy == runner.WorkDirWorktree {
		return
	}
	p.spares[key] = nil
	p.hub.wg.Go(func() { p.makeSpare(p.hub.background, s.agent, key) })
}

// makeSpare blocks until the spare's process is ready.
func (p *sessions) makeSpare(ctx context.Context, a *agent, key spareKey) {
	s := &session{key: sessionKey{a.id, a2a.NewContextID()}, agent: a, asked: key.dir, spare: true}
	err := p.prepareDir(ctx, s)
	if err == nil {
		err = p.begin(s, "")
	}
	p.mu.Lock()
	p.spares[key] = s
	if err != nil || ctx.Err() != nil || p.hub.agents.get(a.id) != a {
		p.dropSpare(s)
		p.mu.Unlock()
		if err == nil {
			_ = s.session.Close(context.WithoutCancel(ctx)) // it has no process yet
		}
		p.removeSpareDir(context.WithoutCancel(ctx), s)
		return
	}
	p.byKey[s.key] = s
	p.park(s)
	p.mu.Unlock()
	if err := s.session.(runner.Warmer).Warm(ctx); err != nil && ctx.Err() == nil {
		p.hub.log.Debug("no process is ready for the agent's next conversation", "agent", a.id, "error", err)
	}
}

// spareContext returns the context of a spare for a message without one, "" if there is none. It is given once.
func (p *sessions) spareContext(a *agent, msg *a2a.Message) string {
	key := spareKey{a.id, requestedDir(msg).effective(a.definition())}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.spares[key]
	if s == nil {
		return ""
	}
	delete(p.spares, key)
	return s.key.context
}

// take makes a spare the session of a conversation that begins.
func (p *sessions) take(s *session) {
	p.mu.Lock()
	spare := s.spare
	s.spare = false
	p.mu.Unlock()
	if spare {
		p.remember(s)
	}
}

// dropSpare forgets a session that ends, and reports whether it was a spare. mu is held.
func (p *sessions) dropSpare(s *session) bool {
	if key := (spareKey{s.key.agent, s.asked}); s.spare && p.spares[key] == s {
		delete(p.spares, key)
	}
	return s.spare
}

// removeSpareDir removes the directory of a spare that has ended, unless a task has its context.
func (p *sessions) removeSpareDir(ctx context.Context, s *session) {
	if p.hub.index.hasContext(s.key.context) {
		return
	}
	if err := p.removeDir(ctx, s.agent.definition(), s.key.context, s.asked); err != nil {
		p.hub.log.Warn("the directory of a conversation that has not begun could not be removed", "agent", s.key.agent, "error", err)
	}
}
