package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
)

// networkAgent is the state of a client in the network.
type networkAgent struct {
	turn         *semaphore.Weighted // of 1; locks the rest
	agent        *agentnet.Agent     // nil if it is not registered
	registration registry.Registration
	itself       registry.Registration // that with which it is registered by itself, unless it had said something else
	published    string                // handle in the registry
	byItself     bool                  // registered without a call of the agent
	acted        bool                  // the agent has used its identity
	due          bool                  // it is to be registered by itself, and was not registered yet
	failure      error                 // of the last attempt at that; nil for none
	thread       string                // the conversation that the client's calls name, "" for none
	idle         bool                  // deregistered because it was idle
	used         time.Time             // last call
	was          registry.Presence     // the agent's status before it was shown as offline because its client is gone; "" if it is not
}

type networkAgentKey struct{}

func networkAgentOf(c *Client) *networkAgent {
	return c.Value(networkAgentKey{}, func() any { return &networkAgent{turn: semaphore.NewWeighted(1)} }).(*networkAgent)
}

// agent returns the caller's agent, under its current handle. It waits for a registration that is due.
func (g *Network) agent(ctx context.Context, c *Call) (*agentnet.Agent, error) {
	p := networkAgentOf(c.Client)
	if err := g.registerDue(ctx, c.server, c.Client); err != nil {
		return nil, notRegistered(err)
	}
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer p.turn.Release(1)
	p.used, p.acted = g.now(), true
	if p.idle {
		a, err := g.network.Register(ctx, p.registration)
		if err != nil {
			return nil, err
		}
		g.registered(p, a)
	}
	if p.agent == nil {
		return nil, notRegistered(nil)
	}
	p.agent.Await(ctx) // nothing is sent before
	if err := p.show(ctx, c.Client); err != nil {
		return nil, err
	}
	if h := c.Client.Handle(); h != "" && h != p.agent.Entry().Handle {
		if err := p.agent.SetHandle(h); err != nil {
			return nil, err
		}
	}
	if err := p.agent.Acknowledge(ctx, c.Sent()); err != nil { // who calls again has got the former answers
		c.server.Logger("agentnet").Debug("mail is not marked as read yet", "error", err)
	}
	return p.agent, nil
}

// notRegistered is the failure of a call without an agent, with the reason if there was an attempt to register it.
func notRegistered(reason error) *Failure {
	f := &Failure{Category: string(store.NotRegisteredError), Message: "You are not registered in the agents' network.", Remedy: "Call register_agent first."}
	if reason == nil {
		return f
	}
	why := failureOf(reason)
	f.Message, f.Err, f.RetryAfter = "You are not registered in the agents' network yet: "+why.Message, reason, why.RetryAfter
	f.Remedy = strings.TrimSpace(why.Remedy + " Then call the tool again: that registers you.")
	return f
}

// lives reports whether an agent is registered only as long as its program is connected.
func (g *Network) lives() bool { return g.idle == 0 }

// register registers the client as an agent, or changes its registration. A session stays the agent that it is.
func (g *Network) register(ctx context.Context, c *Client, r registry.Registration) (entry registry.Entry, again bool, err error) {
	p := networkAgentOf(c)
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return registry.Entry{}, false, err
	}
	defer p.turn.Release(1)
	r.Conversation = g.conversationOf(p, c)
	if session, ok := g.automatic(c); ok {
		r.Kind = session.Kind
	}
	r.Handle = cmp.Or(c.Handle(), r.DefaultHandle())
	if g.comesBack(ctx, p, r) {
		g.network.Say(ctx, r)
		return p.agent.Entry(), true, nil
	}
	p.byItself = false
	if p.agent != nil {
		entry, err = g.network.Describe(ctx, p.agent, r)
		p.published = r.Handle
		if err == nil {
			p.registration = r
			g.network.Say(ctx, r)
		}
		if f, ok := errors.AsType[*store.Error](err); !ok || f.Code != store.NotRegisteredError {
			return entry, true, err
		}
		g.deregistered(ctx, p) // the registry entry is lost
	}
	a, err := g.network.Register(ctx, r)
	if err != nil {
		return registry.Entry{}, false, err
	}
	p.registration = r
	g.registered(p, a)
	g.network.Say(ctx, r)
	return a.Entry(), a.Reused(), nil
}

