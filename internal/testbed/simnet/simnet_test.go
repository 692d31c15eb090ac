package simnet_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/simnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

// connect connects a process with a stream.
func connect(t *testing.T, p *simnet.Process) *bus.Bus {
	t.Helper()
	b, err := p.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(t.Context()) })
	if _, err := b.EnsureStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	return b
}

func publish(t *testing.T, b *bus.Bus) error {
	t.Helper()
	_, err := b.Publish(t.Context(), &nats.Msg{Subject: "s", Data: []byte("x")})
	return err
}

// stored returns how many messages the stream has, when the bus is connected again.
func stored(t *testing.T, b *bus.Bus) uint64 {
	t.Helper()
	for b.Connection().State != bus.StateConnected {
		wait.Pause(t.Context(), time.Second)
	}
	s, err := b.JetStream().Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

// The server compares the age of messages with a clock outside the bubble.
func TestVirtualTimeBeginsNow(t *testing.T) {
	began := time.Now().UnixNano()
	simnet.Run(t, 1, func(t *testing.T, _ *simnet.Network) {
		if ahead := time.Since(time.Unix(0, began)); ahead < 0 || ahead > time.Hour {
			t.Errorf("%v from the time outside", ahead)
		}
	})
}

func TestAKilledServerHasWhatItAcknowledged(t *testing.T) {
	simnet.Run(t, 1, func(t *testing.T, n *simnet.Network) {
		b := connect(t, n.Computer("a").Process())
		for range 3 {
			if err := publish(t, b); err != nil {
				t.Fatal(err)
			}
		}
		n.Kill()
		synctest.Wait()
		if publish(t, b) == nil {
			t.Error("a killed server has acknowledged")
		}
		n.Start()
		if got := stored(t, b); got != 3 {
			t.Errorf("%d messages are stored", got)
		}
	})
}

// What is held back arrives when the link is healed, and never when it is cut.
func TestWhatIsHeldBackArrivesLaterOrNever(t *testing.T) {
	for _, cut := range []bool{false, true} {
		simnet.Run(t, 2, func(t *testing.T, n *simnet.Network) {
			a := n.Computer("a")
			b, other := connect(t, a.Process()), connect(t, n.Computer("b").Process())
			a.Hold(true, false)
			if publish(t, b) == nil {
				t.Error("acknowledged although it was held back")
			}
			if cut {
				a.Cut()
				wait.Pause(t.Context(), time.Minute)
			}
			a.Heal()
			wait.Pause(t.Context(), time.Minute)
			if got := stored(t, other); (got == 0) != cut {
				t.Errorf("cut %t: %d messages are stored", cut, got)
			}
		})
	}
}

func TestAnswersThatAreHeldBackLeaveTheSenderInDoubt(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, n *simnet.Network) {
		a := n.Computer("a")
		b, other := connect(t, a.Process()), connect(t, n.Computer("b").Process())
		a.Hold(false, true)
		if publish(t, b) == nil {
			t.Error("the acknowledgement was not held back")
		}
		if got := stored(t, other); got != 1 {
			t.Errorf("%d messages are stored", got)
		}
	})
}

// A killed process does nothing more, and the clock of its computer is that of the next one.
func TestAKilledProcessIsCutOffForGood(t *testing.T) {
	simnet.Run(t, 4, func(t *testing.T, n *simnet.Network) {
		a := n.Computer("a")
		killed := a.Process()
		b := connect(t, killed)
		a.Jump(time.Hour)
		killed.Kill()
		wait.Pause(t.Context(), time.Minute)
		if publish(t, b) == nil {
			t.Error("a killed process has published")
		}
		if _, err := killed.Dial(t.Context()); err == nil {
			t.Error("a killed process has connected")
		}
		next := a.Process()
		if got := stored(t, connect(t, next)); got != 0 {
			t.Errorf("%d messages are stored", got)
		}
		if ahead := next.Now().Sub(killed.Now()); ahead != time.Hour {
			t.Errorf("the clock is %v ahead", ahead)
		}
	})
}

func TestAWriteOfAProcessIsNoticed(t *testing.T) {
	simnet.Run(t, 5, func(t *testing.T, n *simnet.Network) {
		p := n.Computer("a").Process()
		b := connect(t, p)
		if err := publish(t, b); err != nil {
			t.Fatal(err)
		}
		killed := make(chan struct{})
		p.AtWrite(2, func() { close(killed) })
		if err := publish(t, b); err != nil {
			t.Fatal(err)
		}
		select {
		case <-killed:
			t.Error("noticed at the first one")
		default:
		}
		go func() {
			<-killed
			p.Kill()
		}()
		if publish(t, b) == nil {
			t.Error("the process was killed at its write, and has an answer")
		}
	})
}
