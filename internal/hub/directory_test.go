package hub_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

func sessionIn(id, handle, project, folder, computer string) hub.Agent {
	return hub.Agent{
		Definition: runner.Definition{ID: id, Driver: runner.DriverSession, Limits: runner.Limits{}.WithDefaults()}, Runner: &fakeAgent{}, Durable: true,
		Residence: hub.Residence{Kind: hub.KindSession, Handle: handle, Project: project, Folder: folder, Computer: computer},
	}
}

func TestANameMeansOneAgent(t *testing.T) {
	const guid = "5b1c3a52-7a0e-4c5e-9d1a-0a4a35b0e001"
	registered := sessionIn("registered", "registered", "p3", "wiki", "office1")
	registered.Residence.GUID = guid
	h := newHub(t, hub.Config{Agents: []hub.Agent{
		sessionIn("thief", guid, "p3", "wiki", "office1"), // it cannot take another's mail by its name
		registered,
		{Definition: definition("codex"), Runner: &fakeAgent{}},
		sessionIn("codex-2", "codex", "p1", "shop", "office1"),
		sessionIn("reviewer", "reviewer", "p1", "shop", "office1"),
		sessionIn("reviewer-2", "reviewer", "p2", "blog", "office1"),
		sessionIn("tester", "tester", "p2", "blog", "office1"),
		sessionIn("writer", "writer", "p1", "shop", "office1"),
		sessionIn("writer-2", "writer", "p1", "shop", "office2"),
		sessionIn("max", "max", "p1", "shop", "office1"),
		sessionIn("max-2", "max", "p1", "shop", "office1"),
	}}, nil)
	for _, c := range []struct{ name, project, want string }{
		{guid, "p3", "registered"},
		{"codex", "p1", "codex"},
		{"codex.shop", "", "codex-2"},
		{"tester", "", "tester"},
		{"TESTER", "p1", "tester"},
		{"reviewer", "p1", "reviewer"},
		{"reviewer", "p2", "reviewer-2"},
		{"reviewer.blog", "p1", "reviewer-2"},
		{"reviewer.p1", "p2", "reviewer"},
		{"reviewer-2", "p1", "reviewer-2"},
		{"writer@office2", "", "writer-2"},
		{"writer.shop@office1", "", "writer"},
		{"max", "", "max"}, // only their ids tell them apart
		{"max", "p1", "max"},
		{"max-2", "p1", "max-2"},
	} {
		t.Run(c.name+" in "+c.project, func(t *testing.T) {
			a, err := h.FindAgent(t.Context(), c.name, c.project)
			if err != nil || a.Definition.ID != c.want {
				t.Errorf("found %q, %v; want %s", a.Definition.ID, err, c.want)
			}
		})
	}
	_, err := h.FindAgent(t.Context(), "reviewer", "p3")
	if hub.CodeOf(err) != hub.CodeInvalid || !strings.Contains(err.Error(), "reviewer.shop, reviewer.blog") {
		t.Errorf("an ambiguous name: %v", err)
	}
	_, err = h.FindAgent(t.Context(), "writer", "p1")
	if hub.CodeOf(err) != hub.CodeInvalid || !strings.Contains(err.Error(), "writer@office1, writer@office2") {
		t.Errorf("two of a project: %v", err)
	}
	if _, err := h.FindAgent(t.Context(), "reviwer", ""); hub.CodeOf(err) != hub.CodeAgentNotFound || !strings.Contains(err.Error(), `"reviewer"`) {
		t.Errorf("an unknown name: %v", err)
	}
	if _, err := h.FindAgent(t.Context(), "max.shop", ""); hub.CodeOf(err) != hub.CodeInvalid || !strings.Contains(err.Error(), ": max, max-2") {
		t.Errorf("two that only ids tell apart: %v", err)
	}
	for id, address := range hub.Addresses(h.Agents()) {
		if a, err := h.FindAgent(t.Context(), address, ""); err != nil || a.Definition.ID != id {
			t.Errorf("%s is said to mean %s, and means %q, %v", address, id, a.Definition.ID, err)
		}
	}
	if got := hub.Addresses(h.Agents()); got["codex"] != "codex" || got["codex-2"] != "codex.shop" || got["tester"] != "tester" || got["writer-2"] != "writer@office2" {
		t.Errorf("addresses: %v", got)
	}
}

