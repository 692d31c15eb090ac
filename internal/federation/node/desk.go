package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/swarm"
)

// desk takes the envelopes for one agent and answers in its name. The router
// calls handle with one envelope after the other; what takes time, all answers
// included, goes on in goroutines, which Node.Close waits for.
type desk struct {
	n      *Node
	id     string        // of the card
	agent  string        // of the hub's agent
	access *parley.Agent // the agent's place in the node
	card   agent.Card    // as it was registered last
	member member        // its part in swarms

	mu     sync.Mutex
	offers map[offerKey]undertaking
	mean   time.Duration // of the tasks that ended well, the latest counting most
}

// handle takes one envelope. Answers and notifications are not for a coding
// agent, which has no inbox: they are recorded by the router, and that is all.
func (d *desk) handle(ctx context.Context, e *envelope.Envelope) {
	if swarm.Concerns(e) {
		return // its participant takes it
	}
	take, answered := d.notified, false
	switch e.Type {
	case envelope.Request:
		take, answered = d.request, true
	case envelope.TaskProposal:
		take, answered = d.propose, true
	case envelope.Notification:
	case envelope.ErrorMessage:
		take = d.overruled
	default:
		return
	}
	if answered {
		sender, known := d.n.Registry().Identity(e.Sender)
		if !known {
			return // it has gone meanwhile
		}
		// The sender may have come back with another card since its channel opened.
		if err := d.n.mayAnswer(d.id, sender); err != nil {
			d.n.refused(d, e, err)
			return
		}
	}
	if !d.n.begin(ctx) {
		return // the node closes, and with it the channel to the sender
	}
	var follow func()
	defer func() {
		if follow == nil { // also after a panic, which the router reports
			d.n.end()
		}
	}()
	if follow = take(ctx, e); follow != nil {
		go func() {
			defer d.n.end()
			follow()
		}()
	}
}

// request runs a task and answers with what came of it.
func (d *desk) request(ctx context.Context, e *envelope.Envelope) (follow func()) {
	req, err := readRequest(e.Payload)
	if err != nil {
		return d.failing(ctx, e, &failure{Code: "INVALID_PAYLOAD", Message: "the request cannot be read: " + err.Error(),
			Remedy: `send a text, or an object {"text": …, "stream": true}`})
	}
	send, err := d.message(ctx, e, req)
	if err != nil {
		return d.failing(ctx, e, failureFrom(err))
	}
	if req.stream {
		sub, err := d.n.hub.SendAndStream(ctx, send)
		if err != nil {
			return d.failing(ctx, e, failureFrom(err))
		}
		return func() { d.stream(ctx, e, sub) }
	}
	pending, err := d.n.hub.Start(ctx, send)
	if err != nil {
		return d.failing(ctx, e, failureFrom(err))
	}
	return func() { d.await(ctx, e, pending) }
}

// await answers when the task has come to rest.
func (d *desk) await(ctx context.Context, e *envelope.Envelope, pending *hub.Pending) {
	began := time.Now()
	task, err := pending.Wait(ctx)
	switch {
	case err != nil:
		d.fail(ctx, e, failureFrom(err))
	case answers(task.Status.State):
		d.took(time.Since(began))
		d.reply(ctx, e, envelope.Response, resultOf(task))
	default:
		d.fail(ctx, e, failureOf(task))
	}
}

// message makes the hub's message of an envelope. A thread is a conversation: its
// envelopes share a context, and one that comes while the agent waits for an
// answer is that answer.
func (d *desk) message(ctx context.Context, e *envelope.Envelope, req request) (hub.SendRequest, error) {
	about := map[string]any{"envelope": d.about(e)}
	m := &a2a.Message{ID: e.ID, Role: a2a.MessageRoleUser, Parts: req.parts, ContextID: contextOf(e), Metadata: about}
	if e.CorrelationID != "" {
		task, err := d.asking(ctx, m.ContextID)
		if err != nil {
			return hub.SendRequest{}, err
		}
		m.TaskID = task
	}
	return hub.SendRequest{AgentID: d.agent, Message: m, Metadata: about, Timeout: req.timeout, Delegation: d.handedOn(req)}, nil
}

