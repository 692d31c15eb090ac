package parley_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/swarm"
)

// temper is how an agent behaves in a swarm.
type temper string

const (
	willing temper = "willing"
	flaky   temper = "flaky"   // fails its first sub-task
	failing temper = "failing" // fails all
	busy    temper = "busy"    // refuses invitations
	silent  temper = "silent"  // answers no invitation
)

var (
	allTiers  = []agent.Tier{agent.L0, agent.L1, agent.L2, agent.L3}
	allSkills = []string{"build", "test", "write"}
)

// permits says whether the default rules let one tier address another.
func permits(from, to agent.Tier) bool {
	return from == agent.L0 || from == agent.L3 || from == agent.L1 && to <= agent.L1 || from == agent.L2 && to <= agent.L2
}

// hand is an agent that may take part in a swarm, and what it was asked to do.
type hand struct {
	card   agent.Card
	temper temper
	load   int

	mu    sync.Mutex
	asked int
	jobs  int
}

func (h *hand) has(skills ...string) bool {
	return !slices.ContainsFunc(skills, func(s string) bool { return !h.card.Has(s) })
}

// crew is a node with a coordinator and hands.
type crew struct {
	site
	boss  *parley.Agent
	lead  *swarm.Coordinator
	hands map[string]*hand
	hold  chan struct{} // workers wait until it is closed
}

func skilled(id string, tier agent.Tier, skills ...string) agent.Card {
	c := agent.Card{ID: id, Name: id, Version: "1.0.0", Tier: tier, Capabilities: []agent.Capability{}}
	for _, s := range skills {
		c.Capabilities = append(c.Capabilities, agent.Capability{ID: s})
	}
	return c
}

func newCrew(t *testing.T, boss agent.Card, hands []*hand, o swarm.CoordinatorOptions) *crew {
	t.Helper()
	x := &crew{hands: make(map[string]*hand), hold: make(chan struct{})}
	n, err := parley.New(parley.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, n.Close(context.Background())) })
	x.site = site{Node: n}
	for _, h := range hands {
		x.add(t, h)
	}
	x.boss, _ = x.join(t, boss)
	by, err := x.boss.Negotiator(negotiation.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, by.Close()) })
	o.Load = func(id string) int { return x.hands[id].load }
	x.lead = n.Coordinator(by, o)
	t.Cleanup(func() { closed(t, x.lead.Close()) })
	return x
}

func closed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("close: %v", err)
	}
}

// add makes an agent join the node and, unless it is silent, take part in swarms.
func (x *crew) add(t *testing.T, h *hand) {
	t.Helper()
	x.hands[h.card.ID] = h
	a, err := x.Join(h.card, func(_ context.Context, e *envelope.Envelope) {
		if e.Type == envelope.TaskProposal {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.asked++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if h.temper == silent {
		return
	}
	by, err := a.Negotiator(negotiation.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, by.Close()) })
	p := x.Participant(by, func(ctx context.Context, j swarm.Job) (json.RawMessage, error) {
		select {
		case <-x.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.jobs++
		if h.temper == failing || h.temper == flaky && h.jobs == 1 {
			return nil, errors.New("out of paper")
		}
		return json.Marshal(h.card.ID + " did " + j.SubTaskID)
	}, swarm.ParticipantOptions{Accept: func(negotiation.Proposal) (bool, negotiation.Reason) { return h.temper != busy, negotiation.Busy }})
	t.Cleanup(func() { closed(t, p.Close()) })
}

// drawHands draws agents of all tiers with several capabilities and loads.
func drawHands(t *rapid.T, tempers ...temper) []*hand {
	hands := make([]*hand, rapid.IntRange(0, 6).Draw(t, "agents"))
	for i := range hands {
		skills := rapid.SliceOfNDistinct(rapid.SampledFrom(allSkills), 0, 3, rapid.ID).Draw(t, "skills")
		hands[i] = &hand{
			card:   skilled(fmt.Sprintf("agent-%d", i), rapid.SampledFrom(allTiers).Draw(t, "tier"), skills...),
			temper: rapid.SampledFrom(tempers).Draw(t, "temper"), load: rapid.IntRange(0, 5).Draw(t, "load"),
		}
	}
	return hands
}

// chatter sends what has nothing to do with the swarm: a message to each agent, and a broadcast.
func (x *crew) chatter(t *testing.T) {
	t.Helper()
	if _, err := x.Join(skilled("stranger", agent.L0), func(context.Context, *envelope.Envelope) {}); err != nil {
		t.Fatal(err)
	}
	for _, to := range append(slices.Sorted(maps.Keys(x.hands)), x.boss.ID(), envelope.Broadcast) {
		for _, payload := range []any{"hello", map[string]any{"swarmId": "s", "result": map[string]any{"subTask": "t0", "attempt": 1, "value": 1}}} {
			e, err := envelope.New("stranger", to, envelope.Notification, payload)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := x.Router().Send(context.Background(), e); err != nil {
				t.Errorf("send to %s: %v", to, err)
			}
		}
	}
}

// Feature: a2a-mcp-protocols, Property 25: Swarm broadcast to capable agents (Req 8.1): of agents of all tiers, with
// several capabilities each, exactly those are invited that have all that the task requires and may be addressed.
func TestProperty25SwarmsInviteCapableAgentsOnly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		hands := drawHands(rt, willing, busy, silent)
		boss := skilled("boss", rapid.SampledFrom(allTiers).Draw(rt, "coordinator's tier"), allSkills...)
		required := rapid.SliceOfNDistinct(rapid.SampledFrom(allSkills), 1, 3, rapid.ID).Draw(rt, "required")
		justified := rapid.Bool().Draw(rt, "justified")
		synctest.Test(t, func(t *testing.T) {
			x := newCrew(t, boss, hands, swarm.CoordinatorOptions{})
			plan := swarm.Plan{ID: "s", TaskDescription: "a book", RequiredCapabilities: required}
			if justified {
				plan.EscalationJustification = "nobody else can"
			}
			if _, err := x.lead.Create(context.Background(), plan); err != nil {
				t.Fatal(err)
			}
			x.chatter(t)
			synctest.Wait()
			for _, h := range hands {
				tier := h.card.Tier
				may := permits(boss.Tier, tier) && (justified || boss.Tier <= agent.L1 || tier > agent.L1)
				want := 0
				if may && h.has(required...) {
					want = 1
				}
				h.mu.Lock()
				// An agent that could not answer need not be asked.
				if h.asked != want && (h.asked != 0 || permits(tier, boss.Tier)) {
					t.Errorf("%s (%v, %v) was asked %d times by %v for %v, want %d", h.card.ID, tier, h.card.Capabilities, h.asked, boss.Tier, required, want)
				}
				h.mu.Unlock()
			}
			close(x.hold)
		})
	})
}

