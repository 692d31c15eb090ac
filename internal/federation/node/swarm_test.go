package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/swarm"
)

// swarmRig returns a rig with these agents, all of which have the capability work.
func swarmRig(t *testing.T, actors map[string]*actor) *rig {
	var agents []hub.Agent
	for id, a := range actors {
		agents = append(agents, hub.Agent{Definition: definition(id, nil), Runner: a})
	}
	return newRig(t, node.Options{Swarms: &node.SwarmOptions{Journal: new(swarm.MemoryJournal), Hub: "test", Answer: time.Minute}}, hub.Config{Agents: agents})
}

func TestTheHubsAgentsDivideATask(t *testing.T) { // Req 8.1, 8.2, 8.4, 8.6
	r := swarmRig(t, map[string]*actor{"mars": newActor(), "venus": newActor()})
	c := r.node.Swarms()
	s, err := c.Create(t.Context(), swarm.Plan{TaskDescription: "write a book", SubTasks: []swarm.SubTaskPlan{
		{ID: "one", Description: "chapter one"}, {ID: "two", Description: "chapter two", Input: json.RawMessage(`{"pages":3}`)},
		{ID: "end", Description: "put together", DependsOn: []string{"one", "two"}, RequiredCapabilities: []string{"work.mars"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if s, err = c.Wait(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	var got map[string]struct{ Text, TaskID string }
	if err := json.Unmarshal(s.Outcome, &got); err != nil || len(got) != 3 {
		t.Fatalf("%v: %s", err, s.Outcome)
	}
	for _, want := range []string{"put together", "write a book", "did chapter one", "did chapter two"} {
		if !strings.Contains(got["end"].Text, want) {
			t.Errorf("the last agent's prompt has no %q: %s", want, got["end"].Text)
		}
	}
	if !strings.Contains(got["two"].Text, `{"pages":3}`) {
		t.Errorf("the input is missing: %s", got["two"].Text)
	}
	if len(s.Participants) != 2 {
		t.Errorf("participants %q", s.Participants)
	}
}

func TestASubTaskThatFailsIsAssignedToAnotherAgent(t *testing.T) { // Req 8.5
	for _, how := range []string{"fail", "ask"} {
		t.Run(how, func(t *testing.T) {
			r := swarmRig(t, map[string]*actor{"mars": newActor(), "venus": newActor()})
			c := r.node.Swarms()
			s, err := c.Create(t.Context(), swarm.Plan{TaskDescription: "x", Unattended: true, SubTasks: []swarm.SubTaskPlan{{ID: "a", Description: how + ": it"}}})
			if err != nil {
				t.Fatal(err)
			}
			s, err = c.Wait(t.Context(), s.ID)
			if swarm.CodeOf(err) != swarm.CodeFailed || s.SubTasks[0].Attempt != swarm.DefaultMaxAttempts {
				t.Fatalf("%v after %d attempts", err, s.SubTasks[0].Attempt)
			}
			want := map[string]string{"fail": "the model is on strike", "ask": "which one?"}[how]
			if !strings.Contains(s.Error, want) {
				t.Errorf("error %q, want %q", s.Error, want)
			}
		})
	}
}

// question waits for the question about a swarm, and returns its task.
func question(t *testing.T, r *rig, id string) (task *a2a.Task, asked hub.PermissionData) {
	t.Helper()
	wait.Eventually(t, "the swarm asks", func() bool {
		page, err := r.hub.Tasks(t.Context(), hub.TaskQuery{AgentID: node.EscalationAgent, State: a2a.TaskStateInputRequired})
		if err != nil || len(page.Tasks) == 0 {
			return false
		}
		task = page.Tasks[0]
		return true
	})
	about, _ := task.Metadata["swarm"].(map[string]any)
	if about["id"] != id {
		t.Errorf("the question is about %v", about)
	}
	for _, p := range task.Status.Message.Parts {
		if p.Metadata[hub.MetaPermission] == nil {
			continue
		}
		raw, err := json.Marshal(p.Data())
		if err == nil {
			err = json.Unmarshal(raw, &asked)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return task, asked
}

func answerQuestion(t *testing.T, r *rig, task *a2a.Task, text string) {
	t.Helper()
	m := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))
	m.TaskID = task.ID
	if _, err := r.hub.Send(t.Context(), hub.SendRequest{Message: m}); err != nil {
		t.Fatal(err)
	}
}

// Req 8.5: a swarm that cannot go on comes back to its submitter as input-required, and goes on as the answer says.
func TestASwarmThatCannotGoOnAsks(t *testing.T) {
	plan := func() swarm.Plan {
		return swarm.Plan{TaskDescription: "x", Agents: []string{"mars"}, SubTasks: []swarm.SubTaskPlan{{ID: "a", Description: "strike: it"}}}
	}
	create := func(t *testing.T) (*rig, *actor, *actor, swarm.Session) {
		mars, venus := newActor(), newActor()
		r := swarmRig(t, map[string]*actor{"mars": mars, "venus": venus})
		s, err := r.node.Swarms().Create(t.Context(), plan())
		if err != nil {
			t.Fatal(err)
		}
		return r, mars, venus, s
	}
	t.Run("again", func(t *testing.T) {
		r, mars, _, s := create(t)
		task, q := question(t, r, s.ID)
		if !strings.Contains(q.Title, `"a": it has failed 3 times, most recently: the model is on strike`) {
			t.Errorf("it asks %q", q.Title)
		}
		var ids []string
		for _, o := range q.Options {
			ids = append(ids, o.ID)
		}
		if !slices.Equal(ids, []string{":retry", "venus", ":give-up"}) {
			t.Errorf("the options are %q", ids)
		}
		mars.paid.Store(true)
		answerQuestion(t, r, task, "y")
		if s, err := r.node.Swarms().Wait(t.Context(), s.ID); err != nil || s.SubTasks[0].AssignedAgent != "mars" || s.SubTasks[0].Attempt != 4 {
			t.Errorf("%+v, %v", s.SubTasks, err)
		}
	})
	t.Run("another agent", func(t *testing.T) {
		r, _, venus, s := create(t)
		venus.paid.Store(true)
		task, _ := question(t, r, s.ID)
		answerQuestion(t, r, task, "venus")
		if s, err := r.node.Swarms().Wait(t.Context(), s.ID); err != nil || s.SubTasks[0].AssignedAgent != "venus" {
			t.Errorf("%+v, %v", s.SubTasks, err)
		}
	})
	t.Run("give up", func(t *testing.T) {
		r, _, _, s := create(t)
		task, _ := question(t, r, s.ID)
		answerQuestion(t, r, task, "it is not worth it")
		if s, err := r.node.Swarms().Wait(t.Context(), s.ID); swarm.CodeOf(err) != swarm.CodeFailed || !strings.Contains(s.Error, "on strike") {
			t.Errorf("%v, %q", err, s.Error)
		}
	})
	t.Run("the question is canceled", func(t *testing.T) {
		r, _, _, s := create(t)
		task, _ := question(t, r, s.ID)
		if _, err := r.hub.Cancel(t.Context(), task.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := r.node.Swarms().Wait(t.Context(), s.ID); swarm.CodeOf(err) != swarm.CodeFailed {
			t.Errorf("%v", err)
		}
	})
	t.Run("the swarm is stopped", func(t *testing.T) {
		r, _, _, s := create(t)
		task, _ := question(t, r, s.ID)
		if err := r.node.Swarms().Stop(t.Context(), s.ID, "enough"); err != nil {
			t.Fatal(err)
		}
		wait.Eventually(t, "the question is withdrawn", func() bool {
			now, err := r.hub.Task(t.Context(), task.ID, nil)
			return err == nil && now.Status.State == a2a.TaskStateCanceled
		})
	})
	t.Run("a message that is no question", func(t *testing.T) {
		r, _, _, s := create(t)
		task, _ := question(t, r, s.ID)
		answerQuestion(t, r, task, "n")
		end, err := r.hub.SendAndWait(t.Context(), hub.SendRequest{AgentID: node.EscalationAgent, Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("review this"))})
		if err != nil || end.Status.State != a2a.TaskStateRejected {
			t.Errorf("%+v, %v", end, err)
		}
		for _, card := range r.node.Registry().All() {
			if card.ID == node.EscalationAgent {
				t.Error("the agent that asks can be invited")
			}
		}
	})
}

func TestAStoppedSwarmCancelsItsTasks(t *testing.T) {
	mars := newActor()
	r := swarmRig(t, map[string]*actor{"mars": mars})
	c := r.node.Swarms()
	s, err := c.Create(t.Context(), swarm.Plan{TaskDescription: "x", SubTasks: []swarm.SubTaskPlan{{ID: "a", Description: "hang: on"}}})
	if err != nil {
		t.Fatal(err)
	}
	<-mars.started
	if err := c.Stop(t.Context(), s.ID, "enough"); err != nil {
		t.Fatal(err)
	}
	if s, err = c.Wait(t.Context(), s.ID); swarm.CodeOf(err) != swarm.CodeFailed || s.Error != "stopped: enough" {
		t.Fatalf("%v, %q", err, s.Error)
	}
	r.node.CloseSwarms() // waits for the worker
	page, err := r.hub.Tasks(t.Context(), hub.TaskQuery{Limit: 10})
	if err != nil || len(page.Tasks) != 1 || !page.Tasks[0].Status.State.Terminal() {
		t.Fatalf("%v: %+v", err, page.Tasks)
	}
}

// A program's negotiator understands how the hub's agents answer (Req 7.2, 7.3).
// away is the runner of an agent that is not there.
type away struct{ *actor }

func (away) Probe(context.Context) runner.Probe {
	return runner.Probe{Stage: runner.StageMissing, Err: &runner.Error{Code: runner.CodeNotInstalled, Message: "it is offline"}}
}

// A hub that was restarted leads its swarms before they have connected again.
func TestAgentsThatWereThereBeforeTheRestartAreFound(t *testing.T) {
	session := func(id string, ago time.Duration) hub.Agent {
		return hub.Agent{Definition: definition(id, nil), Runner: away{newActor()}, Durable: true, Reported: true,
			Residence: hub.Residence{Kind: hub.KindSession, Offline: true, Seen: time.Now().Add(-ago)}}
	}
	r := newRig(t, node.Options{}, hub.Config{Agents: []hub.Agent{session("late", 5*time.Minute), session("gone", time.Hour)}})
	for _, id := range []string{"late", "gone"} {
		wait.Eventually(t, id+" is known to be away", func() bool {
			info, err := r.hub.Agent(id)
			return err == nil && info.Health.Status == hub.Unhealthy
		})
	}
	for id, want := range map[string]bool{"late": true, "gone": false} { // whom coordinators find
		wait.Eventually(t, id+"'s card", func() bool {
			card, err := r.node.Registry().Get(id)
			return err == nil && (len(card.Capabilities) > 0) == want
		})
	}
}

// inBubble runs a test with a hub and its swarms in virtual time.
func inBubble(t *testing.T, agents []hub.Agent, test func(*testing.T, *hub.Hub, *node.Swarms)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h, err := hub.New(t.Context(), hub.Config{Agents: agents})
		if err != nil {
			t.Fatal(err)
		}
		n, err := node.Open(node.Options{Hub: h, Swarms: &node.SwarmOptions{Journal: new(swarm.MemoryJournal), Hub: "test", Answer: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := errors.Join(h.Close(context.Background()), n.Close(context.Background())); err != nil {
				t.Error(err)
			}
		}()
		test(t, h, n.Swarms())
	})
}

// Whoever was there before the hub's restart is invited to swarms before it has connected again, and does its part when it has.
func TestWhoeverWasThereBeforeTheRestartIsInvited(t *testing.T) {
	session := func(id string, ago time.Duration) hub.Agent {
		return hub.Agent{Definition: definition(id, nil), Runner: away{newActor()}, Durable: true, Reported: true,
			Residence: hub.Residence{Kind: hub.KindSession, Offline: true, Seen: time.Now().Add(-ago)}}
	}
	for id, c := range map[string]struct {
		ago  time.Duration
		want swarm.Code
	}{"late": {5 * time.Minute, ""}, "gone": {time.Hour, swarm.CodeFailed}} {
		inBubble(t, nil, func(t *testing.T, h *hub.Hub, swarms *node.Swarms) {
			if err := h.Register(session(id, c.ago)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // until the node has looked at the hub's agents again, on the bubble's clock
			synctest.Wait()
			s, err := swarms.Create(t.Context(), swarm.Plan{TaskDescription: "x", Agents: []string{id}, Unattended: true, SubTasks: []swarm.SubTaskPlan{{ID: "a", Description: "it"}}})
			if err != nil {
				t.Fatal(err)
			}
			if s, err = swarms.Wait(t.Context(), s.ID); swarm.CodeOf(err) != c.want {
				t.Errorf("%s: %v, %+v", id, err, s)
			}
		})
	}
}

// The card of an agent that does not come back offers nothing soon after, though nothing happens then.
func TestAnAgentIsExpectedBackForAMinuteOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := hub.New(t.Context(), hub.Config{})
		if err != nil {
			t.Fatal(err)
		}
		n, err := node.Open(node.Options{Hub: h})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := errors.Join(h.Close(context.Background()), n.Close(context.Background())); err != nil {
				t.Error(err)
			}
		}()
		err = h.Register(hub.Agent{Definition: definition("ann", nil), Runner: away{newActor()}, Durable: true, Reported: true,
			Residence: hub.Residence{Kind: hub.KindSession, Offline: true, Seen: time.Now()}})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			after    time.Duration
			expected bool
		}{{time.Second, true}, {2 * time.Minute, false}} {
			time.Sleep(c.after) // of the bubble
			synctest.Wait()
			card, err := n.Registry().Get("ann")
			if err != nil || len(card.Capabilities) > 0 != c.expected {
				t.Errorf("after %s: %v, %+v", c.after, err, card)
			}
		}
	})
}

// A program that works on a part and goes away keeps it for a quarter of an hour.
func TestAProgramThatStaysAwayLosesItsPart(t *testing.T) {
	far := newActor()
	inBubble(t, []hub.Agent{{Definition: definition("far", nil), Runner: far, Durable: true, Residence: hub.Residence{Kind: hub.KindLibrary}}},
		func(t *testing.T, h *hub.Hub, swarms *node.Swarms) {
			time.Sleep(time.Second) // of the bubble
			s, err := swarms.Create(t.Context(), swarm.Plan{TaskDescription: "x", Agents: []string{"far"}, MaxAttempts: 1, Unattended: true,
				SubTasks: []swarm.SubTaskPlan{{ID: "a", Description: "hang: it"}}})
			if err != nil {
				t.Fatal(err)
			}
			<-far.started
			gone := time.Now()
			if err := h.Move("far", hub.Residence{Kind: hub.KindLibrary, Offline: true, Seen: gone}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(15*time.Minute - time.Second)
			if s, err = swarms.Session(t.Context(), s.ID); err != nil || s.SubTasks[0].Status != swarm.TaskRunning {
				t.Fatalf("before the time is over: %v, %+v", err, s)
			}
			if s, err = swarms.Wait(t.Context(), s.ID); swarm.CodeOf(err) != swarm.CodeFailed || !strings.Contains(s.Error, "far has been away for 15m0s") {
				t.Errorf("%v: %+v", err, s)
			}
			if late := time.Since(gone); late > 17*time.Minute {
				t.Errorf("after %s", late)
			}
			if page, err := h.Tasks(t.Context(), hub.TaskQuery{AgentID: "far"}); err != nil || len(page.Tasks) != 1 || page.Tasks[0].Status.State != a2a.TaskStateCanceled {
				t.Errorf("its task is %+v, %v", page.Tasks, err)
			}
		})
}

func TestNegotiatorsUnderstandTheHubsAgents(t *testing.T) {
	r := newRig(t, node.Options{}, hub.Config{Agents: []hub.Agent{{Definition: definition("worker", nil), Runner: newActor()}}})
	p := r.peer(t, remoteProgram(agent.L3, ""))
	n, err := negotiation.New(p.node.Router(), "visitor", negotiation.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	terms := negotiation.Terms{TaskDescription: "dig", EstimatedComplexity: negotiation.Simple, Deadline: time.Minute}
	for capability, want := range map[string]negotiation.Status{"work.worker": negotiation.Accepted, "fly": negotiation.Rejected} {
		terms.RequiredCapabilities = []string{capability}
		asked, err := n.Propose(t.Context(), "worker", terms)
		if err != nil {
			t.Fatal(err)
		}
		got, err := n.Wait(t.Context(), asked.ID)
		if err != nil || got.Status != want {
			t.Errorf("%s: %v, %+v", capability, err, got)
		}
		if want == negotiation.Rejected && got.RejectionReason != negotiation.MissingCapability {
			t.Errorf("reason %q", got.RejectionReason)
		}
	}
}

// deaf is a journal that stores no result until its context has ended.
type deaf struct {
	swarm.Journal
	notified chan struct{} // receives a value for each result
}

func (j *deaf) Append(ctx context.Context, id string, after uint64, data []byte) (uint64, error) {
	if bytes.Contains(data, []byte(`"ended"`)) {
		j.notified <- struct{}{}
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return j.Journal.Append(ctx, id, after, data)
}

// If the hub is killed after an agent has done a part and before the coordinator has stored the result, the part is not
// done again.
func TestAPartThatWasDoneBeforeTheHubWasKilledIsNotDoneAgain(t *testing.T) {
	journal, mars := new(swarm.MemoryJournal), newActor()
	first := &deaf{Journal: journal, notified: make(chan struct{}, 8)}
	r := newRig(t, node.Options{Swarms: &node.SwarmOptions{Journal: first, Hub: "test"}}, hub.Config{Agents: []hub.Agent{{Definition: definition("mars", nil), Runner: mars}}})
	s, err := r.node.Swarms().Create(t.Context(), swarm.Plan{TaskDescription: "x", SubTasks: []swarm.SubTaskPlan{{ID: "a", Description: "dig"}}})
	if err != nil {
		t.Fatal(err)
	}
	<-first.notified
	r.node.CloseSwarms()
	if err := r.node.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := node.Open(node.Options{Hub: r.hub, Version: "9.9", Swarms: &node.SwarmOptions{Journal: journal, Hub: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		again.CloseSwarms()
		if err := again.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if s, err = again.Swarms().Wait(t.Context(), s.ID); err != nil || s.SubTasks[0].Attempt != 2 || !strings.Contains(string(s.Outcome), "did dig") {
		t.Fatalf("%v, %+v", err, s)
	}
	if n := len(mars.turns); n != 1 {
		t.Errorf("the part was done %d times", n)
	}
}

// Only plans that were made on the hub determine where its agents work, and no directory leaves it.
func TestASwarmsDirectoryIsThatOfThisHubsPlan(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	files := func(d *runner.Definition) { d.Driver, d.Command = runner.DriverExec, "true" }
	hubWith := func(journal swarm.Journal, name string) *rig {
		return newRig(t, node.Options{Swarms: &node.SwarmOptions{Journal: journal, Hub: name, Host: "host-" + name}}, hub.Config{
			Name: name, DataDir: t.TempDir(), Trusted: func() ([]string, error) { return []string{dir}, nil },
			Agents: []hub.Agent{{Definition: definition("mars", files), Runner: newActor()}},
		})
	}
	journal := new(swarm.MemoryJournal)
	here, there := hubWith(journal, "here"), hubWith(journal, "there")
	run := func(t *testing.T, c *swarm.Coordinator, create func(context.Context, swarm.Plan) (swarm.Session, error), host string) (swarm.Session, hub.WorkDir) {
		t.Helper()
		s, err := create(t.Context(), swarm.Plan{TaskDescription: "dig", Directory: &swarm.Directory{Host: host, Path: dir}, SubTasks: []swarm.SubTaskPlan{{ID: "a", Description: "dig"}}})
		if err != nil {
			t.Fatal(err)
		}
		if s, err = c.Wait(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		page, err := here.hub.Tasks(t.Context(), hub.TaskQuery{Limit: 1})
		if err != nil || len(page.Tasks) != 1 {
			t.Fatalf("%v: %+v", err, page.Tasks)
		}
		return s, hub.WorkDirIn(page.Tasks[0].Metadata)
	}
	own := here.node.Swarms()
	for _, host := range []string{"", "host-here", "host-there"} { // what a plan claims does not count
		s, got := run(t, own.Coordinator, own.Create, host)
		if got.Path != dir || s.Directory == nil || s.Directory.Host != "host-here" {
			t.Errorf("the plan of host %q: works in %+v, %+v", host, got, s.Directory)
		}
		shown, err := own.Session(t.Context(), s.ID)
		if err != nil || shown.Directory == nil || *shown.Directory != (swarm.Directory{Path: dir}) {
			t.Errorf("shown as %+v, %v", shown.Directory, err)
		}
		foreign := there.node.Swarms()
		if elsewhere, err := foreign.Session(t.Context(), s.ID); err != nil || elsewhere.Directory != nil {
			t.Errorf("at another hub: %+v, %v", elsewhere.Directory, err)
		}
		all, err := foreign.Sessions(t.Context())
		if err != nil || slices.ContainsFunc(all, func(s swarm.Session) bool { return s.Directory != nil }) {
			t.Errorf("listed at another hub: %v", err)
		}
	}
	if _, got := run(t, own.Coordinator, own.Coordinator.Create, "host-there"); got.Policy != runner.WorkDirContext {
		t.Errorf("another hub's directory was used: %+v", got)
	}
}

// A program that leads swarms of its own gets the work, and not in a directory of its choice.
func TestAProgramsSwarmHasNoDirectoryOfThisComputer(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	files := func(d *runner.Definition) { d.Driver, d.Command = runner.DriverExec, "true" }
	r := newRig(t, node.Options{Swarms: &node.SwarmOptions{Journal: new(swarm.MemoryJournal), Hub: "test", Host: "host"}}, hub.Config{
		DataDir: t.TempDir(), Trusted: func() ([]string, error) { return []string{dir}, nil },
		Agents: []hub.Agent{{Definition: definition("mars", files), Runner: newActor()}},
	})
	p := r.peer(t, remoteProgram(agent.L2, ""))
	n, err := negotiation.New(p.node.Router(), "visitor", negotiation.Options{Only: swarm.Concerns})
	if err != nil {
		t.Fatal(err)
	}
	c := swarm.NewCoordinator(p.node.Router(), n, swarm.CoordinatorOptions{Journal: new(swarm.MemoryJournal), Answer: time.Minute})
	defer func() {
		if err := errors.Join(c.Close(), n.Close()); err != nil {
			t.Error(err)
		}
	}()
	wait.Eventually(t, "the agent is known", func() bool { _, err := p.node.Registry().Get("mars"); return err == nil })
	s, err := c.Create(t.Context(), swarm.Plan{
		TaskDescription: "dig", Agents: []string{"mars"}, EscalationJustification: "it is the only one", RequiredCapabilities: []string{},
		Directory: &swarm.Directory{Host: "host", Path: dir}, SubTasks: []swarm.SubTaskPlan{{ID: "a", Description: "dig"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = c.Wait(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	page, err := r.hub.Tasks(t.Context(), hub.TaskQuery{Limit: 1})
	if err != nil || len(page.Tasks) != 1 || hub.WorkDirIn(page.Tasks[0].Metadata).Policy != runner.WorkDirContext {
		t.Errorf("%v: %+v", err, page.Tasks)
	}
}
