package work

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// The limits of queues. A full one refuses new items.
const (
	maxQueued  = 100_000                // items in one queue
	maxClaimed = 20_000                 // items of one queue that workers hold
	maxQueues  = 512                    // in the network
	queueRetry = 500 * time.Millisecond // for a queue that does not exist yet

	// MaxOwnedQueues is how many queues the agents of one project on a computer can make.
	MaxOwnedQueues = 64
)

func (s *Service) forgetConsumers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.consumers)
}

func (s *Service) knownConsumer(capability string) jetstream.Consumer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.consumers[capability]
}

// ownerKey names the owner in a queue's metadata.
const ownerKey = "parley-owner"

func queueConfig(capability, owner string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        store.QueueStreamPrefix + capability,
		Description: "Work that wants " + capability,
		Subjects:    []string{store.QueueSubject + capability},
		Retention:   jetstream.WorkQueuePolicy,
		Discard:     jetstream.DiscardNew,
		Storage:     jetstream.FileStorage,
		MaxMsgs:     maxQueued,
		AllowDirect: true,
		Metadata:    map[string]string{ownerKey: owner},
	}
}

// ensureQueue creates a queue that is missing, with its workers' consumer. owner is the key of
// the project whose agents request it, "" for none.
func (s *Service) ensureQueue(ctx context.Context, b *bus.Bus, capability, owner string) (jetstream.Consumer, error) {
	if c := s.knownConsumer(capability); c != nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*store.RequestTimeout)
	defer cancel()
	if s.cfg.Admission != nil {
		if err := s.requestQueue(ctx, b, capability); err != nil {
			return nil, err
		}
		return s.consumer(ctx, b, capability)
	}
	_, err := b.JetStream().Stream(ctx, store.QueueStreamPrefix+capability)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err = s.checkQuota(ctx, b, owner); err == nil {
			err = s.reg.MakeStream(ctx, b, queueConfig(capability, owner))
		}
	}
	if err != nil {
		return nil, err
	}
	return s.consumer(ctx, b, capability)
}

// MakeQueue creates the queue of a capability unless it exists. owner is the key of the
// project whose agents request it, "" for none.
func (s *Service) MakeQueue(ctx context.Context, capability, owner string) error {
	name, err := store.QueueName(capability)
	if err != nil {
		return err
	}
	b, err := s.reg.Connected()
	if err != nil {
		return err
	}
	_, err = s.ensureQueue(ctx, b, name, owner)
	return store.AsError(err)
}

// queueAnswer is a hub's answer to an agent's request for a queue.
type queueAnswer struct {
	Category store.Code `json:"category,omitempty"` // "" if the queue exists
	Message  string     `json:"message,omitempty"`
	Remedy   string     `json:"remedy,omitempty"`
}

// requestQueue requests a queue from the hub that has admitted the agent.
func (s *Service) requestQueue(ctx context.Context, b *bus.Bus, capability string) error {
	m, err := b.Conn().RequestWithContext(ctx, s.cfg.Admission.Control, []byte(capability))
	if err != nil {
		return err
	}
	var answer queueAnswer
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return err
	}
	if answer.Category != "" {
		return &store.Error{Code: answer.Category, Message: answer.Message, Remedy: answer.Remedy}
	}
	return nil
}

// AnswerQueueRequest handles an agent's request for a queue at the hub: it creates the queue
// and returns the encoded answer.
func (s *Service) AnswerQueueRequest(ctx context.Context, capability, owner string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*store.RequestTimeout)
	defer cancel()
	s.forgetConsumers() // so that the lease is set again
	var answer queueAnswer
	if e, ok := errors.AsType[*store.Error](s.MakeQueue(ctx, capability, owner)); ok {
		answer = queueAnswer{e.Code, e.Message, e.Remedy}
	}
	return json.Marshal(answer)
}

// checkQuota returns a ConflictError if there are too many queues.
func (s *Service) checkQuota(ctx context.Context, b *bus.Bus, owner string) error {
	streams := b.JetStream().ListStreams(ctx, jetstream.WithStreamListSubject(store.QueueSubject+"*"))
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
	message := "The network has too many work queues."
	switch {
	case owned >= MaxOwnedQueues:
		message = fmt.Sprintf("The agents of this project have made %d work queues on this computer.", owned)
	case count < maxQueues:
		return nil
	}
	return &store.Error{Code: store.ConflictError, Message: message,
		Remedy: "Use the name of a capability that agents have; discover_agents shows them."}
}

// consumer returns the consumer that all workers of a queue share, and makes it if it is
// missing. Its lease is that of the process that was configured last.
func (s *Service) consumer(ctx context.Context, b *bus.Bus, capability string) (jetstream.Consumer, error) {
	stream := store.QueueStreamPrefix + capability
	c, err := b.JetStream().Consumer(ctx, stream, store.QueueGroup)
	switch {
	case s.cfg.Admission != nil && errors.Is(err, jetstream.ErrConsumerNotFound): // a power cut has taken it
		if err = s.requestQueue(ctx, b, capability); err == nil {
			c, err = b.JetStream().Consumer(ctx, stream, store.QueueGroup)
		}
	case s.cfg.Confined():
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		c, err = b.JetStream().CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
			Durable:       store.QueueGroup,
			Description:   "All workers of this queue",
			AckPolicy:     jetstream.AckExplicitPolicy,
			AckWait:       s.cfg.AckTimeout,
			MaxDeliver:    -1, // the item's record counts the attempts
			MaxAckPending: maxClaimed,
		})
	case err == nil && c.CachedInfo().Config.AckWait != s.cfg.AckTimeout:
		have := c.CachedInfo().Config
		s.reg.Log().Warn("the lease of a queue's items is changed to this process's configuration",
			"queue", capability, "before", have.AckWait.String(), "now", s.cfg.AckTimeout.String())
		have.AckWait = s.cfg.AckTimeout
		c, err = b.JetStream().UpdateConsumer(ctx, stream, have)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumers[capability] = c
	return c, nil
}

// Redeliver has the queues on a bus deliver all their messages again, from the first one that there is. It is for the
// process that has started the bus's server: one that was killed may have lost that a message was returned, or have
// delivered it to a worker that was killed too, and would deliver it only after a lease; and after a power cut the
// position of the consumer need not fit the messages. Items that are held stay with their holders.
func (s *Service) Redeliver(ctx context.Context, b *bus.Bus) error {
	names := b.JetStream().StreamNames(ctx, jetstream.WithStreamListSubject(store.QueueSubject+"*"))
	var errs []error
	for name := range names.Name() {
		_, err := b.JetStream().Consumer(ctx, name, store.QueueGroup)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			continue
		}
		if err == nil {
			_, err = b.JetStream().ResetConsumerToSequence(ctx, name, store.QueueGroup, 1)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(append(errs, names.Err())...)
}

// existingConsumer returns nil for a queue that does not exist: a claim creates none.
func (s *Service) existingConsumer(ctx context.Context, b *bus.Bus, capability string) (jetstream.Consumer, error) {
	if c := s.knownConsumer(capability); c != nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.RequestTimeout)
	defer cancel()
	c, err := s.consumer(ctx, b, capability)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	return c, err
}

// fetchOne waits for one message; nil means that there was none.
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