// comesBack makes a session that was registered by itself the offline agent of the role as which it registers, as specified, and reports
// whether it is that now. A session that has used its identity, or for which mail waits, stays the agent that it is. The state is locked.
func (g *Network) comesBack(ctx context.Context, p *networkAgent, r registry.Registration) bool {
	if p.agent == nil || !p.byItself || p.acted || r.SameRole(p.registration) {
		return false
	}
	if n, err := p.agent.Unread(ctx); n > 0 || err != nil {
		return false
	}
	r.Known = true
	a, err := g.network.Register(ctx, r)
	if err != nil {
		return false
	}
	g.leave(ctx, p)
	r.Known = false
	p.registration, p.byItself = r, false
	g.registered(p, a)
	return true
}

// resume registers an agent that is registered by itself as it had registered itself in the conversation that has called, or else as a
// session. The agent of a conversation that has another identity on this computer, or another role, becomes that one. The state is locked.
func (g *Network) resume(ctx context.Context, p *networkAgent) {
	p.itself.Conversation = p.thread
	r, _ := g.network.Said(ctx, p.itself)
	if !r.SameRole(p.registration) || g.network.Converse(ctx, p.agent, r) {
		g.leave(ctx, p)
		g.become(ctx, p, r)
		return
	}
	before := p.registration
	if before.Conversation = r.Conversation; !reflect.DeepEqual(before, r) {
		if _, err := g.network.Describe(ctx, p.agent, r); err != nil {
			p.thread = "" // the next call tries it again
			return
		}
	}
	p.registration = r
}

// become registers an agent that is not registered any more as another one, now or with the next call. The state is locked.
func (g *Network) become(ctx context.Context, p *networkAgent, r registry.Registration) {
	p.registration, p.idle = r, true
	if a, err := g.network.Register(ctx, r); err == nil {
		g.registered(p, a)
	}
}

// leave takes back the registration of an agent that is another one from now on. If the former was a new one, nobody sees it any more. The
// state is locked.
func (g *Network) leave(ctx context.Context, p *networkAgent) {
	if !p.agent.Reused() {
		r := p.registration
		r.Visibility = store.Private
		_, _ = g.network.Describe(ctx, p.agent, r) // after a failure it is shown as offline
	}
	g.deregistered(ctx, p)
}

// leaveTimeout bounds a deregistration.
const leaveTimeout = 5 * time.Second

// end deregisters the agent of a client that has disconnected.
func (g *Network) end(p *networkAgent) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return // a call is still running; the end of the network deregisters the agent
	}
	defer p.turn.Release(1)
	p.idle, p.due = false, false
	g.deregistered(ctx, p)
}

// deregistered deregisters the agent, if there is one. The state is locked.
func (g *Network) deregistered(ctx context.Context, p *networkAgent) {
	g.mu.Lock()
	delete(g.agents, p)
	g.mu.Unlock()
	if a := p.agent; a != nil {
		p.agent = nil
		_, _ = g.network.Leave(ctx, a) // after a failure the missing heartbeats show that it is gone
	}
}

// registered notes that an agent is registered. The state is locked.
func (g *Network) registered(p *networkAgent, a *agentnet.Agent) {
	p.agent, p.idle, p.used, p.published = a, false, g.now(), a.Entry().Handle
	p.due, p.failure, p.was = false, nil, ""
	g.mu.Lock()
	g.agents[p] = a.GUID()
	g.mu.Unlock()
	g.served(p)
}

// showPresence shows a client's agent as offline if the client is gone, or else as before. It retries until ctx ends, or the agent has left.
func (g *Network) showPresence(ctx context.Context, c *Client) {
	retry := wait.Backoff{First: time.Second, Most: time.Minute}
	for store.IsUnreachable(g.tryShowPresence(ctx, c)) && retry.Pause(ctx) {
	}
}

