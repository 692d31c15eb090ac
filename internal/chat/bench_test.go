package chat_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
)

// benchSpace returns a connected project with its streams on the hub of v.
func benchSpace(b *testing.B, v victim, namespace string, channels []chat.Channel) *chat.Space {
	b.Helper()
	cfg := killConfig(v.dial)
	cfg.Namespace, cfg.Channels = namespace, channels
	s := chat.Open(cfg)
	b.Cleanup(func() {
		if _, err := s.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	if <-s.Tried(); !s.Status().Connected {
		b.Fatal(s.Status().Problem)
	}
	names := make([]string, len(channels))
	for i, c := range channels {
		names[i] = c.Name
	}
	if _, err := s.Tips(b.Context(), names); err != nil { // creates the streams
		b.Fatal(err)
	}
	return s
}

func benchChannels(n int) []chat.Channel {
	channels := make([]chat.Channel, n)
	for i := range channels {
		channels[i] = chat.Channel{Name: fmt.Sprintf("c-%d", i), MaxMessages: 1 << 30, MaxBytes: 1 << 30, MaxAge: 24 * time.Hour}
		if n > 10 { // the default limits
			channels[i].MaxMessages, channels[i].MaxBytes = 10_000, 10<<20
		}
	}
	return channels
}

var benchText = string(bytes.Repeat([]byte("0123456789"), 20))

// BenchmarkSend compares a send with the raw synchronous publish to JetStream that it uses and,
// where the durability is commit, with the sync of the disk. "same" publishes the exact payload
// that a send stores, with an id for deduplication. The kinds alternate, so that they see the same
// machine load, and the median of the rounds counts. A ratio is the time of the other kind divided
// by the time of a send.
// REQ-PERF-001, REQ-PERF-002, REQ-PERF-003, REQ-TEST-004, REQ-PERF-TEST-001,
// REQ-PERF-TEST-002, REQ-PERF-TEST-005
func BenchmarkSend(b *testing.B) {
	for _, mode := range []bus.Durability{bus.DurabilityCommit, bus.DurabilityFast} {
		b.Run("hub-"+string(mode), func(b *testing.B) {
			hub, err := bus.Open(b.Context(), bus.Config{DataDir: b.TempDir(), Durability: mode})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				if err := hub.Close(context.Background()); err != nil {
					b.Error(err)
				}
			})
			compareSend(b, func(ctx context.Context) (*bus.Bus, error) {
				return bus.Join(ctx, bus.Config{NoEcho: true}, func(ctx context.Context) (bus.Grant, error) {
					return hub.Grant(ctx, bus.GrantRequest{Namespace: "kill"})
				})
			})
		})
	}
	b.Run("stock-server", func(b *testing.B) { compareSend(b, newStock(b).dial) })
}

func compareSend(b *testing.B, dial func(context.Context) (*bus.Bus, error)) {
	raw, err := dial(b.Context())
	for err != nil { // the stock server may still be starting
		raw, err = dial(b.Context())
	}
	b.Cleanup(func() {
		if err := raw.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	s := benchSpace(b, victim{dial: dial}, "kill", benchChannels(2))
	publish := func(ctx context.Context) error {
		if _, err := raw.JetStream().PublishMsg(ctx, &nats.Msg{Subject: "kill.c-1", Data: []byte(benchText)}); err != nil {
			return err
		}
		return raw.Commit(ctx)
	}
	payload := fmt.Appendf(nil, `{"handle":"agent","message":%q,"timestamp":"2026-11-21T06:00:00.000Z","version":1}`, benchText)
	var ids atomic.Int64
	same := func(ctx context.Context) error {
		msg := &nats.Msg{Subject: "kill.c-1", Data: payload}
		if _, err := raw.JetStream().PublishMsg(ctx, msg, jetstream.WithMsgID(fmt.Sprintf("0123456789abcdef-%d", ids.Add(1)))); err != nil {
			return err
		}
		return raw.Commit(ctx)
	}
	send := func(ctx context.Context) error {
		r, err := s.Send(ctx, "agent", "c-0", benchText)
		if err == nil && r.Queued {
			err = fmt.Errorf("queued")
		}
		return err
	}
	for _, senders := range []int{1, 16} {
		b.Run(strconv.Itoa(senders), func(b *testing.B) {
			const each = 8 // calls of one kind in a row by each sender
			var rawTime, sameTime, sendTime []time.Duration
			turn := func(do func(context.Context) error, took *[]time.Duration) {
				start := time.Now()
				var all sync.WaitGroup
				for range senders {
					all.Go(func() {
						for range each {
							if err := do(b.Context()); err != nil {
								b.Error(err)
							}
						}
					})
				}
				all.Wait()
				*took = append(*took, time.Since(start))
			}
			turns := 0
			for b.Loop() {
				for i := range 3 {
					switch (turns + i) % 3 {
					case 0:
						turn(publish, &rawTime)
					case 1:
						turn(same, &sameTime)
					case 2:
						turn(send, &sendTime)
					}
				}
				turns++
			}
			raw, same, send := median(rawTime), median(sameTime), median(sendTime)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(each*senders)/send.Seconds(), "sends/s")
			b.ReportMetric(float64(each*senders)/raw.Seconds(), "raw/s")
			b.ReportMetric(float64(raw)/float64(send), "ratio")
			b.ReportMetric(float64(same)/float64(send), "ratio-same")
		})
	}
}

func median(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)/2]
}

