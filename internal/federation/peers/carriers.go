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

// carrier is a way for cards to travel.
type carrier interface {
	registry.Source
	registry.Announcer
	registry.Finder
	// LastSeen returns the time of the last message of the hub with a key; zero for none.
	LastSeen(identity.PublicKey) time.Time
}

// carriers are several of them as one: what a hub signs counts the same whichever way
// it came, and the registry would ask which source an agent belongs to.
type carriers []carrier

// Discover implements [registry.Source]. When one carrier fails all are begun again.
func (cs carriers) Discover(ctx context.Context, sink registry.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, len(cs))
	for _, c := range cs {
		go func() { errs <- c.Discover(ctx, sink) }() // waited for below
	}
	err := <-errs
	cancel()
	for range len(cs) - 1 {
		<-errs
	}
	return err
}

// Announce implements [registry.Announcer].
func (cs carriers) Announce(ctx context.Context, card agent.Card) error {
	return cs.each(func(c carrier) error { return c.Announce(ctx, card) })
}

// Withdraw implements [registry.Announcer].
func (cs carriers) Withdraw(ctx context.Context, id string) error {
	return cs.each(func(c carrier) error { return c.Withdraw(ctx, id) })
}

// Find implements [registry.Finder]. What is found goes through Discover.
func (cs carriers) Find(ctx context.Context, q registry.Query) ([]agent.Card, error) {
	return nil, cs.each(func(c carrier) error {
		_, err := c.Find(ctx, q)
		return err
	})
}

// each does the same with all carriers at once.
func (cs carriers) each(do func(carrier) error) error {
	errs := make([]error, len(cs))
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Go(func() { errs[i] = do(c) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
