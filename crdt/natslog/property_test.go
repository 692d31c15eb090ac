package natslog_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/natslog"
	"github.com/parleyhub/parley/internal/testbed"
)

// world has a server, replicas of a document on it, and a record of all edits.
type world struct {
	t       *testing.T
	s       *testbed.Server
	js      jetstream.JetStream // of an unrelated client
	members []*member
	texts   int
	inList  map[string]bool // by text: whether it must be in the list, once
	unknown map[string]bool // texts of unknown state
	adds    int             // confirmed additions to the counter
	perhaps int             // additions of unknown state
	epochs  int
}

// member is one replica.
type member struct {
	*natslog.Document
	name  string
	g     *gate
	away  bool
	fresh []string // texts inserted or deleted, not confirmed by Flush yet
	adds  int
}

func (w *world) join(name string) {
	d, g := gated(w.t, w.s, natslog.Options{
		Agent: name, SnapshotEvery: 12, Interval: 100 * time.Millisecond, Counters: []string{"n"}, Logger: logger(w.t.Output()),
	})
	w.members = append(w.members, &member{Document: d, name: name, g: g})
}

// insert inserts a text at a member.
func (w *world) insert(m *member, place float64) {
	w.texts++
	text := fmt.Sprintf("%s-%d", m.name, w.texts)
	edit(w.t, m.Document, func(doc *crdt.Doc) error {
		if err := doc.Counter("n").Add(1); err != nil {
			return err
		}
		l := doc.Array("l")
		return l.Insert(int(place*float64(l.Len())), text)
	})
	w.inList[text] = true
	m.adds++
	m.fresh = append(m.fresh, text)
}

// remove deletes a text at a member that has one.
func (w *world) remove(m *member, place float64) {
	var text string
	edit(w.t, m.Document, func(doc *crdt.Doc) error {
		l := doc.Array("l")
		if l.Len() == 0 {
			return nil
		}
		at := int(place * float64(l.Len()))
		v, _ := l.Get(at)
		text = fmt.Sprint(v)
		return l.Delete(at, 1)
	})
	if text != "" {
		w.inList[text] = false
		m.fresh = append(m.fresh, text)
	}
}

func (w *world) flush(m *member) {
	flush(w.t, m.Document)
	w.adds += m.adds
	m.adds, m.fresh = 0, nil
}

// kill ends a member without Flush. Its last edits may or may not be stored.
func (w *world) kill(m *member) {
	m.Close()
	for _, text := range m.fresh {
		w.unknown[text] = true
	}
	w.perhaps += m.adds
	w.members = slices.DeleteFunc(w.members, func(o *member) bool { return o == m })
}

func (w *world) connect(m *member) {
	m.g.shut(false)
	m.away = false
}

// settle waits until all members are connected and have the same state.
func (w *world) settle() {
	var all []*natslog.Document
	for _, m := range w.members {
		w.connect(m)
	}
	for _, m := range w.members {
		w.flush(m)
		all = append(all, m.Document)
	}
	same(w.t, all...)
}

// check compares a document with the record of edits.
func (w *world) check(d *natslog.Document) {
	times := map[string]int{}
	for _, text := range list(w.t, d) {
		times[text]++
	}
	for text, is := range w.inList {
		switch n := times[text]; {
		case n > 1, w.unknown[text]:
			if n > 1 {
				w.t.Errorf("%s is there %d times", text, n)
			}
		case is != (n == 1):
			w.t.Errorf("%s is there %d times; inserted and not deleted: %v", text, n, is)
		}
	}
	if err := d.View(w.t.Context(), func(doc *crdt.Doc) {
		if n := doc.Counter("n").Value(); n < int64(w.adds) || n > int64(w.adds+w.perhaps) {
			w.t.Errorf("the counter says %d; expected %d to %d", n, w.adds, w.adds+w.perhaps)
		}
	}); err != nil {
		w.t.Fatal(err)
	}
}

