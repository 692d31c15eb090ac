package channel

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/singleflight"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
)

// Manager opens, accepts and closes channels. Make one with [NewManager] and Close
// it in the end. It is safe for concurrent use.
type Manager struct {
	opts      Options
	onChannel func(*Channel)
	instance  string          // identifies this process to the other ends
	ctx       context.Context // ends with the manager
	cancel    context.CancelFunc
	wg        sync.WaitGroup     // every goroutine
	opening   singleflight.Group // by Forward

	mu     sync.Mutex
	byID   map[string]ends
	byPair map[pair]*Channel     // the latest between two agents
	remote map[string][]*Channel // by the agent at the other end
	closed bool

	contests   map[speaker]*contest
	tombstones map[string]bool // channels that must not be resumed
	oldest     []string        // the same, oldest first
}

type pair struct{ local, remote string }

// ends are the ends of one channel in this process: both, if both agents are of this process.
type ends struct{ opener, acceptor *Channel }

// at returns the place of an end.
func (x *ends) at(opener bool) **Channel {
	if opener {
		return &x.opener
	}
	return &x.acceptor
}

// NewManager returns a manager. onChannel, if not nil, is called with each channel that is opened or resumed here,
// before it is returned, and with each channel that a peer has opened, once it is open. It must not block. Received
// envelopes are queued until a handler is added.
func NewManager(o Options, onChannel func(*Channel)) *Manager {
	m := &Manager{opts: o.withDefaults(), onChannel: onChannel, instance: newSecret(), byID: make(map[string]ends), byPair: make(map[pair]*Channel),
		remote: make(map[string][]*Channel), contests: make(map[speaker]*contest), tombstones: make(map[string]bool)}
	m.guard()
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// Instance returns a random text by which the other ends tell this process from the next one; see [Channel.Outlived].
func (m *Manager) Instance() string { return m.instance }

// Open opens a channel from a local agent to a remote one. It tries the endpoints (Options.Resolve) that have a
// dialer in turn, also when a connection breaks. It returns a channel in the state connecting; see [Channel.Ready].
// The channel outlives ctx. A channel to an agent of this process (Options.Local) needs no endpoint. A refusal by
// Options.Policy is CodeRefused, with the policy's error as its cause.
func (m *Manager) Open(ctx context.Context, local, remote string) (*Channel, error) {
	if m.opts.Local(remote, agent.Endpoint{}) {
		return m.open(local, remote, []agent.Endpoint{{}})
	}
	if m.opts.Resolve == nil {
		return nil, &Error{Code: CodeNoEndpoint, Message: "Options.Resolve is not set, so no agent's endpoint is known"}
	}
	endpoints, err := m.opts.Resolve(ctx, remote)
	if err != nil {
		return nil, &Error{Code: CodeNoEndpoint, Message: fmt.Sprintf("the endpoints of %q are not known", remote), Err: err}
	}
	endpoints = slices.DeleteFunc(slices.Clone(endpoints), func(e agent.Endpoint) bool { return m.opts.Dialers[e.Transport] == nil })
	if len(endpoints) == 0 {
		return nil, &Error{Code: CodeNoEndpoint, Message: fmt.Sprintf("no endpoint of %q can be dialled", remote)}
	}
	return m.open(local, remote, endpoints)
}

// OpenAt is Open at a known endpoint.
func (m *Manager) OpenAt(_ context.Context, local, remote string, at agent.Endpoint) (*Channel, error) {
	return m.open(local, remote, []agent.Endpoint{at})
}

func (m *Manager) open(local, remote string, at []agent.Endpoint) (*Channel, error) {
	for _, id := range []string{local, remote} {
		if err := agent.CheckID(id); err != nil {
			return nil, &Error{Code: CodeInvalid, Message: fmt.Sprintf("the agent id %q %v", id, err)}
		}
	}
	own := m.opts.Local(remote, at[0])
	if own && local == remote {
		return nil, &Error{Code: CodeInvalid, Message: fmt.Sprintf("a channel links two agents, and both are %q", local)}
	}
	if err := m.opts.Policy.PermitChannel(local, remote); err != nil {
		return nil, &Error{Code: CodeRefused, Message: fmt.Sprintf("%q may not open a channel to %q", local, remote), Err: err}
	}
	secret := newSecret()
	c := m.newChannel(idOf(secret), local, remote, secret)
	c.opener, c.own, c.endpoints, c.transport = true, own, at, at[0].Transport
	if own {
		c.transport = agent.TransportLocal
	} else {
		c.alias = m.opts.Names.Outside(local, remote)
	}
	return m.launch(c)
}

// launch adds a channel that is opened here and starts it.
func (m *Manager) launch(c *Channel) (*Channel, error) {
	if err := m.add(c); err != nil {
		return nil, err
	}
	m.announce(c)
	m.start(c.run)
	return c, nil
}

// announce calls onChannel.
func (m *Manager) announce(c *Channel) {
	if m.onChannel != nil {
		c.protect(func() { m.onChannel(c) })
	}
}

func (m *Manager) newChannel(id, local, remote, secret string) *Channel {
	c := &Channel{m: m, id: id, local: local, remote: remote, alias: local, secret: secret, status: Connecting}
	c.ctx, c.cancel = context.WithCancel(m.ctx)
	c.out.window, c.out.windowBytes = m.opts.Window, m.opts.WindowBytes
	return c
}

// add registers a channel; if that fails, the channel ends.
func (m *Manager) add(c *Channel) (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() {
		if err != nil {
			c.cancel()
		}
	}()
	both := m.byID[c.id]
	known, other := *both.at(c.opener), *both.at(!c.opener)
	switch {
	case m.closed:
		return c.errorf(CodeClosed, nil, "the channel manager is closed")
	case known != nil || other != nil && !other.matches(c.secret, c.local, c.remote):
		return c.errorf(CodeInvalid, nil, "a channel with this id exists")
	case len(m.byID) >= m.opts.MaxChannels:
		return c.errorf(CodeTooMany, nil, "there are %d channels, as many as are allowed", len(m.byID))
	}
	*both.at(c.opener) = c
	m.byID[c.id] = both
	m.byPair[pair{c.local, c.remote}] = c
	m.remote[c.remote] = append(m.remote[c.remote], c)
	return nil
}

// forget drops a closed channel.
func (m *Manager) forget(c *Channel) {
	defer c.protect(func() { m.opts.Ended(c) })
	m.mu.Lock()
	defer m.mu.Unlock()
	both := m.byID[c.id]
	if end := both.at(c.opener); *end == c {
		*end = nil
		m.byID[c.id] = both
	}
	if both == (ends{}) {
		delete(m.byID, c.id)
	}
	rest := slices.DeleteFunc(m.remote[c.remote], func(have *Channel) bool { return have == c })
	if m.remote[c.remote] = rest; len(rest) == 0 {
		delete(m.remote, c.remote)
	}
	if p := (pair{c.local, c.remote}); m.byPair[p] == c {
		delete(m.byPair, p)
	}
}

// addTombstone keeps a channel that ended for good from being resumed: its opener may not know of the end.
func (m *Manager) addTombstone(c *Channel) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tombstones[c.id] {
		return
	}
	m.tombstones[c.id] = true
	if m.oldest = append(m.oldest, c.id); len(m.oldest) > maxTombstones {
		delete(m.tombstones, m.oldest[0])
		m.oldest = m.oldest[1:]
	}
}

