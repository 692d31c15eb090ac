package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// health is the known health of one agent, from probes in the background, from its runs and from its circuit
// breaker. Safe for concurrent use; reading never waits for a probe.
type health struct {
	agent  *agent
	probes *probes // in the background; nil of a reported agent

	mu      sync.Mutex
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}] // nil before the first run
	probe   runner.Probe
	at      time.Time    // of the last probe's end; zero before the first
	lastRun error        // of the last run, nil if it succeeded
	shown   HealthStatus // in the latest event
}

// probes are the probes of an agent in the background.
type probes struct {
	request chan struct{} // requests a probe now
	opened  chan struct{} // the circuit has opened

	mu   sync.Mutex
	next chan struct{} // closed at the end of the next probe to begin
}

// begin returns the function that ends a probe.
func (p *probes) begin() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := p.next
	p.next = make(chan struct{})
	return func() { close(done) }
}

// awaited returns a channel that is closed at the end of the next probe to begin.
func (p *probes) awaited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

func newHealth(a *agent) *health {
	h := &health{agent: a}
	if !a.reported {
		h.probes = &probes{request: make(chan struct{}, 1), opened: make(chan struct{}, 1), next: make(chan struct{})}
	}
	return h
}

// circuit returns the circuit breaker, which the first run makes: most sessions never have one.
func (h *health) circuit() *gobreaker.TwoStepCircuitBreaker[struct{}] {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.breaker == nil {
		h.breaker = h.newCircuit()
	}
	return h.breaker
}

func (h *health) newCircuit() *gobreaker.TwoStepCircuitBreaker[struct{}] {
	cfg := h.agent.hub.cfg
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        h.agent.id,
		MaxRequests: 1,
		Timeout:     cfg.BreakerPause,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= uint32(cfg.BreakerFailures) },
		IsExcluded:  func(err error) bool { return errors.Is(err, errNeutral) },
		OnStateChange: func(id string, from, to gobreaker.State) {
			cfg.Logger.Warn("circuit", "agent", id, "from", from.String(), "to", to.String())
			if to == gobreaker.StateOpen && h.probes != nil {
				wait.Nudge(h.probes.opened)
			}
			h.agent.hub.agentsChanged()
		},
	})
}

// state returns that of the circuit.
func (h *health) state() gobreaker.State {
	h.mu.Lock()
	breaker := h.breaker
	h.mu.Unlock()
	if breaker == nil {
		return gobreaker.StateClosed
	}
	return breaker.State()
}

// update probes the agent now, and publishes a change.
func (h *health) update(ctx context.Context) {
	if h.probes == nil {
		h.probeOnce(ctx)
	} else {
		h.probeNow(ctx, h.agent.hub.cfg.ProbeTimeout)
	}
	if ctx.Err() == nil {
		h.publish()
	}
}

