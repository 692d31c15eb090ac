package channel_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/channel/transporttest"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
	Cleanup(func())
}

// link is two managers over the in-memory transport with faults: a opens channels, b
// accepts them.
type link struct {
	t      tb
	net    memory.Network
	faults *transporttest.Faults
	a, b   *channel.Manager
	taken  chan *channel.Channel
}

// newLink connects two managers. setUp, if not nil, changes their options.
func newLink(t tb, setUp func(a, b *channel.Options)) *link {
	l := &link{t: t, taken: make(chan *channel.Channel, 100)}
	l.faults = transporttest.NewFaults(&l.net)
	a := channel.Options{Dialers: map[agent.Transport]transport.Dialer{agent.TransportLocal: l.faults}}
	b := channel.Options{}
	if setUp != nil {
		setUp(&a, &b)
	}
	l.a = channel.NewManager(a, nil)
	l.b = channel.NewManager(b, func(c *channel.Channel) { l.taken <- c })
	listener, err := l.net.Listen("b")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.b.Serve(context.Background(), listener); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		for _, m := range []*channel.Manager{l.a, l.b} {
			if err := m.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if err := listener.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		wg.Wait()
	})
	return l
}

var atB = agent.Endpoint{Transport: agent.TransportLocal, Address: "b"}

func ctx(t interface{ Cleanup(func()) }) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	t.Cleanup(cancel)
	return ctx
}

// open opens a channel from mars to venus and returns both ends.
func (l *link) open() (a, b *channel.Channel) {
	l.t.Helper()
	a, err := l.a.OpenAt(ctx(l.t), "mars", "venus", atB)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := a.Ready(ctx(l.t)); err != nil {
		l.t.Fatal(err)
	}
	return a, <-l.taken
}

func message(t tb, from string, n int) *envelope.Envelope {
	t.Helper()
	to := map[string]string{"mars": "venus", "venus": "mars"}[from]
	e, err := envelope.New(from, to, envelope.Notification, n)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func send(t tb, c *channel.Channel, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		if err := c.Send(ctx(t), message(t, c.LocalAgent(), n)); err != nil {
			t.Fatal(err)
		}
	}
}

// inbox records the payloads that a channel delivers.
type inbox struct {
	mu  sync.Mutex
	got []string
}

func collect(c *channel.Channel) *inbox {
	in := new(inbox)
	in.collect(c)
	return in
}

func (in *inbox) collect(c *channel.Channel) {
	c.OnMessage(func(_ context.Context, e *envelope.Envelope) {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.got = append(in.got, string(e.Payload))
	})
}

func (in *inbox) check(t tb, n int) {
	t.Helper()
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.got) != n {
		t.Fatalf("%d envelopes arrived, want %d", len(in.got), n)
	}
	for i, got := range in.got {
		if got != fmt.Sprint(i) {
			t.Fatalf("envelope %s arrived as number %d", got, i)
		}
	}
}

// Feature: a2a-mcp-protocols, Property 10: Channel state machine validity.
// Req 3.1, Req 3.2, Req 3.3, Req 3.7
func TestProperty10StateMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			l := newLink(t, nil)
			var mu sync.Mutex
			states := map[string][]channel.Status{}
			watch := func(name string, c *channel.Channel) {
				mu.Lock()
				states[name] = append(states[name], c.Status())
				mu.Unlock()
				c.OnStatus(func(s channel.Status) {
					mu.Lock()
					defer mu.Unlock()
					states[name] = append(states[name], s)
				})
			}
			l.faults.Refuse(true) // so that the channel stays connecting
			a, err := l.a.OpenAt(context.Background(), "mars", "venus", atB)
			if err != nil {
				t.Fatal(err)
			}
			watch("a", a)
			if got := a.Status(); got != channel.Connecting {
				t.Fatalf("a new channel is %s", got)
			}
			var b *channel.Channel
			model := channel.Connecting
			check := func() {
				synctest.Wait()
				if got := a.Status(); got != model {
					t.Fatalf("the channel is %s, want %s", got, model)
				}
			}
			for range rapid.IntRange(1, 12).Draw(t, "steps") {
				switch rapid.SampledFrom([]string{"up", "down", "cut", "close a", "close b"}).Draw(t, "step") {
				case "up":
					l.faults.Refuse(false)
					time.Sleep(10 * time.Second) // time to reconnect, on the bubble's clock
					if model != channel.Closed {
						model = channel.Open
					}
				case "down":
					l.faults.Refuse(true)
				case "cut":
					l.faults.Cut()
					if model == channel.Open {
						if l.faults.Refusing() {
							model = channel.Reconnecting
						} else {
							time.Sleep(10 * time.Second)
						}
					}
				case "close a":
					a.Close()
					model = channel.Closed
				case "close b":
					if b != nil && model == channel.Open {
						b.Close()
						model = channel.Closed
					}
				}
				check()
				if b == nil && model == channel.Open {
					b = <-l.taken
					watch("b", b)
				}
			}
			for name, seen := range states {
				for i := 1; i < len(seen); i++ {
					if !legal(seen[i-1], seen[i]) {
						t.Fatalf("%s went through %v", name, seen)
					}
				}
			}
		})
		from := rapid.SampledFrom(statuses).Draw(t, "from")
		to := rapid.SampledFrom(statuses).Draw(t, "to")
		if from.CanBecome(to) != legal(from, to) {
			t.Fatalf("CanBecome(%s, %s) = %v", from, to, from.CanBecome(to))
		}
	})
}

