package documents

import "time"

// Bound sets how many documents may be open, and for how long an unused one stays open.
func (l *Library) Bound(open int, idle time.Duration) { l.maxOpen, l.idle = open, idle }

// BoundStored sets how many documents may exist.
func (l *Library) BoundStored(most int) { l.most = most }

// PauseBetweenBatches sets how long changes that nobody waits for may wait for others.
func (l *Library) PauseBetweenBatches(pause time.Duration) { l.grouping = pause }