// percentiles reports the distribution of durations.
type percentiles struct {
	mu   sync.Mutex
	took []time.Duration
}

func (p *percentiles) add(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.took = append(p.took, d)
}

func (p *percentiles) report(b *testing.B, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.Sort(p.took)
	for _, q := range []int{50, 95, 99} {
		if len(p.took) > 0 {
			b.ReportMetric(float64(p.took[(len(p.took)-1)*q/100])/1e6, fmt.Sprintf("%s-p%d-ms", what, q))
		}
	}
}

// BenchmarkRead reads the last 100 messages of channels of different lengths.
// REQ-PERF-004, REQ-SCALE-003
func BenchmarkRead(b *testing.B) {
	for _, stored := range []int{1_000, 10_000, 100_000, 1_000_000} {
		b.Run(strconv.Itoa(stored), func(b *testing.B) {
			v := newHub(b)
			s := benchSpace(b, v, "kill", benchChannels(1))
			fill(b, v, stored)
			var took percentiles
			for b.Loop() {
				start := time.Now()
				h, err := s.Read(b.Context(), "agent", "c-0", 100)
				if err != nil || len(h.Messages) != 100 || h.Last != uint64(stored) {
					b.Fatalf("read %d of %d: %v", len(h.Messages), h.Last, err)
				}
				took.add(time.Since(start))
			}
			took.report(b, "read")
		})
	}
}

// BenchmarkWait measures from a send to the end of a wait for it in another process of the project, which waits for all its
// channels: the time must not depend on their number.
func BenchmarkWait(b *testing.B) {
	for _, n := range []int{3, 15, 85, 500} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			v := newHub(b)
			sender, waiter := benchSpace(b, v, "kill", benchChannels(n)), benchSpace(b, v, "kill", benchChannels(n))
			names := make([]string, n)
			for i := range names {
				names[i] = fmt.Sprintf("c-%d", i)
			}
			cursor, err := waiter.Tips(b.Context(), names)
			if err != nil {
				b.Fatal(err)
			}
			sent, received := make(chan time.Time, 1), make(chan struct{}, 1)
			var took percentiles
			var waiting sync.WaitGroup
			ctx, cancel := context.WithCancel(b.Context())
			waiting.Go(func() {
				for ctx.Err() == nil {
					news, err := waiter.Wait(ctx, cursor)
					if err != nil || len(news.Messages) == 0 {
						return
					}
					took.add(time.Since(<-sent))
					cursor = news.Cursor
					received <- struct{}{}
				}
			})
			for i := 0; b.Loop(); i++ {
				sent <- time.Now()
				if _, err := sender.Send(b.Context(), "agent", names[i%n], benchText); err != nil {
					b.Fatal(err)
				}
				<-received
			}
			cancel()
			waiting.Wait()
			took.report(b, "wait")
		})
	}
}

// fill stores n messages as fast as possible.
func fill(b *testing.B, v victim, n int) {
	b.Helper()
	raw, err := v.dial(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := raw.Close(context.Background()); err != nil {
			b.Error(err)
		}
	}()
	payload := fmt.Appendf(nil, `{"handle":"agent","message":%q,"timestamp":"2026-11-21T06:00:00.000Z"}`, benchText)
	for n > 0 {
		batch := raw.NewBatch()
		for range min(n, 10_000) {
			if err := batch.Add(b.Context(), &nats.Msg{Subject: "kill.c-0", Data: payload}); err != nil {
				b.Fatal(err)
			}
			n--
		}
		if _, err := batch.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// rate is the messages per second of all senders of the paced benchmarks together.
const rate = 1000

// paced sends one message per tick, in turn from every space into each of its channels, and
// reports how long the sends took. Every hundredth sender also reads.
func paced(b *testing.B, v victim, spaces []*chat.Space, channels int) {
	b.ReportMetric(hubMemory(b, v), "hub-before-MB")
	var sent, read percentiles
	var all sync.WaitGroup
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	start, n := time.Now(), 0
	for b.Loop() {
		<-tick.C
		s, channel := spaces[n%len(spaces)], fmt.Sprintf("c-%d", n/len(spaces)%channels)
		reads := n%100 == 0
		n++
		all.Go(func() {
			start := time.Now()
			if r, err := s.Send(b.Context(), "agent", channel, benchText); err != nil || r.Queued {
				b.Errorf("send: %+v, %v", r, err)
			}
			sent.add(time.Since(start))
			if !reads {
				return
			}
			start = time.Now()
			if _, err := s.Read(b.Context(), "agent", channel, 50); err != nil {
				b.Error(err)
			}
			read.add(time.Since(start))
		})
	}
	all.Wait()
	b.ReportMetric(float64(n)/time.Since(start).Seconds(), "sends/s")
	sent.report(b, "send")
	read.report(b, "read")
	b.ReportMetric(hubMemory(b, v), "hub-MB")
}

// BenchmarkHundredAgents is a project with a hundred agents, each with a connection of its own.
// Some of them wait for messages of the others.
// REQ-PERF-005
func BenchmarkHundredAgents(b *testing.B) {
	for _, waiting := range []int{0, 10, 100} {
		b.Run(fmt.Sprintf("%d-waiting", waiting), func(b *testing.B) {
			v := newHub(b)
			agents := make([]*chat.Space, 100)
			for i := range agents {
				agents[i] = benchSpace(b, v, "kill", benchChannels(3))
			}
			ctx, cancel := context.WithCancel(b.Context())
			var all sync.WaitGroup
			for _, s := range agents[:waiting] {
				all.Go(func() {
					for ctx.Err() == nil {
						select {
						case <-s.Changed():
						case <-ctx.Done():
						}
					}
				})
			}
			paced(b, v, agents, 3)
			cancel()
			all.Wait()
		})
	}
}

// BenchmarkAgents measures how the number of agents of a project affects a send. REQ-PERF-TEST-003
func BenchmarkAgents(b *testing.B) {
	for _, n := range []int{10, 50, 100} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			v := newHub(b)
			agents := make([]*chat.Space, n)
			for i := range agents {
				agents[i] = benchSpace(b, v, "kill", benchChannels(3))
			}
			paced(b, v, agents, 3)
		})
	}
}