// handedOn is how work came that an agent of another hub hands on, nil if none did. So
// the limits of depth and cycles hold over all hubs.
func (d *desk) handedOn(req request) *hub.Delegation {
	if d.n.network == nil || len(req.over) == 0 {
		return nil // a program may say what it likes: it hands on nothing
	}
	chain := make([]string, len(req.over))
	for i, id := range req.over {
		chain[i] = d.n.network.Here(id)
	}
	return &hub.Delegation{By: chain[len(chain)-1], Chain: chain}
}

// about is what a task and its messages keep of the envelope that they came in.
func (d *desk) about(e *envelope.Envelope) map[string]any {
	about := map[string]any{"id": e.ID, "sender": e.Sender, "thread": e.Thread()}
	if e.Metadata != nil && e.Metadata.TraceParent != "" {
		about["traceparent"] = e.Metadata.TraceParent
	}
	return about
}

// contextOf names the hub's context of a sender's thread. The hash keeps senders
// from reaching into the conversations of others by their names.
func contextOf(e *envelope.Envelope) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %s", len(e.Sender), e.Sender, e.Thread()))
	return "envelopes-" + hex.EncodeToString(sum[:16])
}

// asking returns the task of a context that waits for its user, "" if none does.
func (d *desk) asking(ctx context.Context, contextID string) (a2a.TaskID, error) {
	none := 0
	page, err := d.n.hub.Tasks(ctx, hub.TaskQuery{ContextID: contextID, AgentID: d.agent, Limit: 1, HistoryLength: &none})
	if err != nil || len(page.Tasks) == 0 || !hub.Interrupted(page.Tasks[0].Status.State) {
		return "", err
	}
	return page.Tasks[0].ID, nil
}

// stream answers with the task's events.
func (d *desk) stream(ctx context.Context, e *envelope.Envelope, sub *hub.Subscription) {
	defer sub.Close()
	began := time.Now()
	task := sub.Task()
	s := streamer{d: d, e: e, last: *task}
	if !d.reply(ctx, e, envelope.StreamStart, begun{TaskID: string(task.ID), ContextID: task.ContextID}) {
		return
	}
	for {
		event, err := sub.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || !s.event(ctx, event) {
			return // the node closes, or the sender is gone; the task goes on
		}
	}
	if s.last.Status.State == a2a.TaskStateCompleted {
		d.took(time.Since(began))
	}
	s.end(ctx)
}

// streamer turns the events of a task into envelopes.
type streamer struct {
	d    *desk
	e    *envelope.Envelope
	last a2a.Task // its status is the latest
	said bool     // some of the answer was sent
}

// event reports whether the sender can still be reached.
func (s *streamer) event(ctx context.Context, event a2a.Event) bool {
	switch ev := event.(type) {
	case *a2a.Task: // in place of events that were missed
		s.last = *ev
		for _, artifact := range ev.Artifacts {
			if !s.artifact(ctx, artifact, false) {
				return false
			}
		}
	case *a2a.TaskStatusUpdateEvent:
		s.last.Status = ev.Status
		if m := ev.Status.Message; m != nil && ev.Status.State == a2a.TaskStateWorking {
			return s.data(ctx, chunk{Status: cut(textOf(m.Parts), 4096)})
		}
	case *a2a.TaskArtifactUpdateEvent:
		return s.artifact(ctx, ev.Artifact, ev.Append)
	}
	return true
}

// artifact sends the parts of an artifact, long text in pieces.
func (s *streamer) artifact(ctx context.Context, a *a2a.Artifact, appended bool) bool {
	c := chunk{ArtifactID: string(a.ID), Append: appended}
	for _, p := range a.Parts {
		switch content := p.Content.(type) {
		case a2a.Text:
			for text := string(content); text != ""; {
				c.Text = cut(text, maxText)
				text = text[len(c.Text):]
				if !s.data(ctx, c) {
					return false
				}
				s.said, c.Append, c.Text = true, true, ""
			}
			continue
		case a2a.Data:
			if c.Data = content.Value; !fits(c.Data) {
				c.Data, c.File = nil, "data"
			}
		default:
			c.File = cut(p.Filename, 1024)
		}
		if !s.data(ctx, c) {
			return false
		}
		c.Append, c.Data, c.File = true, nil, ""
	}
	return true
}

func (s *streamer) data(ctx context.Context, c chunk) bool {
	return s.d.reply(ctx, s.e, envelope.StreamData, c)
}