var statuses = []channel.Status{channel.Connecting, channel.Open, channel.Reconnecting, channel.Closed}

// legal is the specification's state machine.
func legal(from, to channel.Status) bool {
	return slices.Contains([]string{
		"connecting open", "connecting closed", "open reconnecting", "open closed", "reconnecting open", "reconnecting closed",
	}, string(from)+" "+string(to))
}

// Feature: a2a-mcp-protocols, Property 11: Channel message ordering. The order survives
// broken connections and repeated and reordered frames.
// Req 3.2, Req 3.4
func TestProperty11Ordering(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			l := newLink(t, func(a, b *channel.Options) {
				a.Window, b.Window = rapid.IntRange(1, 40).Draw(t, "window a"), rapid.IntRange(1, 40).Draw(t, "window b")
			})
			a, b := l.open()
			atA, atB := collect(a), collect(b)
			if rapid.Bool().Draw(t, "faulty") {
				l.faults.Chaos(rapid.Uint64().Draw(t, "seed"))
			}
			sent := map[*channel.Channel]int{}
			for range rapid.IntRange(1, 8).Draw(t, "rounds") {
				for _, c := range []*channel.Channel{a, b} {
					n := rapid.IntRange(0, 60).Draw(t, "n")
					send(t, c, sent[c], sent[c]+n)
					sent[c] += n
				}
				if rapid.Bool().Draw(t, "cut") {
					l.faults.Cut()
				}
			}
			for _, c := range []*channel.Channel{a, b} {
				if err := c.Flush(ctx(t)); err != nil {
					t.Fatal(err)
				}
			}
			atB.check(t, sent[a])
			atA.check(t, sent[b])
		})
	})
}

// Feature: a2a-mcp-protocols, Property 12: Channel retry on failure.
// Req 3.5
func TestProperty12RetryOnFailure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			var events []telemetry.Event
			var failed []string
			var mu sync.Mutex
			delay := time.Duration(rapid.IntRange(1, 2000).Draw(t, "delay")) * time.Millisecond
			l := newLink(t, func(a, b *channel.Options) {
				a.RetryDelay = delay
				a.Telemetry = telemetry.SinkFunc(func(e telemetry.Event) {
					mu.Lock()
					defer mu.Unlock()
					if e.Type == telemetry.DeliveryFailure {
						events = append(events, e)
					}
				})
				a.OnDeliveryFailure = func(_ *channel.Channel, e *envelope.Envelope, err error) {
					mu.Lock()
					defer mu.Unlock()
					if channel.CodeOf(err) != channel.CodeDeliveryFailed {
						t.Errorf("failed with %v", err)
					}
					failed = append(failed, string(e.Payload))
				}
			})
			a, b := l.open()
			got := collect(b)
			synctest.Wait()
			failures := rapid.IntRange(0, 6).Draw(t, "failures")
			l.faults.FailSends(failures)
			send(t, a, 0, 1)
			if err := a.Flush(ctx(t)); err != nil {
				t.Fatal(err)
			}
			send(t, a, 1, 2) // the channel still delivers
			if err := a.Flush(ctx(t)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			attempts := l.faults.FailedSends()
			if len(attempts) != failures {
				t.Fatalf("%d attempts failed, want %d", len(attempts), failures)
			}
			// The first four attempts send the envelope; the next one informs the peer
			// that it is abandoned.
			for i := 2; i < min(len(attempts), 4); i++ {
				before, now := attempts[i-1].Sub(attempts[i-2]), attempts[i].Sub(attempts[i-1])
				if now < 2*before {
					t.Fatalf("the delays are %v and %v", before, now)
				}
			}
			if len(attempts) > 1 && attempts[1].Sub(attempts[0]) < delay {
				t.Fatalf("the first retry came after %v", attempts[1].Sub(attempts[0]))
			}
			if failures <= 3 {
				got.check(t, 2)
				if len(events)+len(failed) > 0 {
					t.Fatalf("the envelope was abandoned after %d failures: %v", failures, events)
				}
				return
			}
			if len(events) != 1 || fmt.Sprint(failed) != "[0]" || events[0].Code != "DELIVERY_FAILED" || events[0].ChannelID != a.ID() {
				t.Fatalf("after %d failures: %v, %v", failures, events, failed)
			}
			if fmt.Sprint(got.got) != "[1]" {
				t.Fatalf("arrived: %v", got.got)
			}
		})
	})
}

// Req 3.1: without an answer from a peer, each new channel is connecting and has its
// own id.
func TestNewChannelsAreConnectingWithUniqueIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		l.faults.Refuse(true)
		seen := map[string]bool{}
		for i := range 100 {
			c, err := l.a.OpenAt(t.Context(), "mars", fmt.Sprint("agent-", i), atB)
			if err != nil {
				t.Fatal(err)
			}
			if c.ID() == "" || seen[c.ID()] || c.Status() != channel.Connecting {
				t.Errorf("channel %d is %q and %s", i, c.ID(), c.Status())
			}
			seen[c.ID()] = true
		}
	})
}

