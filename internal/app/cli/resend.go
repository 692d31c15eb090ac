package cli

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

// replayKind is the kind of a [replayOutcome].
type replayKind string

const (
	replaySent    replayKind = "sent"    // the envelope was sent
	replayAnswer  replayKind = "answer"  // an envelope was received
	replaySkipped replayKind = "skipped" // the record cannot be sent again
	replayFailed  replayKind = "failed"  // the envelope could not be sent
)

// replayOutcome reports one event of a replay. Its JSON is specified in docs/json.md.
type replayOutcome struct {
	Kind     replayKind         `json:"kind"`
	Seq      uint64             `json:"seq"` // of the record
	Envelope *envelope.Envelope `json:"envelope,omitempty"`
	Target   string             `json:"targetAgentId,omitempty"`
	Code     string             `json:"code,omitempty"`
	Reason   string             `json:"reason,omitempty"`
}

// replayOptions are the options of [resend].
type replayOptions struct {
	URL   string // of the hub's HTTP server
	Token string
	Speed float64 // 1 keeps the intervals between records, 2 halves them; 0 does not wait
	// Report is called with each outcome, in sequence. It must not block for long.
	Report func(replayOutcome)
}

// resender sends records again.
type resender struct {
	o       replayOptions
	node    *parley.Node
	hub     *hubcards.Source
	joined  map[string]bool   // senders that are agents of node
	threads map[string]string // new thread ids by those of the log
	waiting map[string]uint64 // threads that wait for an answer, and their record
	answers chan *envelope.Envelope
}

// resend sends the envelopes of the selected records to the hub again, in the name, tier and
// sandbox of their senders, with new ids and in new threads. Each envelope of a thread is sent
// after the previous one was answered. It then waits for the answers, until ctx ends, which is
// an error. Envelopes whose senders are agents of the hub are skipped: their names are taken.
func resend(ctx context.Context, dir string, f auditFilter, o replayOptions) (_ auditDamage, err error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return auditDamage{}, err
	}
	node, err := parley.New(parley.Options{
		Router: router.Options{Sandbox: &router.SandboxConfig{Enforced: false}}, // the hub enforces its own rules
		Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{
			agent.TransportWebSocket: &websocket.Dialer{Token: websocket.TokenFor(u.Host, o.Token)},
		}},
	})
	if err != nil {
		return auditDamage{}, err
	}
	defer func() { err = errors.Join(err, node.Close(context.WithoutCancel(ctx))) }()
	s := &resender{
		o: o, node: node, hub: &hubcards.Source{URL: o.URL, Token: o.Token},
		joined: make(map[string]bool), threads: make(map[string]string), waiting: make(map[string]uint64), answers: make(chan *envelope.Envelope, 64),
	}
	if err := node.Registry().EnableDiscovery("hub", s.hub); err != nil {
		return auditDamage{}, err
	}
	damage, err := s.sendAll(ctx, dir, f)
	if err != nil {
		return damage, err
	}
	return damage, s.await(ctx, "")
}

// await waits for the answer in a thread; "" waits for those in all threads.
func (s *resender) await(ctx context.Context, thread string) error {
	for {
		_, due := s.waiting[thread]
		if !due && (thread != "" || len(s.waiting) == 0) {
			return nil
		}
		select {
		case e := <-s.answers:
			s.receive(e)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *resender) sendAll(ctx context.Context, dir string, f auditFilter) (auditDamage, error) {
	selected := make(map[uint64]bool)
	damage, err := readAudit(dir, f, func(rec audit.Record) error {
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
		OnError: func(error) error { return nil }, // readAudit has counted it
	}, s.send)
	return damage, err
}

// send sends one record again. An error ends the replay.
func (s *resender) send(ctx context.Context, rec audit.Record) error {
	e := rec.Envelope
	if !s.joined[e.Sender] {
		known, err := s.hub.Find(ctx, registry.Query{ID: e.Sender})
		if err != nil {
			return err
		}
		if len(known) > 0 {
			s.o.Report(replayOutcome{Kind: replaySkipped, Seq: rec.Seq, Reason: "its sender " + e.Sender + " is an agent of the hub"})
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
	if err := s.await(ctx, fresh.Thread()); err != nil { // it may refer to the answer
		return err
	}
	// Set before sending: the answer may arrive first.
	hasAnswer := (fresh.Type == envelope.Request || fresh.Type == envelope.TaskProposal) && fresh.Recipient != envelope.Broadcast
	if hasAnswer {
		s.waiting[fresh.Thread()] = rec.Seq
	}
	res, err := s.node.Router().SendWait(ctx, fresh)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		delete(s.waiting, fresh.Thread())
		s.o.Report(replayOutcome{Kind: replayFailed, Seq: rec.Seq, Envelope: fresh, Code: string(router.CodeOf(err)), Reason: err.Error()})
		return nil
	}
	s.o.Report(replayOutcome{Kind: replaySent, Seq: rec.Seq, Envelope: fresh, Target: res.TargetAgentID})
	for {
		select {
		case e := <-s.answers:
			s.receive(e)
		default:
			return nil
		}
	}
}

// join makes the sender of an envelope an agent of the node.
func (s *resender) join(e *envelope.Envelope) error {
	id := senderOf(e)
	card := agent.Card{
		ID: id.ID, Name: id.ID, Version: "replay", Description: "replays the audit log",
		Tier: id.Tier, SandboxID: id.SandboxID, Capabilities: []agent.Capability{},
	}
	_, err := s.node.Join(card, func(ctx context.Context, e *envelope.Envelope) {
		select {
		case s.answers <- e:
		case <-ctx.Done():
		}
	})
	s.joined[id.ID] = err == nil
	return err
}

// renew returns a new envelope with the same content.
func (s *resender) renew(e *envelope.Envelope) (*envelope.Envelope, error) {
	fresh, err := envelope.NewFactory(senderOf(e)).New(e.Recipient, e.Type, e.Payload)
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

// receive reports an answer.
func (s *resender) receive(e *envelope.Envelope) {
	seq := s.waiting[e.CorrelationID]
	switch e.Type {
	case envelope.Response, envelope.ErrorMessage, envelope.TaskReject, envelope.StreamEnd:
		delete(s.waiting, e.CorrelationID)
	}
	s.o.Report(replayOutcome{Kind: replayAnswer, Seq: seq, Envelope: e})
}
