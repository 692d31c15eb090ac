package replica

import (
	"context"
	"sync"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/handlers"
	"github.com/parleyhub/parley/internal/base/wait"
)

// notifier calls the application's handlers in a separate goroutine, so that they may call the replica.
type notifier struct {
	handlers handlers.List[func(Update)]
	changed  wait.Signal

	mu     sync.Mutex
	queue  []Update
	missed int
}

// maxUpdates bounds the queued changes.
const maxUpdates = 1024

func (h *notifier) notify(u Update) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.handlers.All()) == 0 {
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

func (h *notifier) run(ctx context.Context, protect func(whose string, f func()) *fault.Panic) {
	for {
		changed := h.changed.Wait()
		h.mu.Lock()
		queue := h.queue
		h.queue = nil
		h.mu.Unlock()
		list := h.handlers.All()
		for _, u := range queue {
			for _, f := range list {
				if ctx.Err() != nil {
					return
				}
				_ = protect("a handler of OnUpdate", func() { (*f)(u) })
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
