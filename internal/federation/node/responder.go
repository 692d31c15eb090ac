package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/swarm"
	"github.com/parleyhub/parley/tasks"
)

// responder handles the envelopes for one agent and answers in its name. The router calls handle for one envelope at
// a time. Everything that blocks, including all answers, runs in goroutines, which Node.Close waits for.
type responder struct {
	n      *Node
	id     string        // of the card
	agent  string        // of the hub's agent
	access *parley.Agent // the agent in the node
	member member        // of swarms

	streams streams // of requests with keys

	mu       sync.Mutex
	accepted map[proposalKey]acceptance
	mean     time.Duration // moving average of the durations of successful tasks
}

// handle handles one envelope. Coding agents have no inbox, so answers and most
// notifications are only recorded, by the router.
func (r *responder) handle(ctx context.Context, e *envelope.Envelope) {
	if swarm.Concerns(e) {
		return // the participant handles it
	}
	handler, answered := r.notified, false
	switch e.Type {
	case envelope.Request:
		handler, answered = r.request, true
	case envelope.TaskProposal:
		handler, answered = r.propose, true
	case envelope.Notification:
	case envelope.ErrorMessage:
		handler = r.acceptanceRefused
	default:
		return
	}
	if answered {
		sender, known := r.n.Registry().Identity(e.Sender)
		if !known {
			return // it has disconnected
		}
		// The sender may have reconnected with another card since its channel opened.
		if err := r.n.mayAnswer(r.id, sender); err != nil {
			r.n.refused(r, e, err)
			return
		}
	}
	if !r.n.begin(ctx) {
		return // the node closes
	}
	var follow func()
	defer func() {
		if follow == nil { // also after a panic, which the router reports
			r.n.end()
		}
	}()
	if follow = handler(ctx, e); follow != nil {
		go func() {
			defer r.n.end()
			follow()
		}()
	}
}

// request runs a task and answers with its result.
func (r *responder) request(ctx context.Context, e *envelope.Envelope) (follow func()) {
	req, err := readRequest(e.Payload)
	if err != nil {
		return r.failing(ctx, e, &Failure{Code: "INVALID_PAYLOAD", Message: "the request cannot be read: " + err.Error(),
			Remedy: `send a text, or an object {"text": …, "stream": true}`, Of: e.ID})
	}
	if req.key.given() && r.n.o.Federation != nil {
		return r.keyed(ctx, e, req)
	}
	send, err := r.message(ctx, e, req)
	if err != nil {
		return r.failing(ctx, e, failureFrom(err))
	}
	if req.stream {
		sub, err := r.n.o.Hub.SendAndStream(ctx, send)
		if err != nil {
			return r.failing(ctx, e, failureFrom(err))
		}
		return func() { r.stream(ctx, e, sub) }
	}
	pending, err := r.n.o.Hub.Start(ctx, send)
	if err != nil {
		return r.failing(ctx, e, failureFrom(err))
	}
	return func() { r.await(ctx, e, pending) }
}

// await answers when the task has ended or needs input.
func (r *responder) await(ctx context.Context, e *envelope.Envelope, pending *hub.Pending) {
	began := time.Now()
	task, err := pending.Wait(ctx)
	for err == nil && r.waitsHere(task.Status.State) { // whoever has asked cannot answer the question, nor ask for the task later
		task, err = r.follow(ctx, task.ID)
	}
	switch {
	case err != nil:
		r.fail(ctx, e, failureFrom(err))
	case answers(task.Status.State):
		r.addDuration(time.Since(began))
		r.reply(ctx, e, envelope.Response, resultOf(task))
	default:
		r.fail(ctx, e, failureOf(task))
	}
}

// message converts an envelope to a message for the hub. Envelopes of a thread share a
// context; if a task there waits for input, the envelope is the input.
func (r *responder) message(ctx context.Context, e *envelope.Envelope, req request) (hub.SendRequest, error) {
	about := map[string]any{"envelope": r.about(e)}
	m := &a2a.Message{ID: e.ID, Role: a2a.MessageRoleUser, Parts: req.parts, ContextID: contextOf(e), Metadata: about}
	if e.CorrelationID != "" {
		task, err := r.waitingTask(ctx, m.ContextID)
		if err != nil {
			return hub.SendRequest{}, err
		}
		m.TaskID = task
	}
	return hub.SendRequest{AgentID: r.agent, Message: m, Metadata: about, Timeout: req.timeout, Delegation: r.delegation(req), Sender: r.n.sender(e.Sender)}, nil
}

