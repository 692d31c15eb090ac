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
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// remote is another hub's agent, as one of ours.
type remote struct {
	n     *Network
	id    string // among hubs
	local string // here
	peer  string // what its hub is called

	mu     sync.Mutex
	card   agent.Card         // as it was heard last
	offers []agent.Capability // when it could work last
	since  time.Time          // its card is missing; zero while it is there
	well   bool               // it could work when turned was asked last
}

// update takes the card as it is now and returns what the hub is to know of it, if
// that has changed. An agent that cannot work at the moment keeps what it offered:
// its health says that it cannot.
func (r *remote) update(card agent.Card) (d runner.Definition, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	card.LastSeenAt = 0
	if r.card.Equal(card) {
		return d, false
	}
	if !node.Unfit(card) {
		r.offers = card.Capabilities
	}
	r.card = card
	return r.definition(), true
}

// definition is the agent as one of ours; r.mu is held.
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

func (r *remote) tier() agent.Tier {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.card.Tier
}

// missingFor returns for how long nobody has spoken of the agent.
func (r *remote) missingFor() time.Duration {
	_, here := r.n.node.Registry().Identity(r.id)
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

// turned reports whether the agent can work now and could not before, or the other way
// round.
func (r *remote) turned() bool {
	card, err := r.n.node.Registry().Get(r.id)
	well := err == nil && !node.Unfit(card)
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.well
	r.well = well
	return well != before
}

// Probe implements [runner.Agent]: an agent whose card is here can work, unless its hub
// says that it cannot.
func (r *remote) Probe(context.Context) runner.Probe {
	card, err := r.n.node.Registry().Get(r.id)
	switch {
	case err != nil:
		return runner.Probe{Stage: runner.StageMissing, Err: &runner.Error{
			Code: runner.CodeNotInstalled, Message: "nothing is heard of the hub " + r.peer, Remedy: "see whether it runs and can be reached, and run `parley doctor` at both"}}
	case node.Unfit(card):
		return runner.Probe{Stage: runner.StageMissing, Version: card.Version, Err: &runner.Error{
			Code: runner.CodeNotInstalled, Message: "the hub " + r.peer + " says that it cannot work there now", Remedy: "see its health at that hub"}}
	}
	return runner.Probe{Stage: runner.StageAuthenticated, Version: card.Version, AuthKnown: true}
}

// Open implements [runner.Agent].
func (r *remote) Open(spec runner.SessionSpec) (runner.Session, error) {
	return &session{r: r, thread: spec.ContextID}, nil
}

// session is a conversation: a thread of envelopes.
type session struct {
	r      *remote
	thread string
	busy   sync.Mutex
}

// Close implements [runner.Session]. The other hub keeps the conversation.
func (s *session) Close(context.Context) error { return nil }

const (
	maxAnswers = 4096            // envelopes of one answer that wait to be taken
	cancelTime = 3 * time.Second // for the other hub to end a task
)

// What the other hub answers with: see docs/coordination.md.
type (
	chunk struct {
		ArtifactID string          `json:"artifactId"`
		Append     bool            `json:"append"`
		Text       string          `json:"text"`
		Data       json.RawMessage `json:"data"`
		File       string          `json:"file"`
		Status     string          `json:"status"`
	}
	result struct {
		State string   `json:"state"`
		Text  string   `json:"text"`
		Error *problem `json:"error"`
	}
	problem struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Remedy  string `json:"remedy"`
		State   string `json:"state"`
	}
)