// end sends what has not come as a piece of the answer, and the end.
func (s *streamer) end(ctx context.Context) {
	r := resultOf(&s.last)
	if s.last.Status.State == a2a.TaskStateCompleted {
		if m := s.last.Status.Message; m != nil && !s.said {
			if !s.artifact(ctx, &a2a.Artifact{ID: "answer", Parts: m.Parts}, false) {
				return
			}
		}
		r.Text, r.Data, r.Truncated = "", nil, false
	}
	if !answers(s.last.Status.State) {
		r.Text, r.Truncated, r.Error = "", false, failureOf(&s.last)
	}
	s.d.reply(ctx, s.e, envelope.StreamEnd, r)
}

// offerKey names a proposal: ids of proposals are their senders' own.
type offerKey struct{ sender, id string }

// undertaking is a proposal whose task is under way.
type undertaking struct {
	thread string
	task   a2a.TaskID
}

// propose accepts a task that the agent can do, or rejects it (Req 7.2, 7.3), and
// answers with what came of it, all in the proposal's thread (Req 7.5).
//
// The time for an answer is the proposer's to count; it says if it is over, see
// overruled.
func (d *desk) propose(ctx context.Context, e *envelope.Envelope) (follow func()) {
	offer, err := negotiation.DecodeOffer(e)
	if err != nil {
		return d.rejecting(ctx, e, offer, negotiation.InvalidProposal, err.Error())
	}
	key := offerKey{e.Sender, offer.ProposalID}
	if d.undertakes(key) {
		return nil // the same once more: the first one counts
	}
	card, err := d.n.Registry().Get(d.id)
	if err != nil {
		return nil // the agent is being removed
	}
	for _, c := range offer.RequiredCapabilities {
		if !card.Has(c) {
			return d.rejecting(ctx, e, offer, negotiation.MissingCapability, fmt.Sprintf("%s does not offer %q now", d.id, c))
		}
	}
	req, err := offerRequest(offer)
	if err != nil {
		return d.rejecting(ctx, e, offer, negotiation.InvalidProposal, err.Error())
	}
	send, err := d.message(ctx, e, req)
	if err != nil {
		return d.rejecting(ctx, e, offer, reasonFrom(err), failureFrom(err).Message)
	}
	pending, err := d.n.hub.Start(ctx, send)
	if err != nil {
		return d.rejecting(ctx, e, offer, reasonFrom(err), failureFrom(err).Message)
	}
	d.mu.Lock()
	d.offers[key] = undertaking{thread: e.Thread(), task: pending.TaskID()}
	d.mu.Unlock()
	return func() {
		defer func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			delete(d.offers, key)
		}()
		d.carryOut(ctx, e, offer, pending)
	}
}

// carryOut accepts a proposal, once its task is stored, and answers when the task
// has come to rest.
func (d *desk) carryOut(ctx context.Context, e *envelope.Envelope, offer negotiation.Offer, pending *hub.Pending) {
	if err := pending.Stored(ctx); err == nil { // else await tells how it ended
		d.reply(ctx, e, envelope.TaskAccept, accepted{
			Answer: negotiation.Answer{ProposalID: offer.ProposalID, AgentID: d.id, EstimatedCompletionMs: d.estimate().Milliseconds()},
			TaskID: string(pending.TaskID()), ContextID: pending.ContextID(),
		})
	}
	d.await(ctx, e, pending)
}

func (d *desk) undertakes(key offerKey) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, known := d.offers[key]
	return known
}

// overruled hears from a proposer that an acceptance does not count, because it
// came too late, say, and ends the task.
func (d *desk) overruled(ctx context.Context, e *envelope.Envelope) (follow func()) {
	var r negotiation.Refusal
	if e.Unmarshal(&r) != nil {
		return nil // an error about something else
	}
	d.mu.Lock()
	u, known := d.offers[offerKey{e.Sender, r.ProposalID}]
	d.mu.Unlock()
	if !known || u.thread != e.Thread() {
		return nil
	}
	return func() { d.cancel(ctx, e, u.task) }
}

func (d *desk) rejecting(ctx context.Context, e *envelope.Envelope, o negotiation.Offer, why negotiation.Reason, message string) (follow func()) {
	return func() {
		d.reply(ctx, e, envelope.TaskReject, negotiation.Answer{
			ProposalID: o.ProposalID, AgentID: d.id, RejectionReason: why, Message: cut(message, 1000), AlternativeSuggestion: d.alternative(e, o),
		})
	}
}

