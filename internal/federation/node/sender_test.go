package node_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/swarm"
)

// A swarm's tasks are those of the hub's user, who is not asked about a plan.
func TestASwarmFromOutsideHasNoSessions(t *testing.T) {
	r := swarmRig(t, map[string]*actor{"mars": newActor(), "venus": newActor()})
	if err := r.hub.Register(hub.Agent{Definition: definition("ann", nil), Runner: newActor(), Durable: true, Residence: hub.Residence{Kind: hub.KindSession}}); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "ann has a card with capabilities", func() bool {
		card, err := r.node.Registry().Get("ann")
		return err == nil && len(card.Capabilities) > 0
	})
	c := r.node.Swarms()
	outside := hub.WithSender(t.Context(), hub.Sender{Kind: hub.SenderA2A, ID: "192.0.2.7"})
	plan := swarm.Plan{TaskDescription: "x"}
	if _, err := c.Create(outside, swarm.Plan{TaskDescription: "x", Agents: []string{"mars", "ann"}}); swarm.CodeOf(err) != swarm.CodeInvalid || !strings.Contains(err.Error(), "ann is an open session") {
		t.Errorf("a plan with a session: %v", err)
	}
	for with, ctx := range map[bool]context.Context{false: outside, true: t.Context()} {
		s, err := c.Create(ctx, plan)
		if err != nil {
			t.Fatal(err)
		}
		if s, err = c.Wait(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(s.Participants, "ann") != with || !slices.Contains(s.Participants, "mars") {
			t.Errorf("participants are %q", s.Participants)
		}
	}
}
