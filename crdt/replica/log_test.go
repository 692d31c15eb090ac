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

// memoryLog stores the encoded entries of replicas that share a log, in one order.
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

// read applies the log's entries to a replica in order, except those in without, and reports whether updates were
// missing.
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

// Replicas that read one log are equal, however often they read it (Req 9.1, 9.2, Property 27).
func TestReplicasOfOneLogAreEqual(t *testing.T) {
	var l memoryLog
	mars, venus := logged(t, &l, replica.Options{Agent: "mars"}), logged(t, &l, replica.Options{Agent: "venus"})
	at := 0
	for i := range 10 {
		push(t, mars, fmt.Sprint("m", i))
		push(t, venus, fmt.Sprint("v", i))
		if l.read(t, mars, at) || l.read(t, venus, 0) {
			t.Fatal("updates are missing")
		}
		at = l.len()
	}
	equal(t, mars, venus)
	if l.len() != 20 {
		t.Errorf("the log has %d entries: updates read from it were written again", l.len())
	}
}

// Entries after a lost one are applied, and count once a state has brought the lost updates.
func TestALogWithAGap(t *testing.T) {
	var l memoryLog
	mars, venus := logged(t, &l, replica.Options{Agent: "mars"}), logged(t, &l, replica.Options{Agent: "venus"})
	for i := range 6 {
		push(t, mars, fmt.Sprint(i))
	}
	middle := saved(t, mars)
	if !l.read(t, venus, 0, 2) {
		t.Fatal("the gap was not detected")
	}
	if err := venus.Load(t.Context(), middle); err != nil {
		t.Fatal(err)
	}
	equal(t, mars, venus)
	push(t, mars, "6")
	if l.read(t, venus, 6) {
		t.Error("updates are still missing")
	}
	equal(t, mars, venus)

	// A state from before the end counts together with the entries after it.
	late := logged(t, &l, replica.Options{Agent: "late"})
	if !l.read(t, late, 0, 1) {
		t.Fatal("the gap was not detected")
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
		t.Error("entries applied ahead were not counted")
	}
	equal(t, mars, late)
}

// Every reader of the log refuses updates that their author has no right to make.
func TestLogReadersEnforceRights(t *testing.T) {
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

// A damaged log message is not decoded (Req 9.5), and one of another epoch is not applied.
func TestBadLogMessagesAreRefused(t *testing.T) {
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

// Replicas enter another epoch from its origin and carry their own unsent edits over, once.
func TestLogReplicasChangeEpochs(t *testing.T) {
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
		t.Errorf("it entered an epoch with a wrong origin: %v", err)
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
		t.Error("the application did not receive the lost edits")
	}
	if s, err := venus.Status(t.Context()); err != nil || s.Lost != 1 || s.Epoch != 9 {
		t.Errorf("%+v %v", s, err)
	}
}

// Updates and states from channels are written to the log, and those from the log are sent to channels.
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
		for i := range 4 { // more than fits into a message
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
			t.Error("updates are missing")
		}
		if missing := l.read(t, bridge, 0, large); missing {
			t.Error("updates are missing")
		}
		if err := far.Load(t.Context(), saved(t, bridge)); err != nil {
			t.Fatal(err)
		}
		equal(t, bridge, far)
		n.settle()
		time.Sleep(40 * time.Second) // bubble time: digests announce what was too large to send
		n.settle()
		equal(t, bridge, near)
		if got := content(t, near); !strings.Contains(got, "by log") {
			t.Errorf("an update from the log did not reach the channel: %s", got[:min(len(got), 200)])
		}
	})
}

