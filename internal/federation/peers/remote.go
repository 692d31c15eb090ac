package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// remote is another hub's agent, registered at this hub.
type remote struct {
	peers *Peers
	id    string // global
	local string // at this hub
	peer  string // its hub's name

	mu        sync.Mutex
	card      agent.Card         // the last one
	offers    []agent.Capability // those of the last card of an available agent
	since     time.Time          // the card is missing since then; zero if it is not
	available bool               // at the last call of availabilityChanged
}

// maxForeignText bounds a text of another hub, in bytes.
const maxForeignText = 4096

// update sets the card and returns the agent's definition if it has changed. An
// unavailable agent keeps its capabilities; its health says that it is unavailable.
func (r *remote) update(card agent.Card) (d runner.Definition, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	card.LastSeenAt = 0
	if r.card.Equal(card) {
		return d, false
	}
	if !node.Unavailable(card) {
		r.offers = card.Capabilities
	}
	r.card = card
	return r.definition(), true
}

// definition returns the agent's definition at this hub. The caller holds r.mu.
func (r *remote) definition() runner.Definition {
	tier := r.card.Tier.Level()
	d := runner.Definition{
		ID: r.local, Name: r.card.Name + " at " + r.peer, Description: r.card.Description, Driver: runner.DriverPeer,
		Tier: &tier, Sandbox: r.card.SandboxID, Permissions: runner.PermissionsAsk, WorkDir: runner.WorkDirSpec{Policy: runner.WorkDirContext},
	}
	for _, c := range r.offers {
		d.Capabilities = append(d.Capabilities, runner.Capability{ID: c.ID, Name: c.Name, Description: c.Description})
	}
	return d
}

// missingFor returns for how long the agent's card has been missing.
func (r *remote) missingFor() time.Duration {
	_, here := r.peers.node.Registry().Identity(r.id)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case here:
		r.since = time.Time{}
		return 0
	case r.since.IsZero():
		r.since = time.Now()
	}
	return time.Since(r.since)
}

// availabilityChanged reports whether the agent has become available or unavailable since the last call.
func (r *remote) availabilityChanged() bool {
	card, err := r.peers.node.Registry().Get(r.id)
	available := err == nil && !node.Unavailable(card)
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.available
	r.available = available
	return available != before
}

// Probe implements [runner.Agent]: an agent is healthy if it has a card that does not say that it is unavailable.
func (r *remote) Probe(context.Context) runner.Probe {
	card, err := r.peers.node.Registry().Get(r.id)
	switch {
	case err != nil:
		return runner.Probe{Stage: runner.StageMissing, Err: &runner.Error{
			Code: runner.CodeNotInstalled, Message: "no messages from the hub " + r.peer, Remedy: "check that it runs and can be reached, and run `" + local.Program() + " doctor` at both"}}
	case node.Unavailable(card):
		return runner.Probe{Stage: runner.StageMissing, Version: card.Version, Err: &runner.Error{
			Code: runner.CodeNotInstalled, Message: "the hub " + r.peer + " reports that it is unavailable there", Remedy: "see its health at that hub"}}
	}
	return runner.Probe{Stage: runner.StageAuthenticated, Version: card.Version, AuthKnown: true}
}

// Open implements [runner.Agent].
func (r *remote) Open(spec runner.SessionSpec) (runner.Session, error) {
	return &session{r: r, thread: spec.ContextID}, nil
}

// session is a conversation, held as a thread of envelopes.
type session struct {
	r      *remote
	thread string
	busy   sync.Mutex
}

// Close implements [runner.Session]. The other hub keeps the conversation.
func (s *session) Close(context.Context) error { return nil }

const (
	maxAnswers = 4096            // buffered envelopes of one answer
	cancelTime = 3 * time.Second // for the other hub to cancel a task
)

