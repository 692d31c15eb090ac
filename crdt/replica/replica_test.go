package replica_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

// network queues the envelopes between agents until a test delivers them.
type network struct {
	mu    sync.Mutex
	ends  map[[2]string]*end
	queue []parcel
}

type parcel struct {
	to *end
	e  *envelope.Envelope
}

func newNetwork() *network { return &network{ends: map[[2]string]*end{}} }

// end is one end of a link that a test controls.
type end struct {
	n             *network
	local, remote string

	mu       sync.Mutex
	next     int
	handlers map[int]channel.Handler
}

func (n *network) end(local, remote string) *end {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := [2]string{local, remote}
	if n.ends[key] == nil {
		n.ends[key] = &end{n: n, local: local, remote: remote, handlers: map[int]channel.Handler{}}
	}
	return n.ends[key]
}

func (e *end) LocalAgent() string  { return e.local }
func (e *end) RemoteAgent() string { return e.remote }

func (e *end) Send(_ context.Context, v *envelope.Envelope) error {
	other := e.n.end(e.remote, e.local)
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	e.n.queue = append(e.n.queue, parcel{other, v})
	return nil
}

func (e *end) OnMessage(h channel.Handler) (remove func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next++
	id := e.next
	e.handlers[id] = h
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.handlers, id)
	}
}

func (e *end) receive(v *envelope.Envelope) {
	e.mu.Lock()
	handlers := slices.Collect(maps.Values(e.handlers))
	e.mu.Unlock()
	for _, h := range handlers {
		h(context.Background(), v)
	}
}

// take removes and returns the queued envelopes.
func (n *network) take() []parcel {
	n.mu.Lock()
	defer n.mu.Unlock()
	q := n.queue
	n.queue = nil
	return q
}

// settle delivers queued envelopes in order until none is left.
func (n *network) settle() {
	for round := 0; ; round++ {
		synctest.Wait()
		q := n.take()
		if len(q) == 0 {
			return
		}
		if round == 10_000 {
			panic(fmt.Sprintf("messages go to and fro for ever: %s", q[0].e.Payload))
		}
		for _, p := range q {
			p.to.receive(p.e)
		}
	}
}