// A writer carries over, once, whatever the last state of an epoch lacks of its edits, even in the middle:
// insertions and counter additions.
func TestLogWritersCarryOverMissingEdits(t *testing.T) {
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

// keptBy returns the rights in a document that an agent keeps and others may edit.
func keptBy(keeper string) func(agent string) replica.Access {
	return func(agent string) replica.Access {
		if agent == keeper {
			return replica.Read | replica.Write | replica.Relay | replica.Keep
		}
		return replica.Read | replica.Write
	}
}

// A keeper whose journal lost its end receives the edits again from replicas that have them, and logs the loss.
func TestAJournalThatLostItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		var logs bytes.Buffer
		begin := func(s *replica.Saved) *replica.Replica {
			r := newReplica(t, replica.Options{
				Agent: "hub", State: "plan", Saved: s, Access: keptBy("hub"), Journal: func([]byte) {}, Logger: slog.New(slog.NewTextHandler(&logs, nil)),
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
		if logs.Len() > 0 {
			t.Errorf("nothing is lost, but the log says:\n%s", logs.String())
		}
		hub.Close()

		again := begin(&early)
		attach(t, n, "hub", "mars", again, mars)
		n.settle()
		equal(t, again, mars)
		if !strings.Contains(logs.String(), "the log has lost them") {
			t.Errorf("the log says:\n%s", logs.String())
		}
	})
}

// A keeper that ended before it had logged what it wrote receives that again from a replica that may write only for itself, and with it
// what that replica has written since. Other agents' edits are theirs to return.
func TestAKeeperGetsItsOwnLostEditsBack(t *testing.T) {
	for lost, accepted := range map[string]bool{"hub": true, "venus": false} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			var l memoryLog
			begin := func(agent string, mars *replica.Replica) *replica.Replica {
				r := logged(t, &l, replica.Options{Agent: agent, Access: keptBy(agent)})
				l.read(t, r, 0)
				if mars != nil {
					attach(t, n, agent, "mars", r, mars)
				}
				return r
			}
			mars := newReplica(t, replica.Options{Agent: "mars", State: "plan"})
			t.Cleanup(func() { mars.Close() })
			first := begin(lost, mars)
			push(t, first, "logged")
			n.settle()
			at := l.len()
			push(t, first, "lost")
			n.settle()
			push(t, mars, "after it")
			first.Close()
			n.settle()
			l.entries = l.entries[:at]

			again := begin("hub", mars)
			n.settle()
			status, err := again.Status(t.Context())
			if err != nil || (status.Refused == 0) != accepted {
				t.Errorf("edits of %s: %+v, %v", lost, status, err)
			}
			if accepted {
				equal(t, again, mars)
			}
			again.Close()
			mars.Close()
			n.settle()
		})
	}
}

// A page that returns what a keeper has lost does not own what others wrote: the agent that wrote it may return the rest.
func TestAPageThatReturnsEditsOwnsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		begin := func(members ...*replica.Replica) *replica.Replica {
			hub := newReplica(t, replica.Options{Agent: "hub", State: "plan", Access: keptBy("hub"), Journal: func([]byte) {}})
			for i, m := range members {
				if m != nil {
					attach(t, n, "hub", []string{"mars", "venus"}[i], hub, m)
				}
			}
			return hub
		}
		mars, venus := newReplica(t, replica.Options{Agent: "mars", State: "plan"}), newReplica(t, replica.Options{Agent: "venus", State: "plan", Access: keptBy("hub")})
		hub := begin(mars)
		push(t, mars, "seen by the page")
		n.settle()
		page := saved(t, hub).Update
		hub.Close()
		push(t, mars, "seen by nobody")
		n.settle()

		again := begin(nil, venus) // it has lost everything
		n.settle()
		if err := again.Submit(t.Context(), "page", page, true); err != nil {
			t.Fatal(err)
		}
		n.settle()
		equal(t, again, venus)
		attach(t, n, "hub", "mars", again, mars)
		n.settle()
		equal(t, again, mars)
		for range 4 { // digests; virtual time
			time.Sleep(time.Minute)
			n.settle()
		}
		equal(t, again, venus)
		for _, r := range []*replica.Replica{again, mars, venus} {
			r.Close()
		}
		n.settle()
	})
}
