package main

import (
	"encoding/json"
	"io"
	"slices"
	"sync"
	"time"
)

// outcome is what a client knows of its call.
type outcome string

const (
	done    outcome = "done"    // the hub has confirmed it
	refused outcome = "refused" // the hub has refused it, and has done nothing
	unknown outcome = "unknown" // it may have happened, or may still happen
)

// The calls that the history has.
const (
	opSend     = "send"     // a task, a message, a mail, an item or an edit
	opRead     = "read"     // mail
	opGot      = "got"      // a mail that was read
	opStatus   = "status"   // of a mail
	opJoin     = "join"     // an agent has registered
	opLeave    = "leave"    // an agent's process was killed
	opClaim    = "claim"    // an item of work
	opExtend   = "extend"   // its lease
	opComplete = "complete" // it
	opReject   = "reject"   // it, so that it comes again
	opLock     = "lock"     // files were claimed
	opUnlock   = "unlock"   // a claim of files was ended
	opList     = "list"     // the claims were read
	opFault    = "fault"    // what the campaign has done
)

// event is a call of a client with its result: a line of the history.
type event struct {
	Client  string        `json:"client"`
	Op      string        `json:"op"`
	Key     string        `json:"key,omitempty"`   // which mail, item or file
	Text    string        `json:"text,omitempty"`  // what was sent or read
	Token   int           `json:"token,omitempty"` // of a claim
	Value   string        `json:"value,omitempty"` // what was answered: a GUID, a state, a holder
	Until   time.Time     `json:"until,omitzero"`  // the end of a lease
	Times   []string      `json:"times,omitempty"` // of a receipt
	Again   bool          `json:"again,omitempty"` // mail that is marked as perhaps known
	Shift   time.Duration `json:"shift,omitempty"` // by how much the clock was set
	Begin   time.Duration `json:"begin"`           // since the campaign began
	End     time.Duration `json:"end"`
	At      time.Time     `json:"at"` // its end, by the clock
	Outcome outcome       `json:"outcome,omitempty"`
}

// history is what all clients have done. It is safe for concurrent use.
type history struct {
	mu        sync.Mutex
	ops       []operation
	confirmed int // operations that were acknowledged
	events    []event
	began     time.Time
	lines     io.Writer // gets a JSON line for each event; nil for none
	failed    error     // of lines

	clock func() time.Time // of the hub's computer; nil for the right one
}

// now returns the time since the first call of now.
func (h *history) now() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.began.IsZero() {
		h.began = time.Now()
	}
	return time.Since(h.began)
}

// add records something that was sent.
func (h *history) add(o operation) {
	e := event{Client: o.sender, Op: opSend, Text: o.text(), Outcome: unknown}
	if o.acknowledged {
		e.Outcome = done
	}
	e.End = h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
	if o.acknowledged {
		h.confirmed++
	}
	h.write(e)
}

// acknowledged returns how many operations were.
func (h *history) acknowledged() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.confirmed
}

// note records an event.
func (h *history) note(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.At = time.Now()
	if h.clock != nil {
		e.At = h.clock()
	}
	h.events = append(h.events, e)
	h.write(e)
}

func (h *history) write(e event) {
	if h.lines == nil {
		return
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = h.lines.Write(append(line, '\n'))
	}
	if err != nil && h.failed == nil {
		h.failed = err
	}
}

// of returns the events with an operation, in the order of their ends.
func (h *history) of(ops ...string) (events []event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.events {
		if slices.Contains(ops, e.Op) {
			events = append(events, e)
		}
	}
	return events
}
