package replay

import (
	"context"
	"errors"
	"net/url"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	hubcards "github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/telemetry/audit"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// Kind is what became of a record, or came of it.
type Kind string

// The kinds of an [Outcome].
const (
	Sent    Kind = "sent"    // the envelope that was made of it
	Answer  Kind = "answer"  // an envelope that came back
	Skipped Kind = "skipped" // it is not for sending again
	Failed  Kind = "failed"  // it could not be sent
)

// Outcome is one thing that happened. Its JSON is part of docs/json.md.
type Outcome struct {
	Kind     Kind               `json:"kind"`
	Seq      uint64             `json:"seq"` // of the record
	Envelope *envelope.Envelope `json:"envelope,omitempty"`
	Target   string             `json:"targetAgentId,omitempty"`
	Code     string             `json:"code,omitempty"`
	Reason   string             `json:"reason,omitempty"`
}

// Options say where to and how fast.
type Options struct {
	URL   string // of the hub's HTTP server
	Token string
	Speed float64 // 1 keeps the distances in time, 2 halves them; 0 does not wait
	// Told is called with each outcome, one after the other. It must not block for
	// long.
	Told func(Outcome)
}

// sender sends records again.
type sender struct {
	o       Options
	node    *parley.Node
	hub     *hubcards.Source
	mine    map[string]bool   // senders that have joined
	threads map[string]string // of the log, and what they are called now
	waiting map[string]uint64 // threads whose answers are due, and their record
	answers chan *envelope.Envelope
}

// Send sends the envelopes of the selected records to the hub again, each in the
// name, tier and sandbox of its sender, under a new id and in a new thread; those
// of one thread stay together, each sent when the one before it was answered. It
// then waits for the answers, until ctx ends (its
// error). What agents of the hub had sent is skipped: nobody may speak for them.
func Send(ctx context.Context, dir string, f Filter, o Options) (_ Damage, err error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return Damage{}, err
	}
	node, err := parley.New(parley.Options{
		Router: router.Options{Sandbox: &router.SandboxConfig{Enforced: false}}, // the hub's rules count
		Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{
			agent.TransportWebSocket: &websocket.Dialer{Token: websocket.TokenFor(u.Host, o.Token)},
		}},
	})
	if err != nil {
		return Damage{}, err
	}
	defer func() { err = errors.Join(err, node.Close(context.WithoutCancel(ctx))) }()
	s := &sender{
		o: o, node: node, hub: &hubcards.Source{URL: o.URL, Token: o.Token},
		mine: make(map[string]bool), threads: make(map[string]string), waiting: make(map[string]uint64), answers: make(chan *envelope.Envelope, 64),
	}
	if err := node.Registry().EnableDiscovery("hub", s.hub); err != nil {
		return Damage{}, err
	}
	damage, err := s.sendAll(ctx, dir, f)
	if err != nil {
		return damage, err
	}
	return damage, s.await(ctx, "")
}

// await returns when no answer is due in a thread, or in any.
func (s *sender) await(ctx context.Context, thread string) error {
	for {
		_, due := s.waiting[thread]
		if !due && (thread != "" || len(s.waiting) == 0) {
			return nil
		}
		select {
		case e := <-s.answers:
			s.heard(e)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *sender) sendAll(ctx context.Context, dir string, f Filter) (Damage, error) {
	selected := make(map[uint64]bool)
	damage, err := List(dir, f, func(rec audit.Record) error {
		if rec.Envelope != nil && rec.Event.Type == telemetry.RoutingDecision {
			selected[rec.Seq] = true
		}
		return nil
	})
	if err != nil || len(selected) == 0 {
		return damage, err
	}
	_, err = audit.Replay(ctx, dir, audit.ReplayOptions{
		Keep:    func(rec audit.Record) bool { return selected[rec.Seq] },
		Speed:   s.o.Speed,
		OnError: func(error) error { return nil }, // counted already
	}, s.again)
	return damage, err
}

// again sends one record again. An error ends the replay.
func (s *sender) again(ctx context.Context, rec audit.Record) error {
	e := rec.Envelope
	if !s.mine[e.Sender] {
		theirs, err := s.hub.Find(ctx, registry.Query{ID: e.Sender})
		if err != nil {
			return err
		}
		if len(theirs) > 0 {
			s.o.Told(Outcome{Kind: Skipped, Seq: rec.Seq, Reason: "its sender " + e.Sender + " is an agent of the hub"})
			return nil
		}
		if err := s.join(e); err != nil {
			return err
		}
	}
	fresh, err := s.renew(e)
	if err != nil {
		return err
	}
	if err := s.await(ctx, fresh.Thread()); err != nil { // it may be about what is answered next
		return err
	}
	// Before it is sent: an answer may be quick.
	answered := (fresh.Type == envelope.Request || fresh.Type == envelope.TaskProposal) && fresh.Recipient != envelope.Broadcast
	if answered {
		s.waiting[fresh.Thread()] = rec.Seq
	}
	res, err := s.node.Router().SendWait(ctx, fresh)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		delete(s.waiting, fresh.Thread())
		s.o.Told(Outcome{Kind: Failed, Seq: rec.Seq, Envelope: fresh, Code: string(router.CodeOf(err)), Reason: err.Error()})
		return nil
	}
	s.o.Told(Outcome{Kind: Sent, Seq: rec.Seq, Envelope: fresh, Target: res.TargetAgentID})
	for {
		select {
		case e := <-s.answers:
			s.heard(e)
		default:
			return nil
		}
	}
}

// join makes the sender of an envelope an agent of this process.
func (s *sender) join(e *envelope.Envelope) error {
	id := identity(e)
	card := agent.Card{
		ID: id.ID, Name: id.ID, Version: "replay", Description: "sends again what is in the audit log",
		Tier: id.Tier, SandboxID: id.SandboxID, Capabilities: []agent.Capability{},
	}
	_, err := s.node.Join(card, func(ctx context.Context, e *envelope.Envelope) {
		select {
		case s.answers <- e:
		case <-ctx.Done():
		}
	})
	s.mine[id.ID] = err == nil
	return err
}

// renew makes a new envelope that says the same.
func (s *sender) renew(e *envelope.Envelope) (*envelope.Envelope, error) {
	fresh, err := envelope.NewFactory(identity(e)).New(e.Recipient, e.Type, e.Payload)
	if err != nil {
		return nil, err
	}
	thread, known := s.threads[e.Thread()]
	if !known {
		thread = fresh.ID
		s.threads[e.Thread()] = thread
	}
	return fresh.With(func(f *envelope.Envelope) {
		if e.CorrelationID != "" || known {
			f.CorrelationID = thread
		}
		if e.ToCapability() {
			f.Metadata.RoutingHint = envelope.ByCapability
		}
	}), nil
}

// heard takes an answer.
func (s *sender) heard(e *envelope.Envelope) {
	seq := s.waiting[e.CorrelationID]
	switch e.Type {
	case envelope.Response, envelope.ErrorMessage, envelope.TaskReject, envelope.StreamEnd:
		delete(s.waiting, e.CorrelationID)
	}
	s.o.Told(Outcome{Kind: Answer, Seq: seq, Envelope: e})
}
