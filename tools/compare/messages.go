package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

const (
	// settle is the time in which a waiting program begins to wait. It is not measured.
	settle = 3 * time.Millisecond
	// stored is how many messages the channel has that is read.
	stored = 10_000
	// manyChannels is how many channels the agents wait for in the row that says so.
	manyChannels = 500
	senders      = 16
	channel      = "c-0"
)

var text = strings.Repeat("0123456789", 20)

// messageRows are messages between agents, beside a raw JetStream server with the same durability: `commit` syncs each message.
func (r *rig) messageRows() []row {
	var rows []row
	for _, d := range []struct {
		name string
		hub  func() (*hub, error)
	}{{"commit", r.commit}, {"fast", r.fast}} {
		for _, q := range []int{50, 99} {
			raw := r.sampled("raw JetStream", q, func() (func(context.Context) (time.Duration, error), error) { return r.rawPair(d.name) })
			agents := func(name, project string, channels int) contender {
				return r.sampled(name, q, func() (func(context.Context) (time.Duration, error), error) {
					return r.agentPair(d.hub, project, channels)
				})
			}
			rows = append(rows, row{name: fmt.Sprintf("message to a waiting agent, %s, p%d", d.name, q), unit: "ms", less: true,
				ours: []contender{agents("parley", "wait", 3), agents("parley, 500 channels", "wait500", manyChannels)}, peers: []contender{raw}})
		}
		rows = append(rows,
			row{name: fmt.Sprintf("messages of 16 agents, %s", d.name), unit: "/s",
				ours:  []contender{r.together("parley", func() ([]func(context.Context) error, error) { return r.agentSenders(d.hub) })},
				peers: []contender{r.together("raw JetStream", func() ([]func(context.Context) error, error) { return r.rawSenders(d.name) })}},
			r.chatRow(d.name, d.hub))
	}
	rows = append(rows, r.chatRow("always", r.always))
	for _, limit := range []int{100, 1000} {
		rows = append(rows, row{name: fmt.Sprintf("read %d of 10,000 messages", limit), unit: "ms", less: true,
			ours:  []contender{r.sampled("parley", 50, func() (func(context.Context) (time.Duration, error), error) { return r.reader(limit) })},
			peers: []contender{r.sampled("direct batch get", 50, func() (func(context.Context) (time.Duration, error), error) { return r.rawReader(limit) })}})
	}
	return rows
}

// chatRow are sends to a channel from one process.
func (r *rig) chatRow(durability string, hub func() (*hub, error)) row {
	return row{name: "chat send, " + durability, unit: "/s",
		ours:  []contender{r.together("parley", func() ([]func(context.Context) error, error) { return r.spaceSender(hub) })},
		peers: []contender{r.together("raw publish", func() ([]func(context.Context) error, error) { return r.busSender(hub) })}}
}

// sampled is a contender whose figure is a percentile of what open's function takes, in ms.
func (r *rig) sampled(name string, percent int, open func() (func(context.Context) (time.Duration, error), error)) contender {
	opened := sync.OnceValues(open)
	return contender{name, func(ctx context.Context, slice time.Duration) (float64, error) {
		sample, err := opened()
		if err != nil {
			return 0, err
		}
		var took []float64
		for began := time.Now(); len(took) < 5 || time.Since(began) < slice; {
			d, err := sample(ctx)
			if err != nil {
				return 0, err
			}
			took = append(took, d.Seconds()*1e3)
		}
		slices.Sort(took)
		return took[(len(took)-1)*percent/100], nil
	}}
}

// together is a contender whose figure is how often a second open's functions can be called, each by a caller of its own.
func (r *rig) together(name string, open func() ([]func(context.Context) error, error)) contender {
	opened := sync.OnceValues(open)
	return contender{name, func(ctx context.Context, slice time.Duration) (float64, error) {
		calls, err := opened()
		if err != nil {
			return 0, err
		}
		free := make(chan func(context.Context) error, len(calls))
		for _, c := range calls {
			free <- c
		}
		return rate(ctx, slice, len(calls), func(ctx context.Context) error {
			c := <-free
			defer func() { free <- c }()
			return c(ctx)
		})
	}}
}

// enter connects an agent to the channels of a project.
func (r *rig) enter(h *hub, project string, channels int, handle string) (*mcp.ClientSession, error) {
	t, err := r.agent(h, project, channelConfig(channels))
	if err != nil {
		return nil, err
	}
	s, err := r.connect(t)
	if err != nil {
		return nil, err
	}
	return s, r.await(handle, func(ctx context.Context) error {
		_, err := callTool(ctx, s, "set_handle", map[string]any{"handle": handle}, handle)
		return err
	})
}

