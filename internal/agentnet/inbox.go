package agentnet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// The limits of an inbox are those of a project's channel (REQ-DIRECT-004).
// Where a full channel drops its oldest message, a full inbox refuses new ones:
// the sender is told, and nothing that was accepted is lost. Mail that was read
// makes room.
const (
	inboxMaxMessages = 10000
	inboxMaxBytes    = 10 << 20
	inboxMaxAge      = 24 * time.Hour
	inboxBuffer      = 64 // notes of new mail that may wait
)

func inboxConfig(name, subject string) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{
		Name:        name,
		Description: "Mail of agents",
		Subjects:    []string{subject},
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardNew,
		Storage:     jetstream.FileStorage,
		MaxAge:      inboxMaxAge,
		Duplicates:  inboxMaxAge, // a message that is sent again arrives once
		AllowDirect: true,
	}
	if name == sharedInbox {
		cfg.MaxMsgsPerSubject, cfg.DiscardNewPerSubject = inboxMaxMessages, true
		return cfg
	}
	cfg.MaxMsgs, cfg.MaxBytes = inboxMaxMessages, inboxMaxBytes
	return cfg
}

// findInboxes sees how the server keeps the network's mail, and makes the
// shared stream where that is configured and nothing is there yet.
func (n *Network) findInboxes(ctx context.Context, b *bus.Bus) error {
	ctx, cancel := context.WithTimeout(ctx, 2*requestTimeout)
	defer cancel()
	_, err := b.JetStream().Stream(ctx, sharedInbox)
	switch {
	case err == nil:
		n.setInboxes(InboxesShared)
		return nil
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return connectionError(err)
	}
	n.setInboxes(InboxesPerAgent)
	if n.cfg.Inboxes != InboxesShared || n.confined() {
		return nil
	}
	if _, err := n.makeStream(ctx, b, inboxConfig(sharedInbox, inboxSubject+"*")); err != nil {
		if isOverlap(err) {
			n.log.Warn("this network keeps an inbox for each agent already, and goes on so; the configured shared inbox is not used")
			return nil
		}
		return err
	}
	n.setInboxes(InboxesShared)
	return nil
}

func isOverlap(err error) bool {
	const subjectOverlap = 10065
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == subjectOverlap
}

func (n *Network) setInboxes(i Inboxes) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.inboxes != i {
		n.inboxes = i
		n.log.Debug("the network's inboxes", "kind", i)
	}
}

// inboxStream is the stream of an agent's mail.
func (n *Network) inboxStream(guid string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.inboxes == InboxesShared {
		return sharedInbox
	}
	return inboxPrefix + guid
}

// ensureInbox makes an agent's inbox (REQ-DIRECT-001, REQ-DIRECT-003).
func (n *Network) ensureInbox(ctx context.Context, b *bus.Bus, guid string) error {
	stream := n.inboxStream(guid)
	if stream == sharedInbox {
		return nil
	}
	_, err := n.ensure(ctx, b, inboxConfig(stream, inboxSubject+guid))
	if err != nil && isOverlap(err) {
		// Another process has made the shared stream since.
		return n.findInboxes(ctx, b)
	}
	return err
}

// MakeInbox makes the inbox of an agent that the server does not let make one.
func (n *Network) MakeInbox(ctx context.Context, guid string) error {
	guid, err := checkGUID("guid", guid)
	if err != nil {
		return err
	}
	b, err := n.connected()
	if err != nil {
		return err
	}
	return connectionErrorOrNil(n.ensureInbox(ctx, b, guid))
}

// inboxUse returns how much of its limits an agent's inbox has used, from 0 to
// 1.
func (n *Network) inboxUse(ctx context.Context, b *bus.Bus, guid string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	name := n.inboxStream(guid)
	stream, err := b.JetStream().Stream(ctx, name)
	if err != nil {
		return 0, err
	}
	if name != sharedInbox {
		state := stream.CachedInfo().State
		return max(float64(state.Msgs)/inboxMaxMessages, float64(state.Bytes)/inboxMaxBytes), nil
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(inboxSubject+guid))
	if err != nil {
		return 0, err
	}
	return float64(info.State.Subjects[inboxSubject+guid]) / inboxMaxMessages, nil
}

// trim removes an agent's read mail once its inbox is half full.
func (n *Network) trim(ctx context.Context, b *bus.Bus, guid string, floor uint64) error {
	use, err := n.inboxUse(ctx, b, guid)
	if err != nil || use < 0.5 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, n.inboxStream(guid))
	if err != nil {
		return err
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(inboxSubject+guid), jetstream.WithPurgeSequence(floor+1))
}

// inboxFull says that a server refused mail because the inbox is full.
func inboxFull(err error) bool {
	const storeFailed = 10077
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == storeFailed && strings.Contains(api.Description, "exceeded")
}

// delivered notes that a message has reached the agent's process, and wakes who
// waits for mail.
func (a *Agent) delivered(ctx context.Context, b *bus.Bus, m *nats.Msg) {
	mail, err := a.openMail(stored{header: m.Header, data: m.Data}, readMarks{})
	if err != nil {
		a.log.Debug("mail is not of the network's format", "error", err) // who reads it says so
	} else if err := a.receipt(ctx, b, mail, Delivered); err != nil && ctx.Err() == nil {
		a.log.Debug("a receipt was not written", "error", err)
	}
	a.mail.Send()
}

// deliverWaiting notes the mail that came while the agent was away.
func (a *Agent) deliverWaiting(ctx context.Context) {
	b, err := a.net.connected()
	if err != nil {
		return
	}
	mark, err := a.readMark(ctx, b)
	if err == nil {
		err = a.unread(ctx, b, mark, func(m Mail) (more bool) {
			if err := a.receipt(ctx, b, m, Delivered); err != nil {
				a.log.Debug("a receipt was not written", "error", err)
			}
			return ctx.Err() == nil
		})
	}
	if err != nil && ctx.Err() == nil {
		a.log.Warn("the inbox could not be looked through", "error", fmt.Errorf("after connecting: %w", err))
	}
	a.mail.Send()
}
