package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/swarm"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/toolbox"
)

// demoKind is the kind of a demoEvent.
type demoKind string

// The kinds of events, in the order of their first occurrence.
const (
	demoJoined    demoKind = "joined"    // an agent joined with its card
	demoFound     demoKind = "found"     // an agent found others by capability
	demoProposed  demoKind = "proposed"  // an agent proposed a task
	demoAccepted  demoKind = "accepted"  // an agent accepted a proposal
	demoRejected  demoKind = "rejected"  // an agent rejected a proposal
	demoToolAdded demoKind = "tool"      // an agent offers a tool
	demoWorking   demoKind = "working"   // an agent started a part of the job
	demoCalled    demoKind = "called"    // an agent called another one's tool
	demoLost      demoKind = "lost"      // an agent died
	demoCompleted demoKind = "completed" // an agent completed a part of the job
	demoFinished  demoKind = "finished"  // the job has its result
)

// demoEvent is one step of the demonstration.
type demoEvent struct {
	Kind    demoKind `json:"kind"`
	Agent   string   `json:"agent"`
	Other   string   `json:"other,omitempty"`   // the other agent
	SubTask string   `json:"subTask,omitempty"` // the part of the job
	Text    string   `json:"text"`              // a sentence for people
}

// demonstrate runs a demonstration in this process and returns the job's result: agents
// without a program or a model find each other, negotiate, share a tool, split a job, lose one
// of them, and finish. Everything but the agents' answers is real. A part of the job takes
// pace, the whole about eight times that. show gets each event, in sequence.
func demonstrate(ctx context.Context, pace time.Duration, show func(demoEvent)) (result string, err error) {
	n, err := parley.New(parley.Options{Router: router.Options{Telemetry: telemetry.New(telemetry.Options{})}})
	if err != nil {
		return "", err
	}
	s := &stage{pace: pace, show: show, node: n, box: toolbox.New(toolbox.Options{Policy: n.Router()}), died: make(chan struct{})}
	defer func() {
		s.close()
		err = errors.Join(err, n.Close(context.WithoutCancel(ctx)))
	}()
	for _, step := range []func(context.Context) error{s.join, s.negotiate, s.share} {
		if err := step(ctx); err != nil {
			return "", err
		}
	}
	return s.work(ctx)
}

// stage is the state of a demonstration.
type stage struct {
	pace    time.Duration
	show    func(demoEvent)
	node    *parley.Node
	box     *toolbox.Box
	closers []func() // called in reverse order

	reporting sync.Mutex
	cast      []*player
	died      chan struct{} // closed when titan dies
	dies      sync.Once
}

// player is one agent.
type player struct {
	id     string
	skills []string
	access *parley.Agent
	neg    *negotiation.Negotiator
}

func (s *stage) report(e demoEvent) {
	s.reporting.Lock()
	defer s.reporting.Unlock()
	s.show(e)
}

func (s *stage) close() {
	for _, closer := range slices.Backward(s.closers) {
		closer()
	}
}

func (s *stage) player(id string) *player {
	return s.cast[slices.IndexFunc(s.cast, func(p *player) bool { return p.id == id })]
}