func newReplica(t tb, o replica.Options) *replica.Replica {
	t.Helper()
	if o.State == "" {
		o.State = "plan"
	}
	r, err := replica.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func attach(t tb, n *network, a, b string, ra, rb *replica.Replica) (detach func()) {
	t.Helper()
	first, err := ra.Attach(n.end(a, b))
	if err != nil {
		t.Fatal(err)
	}
	second, err := rb.Attach(n.end(b, a))
	if err != nil {
		t.Fatal(err)
	}
	return func() { first(); second() }
}

func edit(t tb, r *replica.Replica, f func(d *crdt.Doc) error) {
	t.Helper()
	if err := r.Edit(context.Background(), f); err != nil {
		t.Fatal(err)
	}
}

func status(t tb, r *replica.Replica) replica.Status {
	t.Helper()
	s, err := r.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func clock(t tb, r *replica.Replica) map[string]uint64 {
	t.Helper()
	c, err := r.VectorClock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// content returns what replicas must agree on, byte by byte.
func content(t tb, r *replica.Replica) string {
	t.Helper()
	var s string
	if err := r.View(context.Background(), func(d *crdt.Doc) {
		d.Map("m")
		d.Array("l")
		d.Text("t")
		j, err := d.JSON()
		if err != nil {
			s = err.Error()
			return
		}
		p := d.Pending()
		s = fmt.Sprintf("%s\n%x\n%x\nparked %d", j, d.Snapshot(), d.Digest(true), p.Structs+p.Ranges)
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// randomEdit edits one of a few positions.
func randomEdit(t *rapid.T, d *crdt.Doc) error {
	m, l, s := d.Map("m"), d.Array("l"), d.Text("t")
	key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
	n := rapid.IntRange(0, 99).Draw(t, "value")
	at := func(length int) int { return rapid.IntRange(0, min(2, length)).Draw(t, "index") }
	switch rapid.IntRange(0, 5).Draw(t, "edit") {
	case 0:
		return m.Set(key, n)
	case 1:
		return m.Delete(key)
	case 2:
		return l.Insert(at(l.Len()), n, "x")
	case 3:
		i := at(l.Len())
		return l.Delete(i, min(1, l.Len()-i))
	case 4:
		return s.Insert(at(s.Len()), "ab")
	default:
		i := at(s.Len())
		return s.Delete(i, min(2, s.Len()-i))
	}
}

// Property 27: a broadcast update reaches all connected agents. Each applies it once, in any order of receipt and
// with any repetition, without a request for a state; each update carries a vector clock (Req 9.1, Req 9.2, Req 9.4).
func TestProperty27BroadcastAndApplyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			n := newNetwork()
			count := rapid.IntRange(2, 4).Draw(t, "agents")
			var replicas []*replica.Replica
			events := make([][]string, count)
			var mu sync.Mutex
			for i := range count {
				r := newReplica(t, replica.Options{Agent: fmt.Sprint("agent-", i), NoForward: rapid.Bool().Draw(t, "mesh"), Interval: time.Hour})
				defer r.Close()
				r.OnUpdate(func(u replica.Update) {
					mu.Lock()
					defer mu.Unlock()
					events[i] = append(events[i], fmt.Sprint(u.Message.SourceAgentID, u.Message.Seq))
				})
				replicas = append(replicas, r)
			}
			for i := range replicas {
				for j := range i {
					attach(t, n, fmt.Sprint("agent-", i), fmt.Sprint("agent-", j), replicas[i], replicas[j])
				}
			}
			n.settle()
			var waiting []parcel
			for range rapid.IntRange(1, 12).Draw(t, "edits") {
				i := rapid.IntRange(0, count-1).Draw(t, "who")
				edit(t, replicas[i], func(d *crdt.Doc) error { return randomEdit(t, d) })
				synctest.Wait()
				waiting = append(waiting, n.take()...)
				waiting = rapid.Permutation(waiting).Draw(t, "order")
				k := rapid.IntRange(0, len(waiting)).Draw(t, "arrive")
				for _, p := range waiting[:k] {
					onlyUpdates(t, p)
					for range rapid.IntRange(1, 2).Draw(t, "times") {
						p.to.receive(p.e)
					}
				}
				waiting = waiting[k:]
			}
			for len(waiting) > 0 {
				for _, p := range waiting {
					onlyUpdates(t, p)
					p.to.receive(p.e)
				}
				synctest.Wait()
				waiting = n.take()
			}
			synctest.Wait()
			want, wantClock := content(t, replicas[0]), clock(t, replicas[0])
			sent := uint64(0)
			for _, r := range replicas {
				sent += status(t, r).Sent
			}
			for i, r := range replicas {
				if got := content(t, r); got != want {
					t.Fatalf("replica %d has\n%s\nreplica 0 has\n%s", i, got, want)
				}
				if got := clock(t, r); !maps.Equal(got, wantClock) || sent > 0 && len(got) == 0 {
					t.Fatalf("replica %d has the clock %v, replica 0 has %v", i, got, wantClock)
				}
				s := status(t, r)
				if s.Held != 0 || s.Skipped != 0 || s.Refused != 0 || s.Received+s.Sent != sent {
					t.Fatalf("replica %d has %+v of %d updates", i, s, sent)
				}
				mu.Lock()
				if got := uint64(len(events[i])); got != sent || len(slices.Compact(slices.Sorted(slices.Values(events[i])))) != len(events[i]) {
					t.Errorf("the application of replica %d received %v of %d updates", i, events[i], sent)
				}
				mu.Unlock()
			}
		})
	})
}

// onlyUpdates fails if anything but updates with a clock is queued.
func onlyUpdates(t tb, p parcel) {
	t.Helper()
	var m replica.Message
	if err := json.Unmarshal(p.e.Payload, &m); err != nil {
		t.Fatal(err)
	}
	if p.e.Type != envelope.StreamData || m.Kind != replica.KindUpdate || len(m.VectorClock) == 0 || m.VectorClock[m.SourceAgentID+"/"+m.Session] != m.Seq {
		t.Fatalf("a %s %s with the clock %v is queued", p.e.Type, m.Kind, m.VectorClock)
	}
}

// Property 27, the order: a replica delivers an update after all updates that its author had delivered before (Req 9.4).
func TestProperty27DeliveryIsCausal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			n := newNetwork()
			const count = 3
			type update struct{ who, number int }
			before := map[update][]update{} // recorded by the test, not read from a clock
			delivered := make([][]update, count)
			sessions := map[string]int{}
			var mu sync.Mutex
			var replicas []*replica.Replica
			for i := range count {
				r := newReplica(t, replica.Options{Agent: fmt.Sprint("agent-", i), NoForward: true, Interval: time.Hour})
				defer r.Close()
				sessions[status(t, r).Session] = i
				r.OnUpdate(func(u replica.Update) {
					mu.Lock()
					defer mu.Unlock()
					delivered[i] = append(delivered[i], update{sessions[u.Message.Session], int(u.Message.Seq)})
				})
				replicas = append(replicas, r)
			}
			for i := range replicas {
				for j := range i {
					attach(t, n, fmt.Sprint("agent-", i), fmt.Sprint("agent-", j), replicas[i], replicas[j])
				}
			}
			n.settle()
			var waiting []parcel
			for range rapid.IntRange(3, 15).Draw(t, "edits") {
				i := rapid.IntRange(0, count-1).Draw(t, "who")
				synctest.Wait()
				mu.Lock()
				seen := slices.Clone(delivered[i])
				mu.Unlock()
				edit(t, replicas[i], func(d *crdt.Doc) error { return d.Array("l").Append(i) })
				synctest.Wait()
				before[update{i, int(status(t, replicas[i]).Sent)}] = seen
				waiting = rapid.Permutation(append(waiting, n.take()...)).Draw(t, "order")
				k := rapid.IntRange(0, len(waiting)).Draw(t, "arrive")
				for _, p := range waiting[:k] {
					p.to.receive(p.e)
				}
				waiting = waiting[k:]
			}
			for _, p := range waiting {
				p.to.receive(p.e)
			}
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			for i, list := range delivered {
				if len(list) != len(before) {
					t.Fatalf("replica %d delivered %v of %d", i, list, len(before))
				}
				for k, u := range list {
					for _, b := range before[u] {
						if !slices.Contains(list[:k], b) {
							t.Fatalf("replica %d delivered %v before %v, which its author had delivered before: %v", i, u, b, list)
						}
					}
				}
			}
		})
	})
}

