package registry

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/agentnet/store"
)

// What is written meanwhile may be what the server has lost.
func TestAHeartbeatThatIsHurriedDuringItsWriteIsWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = time.Hour
		beat := &heartbeat{agent: new(Agent), due: time.Now()}
		h := &heartbeats{all: map[*heartbeat]struct{}{beat: {}}}
		for _, hurried := range []bool{false, true, false} {
			if !h.begin(beat) {
				t.Fatal("the heartbeat is not due")
			}
			if h.begin(beat) {
				t.Fatal("the heartbeat is due while it is written")
			}
			if hurried {
				h.hurry(beat)
			}
			h.done(beat, interval)
			if got := h.untilNext() <= 0; got != hurried {
				t.Errorf("hurried %t: the next is due in %v", hurried, h.untilNext())
			}
			if !hurried {
				time.Sleep(interval)
			}
		}
		if !beat.agent.dirty {
			t.Error("the heartbeat is not the whole entry")
		}
	})
}

// Else a part of the entry may be written just then, and the entry that the server has lost only with the next heartbeat.
func TestAHurriedHeartbeatIsTheWholeEntry(t *testing.T) {
	for range 2000 {
		beat := &heartbeat{agent: new(Agent), due: time.Now().Add(time.Hour)}
		h := &heartbeats{all: map[*heartbeat]struct{}{beat: {}}}
		var hurried sync.WaitGroup
		hurried.Go(func() { h.hurry(beat) })
		for !h.begin(beat) {
			runtime.Gosched()
		}
		beat.agent.mu.Lock()
		whole := beat.agent.dirty
		beat.agent.mu.Unlock()
		hurried.Wait()
		if !whole {
			t.Fatal("it is due before it is known that the entry is to be written")
		}
	}
}

// What ends with a heartbeat ends after its last write, in the reverse order, and nothing is written then.
func TestAHeartbeatEndsAfterItsWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended []int
		beat := &heartbeat{agent: new(Agent), due: time.Now()}
		beat.atEnd = []func(){func() { ended = append(ended, 1) }, func() { ended = append(ended, 2) }}
		h := &heartbeats{all: map[*heartbeat]struct{}{beat: {}}}
		if !h.begin(beat) {
			t.Fatal("the heartbeat is not due")
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { h.end(beat); cancel() }()
		synctest.Wait()
		if ended != nil {
			t.Fatal("it has ended during the write")
		}
		h.done(beat, 0)
		<-ctx.Done()
		if !slices.Equal(ended, []int{2, 1}) {
			t.Errorf("ended: %v", ended)
		}
		if h.begin(beat) || h.untilNext() != maximumHeartbeat {
			t.Error("the heartbeat is due after its end")
		}
	})
}

// An agent whose write has to wait does not make another one wait.
func TestHeartbeatsAreWrittenAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(store.Config{Logger: slog.New(slog.DiscardHandler)}.WithDefaults())
		defer s.Stop()
		g := New(s)
		for range writesAtOnce {
			a := &Agent{reg: g, turn: semaphore.NewWeighted(1), log: s.Log()}
			if err := a.turn.Acquire(t.Context(), 1); err != nil { // somebody else writes the entry, and the bus hangs
				t.Fatal(err)
			}
			g.heartbeats.all[&heartbeat{agent: a, ctx: t.Context(), due: time.Now()}] = struct{}{}
		}
		began := time.Now()
		g.heartbeats.writeDue()
		if took := time.Since(began); took != 2*store.RequestTimeout {
			t.Errorf("%d heartbeats wait for %v, not for %v", writesAtOnce, took, 2*store.RequestTimeout)
		}
	})
}