// Another hub cannot take over a name by giving it to one of its agents.
func TestNamesMeanAgentsOfThisHubFirst(t *testing.T) {
	far := sessionIn("office.reviewer", "reviewer", "p1", "shop", "office")
	far.Residence.Kind = hub.KindPeer
	h := newHub(t, hub.Config{Agents: []hub.Agent{far}}, nil)
	find := func(name, project, want string) {
		t.Helper()
		if a, err := h.FindAgent(t.Context(), name, project); err != nil || a.Definition.ID != want {
			t.Errorf("%s in %s is %q, %v; want %s", name, project, a.Definition.ID, err, want)
		}
	}
	find("reviewer", "p1", "office.reviewer")
	if err := h.Register(sessionIn("reviewer", "reviewer", "p2", "blog", "office")); err != nil {
		t.Fatal(err)
	}
	find("reviewer", "p1", "reviewer")
	find("reviewer@office", "p1", "reviewer")
	find("reviewer.shop", "p2", "office.reviewer")
	find("office.reviewer", "p2", "office.reviewer")
	if got := hub.Addresses(h.Agents()); got["reviewer"] != "reviewer" || got["office.reviewer"] != "reviewer.shop" {
		t.Errorf("addresses: %v", got)
	}
}

// The error for an ambiguous name has all that it may mean, each by a name that means only it.
func TestAnAmbiguousNameListsPeersToo(t *testing.T) {
	far := sessionIn("office.reviewer", "reviewer", "p1", "shop", "vm2")
	far.Residence.Kind, far.Residence.Hub = hub.KindPeer, "office"
	h := newHub(t, hub.Config{Agents: []hub.Agent{far,
		sessionIn("reviewer", "reviewer", "p1", "shop", "vm"), sessionIn("reviewer-2", "reviewer", "p2", "blog", "vm"), sessionIn("tester", "tester", "p1", "shop", "vm"),
	}}, nil)
	says := func(want ...string) {
		t.Helper()
		_, err := h.FindAgent(t.Context(), "reviewer", "p3")
		if hub.CodeOf(err) != hub.CodeInvalid {
			t.Fatal(err)
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q lacks %q", err, part)
			}
		}
	}
	says("3 agents are called", "reviewer.shop, reviewer.blog, reviewer@vm2")
	for i := range 20 {
		if err := h.Register(sessionIn(fmt.Sprint("r", i), "reviewer", fmt.Sprint("q", i), fmt.Sprint("dir", i), "vm")); err != nil {
			t.Fatal(err)
		}
	}
	says("23 agents are called", "and 11 more", "the list of agents")
}

// The name that the user gave a hub comes before the names that hubs give their computers.
func TestAHubsNameMeansItsAgents(t *testing.T) {
	at := func(peer, id, handle, computer string) hub.Agent {
		a := sessionIn(peer+"."+id, handle, "p1", "shop", computer)
		a.Residence.Kind, a.Residence.Hub = hub.KindPeer, peer
		return a
	}
	program := hub.Agent{Definition: definition("office.codex"), Runner: &fakeAgent{}, Residence: hub.Residence{Kind: hub.KindPeer, Hub: "office"}}
	h := newHub(t, hub.Config{Agents: []hub.Agent{
		sessionIn("reviewer", "reviewer", "p2", "blog", "vm"),
		at("office", "reviewer", "reviewer", "vm"),
		at("evil", "reviewer", "reviewer", "office"),
		program,
		at("evil", "codex", "codex", "office"),
		at("laptop", "tester", "writer", "desk"),
		at("laptop", "writer", "tester", "laptop"),
		at("laptop", "third", "tester", "desk"),
	}}, nil)
	for name, want := range map[string]string{
		"reviewer@vm":          "reviewer", // of this hub
		"reviewer@office":      "office.reviewer",
		"Reviewer.shop@Office": "office.reviewer",
		"codex@office":         "office.codex",
		"reviewer@evil":        "evil.reviewer",
		"writer@laptop":        "laptop.tester",
		"tester@laptop":        "laptop.writer", // of two it is the one on the computer that is called like the hub
	} {
		if a, err := h.FindAgent(t.Context(), name, ""); err != nil || a.Definition.ID != want {
			t.Errorf("%s is %q, %v; want %s", name, a.Definition.ID, err, want)
		}
	}
	if _, err := h.FindAgent(t.Context(), "codex@offic", ""); hub.CodeOf(err) != hub.CodeAgentNotFound {
		t.Errorf("a hub that is not there: %v", err)
	}
	for id, address := range hub.Addresses(h.Agents()) {
		if a, err := h.FindAgent(t.Context(), address, ""); err != nil || a.Definition.ID != id {
			t.Errorf("%s is said to mean %s, and means %q, %v", address, id, a.Definition.ID, err)
		}
	}
}

