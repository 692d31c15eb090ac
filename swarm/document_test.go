package swarm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/swarm"
)

// workUntil returns a worker that waits until a channel is closed.
func workUntil(end <-chan struct{}) swarm.Worker {
	return func(ctx context.Context, _ swarm.Job) (json.RawMessage, error) {
		select {
		case <-end:
			return json.RawMessage(`"done"`), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// observer records the states that a participant's watcher receives.
type observer struct {
	mu   sync.Mutex
	seen []swarm.State
}

func (o *observer) watch(s swarm.State) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, s)
}

func (o *observer) last() swarm.State {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.seen) == 0 {
		return swarm.State{}
	}
	return o.seen[len(o.seen)-1]
}

// The successor of a coordinator continues the shared state, and no watcher receives a state twice or an older one
// (Req 8.3).
func TestTheSharedStateSurvivesItsCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		journal := new(swarm.MemoryJournal)
		sun := h.coordinator("sun", swarm.CoordinatorOptions{Journal: journal, Successors: []string{"earth"}})
		earth := h.coordinator("earth", swarm.CoordinatorOptions{Journal: journal, Successors: []string{"sun"}})
		end := make(chan struct{})
		a := h.participant("a", swarm.ParticipantOptions{}, workUntil(end), "a")
		b := h.participant("b", swarm.ParticipantOptions{}, workUntil(end), "a")
		s, err := sun.Create(ctx, plan(2, "a"))
		must(t, err)
		synctest.Wait()
		var seen observer
		must(t, a.Watch(s.ID, seen.watch))
		must(t, b.SetState(s.ID, "colour", json.RawMessage(`{"of":"the sky"}`)))
		synctest.Wait()
		must(t, sun.Close())
		time.Sleep(time.Minute) // earth takes over
		must(t, b.SetState(s.ID, "depth", json.RawMessage(`12345678901234567890.5`)))
		synctest.Wait()
		want := map[string]string{"colour": `{"of":"the sky"}`, "depth": `12345678901234567890.5`}
		late, err := b.State(ctx, s.ID) // the first call starts following the document
		must(t, err)
		for _, got := range []swarm.State{seen.last(), late} {
			for key, value := range want {
				if string(got.Values[key]) != value {
					t.Errorf("%s is %s, want %s", key, got.Values[key], value)
				}
			}
		}
		close(end)
		_, err = earth.Wait(ctx, s.ID)
		must(t, err)
		synctest.Wait()
		if got := string(seen.last().Values["subTask/t1"]); !strings.Contains(got, `"done"`) {
			t.Errorf("the last state of the second sub-task that it received is %q", got)
		}
		for i := 1; i < len(seen.seen); i++ {
			if seen.seen[i].Sequence <= seen.seen[i-1].Sequence {
				t.Errorf("state %d after %d", seen.seen[i].Sequence, seen.seen[i-1].Sequence)
			}
		}
	})
}

// A shared state larger than one envelope still reaches participants.
func TestALargeSharedStateIsSentInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		end := make(chan struct{})
		a := h.participant("a/b", swarm.ParticipantOptions{}, workUntil(end), "a")
		s, err := c.Create(ctx, plan(1, "a"))
		must(t, err)
		synctest.Wait()
		value, err := json.Marshal(strings.Repeat("x", swarm.MaxValue-2))
		must(t, err)
		for i := range 40 {
			must(t, c.SetState(ctx, s.ID, fmt.Sprint("before-", i), value))
		}
		got, err := a.State(ctx, s.ID)
		must(t, err)
		if len(got.Values) != 40 {
			t.Fatalf("%d values of 40", len(got.Values))
		}
		for i := range 20 {
			must(t, a.SetState(s.ID, fmt.Sprint("after-", i), value))
			if i%10 == 9 {
				synctest.Wait() // a mailbox has limited room
			}
		}
		time.Sleep(time.Minute)
		got, err = a.State(ctx, s.ID)
		must(t, err)
		if len(got.Values) != 60 || string(got.Values["after-19"]) != string(value) {
			t.Fatalf("%d values of 60", len(got.Values))
		}
		close(end)
		_, err = c.Wait(ctx, s.ID)
		must(t, err)
	})
}

// The shared state of a swarm is bounded.
func TestTheSharedStateIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		h.participant("a", swarm.ParticipantOptions{}, workUntil(nil), "a")
		s, err := c.Create(ctx, plan(1, "a"))
		must(t, err)
		value, err := json.Marshal(strings.Repeat("x", swarm.MaxValue-2))
		must(t, err)
		for i := 0; err == nil; i++ {
			if i > swarm.MaxShared/swarm.MaxValue {
				t.Fatal("SetState never refused a value")
			}
			err = c.SetState(ctx, s.ID, fmt.Sprint("k-", i), value)
		}
		wantCode(t, err, swarm.CodeLimit)
		must(t, c.SetState(ctx, s.ID, "k-0", nil)) // deleted values free space
		must(t, c.SetState(ctx, s.ID, "again", value))
		must(t, c.Stop(ctx, s.ID, "enough"))
	})
}

// direct is an agent's link to another agent without a Participant.
type direct struct {
	h    *hive
	from string
	id   string // of the swarm
}

func (d direct) Send(ctx context.Context, e *envelope.Envelope) error {
	e.CorrelationID = d.id
	_, err := d.h.r.Send(ctx, e)
	return err
}

func (d direct) OnMessage(h channel.Handler) (remove func()) {
	return d.h.r.OnReceive(d.from, func(ctx context.Context, e *envelope.Envelope) { h(ctx, e) })
}
func (d direct) LocalAgent() string  { return d.from }
func (d direct) RemoteAgent() string { return "sun" }

// The coordinator alone writes the document: neither a stranger nor a participant
// gets a change into it but by asking.
func TestOnlyTheCoordinatorWritesTheSharedState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		end := make(chan struct{})
		member := h.participant("member", swarm.ParticipantOptions{}, workUntil(end), "a")
		other := h.participant("other", swarm.ParticipantOptions{}, workUntil(end), "a")
		h.register("stranger")
		s, err := c.Create(ctx, plan(2, "a"))
		must(t, err)
		synctest.Wait()
		for _, p := range []*swarm.Participant{member, other} {
			_, err := p.State(ctx, s.ID)
			must(t, err)
		}
		for _, forger := range []string{"member", "stranger"} {
			r, err := replica.New(replica.Options{Agent: forger, State: "swarm/" + s.ID, Epoch: 1})
			must(t, err)
			_, err = r.Attach(direct{h, forger, s.ID})
			must(t, err)
			must(t, r.Edit(ctx, func(d *crdt.Doc) error { return d.Map("values").Set("subTask/t0", `"forged"`) }))
			must(t, r.Flush(ctx))
			synctest.Wait()
			must(t, r.Close())
		}
		must(t, c.SetState(ctx, s.ID, "k", json.RawMessage(`1`)))
		synctest.Wait()
		for _, p := range []*swarm.Participant{member, other} {
			got, err := p.State(ctx, s.ID)
			must(t, err)
			if len(got.Values) != 1 || string(got.Values["k"]) != "1" {
				t.Errorf("a participant sees %s", got.Values)
			}
		}
		close(end)
		s, err = c.Wait(ctx, s.ID)
		must(t, err)
		if len(s.SharedState) != 3 {
			t.Errorf("shared state %s", s.SharedState)
		}
	})
}
