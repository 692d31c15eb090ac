package wait

import (
	"context"
	"sync"
)

// Signal wakes all goroutines that wait for a change. Its zero value is ready; it is safe for concurrent use.
type Signal struct {
	mu   sync.Mutex
	next chan struct{} // nil while nobody waits
}

// Send closes the channel that Wait returned.
func (s *Signal) Send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

// Wait returns a channel that is closed by the next Send. Call it before checking for a
// change, otherwise a Send in between is missed.
func (s *Signal) Wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

// Until blocks until a condition holds, which it checks now and after each Send. It
// reports false if ctx or done ends before.
func (s *Signal) Until(ctx context.Context, done <-chan struct{}, holds func() bool) bool {
	for {
		changed := s.Wait()
		if holds() {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-done:
			return false
		}
	}
}

// Closed reports whether a channel, to which nothing is sent, is closed.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Nudge sends to a channel with a buffer of one, unless the buffer is full. It never blocks.
func Nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Group runs goroutines until it is stopped. Its zero value is ready; it is safe for concurrent use.
type Group struct {
	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
}

// Go runs f in a goroutine. It reports false, without running f, once the group is stopped.
func (g *Group) Go(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped {
		g.running.Go(f)
	}
	return !g.stopped
}

// GoWithin is Go with at most cap(slots) such goroutines at a time. It also reports false if all slots are taken.
func (g *Group) GoWithin(slots chan struct{}, f func()) bool {
	select {
	case slots <- struct{}{}:
	default:
		return false
	}
	started := g.Go(func() {
		defer func() { <-slots }()
		f()
	})
	if !started {
		<-slots
	}
	return started
}

// Stop makes Go start nothing more, and reports false if it did so before.
func (g *Group) Stop() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := !g.stopped
	g.stopped = true
	return first
}

// Stopped reports whether the group was stopped.
func (g *Group) Stopped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stopped
}

// Wait blocks until all goroutines have ended.
func (g *Group) Wait() { g.running.Wait() }