// Req 3.3: a closed channel is closed at both ends, in no manager, and its transport
// ends.
func TestCloseReleasesBothEnds(t *testing.T) {
	for name, closer := range map[string]func(a, b *channel.Channel) *channel.Channel{
		"the opener": func(a, _ *channel.Channel) *channel.Channel { return a },
		"the other":  func(_, b *channel.Channel) *channel.Channel { return b },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLink(t, nil)
				a, b := l.open()
				if err := closer(a, b).Close(); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if a.Status() != channel.Closed || b.Status() != channel.Closed {
					t.Errorf("the ends are %s and %s", a.Status(), b.Status())
				}
				if _, ok := l.a.Channel(a.ID()); ok || len(l.b.Channels()) != 0 {
					t.Error("a manager still has the channel")
				}
			})
		})
	}
}

// Req 3.2
func TestOpenIsAcknowledgedByBothEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		a, b := l.open()
		if a.ID() != b.ID() || a.LocalAgent() != "mars" || b.LocalAgent() != "venus" || a.RemoteAgent() != "venus" ||
			b.RemoteAgent() != "mars" || a.Transport() != agent.TransportLocal || b.Transport() != agent.TransportLocal {
			t.Errorf("the ends are %+v and %+v", a, b)
		}
		if a.Status() != channel.Open || b.Status() != channel.Open {
			t.Errorf("the ends are %s and %s", a.Status(), b.Status())
		}
		if got, ok := l.a.Channel(a.ID()); !ok || got != a || len(l.b.Channels()) != 1 {
			t.Error("a manager does not list its channel")
		}
		if got, ok := l.b.Between("venus", "mars"); !ok || got != b {
			t.Error("Between does not return the channel")
		}
	})
}

// Req 3.3
func TestSendRefusesInvalidEnvelopes(t *testing.T) {
	l := newLink(t, nil)
	a, b := l.open()
	if err := a.Send(ctx(t), message(t, "venus", 1)); channel.CodeOf(err) != channel.CodeWrongSender {
		t.Errorf("another agent's envelope: %v", err)
	}
	var invalid *envelope.Error
	if err := a.Send(ctx(t), new(envelope.Envelope)); !errors.As(err, &invalid) {
		t.Errorf("an empty envelope: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(ctx(t), message(t, "mars", 1)); channel.CodeOf(err) != channel.CodeClosed || a.Err() != nil {
		t.Errorf("after Close: %v, %v", err, a.Err())
	}
	if err := b.Ready(ctx(t)); err == nil {
		wait.Eventually(t, "the other end is closed", func() bool { return b.Status() == channel.Closed })
	}
	if err := b.Send(ctx(t), message(t, "venus", 1)); channel.CodeOf(err) != channel.CodeClosed || !strings.Contains(err.Error(), "other end") {
		t.Errorf("at the other end: %v", err)
	}
	if n := len(l.a.Channels()); n != 0 {
		t.Errorf("%d channels are still listed", n)
	}
	// The other end's manager removes the channel once the connection has ended.
	wait.Eventually(t, "the other manager removes the channel", func() bool { return len(l.b.Channels()) == 0 })
}

func TestEnvelopesReceivedBeforeThePeersCloseAreHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		a, b := l.open()
		send(t, a, 0, 100)
		synctest.Wait()
		a.Close()
		synctest.Wait()
		got := collect(b)
		synctest.Wait()
		got.check(t, 100)
		if channel.CodeOf(b.Err()) != channel.CodeClosed {
			t.Errorf("b: %v", b.Err())
		}
	})
}

// The closing end first acknowledges the envelopes that it has handled.
func TestCloseAcknowledgesHandledEnvelopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := 0
		l := newLink(t, func(a, b *channel.Options) {
			b.AckDelay = time.Hour
			a.OnDeliveryFailure = func(*channel.Channel, *envelope.Envelope, error) { failed++ }
		})
		a, b := l.open()
		b.OnMessage(func(context.Context, *envelope.Envelope) {})
		synctest.Wait() // the first frame after the handshake may have been an acknowledgement
		send(t, a, 1, 3)
		synctest.Wait()
		if s := a.State(); s.Acked != 0 {
			t.Fatalf("%d were acknowledged before Close", s.Acked)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := a.State(); failed != 0 || s.Acked != 2 || a.Status() != channel.Closed {
			t.Errorf("%d failed, %d were acknowledged, %s", failed, s.Acked, a.Status())
		}
	})
}

func TestCloseReportsUnacknowledgedEnvelopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		failed := 0
		l := newLink(t, func(a, _ *channel.Options) {
			a.OnDeliveryFailure = func(*channel.Channel, *envelope.Envelope, error) { mu.Lock(); failed++; mu.Unlock() }
		})
		a, _ := l.open()
		send(t, a, 0, 7) // there is no handler
		a.Close()
		synctest.Wait()
		if failed != 7 {
			t.Errorf("%d are reported as failed, want 7", failed)
		}
	})
}

func TestFullWindowBlocksOnlyTheSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, func(a, b *channel.Options) { a.Window, b.Window = 100, 10 })
		slow, slowB := l.open()
		fast, fastB := l.open()
		release := make(chan struct{})
		slowB.OnMessage(func(context.Context, *envelope.Envelope) { <-release })
		got := collect(fastB)
		send(t, slow, 0, 10)
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := slow.Send(short, message(t, "mars", 10)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the eleventh envelope: %v", err)
		}
		send(t, fast, 0, 500)
		if err := fast.Flush(ctx(t)); err != nil {
			t.Error(err)
		}
		got.check(t, 500)
		if slow.Status() != channel.Open {
			t.Errorf("with a slow handler the channel is %s", slow.Status())
		}
		close(release)
		if err := slow.Flush(ctx(t)); err != nil {
			t.Error(err)
		}
	})
}

func TestBytesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, func(a, _ *channel.Options) { a.WindowBytes = 10_000 })
		a, b := l.open()
		big, err := envelope.New("mars", "venus", envelope.Notification, strings.Repeat("x", 6000))
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Send(t.Context(), big); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := a.Send(short, big); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the second one: %v", err)
		}
		huge, err := envelope.New("mars", "venus", envelope.Notification, strings.Repeat("x", 60_000))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- a.Send(t.Context(), huge) }() // larger than the window: it is sent alone
		collect(b)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Req 3.7
func TestReconnectingEndsAfterItsTimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		a, b := l.open()
		l.faults.Refuse(true)
		l.faults.Cut()
		synctest.Wait()
		if a.Status() != channel.Reconnecting || b.Status() != channel.Reconnecting {
			t.Errorf("after the cut: %s and %s", a.Status(), b.Status())
		}
		send(t, a, 0, 3) // stays unsent
		time.Sleep(2 * time.Minute)
		for name, c := range map[string]*channel.Channel{"a": a, "b": b} {
			if c.Status() != channel.Closed || channel.CodeOf(c.Err()) != channel.CodeUnreachable {
				t.Errorf("%s is %s: %v", name, c.Status(), c.Err())
			}
		}
	})
}

func TestHalfOpenConnectionIsDetected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		a, b := l.open()
		got := collect(b)
		send(t, a, 0, 5)
		if err := a.Flush(ctx(t)); err != nil {
			t.Fatal(err)
		}
		l.faults.Freeze()
		send(t, a, 5, 10)
		if err := a.Flush(ctx(t)); err != nil {
			t.Fatal(err)
		}
		got.check(t, 10)
	})
}

func TestLostFramesAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		a, b := l.open()
		got := collect(b)
		for round := range 5 {
			synctest.Wait()
			l.faults.Drop(1)
			send(t, a, round*10, round*10+10)
			synctest.Wait()
		}
		if err := a.Flush(ctx(t)); err != nil {
			t.Fatal(err)
		}
		got.check(t, 50)
	})
}

func TestPanickingHandlerDoesNotStopDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec telemetry.Recorder
		l := newLink(t, func(_, b *channel.Options) { b.Telemetry = &rec })
		a, b := l.open()
		b.OnMessage(func(context.Context, *envelope.Envelope) { panic("boom") })
		got := collect(b)
		send(t, a, 0, 3)
		if err := a.Flush(ctx(t)); err != nil {
			t.Fatal(err)
		}
		got.check(t, 3)
		if m := rec.Metrics(); m.ErrorCount != 3 || m.TotalMessagesReceived != 3 {
			t.Errorf("got %+v", m)
		}
	})
}

func TestHandlersCanBeRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		a, b := l.open()
		first := 0
		remove := b.OnMessage(func(context.Context, *envelope.Envelope) { first++ })
		got := collect(b)
		send(t, a, 0, 1)
		synctest.Wait()
		remove()
		send(t, a, 1, 2)
		synctest.Wait()
		got.check(t, 2)
		if first != 1 {
			t.Errorf("the removed handler received %d envelopes, want 1", first)
		}
	})
}

// An opener that missed the close of the other end reconnects. It must be refused, not
// given a new channel.
func TestClosedChannelIsNotResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		a, b := l.open()
		l.faults.Freeze()
		b.Close()
		send(t, a, 0, 1)
		synctest.Wait()
		time.Sleep(time.Minute)
		if a.Status() != channel.Closed || channel.CodeOf(a.Err()) != channel.CodeRefused {
			t.Errorf("a is %s: %v", a.Status(), a.Err())
		}
		if n := len(l.b.Channels()); n != 0 {
			t.Errorf("b has %d channels", n)
		}
	})
}

// A handler may close its own channel.
func TestCloseFromAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		a, b := l.open()
		n := 0
		send(t, a, 0, 3) // before the handler exists: afterwards the channel may be closed
		b.OnMessage(func(context.Context, *envelope.Envelope) { n++; b.Close() })
		synctest.Wait()
		if n != 1 || a.Status() != channel.Closed {
			t.Errorf("%d were handled, the other end is %s", n, a.Status())
		}
	})
}