// sender returns who sends what an agent sends: for the hub's own agents the hub's user, for those of another hub that hub,
// by its key. The channel has proven the id.
func (n *Node) sender(agentID string) hub.Sender {
	if card, err := n.Registry().Get(agentID); err == nil && card.Origin == agent.Local {
		return hub.Sender{}
	}
	if n.o.Federation == nil {
		return hub.Sender{Kind: hub.SenderProgram, ID: agentID}
	}
	name, key := agent.SplitID(agentID)
	label := n.o.Federation.LocalID(agentID)
	if strings.HasPrefix(name, tasks.Hub) { // the hub sends for its user: only its own name means something to people
		label, _ = strings.CutSuffix(label, "."+name)
	}
	return hub.Sender{Kind: hub.SenderPeer, ID: cmp.Or(key, agentID), Label: label}
}

// delegation returns the delegation chain of a request of another hub, nil if it has
// none. Delegation chains cross hubs, so that their limits do too.
func (r *responder) delegation(req request) *hub.Delegation {
	if r.n.o.Federation == nil || len(req.chain) == 0 {
		return nil // programs cannot delegate for agents
	}
	chain := make([]string, len(req.chain))
	for i, id := range req.chain {
		chain[i] = r.n.o.Federation.LocalID(id)
	}
	return &hub.Delegation{By: chain[len(chain)-1], Chain: chain}
}

// about returns the metadata of tasks and messages about their envelope.
func (r *responder) about(e *envelope.Envelope) map[string]any {
	about := map[string]any{"id": e.ID, "sender": e.Sender, "thread": e.Thread()}
	if e.Metadata != nil && e.Metadata.TraceParent != "" {
		about["traceparent"] = e.Metadata.TraceParent
	}
	return about
}

// contextOf returns the hub's context id for a sender's thread. The hash prevents
// senders from naming the contexts of others.
func contextOf(e *envelope.Envelope) string {
	return "envelopes-" + hash("%d %s %s", len(e.Sender), e.Sender, e.Thread())
}

// hash returns 128 bits of a text's hash in hexadecimal.
func hash(format string, args ...any) string {
	sum := sha256.Sum256(fmt.Appendf(nil, format, args...))
	return hex.EncodeToString(sum[:16])
}

// waitingTask returns the task of a context that waits for input, "" if none does.
func (r *responder) waitingTask(ctx context.Context, contextID string) (a2a.TaskID, error) {
	tasks, err := r.tasks(ctx, contextID, 1)
	if err != nil || len(tasks) == 0 || !hub.Interrupted(tasks[0].Status.State) {
		return "", err
	}
	return tasks[0].ID, nil
}

// tasks returns the last tasks of a context, without their history.
func (r *responder) tasks(ctx context.Context, contextID string, limit int) ([]*a2a.Task, error) {
	page, err := r.n.o.Hub.Tasks(ctx, hub.TaskQuery{ContextID: contextID, AgentID: r.agent, Limit: limit, HistoryLength: new(int)})
	if err != nil {
		return nil, err
	}
	return page.Tasks, nil
}

// stream sends the task's events.
func (r *responder) stream(ctx context.Context, e *envelope.Envelope, sub *hub.Subscription) {
	began := time.Now()
	task := sub.Task()
	s := streamer{d: r, e: e, last: *task}
	if !r.reply(ctx, e, envelope.StreamStart, begun{TaskID: string(task.ID), ContextID: task.ContextID}) {
		sub.Close()
		return
	}
	if !r.pass(ctx, r.n.open, sub, &s.last, func(event a2a.Event) bool { return s.event(ctx, event) }) {
		return // the node closes and the task outlives it, or the sender is disconnected; the task keeps running
	}
	if s.last.Status.State == a2a.TaskStateCompleted {
		r.addDuration(time.Since(began))
	}
	s.end(ctx)
}