// join joins five of the planetary agents; sun searches for agents that write.
func (s *stage) join(context.Context) error {
	for _, p := range []*player{
		{id: "sun", skills: []string{"lead"}},
		{id: "venus", skills: []string{"write", "lint"}},
		{id: "mars", skills: []string{"write"}},
		{id: "titan", skills: []string{"write"}},
		{id: "saturn", skills: []string{"review"}},
	} {
		card := agent.Card{ID: p.id, Name: strings.ToUpper(p.id), Version: "1.0.0", Tier: agent.PlanetaryTier(p.id), Protocols: []string{"a2a/1.0"}, Capabilities: []agent.Capability{}}
		for _, skill := range p.skills {
			card.Capabilities = append(card.Capabilities, agent.Capability{ID: skill, Name: skill})
		}
		var err error
		if p.access, err = s.node.Join(card, func(context.Context, *envelope.Envelope) {}); err != nil {
			return err
		}
		if p.neg, err = negotiation.New(s.node.Router(), p.id, negotiation.Options{}); err != nil {
			return err
		}
		s.closers = append(s.closers, func() { _ = p.neg.Close() }) // returns nil
		s.cast = append(s.cast, p)
		s.report(demoEvent{Kind: demoJoined, Agent: p.id, Text: fmt.Sprintf("%s joins as %v: %s", p.id, card.Tier, strings.Join(p.skills, ", "))})
	}
	view, err := s.node.Router().Discover("sun")
	if err != nil {
		return err
	}
	var found []string
	for _, card := range view.FindByCapability("write") {
		found = append(found, card.ID)
	}
	slices.Sort(found)
	s.report(demoEvent{Kind: demoFound, Agent: "sun", Text: "sun looks for agents that write, and finds " + strings.Join(found, ", ")})
	return nil
}

// negotiate lets mars ask venus and then saturn for a review.
func (s *stage) negotiate(ctx context.Context) error {
	venus, saturn, mars := s.player("venus"), s.player("saturn"), s.player("mars")
	stop := venus.neg.OnProposal(func(ctx context.Context, p negotiation.Proposal) {
		_ = venus.neg.Reject(ctx, p.ID, negotiation.Rejection{Reason: negotiation.Busy, Alternative: "saturn"}) // after an error the proposal times out
	})
	defer stop()
	stop = saturn.neg.OnProposal(func(ctx context.Context, p negotiation.Proposal) {
		_ = saturn.neg.Accept(ctx, p.ID, time.Minute) // after an error the proposal times out
	})
	defer stop()
	for to := "venus"; ; {
		asked, err := mars.neg.Propose(ctx, to, negotiation.Terms{
			TaskDescription: "review my draft", EstimatedComplexity: negotiation.Simple, Deadline: 10 * time.Second,
		})
		if err != nil {
			return err
		}
		s.report(demoEvent{Kind: demoProposed, Agent: "mars", Other: to, Text: "mars proposes to " + to + ": review my draft"})
		p, err := mars.neg.Wait(ctx, asked.ID)
		switch {
		case err != nil:
			return err
		case p.Status == negotiation.Accepted:
			s.report(demoEvent{Kind: demoAccepted, Agent: to, Other: "mars", Text: to + " accepts"})
			return nil
		case p.Status != negotiation.Rejected || p.AlternativeSuggestion == "" || p.AlternativeSuggestion == to:
			return fmt.Errorf("%s's answer to the proposal is %s", to, p.Status)
		}
		s.report(demoEvent{Kind: demoRejected, Agent: to, Other: "mars", Text: fmt.Sprintf("%s is %s and suggests %s", to, p.RejectionReason, p.AlternativeSuggestion)})
		to = p.AlternativeSuggestion
	}
}

type demoText struct {
	Text string `json:"text"`
}

type demoCount struct {
	Words int `json:"words"`
}

// share lets venus offer a tool.
func (s *stage) share(context.Context) error {
	p, err := s.box.Provider("venus")
	if err != nil {
		return err
	}
	err = toolbox.AddFunc(p, "count", "Counts the words of a text.", func(_ context.Context, _ *toolbox.Call, in demoText) (demoCount, error) {
		return demoCount{len(strings.Fields(in.Text))}, nil
	})
	if err != nil {
		return err
	}
	s.report(demoEvent{Kind: demoToolAdded, Agent: "venus", Text: "venus offers a tool to all: venus.count"})
	return nil
}

