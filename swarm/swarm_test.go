package swarm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/swarm"
	"github.com/parleyhub/parley/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
	Cleanup(func())
}

func must(t tb, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hive is a router with agents that are coordinators and participants.
type hive struct {
	t tb
	r *router.Router

	mu   sync.Mutex
	done map[string]int // how often each sub-task was completed
}

func newHive(t tb) *hive {
	t.Helper()
	reg := registry.New(registry.Options{})
	r, err := router.New(reg, router.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(r.Close(ctx), reg.Close())) })
	return &hive{t: t, r: r, done: make(map[string]int)}
}

func (h *hive) register(id string, capabilities ...string) {
	h.t.Helper()
	card := agent.Card{ID: id, Name: id, Version: "1.0.0", Tier: agent.L0, Capabilities: []agent.Capability{}}
	for _, c := range capabilities {
		card.Capabilities = append(card.Capabilities, agent.Capability{ID: c})
	}
	_, err := h.r.Registry().Register(card)
	must(h.t, err)
}

func (h *hive) negotiator(id string) *negotiation.Negotiator {
	h.t.Helper()
	n, err := negotiation.New(h.r, id, negotiation.Options{})
	must(h.t, err)
	h.t.Cleanup(func() { must(h.t, n.Close()) })
	return n
}

func (h *hive) coordinator(id string, o swarm.CoordinatorOptions) *swarm.Coordinator {
	h.t.Helper()
	h.register(id)
	c := swarm.NewCoordinator(h.r, h.negotiator(id), o)
	h.t.Cleanup(func() { must(h.t, c.Close()) })
	return c
}

func (h *hive) participant(id string, o swarm.ParticipantOptions, work swarm.Worker, capabilities ...string) *swarm.Participant {
	h.t.Helper()
	h.register(id, capabilities...)
	p := swarm.NewParticipant(h.r, h.negotiator(id), work, o)
	h.t.Cleanup(func() { must(h.t, p.Close()) })
	return p
}

// answer is a worker that returns its agent and the sub-task, and counts completed sub-tasks.
func (h *hive) answer(who string) swarm.Worker {
	return func(_ context.Context, j swarm.Job) (json.RawMessage, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.done[j.SubTaskID]++
		return json.Marshal(who + " did " + j.SubTaskID)
	}
}

func plan(parts int, capabilities ...string) swarm.Plan {
	p := swarm.Plan{TaskDescription: "build it", RequiredCapabilities: capabilities}
	for i := range parts {
		p.SubTasks = append(p.SubTasks, swarm.SubTaskPlan{ID: fmt.Sprintf("t%d", i), Description: "a part"})
	}
	return p
}

func wantCode(t tb, err error, want swarm.Code) {
	t.Helper()
	if swarm.CodeOf(err) != want {
		t.Fatalf("error %v, want code %s", err, want)
	}
}

func run(t tb, c *swarm.Coordinator, p swarm.Plan) swarm.Session {
	t.Helper()
	s, err := c.Create(ctx, p)
	must(t, err)
	s, err = c.Wait(ctx, s.ID)
	must(t, err)
	return s
}

// outcome decodes the default aggregation.
func outcome(t tb, s swarm.Session) map[string]string {
	t.Helper()
	var m map[string]string
	must(t, json.Unmarshal(s.Outcome, &m))
	return m
}

func check(t *testing.T, prop func(t *rapid.T)) {
	rapid.Check(t, func(t *rapid.T) { rapid.SyncTest(t, prop) })
}

// Feature: a2a-mcp-protocols, Property 25: Swarm broadcast to capable agents (Req
// 8.1).
func TestProperty25OnlyCapableAgentsAreInvited(t *testing.T) {
	check(t, func(t *rapid.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		capability := rapid.SampledFrom([]string{"a", "b", "c"})
		required := rapid.SliceOfNDistinct(capability, 1, 3, rapid.ID).Draw(t, "required")
		var mu sync.Mutex
		var asked, want []string
		for i := range rapid.IntRange(0, 8).Draw(t, "agents") {
			id := fmt.Sprintf("agent-%d", i)
			has := rapid.SliceOfNDistinct(capability, 0, 3, rapid.ID).Draw(t, "has")
			h.register(id, has...)
			if !slices.ContainsFunc(required, func(c string) bool { return !slices.Contains(has, c) }) {
				want = append(want, id)
			}
			h.r.OnReceive(id, func(_ context.Context, e *envelope.Envelope) {
				mu.Lock()
				defer mu.Unlock()
				if e.Type == envelope.TaskProposal {
					asked = append(asked, id)
				}
			})
		}
		_, err := c.Create(ctx, plan(rapid.SampledFrom([]int{0, 3}).Draw(t, "parts"), required...))
		must(t, err)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(asked)
		if !slices.Equal(asked, want) {
			t.Fatalf("asked %v, want %v", asked, want)
		}
	})
}

