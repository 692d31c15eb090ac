package hub

import (
	"context"
	"io"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/wait"
)

// logSize is how many events a subscriber may be behind before it receives a snapshot instead.
const logSize = 512

// log holds a task's latest events for its subscribers. Every subscriber has its own position, so that none delays
// the task or another. Without subscribers the log is empty. The task's lock guards it.
type log struct {
	events      []a2a.Event
	first       uint64 // number of events[0]
	subscribers int
	added       wait.Signal
}

func (l *log) watched() bool { return l.subscribers > 0 }

func (l *log) end() uint64 { return l.first + uint64(len(l.events)) }

func (l *log) add(ev a2a.Event) {
	if l.subscribers == 0 {
		return
	}
	if len(l.events) >= logSize {
		// Half at once: one copy for each event would be slow.
		n := copy(l.events, l.events[logSize/2:])
		clear(l.events[n:])
		l.events = l.events[:n]
		l.first += logSize / 2
	}
	l.events = append(l.events, ev)
	l.added.Send()
}

// Subscription returns the events of one task after a snapshot. Next is for one goroutine
// at a time; Close may be called from any.
type Subscription struct {
	task  *task
	start *a2a.Task

	// The task's lock guards the rest.
	next   uint64 // number of the next event
	ended  bool   // the last event was an end or interruption
	closed bool
	done   chan struct{} // closed by Close
}

// subscribe returns a subscription, which holds its own reference. mu is held; the caller holds a reference.
func (t *task) subscribe() *Subscription {
	s := &Subscription{task: t, done: make(chan struct{})}
	t.hub.retain(t)
	t.log.subscribers++
	s.start = t.snapshot()
	s.next = t.log.end()
	s.ended = s.start.Status.State.Terminal()
	return s
}

// Subscribe returns a subscription to a task. For a task that has ended, Next returns
// io.EOF; for an interrupted one, Next blocks until the task resumes.
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

// Task returns the snapshot before the first event.
func (s *Subscription) Task() *a2a.Task { return s.start }

// Next blocks until the next event and returns it: *a2a.TaskStatusUpdateEvent, *a2a.TaskArtifactUpdateEvent or, in
// place of events that a slow subscriber has missed, the current *a2a.Task. The error is io.EOF after an end or
// interruption of the task and after Close, or ctx's.
func (s *Subscription) Next(ctx context.Context) (a2a.Event, error) {
	for {
		ev, added := s.poll()
		if ev != nil {
			return ev, nil
		}
		if added == nil {
			return nil, io.EOF
		}
		select {
		case <-added:
		case <-s.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// poll returns the next event, or a channel to wait for it, or neither at the end.
func (s *Subscription) poll() (a2a.Event, <-chan struct{}) {
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
		return nil, t.log.added.Wait()
	}
	ev := t.log.events[s.next-t.log.first]
	s.next++
	if st, ok := ev.(*a2a.TaskStatusUpdateEvent); ok {
		s.ended = settled(st.Status.State)
	}
	return ev, nil
}

// Ready reports whether Next returns at once.
func (s *Subscription) Ready() bool {
	t := s.task
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.closed || s.ended || s.next != t.log.end()
}

// Close ends the subscription; the task continues. Close is idempotent.
func (s *Subscription) Close() {
	t := s.task
	t.mu.Lock()
	if s.closed {
		t.mu.Unlock()
		return
	}
	s.closed = true
	close(s.done)
	t.log.subscribers--
	if t.log.subscribers == 0 {
		t.log.first = t.log.end()
		t.log.events = nil
	}
	t.mu.Unlock()
	t.hub.release(t)
}