// An agent cannot send in the name of another over its channel.
func TestForgedSenderIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec telemetry.Recorder
		l := newLink(t, func(_, b *channel.Options) { b.Telemetry = &rec })
		a, b := l.open()
		got := collect(b)
		l.faults.Rewrite(func(f transport.Frame) transport.Frame {
			if f.Envelope != nil && string(f.Envelope.Payload) == "66" {
				f.Envelope = f.Envelope.With(func(e *envelope.Envelope) { e.Sender = "sun" })
			}
			return f
		})
		send(t, a, 66, 67)
		send(t, a, 0, 2)
		if err := a.Flush(ctx(t)); err != nil {
			t.Fatal(err)
		}
		got.check(t, 2)
		if n := rec.Metrics().SecurityEvents; n != 1 {
			t.Errorf("%d security events, want 1", n)
		}
	})
}

// An invalid frame ends the connection; the channel reconnects and delivers all
// envelopes.
func TestInvalidFramesEndTheConnection(t *testing.T) {
	nonsense := map[string]func(transport.Frame) transport.Frame{
		"acknowledgement of a frame never sent": func(f transport.Frame) transport.Frame { f.Ack = 99; return f },
		"number out of the window":              func(f transport.Frame) transport.Frame { f.Seq += 1 << 40; return f },
		"unknown kind":                          func(f transport.Frame) transport.Frame { f.Kind = 200; return f },
		"receipt of a frame never sent": func(f transport.Frame) transport.Frame {
			return transport.Frame{Kind: transport.Ack, Seq: 99}
		},
	}
	for name, change := range nonsense {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLink(t, nil)
				a, b := l.open()
				got := collect(b)
				synctest.Wait()
				once := true
				l.faults.Rewrite(func(f transport.Frame) transport.Frame {
					if once && f.Kind == transport.Data {
						once = false
						return change(f)
					}
					return f
				})
				send(t, a, 0, 3)
				if err := a.Flush(ctx(t)); err != nil {
					t.Fatal(err)
				}
				got.check(t, 3)
			})
		})
	}
}

func TestAuthorizeAndIntroducedMayRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []channel.Request
		l := newLink(t, func(a, b *channel.Options) {
			a.Introduce = func(id string) byteJSON { return byteJSON(`{"id":"` + id + `"}`) }
			b.Introduce = a.Introduce
			b.Authorize = func(_ context.Context, r channel.Request) error {
				if r.From == "pluto" {
					return errors.New("no dwarfs")
				}
				return nil
			}
			b.Introduced = func(_ context.Context, r channel.Request) error { seen = append(seen, r); return nil }
			a.Introduced = func(_ context.Context, r channel.Request) error {
				if r.To == "neptune" {
					return errors.New("do not like the card")
				}
				seen = append(seen, r)
				return nil
			}
		})
		l.open()
		if len(seen) != 2 || string(seen[0].Card) != `{"id":"mars"}` || string(seen[1].Card) != `{"id":"venus"}` || seen[0].From != "mars" || seen[1].From != "venus" {
			t.Errorf("introduced: %+v", seen)
		}
		for _, id := range []string{"pluto", "neptune"} {
			c, err := l.a.OpenAt(t.Context(), id, "venus", atB)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Ready(ctx(t)); channel.CodeOf(err) != channel.CodeRefused || !strings.Contains(err.Error(), map[string]string{"pluto": "no dwarfs", "neptune": "do not like"}[id]) {
				t.Errorf("%s: %v", id, err)
			}
		}
	})
}

type byteJSON = json.RawMessage

// A process that does not know the secret of a channel cannot resume it.
func TestChannelCannotBeHijacked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		a, b := l.open()
		stolen := a.State()
		stolen.Secret = "guess"
		thief := channel.NewManager(channel.Options{Dialers: map[agent.Transport]transport.Dialer{agent.TransportLocal: &l.net}}, nil)
		defer thief.Close()
		if _, err := thief.Resume(stolen); channel.CodeOf(err) != channel.CodeInvalid {
			t.Errorf("Resume with a wrong secret: %v", err)
		}
		got := collect(b)
		send(t, a, 0, 3)
		if err := a.Flush(ctx(t)); err != nil {
			t.Error(err)
		}
		got.check(t, 3)
	})
}

// memoryCheckpoints stores checkpoints in memory.
type memoryCheckpoints struct {
	mu   sync.Mutex
	at   map[string]uint64
	fail bool
}

func (m *memoryCheckpoints) Load(id string) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail {
		return 0, errors.New("disk on fire")
	}
	return m.at[id], nil
}

func (m *memoryCheckpoints) Save(id string, handled uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail {
		return errors.New("disk on fire")
	}
	if m.at == nil {
		m.at = make(map[string]uint64)
	}
	m.at[id] = handled
	return nil
}

func TestCheckpointFailureClosesTheChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, func(_, b *channel.Options) { b.Checkpoints = &memoryCheckpoints{fail: true} })
		a, b := l.open()
		collect(b)
		send(t, a, 0, 1)
		synctest.Wait()
		if a.Status() != channel.Closed || b.Status() != channel.Closed || !strings.Contains(b.Err().Error(), "disk on fire") {
			t.Errorf("%s, %s: %v", a.Status(), b.Status(), b.Err())
		}
	})
}

