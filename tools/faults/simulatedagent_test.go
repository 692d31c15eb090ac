package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/testbed/simnet"
)

// simulated is an agent that comes back whenever its process was killed. Its methods are for one goroutine, except kill.
type simulated struct {
	s        *simulation
	handle   string
	computer string
	state    string
	network  *agentnet.Network
	agent    *agentnet.Agent // nil if it has no process
	last     time.Duration   // when it last answered

	mu      sync.Mutex
	process *simnet.Process
	guid    string
	killed  bool
}

func (a *simulated) known() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.guid
}

// kill kills the process of the agent, if there is one.
func (a *simulated) kill() {
	a.mu.Lock()
	process := a.process
	a.killed = true
	a.mu.Unlock()
	if process != nil {
		process.Kill()
	}
}

// awaitWrite waits until the process of the agent has written to the server so often, or until ctx ends.
func (a *simulated) awaitWrite(ctx context.Context, writes int) {
	a.mu.Lock()
	process := a.process
	a.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	if process != nil {
		process.AtWrite(writes, cancel)
	}
	<-ctx.Done()
	cancel()
}

// join starts the agent if it has no process, until ctx ends.
func (a *simulated) join(ctx context.Context) error {
	a.mu.Lock()
	killed := a.killed
	a.mu.Unlock()
	if killed {
		a.leave()
	}
	for a.agent == nil {
		begin := a.s.all.now()
		if err := a.register(ctx); err == nil {
			a.last = a.s.all.now()
			a.s.all.note(event{Client: a.handle, Op: opJoin, Value: a.agent.GUID(), Again: a.agent.Reused(), Begin: begin, End: a.last, Outcome: done})
			return nil
		}
		a.close()
		if !pause(ctx, 100*time.Millisecond) {
			return errNotSent
		}
	}
	return nil
}

func (a *simulated) register(ctx context.Context) error {
	process := a.s.n.Computer(a.computer).Process()
	a.mu.Lock()
	a.process, a.killed = process, false
	a.mu.Unlock()
	a.network = agentnet.Open(agentnet.Config{BusConfig: store.Config{Hostname: a.computer, Username: "ann", ProjectPath: a.s.work, ProjectID: "0123456789abcdef",
		StateDir: a.state, Now: process.Now, AckTimeout: lease, MaxAttempts: 1000, Logger: slog.New(slog.DiscardHandler), Dial: process.Dial}})
	ready, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := a.network.Ready(ready); err != nil {
		return err
	}
	agent, err := a.network.Register(ctx, registry.Registration{Handle: a.handle, AgentType: a.handle, Capabilities: []string{capability}, Scope: registry.ScopeUser, Visibility: store.Public})
	if err != nil {
		return err
	}
	a.agent = agent
	a.mu.Lock()
	a.guid = agent.GUID()
	a.mu.Unlock()
	return nil
}

// close ends the process of the agent as a kill does.
func (a *simulated) close() {
	a.mu.Lock()
	process := a.process
	a.process, a.killed = nil, false
	a.mu.Unlock()
	if process != nil {
		process.Kill()
	}
	if a.network != nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = a.network.Close(ctx) // nobody is told
	}
	a.network, a.agent = nil, nil
}

// leave ends the agent's process, and records that.
func (a *simulated) leave() {
	if a.agent == nil {
		return
	}
	a.close()
	a.s.all.note(event{Client: a.handle, Op: opLeave, Begin: a.last, End: a.s.all.now(), Outcome: done})
}

// call makes a call and records it as e, which do completes.
func (a *simulated) call(ctx context.Context, e event, do func(context.Context, *agentnet.Agent, *event) error) error {
	if err := a.join(ctx); err != nil {
		return err
	}
	e.Client, e.Begin = a.handle, a.s.all.now()
	// Who calls again has got the former answers.
	sent := time.Now()
	calling, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	err := a.agent.Acknowledge(calling, sent)
	if err == nil {
		err = do(calling, a.agent, &e)
	}
	e.End = a.s.all.now()
	a.mu.Lock()
	killed := a.killed
	a.mu.Unlock()
	switch code := store.CodeOf(err); {
	case killed: // the process had no answer
		e.Outcome = unknown
		err = errors.Join(err, errKilled)
	case err == nil:
		e.Outcome, a.last = done, e.End
	case code == store.RateLimitError || code == store.NotRegisteredError:
		a.leave()
		return errNotSent
	case code == store.ConflictError || code == store.NotFoundError || code == store.ValidationError:
		e.Outcome, a.last = refused, e.End
	default:
		e.Outcome = unknown
	}
	if e.Op != "" {
		a.s.all.note(e)
	}
	if killed {
		a.leave()
	}
	return err
}

var errKilled = errors.New("the process was killed")