func (m *Manager) hasTombstone(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tombstones[id]
}

// Serve accepts channels from a listener until ctx ends or the listener or the manager
// is closed; it then returns nil. Other errors end it too. It leaves the listener open.
func (m *Manager) Serve(ctx context.Context, l transport.Listener) error {
	if l == nil {
		return &Error{Code: CodeInvalid, Message: "the listener is nil"}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	for {
		conn, err := l.Accept(ctx)
		switch {
		case ctx.Err() != nil || transport.CodeOf(err) == transport.CodeClosed:
			if conn != nil {
				closeConn(conn)
			}
			return nil
		case err != nil:
			return err
		}
		if !m.start(func() { m.accept(conn, l.Endpoint().Transport, false) }) {
			closeConn(conn)
			return nil
		}
	}
}

// start runs f in a goroutine that Close waits for, unless the manager is closed.
func (m *Manager) start(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.wg.Go(f)
	return true
}

// Channel returns the channel with an id, unless it is closed: the opener's end, if both are in this process.
func (m *Manager) Channel(id string) (*Channel, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	both := m.byID[id]
	c := cmp.Or(both.opener, both.acceptor)
	return c, c != nil
}

// end returns one end of a channel, nil if it is closed or not in this process.
func (m *Manager) end(id string, opener bool) *Channel {
	m.mu.Lock()
	defer m.mu.Unlock()
	both := m.byID[id]
	return *both.at(opener)
}

// matches reports whether an end with this secret, between these agents, is the other end of c.
func (c *Channel) matches(secret, local, remote string) bool {
	return subtle.ConstantTimeCompare([]byte(c.secret), []byte(secret)) == 1 && c.local == remote && c.remote == local
}

// Between returns the latest channel from a local agent to a remote one,
// whichever of them opened it, unless it is closed.
func (m *Manager) Between(local, remote string) (*Channel, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.byPair[pair{local, remote}]
	return c, c != nil
}

// Channels returns all channels that are not closed, in order of their ids: both ends of those within this process.
func (m *Manager) Channels() []*Channel {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]*Channel, 0, len(m.byID))
	for _, id := range slices.Sorted(maps.Keys(m.byID)) {
		for _, c := range []*Channel{m.byID[id].opener, m.byID[id].acceptor} {
			if c != nil {
				all = append(all, c)
			}
		}
	}
	return all
}