// Turn implements [runner.Session]. It sends a request to the agent and reads the stream of its answer.
func (s *session) Turn(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
	if !s.busy.TryLock() {
		return failed(runner.CodeBusy, "a turn is running already in this session", "")
	}
	defer s.busy.Unlock()
	prompt, perr := runner.PromptText(turn.Parts, runner.Limits{}.WithDefaults().MaxPrompt)
	if perr != nil {
		return runner.Outcome{Status: runner.OutcomeFailed, ExitCode: -1}, perr
	}
	s.r.mu.Lock()
	tier := s.r.card.Tier
	s.r.mu.Unlock()
	f := s.r.peers.sender(tier)
	if f == nil {
		return failed(runner.CodeConfig, "the hub cannot send to agents of tier "+tier.String(), "")
	}
	answers, done := f.subscribe(s.r.id, s.thread)
	defer done()
	asked := map[string]any{"text": prompt, "stream": true}
	if len(turn.Chain) > 0 {
		asked["over"] = s.r.peers.globalIDs(turn.Chain)
	}
	if err := f.send(ctx, s.r.id, s.thread, envelope.Request, asked, turn.TraceParent); err != nil {
		return failed(runner.CodeAgent, fmt.Sprintf("cannot send the request to %s: %v", s.r.peer, err), "")
	}
	return s.readAnswer(ctx, f, answers, h)
}

func failed(code runner.Code, message, remedy string) (runner.Outcome, error) {
	return runner.Outcome{Status: runner.OutcomeFailed, ExitCode: -1}, &runner.Error{Code: code, Message: message, Remedy: remedy}
}

// readAnswer handles the answer until it ends.
func (s *session) readAnswer(ctx context.Context, f *sender, answers <-chan *envelope.Envelope, h runner.Handler) (runner.Outcome, error) {
	began := time.Now()
	a := &answer{h: h}
	var late <-chan time.Time
	canceled := ctx.Done()
	for {
		select {
		case e, ok := <-answers:
			if !ok {
				return failed(runner.CodeProtocol, "the connection with "+s.r.peer+" ended before its answer; the task may still run there",
					"look there, or send the message again")
			}
			if out, err, ended := a.handle(e); ended {
				out.ExitCode, out.Duration = -1, time.Since(began)
				return out, err
			}
		case <-canceled:
			canceled = nil
			timer := time.NewTimer(cancelTime)
			defer timer.Stop()
			late = timer.C
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
			// If this does not arrive, the timer ends the turn here.
			_ = f.send(last, s.r.id, s.thread, envelope.Notification, map[string]any{"cancel": true}, "")
			cancel()
		case <-late:
			return runner.Outcome{Status: runner.OutcomeCanceled, ExitCode: -1, Text: a.text.String()}, nil
		}
	}
}

// answer reads the envelopes of an answer.
type answer struct {
	h       runner.Handler
	started bool // earlier envelopes belong to an earlier turn
	text    strings.Builder
}

func (a *answer) handle(e *envelope.Envelope) (out runner.Outcome, err error, ended bool) {
	switch e.Type {
	case envelope.StreamStart:
		a.started = true
	case envelope.StreamData:
		if a.started {
			a.data(e)
		}
	case envelope.StreamEnd:
		if a.started {
			out, err = a.end(e)
			return out, err, true
		}
	case envelope.ErrorMessage:
		var p node.Failure
		if json.Unmarshal(e.Payload, &p) != nil || p.Message == "" {
			p.Message = "the other hub's error cannot be read"
		}
		out, err = a.fail(&p)
		return out, err, true
	}
	return out, nil, false
}

func (a *answer) data(e *envelope.Envelope) {
	var c node.Chunk
	if json.Unmarshal(e.Payload, &c) != nil {
		return // from another version
	}
	switch {
	case c.Status != "":
		a.h.Event(runner.Notice{Text: c.Status})
	case c.Text != "":
		a.text.WriteString(c.Text)
		a.h.Event(runner.TextDelta{Text: c.Text})
	case c.Data != nil:
		a.h.Event(runner.Artifact{ID: c.ArtifactID, Parts: []*a2a.Part{a2a.NewDataPart(c.Data)}, Append: c.Append})
	case c.File != "":
		a.h.Event(runner.Notice{Text: "the file " + c.File + " stays at the other hub"})
	}
}