// Both ends restart, one after the other, with unacknowledged envelopes in both
// directions.
func TestChannelSurvivesARestartOfEitherEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net memory.Network
		listener, err := net.Listen("b")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		saved := new(memoryCheckpoints)
		atA, atB := new(inbox), new(inbox)
		add := func(in *inbox) channel.Handler {
			return func(_ context.Context, e *envelope.Envelope) {
				in.mu.Lock()
				defer in.mu.Unlock()
				in.got = append(in.got, string(e.Payload))
			}
		}
		var b *channel.Channel
		var wg sync.WaitGroup
		startB := func() *channel.Manager {
			m := channel.NewManager(channel.Options{Checkpoints: saved}, func(c *channel.Channel) {
				b = c
				c.OnMessage(add(atB))
			})
			wg.Go(func() { m.Serve(t.Context(), listener) })
			return m
		}
		startA := func() *channel.Manager {
			return channel.NewManager(channel.Options{Dialers: map[agent.Transport]transport.Dialer{agent.TransportLocal: &net}}, nil)
		}
		ma, mb := startA(), startB()
		a, err := ma.OpenAt(t.Context(), "mars", "venus", agent.Endpoint{Transport: agent.TransportLocal, Address: "b"})
		if err != nil {
			t.Fatal(err)
		}
		a.OnMessage(add(atA))
		if err := a.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()

		send(t, a, 0, 50)
		if _, err := mb.Suspend(t.Context()); err != nil { // b stops before it has received all
			t.Fatal(err)
		}
		send(t, a, 50, 100)
		mb = startB()
		if err := a.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		atB.check(t, 100)

		send(t, b, 0, 20)
		send(t, a, 100, 150)
		states, err := ma.Suspend(t.Context()) // a stops before all is acknowledged
		if err != nil || len(states) != 1 {
			t.Fatalf("%v, %v", states, err)
		}
		send(t, b, 20, 40)
		ma = startA()
		if a, err = ma.Resume(states[0]); err != nil {
			t.Fatal(err)
		}
		a.OnMessage(add(atA))
		send(t, a, 150, 200)
		for _, c := range []*channel.Channel{a, b} {
			if err := c.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		atB.check(t, 200)
		atA.check(t, 40)
		ma.Close()
		mb.Close()
		wg.Wait()
	})
}

func TestResumeRefusesInvalidStates(t *testing.T) {
	m := channel.NewManager(channel.Options{}, nil)
	defer m.Close()
	for _, s := range []channel.State{{}, {ID: idOf("s"), Secret: "s", Local: "a", Remote: "b", Unacked: []*envelope.Envelope{{}}}} {
		if _, err := m.Resume(s); channel.CodeOf(err) != channel.CodeInvalid {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestOpenFindsAnEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var endpoints []agent.Endpoint
		var lookup error
		l := newLink(t, func(a, _ *channel.Options) {
			a.Resolve = func(context.Context, string) ([]agent.Endpoint, error) { return endpoints, lookup }
		})
		if _, err := l.b.Open(t.Context(), "x", "y"); channel.CodeOf(err) != channel.CodeNoEndpoint {
			t.Errorf("without Resolve: %v", err)
		}
		endpoints = []agent.Endpoint{{Transport: agent.TransportHyperswarm}}
		if _, err := l.a.Open(t.Context(), "x", "y"); channel.CodeOf(err) != channel.CodeNoEndpoint {
			t.Errorf("without a dialer: %v", err)
		}
		lookup = errors.New("no")
		if _, err := l.a.Open(t.Context(), "x", "y"); channel.CodeOf(err) != channel.CodeNoEndpoint || !errors.Is(err, lookup) {
			t.Errorf("with an error: %v", err)
		}
		lookup = nil
		endpoints = append(endpoints, atB)
		for range 3 { // only the first one opens a channel
			if err := l.a.Forward(t.Context(), "venus", message(t, "mars", 1)); err != nil {
				t.Error(err)
			}
		}
		if n := len(l.a.Channels()); n != 1 {
			t.Errorf("%d channels, want 1", n)
		}
		if _, err := l.a.OpenAt(t.Context(), "*", "y", atB); channel.CodeOf(err) != channel.CodeInvalid {
			t.Errorf("from the broadcast address: %v", err)
		}
	})
}

func TestManagerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, func(a, _ *channel.Options) { a.MaxChannels = 1 })
		a, _ := l.open()
		if _, err := l.a.OpenAt(t.Context(), "mars", "venus", atB); channel.CodeOf(err) != channel.CodeTooMany {
			t.Errorf("the second one: %v", err)
		}
		a.Close()
		l.open()
		l.a.Close()
		if _, err := l.a.OpenAt(t.Context(), "mars", "venus", atB); channel.CodeOf(err) != channel.CodeClosed {
			t.Errorf("after Close: %v", err)
		}
	})
}

