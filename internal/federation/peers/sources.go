package peers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/registry"
)

// CardSource discovers and announces cards over one transport.
type CardSource interface {
	registry.Source
	registry.Announcer
	registry.Finder
	// LastSeen returns the time of the last message of the hub with a key; zero for none.
	LastSeen(identity.PublicKey) time.Time
}

// sources are one source for the registry: a signed card counts the same by every
// transport, while the registry assigns each agent to one source.
type sources map[agent.Transport]CardSource

// Discover implements [registry.Source]. If one source fails, it stops all; the registry starts it again.
func (ss sources) Discover(ctx context.Context, sink registry.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var first error
	var once sync.Once
	_ = ss.each(func(s CardSource) error {
		err := s.Discover(ctx, sink)
		once.Do(func() { first = err })
		cancel()
		return err
	})
	return first
}

// Announce implements [registry.Announcer].
func (ss sources) Announce(ctx context.Context, card agent.Card) error {
	return ss.each(func(s CardSource) error { return s.Announce(ctx, card) })
}

// Withdraw implements [registry.Announcer].
func (ss sources) Withdraw(ctx context.Context, id string) error {
	return ss.each(func(s CardSource) error { return s.Withdraw(ctx, id) })
}

// Find implements [registry.Finder]. Discover reports what it finds.
func (ss sources) Find(ctx context.Context, q registry.Query) ([]agent.Card, error) {
	return nil, ss.each(func(s CardSource) error {
		_, err := s.Find(ctx, q)
		return err
	})
}

// each calls do for all sources concurrently and joins the errors.
func (ss sources) each(do func(CardSource) error) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, s := range ss {
		wg.Go(func() {
			err := do(s)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