// With returns the channels to one remote agent that are not closed.
func (m *Manager) With(remote string) []*Channel {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.remote[remote])
}

// Forward sends an envelope of a local agent to a remote one over the channel between them, which it opens if there
// is none. It blocks as [Channel.Ready] and [Channel.Send] do.
func (m *Manager) Forward(ctx context.Context, to string, e *envelope.Envelope) error {
	if err := e.Validate(); err != nil {
		return err
	}
	c, known := m.Between(e.Sender, to)
	if !known {
		opened, err, _ := m.opening.Do(e.Sender+" "+to, func() (any, error) { // ids have no spaces
			if c, known := m.Between(e.Sender, to); known {
				return c, nil
			}
			return m.Open(ctx, e.Sender, to)
		})
		if err != nil {
			return err
		}
		c = opened.(*Channel)
	}
	return c.send(ctx, e, m.opts.Routed)
}

// CloseAll closes all channels.
func (m *Manager) CloseAll() error {
	var wg sync.WaitGroup
	for _, c := range m.Channels() {
		wg.Go(func() { _ = c.Close() }) // it returns nil
	}
	wg.Wait()
	return nil
}

// Suspend closes the manager without notifying the other ends, which see broken connections, and returns the states
// of the channels that were opened here. The next process passes them to [Manager.Resume]; for channels that others
// opened it needs the same Options.Checkpoints. It waits as Close does.
func (m *Manager) Suspend(ctx context.Context) ([]State, error) {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	var states []State
	var errs []error
	for _, c := range m.Channels() {
		s, err := c.Suspend(ctx)
		switch {
		case err != nil && CodeOf(err) != CodeClosed:
			errs = append(errs, err)
		case err == nil && c.opener:
			states = append(states, s)
		}
	}
	return states, errors.Join(append(errs, m.Close())...)
}

// Close closes all channels, accepts no more and waits until every goroutine has ended, running handlers included:
// do not call it from a handler. It is safe to call more than once.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	err := m.CloseAll()
	m.cancel()
	m.wg.Wait()
	return err
}

func (m *Manager) introduced(ctx context.Context, r Request) error {
	if len(r.Card) == 0 {
		return nil
	}
	return m.opts.Introduced(ctx, r)
}

// State is what the opener's end of a channel needs to continue after a restart of
// its process. It holds the channel's secret.
type State struct {
	ID     string `json:"id"`     // the channel's
	Secret string `json:"secret"` // proves who opened the channel
	Local  string `json:"local"`  // the agent at this end
	Remote string `json:"remote"` // the agent at the other end
	// Alias is the local agent's id at the other end; empty if it is the same.
	Alias    string         `json:"alias,omitempty"`
	Endpoint agent.Endpoint `json:"endpoint"` // of the other end
	Acked    uint64         `json:"acked"`    // envelopes that the peer has handled
	Handled  uint64         `json:"handled"`  // envelopes that were handled here
	// Unacked follow Acked; null stands for a failed one.
	Unacked []*envelope.Envelope `json:"unacked"`
}

// State returns the present state for [Manager.Resume]. It lacks what is sent or
// handled afterwards; [Channel.Suspend] returns the final state.
func (c *Channel) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state()
}

func (c *Channel) state() State {
	s := State{ID: c.id, Secret: c.secret, Local: c.local, Remote: c.remote, Acked: c.out.acked, Handled: c.in.handled}
	if c.alias != c.local {
		s.Alias = c.alias
	}
	if len(c.endpoints) > 0 {
		s.Endpoint = c.endpoints[0]
	}
	for _, o := range c.out.queue {
		s.Unacked = append(s.Unacked, o.e)
	}
	return s
}

