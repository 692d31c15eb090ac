package registry

import (
	"context"
	"sync"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/wait"
)

// ChangeKind is what happened to a card.
type ChangeKind string

// The kinds of change.
const (
	Added   ChangeKind = "added"
	Updated ChangeKind = "updated"
	Removed ChangeKind = "removed" // unregistered, lost or expired
	// Resync says that the watcher was too slow and changes were dropped. List the cards
	// again; later changes follow.
	Resync ChangeKind = "resync"
)

// Change is one change of the registry.
type Change struct {
	Kind ChangeKind
	// Card is the new card, or the removed one; empty for Resync. Watchers share it: do
	// not change what it refers to.
	Card agent.Card
}

// maxWatch is how many changes a watcher buffers.
const maxWatch = 1024

// Watcher receives the changes of a registry in order. It buffers at most 1024; then it drops them all and returns
// [Resync], so the registry never waits. It is safe for concurrent use.
type Watcher struct {
	r *Registry

	mu    sync.Mutex
	queue []Change
	ended bool
	news  wait.Signal
}

// Watch returns a watcher of the changes from now on. Close it.
func (r *Registry) Watch() *Watcher {
	w := &Watcher{r: r}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		w.end()
		return w
	}
	r.watchers[w] = struct{}{}
	return w
}

// Next returns the next change. It blocks until there is one, ctx ends (then it
// returns ctx's error) or the watcher or the registry is closed ([CodeClosed]).
func (w *Watcher) Next(ctx context.Context) (Change, error) {
	for {
		w.mu.Lock()
		if len(w.queue) > 0 {
			defer w.mu.Unlock()
			c := w.queue[0]
			w.queue[0] = Change{}
			w.queue = w.queue[1:]
			return c, nil
		}
		ended, news := w.ended, w.news.Wait()
		w.mu.Unlock()
		if ended {
			return Change{}, errClosed
		}
		select {
		case <-ctx.Done():
			return Change{}, ctx.Err()
		case <-news:
		}
	}
}

func (w *Watcher) push(c Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) >= maxWatch {
		w.queue = append(w.queue[:0:0], Change{Kind: Resync})
	} else {
		w.queue = append(w.queue, c)
	}
	w.news.Send()
}

func (w *Watcher) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.news.Send()
}

// Close ends the watcher. It is safe to call more than once.
func (w *Watcher) Close() {
	w.r.mu.Lock()
	delete(w.r.watchers, w)
	w.r.mu.Unlock()
	w.end()
}

// notify passes a change to every watcher; r.mu is held.
func (r *Registry) notify(c Change) {
	if len(r.watchers) == 0 {
		return
	}
	c.Card = c.Card.Clone()
	for w := range r.watchers {
		w.push(c)
	}
}
