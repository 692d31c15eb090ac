package dialect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/swarm"
)

// coordinator returns a coordinator with an agent "worker" that completes its jobs at once.
func coordinator(t *testing.T, journal swarm.Journal, id string) *swarm.Coordinator {
	t.Helper()
	reg := registry.New(registry.Options{})
	r, err := router.New(reg, router.Options{})
	if err != nil {
		t.Fatal(err)
	}
	join := func(id string) *negotiation.Negotiator {
		card := agent.Card{ID: id, Name: id, Version: "1.0.0", Tier: agent.L0, Capabilities: []agent.Capability{}}
		if _, err := reg.Register(card); err != nil {
			t.Fatal(err)
		}
		n, err := negotiation.New(r, id, negotiation.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	lead, work := join(id), join("worker")
	p := swarm.NewParticipant(r, work, func(_ context.Context, j swarm.Job) (json.RawMessage, error) {
		if j.SubTaskID == "hard" {
			return nil, errors.New("it is hard")
		}
		return json.Marshal(j.SubTaskID + " is done")
	}, swarm.ParticipantOptions{})
	c := swarm.NewCoordinator(r, lead, swarm.CoordinatorOptions{Journal: journal})
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), p.Close(), lead.Close(), work.Close(), r.Close(context.Background()), reg.Close()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func read[T any](t *testing.T, answer string) T {
	t.Helper()
	var got struct {
		Result T `json:"result"`
	}
	if err := json.Unmarshal([]byte(answer), &got); err != nil || strings.Contains(answer, `"error":{`) {
		t.Fatalf("%v in %s", err, answer)
	}
	return got.Result
}

func TestSwarmMethods(t *testing.T) {
	journal := new(swarm.MemoryJournal)
	s := dialect.New(dialect.Config{Hub: &fakeHub{}, Swarms: coordinator(t, journal, "sun")})
	run := func(name, params string) string {
		answer, _ := call(t, s, method(name, params))
		return answer
	}
	made := read[swarm.Session](t, run(dialect.MethodSwarmCreate,
		`{"plan":{"taskDescription":"`+strings.Repeat("é", 150)+`","requiredCapabilities":[],"subTasks":[{"id":"a","description":"x"},{"id":"b","description":"y","dependsOn":["a"]}]}}`))
	for !made.Status.Ended() {
		made = read[swarm.Session](t, run(dialect.MethodSwarmGet, fmt.Sprintf(`{"id":%q,"after":%d}`, made.ID, made.Sequence)))
	}
	if made.Status != swarm.Completed || string(made.Outcome) != `{"a":"a is done","b":"b is done"}` {
		t.Fatalf("the swarm ended as %s with %s", made.Status, made.Outcome)
	}
	list := read[[]dialect.SwarmSummary](t, run(dialect.MethodSwarmList, `{}`))
	if len(list) != 1 || list[0].Completed != 2 || list[0].SubTasks != 2 || len(list[0].TaskDescription) != 203 {
		t.Fatalf("the list is %+v", list)
	}
	if again := read[swarm.Session](t, run(dialect.MethodSwarmStop, `{"id":"`+made.ID+`"}`)); again.Status != swarm.Completed {
		t.Fatalf("stopping a completed swarm made it %s", again.Status)
	}

	stuck := read[swarm.Session](t, run(dialect.MethodSwarmCreate,
		`{"plan":{"taskDescription":"x","requiredCapabilities":["nobody.has.it"],"subTasks":[{"id":"a","description":"x"}]}}`))
	stopped := read[swarm.Session](t, run(dialect.MethodSwarmStop, `{"id":"`+stuck.ID+`","reason":"enough"}`))
	if stopped.Status != swarm.Failed {
		t.Fatalf("the stopped swarm is %s", stopped.Status)
	}

	wantError(t, run(dialect.MethodSwarmCreate, `{"plan":{"taskDescription":"","requiredCapabilities":[]}}`), jsonrpc.CodeInvalidParams, "INVALID_PARAMS", "plan")
	wantError(t, run(dialect.MethodSwarmCreate, `{"plan":{"task":"x"}}`), jsonrpc.CodeInvalidParams, "INVALID_PARAMS", "plan")
	wantError(t, run(dialect.MethodSwarmCreate, `{"plan":{"taskDescription":"`+strings.Repeat("x", 5<<20)+`"}}`), jsonrpc.CodeInvalidParams, "INVALID_PARAMS", "plan")
	wantError(t, run(dialect.MethodSwarmGet, `{}`), jsonrpc.CodeInvalidParams, "INVALID_PARAMS", "id")
	wantError(t, run(dialect.MethodSwarmGet, `{"id":"none"}`), dialect.CodeSwarmNotFound, "SWARM_NOT_FOUND", "")
	wantError(t, run(dialect.MethodSwarmStop, `{"id":"none"}`), dialect.CodeSwarmNotFound, "SWARM_NOT_FOUND", "")
	wantError(t, run(dialect.MethodSwarmStop, `{"id":1}`), jsonrpc.CodeInvalidParams, "INVALID_PARAMS", "id")
}