// Feature: a2a-mcp-protocols, Property 26: Swarm sub-task assignment and state consistency (Req 8.2, 8.3, 8.4, 8.6):
// with agents of all tiers, capabilities and loads, some of which refuse or fail, each participant gets a sub-task that
// it can do, each sub-task ends once with the result of an agent that can do it, and the state shows it.
func TestProperty26SwarmsAssignAndCompleteEachPart(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		hands := drawHands(rt, willing, willing, flaky, failing, busy, silent)
		tier := rapid.SampledFrom(allTiers).Draw(rt, "coordinator's tier")
		// One agent can do everything; the swarm can be completed.
		hands = append(hands, &hand{card: skilled("solid", agent.L0, allSkills...), temper: willing, load: rapid.IntRange(0, 5).Draw(rt, "load")})
		plan := swarm.Plan{ID: "s", TaskDescription: "a book", EscalationJustification: "nobody else can", MaxAttempts: 50,
			RequiredCapabilities: rapid.SliceOfNDistinct(rapid.SampledFrom(allSkills), 0, 1, rapid.ID).Draw(rt, "required")}
		for i := range rapid.IntRange(0, 8).Draw(rt, "parts") {
			plan.SubTasks = append(plan.SubTasks, swarm.SubTaskPlan{ID: fmt.Sprintf("t%d", i), Description: "a chapter",
				RequiredCapabilities: rapid.SliceOfNDistinct(rapid.SampledFrom(allSkills), 0, 2, rapid.ID).Draw(rt, "part requires")})
		}
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			done := make(map[string]int)
			x := newCrew(t, skilled("boss", tier), hands, swarm.CoordinatorOptions{Changed: func(c swarm.Change) {
				mu.Lock()
				defer mu.Unlock()
				if c.Result == swarm.TaskCompleted {
					done[c.SubTask]++
				}
			}})
			ctx := context.Background()
			if _, err := x.lead.Create(ctx, plan); err != nil {
				t.Fatal(err)
			}
			s := x.active(t)
			x.checkAssignment(t, s)
			x.chatter(t)
			close(x.hold)
			s, err := x.lead.Wait(ctx, s.ID)
			if err != nil || s.Status != swarm.Completed {
				t.Fatalf("the swarm is %s: %v", s.Status, err)
			}
			mu.Lock()
			defer mu.Unlock()
			x.checkResults(t, s, done)
		})
	})
}

// active waits until the swarm has begun.
func (x *crew) active(t *testing.T) swarm.Session {
	t.Helper()
	for {
		synctest.Wait()
		s, err := x.lead.Session(context.Background(), "s")
		if err != nil || s.Status == swarm.Active {
			return s
		}
		if s.Status.Ended() {
			t.Fatalf("the swarm is %s: %s", s.Status, s.Error)
		}
		time.Sleep(time.Second) // until the silent agents' time is over
	}
}

