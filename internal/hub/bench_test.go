package hub_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/testbed"
)

// builtinEcho is the agent that every hub has.
func builtinEcho(b *testing.B, limits runner.Limits) hub.Agent {
	def := runner.Builtin()["echo"]
	def.Limits = limits
	def, err := def.Complete()
	if err != nil {
		b.Fatal(err)
	}
	a, err := runner.Open(def, runner.Options{})
	if err != nil {
		b.Fatal(err)
	}
	return hub.Agent{Definition: def, Runner: a}
}

func BenchmarkSendAndWait(b *testing.B) {
	for _, mode := range []bus.Durability{bus.DurabilityFast, bus.DurabilityCommit} {
		b.Run(string(mode), func(b *testing.B) {
			h := newHub(b, hub.Config{Bus: openBus(b, b.TempDir(), mode), Agents: []hub.Agent{builtinEcho(b, runner.Limits{})}}, nil)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := h.SendAndWait(context.Background(), request("echo", "hello")); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("fast-parallel", func(b *testing.B) { sendInParallel(b, false) })
	b.Run("fast-parallel-events", func(b *testing.B) { sendInParallel(b, true) })
}

// BenchmarkShortStream streams short answers and waits for such, in turns: a stream must not take longer. It reports the
// median of the turns' ratios.
func BenchmarkShortStream(b *testing.B) {
	for _, mode := range []bus.Durability{bus.DurabilityFast, bus.DurabilityCommit} {
		b.Run(string(mode), func(b *testing.B) {
			h := newHub(b, hub.Config{Bus: openBus(b, b.TempDir(), mode), Agents: []hub.Agent{builtinEcho(b, runner.Limits{})}}, nil)
			var ratios []float64
			for b.Loop() {
				start := time.Now()
				if _, err := h.SendAndWait(context.Background(), request("echo", "hello")); err != nil {
					b.Fatal(err)
				}
				waited := time.Since(start)
				start = time.Now()
				sub, err := h.SendAndStream(context.Background(), request("echo", "hello"))
				if err != nil {
					b.Fatal(err)
				}
				drain(b, sub)
				ratios = append(ratios, float64(time.Since(start))/float64(waited))
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "stream/wait")
		})
	}
}

// sendInParallel sends from 16 goroutines a processor. With the log of events it reports how many events of a turn were
// stored, and how many were lost.
func sendInParallel(b *testing.B, withEvents bool) {
	conf := hub.Config{
		Bus:    openBus(b, b.TempDir(), bus.DurabilityFast),
		Agents: []hub.Agent{builtinEcho(b, runner.Limits{Concurrency: 64, Queue: 1000})},
	}
	if withEvents {
		log, err := events.Open(context.Background(), events.Options{Bus: conf.Bus, Name: "test"})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := log.Close(context.Background()); err != nil {
				b.Error(err)
			}
		})
		conf.Events = log
	}
	h := newHub(b, conf, nil)
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := h.SendAndWait(context.Background(), request("echo", "hello")); err != nil {
				b.Error(err)
				return
			}
		}
	})
	if withEvents {
		lost, all := conf.Events.Counts()[events.Gap], uint64(0)
		for _, n := range conf.Events.Counts() {
			all += n
		}
		b.ReportMetric(float64(all-lost)/float64(b.N), "events/op")
		b.ReportMetric(float64(lost)/float64(b.N), "lost/op")
	}
}

// BenchmarkStream streams answers of different lengths. The time per chunk (ns/chunk)
// does not depend on the length.
func BenchmarkStream(b *testing.B) {
	for _, chunks := range []int{500, 2000, 8000} {
		b.Run(fmt.Sprint(chunks), func(b *testing.B) {
			agent := &fakeAgent{turn: func(_ context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
				for range chunks {
					h.Event(runner.TextDelta{Text: "0123456789012345678901234567890123456789"})
				}
				return runner.Outcome{Status: runner.OutcomeCompleted}, nil
			}}
			h := newHub(b, hub.Config{Bus: openBus(b, b.TempDir(), bus.DurabilityFast)}, map[string]*fakeAgent{"a": agent})
			for b.Loop() {
				sub, err := h.SendAndStream(context.Background(), request("a", "go"))
				if err != nil {
					b.Fatal(err)
				}
				drain(b, sub)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(chunks), "ns/chunk")
		})
	}
}

func drain(t testing.TB, sub *hub.Subscription) {
	t.Helper()
	defer sub.Close()
	for {
		if _, err := sub.Next(context.Background()); err == io.EOF {
			return
		} else if err != nil {
			t.Error(err)
			return
		}
	}
}