// Replicas edit, join late, are killed and return with another client id; the server stops, connections break,
// snapshots purge the log, epochs end, entries are damaged and other clients publish garbage. In the end all
// replicas have the same bytes, with each edit once (Req 9.3, 9.5, Property 28).
func TestPropertyReplicasOfALogConverge(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		// Each check takes seconds; -rapid.checks sets more.
		if err := f.Value.Set("4"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Value.Set(f.DefValue) }() // Set accepted this value before
	}
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{t: t, s: testbed.StartNATS(t), inList: map[string]bool{}, unknown: map[string]bool{}}
		w.js = w.s.Foreign()
		w.join("a")
		w.join("b")
		names := 0
		one := func() *member { return rapid.SampledFrom(w.members).Draw(rt, "member") }
		place := func() float64 { return rapid.Float64Range(0, 0.999).Draw(rt, "place") }
		newcomer := func() { names++; w.join(fmt.Sprint("c", names)) }
		compact := func(m *member) {
			if w.epochs++; w.epochs > 10 { // a replica disconnected for 16 epochs loses edits
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := m.Compact(ctx); err != nil {
				t.Fatal(err)
			}
		}
		actions := map[string]func(){
			"insert": func() { w.insert(one(), place()) },
			"some": func() {
				for m := range rapid.IntRange(1, 8).Draw(rt, "how many") {
					w.insert(w.members[m%len(w.members)], place())
				}
			},
			"remove": func() { w.remove(one(), place()) },
			"flush": func() {
				if m := one(); !m.away {
					w.flush(m)
				}
			},
			"join": func() {
				if len(w.members) < 4 {
					newcomer()
				}
			},
			"come back": func() {
				m := one()
				w.connect(m)
				w.flush(m)
				w.kill(m)
				w.join(m.name)
			},
			"kill": func() {
				if len(w.members) > 1 {
					w.kill(one())
				}
			},
			"cut":  func() { m := one(); m.away = true; m.g.shut(true) },
			"mend": func() { w.connect(one()) },
			"restart": func() {
				w.s.Stop()
				for _, m := range w.members {
					w.insert(m, place())
				}
				w.s.Start()
			},
			"snapshot": func() {
				if m := one(); !m.away {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					if err := m.Snapshot(ctx); err != nil && ctx.Err() != nil {
						t.Fatal(err)
					}
				}
			},
			"compact": func() {
				if m := one(); !m.away {
					compact(m)
				}
			},
			"nonsense": func() {
				subject := fmt.Sprintf("parley.doclog.plan.%d.log", one().Epoch())
				// It fails while the stream is missing.
				if _, err := w.js.Publish(t.Context(), subject, []byte("nonsense")); err != nil && !errors.Is(err, jetstream.ErrNoStreamResponse) {
					t.Fatal(err)
				}
			},
			"damage": func() { // an entry that a member has read, but a new replica has not
				w.settle()
				tamper(t, w.s, rapid.IntRange(0, 1000).Draw(rt, "entry"))
				newcomer()
				late := w.members[len(w.members)-1]
				if rapid.Bool().Draw(rt, "compact") {
					compact(late)
				}
				w.settle()
				w.check(late.Document)
			},
		}
		kinds := []string{"insert", "some", "some", "remove", "flush", "join", "come back", "kill", "cut", "mend", "restart", "snapshot", "compact", "nonsense", "damage"}
		for range rapid.IntRange(8, 25).Draw(rt, "steps") {
			kind := rapid.SampledFrom(kinds).Draw(rt, "kind")
			t.Log("= ", kind)
			actions[kind]()
		}
		w.settle()
		w.join("last")
		w.settle()
		for _, m := range w.members {
			w.check(m.Document)
			m.Close()
		}
		w.s.Stop()
		if t.Failed() {
			t.FailNow() // shrinking a slow case takes too long
		}
	})
}