func (g *Network) tryShowPresence(ctx context.Context, c *Client) error {
	p := networkAgentOf(c)
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer p.turn.Release(1)
	return p.show(ctx, c)
}

// show is showPresence without retries. What the agent has said of itself stays, and its identity, since its client may come back. The
// state is locked.
func (p *networkAgent) show(ctx context.Context, c *Client) error {
	gone := c.gone.Load()
	switch {
	case p.agent == nil || !gone && p.was == "":
		return nil
	case gone:
		p.was = cmp.Or(p.was, p.agent.Entry().Status)
		return p.agent.Show(ctx, registry.Offline)
	}
	err := p.agent.Show(ctx, p.was)
	if err == nil {
		p.was = ""
	}
	return err
}

// watchIdle deregisters idle agents until ctx ends.
func (g *Network) watchIdle(ctx context.Context) {
	tick := time.NewTicker(g.idle / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.deregisterIdle(ctx)
		}
	}
}

// deregisterIdle deregisters the agents without calls for the time idle. Their next call registers them again.
func (g *Network) deregisterIdle(ctx context.Context) {
	g.mu.Lock()
	agents := slices.Collect(maps.Keys(g.agents))
	g.mu.Unlock()
	for _, p := range agents {
		if !p.turn.TryAcquire(1) {
			continue // in a call
		}
		if p.agent != nil && g.now().Sub(p.used) >= g.idle {
			leaving, cancel := context.WithTimeout(ctx, leaveTimeout)
			p.idle = true
			g.deregistered(leaving, p)
			cancel()
		}
		p.turn.Release(1)
	}
}

// automatic returns the registration of a connection's agent by itself; ok is false if there is none, or its program is not known yet.
func (g *Network) automatic(c *Client) (r registry.Registration, ok bool) {
	if g.auto != nil {
		r = *g.auto
	} else if vendor := c.Vendor(); g.sessions && vendor != "" {
		r = registry.Registration{AgentType: vendor, Scope: registry.ScopeProject}
	} else {
		return r, false
	}
	r.Handle, r.Vendor, r.Kind = cmp.Or(c.Handle(), r.AgentType), c.Vendor(), r.AgentType
	return r, true
}

// autoRegister registers the agent of a connection, with retries, until it succeeds or the agent has registered itself. An open session is
// registered if its program is a known coding agent.
func (g *Network) autoRegister(ctx context.Context, s *Server) {
	if g.auto == nil {
		if vendor, err := s.client.awaitVendor(ctx); err != nil || vendor == "" {
			return
		}
	}
	log := s.Logger("agentnet")
	level := slog.LevelWarn
	if g.auto == nil {
		level = slog.LevelDebug // nobody has asked for it, and the lack of a hub is normal
	}
	retry := wait.Backoff{First: time.Second, Most: time.Minute}
	for attempt := 1; ctx.Err() == nil; attempt++ {
		g.awaitUsable(ctx)
		done, err := g.registerFirst(ctx, s, s.client)
		if done {
			return
		}
		delay := retry.Next()
		if f, ok := errors.AsType[*store.Error](err); ok {
			delay = max(delay, f.RetryAfter)
		}
		if ctx.Err() == nil {
			log.Log(ctx, level, "the agent was not registered automatically", "error", err, "attempt", attempt, "retryIn", delay.String())
		}
		wait.Pause(ctx, delay)
	}
}

// registerDue registers the agent of a client by itself, if that is due: a call may come before the first attempt in the background, or
// between two of them. It waits for one that is under way, up to taskTime in all.
func (g *Network) registerDue(ctx context.Context, s *Server, c *Client) error {
	p := networkAgentOf(c)
	if _, ok := g.automatic(c); !ok || !p.mayBeDue(true) {
		return nil
	}
	limited, stop := s.service.whileRunning(ctx)
	defer stop()
	limited, cancel := context.WithTimeout(limited, taskTime)
	defer cancel()
	if p.mayBeDue(false) { // else the network is probably still away
		g.awaitUsable(limited)
	}
	_, err := g.registerFirst(limited, s, c)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return errRegistering
	}
	return err
}

