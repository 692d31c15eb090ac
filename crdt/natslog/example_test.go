package natslog_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/natslog"
)

// Two programs share a plan through a NATS server; mars exits before venus starts.
func Example() {
	s, stop, err := startServer()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	nc, err := nats.Connect(s.ClientURL(), nats.MaxReconnects(-1)) // edits are possible while the server is unreachable
	if err != nil {
		fmt.Println(err)
		return
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	mars, err := natslog.Open(ctx, js, natslog.Options{Agent: "mars", Document: "plan"})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = mars.Edit(ctx, func(d *crdt.Doc) error { return d.Map("status").Set("tests", "green") })
	if err == nil {
		err = mars.Flush(ctx) // wait until the edits are stored in the log
	}
	if err != nil {
		fmt.Println(err)
	}
	mars.Close()

	venus, err := natslog.Open(ctx, js, natslog.Options{Agent: "venus", Document: "plan"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer venus.Close()
	err = venus.View(ctx, func(d *crdt.Doc) {
		v, _ := d.Map("status").Get("tests")
		fmt.Println("venus sees that the tests are", v)
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: venus sees that the tests are green
}

// startServer starts a NATS server with JetStream, which normally runs elsewhere.
func startServer() (s *server.Server, stop func(), err error) {
	dir, err := os.MkdirTemp("", "natslog")
	if err != nil {
		return nil, nil, err
	}
	s, err = server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		return nil, nil, err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return nil, nil, fmt.Errorf("the server does not start")
	}
	return s, func() {
		s.Shutdown()
		s.WaitForShutdown()
		os.RemoveAll(dir)
	}, nil
}
