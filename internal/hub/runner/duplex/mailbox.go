package duplex

import (
	"strings"
	"sync"

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
	waiting []entry
	last    map[kind]int   // the newest waiting entry of each kind
	tools   map[string]int // the waiting entry of a tool call
	seen    map[string]bool
	dropped bool
	closed  bool
}

// kind distinguishes the events that are merged.
type kind int

const (
	kindOther kind = iota
	kindText
	kindThought
	kindUsage
	kindSession
)

// entry is a waiting event; merged text grows in a builder.
type entry struct {
	kind kind
	text *strings.Builder // of kindText and kindThought
	ev   runner.Event     // of the others
}

func (e entry) event() runner.Event {
	switch e.kind {
	case kindText:
		return runner.TextDelta{Text: e.text.String()}
	case kindThought:
		return runner.Thought{Text: e.text.String()}
	default:
		return e.ev
	}
}

func newMailbox() *mailbox {
	m := &mailbox{ready: make(chan struct{}, 1), seen: make(map[string]bool)}
	m.reset()
	return m
}

func (m *mailbox) reset() {
	m.waiting = nil
	m.last = make(map[kind]int)
	m.tools = make(map[string]int)
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
		m.join(kindText, ev.Text)
	case runner.Thought:
		m.join(kindThought, ev.Text)
	case runner.ToolCall:
		m.putTool(ev)
	case runner.Usage:
		m.replace(kindUsage, ev)
	case runner.SessionStarted:
		m.replace(kindSession, ev)
	default:
		m.add(entry{ev: ev})
	}
	m.wake()
}

func (m *mailbox) add(e entry) int {
	m.waiting = append(m.waiting, e)
	return len(m.waiting) - 1
}

func (m *mailbox) replace(k kind, ev runner.Event) {
	if i, ok := m.last[k]; ok {
		m.waiting[i].ev = ev
		return
	}
	m.last[k] = m.add(entry{kind: k, ev: ev})
}

func (m *mailbox) join(k kind, text string) {
	i, ok := m.last[k]
	if !ok || (i != len(m.waiting)-1 && len(m.waiting) < maxWaiting) {
		i = m.add(entry{kind: k, text: new(strings.Builder)})
		m.last[k] = i
	}
	m.waiting[i].text.WriteString(text)
}

func (m *mailbox) putTool(ev runner.ToolCall) {
	if i, ok := m.tools[ev.ID]; ok {
		m.waiting[i].ev = m.waiting[i].ev.(runner.ToolCall).Update(ev)
		return
	}
	if !m.seen[ev.ID] {
		if len(m.seen) >= maxTools {
			m.drop()
			return
		}
		m.seen[ev.ID] = true
	}
	m.tools[ev.ID] = m.add(entry{ev: ev})
}

// drop reports the first event that is dropped.
func (m *mailbox) drop() {
	if m.dropped {
		return
	}
	m.dropped = true
	m.add(entry{ev: runner.Notice{Text: "the agent uses too many tools: some are not reported"}})
}

func (m *mailbox) wake() {
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// take removes and returns the waiting events, in order. done is set when none waits
// and the mailbox is closed.
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
	m.reset()
	return evs, false
}

// close makes deliver return after the last event.
func (m *mailbox) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.wake()
}

// deliver calls handle with each event, in order, until the mailbox is closed and
// empty.
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