// Property 28 under all faults: updates are lost, repeated, reordered and corrupted, links break, replicas restart
// from old states or empty and join late, and the document begins new epochs. After all links are restored and the
// intervals have passed, all replicas are equal (Req 9.3, 9.5).
func TestProperty28ReplicasConvergeWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			w := &storm{t: t, n: newNetwork(), linked: map[[2]int]func(){}}
			defer w.close()
			w.join()
			w.join()
			t.Repeat(map[string]func(*rapid.T){
				"edit":      func(t *rapid.T) { edit(t, w.any(t), func(d *crdt.Doc) error { return randomEdit(t, d) }) },
				"deliver":   w.deliver,
				"link":      w.link,
				"unlink":    w.unlink,
				"join":      func(t *rapid.T) { w.joinAtMost(4) },
				"save":      w.save,
				"restart":   w.restart,
				"compact":   w.compact,
				"time goes": func(t *rapid.T) { time.Sleep(7 * time.Second) },
			})
			w.heal()
		})
	})
}

type storm struct {
	t        *rapid.T
	n        *network
	replicas []*replica.Replica
	linked   map[[2]int]func()
	waiting  []parcel
	saved    []replica.Saved
}

func (w *storm) name(i int) string { return fmt.Sprint("agent-", i) }

func (w *storm) join() {
	w.replicas = append(w.replicas, newReplica(w.t, replica.Options{Agent: w.name(len(w.replicas))}))
}

func (w *storm) joinAtMost(n int) {
	if len(w.replicas) < n {
		w.join()
	}
}

func (w *storm) index(t *rapid.T) int { return rapid.IntRange(0, len(w.replicas)-1).Draw(t, "replica") }

func (w *storm) any(t *rapid.T) *replica.Replica { return w.replicas[w.index(t)] }

func (w *storm) connect(i, j int) {
	key := [2]int{min(i, j), max(i, j)}
	if i != j && w.linked[key] == nil {
		w.linked[key] = attach(w.t, w.n, w.name(i), w.name(j), w.replicas[i], w.replicas[j])
	}
}

func (w *storm) link(t *rapid.T) { w.connect(w.index(t), w.index(t)) }

func (w *storm) unlink(t *rapid.T) {
	i, j := w.index(t), w.index(t)
	key := [2]int{min(i, j), max(i, j)}
	if detach := w.linked[key]; detach != nil {
		detach()
		delete(w.linked, key)
	}
}

