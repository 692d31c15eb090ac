package replica_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/telemetry"
)

// Property 28, new epochs: an epoch reaches all replicas linked directly or indirectly. It loses or duplicates no
// concurrent edit, although messages are lost on the way (Req 9.3).
func TestProperty28NewEpochsLoseNoEdits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			n := newNetwork()
			const count = 4
			var replicas []*replica.Replica
			for i := range count {
				r := newReplica(t, replica.Options{Agent: fmt.Sprint("agent-", i), Keeper: i == 0})
				defer r.Close()
				replicas = append(replicas, r)
			}
			// The replicas form a line with the keeper at one end: epochs and late edits pass through
			// the others.
			for i := range count - 1 {
				attach(t, n, fmt.Sprint("agent-", i), fmt.Sprint("agent-", i+1), replicas[i], replicas[i+1])
			}
			n.settle()
			made := 0
			for range rapid.IntRange(4, 30).Draw(t, "steps") {
				switch rapid.IntRange(0, 7).Draw(t, "step") {
				case 0:
					if err := replicas[0].Compact(context.Background()); err != nil {
						t.Fatal(err)
					}
					// The next epoch begins once all replicas follow this one: only the latest
					// former epoch is kept.
					for range 4 {
						n.settle()
						time.Sleep(40 * time.Second)
					}
					n.settle()
				case 1, 2, 3, 4:
					made++
					edit(t, replicas[rapid.IntRange(0, count-1).Draw(t, "who")], func(d *crdt.Doc) error {
						if err := d.Text("t").Insert(rapid.IntRange(0, min(2, d.Text("t").Len())).Draw(t, "index"), string(rune('A'+made%26))); err != nil {
							return err
						}
						return d.Array("l").Append(made)
					})
				default:
					synctest.Wait()
					for _, p := range n.take() {
						if rapid.IntRange(0, 4).Draw(t, "fate") > 0 {
							p.to.receive(p.e)
						}
					}
				}
			}
			for range 12 {
				n.settle()
				time.Sleep(40 * time.Second)
			}
			n.settle()
			want := content(t, replicas[0])
			for i, r := range replicas {
				if got := content(t, r); got != want || r.Epoch() != replicas[0].Epoch() {
					t.Fatalf("replica %d has in epoch %d\n%s\nthe keeper has in epoch %d\n%s", i, r.Epoch(), got, replicas[0].Epoch(), want)
				}
				if s := status(t, r); s.Lost != 0 || s.Refused != 0 || s.Diverged {
					t.Fatalf("replica %d has %+v", i, s)
				}
				if err := r.View(context.Background(), func(d *crdt.Doc) {
					var there []int
					for _, v := range d.Array("l").All() {
						there = append(there, int(v.(float64)))
					}
					slices.Sort(there)
					for k := range max(made, len(there)) {
						if k >= len(there) || there[k] != k+1 {
							t.Fatalf("of %d edits replica %d has %v", made, i, there)
						}
					}
					if d.Text("t").Len() != made {
						t.Fatalf("the text of replica %d has %d units of %d", i, d.Text("t").Len(), made)
					}
				}); err != nil {
					t.Fatal(err)
				}
			}
		})
	})
}

// The keeper of a worn document begins a new epoch by itself. Others follow, including those that join late with
// an older copy.
func TestTheKeeperCompactsAWornDocument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, replica.Options{Keeper: true, Counters: []string{"n"}}, replica.Options{})
		var mu sync.Mutex
		var began []uint64
		p.b.OnUpdate(func(u replica.Update) {
			if u.Began {
				mu.Lock()
				defer mu.Unlock()
				began = append(began, u.Message.Epoch)
			}
		})
		saved, err := p.b.Save(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 60 {
			edit(t, p.a, func(d *crdt.Doc) error {
				for k := range 1000 {
					if err := d.Map("m").Set(fmt.Sprint(k%7), i*1000+k); err != nil {
						return err
					}
				}
				return d.Counter("n").Add(1)
			})
			p.n.settle()
		}
		for range 3 {
			time.Sleep(40 * time.Second)
			p.n.settle()
		}
		a, b := status(t, p.a), status(t, p.b)
		if a.Epoch == 0 || b.Epoch != a.Epoch || a.Items > 10 || b.Items > 10 || content(t, p.a) != content(t, p.b) {
			t.Fatalf("the keeper has %+v, the other %+v", a, b)
		}
		mu.Lock()
		if !slices.Equal(began, []uint64{a.Epoch}) {
			t.Errorf("the application received the epochs %v", began)
		}
		mu.Unlock()
		late := newReplica(t, replica.Options{Agent: "jupiter", Saved: &saved})
		defer late.Close()
		edit(t, late, func(d *crdt.Doc) error { return d.Counter("n").Add(5) })
		attach(t, p.n, "mars", "jupiter", p.a, late)
		for range 3 {
			p.n.settle()
			time.Sleep(40 * time.Second)
		}
		p.n.settle()
		if err := p.b.View(t.Context(), func(d *crdt.Doc) {
			if got := d.Counter("n").Value(); got != 65 {
				t.Errorf("the counter is %d, want 65", got)
			}
			if n := d.Map("n").Len(); n != 1 {
				t.Errorf("the counter has %d entries", n)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if content(t, p.a) != content(t, late) {
			t.Errorf("the late one has\n%s\nthe keeper has\n%s", content(t, late), content(t, p.a))
		}
	})
}

// A replica follows an epoch only if its author has the right Keep, and never if the replica has a journal.
func TestEpochsNeedARight(t *testing.T) {
	for name, o := range map[string]replica.Options{
		"right":   {Access: func(string) replica.Access { return replica.Read | replica.Write | replica.Relay }},
		"journal": {Journal: func([]byte) {}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, replica.Options{}, o)
				edit(t, p.b, func(d *crdt.Doc) error { return d.Map("m").Set("k", 1) })
				p.n.settle()
				if err := p.a.Compact(t.Context()); err != nil {
					t.Fatal(err)
				}
				p.n.settle()
				if s := status(t, p.b); s.Epoch != 0 || s.Items != 1 {
					t.Errorf("it has %+v", s)
				}
				p.sink.mu.Lock()
				defer p.sink.mu.Unlock()
				if len(p.sink.events) != 1 || p.sink.events[0].Type != telemetry.Security || p.sink.events[0].Sender != "mars" {
					t.Errorf("telemetry has %+v", p.sink.events)
				}
				if err := p.b.Compact(t.Context()); name == "journal" && !isCode(err, replica.CodeInvalid) {
					t.Errorf("Compact returns %v", err)
				}
			})
		})
	}
}

