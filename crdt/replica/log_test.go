package replica_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
)

// memoryLog has what replicas that share a log give it, in one order, as it travels.
type memoryLog struct {
	mu      sync.Mutex
	entries [][]byte
}

func (l *memoryLog) put(m *replica.Message) {
	b, err := m.MarshalBinary()
	if err != nil {
		panic(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, b)
}

func (l *memoryLog) message(t *testing.T, i int) *replica.Message {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	m := new(replica.Message)
	if err := m.UnmarshalBinary(l.entries[i]); err != nil {
		t.Fatal(err)
	}
	return m
}

func (l *memoryLog) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries)
}

// logged returns a replica that shares a log.
func logged(t *testing.T, l *memoryLog, o replica.Options) *replica.Replica {
	t.Helper()
	o.State, o.Log = "plan", l.put
	r, err := replica.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// read gives a replica the log's entries in their order, without those that are left out, and reports whether
// something was missing.
func (l *memoryLog) read(t *testing.T, r *replica.Replica, from int, without ...int) (missing bool) {
	t.Helper()
	left := map[int]bool{}
	for _, i := range without {
		left[i] = true
	}
	for i := from; i < l.len(); i++ {
		if left[i] {
			continue
		}
		lacks, err := r.Receive(t.Context(), l.message(t, i))
		if err != nil {
			t.Fatal(err)
		}
		missing = missing || lacks
	}
	return missing
}

func push(t *testing.T, r *replica.Replica, text string) {
	t.Helper()
	if err := r.Edit(t.Context(), func(d *crdt.Doc) error { return d.Array("l").Append(text) }); err != nil {
		t.Fatal(err)
	}
}

func saved(t *testing.T, r *replica.Replica) replica.Saved {
	t.Helper()
	s, err := r.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func equal(t *testing.T, a, b *replica.Replica) {
	t.Helper()
	if !bytes.Equal(saved(t, a).Update, saved(t, b).Update) {
		t.Error("the replicas differ")
	}
}

// Replicas that read one log are the same, however often they read it (Req 9.1, 9.2, Property 27).
func TestALogsReplicasAreTheSame(t *testing.T) {
	var l memoryLog
	mars, venus := logged(t, &l, replica.Options{Agent: "mars"}), logged(t, &l, replica.Options{Agent: "venus"})
	at := 0
	for i := range 10 {
		push(t, mars, fmt.Sprint("m", i))
		push(t, venus, fmt.Sprint("v", i))
		if l.read(t, mars, at) || l.read(t, venus, 0) {
			t.Fatal("something is missing")
		}
		at = l.len()
	}
	equal(t, mars, venus)
	if l.len() != 20 {
		t.Errorf("the log has %d entries: what came from it went there again", l.len())
	}
}

// What follows a lost entry is applied all the same, and counts once a state has brought what was lost.
func TestALogWithAHole(t *testing.T) {
	var l memoryLog
	mars, venus := logged(t, &l, replica.Options{Agent: "mars"}), logged(t, &l, replica.Options{Agent: "venus"})
	for i := range 6 {
		push(t, mars, fmt.Sprint(i))
	}
	middle := saved(t, mars)
	if !l.read(t, venus, 0, 2) {
		t.Fatal("nobody noticed the hole")
	}
	if err := venus.Load(t.Context(), middle); err != nil {
		t.Fatal(err)
	}
	equal(t, mars, venus)
	push(t, mars, "6")
	if l.read(t, venus, 6) {
		t.Error("something is missing still")
	}
	equal(t, mars, venus)

	// With a state of before the end, those behind it count too.
	late := logged(t, &l, replica.Options{Agent: "late"})
	if !l.read(t, late, 0, 1) {
		t.Fatal("nobody noticed the hole")
	}
	first := logged(t, &memoryLog{}, replica.Options{Agent: "first"})
	for i := range 3 {
		if _, err := first.Receive(t.Context(), l.message(t, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := late.Load(t.Context(), saved(t, first)); err != nil {
		t.Fatal(err)
	}
	push(t, mars, "7")
	if l.read(t, late, 7) {
		t.Error("what was applied ahead was not counted")
	}
	equal(t, mars, late)
}

// What an agent must not write is refused by all who read the log.
func TestALogsReadersKeepToTheRights(t *testing.T) {
	var l memoryLog
	mallory := logged(t, &l, replica.Options{Agent: "mallory"})
	mars := logged(t, &l, replica.Options{Agent: "mars", Access: func(agent string) replica.Access {
		if agent == "mallory" {
			return replica.Read
		}
		return replica.Read | replica.Write
	}})
	push(t, mallory, "no")
	push(t, mallory, "no again")
	l.read(t, mars, 0)
	status, err := mars.Status(t.Context())
	if err != nil || status.Refused != 2 || status.Items != 0 {
		t.Errorf("%+v %v", status, err)
	}
}

// A message of a log that was damaged is not read (Req 9.5), and one of another epoch not applied.
func TestALogsBadMessages(t *testing.T) {
	var l memoryLog
	mars, venus := logged(t, &l, replica.Options{Agent: "mars"}), logged(t, &l, replica.Options{Agent: "venus", Epoch: 3})
	push(t, mars, "text")
	for i := range l.entries[0] {
		b := bytes.Clone(l.entries[0])
		b[i] ^= 0x10
		if err := new(replica.Message).UnmarshalBinary(b); err != nil && crdt.CodeOf(err) != crdt.CodeDeserialization {
			t.Fatalf("byte %d: %v", i, err)
		}
		if err := new(replica.Message).UnmarshalBinary(b[:i]); crdt.CodeOf(err) != crdt.CodeDeserialization {
			t.Fatalf("%d bytes: %v", i, err)
		}
	}
	var late *replica.Error
	if _, err := venus.Receive(t.Context(), l.message(t, 0)); !errors.As(err, &late) || late.Code != replica.CodeLate {
		t.Errorf("a message of another epoch: %v", err)
	}
	if err := venus.Load(t.Context(), saved(t, mars)); !errors.As(err, &late) || late.Code != replica.CodeLate {
		t.Errorf("a state of another epoch: %v", err)
	}
	m := l.message(t, 0)
	m.Kind = replica.KindDigest
	if _, err := mars.Receive(t.Context(), m); crdt.CodeOf(err) != crdt.CodeDeserialization {
		t.Errorf("a digest: %v", err)
	}
	if err := mars.Compact(t.Context()); err == nil {
		t.Error("a replica with a log began an epoch by itself")
	}
}

// Replicas go on to another epoch from its origin, each with what only it has, once.
func TestALogsEpochs(t *testing.T) {
	var l memoryLog
	mars, venus := logged(t, &l, replica.Options{Agent: "mars"}), logged(t, &l, replica.Options{Agent: "venus"})
	push(t, mars, "first")
	l.read(t, venus, 0)
	next := replica.Next{Epoch: 1, Origin: saved(t, mars).Update, Client: 77, Counters: []string{"n"}}
	state, err := next.State(nil)
	if err != nil {
		t.Fatal(err)
	}
	push(t, venus, "late")
	if err := venus.Advance(t.Context(), next, func([]byte) bool { return false }); err == nil || venus.Epoch() != 0 {
		t.Errorf("it went on to a state that is another: %v", err)
	}
	at := l.len()
	for _, r := range []*replica.Replica{mars, venus} {
		if err := r.Advance(t.Context(), next, func(s []byte) bool { return bytes.Equal(s, state) }); err != nil {
			t.Fatal(err)
		}
	}
	l.read(t, mars, at)
	equal(t, mars, venus)
	var texts []string
	if err := mars.View(t.Context(), func(d *crdt.Doc) {
		for _, v := range d.Array("l").All() {
			texts = append(texts, fmt.Sprint(v))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(texts, " "); got != "first late" {
		t.Errorf("the list has %q", got)
	}

	left := make(chan replica.Update, 1)
	defer venus.OnUpdate(func(u replica.Update) {
		if u.Began {
			left <- u
		}
	})()
	want := saved(t, venus).Update
	if err := venus.Leave(t.Context(), replica.Saved{Epoch: 9, Update: state}, true); err != nil {
		t.Fatal(err)
	}
	if u := <-left; !bytes.Equal(u.Left, want) || u.Message.Epoch != 9 {
		t.Error("the application did not get what was left")
	}
	if s, err := venus.Status(t.Context()); err != nil || s.Lost != 1 || s.Epoch != 9 {
		t.Errorf("%+v %v", s, err)
	}
}

// What comes by channels goes to the log, and the other way round: updates and states.
func TestALogAndChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l memoryLog
		n := newNetwork()
		bridge, far := logged(t, &l, replica.Options{Agent: "bridge"}), logged(t, &l, replica.Options{Agent: "far"})
		near := newReplica(t, replica.Options{Agent: "near", State: "plan"})
		t.Cleanup(func() { near.Close() })
		push(t, near, "before they are linked")
		attach(t, n, "bridge", "near", bridge, near)
		n.settle()
		push(t, near, "by channel")
		n.settle()
		push(t, far, "by log")
		elsewhere := crdt.New(crdt.Options{})
		for i := range 4 { // more than a message may have
			if _, err := elsewhere.Transact(nil, func() error {
				return elsewhere.Map("m").Set(fmt.Sprint(i), strings.Repeat("x", 200_000))
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := bridge.Submit(t.Context(), "page", elsewhere.EncodeSince(nil), true); err != nil {
			t.Fatal(err)
		}
		large := l.len() - 1
		if missing := l.read(t, far, 0, large); missing {
			t.Error("something is missing")
		}
		if missing := l.read(t, bridge, 0, large); missing {
			t.Error("something is missing")
		}
		if err := far.Load(t.Context(), saved(t, bridge)); err != nil {
			t.Fatal(err)
		}
		equal(t, bridge, far)
		n.settle()
		time.Sleep(40 * time.Second) // of the bubble: digests tell of what was too large to be sent
		n.settle()
		equal(t, bridge, near)
		if got := content(t, near); !strings.Contains(got, "by log") {
			t.Errorf("what came by the log did not go by the channel: %s", got[:min(len(got), 200)])
		}
	})
}

// Whatever the last state of an epoch lacks of a writer, also in the middle, the writer carries over, once: what it
// inserted and what it added to a counter.
func TestALogsWriterCarriesOverWhatIsMissing(t *testing.T) {
	const edits = 5
	for had := range 1 << edits {
		var l memoryLog
		mars, late := logged(t, &l, replica.Options{Agent: "mars"}), logged(t, &l, replica.Options{Agent: "late"})
		for i := range edits {
			if err := mars.Edit(t.Context(), func(d *crdt.Doc) error {
				if err := d.Counter("n").Add(1); err != nil {
					return err
				}
				return d.Array("l").Insert(0, fmt.Sprint(i))
			}); err != nil {
				t.Fatal(err)
			}
		}
		var without []int
		for i := range edits {
			if had>>i&1 == 0 {
				without = append(without, i)
			}
		}
		l.read(t, late, 0, without...)
		next := replica.Next{Epoch: 1, Origin: saved(t, late).Update, Client: 77, Counters: []string{"n"}}
		at := l.len()
		for _, r := range []*replica.Replica{mars, late} {
			if err := r.Advance(t.Context(), next, func([]byte) bool { return true }); err != nil {
				t.Fatal(err)
			}
		}
		l.read(t, late, at)
		equal(t, mars, late)
		if err := mars.View(t.Context(), func(d *crdt.Doc) {
			if n, texts := d.Counter("n").Value(), d.Array("l").Len(); n != edits || texts != edits {
				t.Errorf("without %v of %d edits the counter says %d, and there are %d texts", without, edits, n, texts)
			}
		}); err != nil {
			t.Fatal(err)
		}
		mars.Close()
		late.Close()
	}
}

// A keeper whose journal has lost its end gets the edits back from who has them, and tells of it.
func TestAJournalThatLostItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		rights := func(agent string) replica.Access {
			if agent == "hub" {
				return replica.Read | replica.Write | replica.Relay | replica.Keep
			}
			return replica.Read | replica.Write
		}
		var heard bytes.Buffer
		begin := func(s *replica.Saved) *replica.Replica {
			r := newReplica(t, replica.Options{
				Agent: "hub", State: "plan", Saved: s, Access: rights, Journal: func([]byte) {}, Logger: slog.New(slog.NewTextHandler(&heard, nil)),
			})
			t.Cleanup(func() { r.Close() })
			return r
		}
		mars := newReplica(t, replica.Options{Agent: "mars", State: "plan"})
		t.Cleanup(func() { mars.Close() })
		hub := begin(nil)
		attach(t, n, "hub", "mars", hub, mars)
		push(t, mars, "of mars")
		n.settle()
		early := saved(t, hub)
		push(t, hub, "of the hub")
		n.settle()
		if heard.Len() > 0 {
			t.Errorf("nothing is lost, and it tells:\n%s", heard.String())
		}
		hub.Close()

		again := begin(&early)
		attach(t, n, "hub", "mars", again, mars)
		n.settle()
		equal(t, again, mars)
		if !strings.Contains(heard.String(), "the log has lost them") {
			t.Errorf("it tells:\n%s", heard.String())
		}
	})
}