// Feature: a2a-mcp-protocols, Property 26: Swarm sub-task assignment and state
// consistency (Req 8.2, 8.3, 8.4, 8.6).
func TestProperty26EveryParticipantHasAPartAndEveryPartItsResult(t *testing.T) {
	check(t, func(t *rapid.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		agents := rapid.IntRange(1, 6).Draw(t, "agents")
		hold := make(chan struct{})
		var members []*swarm.Participant
		for i := range agents {
			id := fmt.Sprintf("agent-%d", i)
			work := h.answer(id)
			members = append(members, h.participant(id, swarm.ParticipantOptions{}, func(ctx context.Context, j swarm.Job) (json.RawMessage, error) {
				<-hold
				return work(ctx, j)
			}, "a"))
		}
		parts := rapid.IntRange(0, 12).Draw(t, "parts")
		s, err := c.Create(ctx, plan(parts, "a"))
		must(t, err)
		synctest.Wait()
		s, err = c.Session(ctx, s.ID)
		must(t, err)
		if want := min(agents, max(parts, 1)); parts > 0 && len(s.Participants) != want || parts == 0 && len(s.Participants) != agents {
			t.Fatalf("%d participants for %d parts and %d agents", len(s.Participants), parts, agents)
		}
		has := make(map[string]int)
		for _, part := range s.SubTasks {
			has[part.AssignedAgent]++
		}
		for _, id := range s.Participants {
			if has[id] == 0 {
				t.Fatalf("%s has no sub-task: %v", id, has)
			}
		}
		close(hold)
		synctest.Wait()
		s, err = c.Wait(ctx, s.ID)
		must(t, err)
		results := outcome(t, s)
		for _, part := range s.SubTasks {
			if part.Status != swarm.TaskCompleted || results[part.ID] != part.AssignedAgent+" did "+part.ID {
				t.Fatalf("sub-task %+v, outcome %q", part, results[part.ID])
			}
			if !strings.Contains(string(s.SharedState["subTask/"+part.ID]), `"completed"`) {
				t.Fatalf("its shared state is %s", s.SharedState["subTask/"+part.ID])
			}
		}
		if s.Status != swarm.Completed || len(results) != len(s.SubTasks) {
			t.Fatalf("%s with %d results of %d", s.Status, len(results), len(s.SubTasks))
		}
		synctest.Wait()
		for _, p := range members {
			if in := p.Swarms(); len(in) != 0 {
				t.Fatalf("a participant still takes part in %v", in)
			}
		}
	})
}

func TestDependenciesAndTheirResultsAreObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		for i := range 3 {
			h.participant(fmt.Sprintf("agent-%d", i), swarm.ParticipantOptions{}, func(_ context.Context, j swarm.Job) (json.RawMessage, error) {
				time.Sleep(time.Second)
				return json.Marshal(fmt.Sprint(j.SubTaskID, slices.Sorted(maps.Keys(j.Results)), string(j.Results["design"])))
			}, "a")
		}
		p := plan(0, "a")
		p.SubTasks = []swarm.SubTaskPlan{
			{ID: "ship", Description: "x", DependsOn: []string{"build", "test"}},
			{ID: "build", Description: "x", DependsOn: []string{"design"}},
			{ID: "test", Description: "x", DependsOn: []string{"design"}},
			{ID: "design", Description: "x"},
		}
		began := time.Now()
		got := outcome(t, run(t, c, p))
		if got["ship"] != "ship[build test]" || !strings.HasPrefix(got["build"], `build[design]"design`) {
			t.Fatalf("got %v", got)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Fatalf("three steps took %v", took)
		}
	})
}

// A failed sub-task is assigned to another agent (Req 8.5).
func TestAFailedSubTaskIsReassigned(t *testing.T) {
	for name, bad := range map[string]swarm.Worker{
		"an error": func(context.Context, swarm.Job) (json.RawMessage, error) { return nil, errors.New("no disk") },
		"a crash":  func(context.Context, swarm.Job) (json.RawMessage, error) { panic("no disk") },
		"no JSON":  func(context.Context, swarm.Job) (json.RawMessage, error) { return json.RawMessage("{"), nil },
		"too much": func(context.Context, swarm.Job) (json.RawMessage, error) {
			return json.Marshal(strings.Repeat("x", swarm.MaxResult))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHive(t)
				c := h.coordinator("sun", swarm.CoordinatorOptions{})
				h.participant("bad", swarm.ParticipantOptions{}, bad, "a")
				h.participant("good", swarm.ParticipantOptions{}, h.answer("good"), "a")
				for id, said := range outcome(t, run(t, c, plan(4, "a"))) {
					if said != "good did "+id {
						t.Fatalf("%s: %s", id, said)
					}
				}
			})
		})
	}
}

func TestASilentParticipantLosesItsSubTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		dead := h.participant("dies", swarm.ParticipantOptions{}, func(ctx context.Context, _ swarm.Job) (json.RawMessage, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, "a")
		h.participant("lives", swarm.ParticipantOptions{}, h.answer("lives"), "a")
		s, err := c.Create(ctx, plan(4, "a"))
		must(t, err)
		synctest.Wait()
		must(t, dead.Close()) // without leaving the swarm
		s, err = c.Wait(ctx, s.ID)
		must(t, err)
		for id, said := range outcome(t, s) {
			if said != "lives did "+id {
				t.Fatalf("%s: %s", id, said)
			}
		}
	})
}

func TestAnAgentThatLeavesIsReplacedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		forever := func(ctx context.Context, _ swarm.Job) (json.RawMessage, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		leaves := h.participant("leaves", swarm.ParticipantOptions{}, forever, "a")
		h.participant("vanishes", swarm.ParticipantOptions{}, forever, "a")
		h.participant("stays", swarm.ParticipantOptions{}, h.answer("stays"), "a")
		began := time.Now()
		s, err := c.Create(ctx, plan(6, "a"))
		must(t, err)
		synctest.Wait()
		must(t, leaves.Leave(s.ID))
		h.r.Registry().Unregister("vanishes")
		if _, err := c.Wait(ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took >= swarm.DefaultLease {
			t.Fatalf("it took %v", took)
		}
	})
}

// judge is a reporter that decides by a function and records its calls.
type judge struct {
	again func(n int) bool

	mu        sync.Mutex
	escalated []swarm.SubTask
	finished  []swarm.Session
}

func (j *judge) Escalate(_ context.Context, _ swarm.Session, t swarm.SubTask) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.escalated = append(j.escalated, t)
	return j.again(len(j.escalated))
}

func (j *judge) Finished(_ context.Context, s swarm.Session) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.finished = append(j.finished, s)
}

func TestAnImpossibleSubTaskIsEscalated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		j := &judge{again: func(n int) bool { return n < 2 }}
		c := h.coordinator("sun", swarm.CoordinatorOptions{Reporter: j})
		var calls atomic.Int32
		h.participant("bad", swarm.ParticipantOptions{}, func(context.Context, swarm.Job) (json.RawMessage, error) {
			calls.Add(1)
			return nil, errors.New("no disk")
		}, "a")
		p := plan(1, "a")
		p.MaxAttempts = 2
		s, err := c.Create(ctx, p)
		must(t, err)
		s, err = c.Wait(ctx, s.ID)
		wantCode(t, err, swarm.CodeFailed)
		synctest.Wait()
		if n := calls.Load(); n != 4 { // two rounds of two attempts
			t.Fatalf("it was tried %d times, want 4", n)
		}
		if len(j.escalated) != 2 || j.escalated[0].Error != "no disk" || len(j.finished) != 1 || j.finished[0].Status != swarm.Failed {
			t.Fatalf("escalated %+v, finished %+v", j.escalated, j.finished)
		}
		if s.SubTasks[0].Status != swarm.TaskFailed || !strings.Contains(s.Error, "no disk") {
			t.Fatalf("session %+v", s)
		}
	})
}

func TestASwarmWithoutAgentsFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		h.participant("unwilling", swarm.ParticipantOptions{Accept: func(negotiation.Proposal) (bool, negotiation.Reason) { return false, negotiation.Busy }}, nil, "a")
		h.register("silent", "a")
		s, err := c.Create(ctx, plan(2, "a"))
		must(t, err)
		s, err = c.Wait(ctx, s.ID)
		wantCode(t, err, swarm.CodeFailed)
		if !strings.Contains(s.Error, string(swarm.CodeNoAgents)) {
			t.Fatalf("it failed because of %q", s.Error)
		}
	})
}

func TestALateAgentIsInvited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		first := h.participant("first", swarm.ParticipantOptions{}, func(ctx context.Context, _ swarm.Job) (json.RawMessage, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, "a")
		s, err := c.Create(ctx, plan(3, "a"))
		must(t, err)
		synctest.Wait()
		h.participant("second", swarm.ParticipantOptions{}, h.answer("second"), "a")
		must(t, first.Leave(s.ID))
		s, err = c.Wait(ctx, s.ID)
		must(t, err)
		if !slices.Equal(s.Participants, []string{"first", "second"}) {
			t.Fatalf("participants %v", s.Participants)
		}
	})
}

func TestAnotherCoordinatorFinishesASwarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		journal := new(swarm.MemoryJournal)
		sun := h.coordinator("sun", swarm.CoordinatorOptions{Journal: journal, Successors: []string{"earth"}})
		earth := h.coordinator("earth", swarm.CoordinatorOptions{Journal: journal, Successors: []string{"sun"}})
		for i := range 4 {
			id := fmt.Sprintf("agent-%d", i)
			work := h.answer(id)
			h.participant(id, swarm.ParticipantOptions{}, func(ctx context.Context, j swarm.Job) (json.RawMessage, error) {
				time.Sleep(10 * time.Second) // agents continue without a coordinator
				return work(ctx, j)
			}, "a")
		}
		s, err := sun.Create(ctx, plan(20, "a"))
		must(t, err)
		time.Sleep(25 * time.Second) // two rounds are completed, one is running
		must(t, sun.Close())
		s, err = earth.Wait(ctx, s.ID)
		must(t, err)
		if s.Coordinator != "earth" || s.Epoch != 1 || len(outcome(t, s)) != 20 {
			t.Fatalf("led by %s in epoch %d, %d results", s.Coordinator, s.Epoch, len(s.SubTasks))
		}
		for id, n := range h.done {
			if n != 1 {
				t.Errorf("%s was done %d times", id, n)
			}
		}
	})
}

// slow is a journal that blocks one coordinator.
type slow struct {
	swarm.Journal
	wait atomic.Bool
}