// Two epochs begun concurrently are not merged, and edits of both replicas made before count once.
func TestTwoEpochsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, replica.Options{}, replica.Options{})
		edit(t, p.a, func(d *crdt.Doc) error { return d.Array("l").Append("before") })
		p.n.settle()
		for name, r := range map[string]*replica.Replica{"mars": p.a, "venus": p.b} {
			edit(t, r, func(d *crdt.Doc) error { return d.Array("l").Append(name) })
		}
		for _, r := range []*replica.Replica{p.a, p.b} {
			if err := r.Compact(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			p.n.settle()
			time.Sleep(40 * time.Second)
		}
		p.n.settle()
		if a, b := content(t, p.a), content(t, p.b); a != b {
			t.Fatalf("one has\n%s\nthe other\n%s", a, b)
		}
		if err := p.a.View(t.Context(), func(d *crdt.Doc) {
			var all []string
			for _, v := range d.Array("l").All() {
				all = append(all, v.(string))
			}
			if slices.Sort(all); !slices.Equal(all, []string{"before", "mars", "venus"}) {
				t.Errorf("the list is %v", all)
			}
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// A replica that starts from the successor's state applies late updates of the old epoch.
func TestSucceed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, replica.Options{}, replica.Options{})
		edit(t, p.a, func(d *crdt.Doc) error { return d.Text("t").Append("hub") })
		p.n.settle()
		edit(t, p.b, func(d *crdt.Doc) error { return d.Text("t").Append(" and peer") }) // in transit
		state, former, err := p.a.Succeed(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := p.a.Edit(t.Context(), func(*crdt.Doc) error { return nil }); !isCode(err, replica.CodeClosed) {
			t.Errorf("an edit afterwards gives %v", err)
		}
		p.a.Close()
		next := newReplica(t, replica.Options{Agent: "mars", Epoch: 1, Saved: &replica.Saved{Epoch: 1, Update: state}, Former: former, Journal: func([]byte) {}})
		defer next.Close()
		if _, err := next.Attach(p.n.end("mars", "venus")); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			p.n.settle()
			time.Sleep(40 * time.Second)
		}
		p.n.settle()
		if a, b := content(t, next), content(t, p.b); a != b || status(t, p.b).Epoch != 1 {
			t.Fatalf("one has\n%s\nthe other\n%s", a, b)
		}
		if err := next.View(t.Context(), func(d *crdt.Doc) {
			if got := d.Text("t").String(); got != "hub and peer" {
				t.Errorf("the text is %q", got)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if s := status(t, next); s.Carried != 1 {
			t.Errorf("it has %+v", s)
		}
	})
}

// Edits of an epoch that the keeper has dropped are reported as lost, and their state is returned.
func TestEditsOfDroppedEpochsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, replica.Options{}, replica.Options{})
		var mu sync.Mutex
		var left []byte
		p.b.OnUpdate(func(u replica.Update) {
			if u.Began {
				mu.Lock()
				defer mu.Unlock()
				left = u.Left
			}
		})
		edit(t, p.b, func(d *crdt.Doc) error { return d.Text("t").Append("x") })
		synctest.Wait()
		p.n.take() // lost
		for range 2 {
			if err := p.a.Compact(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		q := p.n.take()
		p.receive(q[len(q)-1].e) // only the second epoch is received
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		d := crdt.New(crdt.Options{})
		if _, err := d.Apply(left, nil); err != nil || d.Text("t").String() != "x" {
			t.Errorf("the returned state is %x, %v", left, err)
		}
		if s := status(t, p.b); s.Lost != 1 || s.Items != 0 {
			t.Errorf("it has %+v", s)
		}
	})
}
