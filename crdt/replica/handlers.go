package replica

import (
	"context"
	"slices"
	"sync"
)

// handlers tells the application of changes, in a goroutine of its own, so that
// the application may call the replica.
type handlers struct {
	mu     sync.Mutex
	next   int
	list   []handler
	queue  []Update
	missed int
	wake   chan struct{}
}

type handler struct {
	id int
	f  func(Update)
}

// maxUpdates bounds the changes that wait for slow handlers.
const maxUpdates = 1024

func (h *handlers) add(f func(Update)) (cancel func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	id := h.next
	h.list = append(slices.Clip(h.list), handler{id, f})
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.list = slices.DeleteFunc(slices.Clone(h.list), func(o handler) bool { return o.id == id })
	}
}

func (h *handlers) tell(u Update) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.list) == 0 {
		return
	}
	if len(h.queue) >= maxUpdates {
		h.missed++
		return
	}
	u.Missed, h.missed = h.missed, 0
	h.queue = append(h.queue, u)
	select {
	case h.signal() <- struct{}{}:
	default:
	}
}

// signal returns the channel that wakes run; the lock is held.
func (h *handlers) signal() chan struct{} {
	if h.wake == nil {
		h.wake = make(chan struct{}, 1)
	}
	return h.wake
}

func (h *handlers) take() (queue []Update, list []handler, wake chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	queue, h.queue = h.queue, nil
	return queue, h.list, h.signal()
}

func (h *handlers) run(ctx context.Context, done *sync.WaitGroup) {
	defer done.Done()
	for {
		queue, list, wake := h.take()
		for _, u := range queue {
			for _, one := range list {
				if ctx.Err() != nil {
					return
				}
				one.f(u)
			}
		}
		if len(queue) > 0 {
			continue
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return
		}
	}
}