func (w *storm) save(t *rapid.T) {
	s, err := w.any(t).Save(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	w.saved = append(w.saved, s)
}

// restart replaces a replica by a new one, which is empty or loads a state that may be old.
func (w *storm) restart(t *rapid.T) {
	i := w.index(t)
	for key, detach := range w.linked {
		if key[0] == i || key[1] == i {
			detach()
			delete(w.linked, key)
		}
	}
	w.replicas[i].Close()
	o := replica.Options{Agent: w.name(i)}
	if len(w.saved) > 0 && rapid.Bool().Draw(t, "from a saved state") {
		saved := rapid.SampledFrom(w.saved).Draw(t, "saved")
		o.Saved, o.Epoch = &saved, saved.Epoch
	}
	w.replicas[i] = newReplica(t, o)
}

// compact lets one replica begin a new epoch.
func (w *storm) compact(t *rapid.T) {
	if err := w.replicas[0].Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// deliver delivers some of the queued envelopes, and drops or changes others.
func (w *storm) deliver(t *rapid.T) {
	synctest.Wait()
	w.waiting = append(w.waiting, w.n.take()...)
	if rapid.IntRange(0, 3).Draw(t, "shuffle") == 0 {
		w.waiting = rapid.Permutation(w.waiting).Draw(t, "order")
	}
	k := rapid.IntRange(0, len(w.waiting)).Draw(t, "arrive")
	for _, p := range w.waiting[:k] {
		switch rapid.IntRange(0, 19).Draw(t, "fate") {
		case 0, 1: // lost
		case 2, 3:
			p.to.receive(p.e)
			p.to.receive(p.e)
		case 4:
			p.to.receive(corrupt(t, p.e))
		default:
			p.to.receive(p.e)
		}
	}
	w.waiting = w.waiting[k:]
	synctest.Wait()
}

// corrupt changes one byte of a message's payload.
func corrupt(t *rapid.T, e *envelope.Envelope) *envelope.Envelope {
	return e.With(func(e *envelope.Envelope) {
		var m replica.Message
		if err := json.Unmarshal(e.Payload, &m); err != nil {
			t.Fatal(err)
		}
		if len(m.Payload) == 0 {
			m.Payload = []byte{1}
		}
		m.Payload[rapid.IntRange(0, len(m.Payload)-1).Draw(t, "at")] ^= 1
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		e.Payload = b
	})
}

// heal links all replicas, stops losing envelopes and lets time pass; then all replicas must be equal.
func (w *storm) heal() {
	for i := range w.replicas {
		for j := range i {
			w.connect(i, j)
		}
	}
	for _, p := range w.waiting {
		p.to.receive(p.e)
	}
	for range 10 {
		w.n.settle()
		time.Sleep(40 * time.Second)
	}
	w.n.settle()
	want, epoch := content(w.t, w.replicas[0]), w.replicas[0].Epoch()
	for i, r := range w.replicas {
		if got := content(w.t, r); got != want || r.Epoch() != epoch {
			w.t.Fatalf("replica %d has in epoch %d\n%s\nreplica 0 has in epoch %d\n%s", i, r.Epoch(), got, epoch, want)
		}
		if s := status(w.t, r); s.Held != 0 || s.Diverged || s.Refused != 0 {
			w.t.Fatalf("replica %d: %+v", i, s)
		}
	}
}

func (w *storm) close() {
	for _, r := range w.replicas {
		r.Close()
	}
}

// pair is two replicas whose link a test controls.
type pair struct {
	n    *network
	a, b *replica.Replica
	sink *sink
}

type sink struct {
	mu     sync.Mutex
	events []telemetry.Event
}

func (s *sink) Emit(e telemetry.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func newPair(t *testing.T, a, b replica.Options) *pair {
	p := &pair{n: newNetwork(), sink: &sink{}}
	a.Agent, b.Agent = "mars", "venus"
	b.Telemetry = p.sink
	p.a, p.b = newReplica(t, a), newReplica(t, b)
	t.Cleanup(func() { p.a.Close(); p.b.Close() })
	attach(t, p.n, "mars", "venus", p.a, p.b)
	p.n.settle()
	return p
}

// send makes an edit at a and returns the envelopes queued for b.
func (p *pair) send(t *testing.T, f func(d *crdt.Doc) error) *envelope.Envelope {
	t.Helper()
	edit(t, p.a, f)
	synctest.Wait()
	q := p.n.take()
	if len(q) != 1 {
		t.Fatalf("%d envelopes are queued", len(q))
	}
	return q[0].e
}

func (p *pair) receive(e *envelope.Envelope) { p.n.end("venus", "mars").receive(e) }

func change(t *testing.T, e *envelope.Envelope, f func(m *replica.Message)) *envelope.Envelope {
	t.Helper()
	return e.With(func(e *envelope.Envelope) {
		var m replica.Message
		if err := json.Unmarshal(e.Payload, &m); err != nil {
			t.Fatal(err)
		}
		f(&m)
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		e.Payload = b
	})
}

// An unreadable message is logged with its source and skipped. The missing updates are requested, and later ones
// are applied (Req 9.5).
func TestUnreadableUpdatesAreSkipped(t *testing.T) {
	for name, spoil := range map[string]func(m *replica.Message){
		"checksum":       func(m *replica.Message) { m.Payload[0] ^= 1 },
		"no update":      func(m *replica.Message) { m.Payload = []byte{9, 9}; replica.Sign(m) },
		"other version":  func(m *replica.Message) { m.V = 2; replica.Sign(m) },
		"no session":     func(m *replica.Message) { m.Session = "x"; replica.Sign(m) },
		"no clock":       func(m *replica.Message) { m.VectorClock = nil; replica.Sign(m) },
		"other clients":  func(m *replica.Message) { m.Clients = []uint64{1}; replica.Sign(m) },
		"no source":      func(m *replica.Message) { m.SourceAgentID = ""; replica.Sign(m) },
		"part of none":   func(m *replica.Message) { m.Part = 3; replica.Sign(m) },
		"no digest":      func(m *replica.Message) { m.Kind = replica.KindDigest; replica.Sign(m) },
		"no vector":      func(m *replica.Message) { m.Kind = replica.KindStep1; m.Payload = []byte{9}; replica.Sign(m) },
		"no state":       func(m *replica.Message) { m.Kind = replica.KindStep2; m.Payload = []byte{9}; replica.Sign(m) },
		"broken writer":  func(m *replica.Message) { m.Vector = []byte{9}; replica.Sign(m) },
		"a large update": func(m *replica.Message) { m.Payload = make([]byte, 700<<10); replica.Sign(m) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, replica.Options{}, replica.Options{})
				time.Sleep(6 * time.Second)
				e := p.send(t, func(d *crdt.Doc) error { return d.Map("m").Set("k", 1) })
				p.receive(change(t, e, spoil))
				synctest.Wait()
				if s := status(t, p.b); s.Skipped != 1 {
					t.Fatalf("it has %+v", s)
				}
				p.sink.mu.Lock()
				events := slices.Clone(p.sink.events)
				p.sink.mu.Unlock()
				if len(events) != 1 || events[0].Type != telemetry.ErrorEvent || events[0].Sender != "mars" || events[0].Code != string(crdt.CodeDeserialization) {
					if name != "no source" {
						t.Errorf("telemetry has %+v", events)
					}
				}
				edit(t, p.a, func(d *crdt.Doc) error { return d.Map("m").Set("l", 2) })
				p.n.settle()
				time.Sleep(20 * time.Second)
				p.n.settle()
				if a, b := content(t, p.a), content(t, p.b); a != b {
					t.Errorf("one has\n%s\nthe other\n%s", a, b)
				}
			})
		})
	}
}