func channelConfig(n int) string {
	var channels []map[string]string
	for i := range n {
		channels = append(channels, map[string]string{"name": fmt.Sprint("c-", i), "description": "a channel"})
	}
	config, err := json.Marshal(map[string]any{"channels": channels})
	if err != nil {
		panic(err) // it is made of texts
	}
	return string(config)
}

// agentPair returns a message from one agent to another that waits, both with MCP processes: the time from the call to the end
// of the wait.
func (r *rig) agentPair(of func() (*hub, error), project string, channels int) (func(context.Context) (time.Duration, error), error) {
	h, err := of()
	if err != nil {
		return nil, err
	}
	sender, err := r.enter(h, project, channels, "sender")
	if err != nil {
		return nil, err
	}
	waiter, err := r.enter(h, project, channels, "waiter")
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (time.Duration, error) {
		ended := make(chan time.Time, 1)
		var waited error
		go func() {
			_, waited = callTool(ctx, waiter, "wait_for_messages", nil, text)
			ended <- time.Now()
		}()
		time.Sleep(settle)
		began := time.Now()
		_, err := callTool(ctx, sender, "send_message", map[string]any{"channel": channel, "message": text}, "")
		if err != nil {
			return 0, err
		}
		took := (<-ended).Sub(began)
		return took, waited
	}, nil
}

// agentSenders are the sends of agents with MCP processes of their own.
func (r *rig) agentSenders(of func() (*hub, error)) ([]func(context.Context) error, error) {
	h, err := of()
	if err != nil {
		return nil, err
	}
	var all []func(context.Context) error
	for i := range senders {
		s, err := r.enter(h, "senders", 3, fmt.Sprint("sender-", i))
		if err != nil {
			return nil, err
		}
		all = append(all, func(ctx context.Context) error {
			_, err := callTool(ctx, s, "send_message", map[string]any{"channel": channel, "message": text}, "")
			return err
		})
	}
	return all, nil
}

// startNATS starts a stock server until the end of the row. With commit it syncs each message.
func (r *rig) startNATS(durability string) (url string, err error) {
	program, err := r.nats()
	if err != nil {
		return "", err
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(r.dir, "nats")
	if err != nil {
		return "", err
	}
	interval := "2m"
	if durability == "commit" {
		interval = "always"
	}
	file := filepath.Join(dir, "server.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, "listen: 127.0.0.1:%d\njetstream {store_dir: %q, sync_interval: %s}\n", port, dir, interval), 0o600); err != nil {
		return "", err
	}
	cmd, err := r.run(nil, program, "-c", file)
	if err != nil {
		return "", err
	}
	r.afterRow(func() { _ = cmd.Process.Kill() }) // it may have ended
	return fmt.Sprintf("nats://127.0.0.1:%d", port), nil
}

// rawClient connects to a server until the end of the row, once it has a stream for rawSubject.
func (r *rig) rawClient(url string) (nc *nats.Conn, js jetstream.JetStream, err error) {
	err = r.await(url, func(ctx context.Context) error {
		if nc, err = nats.Connect(url); err != nil {
			return err
		}
		r.afterRow(nc.Close)
		if js, err = jetstream.New(nc); err != nil {
			return err
		}
		_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{rawSubject}})
		return err
	})
	return nc, js, err
}

const rawSubject = "s.1"

