package agentnet

import (
	"context"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
)

// MaxUnread bounds what [Agent.UnreadNow] counts.
const MaxUnread = 100

const (
	// unreadAge is how long a count is used without a sign of new mail: mail also expires.
	unreadAge = time.Minute
	// unreadSettled is how long after such a sign a count is not kept: the server announces mail before it has stored it.
	unreadSettled = 2 * time.Second
)

// unread is the last count of an agent's unread mail.
type unread struct {
	mu          sync.Mutex
	count       int
	counted     time.Time // zero if there is no count
	changed     time.Time // when the last sign of new mail was seen
	reads       int       // so that a read during a count is noticed
	main, local <-chan struct{}
}

func (u *unread) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.counted = time.Time{}
	u.reads++
}

// UnreadNow counts the unread mail, up to MaxUnread. It is fast while nothing arrives: the inbox is only read after a sign of
// new mail, or after a read.
func (a *Agent) UnreadNow(ctx context.Context) (int, error) {
	u, now := &a.unread, a.net.main.store.Now()
	u.mu.Lock()
	for _, c := range []*<-chan struct{}{&u.main, &u.local} {
		if *c != nil && wait.Closed(*c) {
			*c, u.counted, u.changed = nil, time.Time{}, now
		}
	}
	if !u.counted.IsZero() && u.counted.Sub(u.changed) > unreadSettled && now.Sub(u.counted) < unreadAge {
		defer u.mu.Unlock()
		return u.count, nil
	}
	if u.main == nil {
		u.main = a.main.box.Changed()
	}
	local := a.localMember()
	if local != nil && u.local == nil {
		u.local = local.box.Changed()
	}
	reads := u.reads
	u.mu.Unlock()

	n, err := a.countUnread(ctx)
	if err != nil {
		return 0, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reads == reads {
		u.count, u.counted = n, now
	}
	return n, nil
}

// countUnread reads the inboxes.
func (a *Agent) countUnread(ctx context.Context) (int, error) {
	total := 0
	if local := a.readyLocal(); local != nil {
		n, err := local.box.UnreadUpTo(ctx, MaxUnread)
		if err != nil {
			return 0, err
		}
		total = n
	}
	if total == MaxUnread {
		return total, nil
	}
	n, err := a.main.box.UnreadUpTo(ctx, MaxUnread-total)
	if err != nil && !store.IsUnreachable(err) {
		return 0, err
	}
	return total + n, nil
}
