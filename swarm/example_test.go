package swarm_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/swarm"
)

// The sun coordinates a swarm of two agents, which share the sub-tasks.
func Example() {
	ctx := context.Background()
	reg := registry.New(registry.Options{})
	defer reg.Close()
	r, err := router.New(reg, router.Options{})
	if err != nil {
		panic(err)
	}
	defer r.Close(ctx)

	negotiator := func(id string, tier agent.Tier) *negotiation.Negotiator {
		card := agent.Card{ID: id, Name: id, Version: "1.0.0", Tier: tier, Capabilities: []agent.Capability{{ID: "write"}}}
		if _, err := reg.Register(card); err != nil {
			panic(err)
		}
		n, err := negotiation.New(r, id, negotiation.Options{})
		if err != nil {
			panic(err)
		}
		return n
	}
	for _, id := range []string{"venus", "mars"} {
		n := negotiator(id, agent.L2)
		defer n.Close()
		p := swarm.NewParticipant(r, n, func(_ context.Context, j swarm.Job) (json.RawMessage, error) {
			return json.Marshal(j.Description + ": done")
		}, swarm.ParticipantOptions{})
		defer p.Close()
	}
	sun := negotiator("sun", agent.L0)
	defer sun.Close()
	coordinator := swarm.NewCoordinator(r, sun, swarm.CoordinatorOptions{})
	defer coordinator.Close()

	s, err := coordinator.Create(ctx, swarm.Plan{
		TaskDescription:      "write the handbook",
		RequiredCapabilities: []string{"write"},
		SubTasks: []swarm.SubTaskPlan{
			{ID: "1", Description: "introduction"},
			{ID: "2", Description: "index", DependsOn: []string{"1"}},
		},
	})
	if err != nil {
		panic(err)
	}
	s, err = coordinator.Wait(ctx, s.ID)
	fmt.Println(s.Status, string(s.Outcome), err)
	// Output: completed {"1":"introduction: done","2":"index: done"} <nil>
}