// Resume continues a channel that an earlier process opened, unless the other end has
// closed it meanwhile (after its Options.ReconnectTimeout).
func (m *Manager) Resume(s State) (*Channel, error) {
	for _, id := range []string{s.ID, s.Secret, s.Local, s.Remote, cmp.Or(s.Alias, s.Local)} {
		if err := agent.CheckID(id); err != nil {
			return nil, &Error{Code: CodeInvalid, Message: "the state does not describe a channel", Err: err}
		}
	}
	if s.ID != idOf(s.Secret) {
		return nil, &Error{Code: CodeInvalid, Subject: s.ID, Message: "the state's id is not that of its secret"}
	}
	c := m.newChannel(s.ID, s.Local, s.Remote, s.Secret)
	c.opener, c.own, c.endpoints, c.transport = true, m.opts.Local(s.Remote, s.Endpoint), []agent.Endpoint{s.Endpoint}, s.Endpoint.Transport
	c.alias = cmp.Or(s.Alias, s.Local)
	c.in.handled, c.in.received = s.Handled, s.Handled
	c.out.acked, c.out.sent = s.Acked, s.Acked
	for _, e := range s.Unacked {
		size := 0
		if e != nil {
			if err := e.Validate(); err != nil {
				c.cancel()
				return nil, errors.Join(&Error{Code: CodeInvalid, Subject: s.ID, Message: "the state has an envelope that is not valid"}, err)
			}
			size = e.Size()
		}
		c.out.push(e, size)
	}
	return m.launch(c)
}

// guard makes each callback of the options safe to call: its panic is one error event, and an error where it has one.
func (m *Manager) guard() {
	o := &m.opts
	sink, resolve, authorize, introduced, introduce, local, policy := o.Telemetry, o.Resolve, o.Authorize, o.Introduced, o.Introduce, o.Local, o.Policy
	o.Telemetry = telemetry.SinkFunc(func(e telemetry.Event) {
		_ = fault.Catch(func() { sink.Emit(e) }) // who reports events cannot report this one
	})
	if resolve != nil {
		o.Resolve = func(ctx context.Context, id string) (at []agent.Endpoint, err error) {
			err = m.call("Options.Resolve", func() error { at, err = resolve(ctx, id); return err })
			return at, err
		}
	}
	o.Authorize = func(ctx context.Context, r Request) error {
		return m.call("Options.Authorize", func() error { return authorize(ctx, r) })
	}
	o.Introduced = func(ctx context.Context, r Request) error {
		return m.call("Options.Introduced", func() error { return introduced(ctx, r) })
	}
	o.Introduce = func(id string) (card json.RawMessage) {
		_ = m.call("Options.Introduce", func() error { card = introduce(id); return nil }) // then no card is sent
		return card
	}
	o.Local = func(id string, at agent.Endpoint) (yes bool) {
		_ = m.call("Options.Local", func() error { yes = local(id, at); return nil }) // then it is a remote agent
		return yes
	}
	if o.Names != (sameNames{}) {
		o.Names = guardedNames{m, o.Names}
	}
	if policy != (open{}) {
		o.Policy = guarded{m, policy}
	}
	if o.Checkpoints != nil {
		o.Checkpoints = guardedStore{m, o.Checkpoints}
	}
}

// errPanicked replaces a panic of a callback: the peer may get its text.
var errPanicked = errors.New("this end cannot decide about it at the moment")

// call calls a callback of the options.
func (m *Manager) call(whose string, f func() error) error {
	err := fault.CatchError(f)
	p, panicked := errors.AsType[*fault.Panic](err)
	if !panicked {
		return err
	}
	m.opts.Telemetry.Emit(telemetry.Panicked(whose, p))
	return errPanicked
}

// guarded is a policy whose panics are refusals.
type guarded struct {
	m *Manager
	Policy
}

func (g guarded) PermitChannel(from, to string) error {
	return g.m.call("Options.Policy", func() error { return g.Policy.PermitChannel(from, to) })
}

func (g guarded) PermitEnvelope(to string, e *envelope.Envelope) error {
	return g.m.call("Options.Policy", func() error { return g.Policy.PermitEnvelope(to, e) })
}

// guardedNames are names whose panics leave an id as it is.
type guardedNames struct {
	m *Manager
	Names
}

func (g guardedNames) Outside(local, remote string) string {
	id := local
	_ = g.m.call("Options.Names", func() error { id = g.Names.Outside(local, remote); return nil })
	return id
}

func (g guardedNames) Inside(id string) string {
	local := id
	_ = g.m.call("Options.Names", func() error { local = g.Names.Inside(id); return nil })
	return local
}

// guardedStore is a store of checkpoints whose panics are errors.
type guardedStore struct {
	m     *Manager
	store Checkpoints
}

func (g guardedStore) Load(id string) (handled uint64, err error) {
	err = g.m.call("Options.Checkpoints", func() error { handled, err = g.store.Load(id); return err })
	return handled, err
}

func (g guardedStore) Save(id string, handled uint64) error {
	return g.m.call("Options.Checkpoints", func() error { return g.store.Save(id, handled) })
}