// rawPair returns a stored message from one connection to another: the time from the publish until the consumer has it.
func (r *rig) rawPair(durability string) (func(context.Context) (time.Duration, error), error) {
	url, err := r.startNATS(durability)
	if err != nil {
		return nil, err
	}
	_, publisher, err := r.rawClient(url)
	if err != nil {
		return nil, err
	}
	_, subscriber, err := r.rawClient(url)
	if err != nil {
		return nil, err
	}
	consumer, err := subscriber.OrderedConsumer(r.ctx, "S", jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	arrived := make(chan time.Time, 1)
	consuming, err := consumer.Consume(func(jetstream.Msg) { arrived <- time.Now() })
	if err != nil {
		return nil, err
	}
	r.afterRow(consuming.Stop)
	return func(ctx context.Context) (time.Duration, error) {
		time.Sleep(settle)
		began := time.Now()
		if _, err := publisher.Publish(ctx, rawSubject, []byte(text)); err != nil {
			return 0, err
		}
		return (<-arrived).Sub(began), nil
	}, nil
}

// rawSenders are publishes on connections of their own.
func (r *rig) rawSenders(durability string) ([]func(context.Context) error, error) {
	url, err := r.startNATS(durability)
	if err != nil {
		return nil, err
	}
	var all []func(context.Context) error
	for range senders {
		_, js, err := r.rawClient(url)
		if err != nil {
			return nil, err
		}
		all = append(all, func(ctx context.Context) error {
			_, err := js.Publish(ctx, rawSubject, []byte(text))
			return err
		})
	}
	return all, nil
}

// space joins the channels of a hub until the end of the row.
func (r *rig) space(h *hub) (*chat.Space, error) {
	s := chat.Open(chat.Config{
		Namespace: namespace, Dial: nettest.HubProcess{Dir: h.home}.Dial(bus.AccessProject, namespace), Logger: slog.New(slog.DiscardHandler),
		Channels: []chat.Channel{{Name: channel, MaxMessages: 1 << 20, MaxBytes: 256 << 20, MaxAge: 24 * time.Hour}},
	})
	r.afterRow(func() { _, _ = s.Close(context.Background()) }) // the hub may have ended
	if <-s.Tried(); !s.Status().Connected {
		return nil, fmt.Errorf("the hub's bus: %s", s.Status().Problem)
	}
	return s, nil
}

const namespace = "compare"

// joinBus joins the bus of a hub until the end of the row.
func (r *rig) joinBus(h *hub) (*bus.Bus, error) {
	b, err := nettest.HubProcess{Dir: h.home}.Dial(bus.AccessProject, namespace)(r.ctx)
	if err == nil {
		r.afterRow(func() { _ = b.Close(context.Background()) }) // the hub may have ended
	}
	return b, err
}

func (r *rig) spaceSender(of func() (*hub, error)) ([]func(context.Context) error, error) {
	h, err := of()
	if err != nil {
		return nil, err
	}
	s, err := r.space(h)
	if err != nil {
		return nil, err
	}
	return []func(context.Context) error{func(ctx context.Context) error { return send(ctx, s) }}, nil
}

func send(ctx context.Context, s *chat.Space) error {
	sent, err := s.Send(ctx, "agent", channel, text)
	if err == nil && sent.Queued {
		err = errors.New("the message was queued")
	}
	return err
}

// busSender is the publish that a send uses, without what channels add, to a stream of the same hub.
func (r *rig) busSender(of func() (*hub, error)) ([]func(context.Context) error, error) {
	h, err := of()
	if err != nil {
		return nil, err
	}
	b, err := r.joinBus(h)
	if err != nil {
		return nil, err
	}
	return []func(context.Context) error{func(ctx context.Context) error {
		if _, err := b.JetStream().PublishMsg(ctx, &nats.Msg{Subject: namespace + "." + channel, Data: []byte(text)}); err != nil {
			return err
		}
		return b.Commit(ctx)
	}}, nil
}

// reader reads the newest messages of a channel that has exactly the number of stored ones.
func (r *rig) reader(limit int) (func(context.Context) (time.Duration, error), error) {
	h, err := r.filled()
	if err != nil {
		return nil, err
	}
	s, err := r.space(h)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		history, err := s.Read(ctx, "agent", channel, limit)
		if err == nil && len(history.Messages) != limit {
			err = fmt.Errorf("%d messages were read", len(history.Messages))
		}
		return time.Since(began), err
	}, nil
}

// rawReader gets the same messages as they are stored.
func (r *rig) rawReader(limit int) (func(context.Context) (time.Duration, error), error) {
	h, err := r.filled()
	if err != nil {
		return nil, err
	}
	b, err := r.joinBus(h)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		messages, _, err := b.Messages(ctx, namespace+"_C_0", uint64(stored-limit+1), limit, chat.MaxRead)
		if err == nil && len(messages) != limit {
			err = fmt.Errorf("%d messages were read", len(messages))
		}
		return time.Since(began), err
	}, nil
}

// fill starts a hub whose channel has the number of stored messages.
func (r *rig) fill() (*hub, error) {
	h, err := r.startHub("read", "bus: {durability: fast}\n", "PATH=/usr/bin:/bin")
	if err != nil {
		return nil, err
	}
	s, err := r.space(h)
	if err != nil {
		return nil, err
	}
	var left atomic.Int64
	left.Store(stored)
	var all sync.WaitGroup
	failed := make(chan error, senders)
	for range senders {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if err := send(r.ctx, s); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(failed)
	return h, <-failed // nil if none failed
}
