package replica_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/telemetry"
)

// between returns an update that inserts one character between two units of client 1.
func between(client byte, origin, right byte) []byte {
	return []byte{1, 1, client, 0, 0xc4, 1, origin, 1, right, 1, 'a' + client, 0}
}

// disorder returns inconsistent updates of faulty writers in two orders that lead to different content: the
// neighbours named in the updates were never adjacent.
func disorder(t *testing.T) (first, second [][]byte) {
	t.Helper()
	base := crdt.New(crdt.Options{Client: 1})
	if err := base.Text("t").Append("......"); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	run := func(updates [][]byte) crdt.Digest {
		d := crdt.New(crdt.Options{})
		for _, u := range updates {
			if _, err := d.Apply(u, nil); err != nil {
				t.Fatal(err)
			}
		}
		return d.Digest(true)
	}
	for range 10_000 {
		first = [][]byte{base.Snapshot()}
		for client := range byte(4) {
			at := r.IntN(5)
			first = append(first, between(client+2, byte(at), byte(at+1+r.IntN(5-at))))
		}
		second = slices.Clone(first)
		slices.Reverse(second[1:])
		if a, b := run(first), run(second); a.Order != b.Order && a.Content == b.Content {
			return first, second
		}
	}
	t.Fatal("no updates were found that replicas put in different orders")
	return nil, nil
}

// apart returns two replicas that applied updates in the given orders before they are linked.
func apart(t *testing.T, a, b replica.Options, first, second [][]byte) *pair {
	t.Helper()
	p := &pair{n: newNetwork(), sink: &sink{}}
	a.Agent, b.Agent, b.Telemetry = "mars", "venus", p.sink
	p.a, p.b = newReplica(t, a), newReplica(t, b)
	t.Cleanup(func() { p.a.Close(); p.b.Close() })
	for _, u := range first {
		if err := p.a.Submit(t.Context(), "a page", u, false); err != nil {
			t.Fatal(err)
		}
	}
	for _, u := range second {
		if err := p.b.Submit(t.Context(), "a page", u, false); err != nil {
			t.Fatal(err)
		}
	}
	if content(t, p.a) == content(t, p.b) {
		t.Fatal("they are equal")
	}
	attach(t, p.n, "mars", "venus", p.a, p.b)
	return p
}

// pass lets the replicas exchange several digests.
func (p *pair) pass() {
	for range 5 {
		p.n.settle()
		time.Sleep(40 * time.Second)
	}
	p.n.settle()
}

// Replicas that integrated the same updates in different orders detect it, report it, and end with one order.
func TestADifferentOrderIsDetectedAndRepaired(t *testing.T) {
	for name, o := range map[string]replica.Options{"without a keeper": {}, "with a keeper": {Keeper: true}} {
		t.Run(name, func(t *testing.T) {
			first, second := disorder(t)
			synctest.Test(t, func(t *testing.T) {
				p := apart(t, o, replica.Options{}, first, second)
				edit(t, p.a, func(d *crdt.Doc) error { return d.Text("t").Append("!") })
				p.pass()
				a, b := status(t, p.a), status(t, p.b)
				if content(t, p.a) != content(t, p.b) || a.Diverged || b.Diverged {
					t.Errorf("one has %+v\n%s\nthe other %+v\n%s", a, content(t, p.a), b, content(t, p.b))
				}
				if o.Keeper != (a.Epoch > 0) || b.Repairs == 0 && !o.Keeper {
					t.Errorf("one has %+v, the other %+v", a, b)
				}
				if len(p.sink.events) == 0 && !o.Keeper || len(p.sink.events) > 0 && (p.sink.events[0].Type != telemetry.Security || p.sink.events[0].Code != string(crdt.CodeEquivocation)) {
					t.Errorf("telemetry has %+v", p.sink.events)
				}
				edit(t, p.b, func(d *crdt.Doc) error { return d.Text("t").Append("?") })
				p.n.settle()
				if a, b := content(t, p.a), content(t, p.b); a != b {
					t.Errorf("after another edit one has\n%s\nthe other\n%s", a, b)
				}
			})
		})
	}
}

// Two contents under the same ids are detected although state vectors agree. The keeper's content replaces the
// others; without a keeper the divergence is reported repeatedly.
func TestTwoContentsUnderOneIDAreDetected(t *testing.T) {
	text := func(s string) [][]byte {
		d := crdt.New(crdt.Options{Client: 7})
		u, err := d.Transact(nil, func() error { return d.Text("t").Append(s) })
		if err != nil {
			t.Fatal(err)
		}
		return [][]byte{u}
	}
	t.Run("with a keeper", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := apart(t, replica.Options{Keeper: true}, replica.Options{}, text("AAA"), text("BBB"))
			p.pass()
			if content(t, p.a) != content(t, p.b) || status(t, p.b).Epoch == 0 || status(t, p.b).Diverged {
				t.Errorf("one has\n%s\nthe other %+v\n%s", content(t, p.a), status(t, p.b), content(t, p.b))
			}
			if err := p.b.View(t.Context(), func(d *crdt.Doc) {
				if got := d.Text("t").String(); got != "AAA" {
					t.Errorf("the text is %q", got)
				}
			}); err != nil {
				t.Fatal(err)
			}
		})
	})
	t.Run("without", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := apart(t, replica.Options{}, replica.Options{}, text("AAA"), text("BBB"))
			p.pass()
			for _, r := range []*replica.Replica{p.a, p.b} {
				if s := status(t, r); !s.Diverged || s.Repairs != 0 {
					t.Errorf("it has %+v", s)
				}
			}
			if len(p.sink.events) != 1 || p.sink.events[0].Type != telemetry.Security {
				t.Errorf("telemetry has %+v", p.sink.events)
			}
		})
	})
}