func (j *slow) Append(ctx context.Context, id string, after uint64, data []byte) (uint64, error) {
	if j.wait.Load() {
		time.Sleep(2 * time.Minute)
	}
	return j.Journal.Append(ctx, id, after, data)
}

func TestASlowCoordinatorStepsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		journal := new(swarm.MemoryJournal)
		stuck := &slow{Journal: journal}
		sun := h.coordinator("sun", swarm.CoordinatorOptions{Journal: stuck, Successors: []string{"earth"}})
		earth := h.coordinator("earth", swarm.CoordinatorOptions{Journal: journal, Successors: []string{"sun"}})
		work := h.answer("agent")
		h.participant("agent", swarm.ParticipantOptions{}, func(ctx context.Context, j swarm.Job) (json.RawMessage, error) {
			time.Sleep(time.Minute)
			return work(ctx, j)
		}, "a")
		s, err := sun.Create(ctx, plan(5, "a"))
		must(t, err)
		time.Sleep(90 * time.Second)
		stuck.wait.Store(true)
		s, err = sun.Wait(ctx, s.ID) // sun follows what earth writes
		must(t, err)
		if s.Coordinator != "earth" {
			t.Fatalf("%s led it until the end", s.Coordinator)
		}
		if again, err := earth.Session(ctx, s.ID); err != nil || again.Status != swarm.Completed {
			t.Fatalf("%+v, %v", again, err)
		}
		for id, n := range h.done {
			if n != 1 {
				t.Errorf("%s was done %d times", id, n)
			}
		}
	})
}

// flaky is a journal that fails, sometimes after the record is stored.
type flaky struct {
	swarm.Journal
	mu   sync.Mutex
	rand *rand.Rand
}

func (j *flaky) Append(ctx context.Context, id string, after uint64, data []byte) (uint64, error) {
	j.mu.Lock()
	choice := j.rand.IntN(4)
	j.mu.Unlock()
	if choice == 0 {
		return 0, errors.New("the bus is unreachable")
	}
	sequence, err := j.Journal.Append(ctx, id, after, data)
	if choice == 1 && err == nil {
		return 0, errors.New("no answer")
	}
	return sequence, err
}

func TestAFailingJournalLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{Journal: &flaky{Journal: new(swarm.MemoryJournal), rand: rand.New(rand.NewPCG(1, 2))}})
		for i := range 3 {
			id := fmt.Sprintf("agent-%d", i)
			h.participant(id, swarm.ParticipantOptions{}, h.answer(id), "a")
		}
		if s := run(t, c, plan(30, "a")); len(outcome(t, s)) != 30 || s.Epoch != 0 {
			t.Fatalf("%+v", s)
		}
		for id, n := range h.done {
			if n != 1 {
				t.Errorf("%s was done %d times", id, n)
			}
		}
	})
}

func TestEveryParticipantSeesTheSameStatesInTheSameOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		hold := make(chan struct{})
		var members []*swarm.Participant
		for i := range 4 {
			members = append(members, h.participant(fmt.Sprintf("agent-%d", i), swarm.ParticipantOptions{}, func(context.Context, swarm.Job) (json.RawMessage, error) {
				<-hold
				return nil, nil
			}, "a"))
		}
		s, err := c.Create(ctx, plan(4, "a"))
		must(t, err)
		synctest.Wait()
		var mu sync.Mutex
		seen := make([]map[uint64]string, len(members))
		last := make([]uint64, len(members))
		for i, p := range members {
			seen[i] = make(map[uint64]string)
			must(t, p.Watch(s.ID, func(x swarm.State) {
				mu.Lock()
				defer mu.Unlock()
				if x.Sequence <= last[i] {
					t.Errorf("participant %d received state %d after %d", i, x.Sequence, last[i])
				}
				last[i] = x.Sequence
				seen[i][x.Sequence] = string(x.Values["best"])
			}))
		}
		synctest.Wait()
		for n := range 40 {
			must(t, members[n%4].SetState(s.ID, "best", json.RawMessage(fmt.Sprint(n))))
			if n%5 == 0 {
				synctest.Wait()
			}
		}
		must(t, members[0].SetState(s.ID, "subTask/t0", json.RawMessage(`"done"`))) // refused
		synctest.Wait()
		mu.Lock()
		for i := 1; i < len(seen); i++ {
			for sequence, value := range seen[i] {
				if other, both := seen[0][sequence]; both && other != value {
					t.Errorf("state %d is %s at one participant and %s at another", sequence, other, value)
				}
			}
			if last[i] != last[0] {
				t.Errorf("one participant is at %d, another at %d", last[0], last[i])
			}
		}
		mu.Unlock()
		got, err := members[1].State(ctx, s.ID)
		must(t, err)
		s, err = c.Session(ctx, s.ID)
		must(t, err)
		if string(got.Values["best"]) != string(s.SharedState["best"]) || got.Values["subTask/t0"] != nil {
			t.Fatalf("a participant has %s, the session has %s", got.Values, s.SharedState)
		}
		close(hold)
		_, err = c.Wait(ctx, s.ID)
		must(t, err)
		_, err = members[1].State(ctx, "other")
		wantCode(t, err, swarm.CodeNotMember)
	})
}

func TestMessagesFromOutsideTheSwarmAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		hold := make(chan struct{})
		p := h.participant("agent", swarm.ParticipantOptions{}, func(context.Context, swarm.Job) (json.RawMessage, error) {
			<-hold
			return json.RawMessage(`"right"`), nil
		}, "a")
		h.register("stranger")
		s, err := c.Create(ctx, plan(1, "a"))
		must(t, err)
		synctest.Wait()
		forge := func(to string, payload string) {
			e, err := envelope.New("stranger", to, envelope.Notification, json.RawMessage(payload))
			must(t, err)
			_, err = h.r.Send(ctx, e)
			must(t, err)
			synctest.Wait()
		}
		forge("sun", fmt.Sprintf(`{"swarmId":%q,"result":{"subTask":"t0","attempt":1,"value":"wrong"}}`, s.ID))
		forge("sun", fmt.Sprintf(`{"swarmId":%q,"set":{"key":"x","value":1}}`, s.ID))
		forge("agent", fmt.Sprintf(`{"swarmId":%q,"epoch":9,"over":true}`, s.ID))
		forge("agent", fmt.Sprintf(`{"swarmId":%q,"epoch":9,"leader":true}`, s.ID))
		if len(p.Swarms()) != 1 {
			t.Fatal("an agent outside the swarm completed it")
		}
		close(hold)
		s, err = c.Wait(ctx, s.ID)
		must(t, err)
		if got := outcome(t, s)["t0"]; got != "right" || len(s.SharedState) != 1 {
			t.Fatalf("got %q, state %s", got, s.SharedState)
		}
	})
}

func TestTheAPIAcceptsResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		h.participant("agent", swarm.ParticipantOptions{}, func(ctx context.Context, _ swarm.Job) (json.RawMessage, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, "a")
		s, err := c.Create(ctx, plan(2, "a"))
		must(t, err)
		synctest.Wait()
		h.register("late", "a")
		must(t, c.Join(ctx, s.ID, "late"))
		wantCode(t, c.Join(ctx, s.ID, "nobody"), swarm.CodeUnknown)
		wantCode(t, c.Join(ctx, "nothing", "late"), swarm.CodeNotFound)
		wantCode(t, c.CompleteSubTask(ctx, s.ID, "t9", json.RawMessage(`1`)), swarm.CodeNotFound)
		wantCode(t, c.CompleteSubTask(ctx, s.ID, "t0", json.RawMessage(`{`)), swarm.CodeInvalid)
		must(t, c.SetState(ctx, s.ID, "k", json.RawMessage(`1`)))
		must(t, c.FailSubTask(ctx, s.ID, "t0", "it is hard"))
		must(t, c.CompleteSubTask(ctx, s.ID, "t0", json.RawMessage(`"a"`)))
		wantCode(t, c.CompleteSubTask(ctx, s.ID, "t0", json.RawMessage(`"b"`)), swarm.CodeState)
		active, err := c.Active(ctx)
		if err != nil || len(active) != 1 || active[0].ID != s.ID {
			t.Fatalf("active %+v, %v", active, err)
		}
		must(t, c.CompleteSubTask(ctx, s.ID, "t1", json.RawMessage(`"c"`)))
		s, err = c.Wait(ctx, s.ID)
		must(t, err)
		if got := outcome(t, s); got["t0"] != "a" || got["t1"] != "c" || string(s.SharedState["k"]) != "1" {
			t.Fatalf("got %v", got)
		}
		if active, err := c.Active(ctx); err != nil || len(active) != 0 {
			t.Fatalf("active %+v, %v", active, err)
		}
		_, err = c.Session(ctx, "nothing")
		wantCode(t, err, swarm.CodeNotFound)
	})
}

func TestImpossiblePlansAreRefused(t *testing.T) {
	h := newHive(t)
	c := h.coordinator("sun", swarm.CoordinatorOptions{})
	for name, change := range map[string]func(*swarm.Plan){
		"no description":       func(p *swarm.Plan) { p.TaskDescription = " " },
		"a strange capability": func(p *swarm.Plan) { p.RequiredCapabilities = []string{"a b"} },
		"two of one id":        func(p *swarm.Plan) { p.SubTasks[1].ID = "t0" },
		"no id":                func(p *swarm.Plan) { p.SubTasks[1].ID = "" },
		"an empty part":        func(p *swarm.Plan) { p.SubTasks[1].Description = "" },
		"a missing dependency": func(p *swarm.Plan) { p.SubTasks[1].DependsOn = []string{"t9"} },
		"a circle":             func(p *swarm.Plan) { p.SubTasks[0].DependsOn, p.SubTasks[1].DependsOn = []string{"t1"}, []string{"t0"} },
		"itself":               func(p *swarm.Plan) { p.SubTasks[0].DependsOn = []string{"t0"} },
		"input that is not":    func(p *swarm.Plan) { p.SubTasks[0].Input = json.RawMessage("{") },
		"negative attempts":    func(p *swarm.Plan) { p.MaxAttempts = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(2)
			change(&p)
			_, err := c.Create(ctx, p)
			wantCode(t, err, swarm.CodeInvalid)
		})
	}
}