// watch probes the agent at once, then at every interval and on request, until ctx ends.
func (h *health) watch(ctx context.Context) {
	cfg := h.agent.hub.cfg
	timer := time.NewTimer(cfg.ProbeInterval)
	defer timer.Stop()
	for shown := (Health{}); ; {
		h.update(ctx)
		if ctx.Err() != nil {
			return
		}
		if now := h.current().lasting(); now != shown {
			shown = now
			h.agent.hub.agentsChanged()
		}
		timer.Reset(cfg.ProbeInterval)
		select {
		case <-timer.C:
		case <-h.probes.request:
		case <-h.probes.opened:
			// The circuit becomes half-open after its pause, but reports that only when asked.
			timer.Reset(min(cfg.ProbeInterval, cfg.BreakerPause))
			select {
			case <-timer.C:
			case <-h.probes.request:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (h *health) probeNow(ctx context.Context, timeout time.Duration) {
	defer h.probes.begin()()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	h.probeOnce(ctx)
}

// probeOnce takes over the result of a probe, unless the hub stops.
func (h *health) probeOnce(ctx context.Context) {
	began := time.Now()
	p := h.safeProbe(ctx)
	if p.Latency == 0 {
		p.Latency = time.Since(began)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the hub is stopping
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probe, h.at = p, time.Now().UTC()
}

// safeProbe probes, and treats a panic of the driver as an unknown stage.
func (h *health) safeProbe(ctx context.Context) (p runner.Probe) {
	defer func() {
		if r := recover(); r != nil {
			h.agent.hub.log.Error("an agent's probe panicked", "agent", h.agent.id, "panic", r)
			p = runner.Probe{Stage: runner.StageUnknown, Err: &runner.Error{Code: runner.CodeInternal, Message: "the probe crashed", Remedy: "see the hub's log"}}
		}
	}()
	return h.agent.run.Probe(ctx)
}

// probeSoon requests a probe, unless one is requested already, or the agent reports its health.
func (h *health) probeSoon() {
	if h.probes != nil {
		wait.Nudge(h.probes.request)
	}
}

// check probes now and returns the result. A probe that already runs does not count: it
// may have begun before a change by the caller.
func (h *health) check(ctx context.Context) (Health, error) {
	if h.probes == nil {
		h.update(ctx)
		return h.current(), contextError(ctx.Err())
	}
	done := h.probes.awaited()
	h.probeSoon()
	select {
	case <-done:
		return h.current(), nil
	case <-ctx.Done():
		return h.current(), contextError(ctx.Err())
	case <-h.agent.hub.closed:
		return h.current(), &Error{Code: CodeUnavailable, Message: "the hub has stopped"}
	}
}

// CheckHealth probes an agent now. When ctx ends first, it returns the previous health with an error of CodeTimeout.
func (h *Hub) CheckHealth(ctx context.Context, id string) (Health, error) {
	a := h.agents.get(id)
	if a == nil {
		return Health{}, h.agentNotFound(id)
	}
	if err := h.begin(); err != nil {
		return a.health.current(), err
	}
	h.wg.Done() // Close need not wait for it
	return a.health.check(ctx)
}

// current returns the health in the terms of the specification.
func (h *health) current() Health {
	circuit := h.state()
	h.mu.Lock()
	defer h.mu.Unlock()
	out := Health{
		Status: Unknown, Stage: cmp.Or(h.probe.Stage, runner.StageUnknown), LastCheck: h.at,
		Latency: h.probe.Latency, Version: h.probe.Version, Circuit: circuit.String(),
	}
	if h.probe.Err != nil {
		out.Message = h.probe.Err.Error()
	}
	switch h.probe.Stage {
	case runner.StageAuthenticated:
		out.Status = Healthy
	case runner.StageInstalled:
		out.Status = Degraded
		if !h.probe.AuthKnown && h.lastRun == nil {
			out.Status = Healthy
		}
	case runner.StageMissing:
		out.Status = Unhealthy
	}
	switch {
	case circuit == gobreaker.StateOpen:
		out.Status = Unhealthy
	case circuit == gobreaker.StateHalfOpen && out.Status == Healthy:
		out.Status = Degraded
	}
	h.explain(&out)
	return out
}

// lasting returns the health without what each probe has new.
func (h Health) lasting() Health {
	h.LastCheck, h.Latency = time.Time{}, 0
	return h
}

// explain sets the reason why the agent is not healthy. mu is held.
func (h *health) explain(out *Health) {
	if out.Status == Healthy {
		out.Message = ""
		return
	}
	remedies := h.agent.definition().Probe
	switch {
	case out.Circuit != gobreaker.StateClosed.String() && h.lastRun != nil:
		out.Message = fmt.Sprintf("its last runs failed: %v", h.lastRun)
	case out.Message != "":
	case h.lastRun != nil:
		out.Message = fmt.Sprintf("its last run failed: %v", h.lastRun)
	case out.Stage == runner.StageInstalled:
		out.Message = withRemedy("it has no credentials", remedies.Login)
	case out.Stage == runner.StageMissing:
		out.Message = withRemedy("it is not installed", remedies.Install)
	}
}

// maxReason bounds what is quoted of the last failure, in bytes.
const maxReason = 500

// admit admits a turn, or returns why not. The caller reports the turn's end to done.
func (h *health) admit() (done func(error), err error) {
	if h.agent.durable {
		return neutral, nil // its tasks wait for it
	}
	h.mu.Lock()
	stage, last := h.probe.Stage, h.lastRun
	var why string
	if h.probe.Err != nil {
		why = h.probe.Err.Message
	}
	h.mu.Unlock()
	def := h.agent.definition()
	if stage == runner.StageMissing {
		h.probeSoon() // it may have been installed since
		return nil, &Error{Code: CodeUnavailable,
			Message: cmp.Or(why, fmt.Sprintf("agent %s is not installed", def.ID)),
			Remedy:  cmp.Or(def.Probe.Install, fmt.Sprintf("install %s, or set the agent's command in config.yaml", cmp.Or(def.Command, def.ID)))}
	}
	done, err = h.circuit().Allow()
	if err == nil {
		return done, nil
	}
	msg := fmt.Sprintf("agent %s is paused after failed runs", def.ID)
	remedy := fmt.Sprintf("try again in %s at most; its health shows more", h.agent.hub.cfg.BreakerPause)
	if errors.Is(err, gobreaker.ErrTooManyRequests) {
		remedy = "try again when the current trial run has ended"
	}
	if last != nil {
		msg += "; the last one ended with " + text.Quote(text.OneLine(last.Error()), maxReason)
	}
	return nil, &Error{Code: CodeUnavailable, Message: msg, Remedy: remedy, Err: err}
}

// ran records how a run ended: nil is success, errNeutral is ignored.
func (h *health) ran(fault error) {
	if errors.Is(fault, errNeutral) {
		return
	}
	h.mu.Lock()
	h.lastRun = fault
	h.mu.Unlock()
	h.publish()
	h.agent.hub.agentsChanged()
}

// publish records an event if the health has another status than in the latest event.
func (h *health) publish() {
	now := h.current()
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Status == h.shown {
		return
	}
	h.shown = now.Status
	h.agent.hub.cfg.Events.Publish(events.Event{Kind: events.AgentHealth, Agent: h.agent.id,
		Data: map[string]any{"status": string(now.Status), "circuit": now.Circuit, "version": now.Version, "message": now.Message}})
}

// agentFault returns the agent's share in a run's end: nil for success, errNeutral if the user, the prompt or the
// hub ended it, else the error. short is set if the user allowed less time than the agent's limit.
func agentFault(out runner.Outcome, err, cause error, short bool) error {
	switch {
	case out.Status == runner.OutcomeCompleted, out.Status == runner.OutcomeInputRequired:
		return nil
	case errors.Is(cause, process.ErrRunTime) && !short:
		return &runner.Error{Code: runner.CodeTimeout, Message: "the run took longer than the agent's limits.run"}
	case cause != nil, out.Status == runner.OutcomeCanceled, out.Status == runner.OutcomeRejected:
		return errNeutral
	}
	re, ok := errors.AsType[*runner.Error](err)
	if !ok {
		return errNeutral // an error of the hub
	}
	if errors.Is(err, errAskedDir) || re.Code == runner.CodeLimit || re.Code == runner.CodeBusy {
		return errNeutral
	}
	return re
}