func (a *answer) end(e *envelope.Envelope) (runner.Outcome, error) {
	var r node.Result
	if err := json.Unmarshal(e.Payload, &r); err != nil {
		return failed(runner.CodeProtocol, "the other hub's answer cannot be read", "")
	}
	out := runner.Outcome{Text: a.text.String()}
	switch r.State {
	case "completed":
		out.Status = runner.OutcomeCompleted
	case "canceled":
		out.Status = runner.OutcomeCanceled
	case "input-required":
		out.Status, out.Text = runner.OutcomeInputRequired, a.text.String()+r.Text
	default:
		if r.Error == nil {
			r.Error = &node.Failure{State: r.State, Message: "the task ended " + r.State}
		}
		return a.fail(r.Error)
	}
	return out, nil
}

func (a *answer) fail(p *node.Failure) (runner.Outcome, error) {
	out := runner.Outcome{Status: runner.OutcomeFailed, Text: a.text.String(), ExitCode: -1}
	code := runner.CodeAgent
	switch p.State {
	case "canceled":
		out.Status = runner.OutcomeCanceled
		return out, nil
	case "auth-required":
		out.Status, code = runner.OutcomeAuthRequired, runner.CodeAuth
	}
	return out, &runner.Error{Code: code, Message: text.Valid(p.Message, maxForeignText), Remedy: text.Valid(p.Remedy, maxForeignText)}
}

// sender is the identity by which this hub sends to other hubs' agents. There is one of
// each tier, since agents may always address those of their own tier.
type sender struct {
	id       string
	identity agent.Identity
	access   *parley.Agent

	mu      sync.Mutex
	waiting map[thread]chan *envelope.Envelope // for a turn; closed when no more will follow
}

type thread struct{ agent, id string }

// openSenders opens a sender for each tier that other hubs' agents may have here.
func (p *Peers) openSenders() error {
	for _, tier := range []agent.Tier{agent.L0, agent.L1, agent.L2, agent.L3} {
		if tier < p.o.PeerTier {
			continue
		}
		f := &sender{id: signedcard.ID("~hub-"+strings.ToLower(tier.String()), p.pair.Public()), waiting: make(map[thread]chan *envelope.Envelope)}
		card := agent.Card{
			ID: f.id, Name: "the hub", Version: "1", Tier: tier, Capabilities: []agent.Capability{}, Origin: agent.Local,
			Description: "sends for its own agents and users",
		}
		f.identity = card.Identity()
		var err error
		f.access, err = p.node.Join(card, f.deliver)
		if err != nil {
			return err
		}
		p.senders[tier] = f
	}
	return nil
}

func (p *Peers) sender(t agent.Tier) *sender {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.senders[t]
}

// subscribe returns the answers of an agent in a thread, until done is called.
func (f *sender) subscribe(agentID, id string) (<-chan *envelope.Envelope, func()) {
	t, a := thread{agentID, id}, make(chan *envelope.Envelope, maxAnswers)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting[t] = a
	return a, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.waiting[t] == a {
			delete(f.waiting, t)
		}
	}
}

// deliver passes an answer to the turn that waits for it. It closes a full buffer, since
// the router must not wait for a slow turn.
func (f *sender) deliver(_ context.Context, e *envelope.Envelope) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := thread{e.Sender, e.CorrelationID}
	a, ok := f.waiting[t]
	if !ok {
		return
	}
	select {
	case a <- e:
	default:
		delete(f.waiting, t)
		close(a)
	}
}

// closeAnswers ends the turns that wait for an agent.
func (f *sender) closeAnswers(agentID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for t, a := range f.waiting {
		if t.agent == agentID {
			delete(f.waiting, t)
			close(a)
		}
	}
}

// send sends to an agent in a thread. It does not wait for the delivery; if that fails, the channel closes.
func (f *sender) send(ctx context.Context, to, id string, kind envelope.Type, payload any, traceParent string) error {
	e, err := envelope.NewFactory(f.identity).NewInThread(id, to, kind, payload)
	if err != nil {
		return err
	}
	if e.Metadata != nil {
		e.Metadata.TraceParent = traceParent
	}
	_, err = f.access.SendEnvelope(ctx, e)
	return err
}