// mayBeDue reports whether an agent is to be registered by itself; with again, also after an attempt has failed. It does not wait for an
// attempt that is under way.
func (p *networkAgent) mayBeDue(again bool) bool {
	if !p.turn.TryAcquire(1) {
		return true
	}
	defer p.turn.Release(1)
	return p.due && (again || p.failure == nil)
}

// registerCaller registers a session before it calls a tool of the hub, which treats it as that session then. After an attempt has failed,
// the call goes on without.
func (g *Network) registerCaller(ctx context.Context, s *Server) {
	if p := networkAgentOf(s.client); g.sessions && p.mayBeDue(false) {
		_ = g.registerDue(ctx, s, s.client)
	}
}

var errRegistering = &store.Error{Code: store.ConnectionError, Message: "Your registration was not finished in time.", Remedy: "Try again in a moment."}

// registerFirst registers the agent of a client by itself. It reports true once that is not due any more.
func (g *Network) registerFirst(ctx context.Context, s *Server, c *Client) (done bool, err error) {
	p := networkAgentOf(c)
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer p.turn.Release(1)
	r, ok := g.automatic(c)
	if !p.due || !ok {
		return true, nil
	}
	r.Conversation = g.conversationOf(p, c)
	p.itself = r
	r, _ = g.network.Said(ctx, r)
	a, err := g.network.Register(ctx, r)
	if err != nil {
		if ctx.Err() == nil {
			p.failure = err
		}
		return false, err
	}
	p.registration, p.byItself = r, true
	g.registered(p, a)
	s.Logger("agentnet").Info("the agent was registered automatically", "guid", a.GUID(), "agentType", a.Entry().AgentType)
	return true, nil
}

// conversationOf returns what the client's program calls its conversation; "" if it is not known. The state is locked.
func (g *Network) conversationOf(p *networkAgent, c *Client) string {
	if p.thread != "" || g.conversation == nil {
		return p.thread
	}
	return g.conversation(c.Vendor())
}

// handlePause is the least time between two changes of a handle that are published at once.
const handlePause = 10 * time.Second

// publishRenames publishes each new handle of the server's client in the background, until the server ends.
func (g *Network) publishRenames(s *Server) {
	ctx, cancel := context.WithCancel(s.service.stopped)
	s.OnRelease(func() {
		cancel()
		s.client.onRenamed(nil) // else a suspended server would stay in memory
	})
	var publishing wait.Single
	s.client.onRenamed(func() {
		if ctx.Err() == nil && publishing.Begin() {
			s.Go(func(context.Context) {
				for again := true; again; again = publishing.Again() {
					g.publishHandles(ctx, s.client)
				}
			})
		}
	})
}

// publishHandles publishes a client's handle until the published one is the present one.
func (g *Network) publishHandles(ctx context.Context, c *Client) {
	for g.publishHandle(ctx, c) {
		if !wait.Pause(ctx, g.handlePause) {
			return
		}
	}
}

// publishHandle publishes the client's handle, if it is registered under another one. It returns true then. A failure is
// made up for by the next heartbeat.
func (g *Network) publishHandle(ctx context.Context, c *Client) bool {
	p := networkAgentOf(c)
	if c.Handle() == "" || p.turn.Acquire(ctx, 1) != nil {
		return false
	}
	defer p.turn.Release(1)
	h := c.Handle()
	if p.agent == nil || p.published == h || p.agent.SetHandle(h) != nil {
		return false
	}
	p.published = h
	_, _ = p.agent.UpdatePresence(ctx, registry.Changes{})
	return true
}

// registerTimeout is how long a registration waits for the network.
const registerTimeout = 5 * time.Second

// awaitUsable waits until the network is usable, without the link to a cluster if that takes too long. The registration
// reports an error.
func (g *Network) awaitUsable(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	_ = g.network.Usable(ctx)
}