// alternative returns another agent of the hub that has what a proposal requires
// and that its sender may see and address, "" if there is none.
func (d *desk) alternative(e *envelope.Envelope, p negotiation.Offer) string {
	view, err := d.n.node.Router().Discover(e.Sender)
	if err != nil || len(p.RequiredCapabilities) == 0 {
		return ""
	}
	sender, known := d.n.Registry().Identity(e.Sender)
	for _, card := range view.FindByCapability(p.RequiredCapabilities[0]) {
		able := card.ID != d.id && card.Origin == agent.Local && !slices.ContainsFunc(p.RequiredCapabilities, func(c string) bool { return !card.Has(c) })
		if able && known && d.n.node.Router().MayAddress(sender, card.Identity()) == nil && d.n.mayAnswer(card.ID, sender) == nil {
			return card.ID
		}
	}
	return ""
}

// took notes how long a task took.
func (d *desk) took(t time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mean == 0 {
		d.mean = t
		return
	}
	d.mean += (t - d.mean) / 4
}

// estimate is how long a task may take: what the latest took; before the first,
// the agent's limit.
func (d *desk) estimate() time.Duration {
	d.mu.Lock()
	mean := d.mean
	d.mu.Unlock()
	if mean > 0 {
		return min(max(mean, time.Millisecond), negotiation.MaxEstimate)
	}
	info, err := d.n.hub.Agent(d.agent)
	if err != nil {
		return time.Millisecond // it is being removed; the task will say so
	}
	return min(max(info.Definition.Limits.Run, time.Millisecond), negotiation.MaxEstimate)
}

// maxCanceled is how many tasks of a thread one notification ends.
const maxCanceled = 100

// notified takes a notification: {"cancel": true} ends the sender's tasks in the
// thread, whose requests are then answered with that. Others are not for agents
// that have no inbox.
func (d *desk) notified(ctx context.Context, e *envelope.Envelope) (follow func()) {
	var c cancellation
	if json.Unmarshal(e.Payload, &c) != nil || !c.Cancel || e.CorrelationID == "" {
		return nil
	}
	none := 0
	page, err := d.n.hub.Tasks(ctx, hub.TaskQuery{ContextID: contextOf(e), AgentID: d.agent, Limit: maxCanceled, HistoryLength: &none})
	if err != nil {
		return d.failing(ctx, e, failureFrom(err))
	}
	running := slices.DeleteFunc(page.Tasks, func(t *a2a.Task) bool { return t.Status.State.Terminal() })
	if len(running) == 0 {
		return nil
	}
	return func() {
		for _, t := range running {
			d.cancel(ctx, e, t.ID)
		}
	}
}

// cancel ends a task; whoever waits for it hears of that.
func (d *desk) cancel(ctx context.Context, e *envelope.Envelope, id a2a.TaskID) {
	_, err := d.n.hub.Cancel(ctx, id)
	he, ok := errors.AsType[*hub.Error](err)
	if err != nil && !(ok && he.Code == hub.CodeNotCancelable) { // it has just ended
		d.fail(ctx, e, failureFrom(err))
	}
}

func (d *desk) failing(ctx context.Context, e *envelope.Envelope, f *failure) (follow func()) {
	return func() { d.fail(ctx, e, f) }
}

func (d *desk) fail(ctx context.Context, e *envelope.Envelope, f *failure) {
	d.reply(ctx, e, envelope.ErrorMessage, f)
}

// replyTimeout bounds how long an answer may wait for its sender to take it.
const replyTimeout = 30 * time.Second

// reply answers an envelope in the agent's name and reports whether the sender's
// channel has taken the answer. Why not is an event of the router's.
func (d *desk) reply(ctx context.Context, e *envelope.Envelope, t envelope.Type, payload any) bool {
	me, known := d.n.Registry().Identity(d.id)
	if !known {
		return false // the agent was removed
	}
	answer, err := envelope.NewFactory(me).Reply(e, t, payload)
	if err != nil {
		d.n.log.Error("an answer could not be written", "agent", d.id, "error", err)
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	_, err = d.n.node.Router().SendWait(ctx, answer)
	return err == nil
}