func TestTheDirectorySaysWhatAnAgentDoes(t *testing.T) {
	working, finish := make(chan struct{}), make(chan struct{})
	outcome := runner.Outcome{Status: runner.OutcomeInputRequired, Text: "which one?", Model: "opus"}
	agent := &fakeAgent{turn: func(ctx context.Context, _ runner.Turn, _ runner.Handler) (runner.Outcome, error) {
		working <- struct{}{}
		<-finish
		return outcome, nil
	}}
	h := newHub(t, hub.Config{Agents: []hub.Agent{{Definition: definition("codex"), Runner: agent}}}, nil)
	state := func() hub.AgentInfo {
		t.Helper()
		a, err := h.Agent("codex")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := state(); a.State != hub.AgentIdle || a.Work != (hub.Work{}) || a.Since.IsZero() || a.Residence.Handle != "codex" {
		t.Errorf("before: %+v", a)
	}
	sub, err := h.SendAndStream(t.Context(), request("codex", "review the change\nin full"))
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	<-working
	await(t, h, sub.Task().ID, a2a.TaskStateWorking)
	if a := state(); a.State != hub.AgentWorking || a.Work.Title != "review the change" || a.Work.Task != sub.Task().ID {
		t.Errorf("in the turn: %s %+v", a.State, a.Work)
	}
	finish <- struct{}{}
	await(t, h, sub.Task().ID, a2a.TaskStateInputRequired)
	if a := state(); a.State != hub.AgentWaiting || a.Work.Task != sub.Task().ID || a.Model != "opus" {
		t.Errorf("after the question: %s %+v %s", a.State, a.Work, a.Model)
	}
	outcome.Status = runner.OutcomeCompleted
	answer := request("", "the first")
	answer.Message.TaskID = sub.Task().ID
	go func() { <-working; finish <- struct{}{} }()
	if task, err := h.SendAndWait(t.Context(), answer); err != nil || task.Status.State != a2a.TaskStateCompleted {
		t.Fatal(task, err)
	}
	if a := state(); a.State != hub.AgentIdle || a.Work != (hub.Work{}) || !a.Since.After(a.RegisteredAt) {
		t.Errorf("after the answer: %s %+v", a.State, a.Work)
	}
	gone := time.Now().Add(-time.Hour).UTC()
	if err := h.Move("codex", hub.Residence{Kind: hub.KindSession, Offline: true, Seen: gone}); err != nil {
		t.Fatal(err)
	}
	if a := state(); a.State != hub.AgentOffline || !a.Since.Equal(gone) || a.Residence.Handle != "codex" {
		t.Errorf("offline: %s since %v", a.State, a.Since)
	}
	for _, to := range []hub.Residence{{Kind: hub.KindSession}, {Kind: hub.KindSession, Busy: true}, {Kind: hub.KindSession}} {
		before := time.Now()
		if err := h.Move("codex", to); err != nil {
			t.Fatal(err)
		}
		if err := h.Move("codex", to); err != nil { // changes nothing
			t.Fatal(err)
		}
		if a := state(); a.Since.Before(before) {
			t.Errorf("it is %s since %v, before it was moved to %+v", a.State, a.Since, to)
		}
	}
	if err := h.Move("codex", hub.Residence{Kind: hub.KindSession, Busy: true}); err != nil {
		t.Fatal(err)
	}
	if a := state(); a.State != hub.AgentWorking || a.Work != (hub.Work{}) {
		t.Errorf("busy without a task: %s %+v", a.State, a.Work)
	}
}

func TestATaskOfADurableAgentIsNotWorkingBeforeTheAgentHasGotIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		get, finish := make(chan struct{}), make(chan struct{})
		agent := &fakeAgent{turn: func(_ context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
			<-get
			h.Event(runner.Shown{})
			<-finish
			return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done"}, nil
		}}
		h, err := hub.New(t.Context(), hub.Config{Agents: []hub.Agent{{Definition: definition("reviewer"), Runner: agent, Durable: true}}})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close(t.Context())
		task, err := h.Send(t.Context(), request("reviewer", "review it"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []a2a.TaskState{a2a.TaskStateSubmitted, a2a.TaskStateWorking, a2a.TaskStateCompleted} {
			time.Sleep(time.Minute) // of the bubble: every delay of the hub is over
			synctest.Wait()
			now, err := h.Task(t.Context(), task.ID, nil)
			if err != nil || now.Status.State != want {
				t.Errorf("the task is %v, %v; want %s", now.Status.State, err, want)
			}
			if info, _ := h.Agent("reviewer"); (info.State == hub.AgentWorking) != (want == a2a.TaskStateWorking) {
				t.Errorf("the agent of the %s task is %s", want, info.State)
			}
			switch want {
			case a2a.TaskStateSubmitted:
				close(get)
			case a2a.TaskStateWorking:
				close(finish)
			}
		}
	})
}
