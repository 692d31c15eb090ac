package simlink

import (
	"context"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/registry"
)

// cards announces and finds cards by datagrams, which links that are cut or hold back lose. It is a [peers.CardSource].
type cards struct {
	host   *Host
	ledger *signedcard.Ledger

	mu    sync.Mutex
	known map[string]bool // statements that were accepted
	seen  map[identity.PublicKey]time.Time
	sink  registry.Sink
}

// Discover implements [registry.Source].
func (c *cards) Discover(ctx context.Context, sink registry.Sink) error {
	c.mu.Lock()
	c.sink = sink
	c.mu.Unlock()
	c.host.n.locked(func() { c.host.sink = c })
	c.ask()
	<-ctx.Done()
	return ctx.Err()
}

// ask requests the statements of the other hubs.
func (c *cards) ask() { c.host.send(func(to *cards) { to.answer() }) }

func (c *cards) answer() {
	for _, id := range c.ledger.Agents() {
		if data, err := c.ledger.Statement(id); err == nil {
			c.publish(data)
		}
	}
}

func (c *cards) publish(data []byte) {
	from := c.host.key
	c.host.send(func(to *cards) { to.receive(from, data) })
}

func (c *cards) receive(from identity.PublicKey, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A repeated statement says only that its hub is there; to verify each again is a third of a simulation.
	if c.known[string(data)] || c.ledger.Receive(from, data, c.sink) {
		c.known[string(data)] = true
		c.seen[from] = time.Now()
	}
}

// send calls arrive later with the cards of each other hub that a datagram reaches.
func (h *Host) send(arrive func(to *cards)) {
	n := h.n
	n.mu.Lock()
	defer n.mu.Unlock()
	for key := range n.hosts {
		if key == h.key {
			continue
		}
		time.AfterFunc(n.latency(maxCardLatency), func() {
			n.mu.Lock()
			var to *cards
			w := n.way(h.key, key)
			if at := n.hosts[key]; !h.dead && !at.dead && !w.cut && !w.held {
				to = at.sink
			}
			n.mu.Unlock()
			if to != nil {
				arrive(to)
			}
		})
	}
}

// Announce implements [registry.Announcer].
func (c *cards) Announce(_ context.Context, card agent.Card) error {
	data, err := c.ledger.Announce(card)
	if err != nil {
		return err
	}
	c.publish(data)
	return nil
}

// Withdraw implements [registry.Announcer].
func (c *cards) Withdraw(_ context.Context, id string) error {
	data, err := c.ledger.Withdraw(id)
	if err != nil {
		return err
	}
	c.publish(data)
	return nil
}

// Find implements [registry.Finder]. What is found comes to Discover.
func (c *cards) Find(context.Context, registry.Query) ([]agent.Card, error) {
	c.ask()
	return nil, nil
}

// AnnouncedID implements [registry.Namer].
func (c *cards) AnnouncedID(id string) string { return c.ledger.AnnouncedID(id) }

// LastSeen implements [peers.CardSource].
func (c *cards) LastSeen(key identity.PublicKey) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[key]
}
