package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/bus"
)

// cost is what one call takes of the server that it takes the most of, and of all.
type cost struct {
	Messages  float64       `json:"messages"`
	Bytes     float64       `json:"bytes"`
	Processor time.Duration `json:"processor"`
	Of        float64       `json:"messagesOfAll"`
}

// costs are those of an arrangement.
type costs struct {
	Heartbeat cost `json:"heartbeat"`
	Discover  cost `json:"discover"` // when nothing has changed
	Changed   cost `json:"changed"`  // of each entry that has changed since
	Mail      cost `json:"mail"`     // sent, awaited, acknowledged
	Item      cost `json:"item"`     // submitted, claimed, completed

	Entry      float64 `json:"entryBytes"`      // memory of the busiest server for each agent that is registered
	Inbox      float64 `json:"inboxBytes"`      // for each inbox
	Connection float64 `json:"connectionBytes"` // for each connection to it, idle
	View       float64 `json:"viewBytes"`       // of each process that looks for agents, for each of them
}

// network has the servers of an arrangement, and two agents on two computers, in two clusters where there are as many.
type network struct {
	*servers
	ahead      atomic.Int64 // of the clock: the agents are limited to so many calls a second
	near, far  *agentnet.Network
	boss, hand *agentnet.Agent
	raw        *bus.Bus
}

