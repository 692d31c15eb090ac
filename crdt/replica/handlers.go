package replica

import (
	"context"
	"slices"
	"sync"

	"github.com/parleyhub/parley/internal/base/wait"
)

// handlers calls the application's handlers in a separate goroutine, so that they may call the replica.
type handlers struct {
	changed wait.Signal

	mu     sync.Mutex
	list   []*func(Update)
	queue  []Update
	missed int
}

// maxUpdates bounds the queued changes.
const maxUpdates = 1024

func (h *handlers) add(f func(Update)) (cancel func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(slices.Clip(h.list), &f)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.list = slices.DeleteFunc(slices.Clone(h.list), func(other *func(Update)) bool { return other == &f })
	}
}

func (h *handlers) notify(u Update) {
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
	h.changed.Send()
}

func (h *handlers) run(ctx context.Context, done *sync.WaitGroup) {
	defer done.Done()
	for {
		changed := h.changed.Wait()
		h.mu.Lock()
		queue, list := h.queue, h.list
		h.queue = nil
		h.mu.Unlock()
		for _, u := range queue {
			for _, f := range list {
				if ctx.Err() != nil {
					return
				}
				(*f)(u)
			}
		}
		if len(queue) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