// demoJob returns the plan of the job: five chapters, and a review of all.
func demoJob() swarm.Plan {
	plan := swarm.Plan{TaskDescription: "write a short guide to the solar system", RequiredCapabilities: []string{}}
	all := []string{"planets", "moons", "comets", "rings", "belts"}
	for _, about := range all {
		plan.SubTasks = append(plan.SubTasks, swarm.SubTaskPlan{ID: about, Description: "a chapter about " + about, RequiredCapabilities: []string{"write"}})
	}
	plan.SubTasks = append(plan.SubTasks, swarm.SubTaskPlan{ID: "review", Description: "read all of it", RequiredCapabilities: []string{"review"}, DependsOn: all})
	return plan
}

// work runs the job as a swarm; titan dies while it works on its first chapter.
func (s *stage) work(ctx context.Context) (string, error) {
	for _, p := range s.cast[1:] {
		member := swarm.NewParticipant(s.node.Router(), p.neg, func(ctx context.Context, j swarm.Job) (json.RawMessage, error) {
			return s.do(ctx, p, j)
		}, swarm.ParticipantOptions{})
		s.closers = append(s.closers, func() { _ = member.Close() }) // returns nil
	}
	c := swarm.NewCoordinator(s.node.Router(), s.player("sun").neg, swarm.CoordinatorOptions{})
	s.closers = append(s.closers, func() { _ = c.Close() }) // returns nil
	session, err := c.Create(ctx, demoJob())
	if err != nil {
		return "", err
	}
	if session, err = c.Wait(ctx, session.ID); err != nil {
		return "", err
	}
	var results map[string]string
	if err := json.Unmarshal(session.Outcome, &results); err != nil {
		return "", err
	}
	s.report(demoEvent{Kind: demoFinished, Agent: "sun", Text: fmt.Sprintf("all %d parts are done, each once: %s", len(results), results["review"])})
	return results["review"], nil
}

// do lets an agent work on a part of the job.
func (s *stage) do(ctx context.Context, p *player, j swarm.Job) (json.RawMessage, error) {
	s.report(demoEvent{Kind: demoWorking, Agent: p.id, SubTask: j.SubTaskID, Text: p.id + " begins " + j.Description})
	if p.id == "titan" {
		s.dies.Do(func() {
			s.report(demoEvent{Kind: demoLost, Agent: p.id, SubTask: j.SubTaskID, Text: "titan dies"})
			p.access.Leave()
			close(s.died)
		})
		<-ctx.Done()
		return nil, ctx.Err()
	}
	select { // titan must get a part before the others have done all
	case <-s.died:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case <-time.After(s.pace):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	draft := "The " + j.SubTaskID + " of the solar system are worth a visit."
	if j.SubTaskID == "review" {
		all := make([]string, 0, len(j.Results))
		for _, r := range j.Results {
			var chapter string
			if err := json.Unmarshal(r, &chapter); err != nil {
				return nil, err
			}
			all = append(all, chapter)
		}
		draft = strings.Join(all, " ")
	}
	words, err := s.count(ctx, p.id, draft)
	if err != nil {
		return nil, err
	}
	answer := draft
	if j.SubTaskID == "review" {
		answer = fmt.Sprintf("%d chapters, %d words, no complaint", len(j.Results), words)
	}
	s.report(demoEvent{Kind: demoCompleted, Agent: p.id, SubTask: j.SubTaskID, Text: p.id + " has done " + j.SubTaskID})
	return json.Marshal(answer)
}

// count calls venus's tool.
func (s *stage) count(ctx context.Context, who, draft string) (int, error) {
	arguments, err := json.Marshal(demoText{draft})
	if err != nil {
		return 0, err
	}
	result, err := s.box.Call(ctx, who, "venus.count", arguments, nil)
	if err != nil {
		return 0, err
	}
	raw, err := json.Marshal(result.StructuredContent)
	if err != nil {
		return 0, err
	}
	var c demoCount
	if err := json.Unmarshal(raw, &c); err != nil {
		return 0, err
	}
	s.report(demoEvent{Kind: demoCalled, Agent: who, Other: "venus", Text: fmt.Sprintf("%s calls venus.count: %d words", who, c.Words)})
	return c.Words, nil
}
