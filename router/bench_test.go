package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
)

// BenchmarkLocalDelivery has one sender, one receiver and telemetry. An iteration
// creates and sends an envelope; the time ends when all have been received.
func BenchmarkLocalDelivery(b *testing.B) {
	r := newRouter(b, router.Options{})
	register(b, r, card("mars", agent.L2))
	register(b, r, card("venus", agent.L2))
	var received atomic.Int64
	r.OnReceive("venus", func(context.Context, *envelope.Envelope) { received.Add(1) })
	f := envelope.NewFactory(agent.Identity{ID: "mars", Tier: agent.L2})
	var payload any = json.RawMessage(`{"text":"hello"}`)
	ctx := context.Background()
	var sent int64
	b.ReportAllocs()
	for b.Loop() {
		e, err := f.New("venus", envelope.Request, payload)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := r.SendWait(ctx, e); err != nil {
			b.Fatal(err)
		}
		sent++
	}
	waitUntil(b, func() bool { return received.Load() == sent })
	b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "envelopes/s")
	if m := r.Telemetry().Metrics(); m.TotalMessagesSent != uint64(sent) || m.TotalMessagesReceived != uint64(sent) {
		b.Errorf("telemetry counted %d and %d of %d", m.TotalMessagesSent, m.TotalMessagesReceived, sent)
	}
}

// BenchmarkBroadcast measures from Send until the last of 1,000 agents has received the
// envelope.
func BenchmarkBroadcast(b *testing.B) {
	for _, tiers := range []string{"one tier", "all tiers"} {
		b.Run(tiers, func(b *testing.B) {
			const n = 1000
			r := newRouter(b, router.Options{})
			register(b, r, card("sun", agent.L0))
			var received atomic.Int64
			done := make(chan struct{}, 1)
			for i := range n {
				tier := agent.L0
				if tiers == "all tiers" {
					tier = agent.TierOf(i % 4)
				}
				id := fmt.Sprint("agent-", i)
				register(b, r, card(id, tier))
				r.OnReceive(id, func(context.Context, *envelope.Envelope) {
					if received.Add(1)%n == 0 {
						done <- struct{}{}
					}
				})
			}
			e, err := envelope.New("sun", envelope.Broadcast, envelope.Notification, "wake up")
			if err != nil {
				b.Fatal(err)
			}
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				res, err := r.Send(ctx, e)
				if err != nil || res.Recipients != n {
					b.Fatal(res, err)
				}
				<-done
			}
		})
	}
}

func BenchmarkToCapability(b *testing.B) {
	reg := registry.New(registry.Options{})
	r, err := router.New(reg, router.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close(context.Background())
	defer reg.Close()
	register(b, r, card("mars", agent.L2))
	for i := range 100_000 {
		register(b, r, card(fmt.Sprint("agent-", i), agent.L2, "work"))
	}
	r.OnReceive("agent-0", func(context.Context, *envelope.Envelope) {})
	f := envelope.NewFactory(agent.Identity{ID: "mars", Tier: agent.L2})
	e, err := f.NewForCapability("work", envelope.Request, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.SendWait(context.Background(), e); err != nil {
			b.Fatal(err)
		}
	}
}
