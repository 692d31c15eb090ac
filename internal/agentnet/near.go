package agentnet

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// A computer with a hub takes part in the network twice: at the cluster, and on
// the hub's own bus, under the same GUIDs. Each thing is in one of the two:
//
//   - Mail between agents of the computer is in the inboxes of its hub, whether
//     the cluster can be reached or not. Other mail is in the inboxes of the
//     cluster, and until it can be put there in the outbox. So the letters of one
//     agent to another all take one way, and stay in order.
//   - An item of work is entered into the hub's records first. It is moved to the
//     cluster at once where that can be reached, else when it can, unless an agent
//     of the computer has claimed it meanwhile: see move.
//   - The registries have an entry each. That of the cluster counts as long as it
//     can be reached.

// maxNearBackoff is how long a hub that has just been started may go unnoticed.
const maxNearBackoff = 5 * time.Second

// nearConfig is the same process's place on the hub's bus.
func (c Config) nearConfig() Config {
	c.Dial, c.DialLocal = c.DialLocal, nil
	c.GUID, c.StateDir, c.Place, c.ThroughHub, c.Replicas = "", "", nil, false, 1 // identities are taken at the cluster, or from the state directory
	c.Logger = c.Logger.With("bus", "hub")
	c.isNear = true
	return c
}

// unreachable is how loud a failed attempt to connect is: that no hub runs is no
// fault.
func (c Config) unreachable(attempt int) slog.Level {
	if c.isNear || c.ThroughHub && attempt > 1 {
		return slog.LevelDebug
	}
	return slog.LevelError
}

// Usable is Ready, but returns as well once it is known that the network cannot be
// reached and the hub's bus can be used instead.
func (n *Network) Usable(ctx context.Context) error {
	if n.near == nil {
		return n.Ready(ctx)
	}
	for {
		changed, nearChanged := n.news.Wait(), n.near.news.Wait()
		_, err := n.connected()
		if err == nil || errors.Is(err, errClosed) {
			return err
		}
		if _, nearErr := n.near.connected(); nearErr == nil && !errors.Is(err, errNotYet) {
			return nil
		}
		select {
		case <-changed:
		case <-nearChanged:
		case <-ctx.Done():
			return err
		}
	}
}

// Notice says, in words for agents, that the link to the network is down and what
// that means; it is empty while it is up, and where there is nothing to go on
// with meanwhile.
func (n *Network) Notice() string {
	if n.near == nil {
		return ""
	}
	if _, err := n.connected(); err == nil || errors.Is(err, errClosed) {
		return ""
	}
	if _, err := n.near.connected(); err != nil {
		return ""
	}
	return "The link to the agents' network is down. The agents of this computer go on among themselves: they find each other, " +
		"their mail arrives, and they share the work that is submitted here. Mail for others is kept and forwarded in order once the link " +
		"is back; so is work that nobody here has begun."
}

// nearby returns the agent's place on the hub's bus; nil if there is none now.
func (a *Agent) nearby() *Agent {
	near := a.nearPlace()
	if near == nil {
		return nil
	}
	if _, err := near.ready(); err != nil {
		return nil
	}
	return near
}

// nearPlace returns the agent's place on the hub's bus also while that cannot be
// reached.
func (a *Agent) nearPlace() *Agent {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failure != nil {
		return nil
	}
	return a.near
}

// registerNear makes an agent known on this computer while the network cannot be
// reached; it enters that as soon as it can.
func (n *Network) registerNear(ctx context.Context, r Registration, outage error, take func() (*identity, error)) (*Agent, error) {
	if n.near == nil || !isConnection(outage) {
		return nil, outage
	}
	if _, err := n.near.connected(); err != nil {
		return nil, outage
	}
	id, err := take()
	if err != nil {
		return nil, err
	}
	a := n.newAgent(id, r)
	a.late, a.unlisted = true, id.slot == "" && n.cfg.Place == nil
	if err := a.joinNear(ctx); err != nil {
		unlock(id.lock)
		return nil, connectionError(err)
	}
	if !n.admit(a) {
		unlock(id.lock)
		return nil, errClosed
	}
	a.startHeartbeat()
	a.log.Info("agent registered on this computer only: the network cannot be reached", "agentType", r.AgentType, "again", id.reused)
	return a, nil
}