// BenchmarkSubscribers lets subscribers follow one task of 100 chunks.
func BenchmarkSubscribers(b *testing.B) {
	for _, n := range []int{15, 60, 250, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { subscribers(b, n) })
	}
}

func subscribers(b *testing.B, n int) {
	begin := make(chan struct{})
	agent := &fakeAgent{turn: func(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		<-begin
		for range 100 {
			h.Event(runner.ToolCall{ID: "t", Title: "tool"})
		}
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done"}, nil
	}}
	h := newHub(b, hub.Config{}, map[string]*fakeAgent{"a": agent})
	for b.Loop() {
		task, err := h.Send(context.Background(), request("a", "go"))
		if err != nil {
			b.Fatal(err)
		}
		var wg sync.WaitGroup
		for range n {
			sub, err := h.Subscribe(context.Background(), task.ID)
			if err != nil {
				b.Fatal(err)
			}
			wg.Go(func() { drain(b, sub) })
		}
		begin <- struct{}{}
		wg.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n)/100, "ns/event/subscriber")
}

// BenchmarkTasks lists 100,000 stored tasks; it reports the memory for the index of
// one task and the time of a start.
func BenchmarkTasks(b *testing.B) {
	const tasks, contexts = 100_000, 10_000
	dir := b.TempDir()
	bs := openBus(b, dir, bus.DurabilityFast)
	if err := hub.Seed(b.Context(), bs, tasks, contexts); err != nil {
		b.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var h *hub.Hub
	b.Run("start", func(b *testing.B) {
		for b.Loop() {
			var err error
			if h, err = hub.New(context.Background(), hub.Config{Bus: bs}); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if err := h.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	h = newHub(b, hub.Config{Bus: bs}, nil)
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.Logf("index: %d bytes a task", (after.HeapAlloc-before.HeapAlloc)/tasks)
	for name, q := range map[string]hub.TaskQuery{
		"first-page": {Limit: 50},
		"state":      {Limit: 50, State: "TASK_STATE_WORKING"},
		"context":    {Limit: 50, ContextID: "context-17"},
		"deep":       {Limit: 50, Offset: 90_000},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := h.Tasks(context.Background(), q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkStored starts the hub with stored tasks, and lists a page of them, by their number.
func BenchmarkStored(b *testing.B) {
	for _, tasks := range []int{2_000, 8_000, 32_000, 128_000} {
		bs := openBus(b, b.TempDir(), bus.DurabilityFast)
		if err := hub.Seed(b.Context(), bs, tasks, 100); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint("start/", tasks), func(b *testing.B) {
			for b.Loop() {
				h, err := hub.New(context.Background(), hub.Config{Bus: bs})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := h.Close(context.Background()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
		h := newHub(b, hub.Config{Bus: bs}, nil)
		b.Run(fmt.Sprint("list/", tasks), func(b *testing.B) {
			for b.Loop() {
				if _, err := h.Tasks(b.Context(), hub.TaskQuery{Limit: 50, State: "TASK_STATE_WORKING"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDirectory lists agents of all kinds.
func BenchmarkDirectory(b *testing.B) {
	for _, n := range []int{150, 600, 2_500, 10_000} {
		directory(b, n)
	}
}

func directory(b *testing.B, agents int) {
	h := newHub(b, hub.Config{}, nil)
	kinds := []hub.Kind{hub.KindProgram, hub.KindSession, hub.KindPeer, hub.KindLibrary}
	for i := range agents {
		a := sessionIn(fmt.Sprintf("agent-%d", i), fmt.Sprintf("reviewer-%d", i%1000), fmt.Sprintf("project-%d", i%100), fmt.Sprintf("shop-%d", i%100), "office")
		a.Residence.Kind = kinds[i%len(kinds)]
		if err := h.Register(a); err != nil {
			b.Fatal(err)
		}
	}
	b.Run(fmt.Sprint("list/", agents), func(b *testing.B) {
		testbed.ReportP95(b, func() {
			if n := len(h.Agents()); n != agents {
				b.Fatal(n)
			}
		})
	})
	b.Run(fmt.Sprint("addresses/", agents), func(b *testing.B) {
		all := h.Agents()
		for b.Loop() {
			hub.Addresses(all)
		}
	})
	b.Run(fmt.Sprint("find/", agents), func(b *testing.B) {
		for b.Loop() {
			if _, err := h.FindAgent(b.Context(), "reviewer-7.shop-7", ""); agents >= 2_000 && hub.CodeOf(err) != hub.CodeInvalid {
				b.Fatal(err)
			}
		}
	})
}