// streamer sends the events of a task as envelopes.
type streamer struct {
	d    *responder
	e    *envelope.Envelope
	last a2a.Task // with the last status
	sent bool     // part of the answer was sent
	of   string   // the id of a request with a key; else ""
	// whole means that the text is sent at the end only: the receiver has an unknown part of it.
	whole bool
	files int // bytes of files that were sent
}

// event sends one event. It reports whether the sender is still connected.
func (s *streamer) event(ctx context.Context, event a2a.Event) bool {
	switch ev := event.(type) {
	case *a2a.Task: // replaces missed events
		s.last = *ev
		if !s.resume(ctx) {
			return false
		}
		for _, artifact := range ev.Artifacts {
			if !s.artifact(ctx, artifact, false) {
				return false
			}
		}
	case *a2a.TaskStatusUpdateEvent:
		s.last.Status = ev.Status
		return s.status(ctx, ev.Status)
	case *a2a.TaskArtifactUpdateEvent:
		return s.artifact(ctx, ev.Artifact, ev.Append)
	}
	return true
}

// status sends what an agent does, and with a key that it has begun, or that its user is asked about the sender.
func (s *streamer) status(ctx context.Context, now a2a.TaskStatus) bool {
	if now.State == a2a.TaskStateAuthRequired && s.of != "" && s.d.waitsHere(now.State) {
		return s.data(ctx, Chunk{State: stateName(now.State)})
	}
	if now.State != a2a.TaskStateWorking || now.Message == nil && s.of == "" {
		return true
	}
	var c Chunk
	if now.Message != nil {
		c.Status = text.Cut(textOf(now.Message.Parts), 4096)
		if done, ok := now.Message.Metadata[hub.MetaProgress].(float64); ok {
			c.Percent = &done
		}
	}
	if s.of != "" {
		c.State = stateName(now.State)
	}
	return s.data(ctx, c)
}

// artifact sends the parts of an artifact, long text in pieces.
func (s *streamer) artifact(ctx context.Context, a *a2a.Artifact, appended bool) bool {
	c := Chunk{ArtifactID: string(a.ID), Append: appended}
	for _, p := range a.Parts {
		if s.of != "" {
			p = asFile(p)
		}
		switch content := p.Content.(type) {
		case a2a.Text:
			for rest := string(content); rest != "" && !s.whole; {
				c.Text = text.Cut(rest, maxText)
				rest = rest[len(c.Text):]
				if !s.data(ctx, c) {
					return false
				}
				s.sent, c.Append, c.Text = true, true, ""
			}
			continue
		case a2a.Data:
			if c.Data = content.Value; !fits(c.Data) {
				c.Data, c.File = nil, "data"
			}
		default:
			c.File = text.Cut(p.Filename, maxFileName)
		}
		if !s.file(ctx, c, p) {
			return false
		}
		c.Append, c.Data, c.File = true, nil, ""
	}
	return true
}

func (s *streamer) data(ctx context.Context, c Chunk) bool {
	c.Of = s.of
	return s.d.reply(ctx, s.e, envelope.StreamData, c)
}

// end sends the answer if no part of it was sent, and the end of the stream.
func (s *streamer) end(ctx context.Context) {
	r := resultOf(&s.last)
	s.whole = false
	if s.last.Status.State == a2a.TaskStateCompleted {
		if m := s.last.Status.Message; m != nil && !s.sent {
			if !s.artifact(ctx, &a2a.Artifact{ID: "answer", Parts: m.Parts}, false) {
				return
			}
		}
		r.Text, r.Data, r.Truncated = "", nil, false
	}
	if !answers(s.last.Status.State) {
		r.Text, r.Truncated, r.Error = "", false, failureOf(&s.last)
	}
	if m := s.last.Status.Message; m != nil && s.of != "" {
		r.MessageID = m.ID
	}
	r.Of = s.of
	s.d.reply(ctx, s.e, envelope.StreamEnd, r)
}

// proposalKey identifies a proposal: ids are only unique per sender.
type proposalKey struct{ sender, id string }

// acceptance is an accepted proposal whose task is running.
type acceptance struct {
	thread string
	task   a2a.TaskID
}

