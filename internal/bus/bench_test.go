package bus_test

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/bus"
)

var payload = make([]byte, 200)

// BenchmarkOpen starts and stops a hub's bus.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		opened, err := bus.Open(b.Context(), bus.Config{DataDir: dir})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		shut(b, opened)
		b.StartTimer()
	}
}

// BenchmarkPublish measures one durable publish in each mode with several concurrent publishers.
func BenchmarkPublish(b *testing.B) {
	for _, mode := range []bus.Durability{bus.DurabilityCommit, bus.DurabilityAlways, bus.DurabilityFast} {
		for _, publishers := range []int{1, 16, 100} {
			b.Run(fmt.Sprintf("%s/%d", mode, publishers), func(b *testing.B) {
				opened := open(b, bus.Config{DataDir: b.TempDir(), Durability: mode})
				ensureStream(b, opened, "S", "s.>")
				publishAll(b, func(ctx context.Context, msg *nats.Msg) error {
					_, err := opened.Publish(ctx, msg)
					return err
				}, publishers)
			})
		}
	}
}

// BenchmarkPublishJoined is the same from another process's Bus over TCP.
func BenchmarkPublishJoined(b *testing.B) {
	for _, mode := range []bus.Durability{bus.DurabilityCommit, bus.DurabilityFast} {
		for _, publishers := range []int{1, 16, 100} {
			b.Run(fmt.Sprintf("%s/%d", mode, publishers), func(b *testing.B) {
				cfg := bus.Config{DataDir: b.TempDir(), Durability: mode}
				opened := open(b, cfg)
				buses := make([]*bus.Bus, publishers)
				for i := range buses {
					buses[i] = join(b, opened)
				}
				ensureStream(b, buses[0], "S", "s.>")
				var next atomic.Int64
				publishAll(b, func(ctx context.Context, msg *nats.Msg) error {
					_, err := buses[next.Add(1)%int64(publishers)].Publish(ctx, msg)
					return err
				}, publishers)
			})
		}
	}
}

// BenchmarkBatch measures one message of a batch of 100.
func BenchmarkBatch(b *testing.B) {
	opened := open(b, bus.Config{DataDir: b.TempDir()})
	ensureStream(b, opened, "S", "s.>")
	batch := opened.NewBatch()
	n := 0
	for b.Loop() {
		if err := batch.Add(b.Context(), &nats.Msg{Subject: "s.1", Data: payload}); err != nil {
			b.Fatal(err)
		}
		if n++; n%100 == 0 {
			if _, err := batch.Wait(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
	if _, err := batch.Wait(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func publishAll(b *testing.B, publish func(context.Context, *nats.Msg) error, publishers int) {
	b.Helper()
	jobs := make(chan struct{})
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			for range jobs {
				if err := publish(b.Context(), &nats.Msg{Subject: "s.1", Data: payload}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for b.Loop() {
		jobs <- struct{}{}
	}
	close(jobs)
	wg.Wait()
}

// BenchmarkNamespaces measures a hub with many namespaces of three channels on disk: its start,
// the first join of one, and the process's memory after all were joined.
func BenchmarkNamespaces(b *testing.B) {
	for _, n := range []int{0, 100, 500} {
		cfg := bus.Config{DataDir: b.TempDir()}
		hub := open(b, cfg)
		ask := func(i int) bus.Ask {
			return func(ctx context.Context) (bus.Grant, error) {
				return hub.Grant(ctx, bus.GrantRequest{Namespace: fmt.Sprintf("project-%d", i)})
			}
		}
		use := func(i int) {
			joined, err := bus.Join(b.Context(), bus.Config{}, ask(i))
			if err != nil {
				b.Fatal(err)
			}
			for c := range 3 {
				ensureStream(b, joined, fmt.Sprintf("S%d", c), fmt.Sprintf("s.%d", c))
				if _, err := joined.Publish(b.Context(), &nats.Msg{Subject: fmt.Sprintf("s.%d", c), Data: payload}); err != nil {
					b.Fatal(err)
				}
			}
			shut(b, joined)
		}
		for i := range n {
			use(i)
		}
		shut(b, hub)
		b.Run(fmt.Sprintf("start/%d", n), func(b *testing.B) {
			for b.Loop() {
				hub = open(b, cfg)
				b.StopTimer()
				shut(b, hub)
				b.StartTimer()
			}
		})
		if n == 0 {
			continue
		}
		b.Run(fmt.Sprintf("join/%d", n), func(b *testing.B) {
			hub = open(b, cfg)
			debug.FreeOSMemory()
			before := residentMB(b)
			i := 0
			for b.Loop() {
				joined, err := bus.Join(b.Context(), bus.Config{}, ask(i%n))
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				shut(b, joined)
				i++
				b.StartTimer()
			}
			for ; i < n; i++ {
				shut(b, joinWith(b, bus.Config{}, ask(i)))
			}
			debug.FreeOSMemory()
			b.ReportMetric(before, "before-MB")
			b.ReportMetric(residentMB(b), "all-joined-MB")
		})
	}
}

// residentMB returns this process's resident memory in MB, or 0 where the system does not report
// it.
func residentMB(b *testing.B) float64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, err := strconv.Atoi(strings.Fields(string(data))[1])
	if err != nil {
		b.Fatal(err)
	}
	return float64(pages*os.Getpagesize()) / (1 << 20)
}