func TestAThousandAgentsOfWhichAThirdDies(t *testing.T) {
	agents, parts := 1000, 10_000
	if testing.Short() {
		agents, parts = 100, 1000
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		choice := rand.New(rand.NewPCG(3, 4))
		for i := range agents {
			id := fmt.Sprintf("agent-%04d", i)
			work := h.answer(id)
			life := 1 << 30
			if i%3 == 0 {
				life = choice.IntN(15)
			}
			var did atomic.Int32
			h.participant(id, swarm.ParticipantOptions{}, func(ctx context.Context, j swarm.Job) (json.RawMessage, error) {
				time.Sleep(time.Second)
				if int(did.Add(1)) > life {
					h.r.Registry().Unregister(id)
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return work(ctx, j)
			}, "a")
		}
		p := plan(parts, "a")
		p.MaxAttempts = 10 // in some runs three agents die with the same sub-task
		s := run(t, c, p)
		results := outcome(t, s)
		if len(results) != parts {
			t.Fatalf("%d results of %d", len(results), parts)
		}
		for _, part := range s.SubTasks {
			if results[part.ID] != part.AssignedAgent+" did "+part.ID {
				t.Fatalf("%+v: %q", part, results[part.ID])
			}
		}
	})
}

// A restarted participant reports that it does not know the swarm, and is invited again.
func TestARestartedParticipantIsInvitedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		j := new(swarm.MemoryJournal)
		h.register("sun")
		h.register("worker", "work")
		n := h.negotiator("sun")
		o := swarm.CoordinatorOptions{Journal: j, Sole: true, Lease: time.Hour, Takeover: time.Hour}
		first := swarm.NewCoordinator(h.r, n, o)
		begun := make(chan struct{}, 1)
		pn, err := negotiation.New(h.r, "worker", negotiation.Options{})
		must(t, err)
		p := swarm.NewParticipant(h.r, pn, func(ctx context.Context, _ swarm.Job) (json.RawMessage, error) {
			begun <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}, swarm.ParticipantOptions{})
		s, err := first.Create(ctx, plan(2, "work"))
		must(t, err)
		<-begun
		began := time.Now()
		must(t, errors.Join(first.Close(), p.Close(), pn.Close())) // as if their process ended
		h.participant("worker", swarm.ParticipantOptions{}, h.answer("worker"), "work")
		second := swarm.NewCoordinator(h.r, n, o)
		defer func() { must(t, second.Close()) }()
		s, err = second.Wait(ctx, s.ID)
		must(t, err)
		if s.Epoch != 1 || len(outcome(t, s)) != 2 {
			t.Fatalf("epoch %d, outcome %s", s.Epoch, s.Outcome)
		}
		if waited := time.Since(began); waited > time.Hour/2 { // in bubble time
			t.Fatalf("the swarm went on after %v", waited)
		}
	})
}

func TestAPlanMayNameItsAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		for _, id := range []string{"a", "b", "c"} {
			h.participant(id, swarm.ParticipantOptions{}, h.answer(id), "work")
		}
		p := plan(6, "work")
		p.Agents = []string{"a", "c"}
		if s := run(t, c, p); !slices.Equal(s.Participants, []string{"a", "c"}) {
			t.Fatalf("participants %q", s.Participants)
		}
	})
}

// Where each agent gets the whole task, it gets what is named after it, however busy it is.
func TestAWholeTaskIsNamedAfterItsAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{Load: func(id string) int { return len(id) }})
		for _, id := range []string{"busy", "idle-1", "b"} {
			h.participant(id, swarm.ParticipantOptions{}, h.answer(id), "work")
		}
		s := run(t, c, plan(0, "work"))
		if len(s.SubTasks) != 3 {
			t.Fatalf("the parts are %+v", s.SubTasks)
		}
		for _, part := range s.SubTasks {
			if part.ID != "task-"+part.AssignedAgent {
				t.Errorf("%s has %s", part.AssignedAgent, part.ID)
			}
		}
	})
}

// An agent whose stand-in takes part is the participant; neither it nor another agent speaks for it.
func TestAStandInTakesPartForAnAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{StandIns: "for:"})
		_, err := h.r.Registry().Hold(agent.Card{ID: "far", Name: "far", Version: "1", Tier: agent.L0, Capabilities: []agent.Capability{{ID: "work"}}}, "elsewhere")
		must(t, err)
		h.participant("for:far", swarm.ParticipantOptions{}, h.answer("the stand-in"), "work")
		h.participant("for:away", swarm.ParticipantOptions{}, h.answer("the stand-in"), "work")
		h.participant("near", swarm.ParticipantOptions{}, h.answer("near"), "work")
		p := plan(6, "work")
		p.Agents = []string{"far", "away", "near"}
		s := run(t, c, p)
		if !slices.Equal(s.Participants, []string{"away", "far", "near"}) {
			t.Fatalf("participants %q", s.Participants)
		}
		for _, part := range s.SubTasks {
			want := "the stand-in did " + part.ID
			if part.AssignedAgent == "near" {
				want = "near did " + part.ID
			}
			if got := outcome(t, s)[part.ID]; got != want {
				t.Errorf("%s: %q, want %q", part.AssignedAgent, got, want)
			}
		}
	})
}

func TestASwarmCanBeStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		ended := make(chan struct{})
		h.participant("a", swarm.ParticipantOptions{}, func(ctx context.Context, _ swarm.Job) (json.RawMessage, error) {
			<-ctx.Done()
			close(ended)
			return nil, ctx.Err()
		}, "work")
		s, err := c.Create(ctx, plan(1, "work"))
		must(t, err)
		synctest.Wait()
		must(t, c.Stop(ctx, s.ID, "not needed"))
		<-ended
		s, err = c.Wait(ctx, s.ID)
		wantCode(t, err, swarm.CodeFailed)
		if s.Error != "stopped: not needed" {
			t.Fatalf("error %q", s.Error)
		}
		wantCode(t, c.Stop(ctx, "none", "x"), swarm.CodeNotFound)
	})
}

// Messages of other kinds are left to the agent's other handlers.
func TestConcernsRecognisesSwarmMessages(t *testing.T) {
	for _, tt := range []struct {
		kind    envelope.Type
		payload string
		want    bool
	}{
		{envelope.TaskProposal, `{"input":{"swarmId":"s1"}}`, true},
		{envelope.TaskProposal, `{"input":{"swarmId":"other"}}`, false},
		{envelope.TaskProposal, `{"taskDescription":"x"}`, false},
		{envelope.TaskProposal, `{"input":"text"}`, false},
		{envelope.Request, `{"swarmId":"s1","work":{"subTask":"t"}}`, true},
		{envelope.Request, `{"swarmId":"s1","text":"do it"}`, false},
		{envelope.Request, `"do it"`, false},
		{envelope.Notification, `{"swarmId":"s1","leader":true}`, true},
		{envelope.Notification, `{"cancel":true}`, false},
		{envelope.ErrorMessage, `{"swarmId":"s1","leader":true}`, false},
	} {
		e, err := envelope.New("sun", "mars", tt.kind, json.RawMessage(tt.payload))
		must(t, err)
		e.CorrelationID = "s1"
		if got := swarm.Concerns(e); got != tt.want {
			t.Errorf("%s %s: %v", tt.kind, tt.payload, got)
		}
	}
}

// The number of concurrent swarms of a participant is bounded. Swarms that ended during the invitation, or whose
// coordinator is gone, do not count.
func TestEndedSwarmsDoNotCountForParticipants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		p := h.participant("eager", swarm.ParticipantOptions{MaxSwarms: 1}, h.answer("eager"), "work")
		h.register("mute", "work")
		h.negotiator("mute") // it does not answer, so recruiting continues
		s, err := c.Create(ctx, plan(1, "work"))
		must(t, err)
		synctest.Wait()
		must(t, c.Stop(ctx, s.ID, "not needed"))
		synctest.Wait()
		if in := p.Swarms(); len(in) != 0 {
			t.Fatalf("it takes part in %q, which has ended", in)
		}
		run(t, c, plan(1, "work"))
	})
}

func TestASwarmWithADeadCoordinatorIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		h.register("gone")
		dead := swarm.NewCoordinator(h.r, h.negotiator("gone"), swarm.CoordinatorOptions{})
		h.register("mute", "work")
		h.negotiator("mute") // it does not answer, so recruiting continues
		h.participant("b", swarm.ParticipantOptions{MaxSwarms: 1}, h.answer("b"), "work")
		_, err := dead.Create(ctx, plan(1, "work"))
		must(t, err)
		synctest.Wait()
		must(t, dead.Close()) // permanently, together with its journal
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		s, err := c.Create(ctx, plan(1, "work"))
		must(t, err)
		_, err = c.Wait(ctx, s.ID)
		wantCode(t, err, swarm.CodeFailed) // the dead coordinator may still have a successor
		time.Sleep(2 * time.Minute)        // in bubble time
		run(t, c, plan(1, "work"))
	})
}

// A restarted participant rejects work of a swarm it does not know, instead of letting it time out.
func TestWorkOfARestartedParticipantIsReassigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{Lease: time.Hour})
		release := make(chan struct{})
		h.participant("a", swarm.ParticipantOptions{}, func(ctx context.Context, j swarm.Job) (json.RawMessage, error) {
			<-release
			return h.answer("a")(ctx, j)
		}, "first")
		h.register("b", "second")
		n := h.negotiator("b")
		forgetful := swarm.NewParticipant(h.r, n, h.answer("b"), swarm.ParticipantOptions{})
		s, err := c.Create(ctx, swarm.Plan{TaskDescription: "x", SubTasks: []swarm.SubTaskPlan{
			{ID: "one", Description: "x", RequiredCapabilities: []string{"first"}},
			{ID: "two", Description: "x", RequiredCapabilities: []string{"second"}, DependsOn: []string{"one"}},
		}})
		must(t, err)
		synctest.Wait()
		must(t, forgetful.Close())
		again := swarm.NewParticipant(h.r, n, h.answer("b"), swarm.ParticipantOptions{})
		defer func() { must(t, again.Close()) }()
		began := time.Now()
		close(release)
		_, err = c.Wait(ctx, s.ID)
		must(t, err)
		if waited := time.Since(began); waited > time.Hour/2 { // in bubble time
			t.Fatalf("the swarm continued after %v", waited)
		}
	})
}

