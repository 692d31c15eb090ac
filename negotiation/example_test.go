package negotiation_test

import (
	"context"
	"fmt"
	"time"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/negotiation"
)

func Example() {
	ctx := context.Background()
	node, err := parley.New(parley.Options{})
	if err != nil {
		panic(err)
	}
	defer node.Close(ctx)

	join := func(id string, tier agent.Tier) *negotiation.Negotiator {
		card := agent.Card{ID: id, Name: id, Version: "1.0.0", Tier: tier, Capabilities: []agent.Capability{{ID: "codegen.react"}}}
		if _, err := node.Join(card, func(context.Context, *envelope.Envelope) {}); err != nil {
			panic(err)
		}
		n, err := negotiation.New(node.Router(), id, negotiation.Options{})
		if err != nil {
			panic(err)
		}
		return n
	}
	sun, venus := join("sun", agent.L0), join("venus", agent.L2)
	defer sun.Close()
	defer venus.Close()

	venus.OnProposal(func(ctx context.Context, p negotiation.Proposal) {
		if err := venus.Accept(ctx, p.ID, 10*time.Minute); err != nil {
			fmt.Println(err)
		}
	})
	p, err := sun.Propose(ctx, "venus", negotiation.Terms{
		TaskDescription:      "build the login page",
		RequiredCapabilities: []string{"codegen.react"},
		EstimatedComplexity:  negotiation.Medium,
		Deadline:             time.Minute,
	})
	if err != nil {
		panic(err)
	}
	p, err = sun.Wait(ctx, p.ID)
	fmt.Println(p.Status, "by", p.AcceptedBy, err)
	// Output: accepted by venus <nil>
}
