// Package handlers has a list of functions that may be changed while they are called.
package handlers

import (
	"slices"
	"sync"
)

// List is a list of handlers. The zero List is empty and ready; it is safe for concurrent use.
type List[F any] struct {
	mu  sync.Mutex
	all []*F // replaced, never changed
}

// Add adds a handler and returns the function that removes it, which may be called more than once.
func (l *List[F]) Add(f F) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(slices.Clip(l.all), &f)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = slices.DeleteFunc(slices.Clone(l.all), func(have *F) bool { return have == &f })
	}
}

// All returns the present handlers in the order in which they were added. Do not change the list.
func (l *List[F]) All() []*F {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}