// An update without the right is refused, and its author is notified.
func TestRightsAreEnforced(t *testing.T) {
	only := func(rights replica.Access) func(string) replica.Access {
		return func(agent string) replica.Access {
			if agent == "mars" {
				return rights
			}
			return replica.Read | replica.Write | replica.Relay
		}
	}
	set := func(d *crdt.Doc) error { return d.Map("m").Set("k", 1) }
	t.Run("a reader's update", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, replica.Options{}, replica.Options{Access: only(replica.Read)})
			p.receive(p.send(t, set))
			p.n.settle()
			if s := status(t, p.b); s.Refused != 1 || s.Items != 0 {
				t.Errorf("it has %+v", s)
			}
			if err := p.a.Edit(t.Context(), set); !isCode(err, replica.CodeRefused) {
				t.Errorf("the writer's next edit returns %v", err)
			}
			if p.sink.events[0].Type != telemetry.Security {
				t.Errorf("telemetry has %+v", p.sink.events)
			}
		})
	})
	t.Run("a reader's own edit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, replica.Options{Access: only(replica.Read)}, replica.Options{})
			if err := p.a.Edit(t.Context(), set); !isCode(err, replica.CodeReadOnly) {
				t.Errorf("Edit returns %v", err)
			}
			if err := p.a.Broadcast(t.Context(), []byte{0, 0}); !isCode(err, replica.CodeReadOnly) {
				t.Errorf("Submit returns %v", err)
			}
		})
	})
	t.Run("an update of somebody else", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, replica.Options{}, replica.Options{Access: only(replica.Read | replica.Write)})
			e := p.send(t, set)
			p.receive(change(t, e, func(m *replica.Message) {
				m.SourceAgentID = "jupiter"
				m.VectorClock = map[string]uint64{"jupiter/" + m.Session: 1}
				replica.Sign(m)
			}))
			synctest.Wait()
			if s := status(t, p.b); s.Refused != 1 || s.Items != 0 {
				t.Errorf("it has %+v", s)
			}
		})
	})
	t.Run("a client id of somebody else", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, replica.Options{}, replica.Options{Access: only(replica.Read | replica.Write)})
			edit(t, p.b, set)
			p.n.settle()
			// The other agent uses the same client id in another session.
			e := p.send(t, func(d *crdt.Doc) error { return d.Map("m").Set("x", 1) })
			p.receive(change(t, e, func(m *replica.Message) {
				client := uint64(0)
				_ = p.b.View(t.Context(), func(d *crdt.Doc) { client = d.Client() })
				d := crdt.New(crdt.Options{Client: client})
				u, err := d.Transact(nil, func() error { return d.Map("m").Set("k", "mine") })
				if err != nil {
					t.Fatal(err)
				}
				m.Payload, m.Clients, m.Vector = u, []uint64{client}, nil
				replica.Sign(m)
			}))
			synctest.Wait()
			if s := status(t, p.b); s.Refused != 1 {
				t.Errorf("it has %+v", s)
			}
		})
	})
	t.Run("no reading", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, replica.Options{}, replica.Options{Access: only(replica.Write)})
			edit(t, p.b, set)
			for range 3 {
				p.n.settle()
				time.Sleep(time.Minute)
			}
			if s := status(t, p.a); s.Items != 0 {
				t.Errorf("it has %+v", s)
			}
		})
	})
	t.Run("a state with what others wrote", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			other := crdt.New(crdt.Options{Client: 77})
			if err := set(other); err != nil {
				t.Fatal(err)
			}
			p := newPair(t, replica.Options{Saved: &replica.Saved{Update: other.Snapshot()}}, replica.Options{Access: func(agent string) replica.Access {
				if agent == "mars" {
					return replica.Read | replica.Write
				}
				return replica.Read | replica.Write | replica.Relay
			}})
			// Unclaimed client ids count as those of the agent's earlier sessions.
			if s := status(t, p.b); s.Items != 1 || s.Refused != 0 {
				t.Errorf("it has %+v", s)
			}
		})
	})
}