// A manager refuses an opener that speaks another protocol version, or none.
func TestInvalidHandshakesAreRefused(t *testing.T) {
	hello := func(change func(*transport.Hello)) transport.Frame {
		h := &transport.Hello{Version: transport.Version, Channel: idOf("s"), Secret: "s", From: "mars", To: "venus", Window: 1}
		change(h)
		return transport.Frame{Kind: transport.Open, Hello: h}
	}
	for name, f := range map[string]transport.Frame{
		"another version":   hello(func(h *transport.Hello) { h.Version = 2 }),
		"no channel":        hello(func(h *transport.Hello) { h.Channel = "" }),
		"no secret":         hello(func(h *transport.Hello) { h.Secret = "" }),
		"broadcast as name": hello(func(h *transport.Hello) { h.From = "*" }),
		"no window":         hello(func(h *transport.Hello) { h.Window = 0 }),
		"data first":        {Kind: transport.Data, Seq: 1},
		"no hello":          {Kind: transport.Open},
		"too much received": hello(func(h *transport.Hello) { h.Received = 7 }),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLink(t, nil)
				conn, err := l.net.Dial(t.Context(), atB)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if err := conn.Send(t.Context(), []transport.Frame{f}); err != nil {
					t.Fatal(err)
				}
				frames, err := conn.Receive(t.Context())
				if err != nil || frames[0].Kind != transport.Refuse || frames[0].Reason.Message == "" {
					t.Errorf("the answer to the handshake is %+v, %v", frames, err)
				}
				if len(l.b.Channels()) != 0 {
					t.Error("a channel was created")
				}
			})
		})
	}
	t.Run("silence", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLink(t, nil)
			conn, err := l.net.Dial(t.Context(), atB)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Receive(t.Context()); transport.CodeOf(err) != transport.CodeClosed {
				t.Errorf("got %v", err)
			}
		})
	})
}

// A channel uses the first endpoint of the agent that can be dialled, and another one
// when that is lost (Req 3.6, 3.7).
func TestChannelMovesToAnotherEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var other memory.Network
		l := newLink(t, func(a, _ *channel.Options) {
			a.Dialers[agent.TransportNATS] = renamed{&other}
			a.Resolve = func(context.Context, string) ([]agent.Endpoint, error) {
				return []agent.Endpoint{{Transport: "pigeon", Address: "b"}, {Transport: agent.TransportNATS, Address: "b"}, atB}, nil
			}
		})
		a, err := l.a.Open(t.Context(), "mars", "venus")
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Ready(ctx(t)); err != nil {
			t.Fatal(err)
		}
		b := <-l.taken
		got := collect(b)
		send(t, a, 0, 10)
		if a.Transport() != agent.TransportLocal || a.State().Endpoint != atB {
			t.Errorf("the transport is %s", a.Transport())
		}
		listener, err := other.Listen("b")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		served := make(chan error)
		go func() { served <- l.b.Serve(t.Context(), listener) }()
		l.faults.Refuse(true)
		l.faults.Cut()
		send(t, a, 10, 20)
		if err := a.Flush(ctx(t)); err != nil {
			t.Fatal(err)
		}
		if a.Transport() != agent.TransportNATS {
			t.Errorf("the transport is %s", a.Transport())
		}
		got.check(t, 20)
		listener.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// renamed is an in-memory network with the name of another transport.
type renamed struct{ *memory.Network }

func (r renamed) Dial(ctx context.Context, to agent.Endpoint) (transport.Conn, error) {
	to.Transport = agent.TransportLocal
	return r.Network.Dial(ctx, to)
}

// Req 3.7: ReconnectTimeout is waited out to its end, and the last attempt is made there.
func TestReconnectTimeoutIsWaitedOut(t *testing.T) {
	for name, o := range map[string]channel.Options{
		"the defaults":             {},
		"a delay beyond its end":   {ReconnectTimeout: 3 * time.Second, ReconnectDelay: 2 * time.Second},
		"a delay longer than that": {ReconnectTimeout: time.Second, ReconnectDelay: 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			timeout := cmp.Or(o.ReconnectTimeout, time.Minute)
			for _, returns := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					var net memory.Network
					m := make([]*channel.Manager, 2)
					for i := range m {
						options := o
						options.ReconnectTimeout = timeout + time.Duration(i)*time.Hour // the opener's end counts
						options.Dialers = map[agent.Transport]transport.Dialer{agent.TransportLocal: &net}
						m[i] = channel.NewManager(options, nil)
						defer m[i].Close()
					}
					serve := func() (stop func()) {
						l, err := net.Listen("there")
						if err != nil {
							t.Fatal(err)
						}
						ctx, cancel := context.WithCancel(context.Background())
						conns := &keeping{Listener: l}
						go m[1].Serve(ctx, conns)
						return func() {
							cancel()
							l.Close()
							conns.cut()
						}
					}
					stop := serve()
					c, err := m[0].OpenAt(t.Context(), "mars", "venus", agent.Endpoint{Transport: agent.TransportLocal, Address: "there"})
					if err != nil {
						t.Fatal(err)
					}
					if err := c.Ready(t.Context()); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					stop()
					synctest.Wait()
					if c.Status() != channel.Reconnecting {
						t.Fatalf("the channel is %s", c.Status())
					}
					began := time.Now()
					if returns {
						time.Sleep(timeout - time.Millisecond)
						stop = serve()
						defer stop()
						time.Sleep(time.Second)
						synctest.Wait()
						if c.Status() != channel.Open {
							t.Errorf("%s after the peer has returned just in time: %v", c.Status(), c.Err())
						}
						return
					}
					<-c.Done()
					if waited := time.Since(began); waited != timeout || channel.CodeOf(c.Err()) != "" && channel.CodeOf(c.Err()) != channel.CodeUnreachable {
						t.Errorf("closed after %v, want %v: %v", waited, timeout, c.Err())
					}
				})
			}
		})
	}
}

