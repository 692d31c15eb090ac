package registry_test

import (
	"context"
	"fmt"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/registry"
)

func ExampleRegistry() {
	r := registry.New(registry.Options{})
	defer r.Close()
	venus := agent.Card{ID: "venus", Name: "VENUS", Version: "1.0.0", Tier: agent.L2,
		Capabilities: []agent.Capability{{ID: "codegen.react"}}}
	if _, err := r.Register(venus); err != nil {
		panic(err)
	}
	for _, c := range r.FindByCapability("codegen.react") {
		fmt.Println(c.Name, c.Tier, c.Origin)
	}
	_, err := r.Get("nibiru")
	fmt.Println(err)
	// Output:
	// VENUS L2 local
	// no agent "nibiru" is known
}

func ExampleRegistry_EnableDiscovery() {
	var network registry.MemoryNetwork
	here, there := registry.New(registry.Options{}), registry.New(registry.Options{})
	defer here.Close()
	defer there.Close()
	changes := here.Watch()
	for _, r := range []*registry.Registry{here, there} {
		if err := r.EnableDiscovery("memory", network.Join()); err != nil {
			panic(err)
		}
	}
	if _, err := there.Register(agent.Card{ID: "mars", Name: "MARS", Version: "1", Tier: agent.L2, Capabilities: []agent.Capability{}}); err != nil {
		panic(err)
	}
	c, err := changes.Next(context.Background())
	fmt.Println(c.Kind, c.Card.ID, c.Card.Origin, err)
	// Output: added mars remote <nil>
}

// A watcher sees every change, in order.
func ExampleRegistry_Watch() {
	r := registry.New(registry.Options{})
	defer r.Close()
	w := r.Watch()
	defer w.Close()
	if _, err := r.Register(agent.Card{ID: "mars", Name: "MARS", Version: "1", Tier: agent.L2, Capabilities: []agent.Capability{}}); err != nil {
		panic(err)
	}
	r.Unregister("mars")
	for range 2 {
		change, err := w.Next(context.Background())
		fmt.Println(change.Kind, change.Card.Name, err)
	}
	// Output:
	// added MARS <nil>
	// removed MARS <nil>
}