// Turn implements [runner.Session]: a request to the agent, whose stream is the turn.
func (s *session) Turn(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
	if !s.busy.TryLock() {
		return failed(runner.CodeBusy, "a turn is running already in this session", "")
	}
	defer s.busy.Unlock()
	prompt, perr := runner.PromptText(turn.Parts, runner.Limits{}.WithDefaults().MaxPrompt)
	if perr != nil {
		return runner.Outcome{Status: runner.OutcomeFailed, ExitCode: -1}, perr
	}
	tier := s.r.tier()
	f := s.r.n.front(tier)
	if f == nil {
		return failed(runner.CodeConfig, "the hub has no agent of tier "+tier.String()+" to ask with", "")
	}
	answers, done := f.wait(s.r.id, s.thread)
	defer done()
	asked := map[string]any{"text": prompt, "stream": true}
	if len(turn.Chain) > 0 {
		asked["over"] = s.r.n.amongHubs(turn.Chain)
	}
	if err := f.sendTraced(ctx, s.r.id, s.thread, envelope.Request, asked, turn.TraceParent); err != nil {
		return failed(runner.CodeAgent, fmt.Sprintf("the agent at %s cannot be asked: %v", s.r.peer, err), "")
	}
	return s.listen(ctx, f, answers, h)
}

func failed(code runner.Code, message, remedy string) (runner.Outcome, error) {
	return runner.Outcome{Status: runner.OutcomeFailed, ExitCode: -1}, &runner.Error{Code: code, Message: message, Remedy: remedy}
}

// listen takes the answer to its end.
func (s *session) listen(ctx context.Context, f *front, answers <-chan *envelope.Envelope, h runner.Handler) (runner.Outcome, error) {
	began := time.Now()
	t := &talk{h: h}
	var late <-chan time.Time
	canceled := ctx.Done()
	for {
		select {
		case e, ok := <-answers:
			if !ok {
				return failed(runner.CodeProtocol, "the link to "+s.r.peer+" was lost before the answer came; the task may go on there",
					"look there, or send the message again")
			}
			if out, err, over := t.take(e); over {
				out.ExitCode, out.Duration = -1, time.Since(began)
				return out, err
			}
		case <-canceled:
			canceled = nil
			timer := time.NewTimer(cancelTime)
			defer timer.Stop()
			late = timer.C
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
			// If it does not arrive, the timer ends the turn here.
			_ = f.send(last, s.r.id, s.thread, envelope.Notification, map[string]any{"cancel": true})
			cancel()
		case <-late:
			return runner.Outcome{Status: runner.OutcomeCanceled, ExitCode: -1, Text: t.text.String()}, nil
		}
	}
}

// talk is an answer as it comes.
type talk struct {
	h     runner.Handler
	begun bool // what came before belongs to an earlier turn
	text  strings.Builder
}

func (t *talk) take(e *envelope.Envelope) (out runner.Outcome, err error, over bool) {
	switch e.Type {
	case envelope.StreamStart:
		t.begun = true
	case envelope.StreamData:
		if t.begun {
			t.piece(e)
		}
	case envelope.StreamEnd:
		if t.begun {
			out, err = t.end(e)
			return out, err, true
		}
	case envelope.ErrorMessage:
		var p problem
		if json.Unmarshal(e.Payload, &p) != nil || p.Message == "" {
			p.Message = "the other hub answers with an error that cannot be read"
		}
		out, err = t.fail(&p)
		return out, err, true
	}
	return out, nil, false
}

func (t *talk) piece(e *envelope.Envelope) {
	var c chunk
	if json.Unmarshal(e.Payload, &c) != nil {
		return // of another version
	}
	switch {
	case c.Status != "":
		t.h.Event(runner.Notice{Text: c.Status})
	case c.Text != "":
		t.text.WriteString(c.Text)
		t.h.Event(runner.TextDelta{Text: c.Text})
	case len(c.Data) > 0:
		var v any
		if json.Unmarshal(c.Data, &v) == nil {
			t.h.Event(runner.Artifact{ID: c.ArtifactID, Parts: []*a2a.Part{a2a.NewDataPart(v)}, Append: c.Append})
		}
	case c.File != "":
		t.h.Event(runner.Notice{Text: "the file " + c.File + " stays at the other hub"})
	}
}

