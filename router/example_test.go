package router_test

import (
	"context"
	"fmt"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
)

// A router delivers to registered agents. The tiers of sender and recipient decide
// whether it may.
func Example() {
	ctx := context.Background()
	reg := registry.New(registry.Options{})
	defer reg.Close()
	r, err := router.New(reg, router.Options{})
	if err != nil {
		panic(err)
	}
	defer r.Close(ctx)
	for _, id := range []string{"mercury", "earth", "mars"} {
		if _, err := reg.Register(agent.Card{ID: id, Name: id, Version: "1.0.0", Tier: agent.PlanetaryTier(id), Capabilities: []agent.Capability{}}); err != nil {
			panic(err)
		}
	}
	received := make(chan string)
	r.OnReceive("earth", func(_ context.Context, e *envelope.Envelope) { received <- e.Sender + " says " + string(e.Payload) })
	mercury, err := r.Attach("mercury", func(context.Context, *envelope.Envelope) {})
	if err != nil {
		panic(err)
	}
	if _, err := mercury.Send(ctx, "earth", envelope.Notification, "hello"); err != nil {
		panic(err)
	}
	fmt.Println(<-received)
	_, err = mercury.Send(ctx, "mars", envelope.Notification, "hello")
	fmt.Println(router.CodeOf(err), err)
	// Output:
	// mercury says "hello"
	// TIER_VIOLATION "mercury" (L1) may not address "mars" (L2)
}

// A broadcast reaches every other agent, and reports the agents that it skipped.
func ExampleRouter_Send_broadcast() {
	ctx := context.Background()
	reg := registry.New(registry.Options{})
	defer reg.Close()
	r, err := router.New(reg, router.Options{})
	if err != nil {
		panic(err)
	}
	defer r.Close(ctx)
	for _, id := range []string{"sun", "earth", "mars"} {
		if _, err := reg.Register(agent.Card{ID: id, Name: id, Version: "1.0.0", Tier: agent.PlanetaryTier(id), Capabilities: []agent.Capability{}}); err != nil {
			panic(err)
		}
	}
	r.OnReceive("earth", func(context.Context, *envelope.Envelope) {})

	e, err := envelope.New("sun", envelope.Broadcast, envelope.Notification, "good morning")
	if err != nil {
		panic(err)
	}
	result, err := r.Send(ctx, e)
	fmt.Println(result.Recipients, err)
	for _, s := range result.Skipped {
		fmt.Println(s.Code, s.AgentID)
	}
	// Output:
	// 1 <nil>
	// NO_RECEIVER mars
}
