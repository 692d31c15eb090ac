package duplex

import (
	"strings"
	"sync"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Bounds of what a turn reports.
const (
	// maxWaiting is how many events wait separately. Above it a text is appended to the
	// newest waiting text, whatever events are in between.
	maxWaiting = 1024
	// maxTools is how many tool calls of a turn are reported.
	maxTools = 4096
)

// mailbox passes events from the goroutines that read an agent to the one that calls
// the handler. Event never blocks: a slow handler does not delay permission
// requests and the end of the turn, but receives fewer and larger events.
//
//   - Text and thoughts are appended to a waiting event of their kind; none is lost.
//   - A tool call replaces the fields of the waiting one with its id.
//   - Usage and the session replace a waiting event of their kind.
//   - Tool calls beyond maxTools are dropped, and one notice reports that.
//
// runner.Answer bounds the amount of text and the number of notices.
type mailbox struct {
	ready chan struct{} // holds a token while events may wait

	mu      sync.Mutex
	waiting []*entry
	last    map[any]*entry // the newest waiting entry of a kind, and that of a tool call by its id
	seen    map[string]bool
	dropped bool
	closed  bool
}

// entry is a waiting event; the text of texts and thoughts grows in a builder.
type entry struct {
	ev   runner.Event
	text strings.Builder
}

func (e *entry) event() runner.Event {
	switch e.ev.(type) {
	case runner.TextDelta:
		return runner.TextDelta{Text: e.text.String()}
	case runner.Thought:
		return runner.Thought{Text: e.text.String()}
	}
	return e.ev
}

func newMailbox() *mailbox {
	return &mailbox{ready: make(chan struct{}, 1), last: make(map[any]*entry), seen: make(map[string]bool)}
}

// Event adds an event. After close it does nothing.
func (m *mailbox) Event(ev runner.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	switch ev := ev.(type) {
	case runner.TextDelta:
		m.join(runner.TextDelta{}, ev.Text)
	case runner.Thought:
		m.join(runner.Thought{}, ev.Text)
	case runner.ToolCall:
		m.putTool(ev)
	case runner.Usage:
		m.put(runner.Usage{}, ev)
	case runner.SessionStarted:
		m.put(runner.SessionStarted{}, ev)
	default:
		m.add(ev)
	}
	wait.Nudge(m.ready)
}

func (m *mailbox) add(ev runner.Event) *entry {
	e := &entry{ev: ev}
	m.waiting = append(m.waiting, e)
	return e
}

// put replaces the waiting event with the key, or adds one.
func (m *mailbox) put(key any, ev runner.Event) {
	if e := m.last[key]; e != nil {
		e.ev = ev
		return
	}
	m.last[key] = m.add(ev)
}

// join appends a text to the waiting event of its kind, or adds one.
func (m *mailbox) join(kind runner.Event, text string) {
	e := m.last[kind]
	if e == nil || e != m.waiting[len(m.waiting)-1] && len(m.waiting) < maxWaiting {
		e = m.add(kind)
		m.last[kind] = e
	}
	e.text.WriteString(text)
}

func (m *mailbox) putTool(ev runner.ToolCall) {
	if e := m.last[ev.ID]; e != nil {
		ev = e.ev.(runner.ToolCall).Update(ev)
	} else if !m.seen[ev.ID] {
		if len(m.seen) >= maxTools {
			m.drop()
			return
		}
		m.seen[ev.ID] = true
	}
	m.put(ev.ID, ev)
}

// drop reports the first event that is dropped.
func (m *mailbox) drop() {
	if !m.dropped {
		m.dropped = true
		m.add(runner.Notice{Text: "the agent uses too many tools: some are not reported"})
	}
}

// take removes and returns the waiting events, in order. done is set when none waits and the mailbox is closed.
func (m *mailbox) take() (evs []runner.Event, done bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == 0 {
		return nil, m.closed
	}
	evs = make([]runner.Event, len(m.waiting))
	for i, e := range m.waiting {
		evs[i] = e.event()
	}
	m.waiting = nil
	clear(m.last)
	return evs, false
}

// close makes deliver return after the last event.
func (m *mailbox) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	wait.Nudge(m.ready)
}

// deliver calls handle with each event, in order, until the mailbox is closed and empty.
func (m *mailbox) deliver(handle func(runner.Event)) {
	for range m.ready {
		for {
			evs, done := m.take()
			if done {
				return
			}
			if len(evs) == 0 {
				break
			}
			for _, ev := range evs {
				handle(ev)
			}
		}
	}
}
