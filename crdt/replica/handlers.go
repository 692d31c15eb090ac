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

	mu    sync.Mutex
	queue []Update
}

// maxUpdates bounds the queued changes. Replacements of the document are queued beyond it: they are few, and what was
// left in the former document exists nowhere else.
const maxUpdates = 1024

// notify queues a change. In a full queue it takes the place of the newest one, so that the last change of a burst always
// arrives.
func (h *notifier) notify(u Update) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.handlers.All()) == 0 {
		return
	}
	newest := len(h.queue) - 1
	if len(h.queue) >= maxUpdates && !u.Began && !h.queue[newest].Began {
		u.Missed = h.queue[newest].Missed + 1
		h.queue[newest] = u
		return
	}
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
		for i, u := range queue {
			u.More = i < len(queue)-1
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
