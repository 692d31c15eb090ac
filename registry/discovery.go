package registry

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Source finds the cards of remote agents, on a DHT, a bus or a local network. It may
// also be an [Announcer], a [Finder] and a [Checker].
type Source interface {
	// Discover reports to sink the cards that it finds and loses, and repeats each found one from time to time,
	// until ctx ends. If it returns earlier or panics, the registry calls it again with backoff.
	Discover(ctx context.Context, sink Sink) error
}

// Sink receives what a source finds. It is safe for concurrent use.
type Sink struct {
	r      *Registry
	source string
}

// Found merges a card; see [Registry.Merge].
func (s Sink) Found(card agent.Card) error {
	_, err := s.r.Merge(card, s.source)
	return err
}

// Lost removes a card that this source had found.
func (s Sink) Lost(id string) { s.r.Lost(id, s.source) }

// Announcer is a Source that publishes local cards.
type Announcer interface {
	// Announce publishes a card or its new version. The registry calls it for each local card at the start and at
	// each change, and for all of them every third of Options.RemoteTTL, so that they do not expire.
	Announce(ctx context.Context, card agent.Card) error
	// Withdraw ends the publication of a card.
	Withdraw(ctx context.Context, id string) error
}

// Namer is an Announcer that may announce an agent under another id, NAME@KEY, than the agent has in the registry.
type Namer interface {
	// AnnouncedID returns the id under which it announces the local agent with an id. It must not block.
	AnnouncedID(id string) string
}

// Checker is a Source that can tell whether it is set up.
type Checker interface {
	// Check returns an error with [CodeNotConfigured] if the source can neither find nor announce an agent. It does
	// not block.
	Check() error
}

// Query is for the agent with an id or for agents with a capability; one is set.
type Query struct {
	ID         string
	Capability string
}

// Finder is a Source that answers queries.
type Finder interface {
	Find(ctx context.Context, q Query) ([]agent.Card, error)
}

// withdrawTime bounds the time to withdraw cards at the end.
const withdrawTime = 2 * time.Second

// discovery holds the enabled sources.
type discovery struct {
	mu      sync.Mutex
	sources map[string]*running
	closed  bool
}

type running struct {
	source Source
	local  *Watcher // of an Announcer
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// EnableDiscovery starts a source under a name, which its cards belong to. It does not wait for the first card. It fails
// without a name, and with [CodeNotConfigured] without a source or with one that lacks what it needs.
func (r *Registry) EnableDiscovery(name string, s Source) error {
	if name == "" || s == nil {
		return &Error{Code: CodeNotConfigured, Message: "discovery needs a source and a name for it"}
	}
	if c, ok := s.(Checker); ok {
		if err := c.Check(); err != nil {
			return err
		}
	}
	d := &r.discovery
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	if d.sources[name] != nil {
		return &Error{Code: CodeDiscovery, Message: "discovery source " + name + " is enabled already"}
	}
	ctx, cancel := context.WithCancel(context.Background())
	run := &running{source: s, cancel: cancel}
	if d.sources == nil {
		d.sources = make(map[string]*running)
	}
	d.sources[name] = run
	run.wg.Go(func() { r.discover(ctx, name, s) })
	if a, ok := s.(Announcer); ok {
		w := r.Watch() // before the goroutine, so that it misses no change
		run.local = w
		run.wg.Go(func() { r.announce(ctx, name, a, w) })
	}
	return nil
}

// DisableDiscovery stops a source, withdraws its announcements and removes the cards
// that it found. It waits for the source to end, and reports whether it was enabled.
func (r *Registry) DisableDiscovery(name string) bool {
	d := &r.discovery
	d.mu.Lock()
	run := d.sources[name]
	delete(d.sources, name)
	d.mu.Unlock()
	if run == nil {
		return false
	}
	run.cancel()
	run.wg.Wait()
	r.LostAll(name)
	return true
}

func (d *discovery) close(r *Registry) {
	d.mu.Lock()
	d.closed = true
	all := d.sources
	d.sources = nil
	d.mu.Unlock()
	for _, run := range all {
		run.cancel()
	}
	for _, run := range all {
		run.wg.Wait()
	}
}

// Reannounce has the sources announce all local cards again, for instance because Options.Announced has other results.
func (r *Registry) Reannounce() {
	d := &r.discovery
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, run := range d.sources {
		if run.local != nil {
			run.local.push(Change{Kind: Resync})
		}
	}
}

// discover keeps a source running.
func (r *Registry) discover(ctx context.Context, name string, s Source) {
	const longest = time.Minute
	retry := wait.Backoff{First: time.Second, Most: longest}
	for {
		began := time.Now()
		err := fault.CatchError(func() error { return s.Discover(ctx, Sink{r, name}) })
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.onError(name, err)
		}
		if time.Since(began) > longest {
			retry.Reset() // it worked for a while
		}
		if !retry.Pause(ctx) {
			return
		}
	}
}

