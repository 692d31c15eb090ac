package natslog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/natslog"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/testbed"
)

const subject = "parley.doclog.plan.0.log"

// An entry that cannot be read is logged with its source and skipped (Req 9.5).
func TestABadEntryIsSkipped(t *testing.T) {
	s := testbed.StartNATS(t)
	var logs lines
	mars := open(t, s, natslog.Options{Agent: "mars", Logger: logger(&logs)})
	venus := open(t, s, natslog.Options{Agent: "venus"})
	appendTo(t, mars, "before")
	flush(t, mars)
	js := s.Foreign()
	for _, m := range []*nats.Msg{
		{Subject: subject, Data: []byte("no entry")},
		{Subject: subject, Data: nil},
		{Subject: subject, Data: []byte("\x05abc"), Header: nats.Header{"Parley-Document-Source": {"mallory"}, "Parley-Document-Entry": {"updates"}, "Parley-Document-Sum": {"00"}}},
	} {
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	appendTo(t, venus, "after")
	same(t, mars, venus)
	exactly(t, mars, map[string]bool{"before": true, "after": true})
	until(t, "the source is logged", mars, func() bool { return logs.has("skipped an entry", "source=mallory") })
}

// tamper replaces the n-th entry of the log by a damaged one: it makes a new stream with the same entries at the
// same sequence numbers.
func tamper(t testing.TB, s *testbed.Server, n int) {
	t.Helper()
	js := s.Foreign()
	stream, err := js.Stream(t.Context(), "parley_DOCLOG")
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var messages, entries []*nats.Msg
	for sequence := max(info.State.FirstSeq, 1); sequence <= info.State.LastSeq; sequence++ { // 0 if it never had any
		m := nats.NewMsg("parley.doclog.purged.0.log")
		raw, err := stream.GetMsg(t.Context(), sequence)
		switch {
		case err == nil:
			m.Subject, m.Header, m.Data = raw.Subject, raw.Header, bytes.Clone(raw.Data)
			if len(m.Data) > 0 {
				entries = append(entries, m)
			}
		case !errors.Is(err, jetstream.ErrMsgNotFound):
			t.Fatal(err)
		}
		messages = append(messages, m)
	}
	if len(entries) == 0 {
		t.Logf("the log has no entry to damage: %+v", info.State)
		return
	}
	damaged := entries[n%len(entries)]
	damaged.Data[len(damaged.Data)/2] ^= 0x20
	config := info.Config
	config.FirstSeq = info.State.FirstSeq
	if err := js.DeleteStream(t.Context(), config.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
}

// A replica that joins from a damaged log requests the missing updates from a replica that has them.
func TestUpdatesOfADamagedEntryAreRequested(t *testing.T) {
	s := testbed.StartNATS(t)
	mars := open(t, s, natslog.Options{Agent: "mars"})
	for i := range 5 {
		appendTo(t, mars, fmt.Sprint(i))
		flush(t, mars)
	}
	tamper(t, s, 2)
	venus := open(t, s, natslog.Options{Agent: "venus"})
	until(t, "all is here", venus, func() bool { return len(list(t, venus)) == 5 })
	appendTo(t, venus, "5")
	appendTo(t, mars, "6")
	same(t, mars, venus)
	exactly(t, venus, map[string]bool{"0": true, "1": true, "2": true, "3": true, "4": true, "5": true, "6": true})
	status, err := venus.Status(t.Context())
	if err != nil || status.Parked != 0 {
		t.Errorf("structs are still parked: %+v %v", status, err)
	}
}

// When the server has lost the log, the replicas create it again from their state.
func TestALostLogIsRestored(t *testing.T) {
	s := testbed.StartNATS(t)
	mars := open(t, s, natslog.Options{Agent: "mars"})
	venus := open(t, s, natslog.Options{Agent: "venus"})
	for i := range 6 {
		appendTo(t, mars, fmt.Sprint("m", i))
		appendTo(t, venus, fmt.Sprint("v", i))
		flush(t, mars)
	}
	want := same(t, mars, venus)
	s.Stop()
	js := func() jetstream.JetStream { s.Start(); return s.Foreign() }()
	for _, name := range []string{"parley_DOCLOG", "parley_DOCLOG_SNAP", "KV_parley_doclog_head"} {
		if err := js.DeleteStream(t.Context(), name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Fatal(err)
		}
	}
	s.Stop() // so that all replicas reconnect and notice
	s.Start()
	late := open(t, s, natslog.Options{Agent: "late"})
	until(t, "the document is back", late, func() bool { return bytes.Equal(state(t, late), want) })
	appendTo(t, late, "new")
	same(t, mars, venus, late)
}

// When only the head of a document is lost, a replica stores it again, so that new replicas get purged content.
func TestALostHeadIsRestored(t *testing.T) {
	s := testbed.StartNATS(t)
	mars := open(t, s, natslog.Options{Agent: "mars"})
	for i := range 3 {
		appendTo(t, mars, fmt.Sprint(i))
		flush(t, mars)
		if err := mars.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := state(t, mars)
	if err := s.Foreign().DeleteKeyValue(t.Context(), "parley_doclog_head"); err != nil {
		t.Fatal(err)
	}
	s.Stop() // so that the replicas reconnect and notice
	s.Start()
	heads := func() bool {
		kv, err := s.Foreign().KeyValue(t.Context(), "parley_doclog_head")
		if err != nil {
			return false
		}
		_, err = kv.Get(t.Context(), "plan")
		return err == nil
	}
	until(t, "the head is back", mars, heads)
	if late := open(t, s, natslog.Options{Agent: "late"}); !bytes.Equal(state(t, late), want) {
		t.Error("a late replica has a different document")
	}
}

// The last entry of a writer is deleted from the log without a trace. A new replica still gets the update, because
// replicas at the same log position compare digests.
func TestADeletedLastEntryIsDetected(t *testing.T) {
	s := testbed.StartNATS(t)
	// The administrator's stream permits the deletion of messages.
	stream, err := s.Foreign().CreateStream(t.Context(), jetstream.StreamConfig{Name: "parley_DOCLOG", Subjects: []string{"parley.doclog.*.*.log"}})
	if err != nil {
		t.Fatal(err)
	}
	mars := open(t, s, natslog.Options{Agent: "mars"})
	venus := open(t, s, natslog.Options{Agent: "venus"})
	appendTo(t, venus, "only once")
	same(t, mars, venus)
	venus.Close()
	appendTo(t, mars, "later")
	flush(t, mars)
	if err := stream.DeleteMsg(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	late := open(t, s, natslog.Options{Agent: "late", Interval: 50 * time.Millisecond})
	until(t, "all is here", late, func() bool { return len(list(t, late)) == 2 })
	same(t, mars, late)
}

// A change larger than the update limit travels in a snapshot; its writer sees that the entry cannot be read.
func TestAChangeBeyondTheLimits(t *testing.T) {
	s := testbed.StartNATS(t)
	limits := crdt.LiveLimits()
	limits.AnyElements = 10
	mars := open(t, s, natslog.Options{Agent: "mars", Limits: &limits})
	venus := open(t, s, natslog.Options{Agent: "venus", Limits: &limits})
	want := map[string]bool{}
	edit(t, mars, func(doc *crdt.Doc) error {
		for i := range 30 {
			want[fmt.Sprint(i)] = true
			if err := doc.Array("l").Append(fmt.Sprint(i)); err != nil {
				return err
			}
		}
		return nil
	})
	appendTo(t, venus, "small")
	want["small"] = true
	same(t, mars, venus)
	exactly(t, venus, want)
}

// When the newest snapshot is lost, a new replica starts from the previous one and the log after it.
func TestThePreviousSnapshotReplacesALostOne(t *testing.T) {
	s := testbed.StartNATS(t)
	mars := open(t, s, natslog.Options{Agent: "mars"})
	for i := range 3 {
		for j := range 4 {
			appendTo(t, mars, fmt.Sprint(i, j))
		}
		flush(t, mars)
		if err := mars.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := state(t, mars)
	mars.Close()
	js := s.Foreign()
	parts, err := js.Stream(t.Context(), "parley_DOCLOG_SNAP")
	if err != nil {
		t.Fatal(err)
	}
	info, err := parts.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last, err := parts.GetMsg(t.Context(), info.State.LastSeq)
	if err != nil {
		t.Fatal(err)
	}
	if err := parts.Purge(t.Context(), jetstream.WithPurgeSubject(last.Subject)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first repairs the head, the second reads it
		var logs lines
		late := open(t, s, natslog.Options{Agent: "late", Logger: logger(&logs)})
		if !bytes.Equal(state(t, late), want) {
			t.Error("the document differs")
		}
		until(t, "the snapshot is whole", late, func() bool { return late.Snapshot(t.Context()) == nil })
		late.Close()
	}
}

// A state too large for one entry travels in a snapshot.
func TestALargeState(t *testing.T) {
	s := testbed.StartNATS(t)
	mars := open(t, s, natslog.Options{Agent: "mars"})
	venus := open(t, s, natslog.Options{Agent: "venus"})
	elsewhere := crdt.New(crdt.Options{})
	for i := range 8 {
		if _, err := elsewhere.Transact(nil, func() error { return elsewhere.Map("m").Set(fmt.Sprint(i), strings.Repeat("x", 200_000)) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := mars.Submit(t.Context(), "mars", elsewhere.Snapshot(), true); err != nil {
		t.Fatal(err)
	}
	appendTo(t, mars, "small")
	same(t, mars, venus)
	exactly(t, venus, map[string]bool{"small": true})
}

// A document begins a new epoch during concurrent edits; no edit is lost or duplicated.
func TestANewEpochDuringConcurrentEdits(t *testing.T) {
	s := testbed.StartNATS(t)
	names := []string{"a", "b", "c"}
	var all []*natslog.Document
	for _, name := range names {
		all = append(all, open(t, s, natslog.Options{Agent: name, SnapshotEvery: 10, Logger: logger(t.Output()), Counters: []string{"n"}}))
	}
	want := map[string]bool{}
	for round := range 4 {
		for i, d := range all {
			for j := range 15 {
				text := fmt.Sprintf("%d-%d-%d", round, i, j)
				want[text] = true
				edit(t, d, func(doc *crdt.Doc) error {
					if err := doc.Counter("n").Add(1); err != nil {
						return err
					}
					if err := doc.Map("m").Set("k", text); err != nil {
						return err
					}
					return doc.Array("l").Insert(0, text)
				})
			}
		}
		ended := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			ended <- all[round%2].Compact(ctx)
		}()
		for i, d := range all {
			for j := range 15 {
				text := fmt.Sprintf("late-%d-%d-%d", round, i, j)
				want[text] = true
				edit(t, d, func(doc *crdt.Doc) error {
					if err := doc.Counter("n").Add(1); err != nil {
						return err
					}
					return doc.Array("l").Append(text)
				})
			}
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		for _, d := range all {
			until(t, "the epoch is there", d, func() bool { return d.Epoch() > uint64(round) })
		}
	}
	final := same(t, all...)
	for i, d := range all {
		exactly(t, d, want)
		if err := d.View(t.Context(), func(doc *crdt.Doc) {
			if n := doc.Counter("n").Value(); n != int64(len(want)) {
				t.Errorf("%s counts %v, of %d", names[i], n, len(want))
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	late := open(t, s, natslog.Options{Agent: "late"})
	if !bytes.Equal(state(t, late), final) || late.Epoch() != all[0].Epoch() {
		t.Error("a late replica has a different document")
	}
}

// gate is a network connection that tests can block.
type gate struct {
	mu    sync.Mutex
	isIt  bool
	conns []net.Conn
}

func (g *gate) Dial(network, address string) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isIt {
		return nil, errors.New("the connection is blocked")
	}
	c, err := net.Dial(network, address)
	if err == nil {
		g.conns = append(g.conns, c)
	}
	return c, err
}

func (g *gate) shut(isIt bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isIt = isIt; isIt {
		for _, c := range g.conns {
			c.Close()
		}
		g.conns = nil
	}
}

// gated returns a document whose connection can be blocked.
func gated(t testing.TB, s *testbed.Server, o natslog.Options) (*natslog.Document, *gate) {
	t.Helper()
	g := new(gate)
	return openWith(t, connect(t, s, nats.SetCustomDialer(g)), o), g
}

// compact begins several new epochs, with an edit in each.
func compact(t *testing.T, d *natslog.Document, epochs int) {
	t.Helper()
	for i := range epochs {
		appendTo(t, d, fmt.Sprint("epoch ", i))
		if err := d.Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A replica that was disconnected while epochs ended carries its unsent edits over.
func TestEditsAreCarriedOverThroughEpochs(t *testing.T) {
	s := testbed.StartNATS(t)
	mars := open(t, s, natslog.Options{Agent: "mars"})
	venus, g := gated(t, s, natslog.Options{Agent: "venus"})
	appendTo(t, venus, "sent")
	same(t, mars, venus)
	g.shut(true)
	appendTo(t, venus, "kept")
	edit(t, venus, func(doc *crdt.Doc) error { return doc.Array("l").Delete(0, 1) }) // "sent"
	compact(t, mars, 3)
	g.shut(false)
	same(t, venus, mars)
	until(t, "venus follows", venus, func() bool { return venus.Epoch() == 3 })
	same(t, venus, mars)
	exactly(t, mars, map[string]bool{"kept": true, "epoch 0": true, "epoch 1": true, "epoch 2": true})
}

// A replica that was disconnected for too long continues without its unsent edits, and the application receives
// them.
func TestDisconnectedForTooManyEpochs(t *testing.T) {
	s := testbed.StartNATS(t)
	mars := open(t, s, natslog.Options{Agent: "mars"})
	venus, g := gated(t, s, natslog.Options{Agent: "venus"})
	appendTo(t, mars, "both")
	same(t, mars, venus)
	left := make(chan []byte, 64)
	venus.OnUpdate(func(u replica.Update) {
		if u.Began {
			left <- u.Left
		}
	})
	g.shut(true)
	appendTo(t, venus, "never sent")
	before := state(t, venus)
	compact(t, mars, 17) // more epochs than origins are kept
	g.shut(false)
	if !bytes.Equal(<-left, before) {
		t.Error("the application did not receive the unsent edits")
	}
	var lost *natslog.Error
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := venus.Flush(ctx); !errors.As(err, &lost) || lost.Code != natslog.CodeLost {
		t.Errorf("Flush reports lost edits by %v", err)
	}
	appendTo(t, venus, "anew")
	same(t, mars, venus)
	status, err := venus.Status(t.Context())
	if err != nil || status.Lost != 1 {
		t.Errorf("lost edits were counted %d times, %v", status.Lost, err)
	}
}
