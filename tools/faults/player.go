package main

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"
)

// player is an agent that comes back whenever its process was killed. Its methods are for one goroutine, except kill and
// known.
type player struct {
	h       *hub
	handle  string
	all     *history
	agent   *agent // nil if it has no process
	process atomic.Pointer[os.Process]
	last    time.Duration          // when it last answered
	guid    atomic.Pointer[string] // of its last registration
	there   atomic.Bool            // it is registered, and was not killed since
}

// known returns the agent's GUID; "" before its first registration.
func (p *player) known() string {
	if guid := p.guid.Load(); guid != nil {
		return *guid
	}
	return ""
}

// kill kills the process of the agent, if there is one.
func (p *player) kill() {
	p.there.Store(false)
	if process := p.process.Load(); process != nil {
		_ = process.Kill() // it may have ended
	}
}

// call calls a tool and records the call as e, which fill completes with the answer. Calls that have not happened are not
// recorded, and give errNotSent.
func (p *player) call(ctx context.Context, e event, tool string, arguments, result any, fill func(*event)) error {
	if err := p.join(ctx); err != nil {
		return errNotSent
	}
	e.Client, e.Begin = p.handle, p.all.now()
	err := p.agent.tool(ctx, tool, arguments, result)
	e.End = p.all.now()
	_, answered := errors.AsType[*toolError](err)
	if answered = answered || err == nil; answered {
		p.last = e.End
	}
	switch e.Outcome = outcomeOf(err); {
	case e.Outcome == "":
		return errNotSent
	case e.Outcome == done && fill != nil:
		fill(&e)
	}
	if e.Op != "" {
		p.all.note(e)
	}
	if !answered {
		p.leave()
	}
	return err
}

// outcomeOf returns what an error says of a call; "" if it was not made.
func outcomeOf(err error) outcome {
	failed, answered := errors.AsType[*toolError](err)
	switch {
	case err == nil:
		return done
	case !answered:
		return unknown
	case failed.category == "RateLimitError" || failed.category == "NotRegisteredError":
		return ""
	case failed.category == "ConflictError" || failed.category == "NotFoundError" || failed.category == "ValidationError":
		return refused
	}
	return unknown
}

// join starts the agent if it has no process, until ctx ends.
func (p *player) join(ctx context.Context) error {
	for p.agent == nil {
		begin := p.all.now()
		a, err := p.start(ctx)
		if err == nil {
			p.agent, p.last = a, p.all.now()
			p.guid.Store(&a.guid)
			p.there.Store(true)
			p.all.note(event{Client: p.handle, Op: opJoin, Value: a.guid, Again: a.again, Begin: begin, End: p.all.now(), Outcome: done})
			return nil
		}
		if !pause(ctx, 50*time.Millisecond) {
			return err
		}
	}
	return nil
}

// start starts the agent, but not while the disk is away.
func (p *player) start(ctx context.Context) (*agent, error) {
	p.h.disk.RLock()
	a, err := launch(p.h, p.handle)
	if err == nil {
		p.process.Store(a.process.Process)
	}
	p.h.disk.RUnlock()
	if err != nil {
		return nil, err
	}
	if err := a.register(ctx, p.handle); err != nil {
		a.leave()
		p.process.Store(nil)
		return nil, err
	}
	return a, nil
}

// leave ends the agent's process, and records that.
func (p *player) leave() {
	if p.agent == nil {
		return
	}
	p.there.Store(false)
	p.agent.leave()
	p.process.Store(nil) // until then it can be killed: it uses the disk
	p.agent = nil
	// It may have ended any time since its last answer.
	p.all.note(event{Client: p.handle, Op: opLeave, Begin: p.last, End: p.all.now(), Outcome: done})
}
