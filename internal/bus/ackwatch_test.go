package bus_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// watched is what WatchAcks has called with.
type watched struct {
	reply string
	ack   *jetstream.PubAck
}

// watchAcks watches the acknowledgements of a namespace until the end of the test.
func watchAcks(t *testing.T, b *bus.Bus) (bus.AckWatch, <-chan watched) {
	t.Helper()
	seen := make(chan watched, 100)
	w, err := b.WatchAcks(func(reply string, ack *jetstream.PubAck) { seen <- watched{reply, ack} })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	must(t, b.Conn().Flush())
	return w, seen
}

func TestAcknowledgementsOfOtherProcessesNameTheMessagesSequence(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.Durability{bus.DurabilityCommit, bus.DurabilityFast, bus.DurabilityAlways} {
		t.Run(string(mode), func(t *testing.T) {
			hub := open(t, bus.Config{DataDir: t.TempDir(), Durability: mode})
			b, other := join(t, hub), join(t, hub)
			ensureStream(t, b, "S", "s.>")
			w, seen := watchAcks(t, other)
			messages := make(chan *nats.Msg, 100)
			if _, err := other.Conn().ChanSubscribe("s.>", messages); err != nil {
				t.Fatal(err)
			}
			must(t, other.Conn().Flush())
			if _, err := once(other, "own"); err != nil { // is not seen
				t.Fatal(err)
			}
			<-messages
			for i, text := range []string{"a", "b"} {
				if _, err := once(b, text); err != nil {
					t.Fatal(err)
				}
				m, got := <-messages, <-seen
				if got.reply != m.Reply || !w.Expects(m.Reply) || got.ack == nil || got.ack.Sequence != uint64(i+2) || got.ack.Stream != "S" {
					t.Errorf("%s with the reply %s was acknowledged as %+v to %s", m.Data, m.Reply, got.ack, got.reply)
				}
			}
			if _, err := b.PublishOnce(t.Context(), &nats.Msg{Subject: "s.1"}, "c", "T"); err == nil {
				t.Error("stored in another stream than was expected")
			}
			if got := <-seen; got.ack != nil || !strings.HasPrefix(got.reply, "$PARLEY.") {
				t.Errorf("a refused message was acknowledged as %+v to %s", got.ack, got.reply)
			}
			if _, err := b.Publish(t.Context(), &nats.Msg{Subject: "s.1"}); err != nil {
				t.Fatal(err)
			}
			<-messages // that was refused
			if m := <-messages; w.Expects(m.Reply) {
				t.Error("the acknowledgement of a message that is not stored once is expected")
			}
		})
	}
}

// What is acknowledged is stored and can be read, but the sender has no answer before it is synced.
func TestTheAcknowledgementDoesNotWaitForTheSync(t *testing.T) {
	t.Parallel()
	d, hold, held, release := holdingDisk()
	hub := open(t, d.config(bus.Config{DataDir: t.TempDir()}))
	b, other := joinSyncing(t, &disk{}, project(hub)), join(t, hub)
	stream := ensureStream(t, b, "S", "s.>")
	_, seen := watchAcks(t, other)
	hold.Store(true)
	result := storing(b, "a")
	<-held
	if got := <-seen; got.ack == nil || got.ack.Sequence != 1 {
		t.Errorf("acknowledged as %+v", got.ack)
	}
	if m, err := stream.GetMsg(t.Context(), 1); err != nil || string(m.Data) != "a" {
		t.Errorf("%+v is stored, %v", m, err)
	}
	close(release)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestAnotherServerHasNoAcknowledgementsToWatch(t *testing.T) {
	t.Parallel()
	hub := open(t, bus.Config{DataDir: t.TempDir()})
	w, err := hub.WatchAcks(func(string, *jetstream.PubAck) {})
	if err != nil || w.Expects("$PARLEY.ack.a.1") {
		t.Errorf("they are expected, %v", err)
	}
	w.Stop()
}