// BenchmarkTenProjects sends in ten projects of fifty channels each.
// REQ-PERF-006, REQ-PERF-TEST-004
func BenchmarkTenProjects(b *testing.B) {
	v := newHub(b)
	projects := make([]*chat.Space, 10)
	for i := range projects {
		name := fmt.Sprintf("project-%d", i)
		projects[i] = benchSpace(b, victim{dial: hubDialFor(v.at, name)}, name, benchChannels(50))
	}
	paced(b, v, projects, 50)
}

// BenchmarkFiftyChannels measures the hub's memory for one project of fifty channels that receive
// messages in turn.
// REQ-PERF-007
func BenchmarkFiftyChannels(b *testing.B) {
	v := newHub(b)
	empty := hubMemory(b, v)
	s := benchSpace(b, v, "kill", benchChannels(50))
	made := hubMemory(b, v)
	for n := 0; b.Loop(); n++ {
		if _, err := s.Send(b.Context(), "agent", fmt.Sprintf("c-%d", n%50), benchText); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(empty, "hub-empty-MB")
	b.ReportMetric(made, "hub-made-MB")
	b.ReportMetric(hubMemory(b, v), "hub-hot-MB")
}

// hubMemory returns the resident memory of the hub's process in megabytes, or 0 where the system
// does not report it.
func hubMemory(b *testing.B, v victim) float64 {
	b.Helper()
	info, running, err := daemon.Running(v.at)
	if err != nil {
		b.Fatal(err)
	}
	if !running { // the first connection starts it
		s := chat.Open(killConfig(v.dial))
		for changed := s.Changed(); !s.Status().Connected; changed = s.Changed() {
			<-changed
		}
		if _, err := s.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		return hubMemory(b, v)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", info.PID))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(status, []byte("VmRSS:"))
	kb, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
	if err != nil {
		b.Fatal(err)
	}
	return float64(kb) / 1024
}

// BenchmarkReadDirect compares reads with the raw request for the same messages that they use, in turns, and reports the
// median of the turns' ratios.
func BenchmarkReadDirect(b *testing.B) {
	const stored = 10_000
	v := newHub(b)
	s := benchSpace(b, v, "kill", benchChannels(1))
	fill(b, v, stored)
	raw, err := v.dial(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := raw.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	for _, limit := range []int{100, 1000} {
		b.Run(strconv.Itoa(limit), func(b *testing.B) {
			var took, rawTook percentiles
			var ratios []float64
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				h, err := s.Read(b.Context(), "agent", "c-0", limit)
				if err != nil || len(h.Messages) != limit || h.Last != stored {
					b.Fatalf("read %d of %d: %v", len(h.Messages), h.Last, err)
				}
				read := time.Since(start)
				start = time.Now()
				messages, _, err := raw.Messages(b.Context(), "kill_C_0", uint64(stored-limit+1), limit, chat.MaxRead)
				if err != nil || len(messages) != limit {
					b.Fatalf("read %d: %v", len(messages), err)
				}
				rawRead := time.Since(start)
				took.add(read)
				rawTook.add(rawRead)
				ratios = append(ratios, float64(read)/float64(rawRead))
			}
			took.report(b, "read")
			rawTook.report(b, "raw")
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "read/raw")
		})
	}
}

// BenchmarkDecode decodes a message as this program writes it, and one of another program.
func BenchmarkDecode(b *testing.B) {
	own, err := chat.Encode("agent", benchText, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	for name, data := range map[string][]byte{"own": own, "foreign": bytes.Replace(own, []byte(`,"message"`), []byte(`, "message"`), 1)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := chat.Decode(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
