package hub

import (
	"context"
	"io"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// logSize is how many events a subscriber may be behind before it is given a
// snapshot instead.
const logSize = 512

// log is a task's latest events, for those who watch it: a ring in which every
// subscriber has a place of its own, so that none can hold up the task or
// another. While nobody watches it keeps nothing. It belongs to the task's lock.
type log struct {
	events   []a2a.Event
	first    uint64 // number of events[0]
	watchers int
	wake     chan struct{} // closed with the next event; nil if nobody waits
}

func (l *log) watched() bool { return l.watchers > 0 }

func (l *log) end() uint64 { return l.first + uint64(len(l.events)) }

func (l *log) add(ev a2a.Event) {
	if l.watchers == 0 {
		return
	}
	if len(l.events) >= logSize {
		// Half at a time: a copy an event would be dear.
		n := copy(l.events, l.events[logSize/2:])
		clear(l.events[n:])
		l.events = l.events[:n]
		l.first += logSize / 2
	}
	l.events = append(l.events, ev)
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// wait returns a channel that is closed with the next event.
func (l *log) wait() <-chan struct{} {
	if l.wake == nil {
		l.wake = make(chan struct{})
	}
	return l.wake
}

// Subscription follows one task from a snapshot on. Next is for one goroutine;
// Close may be called from any.
type Subscription struct {
	task  *task
	start *a2a.Task

	// The rest belongs to the task's lock.
	next   uint64 // number of the next event
	ended  bool   // the last event was an end or interruption
	closed bool
	done   chan struct{} // closed by Close
}

// subscribe makes a subscription that holds a reference of its own. mu is held;
// the caller holds a reference.
func (t *task) subscribe() *Subscription {
	s := &Subscription{task: t, done: make(chan struct{})}
	t.hub.retain(t)
	t.log.watchers++
	s.start = t.snapshot()
	s.next = t.log.end()
	s.ended = s.start.Status.State.Terminal()
	return s
}

// Subscribe follows a task: its snapshot, then what happens to it. Of a task
// that has ended there is the snapshot and then io.EOF; at one that is
// interrupted the subscription waits for it to go on.
func (h *Hub) Subscribe(ctx context.Context, id a2a.TaskID) (*Subscription, error) {
	t, err := h.acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	defer h.release(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.subscribe(), nil
}

// Task returns the snapshot that the events follow.
func (s *Subscription) Task() *a2a.Task { return s.start }

// Next returns the next event, and waits for it. It returns io.EOF after an end
// or interruption of the task, and after Close. One that reads too slowly is
// given a *a2a.Task, the present, in place of the events it has missed.
func (s *Subscription) Next(ctx context.Context) (a2a.Event, error) {
	for {
		ev, wait := s.take()
		if ev != nil {
			return ev, nil
		}
		if wait == nil {
			return nil, io.EOF
		}
		select {
		case <-wait:
		case <-s.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take returns the next event, or a channel to wait for it, or neither at the
// end.
func (s *Subscription) take() (a2a.Event, <-chan struct{}) {
	t := s.task
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.closed || s.ended {
		return nil, nil
	}
	if s.next < t.log.first {
		snap := t.snapshot()
		s.next = t.log.end()
		s.ended = settled(snap.Status.State)
		return snap, nil
	}
	if s.next == t.log.end() {
		return nil, t.log.wait()
	}
	ev := t.log.events[s.next-t.log.first]
	s.next++
	if st, ok := ev.(*a2a.TaskStatusUpdateEvent); ok {
		s.ended = settled(st.Status.State)
	}
	return ev, nil
}

// Close ends the subscription; the task goes on. A second call does nothing.
func (s *Subscription) Close() {
	t := s.task
	t.mu.Lock()
	if s.closed {
		t.mu.Unlock()
		return
	}
	s.closed = true
	close(s.done)
	t.log.watchers--
	if t.log.watchers == 0 {
		t.log.first = t.log.end()
		t.log.events = nil
	}
	t.mu.Unlock()
	t.hub.release(t)
}
