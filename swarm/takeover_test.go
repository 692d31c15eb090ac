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

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/swarm"
	"github.com/parleyhub/parley/swarm/swarmtest"
)

// guillotine is a journal at whose nth record its coordinator dies, before or after that record is stored. From
// then on the coordinator neither writes nor sends, like a killed process.
type guillotine struct {
	swarm.Journal
	at    int
	after bool // the record is stored
	fell  chan struct{}

	mu sync.Mutex
	n  int
}

func (g *guillotine) Append(ctx context.Context, id string, after uint64, data []byte) (uint64, error) {
	g.mu.Lock()
	g.n++
	n := g.n
	g.mu.Unlock()
	if n < g.at {
		return g.Journal.Append(ctx, id, after, data)
	}
	if n == g.at {
		if g.after {
			_, _ = g.Journal.Append(ctx, id, after, data) // the coordinator never receives the outcome
		}
		close(g.fell)
	}
	<-ctx.Done()
	return 0, ctx.Err()
}

// Wherever coordinators are killed, others that share the journal complete the swarm with the same outcome.
// Completed work is not repeated, and the work of agents that died is done by others (Req 8.4, Req 8.5, Req 8.6).
func TestKilledCoordinatorsAreSucceeded(t *testing.T) {
	check(t, func(t *rapid.T) {
		h := newHive(t)
		journal := new(swarm.MemoryJournal)
		names := []string{"sun", "earth", "jupiter"}
		coordinators := make([]*swarm.Coordinator, len(names))
		began, kill := context.WithCancel(ctx)
		defer kill()
		for i, name := range names {
			o := swarm.CoordinatorOptions{Journal: journal, Successors: names}
			if i < 2 {
				g := &guillotine{Journal: journal, fell: make(chan struct{})}
				g.at, g.after = rapid.IntRange(1, 25).Draw(t, name+" dies at"), rapid.Bool().Draw(t, "after storing")
				o.Journal = g
				defer func() { // either no coordinator died, or all that died have ended
					select {
					case <-g.fell:
					default:
						close(g.fell)
					}
				}()
				go func() {
					<-g.fell
					if i == 0 {
						kill()
					}
					_ = coordinators[i].Close() // returns nil
				}()
			}
			coordinators[i] = h.coordinator(name, o)
		}
		const agents = 4
		for i := range agents {
			id := fmt.Sprintf("agent-%d", i)
			work, life := h.answer(id), 1<<30
			if i > 0 && rapid.Bool().Draw(t, id+" dies") {
				life = rapid.IntRange(0, 4).Draw(t, "over its part")
			}
			n := 0
			h.participant(id, swarm.ParticipantOptions{}, func(ctx context.Context, j swarm.Job) (json.RawMessage, error) {
				time.Sleep(time.Second)
				if n++; n > life {
					h.r.Registry().Unregister(id)
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return work(ctx, j)
			}, "a")
		}
		p := plan(rapid.IntRange(1, 12).Draw(t, "parts"), "a")
		p.ID, p.MaxAttempts = "job", 20
		for i := range p.SubTasks {
			for on := range i {
				if rapid.IntRange(0, 3).Draw(t, "depends") == 0 {
					p.SubTasks[i].DependsOn = append(p.SubTasks[i].DependsOn, p.SubTasks[on].ID)
				}
			}
		}
		jupiter := coordinators[2]
		if _, err := coordinators[0].Create(began, p); err != nil {
			// The creator received no answer and asks another coordinator.
			_, err = jupiter.Create(ctx, p)
			must(t, err)
		}
		s, err := jupiter.Wait(ctx, "job")
		must(t, err)
		results := outcome(t, s)
		if s.Status != swarm.Completed || len(results) != len(p.SubTasks) {
			t.Fatalf("%s, %d results of %d", s.Status, len(results), len(p.SubTasks))
		}
		synctest.Wait()
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, part := range p.SubTasks {
			if said := results[part.ID]; !strings.HasSuffix(said, " did "+part.ID) || h.done[part.ID] != 1 {
				t.Fatalf("%s: %q, done %d times", part.ID, said, h.done[part.ID])
			}
		}
	})
}

// Creating a swarm with a chosen id is idempotent.
func TestCreationWithAnIDIsIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		journal := new(swarm.MemoryJournal)
		sun := h.coordinator("sun", swarm.CoordinatorOptions{Journal: journal, Successors: []string{"earth"}})
		earth := h.coordinator("earth", swarm.CoordinatorOptions{Journal: journal, Successors: []string{"sun"}})
		h.participant("agent", swarm.ParticipantOptions{}, h.answer("agent"), "a")
		p := plan(3, "a")
		p.ID = "once"
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				s, err := []*swarm.Coordinator{sun, earth}[i%2].Create(ctx, p)
				if err != nil || s.ID != "once" {
					t.Errorf("%v, %+v", err, s)
				}
			})
		}
		all.Wait()
		_, err := sun.Wait(ctx, "once")
		must(t, err)
		s, err := earth.Create(ctx, p)
		must(t, err)
		if s.Status != swarm.Completed || h.done["t0"] != 1 || h.done["t2"] != 1 {
			t.Fatalf("%s, done %v", s.Status, h.done)
		}
		list, err := earth.Sessions(ctx)
		if err != nil || len(list) != 1 {
			t.Fatalf("%d swarms, %v", len(list), err)
		}
		for _, id := range []string{"a.b", "a b", "*", strings.Repeat("x", 65)} {
			p.ID = id
			_, err := sun.Create(ctx, p)
			wantCode(t, err, swarm.CodeInvalid)
		}
	})
}

func TestMemoryJournal(t *testing.T) {
	swarmtest.Journal(t, func(*testing.T) swarm.Journal { return new(swarm.MemoryJournal) })
}
