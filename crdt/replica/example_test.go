package replica_test

import (
	"context"
	"fmt"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/memory"
)

// Two agents share a plan over a channel.
func Example() {
	ctx := context.Background()
	mars, err := replica.New(replica.Options{Agent: "mars", State: "plan"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer mars.Close()
	venus, err := replica.New(replica.Options{Agent: "venus", State: "plan"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer venus.Close()

	var network memory.Network
	listener, err := network.Listen("venus's place")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer listener.Close()
	there := channel.NewManager(channel.Options{}, func(c *channel.Channel) {
		go venus.Attach(c)
	})
	defer there.Close()
	go there.Serve(ctx, listener)
	here := channel.NewManager(channel.Options{Dialers: map[agent.Transport]transport.Dialer{agent.TransportLocal: &network}}, nil)
	defer here.Close()
	c, err := here.OpenAt(ctx, "mars", "venus", listener.Endpoint())
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := mars.Attach(c); err != nil {
		fmt.Println(err)
		return
	}

	received := make(chan struct{})
	venus.OnUpdate(func(u replica.Update) { close(received) })
	if err := mars.Edit(ctx, func(d *crdt.Doc) error { return d.Map("status").Set("tests", "green") }); err != nil {
		fmt.Println(err)
		return
	}
	<-received
	err = venus.View(ctx, func(d *crdt.Doc) {
		v, _ := d.Map("status").Get("tests")
		fmt.Println("venus sees that the tests are", v)
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: venus sees that the tests are green
}
