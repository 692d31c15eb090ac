package agentnet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// The limits of queues. A full one refuses new items.
const (
	maxQueued  = 100_000                // items in one queue
	maxClaimed = 20_000                 // items of one queue that workers hold
	maxQueues  = 512                    // in the network
	maxOwned   = 64                     // made by the agents of one project on a computer
	queueRetry = 500 * time.Millisecond // for one that nobody has made yet
)

// queues are the consumers that this process has found or made, by capability.
type queues struct {
	mu     sync.Mutex
	byName map[string]jetstream.Consumer
}

func (q *queues) get(name string) jetstream.Consumer {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.byName[name]
}

func (q *queues) put(name string, c jetstream.Consumer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.byName == nil {
		q.byName = map[string]jetstream.Consumer{}
	}
	q.byName[name] = c
}

// forget makes everything be looked up again: the server may be another now.
func (q *queues) forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.byName)
}

// ownerKey is what a queue's metadata say by whose agents it was made.
const ownerKey = "parley-owner"

func queueConfig(capability, owner string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        queuePrefix + capability,
		Description: "Work that wants " + capability,
		Subjects:    []string{queueSubject + capability},
		Retention:   jetstream.WorkQueuePolicy,
		Discard:     jetstream.DiscardNew,
		Storage:     jetstream.FileStorage,
		MaxMsgs:     maxQueued,
		AllowDirect: true,
		Metadata:    map[string]string{ownerKey: owner},
	}
}

// queueStream makes a queue that is missing (REQ-WORKQUEUE-002,
// REQ-WORKQUEUE-004), with its workers' consumer, which keeps what nobody has
// asked for yet.
func (n *Network) queueStream(ctx context.Context, b *bus.Bus, capability string) (jetstream.Consumer, error) {
	_, owner := n.allowances("")
	return n.ownedQueue(ctx, b, capability, owner)
}

// ownedQueue is queueStream for agents of an owner; "" is nobody's agent.
func (n *Network) ownedQueue(ctx context.Context, b *bus.Bus, capability, owner string) (jetstream.Consumer, error) {
	if c := n.queue.get(capability); c != nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*requestTimeout)
	defer cancel()
	if n.cfg.Place != nil {
		if err := n.askForQueue(ctx, b, capability); err != nil {
			return nil, err
		}
		return n.workers(ctx, b, capability)
	}
	_, err := b.JetStream().Stream(ctx, queuePrefix+capability)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := n.roomForQueue(ctx, b, owner); err != nil {
			return nil, err
		}
		_, err = n.makeStream(ctx, b, queueConfig(capability, owner))
	}
	if err != nil {
		return nil, err
	}
	return n.workers(ctx, b, capability)
}

// MakeQueue makes the queue of a capability, for agents that the server does not
// let make one.
func (n *Network) MakeQueue(ctx context.Context, capability string) error {
	return n.makeQueue(ctx, capability, "")
}

func (n *Network) makeQueue(ctx context.Context, capability, owner string) error {
	name, err := queueName(capability)
	if err != nil {
		return err
	}
	b, err := n.connected()
	if err != nil {
		return err
	}
	_, err = n.ownedQueue(ctx, b, name, owner)
	return connectionErrorOrNil(err)
}

func (n *Network) roomForQueue(ctx context.Context, b *bus.Bus, owner string) error {
	streams := b.JetStream().ListStreams(ctx, jetstream.WithStreamListSubject(queueSubject+"*"))
	count, owned := 0, 0
	for info := range streams.Info() {
		count++
		if owner != "" && info.Config.Metadata[ownerKey] == owner {
			owned++
		}
	}
	if err := streams.Err(); err != nil {
		return err
	}
	if owned >= maxOwned {
		return &Error{Code: ConflictError, Message: fmt.Sprintf("The agents of this project have made %d work queues on this computer.", owned),
			Remedy: "Use the name of a capability that agents have; discover_agents shows them."}
	}
	if count >= maxQueues {
		return &Error{Code: ConflictError, Message: "The network has too many work queues.",
			Remedy: "Use the name of a capability that agents have; discover_agents shows them."}
	}
	return nil
}

// workers finds or makes the consumer that all workers of a queue share
// (REQ-WORKQUEUE-003). Its lease is what was configured last.
func (n *Network) workers(ctx context.Context, b *bus.Bus, capability string) (jetstream.Consumer, error) {
	stream := queuePrefix + capability
	c, err := b.JetStream().Consumer(ctx, stream, queueGroup)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound) && !n.confined():
		c, err = b.JetStream().CreateOrUpdateConsumer(ctx, stream, n.consumerConfig())
	case err == nil && c.CachedInfo().Config.AckWait != n.cfg.AckTimeout && !n.confined():
		n.log.Warn("the lease of a queue's items is changed to what this process's configuration says",
			"queue", capability, "before", c.CachedInfo().Config.AckWait.String(), "now", n.cfg.AckTimeout.String())
		have := c.CachedInfo().Config
		have.AckWait = n.cfg.AckTimeout
		c, err = b.JetStream().UpdateConsumer(ctx, stream, have)
	}
	if err != nil {
		return nil, err
	}
	n.queue.put(capability, c)
	return c, nil
}

func (n *Network) consumerConfig() jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       queueGroup,
		Description:   "All workers of this queue",
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       n.cfg.AckTimeout, // REQ-DLQ-001
		MaxDeliver:    -1,               // the record counts
		MaxAckPending: maxClaimed,
	}
}

// queueConsumer is the workers' consumer of a queue, nil if nobody has put
// anything there yet: to wait for work makes no queue.
func (n *Network) queueConsumer(ctx context.Context, b *bus.Bus, capability string) (jetstream.Consumer, error) {
	if c := n.queue.get(capability); c != nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	c, err := n.workers(ctx, b, capability)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	return c, err
}

// fetchOne asks for one message and waits for it; nil means that there was
// none.
func fetchOne(c jetstream.Consumer, wait time.Duration) (jetstream.Msg, error) {
	var batch jetstream.MessageBatch
	var err error
	if wait <= 0 {
		batch, err = c.FetchNoWait(1)
	} else {
		batch, err = c.Fetch(1, jetstream.FetchMaxWait(wait))
	}
	if err != nil {
		return nil, err
	}
	for m := range batch.Messages() {
		return m, nil
	}
	return nil, batch.Error()
}