func isCode(err error, code replica.Code) bool {
	e, ok := err.(*replica.Error)
	return ok && e.Code == code && e.Error() != ""
}

// A large state is sent in parts.
func TestLargeStatesAreSentInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a, b := newReplica(t, replica.Options{Agent: "mars"}), newReplica(t, replica.Options{Agent: "venus"})
		defer a.Close()
		defer b.Close()
		for i := range 12 {
			edit(t, a, func(d *crdt.Doc) error {
				return d.Map("m").Set(fmt.Sprint(i), string(bytes.Repeat([]byte("x"), 200<<10)))
			})
		}
		attach(t, n, "mars", "venus", a, b)
		n.settle()
		if content(t, a) != content(t, b) {
			t.Error("they differ")
		}
		if err := a.Edit(t.Context(), func(d *crdt.Doc) error {
			for i := range 4 {
				if err := d.Map("m").Set(fmt.Sprint("n", i), string(bytes.Repeat([]byte("x"), 200<<10))); err != nil {
					return err
				}
			}
			return nil
		}); crdt.CodeOf(err) != crdt.CodeLimit {
			t.Errorf("an update too large to send returns %v", err)
		}
	})
}

// Updates that cannot be delivered yet are buffered within bounds, and the missing ones are requested later.
func TestTheBufferIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, replica.Options{}, replica.Options{})
		first := p.send(t, func(d *crdt.Doc) error { return d.Text("t").Append("a") })
		for range 300 {
			p.receive(p.send(t, func(d *crdt.Doc) error { return d.Text("t").Append("b") }))
			synctest.Wait()
			if s := status(t, p.b); s.Held > 256 {
				t.Fatalf("%d updates are buffered", s.Held)
			}
		}
		_ = first // lost
		time.Sleep(time.Minute)
		p.n.settle()
		time.Sleep(time.Minute)
		p.n.settle()
		if s := status(t, p.b); s.Held != 0 || content(t, p.a) != content(t, p.b) {
			t.Errorf("it has %+v", s)
		}
	})
}