// announce keeps the announcements of a equal to the local cards.
func (r *Registry) announce(ctx context.Context, name string, a Announcer, w *Watcher) {
	defer w.Close()
	announced := make(map[string]bool)
	publish := func(card agent.Card) {
		if err := fault.CatchError(func() error { return a.Announce(ctx, r.present(card)) }); err != nil {
			r.report(ctx, name, err)
			return // the next round retries
		}
		announced[card.ID] = true
	}
	withdraw := func(ctx context.Context, id string) {
		if err := fault.CatchError(func() error { return a.Withdraw(ctx, id) }); err != nil {
			r.report(ctx, name, err)
		}
		delete(announced, id)
	}
	round := func() {
		here := make(map[string]bool)
		for _, card := range r.Local() {
			here[card.ID] = true
			publish(card)
		}
		for id := range announced {
			if !here[id] {
				withdraw(ctx, id)
			}
		}
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
		defer cancel()
		for id := range announced {
			withdraw(last, id)
		}
	}()

	every := defaults.Or(r.ttl/3, DefaultRemoteTTL/3)
	for round(); ctx.Err() == nil; round() {
		turn, cancel := context.WithTimeout(ctx, every)
		var c Change
		var err error
		for c, err = w.Next(turn); err == nil; c, err = w.Next(turn) {
			switch {
			case c.Kind == Resync:
				round()
			case c.Kind == Removed || c.Card.Origin != agent.Local:
				if announced[c.Card.ID] {
					withdraw(ctx, c.Card.ID)
				}
			default:
				publish(c.Card)
			}
		}
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return // the registry or the source ends
		}
	}
}

// report passes a source's error to Options.OnError, unless the source is being stopped.
func (r *Registry) report(ctx context.Context, name string, err error) {
	if ctx.Err() == nil {
		r.onError(name, err)
	}
}

// Resolve returns the cards that match q. If the registry has none, it queries the sources that are Finders and
// merges what they find; it blocks until they have answered or ctx ends. Without a match it returns
// [CodeAgentNotFound], which wraps the errors of the sources.
func (r *Registry) Resolve(ctx context.Context, q Query) ([]agent.Card, error) {
	if cards := r.lookup(q); len(cards) > 0 {
		return cards, nil
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	for name, f := range r.finders() {
		wg.Go(func() {
			var found []agent.Card
			err := fault.CatchError(func() (err error) { found, err = f.Find(ctx, q); return err })
			if err != nil {
				r.report(ctx, name, err)
				mu.Lock()
				failed = append(failed, err)
				mu.Unlock()
			}
			for _, card := range found {
				if _, err := r.Merge(card, name); err != nil {
					r.report(ctx, name, err)
				}
			}
		})
	}
	wg.Wait()
	if cards := r.lookup(q); len(cards) > 0 {
		return cards, nil
	}
	nobody := notFound(q.ID)
	if q.ID == "" {
		nobody = &Error{Code: CodeAgentNotFound, Message: "no agent with capability " + q.Capability + " is known"}
	}
	nobody.Err = errors.Join(failed...)
	return nil, nobody
}

func (r *Registry) lookup(q Query) []agent.Card {
	if q.ID == "" {
		return r.FindByCapability(q.Capability)
	}
	card, err := r.Get(q.ID)
	if err != nil {
		return nil
	}
	return []agent.Card{card}
}

func (r *Registry) finders() map[string]Finder {
	d := &r.discovery
	d.mu.Lock()
	defer d.mu.Unlock()
	finders := make(map[string]Finder)
	for name, run := range d.sources {
		if f, ok := run.source.(Finder); ok {
			finders[name] = f
		}
	}
	return finders
}

// AnnouncedID returns the id by which other registries know a local agent: the one under which the source with a name
// announces it or, if that source announces nothing, the first one that does, by name; without one the id itself.
func (r *Registry) AnnouncedID(id, source string) string {
	for _, n := range r.namers(source) {
		if announced := n.AnnouncedID(id); announced != id {
			return announced
		}
	}
	return id
}

// LocalID returns the id of the local agent that is meant with an id: its own, or one of [Registry.AnnouncedID]. It
// reports false if there is no such agent.
func (r *Registry) LocalID(id string) (local string, ok bool) {
	if known, ok := r.Identity(id); ok {
		return id, known.Origin == agent.Local
	}
	name, key := agent.SplitID(id)
	if known, ok := r.Identity(name); key == "" || !ok || known.Origin != agent.Local {
		return id, false
	}
	if slices.ContainsFunc(r.namers(""), func(n Namer) bool { return n.AnnouncedID(name) == id }) {
		return name, true
	}
	return id, false
}

// namers returns the enabled sources that give ids, the named one first and then by name.
func (r *Registry) namers(first string) (all []Namer) {
	d := &r.discovery
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range slices.Insert(slices.Sorted(maps.Keys(d.sources)), 0, first) {
		if d.sources[name] == nil {
			continue
		}
		if n, ok := d.sources[name].source.(Namer); ok {
			all = append(all, n)
		}
	}
	return all
}

// CanFind reports whether an enabled source answers queries, so that Resolve may block.
func (r *Registry) CanFind() bool { return len(r.finders()) > 0 }
