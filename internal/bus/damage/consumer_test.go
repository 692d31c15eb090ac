package damage_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/bus/damage"
)

const (
	queueDone = 20 // messages of the queue that are acknowledged
	queueOpen = 5  // that are not
)

var workers = jetstream.ConsumerConfig{Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1000}

func openQueue(t *testing.T, b *bus.Bus) jetstream.Consumer {
	t.Helper()
	_, err := b.EnsureStream(t.Context(), jetstream.StreamConfig{Name: "QUEUE", Subjects: []string{"queue"}, Retention: jetstream.WorkQueuePolicy})
	must(t, err)
	c, err := b.JetStream().CreateOrUpdateConsumer(t.Context(), "QUEUE", workers)
	must(t, err)
	return c
}

// deliverAgain does what a hub does that has just started a server.
func deliverAgain(t *testing.T, b *bus.Bus) {
	t.Helper()
	_, err := b.JetStream().Consumer(t.Context(), "QUEUE", "workers")
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return
	}
	must(t, err)
	_, err = b.JetStream().ResetConsumerToSequence(t.Context(), "QUEUE", "workers", 1)
	must(t, err)
}

func enqueue(t *testing.T, b *bus.Bus, text string) {
	t.Helper()
	_, err := b.Publish(t.Context(), &nats.Msg{Subject: "queue", Data: []byte(text)})
	must(t, err)
}

// drain returns what a queue delivers, and acknowledges it. It waits for want messages: a server tells a consumer of a
// message a little after it has acknowledged it to the publisher.
func drain(t *testing.T, c jetstream.Consumer, want int) map[string]bool {
	t.Helper()
	got := map[string]bool{}
	take := func(batch jetstream.MessageBatch, err error) {
		t.Helper()
		must(t, err)
		for m := range batch.Messages() {
			got[string(m.Data())] = true
			must(t, m.DoubleAck(t.Context()))
		}
		must(t, batch.Error())
	}
	if want > 0 {
		take(c.Fetch(want, jetstream.FetchMaxWait(30*time.Second)))
	}
	take(c.FetchNoWait(100))
	return got
}

// storeQueue makes a store with a queue and its workers, as a kill leaves it, and returns its data directory.
func storeQueue(t *testing.T) string {
	t.Helper()
	dir, killed := t.TempDir(), filepath.Join(t.TempDir(), "killed")
	b := open(t, dir)
	c := openQueue(t, b)
	for i := range queueDone {
		enqueue(t, b, fmt.Sprint("done ", i))
	}
	if got := drain(t, c, queueDone); len(got) != queueDone {
		t.Fatalf("the queue delivered %v", got)
	}
	for i := range queueOpen {
		enqueue(t, b, fmt.Sprint("open ", i))
	}
	// The server writes a consumer's position a tenth of a second later.
	for late := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		state, err := os.ReadFile(inQueue(dir, "obs/workers/o.dat"))
		if err == nil && bytes.Equal(state, position(queueDone, queueDone)) {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("the position is %v, %v", state, err)
		}
	}
	must(t, os.CopyFS(killed, os.DirFS(dir)))
	end(t, b)
	return killed
}

func inQueue(dir, name string) string {
	return filepath.Join(dir, "bus", "jetstream", account, "streams", "QUEUE", name)
}

// position is the state file of a consumer that has delivered n messages, the last with a sequence, and waits for no acknowledgement.
func position(n, sequence byte) []byte { return []byte{22, 2, n, sequence, n, sequence, 0, 0} }

// A power cut may leave any part of what was not synced. Whatever is left of a queue and the position of its workers, what
// it has is delivered, and what comes later is; also after the next start.
func TestAQueueDeliversAfterAnyPowerCut(t *testing.T) {
	store := storeQueue(t)
	const settings, sum, state = "obs/workers/meta.inf", "obs/workers/meta.sum", "obs/workers/o.dat"
	type change func(t *testing.T, dir string)
	empty := func(name string) change {
		return func(t *testing.T, dir string) { must(t, os.WriteFile(inQueue(dir, name), nil, 0o600)) }
	}
	missing := func(name string) change {
		return func(t *testing.T, dir string) { must(t, os.RemoveAll(inQueue(dir, name))) }
	}
	with := func(name string, content []byte) change {
		return func(t *testing.T, dir string) { must(t, os.WriteFile(inQueue(dir, name), content, 0o600)) }
	}
	short := func(t *testing.T, dir string) { // as if nothing of the messages had been synced
		files, err := filepath.Glob(inQueue(dir, "msgs/*.blk"))
		must(t, err)
		for _, f := range files {
			must(t, os.Truncate(f, 0))
		}
	}
	ofConsumer := map[string]change{
		"nothing":                  func(*testing.T, string) {},
		"the consumer":             missing("obs/workers"),
		"its settings":             missing(settings),
		"its settings' text":       empty(settings),
		"half of its settings":     with(settings, []byte(`{"name":"wor`)),
		"its checksum":             missing(sum),
		"its checksum's text":      empty(sum),
		"its position":             missing(state),
		"its position's text":      empty(state),
		"half of its position":     with(state, position(queueDone, queueDone)[:3]),
		"blocks of its position":   with(state, make([]byte, 8)),
		"a newer position":         with(state, position(250>>1, 250>>1)),
		"an impossible position":   with(state, []byte{22, 2, 90, 90, 7, 7, 0, 0}),
		"the stream's settings":    missing("meta.inf"),
		"the stream's text":        empty("meta.inf"),
		"the stream's checksum":    missing("meta.sum"),
		"the stream's consumers":   missing("obs"),
		"what was pending is gone": with(state, []byte{22, 2, 20, 20, 23, 23, 3, 0, 1, 1, 0, 2, 2, 0, 3, 3, 0, 0}),
	}
	for _, messages := range []struct {
		name string
		cut  change
		left int
	}{{"and all messages", func(*testing.T, string) {}, queueOpen}, {"and no message", short, 0}} {
		for lost, cut := range ofConsumer {
			t.Run(lost+" "+messages.name, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "data")
				must(t, os.CopyFS(dir, os.DirFS(store)))
				cut(t, dir)
				messages.cut(t, dir)
				want := messages.left
				for start := range 2 {
					b := open(t, dir)
					deliverAgain(t, b)
					c := openQueue(t, b)
					for i := range 3 {
						enqueue(t, b, fmt.Sprint("new ", start, i))
					}
					if got := drain(t, c, want+3); len(got) != want+3 {
						t.Errorf("start %d: the queue delivered %v", start, got)
					}
					want = 0
					end(t, b)
				}
			})
		}
	}
}

// What begins anew is logged, counted and named, and its bytes are kept.
func TestAConsumerThatBeginsAnewIsNamed(t *testing.T) {
	dir := storeQueue(t)
	must(t, os.Truncate(inQueue(dir, "obs/workers/o.dat"), 3))
	var log bytes.Buffer
	k := check(t, dir, &log)
	all := k.Records()
	if len(all) != 1 || all[0].Kind != damage.KindPosition || all[0].Action != damage.ActionRebuilt || all[0].Lost() ||
		all[0].What() != "the position of a consumer of QUEUE" || k.Counts().String() != "1 rebuilt" {
		t.Fatalf("the records are %+v: %s", all, &log)
	}
	kept, err := os.ReadFile(filepath.Join(dir, "bus", all[0].Kept))
	must(t, err)
	if !bytes.Equal(kept, position(queueDone, queueDone)[:3]) || !bytes.Contains(log.Bytes(), []byte("its position cannot be read")) {
		t.Errorf("kept are %v: %s", kept, &log)
	}
}