type registerAgentIn struct {
	AgentType          string   `json:"agentType" jsonschema:"Your role: lowercase letters, digits and hyphens, for example tdd-engineer, dispatcher, reviewer"`
	Capabilities       []string `json:"capabilities" jsonschema:"What you can do, for example typescript, testing, code-review. Work is offered by these words."`
	Scope              string   `json:"scope" jsonschema:"project: you work for this project. user: for this user, whatever the project. cross-project: you coordinate several projects."`
	Visibility         string   `json:"visibility,omitempty" jsonschema:"Who can discover you. private: nobody. project-only: agents of the same project. user-only: agents of the same user on the same computer. public: all agents of the network."`
	MaxConcurrentTasks int      `json:"maxConcurrentTasks,omitempty" jsonschema:"How many tasks you take at once; 0 (the default) is no limit"`
	HeartbeatInterval  int      `json:"heartbeatInterval,omitempty" jsonschema:"Seconds between the signs of life that are sent for you: 10 to 86400. Usually left out."`
}

type registerAgentOut struct {
	GUID              string          `json:"guid" jsonschema:"Your address: others send you mail with it"`
	Again             bool            `json:"again" jsonschema:"Whether you have been registered with this GUID before: there may be mail"`
	UnreadMessages    int             `json:"unreadMessages" jsonschema:"Mail that waits for you, up to 1000"`
	HeartbeatInterval float64         `json:"heartbeatInterval" jsonschema:"Seconds"`
	Entry             *registry.Entry `json:"entry" jsonschema:"Your entry in the registry"`
	Notice            string          `json:"notice,omitempty" jsonschema:"That the link to the network is down, and what that means"`
}

func (g *Network) registerAgent(ctx context.Context, c *Call, in registerAgentIn) (string, registerAgentOut, error) {
	r := registry.Registration{
		AgentType: in.AgentType, Capabilities: in.Capabilities,
		Scope: registry.Scope(in.Scope), Visibility: registry.Visibility(in.Visibility), MaxConcurrentTasks: in.MaxConcurrentTasks,
		HeartbeatInterval: time.Duration(in.HeartbeatInterval) * time.Second, Vendor: c.Client.Vendor(),
	}
	g.awaitUsable(ctx) // right after the start
	entry, again, err := g.register(ctx, c.Client, r)
	if err != nil {
		return "", registerAgentOut{}, err
	}
	out := registerAgentOut{GUID: entry.GUID, Again: again, HeartbeatInterval: entry.HeartbeatInterval, Entry: &entry}
	text := fmt.Sprintf("Registered as %s (%s). Your GUID is %s.", entry.Handle, entry.AgentType, entry.GUID)
	if a, err := g.agent(ctx, c); err == nil {
		if out.UnreadMessages, err = a.Unread(ctx); err == nil && out.UnreadMessages > 0 {
			text += fmt.Sprintf(" %d messages wait for you: call read_direct_messages.", out.UnreadMessages)
		}
	}
	if notice := g.network.Notice(); notice != "" {
		out.Notice = notice + " You are known to others as soon as it is."
		text += "\n\n" + out.Notice
	}
	return withToken(text, c.Token()), out, nil
}

type deregisterOut struct {
	GUID  string `json:"guid" jsonschema:"The GUID that you had, and get again when you come back within a day"`
	Later bool   `json:"later,omitempty" jsonschema:"True if the network cannot be reached now: it shows you as offline once it can be"`
}

func (g *Network) deregister(ctx context.Context, c *Call, a *agentnet.Agent, _ noArguments) (string, deregisterOut, error) {
	p := networkAgentOf(c.Client)
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return "", deregisterOut{}, err
	}
	defer p.turn.Release(1)
	p.agent, p.idle = nil, false
	g.mu.Lock()
	delete(g.agents, p)
	g.mu.Unlock()
	g.network.Unsay(ctx, p.registration)
	later, err := g.network.Leave(ctx, a)
	if err != nil {
		return "", deregisterOut{}, err
	}
	const kept = " Your GUID and your mail are kept for when you register again."
	if later {
		return "You have left the agents' network. It cannot be reached now: others see you as offline as soon as the link is back, " +
			"or at the latest when your signs of life have been missing for too long." + kept, deregisterOut{a.GUID(), true}, nil
	}
	return "You have left the agents' network and are shown as offline." + kept, deregisterOut{a.GUID(), false}, nil
}
