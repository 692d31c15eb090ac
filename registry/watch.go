package registry

import (
	"context"
	"sync"

	"github.com/parleyhub/parley/agent"
)

// ChangeKind is what happened to a card.
type ChangeKind string

// The kinds of change.
const (
	Added   ChangeKind = "added"
	Updated ChangeKind = "updated"
	Removed ChangeKind = "removed" // unregistered, lost or expired
	// Resync says that the watcher fell behind and changes were dropped. What
	// follows is complete again; list the cards anew before going on.
	Resync ChangeKind = "resync"
)

// Change is one change of the registry.
type Change struct {
	Kind ChangeKind // what happened to it
	// Card is as it is now, or was when it was removed; empty for Resync. It is
	// shared between watchers: do not change what it refers to.
	Card agent.Card
}

// maxWatch is how many changes wait for a watcher.
const maxWatch = 1024

// Watcher receives the changes of a registry in order. It holds at most 1024 of
// them for a reader that is slow; then it drops them all and says [Resync], so
// the registry never waits. It is safe for concurrent use.
type Watcher struct {
	r *Registry

	mu    sync.Mutex
	queue []Change
	ended bool
	wake  chan struct{} // has room for one: something is new
}

// Watch returns a watcher of the changes from now on. Close it.
func (r *Registry) Watch() *Watcher {
	w := &Watcher{r: r, wake: make(chan struct{}, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		w.end()
		return w
	}
	r.watchers[w] = struct{}{}
	return w
}

// Next returns the next change. It blocks until there is one, ctx ends (its
// error) or the watcher or the registry is closed ([CodeClosed]).
func (w *Watcher) Next(ctx context.Context) (Change, error) {
	for {
		c, ok, ended := w.pop()
		if ok {
			return c, nil
		}
		if ended {
			return Change{}, errClosed
		}
		select {
		case <-ctx.Done():
			return Change{}, ctx.Err()
		case <-w.wake:
		}
	}
}

func (w *Watcher) pop() (c Change, ok, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		if w.ended {
			w.signal() // for others that wait
		}
		return Change{}, false, w.ended
	}
	c = w.queue[0]
	w.queue[0] = Change{}
	if w.queue = w.queue[1:]; len(w.queue) > 0 {
		w.signal()
	}
	return c, true, false
}

func (w *Watcher) push(c Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) >= maxWatch {
		w.queue = append(w.queue[:0:0], Change{Kind: Resync})
	} else {
		w.queue = append(w.queue, c)
	}
	w.signal()
}

func (w *Watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Watcher) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.signal()
}

// Close ends the watcher. It is safe to call more than once.
func (w *Watcher) Close() {
	w.r.mu.Lock()
	delete(w.r.watchers, w)
	w.r.mu.Unlock()
	w.end()
}

// notify hands a change to every watcher; r.mu is held.
func (r *Registry) notify(c Change) {
	if len(r.watchers) == 0 {
		return
	}
	c.Card = c.Card.Clone()
	for w := range r.watchers {
		w.push(c)
	}
}