// propose accepts a task that the agent can do or rejects it, and answers with the result, all in the proposal's
// thread. The proposer enforces the deadline of the answer; see acceptanceRefused.
func (r *responder) propose(ctx context.Context, e *envelope.Envelope) (follow func()) {
	offer, err := negotiation.DecodeOffer(e)
	if err != nil {
		return r.rejecting(ctx, e, offer, negotiation.InvalidProposal, err.Error())
	}
	key := proposalKey{e.Sender, offer.ProposalID}
	if r.hasAccepted(key) {
		return nil // a duplicate
	}
	card, err := r.n.Registry().Get(r.id)
	if err != nil {
		return nil // the agent is being removed
	}
	if c, ok := lacks(card, offer.RequiredCapabilities); ok {
		return r.rejecting(ctx, e, offer, negotiation.MissingCapability, fmt.Sprintf("%s does not offer %q now", r.id, c))
	}
	req, err := offerRequest(offer)
	if err != nil {
		return r.rejecting(ctx, e, offer, negotiation.InvalidProposal, err.Error())
	}
	send, err := r.message(ctx, e, req)
	if err != nil {
		return r.rejecting(ctx, e, offer, reasonFrom(err), failureFrom(err).Message)
	}
	pending, err := r.n.o.Hub.Start(ctx, send)
	if err != nil {
		return r.rejecting(ctx, e, offer, reasonFrom(err), failureFrom(err).Message)
	}
	r.mu.Lock()
	if r.accepted == nil {
		r.accepted = make(map[proposalKey]acceptance)
	}
	r.accepted[key] = acceptance{thread: e.Thread(), task: pending.TaskID()}
	r.mu.Unlock()
	return func() {
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.accepted, key)
		}()
		r.accept(ctx, e, offer, pending)
	}
}

// accept accepts a proposal once its task is stored, and answers when the task has ended or needs input.
func (r *responder) accept(ctx context.Context, e *envelope.Envelope, offer negotiation.Offer, pending *hub.Pending) {
	if err := pending.Stored(ctx); err == nil { // otherwise await reports the error
		r.reply(ctx, e, envelope.TaskAccept, accepted{
			Answer: negotiation.Answer{ProposalID: offer.ProposalID, AgentID: r.id, EstimatedCompletionMs: r.estimate().Milliseconds()},
			begun:  begun{TaskID: string(pending.TaskID()), ContextID: pending.ContextID()},
		})
	}
	r.await(ctx, e, pending)
}

func (r *responder) hasAccepted(key proposalKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.accepted[key]
	return known
}

// acceptanceRefused cancels the task of an acceptance that the proposer refused, because
// it was too late, for example.
func (d *responder) acceptanceRefused(ctx context.Context, e *envelope.Envelope) (follow func()) {
	var r negotiation.Refusal
	if e.Unmarshal(&r) != nil {
		return nil // an error about something else
	}
	d.mu.Lock()
	accepted, known := d.accepted[proposalKey{e.Sender, r.ProposalID}]
	d.mu.Unlock()
	if !known || accepted.thread != e.Thread() {
		return nil
	}
	return func() { d.cancel(ctx, e, accepted.task) }
}

func (r *responder) rejecting(ctx context.Context, e *envelope.Envelope, o negotiation.Offer, why negotiation.Reason, message string) (follow func()) {
	return func() {
		r.reply(ctx, e, envelope.TaskReject, negotiation.Answer{
			ProposalID: o.ProposalID, AgentID: r.id, RejectionReason: why, Message: text.Cut(message, 1000), AlternativeSuggestion: r.alternative(e, o),
		})
	}
}

// alternative returns another agent of the hub that has the required capabilities and
// that the sender may see and address, "" if there is none.
func (r *responder) alternative(e *envelope.Envelope, p negotiation.Offer) string {
	view, err := r.n.Router().Discover(e.Sender)
	if err != nil || len(p.RequiredCapabilities) == 0 {
		return ""
	}
	sender, known := r.n.Registry().Identity(e.Sender)
	who := r.n.sender(e.Sender)
	for _, card := range view.FindByCapability(p.RequiredCapabilities[0]) {
		_, lacking := lacks(card, p.RequiredCapabilities)
		if !lacking && r.n.shown(card.ID, who) && card.ID != r.id && card.Origin == agent.Local && known && r.n.Router().MayAddress(sender, card.Identity()) == nil && r.n.mayAnswer(card.ID, sender) == nil {
			return card.ID
		}
	}
	return ""
}