// Updates that another engine made for this agent are sent as its own.
func TestBroadcastOfUpdatesFromAnotherEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, replica.Options{}, replica.Options{})
		d := crdt.New(crdt.Options{Client: 5})
		u, err := d.Transact(nil, func() error { return d.Text("t").Append("from a browser") })
		if err != nil {
			t.Fatal(err)
		}
		if err := p.a.Broadcast(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		if err := p.a.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.n.settle()
		if content(t, p.a) != content(t, p.b) || status(t, p.b).Received != 1 {
			t.Errorf("it has %+v", status(t, p.b))
		}
		if err := p.a.Broadcast(t.Context(), []byte{9}); crdt.CodeOf(err) != crdt.CodeDeserialization {
			t.Errorf("Submit returns %v", err)
		}
	})
}

// Undo works through a replica, and other replicas receive it.
func TestUndoReachesOtherReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, replica.Options{}, replica.Options{})
		var undo *crdt.UndoManager
		if err := p.a.Do(t.Context(), func(d *crdt.Doc) error { undo = d.NewUndo(nil); return nil }); err != nil {
			t.Fatal(err)
		}
		edit(t, p.a, func(d *crdt.Doc) error { return d.Text("t").Append("mine") })
		edit(t, p.b, func(d *crdt.Doc) error { return d.Text("t").Append("theirs") })
		p.n.settle()
		if err := p.a.Do(t.Context(), func(*crdt.Doc) error { _, err := undo.Undo(); return err }); err != nil {
			t.Fatal(err)
		}
		p.n.settle()
		if err := p.b.View(t.Context(), func(d *crdt.Doc) {
			if got := d.Text("t").String(); got != "theirs" {
				t.Errorf("the text is %q", got)
			}
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestClosedAndInvalidReplicas(t *testing.T) {
	r := newReplica(t, replica.Options{Agent: "mars"})
	r.Close()
	n := newNetwork()
	_, err := r.Attach(n.end("mars", "venus"))
	for name, err := range map[string]error{
		"Edit":   r.Edit(t.Context(), func(*crdt.Doc) error { return nil }),
		"Flush":  r.Flush(t.Context()),
		"Attach": err,
	} {
		if !isCode(err, replica.CodeClosed) {
			t.Errorf("%s of a closed replica gives %v", name, err)
		}
	}
	for _, o := range []replica.Options{{}, {Agent: "a/b", State: "x"}, {Agent: "a"}, {Agent: "a", State: "x", Saved: &replica.Saved{Epoch: 1}}} {
		if _, err := replica.New(o); !isCode(err, replica.CodeInvalid) {
			t.Errorf("New(%+v) gives %v", o, err)
		}
	}
	if _, err := replica.New(replica.Options{Agent: "a", State: "x", Saved: &replica.Saved{Update: []byte{9}}}); crdt.CodeOf(err) != crdt.CodeDeserialization {
		t.Errorf("a broken saved state gives %v", err)
	}
}

// When a replica is closed during concurrent use, each call ends: either it completed, or it returns an error and
// had no effect.
func TestCloseDuringConcurrentUse(t *testing.T) {
	for range 50 {
		r := newReplica(t, replica.Options{Agent: "mars", State: "plan"})
		var begun, users sync.WaitGroup
		made := make([]int, 4)
		for i := range made {
			begun.Add(1)
			users.Go(func() {
				first := sync.OnceFunc(begun.Done)
				for {
					ran := false
					err := r.Edit(t.Context(), func(d *crdt.Doc) error { ran = true; return d.Array("list").Append(i) })
					if ran != (err == nil) {
						t.Errorf("it ran: %v, and the error is %v", ran, err)
					}
					if err != nil {
						return
					}
					made[i]++
					first()
					if s, err := r.Status(t.Context()); err == nil && s.Items == 0 {
						t.Error("the status of a closed replica is empty")
					}
				}
			})
		}
		begun.Wait()
		r.Close()
		users.Wait()
	}
}

func FuzzMessage(f *testing.F) {
	d := crdt.New(crdt.Options{Client: 5})
	u, err := d.Transact(nil, func() error { return d.Text("t").Append("x") })
	if err != nil {
		f.Fatal(err)
	}
	session := "0123456789abcdef0123456789abcdef"
	for _, m := range []replica.Message{
		{SourceAgentID: "mars", VectorClock: map[string]uint64{"mars/" + session: 1}, Payload: u, V: 1, Kind: replica.KindUpdate, State: "plan", Session: session, Seq: 1, Clients: []uint64{5}},
		{SourceAgentID: "mars", Payload: []byte{0}, V: 1, Kind: replica.KindStep1, State: "plan", Session: session},
	} {
		replica.Sign(&m)
		b, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if !json.Valid(data) {
			return
		}
		m, err := replica.Decode(&envelope.Envelope{Payload: data})
		if err != nil {
			if crdt.CodeOf(err) != crdt.CodeDeserialization {
				t.Fatalf("the error is %v", err)
			}
			return
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := replica.Decode(&envelope.Envelope{Payload: again}); err != nil {
			t.Fatalf("%s is decoded with error %v", again, err)
		}
	})
}

// The panic of any callback is one error event: what it did is undone, and the replica goes on.
func TestPanicsOfCallbacksAreEvents(t *testing.T) {
	set := func(key string) func(*crdt.Doc) error {
		return func(d *crdt.Doc) error { return d.Map("m").Set(key, 1) }
	}
	for name, tc := range map[string]struct {
		options replica.Options
		do      func(r *replica.Replica) error
		code    replica.Code
	}{
		"edit": {do: func(r *replica.Replica) error {
			return r.Edit(context.Background(), func(d *crdt.Doc) error {
				if err := d.Map("m").Set("undone", 1); err != nil {
					return err
				}
				panic("edit")
			})
		}, code: replica.CodePanic},
		"nil edit": {do: func(r *replica.Replica) error { return r.Edit(context.Background(), nil) }, code: replica.CodePanic},
		"view":     {do: func(r *replica.Replica) error { return r.View(context.Background(), func(*crdt.Doc) { panic("view") }) }, code: replica.CodePanic},
		"checkpoint": {do: func(r *replica.Replica) error {
			return r.Checkpoint(context.Background(), func(replica.Saved) { panic("checkpoint") })
		}, code: replica.CodePanic},
		"on update": {do: func(r *replica.Replica) error {
			r.OnUpdate(func(replica.Update) { panic("on update") })
			return r.Edit(context.Background(), set("first"))
		}},
		"observer": {do: func(r *replica.Replica) error {
			return errors.Join(r.View(context.Background(), func(d *crdt.Doc) { d.Observe(func(crdt.Change) { panic("observer") }) }), r.Edit(context.Background(), set("first")))
		}},
		"journal": {options: replica.Options{Journal: func([]byte) { panic("journal") }}, do: func(r *replica.Replica) error { return r.Edit(context.Background(), set("first")) }},
		"access":  {options: replica.Options{Access: func(string) replica.Access { panic("access") }}, do: func(r *replica.Replica) error { return r.Edit(context.Background(), set("first")) }, code: replica.CodeReadOnly},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				events := telemetry.New(telemetry.Options{})
				tc.options.Agent, tc.options.State, tc.options.Telemetry = "mars", "plan", events
				r, err := replica.New(tc.options)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				if err := tc.do(r); replica.CodeOf(err) != tc.code {
					t.Errorf("%v, want %q", err, tc.code)
				}
				synctest.Wait()
				all := events.Recent(0)
				if len(all) != 1 || all[0].Type != telemetry.ErrorEvent || all[0].Code != telemetry.CodePanic {
					t.Errorf("events: %+v", all)
				}
				var undone bool
				if err := r.View(context.Background(), func(d *crdt.Doc) { _, undone = d.Map("m").Get("undone") }); err != nil || undone {
					t.Errorf("the replica does not go on: %v, %v", err, undone)
				}
			})
		})
	}
}

// An observer that panics loses nothing of what other replicas send.
func TestAPanickingObserverDoesNotStopTheReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a, b := newReplica(t, replica.Options{Agent: "mars"}), newReplica(t, replica.Options{Agent: "venus"})
		defer a.Close()
		defer b.Close()
		if err := b.View(t.Context(), func(d *crdt.Doc) { d.Observe(func(crdt.Change) { panic("observer") }) }); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Attach(n.end("mars", "venus")); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Attach(n.end("venus", "mars")); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := a.Edit(t.Context(), func(d *crdt.Doc) error { return d.Map("m").Set(fmt.Sprint(i), 1) }); err != nil {
				t.Fatal(err)
			}
			for {
				synctest.Wait()
				parcels := n.take()
				if len(parcels) == 0 {
					break
				}
				for _, p := range parcels {
					p.to.receive(p.e)
				}
			}
		}
		mine, err := a.VectorClock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := b.VectorClock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(mine, theirs) {
			t.Errorf("the clocks are %v and %v", mine, theirs)
		}
	})
}
