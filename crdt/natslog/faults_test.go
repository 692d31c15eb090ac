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

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/natslog"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/natstest"
)

const subject = "parley.doclog.plan.0.log"

// An entry that cannot be read is logged with its source and skipped (Req 9.5).
func TestABadEntryIsSkipped(t *testing.T) {
	s := natstest.Start(t)
	var heard lines
	mars := open(t, s, natslog.Options{Agent: "mars", Logger: logger(&heard)})
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
	until(t, "the source is logged", mars, func() bool { return heard.has("skipped an entry", "source=mallory") })
}

// tamper replaces the n-th entry of the log by a damaged one, as a disk might: in a new stream with the same entries.
func tamper(t *testing.T, s *natstest.Server, n int) {
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
	var entries []*nats.Msg
	for sequence := info.State.FirstSeq; sequence <= info.State.LastSeq; sequence++ {
		raw, err := stream.GetMsg(t.Context(), sequence)
		if err != nil {
			t.Fatal(err)
		}
		m := nats.NewMsg(raw.Subject)
		m.Header, m.Data = raw.Header, bytes.Clone(raw.Data)
		entries = append(entries, m)
	}
	entries[n].Data[len(entries[n].Data)/2] ^= 0x20
	if err := js.DeleteStream(t.Context(), "parley_DOCLOG"); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), info.Config); err != nil {
		t.Fatal(err)
	}
	for _, m := range entries {
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
}

// Who joins by a damaged log asks, and gets what it misses from a replica that read it before.
func TestWhatADamagedEntryHadIsAskedFor(t *testing.T) {
	s := natstest.Start(t)
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
		t.Errorf("something waits still: %+v %v", status, err)
	}
}

// A log that the server has lost is made again from what the replicas have.
func TestALostLogIsMadeAgain(t *testing.T) {
	s := natstest.Start(t)
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
	s.Stop() // so that all notice
	s.Start()
	late := open(t, s, natslog.Options{Agent: "late"})
	until(t, "the document is back", late, func() bool { return bytes.Equal(state(t, late), want) })
	appendTo(t, late, "new")
	same(t, mars, venus, late)
}

// The newest snapshot is lost: who joins starts from the one before, and the log behind it.
func TestOfTwoSnapshotsOneIsWhole(t *testing.T) {
	s := natstest.Start(t)
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
	for range 2 { // the second finds what the first has mended
		var heard lines
		late := open(t, s, natslog.Options{Agent: "late", Logger: logger(&heard)})
		if !bytes.Equal(state(t, late), want) {
			t.Error("the document is another")
		}
		until(t, "the snapshot is whole", late, func() bool { return late.Snapshot(t.Context()) == nil })
		late.Close()
	}
}

// A state that is too large for an entry comes with a snapshot.
func TestALargeState(t *testing.T) {
	s := natstest.Start(t)
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

// A document begins a new epoch while all edit; nothing is lost, nothing doubles.
func TestANewEpochWhileAllEdit(t *testing.T) {
	s := natstest.Start(t)
	names := []string{"a", "b", "c"}
	var all []*natslog.Document
	for _, name := range names {
		all = append(all, open(t, s, natslog.Options{Agent: name, SnapshotEvery: 10, Counters: []string{"n"}}))
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
		t.Error("who comes late has another document")
	}
}

// gate is a network that can be shut.
type gate struct {
	mu    sync.Mutex
	isIt  bool
	conns []net.Conn
}

func (g *gate) Dial(network, address string) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isIt {
		return nil, errors.New("the gate is shut")
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

// Who was away while its epoch ended, and its log went, goes on without what it had not sent, and the application gets that.
func TestAwayForTooLong(t *testing.T) {
	s := natstest.Start(t)
	mars := open(t, s, natslog.Options{Agent: "mars"})
	var g gate
	js, err := jetstream.New(connect(t, s, nats.SetCustomDialer(&g)))
	if err != nil {
		t.Fatal(err)
	}
	venus, err := natslog.Open(t.Context(), js, natslog.Options{Agent: "venus", Document: "plan"})
	if err != nil {
		t.Fatal(err)
	}
	defer venus.Close()
	appendTo(t, mars, "both")
	same(t, mars, venus)
	left := make(chan []byte, 16)
	venus.OnUpdate(func(u replica.Update) {
		if u.Began {
			left <- u.Left
		}
	})
	g.shut(true)
	appendTo(t, venus, "never sent")
	before := state(t, venus)
	for range 2 {
		appendTo(t, mars, "more")
		if err := mars.Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	g.shut(false)
	got := <-left
	if !bytes.Equal(got, before) {
		t.Error("the application did not get what was left")
	}
	until(t, "they are the same", venus, func() bool { return bytes.Equal(state(t, mars), state(t, venus)) })
}