// measure runs an arrangement and measures its costs.
func measure(ctx context.Context, a arrangement, o options) (c costs, err error) {
	dir, err := os.MkdirTemp("", "scale")
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := startServers(ctx, a, dir)
	if err != nil {
		return c, err
	}
	defer s.stop()
	n := &network{servers: s}
	if err := n.open(ctx); err != nil {
		return c, err
	}
	defer n.close(context.WithoutCancel(ctx))
	steps := []func(context.Context, options, *costs) error{n.calls, n.registered, n.inboxes, n.connections}
	for _, step := range steps {
		if err := step(ctx, o, &c); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (n *network) config(cluster int, host string) agentnet.Config {
	return agentnet.Config{BusConfig: store.Config{Hostname: host, Username: "ann", ProjectPath: "/home/ann/shop", ProjectID: "0123456789abcdef",
		Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return time.Now().Add(time.Duration(n.ahead.Load())) },
		Dial: func(ctx context.Context) (*bus.Bus, error) { return n.dial(ctx, cluster) }}}
}

func (n *network) dial(ctx context.Context, cluster int) (*bus.Bus, error) {
	return bus.Open(ctx, bus.Config{URL: bus.Secret(n.url(cluster)), Logger: slog.New(slog.DiscardHandler)})
}

func (n *network) open(ctx context.Context) (err error) {
	n.near, n.far = agentnet.Open(n.config(0, "near")), agentnet.Open(n.config(1, "far"))
	for _, net := range []*agentnet.Network{n.near, n.far} {
		if err := net.Ready(ctx); err != nil {
			return err
		}
	}
	if n.raw, err = n.dial(ctx, 0); err != nil {
		return err
	}
	agent := registry.Registration{Handle: "boss", AgentType: "dispatcher", Scope: registry.ScopeCrossProject, Visibility: store.Public, Capabilities: []string{"coordination"}}
	if n.boss, err = n.near.Register(ctx, agent); err != nil {
		return err
	}
	agent.Handle, agent.AgentType, agent.Capabilities = "hand", "worker", []string{"go"}
	n.hand, err = n.far.Register(ctx, agent)
	return err
}

func (n *network) close(ctx context.Context) {
	for _, net := range []*agentnet.Network{n.near, n.far} {
		_ = net.Close(ctx) // its servers are removed
	}
	if n.raw != nil {
		_ = n.raw.Close(ctx) // the same
	}
}

// each measures what a call costs that f makes count times.
func (n *network) each(count int, f func(i int) error) (c cost, err error) {
	before, err := n.use()
	if err != nil {
		return c, err
	}
	for i := range count {
		n.ahead.Add(int64(time.Second))
		if err := f(i); err != nil {
			return c, err
		}
	}
	after, err := n.use()
	if err != nil {
		return c, err
	}
	times := float64(count)
	for i := range after {
		messages := float64(after[i].Messages-before[i].Messages) / times
		c.Of += messages
		c.Messages = max(c.Messages, messages)
		c.Bytes = max(c.Bytes, float64(after[i].Bytes-before[i].Bytes)/times)
		c.Processor = max(c.Processor, (after[i].Processor-before[i].Processor)/time.Duration(count))
	}
	return c, nil
}

// grown measures by how much the memory of the server grows that grows most, for each of count.
func (n *network) grown(count int, f func() error) (bytes float64, err error) {
	before, err := n.use()
	if err == nil {
		err = f()
	}
	if err != nil {
		return 0, err
	}
	after, err := n.use()
	for i := range after {
		bytes = max(bytes, float64(after[i].Memory-before[i].Memory)/float64(count))
	}
	return bytes, err
}

// calls measures mail and work.
func (n *network) calls(ctx context.Context, o options, c *costs) (err error) {
	send := func(int) error {
		if _, err := n.boss.Send(ctx, mail.Message{Recipient: n.hand.GUID(), Text: "The tests of the parser pass again; please review the change."}); err != nil {
			return err
		}
		answer := new(mail.Answer)
		if _, _, err := n.hand.WaitAndTake(ctx, mail.Selection{}, answer); err != nil {
			return err
		}
		n.hand.Answered(answer, true)
		return n.hand.Acknowledge(ctx, time.Now())
	}
	item := func(i int) error {
		id := fmt.Sprint("item-", i)
		s := work.Submission{Capability: "go", Offer: mail.Offer{TaskID: id, Description: "Review the change of the parser."}}
		if _, err := n.boss.Submit(ctx, s); err != nil {
			return err
		}
		claim, err := n.hand.Claim(ctx, nil)
		if err != nil {
			return err
		}
		if claim == nil {
			return errors.New("an item is not there")
		}
		return n.hand.Complete(ctx, claim.TaskID, claim.Token, work.Outcome{Success: true, Summary: "reviewed"})
	}
	for _, first := range []func(int) error{send, item} { // makes the streams
		if err := first(-1); err != nil {
			return err
		}
	}
	if c.Mail, err = n.each(o.calls, send); err == nil {
		c.Item, err = n.each(o.calls, item)
	}
	return err
}

// registered measures the registry: what an entry takes, its heartbeat, and those who look for agents.
func (n *network) registered(ctx context.Context, o options, c *costs) error {
	entries := make([]registry.Entry, o.entries)
	now := func() string { return time.Now().UTC().Format(store.TimestampFormat) }
	for i := range entries {
		entries[i] = registry.Entry{GUID: uuid.NewString(), AgentType: "worker", Handle: fmt.Sprint("w-", i), Hostname: "h", Scope: registry.ScopeUser, Visibility: store.Public,
			NATSURL: "nats://h:4222", Capabilities: []string{"go", "testing"}, Status: registry.Idle, RegisteredAt: now(), HeartbeatInterval: 60}
	}
	kv, err := n.raw.JetStream().KeyValue(ctx, store.DefaultBucket)
	if err != nil {
		return err
	}
	beat := func(i int) error {
		entries[i].LastHeartbeat = now()
		data, err := json.Marshal(entries[i])
		if err == nil {
			_, err = kv.Put(ctx, entries[i].GUID, data)
		}
		return err
	}
	c.Entry, err = n.grown(len(entries), func() error { _, err := n.each(len(entries), beat); return err })
	if err != nil {
		return err
	}
	n.ahead.Store(0) // the entries are not stale
	look := func(int) error {
		_, err := n.near.Agents(ctx, registry.Filter{Capability: "go", Limit: 50})
		return err
	}
	before := liveHeap()
	if err := look(0); err != nil {
		return err
	}
	c.View = max(0, liveHeap()-before) / float64(len(entries))
	if c.Heartbeat, err = n.each(len(entries), beat); err != nil {
		return err
	}
	n.ahead.Store(0)
	all, err := n.each(1, look)
	if err != nil {
		return err
	}
	if c.Discover, err = n.each(20, look); err == nil {
		c.Changed = all.per(len(entries))
	}
	return err
}

// per divides a cost.
func (c cost) per(n int) cost {
	f := float64(n)
	return cost{c.Messages / f, c.Bytes / f, c.Processor / time.Duration(n), c.Of / f}
}

func liveHeap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func (n *network) inboxes(ctx context.Context, o options, c *costs) (err error) {
	c.Inbox, err = n.grown(o.calls, func() error {
		for range o.calls {
			if err := n.near.MakeInbox(ctx, uuid.NewString()); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

func (n *network) connections(_ context.Context, o options, c *costs) (err error) {
	var all []*nats.Conn
	defer func() {
		for _, conn := range all {
			conn.Close()
		}
	}()
	each := len(n.clusters[0])
	c.Connection, err = n.grown(o.calls, func() error {
		for i := range o.calls * each { // so many for each server of the cluster
			conn, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", n.clusters[0][i%each].port))
			if err != nil {
				return err
			}
			all = append(all, conn)
		}
		return nil
	})
	return err
}
