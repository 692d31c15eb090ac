package agent_test

import (
	"fmt"

	"github.com/parleyhub/parley/agent"
)

func ExampleCard() {
	card := agent.Card{
		ID:           "venus",
		Name:         "VENUS",
		Version:      "1.2.0",
		Tier:         agent.PlanetaryTier("venus"),
		Capabilities: []agent.Capability{{ID: "codegen.react", Name: "React"}},
		Origin:       agent.Local,
	}
	data, err := agent.Encode(card)
	if err != nil {
		fmt.Println(err)
		return
	}
	back, err := agent.Decode(data)
	fmt.Println(back.ID, back.Tier, back.Has("codegen.react"), err)
	// Output: venus L2 true <nil>
}

func ExampleCard_Validate() {
	card := agent.Card{ID: "venus", Name: "VENUS"}
	fmt.Println(card.Validate())
	// Output: the agent card is not valid: version is missing; tier is missing; capabilities is missing
}