func (t *talk) end(e *envelope.Envelope) (runner.Outcome, error) {
	var r result
	if err := json.Unmarshal(e.Payload, &r); err != nil {
		return failed(runner.CodeProtocol, "the other hub's answer cannot be read", "")
	}
	out := runner.Outcome{Text: t.text.String()}
	switch r.State {
	case "completed":
		out.Status = runner.OutcomeCompleted
	case "canceled":
		out.Status = runner.OutcomeCanceled
	case "input-required":
		out.Status, out.Text = runner.OutcomeInputRequired, t.text.String()+r.Text
	default:
		if r.Error == nil {
			r.Error = &problem{State: r.State, Message: "the task ended " + r.State}
		}
		return t.fail(r.Error)
	}
	return out, nil
}

func (t *talk) fail(p *problem) (runner.Outcome, error) {
	out := runner.Outcome{Status: runner.OutcomeFailed, Text: t.text.String(), ExitCode: -1}
	code := runner.CodeAgent
	switch p.State {
	case "canceled":
		out.Status = runner.OutcomeCanceled
		return out, nil
	case "auth-required":
		out.Status, code = runner.OutcomeAuthRequired, runner.CodeAuth
	}
	return out, &runner.Error{Code: code, Message: clip(p.Message), Remedy: clip(p.Remedy)}
}

// clip bounds what another hub has us say.
func clip(s string) string {
	const longest = 4096
	return strings.ToValidUTF8(s[:min(len(s), longest)], "")
}

// front is who asks other hubs' agents for us: one of each tier, since an agent may
// address, and answer, those of its own.
type front struct {
	id       string
	identity agent.Identity
	access   *parley.Agent

	mu      sync.Mutex
	waiting map[thread]*answers
}

type thread struct{ agent, id string }

// answers are what waits for a turn. The channel is closed, once, when no more comes.
type answers struct {
	c      chan *envelope.Envelope
	closed bool
}

// openFronts makes one for each tier that other hubs' agents may have here.
func (n *Network) openFronts() error {
	for _, tier := range []agent.Tier{agent.L0, agent.L1, agent.L2, agent.L3} {
		if tier < n.o.PeerTier {
			continue
		}
		f := &front{id: signedcard.ID("~hub-"+strings.ToLower(tier.String()), n.pair.Public()), waiting: make(map[thread]*answers)}
		card := agent.Card{
			ID: f.id, Name: "the hub", Version: "1", Tier: tier, Capabilities: []agent.Capability{}, Origin: agent.Local,
			Description: "asks for its own agents and users",
		}
		f.identity = card.Identity()
		var err error
		f.access, err = n.node.Join(card, f.take)
		if err != nil {
			return err
		}
		n.fronts[tier] = f
	}
	return nil
}

func (n *Network) front(t agent.Tier) *front {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.fronts[t]
}

// wait registers for the answers of an agent in a thread.
func (f *front) wait(agentID, id string) (<-chan *envelope.Envelope, func()) {
	t, a := thread{agentID, id}, &answers{c: make(chan *envelope.Envelope, maxAnswers)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting[t] = a
	return a.c, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.waiting[t] == a {
			delete(f.waiting, t)
		}
	}
}

// take hands an answer to the turn that waits for it. A turn that takes none for
// very long has lost its place: the router must not wait for it.
func (f *front) take(_ context.Context, e *envelope.Envelope) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.waiting[thread{e.Sender, e.CorrelationID}]
	if a == nil || a.closed {
		return
	}
	select {
	case a.c <- e:
	default:
		a.close()
	}
}

func (a *answers) close() {
	if !a.closed {
		a.closed = true
		close(a.c)
	}
}

// lost ends the turns that wait for an agent.
func (f *front) lost(agentID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for t, a := range f.waiting {
		if t.agent == agentID {
			a.close()
		}
	}
}

// send sends to an agent in a thread. That it does not arrive shows in the end of the
// channel.
func (f *front) send(ctx context.Context, to, id string, kind envelope.Type, payload any) error {
	return f.sendTraced(ctx, to, id, kind, payload, "")
}

func (f *front) sendTraced(ctx context.Context, to, id string, kind envelope.Type, payload any, traceParent string) error {
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