// full is a journal that can be read but not appended to.
type full struct {
	swarm.MemoryJournal
	room int32
}

func (j *full) Append(ctx context.Context, id string, after uint64, data []byte) (uint64, error) {
	if atomic.AddInt32(&j.room, -1) < 0 {
		return 0, errors.New("no space left")
	}
	return j.MemoryJournal.Append(ctx, id, after, data)
}

func TestASwarmWithAFullJournalCanBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{Journal: &full{room: 1}})
		h.participant("a", swarm.ParticipantOptions{}, h.answer("a"), "work")
		s, err := c.Create(ctx, plan(1, "work"))
		must(t, err)
		synctest.Wait()
		soon, cancel := context.WithTimeout(ctx, time.Minute) // in bubble time
		defer cancel()
		list, err := c.Sessions(soon)
		must(t, err)
		if len(list) != 1 || list[0].ID != s.ID {
			t.Fatalf("%+v", list)
		}
	})
}

// wildReporter panics.
type wildReporter struct{}

func (wildReporter) Escalate(context.Context, swarm.Session, swarm.SubTask) bool { panic("escalate") }
func (wildReporter) Finished(context.Context, swarm.Session)                     { panic("finished") }

// The panic of any callback is an error event, and the swarm ends.
func TestPanicsOfCallbacksAreEvents(t *testing.T) {
	for name, tc := range map[string]struct {
		coordinator swarm.CoordinatorOptions
		participant swarm.ParticipantOptions
		work        swarm.Worker
		status      swarm.Status
		panics      []string
	}{
		"reporter and worker": {
			coordinator: swarm.CoordinatorOptions{Reporter: wildReporter{}},
			work:        func(context.Context, swarm.Job) (json.RawMessage, error) { panic("work") },
			status:      swarm.Failed, panics: []string{"work", "escalate", "finished"},
		},
		"aggregate": {
			coordinator: swarm.CoordinatorOptions{Aggregate: func(swarm.Session) (json.RawMessage, error) { panic("aggregate") }},
			status:      swarm.Failed, panics: []string{"aggregate"},
		},
		"changed and load": {
			coordinator: swarm.CoordinatorOptions{Changed: func(swarm.Change) { panic("changed") }, Load: func(string) int { panic("load") }},
			status:      swarm.Completed, panics: []string{"changed", "load"},
		},
		"journal": {
			coordinator: swarm.CoordinatorOptions{Journal: &wildJournal{Journal: new(swarm.MemoryJournal)}},
			status:      swarm.Completed, panics: []string{"append"},
		},
		"accept": {
			participant: swarm.ParticipantOptions{Accept: func(negotiation.Proposal) (bool, negotiation.Reason) { panic("accept") }},
			status:      swarm.Failed, panics: []string{"accept"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHive(t)
				c := h.coordinator("sun", tc.coordinator)
				work := tc.work
				if work == nil {
					work = h.answer("mars")
				}
				h.participant("mars", tc.participant, work, "a")
				s, err := c.Create(ctx, plan(1, "a"))
				must(t, err)
				s, err = c.Wait(ctx, s.ID)
				if swarm.CodeOf(err) == swarm.CodeFailed || swarm.CodeOf(err) == swarm.CodeNoAgents {
					s, err = c.Session(ctx, s.ID)
				}
				must(t, err)
				synctest.Wait()
				if s.Status != tc.status {
					t.Errorf("the swarm is %s, want %s: %s", s.Status, tc.status, s.Error)
				}
				for _, want := range tc.panics {
					if !slices.ContainsFunc(h.r.Telemetry().Recent(0), func(e telemetry.Event) bool {
						return e.Type == telemetry.ErrorEvent && e.Code == telemetry.CodePanic && strings.Contains(e.Detail, " panicked: "+want+"\n")
					}) {
						t.Errorf("no event of the panic of %s", want)
					}
				}
			})
		})
	}
}

// wildJournal is a journal that panics at its first record.
type wildJournal struct {
	swarm.Journal
	once sync.Once
}

func (j *wildJournal) Append(ctx context.Context, swarmID string, after uint64, data []byte) (uint64, error) {
	j.once.Do(func() { panic("append") })
	return j.Journal.Append(ctx, swarmID, after, data)
}

func TestNilArgumentsAreErrors(t *testing.T) {
	c := swarm.NewCoordinator(nil, nil, swarm.CoordinatorOptions{})
	defer c.Close()
	if _, err := c.Create(ctx, plan(1, "a")); swarm.CodeOf(err) != swarm.CodeInvalid || !strings.Contains(err.Error(), "nil") {
		t.Errorf("a coordinator without a router: %v", err)
	}
	p := swarm.NewParticipant(nil, nil, nil, swarm.ParticipantOptions{})
	defer p.Close()
	if _, err := p.State(ctx, "s"); swarm.CodeOf(err) != swarm.CodeInvalid {
		t.Errorf("a participant without a router: %v", err)
	}
	if err := p.Watch("s", nil); swarm.CodeOf(err) != swarm.CodeInvalid {
		t.Errorf("a nil handler: %v", err)
	}
}
