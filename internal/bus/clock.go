package bus

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/parleyhub/parley/internal/base/clock"
)

// clockFile is the file in the store's directory that says how the computer's clock was at the hub's last start.
const clockFile = "clock"

// clockMark is its content.
type clockMark struct {
	Boot  string        `json:"boot"`  // the run of the computer's system
	Began time.Duration `json:"began"` // when that began by the clock, since 1970
}

// watchClock notices from now on that the computer's clock is set, and whether it was since the hub's last start. After a start of the computer
// that does not matter: nobody is there any more who is as old.
func (b *Bus) watchClock() {
	b.watch = clock.NewWatch(time.Now, nil)
	boot, length, ok := clock.Boot()
	if !ok {
		return
	}
	now := time.Now()
	mark, before := clockMark{boot, time.Duration(now.UnixNano()) - length}, clockMark{}
	path := filepath.Join(b.dir, clockFile)
	if data, err := os.ReadFile(path); err == nil && json.Unmarshal(data, &before) == nil && before.Boot == boot && (mark.Began-before.Began).Abs() >= clock.MinSet {
		b.wasSet = now
	}
	if mark.Boot == before.Boot && b.wasSet.IsZero() {
		return
	}
	data, err := json.Marshal(mark)
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil { // then the next start knows less
		b.log.Warn("how the computer's clock is was not stored", "error", err)
	}
}

// ClockSet returns when the hub noticed that its computer's clock was set, or that the computer has slept; the zero time if it has not. A joined Bus
// returns what the hub knew when this process joined it, since a process notices for itself what comes later.
func (b *Bus) ClockSet() time.Time {
	switch {
	case b.watch != nil:
		if at := b.watch.Changed(); !at.IsZero() {
			return at
		}
		return b.wasSet
	case b.hub != nil:
		return b.hub.current().ClockSet
	}
	return time.Time{}
}