// joinNear gives the agent its place on the hub's bus.
func (a *Agent) joinNear(ctx context.Context) error {
	near := a.net.near
	b, err := near.connected()
	if err != nil {
		return err
	}
	id := &identity{guid: a.guid, written: near.clock.now()}
	if place := a.net.cfg.Place; place != nil { // the hub knows the agent by what it has on the hub's bus
		here := *place
		here.DialCluster, here.Mark = nil, ""
		id = near.placed(&here)
	}
	p := &Agent{net: near, guid: a.guid, identity: id, unlisted: a.unlisted,
		log: a.log.With("bus", "hub"), turn: make(chan struct{}, 1), entry: a.Entry()}
	p.turn <- struct{}{}
	if _, err := near.settle(ctx, b, p); err != nil {
		return err
	}
	a.mu.Lock()
	gone := a.failure != nil
	if !gone {
		a.near = p
	}
	a.mu.Unlock()
	if gone {
		p.leave(errGone)
	}
	return nil
}

// keepNear joins the hub's bus as soon as it can be reached.
func (a *Agent) keepNear(ctx context.Context) {
	near := a.net.near
	for ctx.Err() == nil && a.nearPlace() == nil {
		changed := near.news.Wait()
		err := a.joinNear(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil && !isConnection(err) {
			a.log.Warn("the agent has no place on the hub's bus yet", "error", err)
		}
		retry := time.NewTimer(maxNearBackoff)
		select {
		case <-changed:
		case <-retry.C:
		case <-ctx.Done():
		}
		retry.Stop()
	}
}

// arrive waits until the network can be used, and enters it where the agent has
// not yet.
func (a *Agent) arrive(ctx context.Context) (*bus.Bus, error) {
	retry := wait.Backoff{Most: MaxBackoff}
	for attempt := 1; ; attempt++ {
		if err := a.net.Ready(ctx); err != nil {
			return nil, err
		}
		b, err := a.net.connected()
		if err == nil && a.isLate() {
			err = a.enterLate(ctx, b)
		}
		if err == nil {
			return b, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		if !isConnection(err) {
			a.log.Error("the agent is not in the network yet", "error", err, "attempt", attempt)
		}
		retry.Pause(ctx)
	}
}

func (a *Agent) isLate() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.late
}

// enterLate makes an agent known in the network that has begun without it.
func (a *Agent) enterLate(ctx context.Context, b *bus.Bus) error {
	if !a.unlisted && a.net.cfg.Place == nil { // or else the hub has entered it
		if err := a.claimIdentity(ctx, b); err != nil {
			return err
		}
	}
	if err := a.enter(ctx, b); err != nil {
		return err
	}
	a.mu.Lock()
	a.late = false
	a.mu.Unlock()
	a.log.Info("the agent has entered the network")
	return nil
}

// mirror brings the agent's entry on the hub's bus up to date.
func (a *Agent) mirror(ctx context.Context) error {
	near := a.nearby()
	if near == nil {
		return nil
	}
	e := a.Entry()
	near.mu.Lock()
	near.entry = e
	near.mu.Unlock()
	if e.Status == Offline {
		near.stopHeartbeat()
	}
	b, err := near.ready()
	if err != nil {
		return err
	}
	if err := near.write(ctx, b); err != nil {
		return connectionError(err)
	}
	if e.Status != Offline {
		near.startHeartbeat()
	}
	return nil
}

// neighbour says whether mail for an agent goes to the hub's bus: it is an agent
// of this computer. What was one stays one, so that letters stay in order.
func (a *Agent) neighbour(ctx context.Context, guid string) (near *Agent, err error) {
	place := a.nearPlace()
	if place == nil {
		return nil, nil
	}
	b, err := place.ready()
	if err == nil {
		_, err = place.net.addressee(ctx, b, guid)
	}
	known := place.net.neighbours.has(guid)
	switch {
	case err == nil:
		place.net.neighbours.add(guid)
		return place, nil
	case isConnection(err) && (known || a.perhapsHere(ctx, guid)):
		return nil, err
	}
	return nil, nil
}

// perhapsHere says whether an agent may be one of this computer's, while the hub's bus
// cannot be asked: put elsewhere, the first letter to it would come after the second.
func (a *Agent) perhapsHere(ctx context.Context, guid string) bool {
	b, err := a.ready()
	if err != nil {
		return true
	}
	s, err := a.net.seat(ctx, b, guid)
	return err != nil || s != nil && s.Hostname == a.net.cfg.Hostname
}

// merge puts two lists of mail, each in its own order, into one by time.
func merge(here, there []Mail) []Mail {
	merged := make([]Mail, 0, len(here)+len(there))
	for len(here) > 0 && len(there) > 0 {
		next := &here
		if there[0].Timestamp.Before(here[0].Timestamp) {
			next = &there
		}
		merged = append(merged, (*next)[0])
		*next = (*next)[1:]
	}
	return append(append(merged, here...), there...)
}

// readBoth reads the inboxes of an agent that has two. It fails if it can look
// into neither.
func (a *Agent) readBoth(ctx context.Context, near *Agent, s Selection) (mail []Mail, more bool, err error) {
	here, moreHere, errHere := near.readOne(ctx, s)
	if errHere != nil && !isConnection(errHere) {
		return nil, false, errHere
	}
	if len(here) == s.Limit {
		return here, true, nil // perhaps
	}
	s.Limit -= len(here)
	there, moreThere, err := a.readOne(ctx, s)
	if err != nil && (!isConnection(err) || errHere != nil) {
		if len(here) > 0 { // they are marked as read
			a.log.Warn("the inbox in the network could not be read", "error", err)
			return here, true, nil
		}
		return nil, false, err
	}
	return merge(here, there), moreHere || moreThere, nil
}

// discoverBoth lists the agents that either registry has. The network's word
// counts.
func (n *Network) discoverBoth(ctx context.Context, v viewer, f Filter) (Discovery, error) {
	whole := f
	whole.Limit = MaxDiscoverLimit
	var found Discovery
	b, err := n.connected()
	if err == nil {
		found, err = n.discover(ctx, b, v, whole)
	}
	if err != nil && !isConnection(err) {
		return Discovery{}, err
	}
	near, nearErr := n.near.connected()
	var here Discovery
	if nearErr == nil {
		here, nearErr = n.near.discover(ctx, near, v, whole)
	}
	if nearErr != nil {
		if err != nil {
			return Discovery{}, err
		}
		return found.cut(f), nil
	}
	known := map[string]bool{}
	for _, s := range found.Agents {
		known[s.GUID] = true
	}
	for _, s := range here.Agents {
		if !known[s.GUID] {
			found.Agents = append(found.Agents, s)
			found.Total++
		}
	}
	slices.SortStableFunc(found.Agents, func(x, y Summary) int {
		return parseTime(y.LastHeartbeat).Compare(parseTime(x.LastHeartbeat))
	})
	return found.cut(f), nil
}

// cut leaves as many agents as the filter allows.
func (d Discovery) cut(f Filter) Discovery {
	d.Agents = d.Agents[:min(len(d.Agents), or(f.Limit, DefaultDiscoverLimit))]
	if d.Agents == nil {
		d.Agents = []Summary{}
	}
	return d
}

// either returns the bus to work with, and the agent's place there: that of the
// network, or while that cannot be reached the hub's.
func (a *Agent) either() (*bus.Bus, *Agent, error) {
	b, err := a.ready()
	if err == nil || !isConnection(err) {
		return b, a, err
	}
	if near := a.nearby(); near != nil {
		if b, nearErr := near.ready(); nearErr == nil {
			return b, near, nil
		}
	}
	return nil, nil, err
}

// seatsBoth returns the entries at a bus, and those of the hub's registry that
// are not there.
func (a *Agent) seatsBoth(ctx context.Context, b *bus.Bus, of *Network) ([]seat, error) {
	all, err := of.seats(ctx, b)
	near := a.nearby()
	if err != nil || near == nil || near.net == of {
		return all, err
	}
	nb, err := near.ready()
	if err != nil {
		return all, nil // it has gone just now
	}
	here, err := near.net.seats(ctx, nb)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, s := range all {
		known[s.GUID] = true
	}
	all = slices.Clone(all) // it is the roll's
	for _, s := range here {
		if !known[s.GUID] {
			all = append(all, s)
		}
	}
	return all, nil
}

// deliver stores a message in the inbox where it belongs.
func (a *Agent) deliver(ctx context.Context, recipient string, p mailPayload) (Sent, error) {
	near, err := a.neighbour(ctx, recipient)
	if err != nil {
		return Sent{}, err
	}
	at := a
	if near != nil {
		at = near
	}
	b, err := at.ready()
	if err != nil {
		return Sent{}, err
	}
	if near == nil {
		if queued, err := a.queued(ctx, nil); queued || err != nil {
			if err != nil {
				return Sent{}, err
			}
			return a.enqueue(ctx, recipient, p)
		}
	}
	return at.post(ctx, b, recipient, p)
}

// guidSet is safe for concurrent use.
type guidSet struct {
	mu  sync.Mutex
	set map[string]bool
}

func (s *guidSet) add(guid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set == nil {
		s.set = map[string]bool{}
	}
	s.set[guid] = true
}

func (s *guidSet) has(guid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set[guid]
}
