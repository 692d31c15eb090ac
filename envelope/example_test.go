package envelope_test

import (
	"fmt"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
)

func Example() {
	mars := envelope.NewFactory(agent.Identity{ID: "mars", Tier: agent.L2})
	request, err := mars.New("venus", envelope.Request, map[string]string{"text": "draw a button"})
	if err != nil {
		fmt.Println(err)
		return
	}
	data, err := envelope.Encode(request)
	if err != nil {
		fmt.Println(err)
		return
	}
	received, err := envelope.Decode(data)
	if err != nil {
		fmt.Println(err)
		return
	}
	answer, err := received.Reply("venus", envelope.Response, "done")
	fmt.Println(answer.Recipient, answer.CorrelationID == request.ID, string(answer.Payload), err)
	// Output: mars true "done" <nil>
}

func ExampleThreads() {
	var threads envelope.Threads
	f := envelope.NewFactory(agent.Identity{ID: "mars", Tier: agent.L2})
	for _, text := range []string{"first", "second"} {
		e, err := f.NewInThread("talk-1", "venus", envelope.Notification, text)
		if err != nil {
			fmt.Println(err)
			return
		}
		threads.Add(e)
	}
	for _, e := range threads.Thread("talk-1") {
		fmt.Println(string(e.Payload))
	}
	// Output:
	// "first"
	// "second"
}
