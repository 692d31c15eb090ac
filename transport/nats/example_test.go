package nats_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/nats"
)

// Two agents with key pairs exchange messages over a NATS server, which cannot read them. The server runs in this
// process here; usually it is a separate one.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT})
	if err != nil {
		log.Fatal(err)
	}
	srv.Start()
	defer srv.WaitForShutdown()
	defer srv.Shutdown()
	if !srv.ReadyForConnections(10 * time.Second) {
		log.Fatal("the NATS server does not start")
	}
	nc, err := natsgo.Connect(srv.ClientURL())
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()

	marsKey, venusKey := identity.Generate(), identity.Generate()
	listener, err := nats.Listen(ctx, nats.ListenOptions{
		Options: nats.Options{Conn: nc, Pair: venusKey},
		Allow:   func(k identity.PublicKey) bool { return k == marsKey.Public() },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer listener.Close()

	handled := make(chan struct{})
	venus := channel.NewManager(channel.Options{}, func(c *channel.Channel) {
		c.OnMessage(func(_ context.Context, e *envelope.Envelope) {
			fmt.Println("venus got", string(e.Payload))
			close(handled)
		})
	})
	defer venus.Close()
	go venus.Serve(ctx, listener)

	mars := channel.NewManager(channel.Options{Dialers: map[agent.Transport]transport.Dialer{
		agent.TransportNATS: &nats.Dialer{Options: nats.Options{Conn: nc, Pair: marsKey}},
	}}, nil)
	defer mars.Close()
	c, err := mars.OpenAt(ctx, "mars", "venus", listener.Endpoint())
	if err != nil {
		log.Fatal(err)
	}
	e, err := envelope.New("mars", "venus", envelope.Notification, "hello")
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Send(ctx, e); err != nil {
		log.Fatal(err)
	}
	<-handled
	// Output: venus got "hello"
}