// lacks returns the first of the capabilities that a card does not have.
func lacks(card agent.Card, capabilities []string) (first string, lacking bool) {
	i := slices.IndexFunc(capabilities, func(c string) bool { return !card.Has(c) })
	if i < 0 {
		return "", false
	}
	return capabilities[i], true
}

// addDuration adds a task's duration to the moving average.
func (r *responder) addDuration(t time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mean == 0 {
		r.mean = t
		return
	}
	r.mean += (t - r.mean) / 4
}

// estimate returns the expected duration of a task: the moving average or, before the first task, the agent's limit.
func (r *responder) estimate() time.Duration {
	r.mu.Lock()
	mean := r.mean
	r.mu.Unlock()
	if mean > 0 {
		return min(max(mean, time.Millisecond), negotiation.MaxEstimate)
	}
	info, err := r.n.o.Hub.Agent(r.agent)
	if err != nil {
		return time.Millisecond // it is being removed; the task will fail
	}
	return min(max(info.Definition.Limits.Run, time.Millisecond), negotiation.MaxEstimate)
}

// maxCanceled is how many tasks of a thread one notification cancels.
const maxCanceled = 100

// notified handles a notification: {"cancel": true} cancels the sender's tasks in the
// thread, whose requests are answered with that. Others are ignored.
func (r *responder) notified(ctx context.Context, e *envelope.Envelope) (follow func()) {
	var c cancellation
	if json.Unmarshal(e.Payload, &c) != nil || !c.Cancel || e.CorrelationID == "" {
		return nil
	}
	if c.given() && r.n.o.Federation != nil {
		return r.cancelKeyed(ctx, e, c.key)
	}
	tasks, err := r.tasks(ctx, contextOf(e), maxCanceled)
	if err != nil {
		return r.failing(ctx, e, failureFrom(err))
	}
	running := slices.DeleteFunc(tasks, func(t *a2a.Task) bool { return t.Status.State.Terminal() })
	if len(running) == 0 {
		return nil
	}
	return func() {
		for _, t := range running {
			r.cancel(ctx, e, t.ID)
		}
	}
}

// cancel cancels a task. Its own request is answered with that.
func (r *responder) cancel(ctx context.Context, e *envelope.Envelope, id a2a.TaskID) {
	if err := r.stop(ctx, id); err != nil {
		r.fail(ctx, e, failureFrom(err))
	}
}

// stop cancels a task. It is no error if the task has just ended.
func (r *responder) stop(ctx context.Context, id a2a.TaskID) error {
	_, err := r.n.o.Hub.Cancel(ctx, id)
	if he, ok := errors.AsType[*hub.Error](err); ok && he.Code == hub.CodeNotCancelable {
		return nil
	}
	return err
}

func (r *responder) failing(ctx context.Context, e *envelope.Envelope, f *Failure) (follow func()) {
	return func() { r.fail(ctx, e, f) }
}

func (r *responder) fail(ctx context.Context, e *envelope.Envelope, f *Failure) {
	r.reply(ctx, e, envelope.ErrorMessage, f)
}

// replyTimeout bounds the delivery of an answer.
const replyTimeout = 30 * time.Second

// reply answers an envelope in the agent's name and reports whether the answer was
// delivered. The router emits an event if it was not.
func (r *responder) reply(ctx context.Context, e *envelope.Envelope, t envelope.Type, payload any) bool {
	me, known := r.n.Registry().Identity(r.id)
	if !known {
		return false // the agent was removed
	}
	answer, err := envelope.NewFactory(me).Reply(e, t, payload)
	if err != nil {
		r.n.o.Logger.Error("cannot encode an answer", "agent", r.id, "error", err)
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	_, err = r.n.Router().SendWait(ctx, answer)
	return err == nil
}
