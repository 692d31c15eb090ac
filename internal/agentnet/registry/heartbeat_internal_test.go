package registry

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
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