// keeping is a listener that can break the connections that it has accepted.
type keeping struct {
	transport.Listener
	mu    sync.Mutex
	conns []transport.Conn
}

func (k *keeping) Accept(ctx context.Context) (transport.Conn, error) {
	conn, err := k.Listener.Accept(ctx)
	if err == nil {
		k.mu.Lock()
		k.conns = append(k.conns, conn)
		k.mu.Unlock()
	}
	return conn, err
}

func (k *keeping) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.conns {
		c.Close()
	}
}

// wild is a callback of every kind that panics.
type wild struct{}

func (wild) PermitChannel(string, string) error              { panic("policy") }
func (wild) PermitEnvelope(string, *envelope.Envelope) error { panic("policy") }
func (wild) Load(string) (uint64, error)                     { panic("checkpoints") }
func (wild) Save(string, uint64) error                       { panic("checkpoints") }
func (wild) Dial(context.Context, agent.Endpoint) (transport.Conn, error) {
	panic("dialer")
}

// The panic of any callback is one error event and never the end of the process; a decision is then a refusal.
func TestPanicsOfCallbacksAreEvents(t *testing.T) {
	at := agent.Endpoint{Transport: agent.TransportLocal, Address: "there"}
	for name, tc := range map[string]struct {
		opener, acceptor channel.Options
		onChannel        func(*channel.Channel)
		opens            bool
	}{
		"policy at the opener":   {opener: channel.Options{Policy: wild{}}},
		"policy at the acceptor": {acceptor: channel.Options{Policy: wild{}}},
		"authorize":              {acceptor: channel.Options{Authorize: func(context.Context, channel.Request) error { panic("authorize") }}},
		"introduced": {
			opener:   channel.Options{Introduce: func(string) json.RawMessage { return json.RawMessage(`{}`) }},
			acceptor: channel.Options{Introduced: func(context.Context, channel.Request) error { panic("introduced") }},
		},
		"introduce":   {opener: channel.Options{Introduce: func(string) json.RawMessage { panic("introduce") }}, opens: true},
		"on channel":  {onChannel: func(*channel.Channel) { panic("on channel") }, opens: true},
		"local":       {opener: channel.Options{Local: func(string, agent.Endpoint) bool { panic("local") }}, opens: true},
		"checkpoints": {acceptor: channel.Options{Checkpoints: wild{}}, opens: true},
		"dialer":      {opener: channel.Options{Dialers: map[agent.Transport]transport.Dialer{agent.TransportLocal: wild{}}, ReconnectTimeout: time.Millisecond}},
		"ended":       {acceptor: channel.Options{Ended: func(*channel.Channel) { panic("ended") }}, opens: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var net memory.Network
				events := telemetry.New(telemetry.Options{})
				if tc.opener.Dialers == nil {
					tc.opener.Dialers = map[agent.Transport]transport.Dialer{agent.TransportLocal: &net}
				}
				tc.opener.Telemetry, tc.acceptor.Telemetry = events, events
				a, b := channel.NewManager(tc.opener, nil), channel.NewManager(tc.acceptor, tc.onChannel)
				defer a.Close()
				defer b.Close()
				l, err := net.Listen("there")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go b.Serve(ctx, l)
				c, err := a.OpenAt(t.Context(), "mars", "venus", at)
				if err == nil {
					err = c.Ready(t.Context())
				}
				if (err == nil) != tc.opens {
					t.Fatalf("opened: %v, want %v", err, tc.opens)
				}
				synctest.Wait()
				if tc.opens {
					back, _ := b.Between("venus", "mars")
					back.OnMessage(func(context.Context, *envelope.Envelope) {})
					e, err := envelope.New("mars", "venus", envelope.Request, 1)
					if err != nil {
						t.Fatal(err)
					}
					if err := c.Send(t.Context(), e); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					c.Close()
				}
				synctest.Wait()
				panics := 0
				for _, e := range events.Recent(0) {
					if e.Type == telemetry.ErrorEvent && e.Code == telemetry.CodePanic {
						panics++
					}
				}
				if panics == 0 {
					t.Error("no error event")
				}
			})
		})
	}
}

func TestNilHandlersAndEnvelopesAreErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := telemetry.New(telemetry.Options{})
		m := channel.NewManager(channel.Options{Telemetry: events, Local: func(string, agent.Endpoint) bool { return true }}, nil)
		defer m.Close()
		c, err := m.Open(t.Context(), "mars", "venus")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := c.Send(t.Context(), nil); envelope.CodeOf(err) != envelope.CodeInvalidEnvelope {
			t.Errorf("sent nothing: %v", err)
		}
		if err := m.Forward(t.Context(), "venus", nil); envelope.CodeOf(err) != envelope.CodeInvalidEnvelope {
			t.Errorf("forwarded nothing: %v", err)
		}
		c.OnMessage(nil)()
		c.OnStatus(nil)()
		c.Claim(nil, nil)()
		synctest.Wait()
		if n := events.Metrics().ErrorCount; n != 3 {
			t.Errorf("%d error events, want 3", n)
		}
	})
}