// checkAssignment checks the first assignment: each participant agreed and has a sub-task, and each assigned sub-task
// has an agent that can do it.
func (x *crew) checkAssignment(t *testing.T, s swarm.Session) {
	t.Helper()
	parts := make(map[string]int)
	for _, part := range s.SubTasks {
		h := x.hands[part.AssignedAgent]
		if h == nil || !h.has(part.RequiredCapabilities...) || !slices.Contains(s.Participants, part.AssignedAgent) {
			t.Errorf("sub-task %s, which requires %v, is %q's", part.ID, part.RequiredCapabilities, part.AssignedAgent)
		}
		parts[part.AssignedAgent]++
	}
	for _, id := range s.Participants {
		if h := x.hands[id]; parts[id] == 0 || h.temper == busy || h.temper == silent {
			t.Errorf("%s (%s) takes part with %d sub-tasks", id, h.temper, parts[id])
		}
	}
}

// checkResults checks a completed swarm: each sub-task was completed once, by an agent that can do it and does not fail,
// and sub-tasks, shared state and outcome agree.
func (x *crew) checkResults(t *testing.T, s swarm.Session, done map[string]int) {
	t.Helper()
	var outcome map[string]string
	if err := json.Unmarshal(s.Outcome, &outcome); err != nil {
		t.Fatal(err)
	}
	if len(outcome) != len(s.SubTasks) {
		t.Errorf("%d results of %d sub-tasks", len(outcome), len(s.SubTasks))
	}
	for _, part := range s.SubTasks {
		h := x.hands[part.AssignedAgent]
		result := part.AssignedAgent + " did " + part.ID
		if part.Status != swarm.TaskCompleted || h == nil || h.temper == failing || h.temper == busy || !h.has(part.RequiredCapabilities...) ||
			outcome[part.ID] != result || done[part.ID] != 1 {
			t.Errorf("sub-task %+v ended %d times with %q", part, done[part.ID], outcome[part.ID])
		}
		var shown struct{ Status, Agent, Result string }
		if err := json.Unmarshal(s.SharedState["subTask/"+part.ID], &shown); err != nil || shown.Status != "completed" || shown.Agent != part.AssignedAgent ||
			shown.Result != result {
			t.Errorf("the shared state of %s is %s: %v", part.ID, s.SharedState["subTask/"+part.ID], err)
		}
	}
}

// The error of a failed swarm says why each agent does not take part, for programs and for people, also when another
// coordinator reads it from the journal (Req 8.1, 10.1).
func TestAFailedSwarmsErrorHasItsCauses(t *testing.T) {
	for name, c := range map[string]struct {
		boss     agent.Tier
		hand     *hand
		route    router.Code
		proposal negotiation.Code
		named    string
	}{
		"the tier": {boss: agent.L1, hand: &hand{card: skilled("io", agent.L3, "build"), temper: willing},
			route: router.CodeTierViolation, proposal: negotiation.CodeSend, named: "io"},
		"no justification": {boss: agent.L2, hand: &hand{card: skilled("sun", agent.L0, "build"), temper: willing},
			route: router.CodeEscalationRequired, proposal: negotiation.CodeSend, named: "escalationJustification"},
		"a refusal": {boss: agent.L0, hand: &hand{card: skilled("io", agent.L0, "build"), temper: busy},
			proposal: negotiation.CodeRejected, named: "busy"},
		"no answer": {boss: agent.L0, hand: &hand{card: skilled("io", agent.L0, "build"), temper: silent},
			proposal: negotiation.CodeTimeout, named: "did not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var journal swarm.MemoryJournal
				x := newCrew(t, skilled("boss", c.boss), []*hand{c.hand}, swarm.CoordinatorOptions{Journal: &journal})
				other := newCrew(t, skilled("other", agent.L0), nil, swarm.CoordinatorOptions{Journal: &journal})
				ctx := context.Background()
				if _, err := x.lead.Create(ctx, swarm.Plan{ID: "s", TaskDescription: "a book", RequiredCapabilities: []string{"build"}}); err != nil {
					t.Fatal(err)
				}
				for who, lead := range map[string]*swarm.Coordinator{"the leader": x.lead, "another coordinator": other.lead} {
					s, err := lead.Wait(ctx, "s")
					cause, ok := errors.AsType[*swarm.Cause](err)
					if swarm.CodeOf(err) != swarm.CodeFailed || router.CodeOf(err) != c.route || negotiation.CodeOf(err) != c.proposal || !ok || cause.Agent != c.hand.card.ID {
						t.Errorf("%s: %v has the codes %q and %q, and the cause %+v", who, err, router.CodeOf(err), negotiation.CodeOf(err), cause)
					}
					if text := err.Error(); strings.Count(text, c.named) == 0 || strings.Count(text, c.hand.card.ID+": ") != 1 || !strings.Contains(s.Error, c.named) {
						t.Errorf("%s: the texts are %q and %q", who, text, s.Error)
					}
				}
			})
		})
	}
}
