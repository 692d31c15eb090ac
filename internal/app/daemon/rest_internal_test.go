package daemon

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/parleyhub/parley/internal/api/dialect"
)

// While the bus hangs, the hub still reads what agents that rest want.
func TestAnAgentIsReadWhileItsHeartbeatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &admitted{beats: make(chan *resting, 1)} // which nobody writes
		for range 2 {
			r := &resting{of: m}
			lines := []byte(strings.Repeat(`{"method":"`+dialect.NotifyBeat+`"}`+"\n", 3) + `{"method":"` + dialect.NotifyWake + `"}` + "\n")
			if left := r.take(lines, len(lines)); left != 0 || r.due != dialect.RestAsked {
				t.Errorf("%d bytes are left, and the rest ends for %q", left, r.due)
			}
		}
		if len(m.beats) != 1 {
			t.Errorf("%d heartbeats wait", len(m.beats))
		}
	})
}
