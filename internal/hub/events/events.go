// Package events is the record of everything that changes in a hub: agents, tasks, turns, permission questions, mail,
// channels, work, swarms, loops, peers and documents. Each part of the hub publishes small typed events; one goroutine
// stores them on the bus, in the order in which they were published; any number of readers up to a limit follow them,
// each from a position of its own, which stays valid over restarts.
//
// Publishing never blocks. What is published faster than the bus stores it is dropped, counted and reported in the
// stream as an event of the kind "gap". An event says what has changed, never the content: no prompts, no answers, no
// texts of messages. Its size is bounded.
package events

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/base/text"
)

// Event is one change. Fields that do not apply are empty.
type Event struct {
	Position Position  `json:"position"`
	Time     time.Time `json:"time"`
	Kind     Kind      `json:"kind"`
	Agent    string    `json:"agent,omitempty"`
	Task     string    `json:"task,omitempty"`
	Context  string    `json:"context,omitempty"`
	// Project is the directory that the change belongs to, or the namespace of its channels.
	Project string `json:"project,omitempty"`
	Channel string `json:"channel,omitempty"`
	// Subject is the id of what has changed if it is none of the above: a swarm, a document, a peer, a work item.
	Subject string `json:"subject,omitempty"`
	// Data are the details, which depend on the kind: texts, numbers and truth values.
	Data map[string]any `json:"data,omitempty"`

	encoded *encoding // of an event that all readers share; nil for one of a single reader
}

// encoding is the JSON of an event, which the first reader who needs it makes for all.
type encoding struct {
	once sync.Once
	text []byte
	err  error
}

// JSON returns the event's encoding, which the caller must not change. That of a recent event is made once for all
// readers. The event must not be changed after it.
func (e *Event) JSON() ([]byte, error) {
	if e.encoded == nil {
		return rawjson.Append(nil, e)
	}
	e.encoded.once.Do(func() { e.encoded.text, e.encoded.err = rawjson.Append(nil, e) })
	return e.encoded.text, e.encoded.err
}

// Kind is what has happened, as SUBJECT.CHANGE.
type Kind string

// The kinds of events. docs/json.md lists their data.
const (
	AgentAdded         Kind = "agent.added"
	AgentRemoved       Kind = "agent.removed"
	AgentUpdated       Kind = "agent.updated"
	AgentHealth        Kind = "agent.health"
	TaskState          Kind = "task.state"
	TaskRemoved        Kind = "task.removed"
	TurnBegan          Kind = "turn.began"
	TurnTool           Kind = "turn.tool"
	TurnEnded          Kind = "turn.ended"
	PermissionAsked    Kind = "permission.asked"
	PermissionAnswered Kind = "permission.answered"
	ChannelMessage     Kind = "channel.message"
	MailSent           Kind = "mail.sent"
	MailHeld           Kind = "mail.held"
	WorkState          Kind = "work.state"
	DeadLetterAdded    Kind = "deadletter.added"
	DeadLetterRemoved  Kind = "deadletter.removed"
	SwarmState         Kind = "swarm.state"
	SwarmSubTask       Kind = "swarm.subtask"
	LoopStep           Kind = "loop.step"
	PeerConnected      Kind = "peer.connected"
	PeerDisconnected   Kind = "peer.disconnected"
	DocumentChanged    Kind = "document.changed"
	ClaimChanged       Kind = "claim.changed"

	// Gap says that events are missing before it: Data has the reason, and their number if it is known.
	Gap Kind = "gap"
	// Here has a position and nothing else: the first event of every stream, and a mark in a stream whose filter has
	// skipped many events.
	Here Kind = "position"
)

// Kinds returns the kinds of events, without [Gap] and [Here].
func Kinds() []Kind {
	return []Kind{
		AgentAdded, AgentRemoved, AgentUpdated, AgentHealth, TaskState, TaskRemoved, TurnBegan, TurnTool, TurnEnded,
		PermissionAsked, PermissionAnswered, ChannelMessage, MailSent, MailHeld, WorkState, DeadLetterAdded, DeadLetterRemoved,
		SwarmState, SwarmSubTask, LoopStep, PeerConnected, PeerDisconnected, DocumentChanged, ClaimChanged,
	}
}

// Bounds of an event.
const (
	maxText  = 256      // bytes of a text
	maxPath  = 4096     // bytes of a project
	maxData  = 24       // entries of the data
	maxEvent = 16 << 10 // bytes of a stored event that is read
)

// bounded returns the event with its texts cut to their limits, as valid UTF-8.
func (e Event) bounded() Event {
	for _, s := range []*string{&e.Agent, &e.Task, &e.Context, &e.Channel, &e.Subject} {
		*s = clip(*s, maxText)
	}
	e.Project = clip(e.Project, maxPath)
	if len(e.Data) == 0 {
		e.Data = nil
		return e
	}
	if len(e.Data) <= maxData && allBounded(e.Data) {
		return e
	}
	data := make(map[string]any, len(e.Data))
	for _, key := range slices.Sorted(maps.Keys(e.Data)) {
		if len(data) == maxData {
			break
		}
		switch v := e.Data[key].(type) {
		case string:
			data[clip(key, maxText)] = clip(v, maxText)
		default:
			if isBounded(v) {
				data[clip(key, maxText)] = v
			}
		}
	}
	e.Data = data
	return e
}

// allBounded reports whether bounded keeps all data as they are.
func allBounded(data map[string]any) bool {
	for key, v := range data {
		if len(key) > maxText || !isPlain(key) || !isBounded(v) {
			return false
		}
	}
	return true
}

// isBounded reports whether a detail is stored as it is.
func isBounded(v any) bool {
	switch v := v.(type) {
	case string:
		return len(v) <= maxText && isPlain(v)
	case bool, int, int64, uint64:
		return true
	case float64:
		return !math.IsNaN(v) && !math.IsInf(v, 0) // which JSON does not know
	}
	return false
}

func clip(s string, n int) string {
	if len(s) <= n && isPlain(s) {
		return s
	}
	return strings.ToValidUTF8(text.Clip(s, n), "\uFFFD")
}

// isPlain reports whether a text is ASCII, and needs no check for valid UTF-8.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// Position is the place of an event in the stream of one hub. The zero Position is none. Its text is opaque to
// clients: "SEQUENCE-EPOCH".
//
// The epoch is that of the run of the hub that has stored the event. The bus may lose the latest events in a power
// cut; later ones then get the same sequences. The epoch tells them apart, so that a reader who has seen the lost ones
// learns of the gap.
type Position struct {
	Sequence uint64
	Epoch    uint32
}

// String returns the text of the position, "" for the zero Position.
func (p Position) String() string {
	if p == (Position{}) {
		return ""
	}
	text := strconv.AppendUint(make([]byte, 0, 32), p.Sequence, 10)
	text = append(text, '-')
	for shift := 28; shift >= 0; shift -= 4 {
		text = append(text, "0123456789abcdef"[p.Epoch>>shift&15])
	}
	return string(text)
}

// ParsePosition reads a position's text. The error has CodeInvalid.
func ParsePosition(s string) (Position, error) {
	sequence, epoch, ok := strings.Cut(s, "-")
	n, err1 := strconv.ParseUint(sequence, 10, 63)
	e, err2 := strconv.ParseUint(epoch, 16, 32)
	p := Position{n, uint32(e)}
	if !ok || err1 != nil || err2 != nil || p.String() != s {
		return Position{}, &Error{Code: CodeInvalid, Message: "not a position of the stream of events: " + text.Quote(s, 40),
			Remedy: "use the position of an event, or leave it out"}
	}
	return p, nil
}

// MarshalText implements encoding.TextMarshaler.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Position) UnmarshalText(data []byte) (err error) {
	if len(data) == 0 {
		*p = Position{}
		return nil
	}
	*p, err = ParsePosition(string(data))
	return err
}

// Filter selects events; an empty field selects all. Gaps are never filtered.
type Filter struct {
	// Kinds are prefixes of kinds in whole words: "task", "task.state".
	Kinds   []string
	Agent   string
	Task    string
	Project string
	Channel string
}

// maxKinds bounds the kinds of a filter.
const maxKinds = 32

// Check returns an error of CodeInvalid for a filter that is too large.
func (f Filter) Check() error {
	if len(f.Kinds) > maxKinds {
		return &Error{Code: CodeInvalid, Message: fmt.Sprintf("more than %d kinds of events", maxKinds), Remedy: "name a common prefix of them"}
	}
	for _, k := range f.Kinds {
		if k == "" || len(k) > maxText {
			return &Error{Code: CodeInvalid, Message: "a kind of events must have 1 to 256 bytes", Remedy: "name one such as task, or task.state"}
		}
	}
	return nil
}

// Match reports whether the filter selects an event.
func (f *Filter) Match(e *Event) bool {
	if e.Kind == Gap {
		return true
	}
	return (f.Agent == "" || e.Agent == f.Agent) && (f.Task == "" || e.Task == f.Task) &&
		(f.Project == "" || e.Project == f.Project) && (f.Channel == "" || e.Channel == f.Channel) &&
		(len(f.Kinds) == 0 || slices.ContainsFunc(f.Kinds, e.Kind.under))
}

// under reports whether the kind is prefix or below it.
func (k Kind) under(prefix string) bool {
	rest, ok := strings.CutPrefix(string(k), prefix)
	return ok && (rest == "" || rest[0] == '.' || strings.HasSuffix(prefix, "."))
}

// stored is the encoding of an event on the bus; its position is that of the message.
type stored struct {
	Epoch uint32 `json:"epoch"`
	Event
}

func encode(epoch uint32, e Event) ([]byte, error) {
	return json.Marshal(struct {
		stored
		Position *struct{} `json:"position,omitempty"` // hides the event's
	}{stored: stored{epoch, e}})
}

func decode(data []byte, sequence uint64) (Event, error) {
	var s stored
	if len(data) > maxEvent {
		return Event{}, fmt.Errorf("a stored event has %d bytes", len(data))
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return Event{}, fmt.Errorf("a stored event cannot be read: %w", err)
	}
	if s.Kind == "" {
		return Event{}, fmt.Errorf("a stored event has no kind")
	}
	s.Position = Position{sequence, s.Epoch}
	return s.Event, nil
}

// Code is the kind of an [Error].
type Code string

// The codes of an [Error].
const (
	CodeInvalid Code = "invalid" // a position or filter is wrong
	CodeBusy    Code = "busy"    // there are too many readers
	CodeClosed  Code = "closed"  // the hub is stopping
	CodeStorage Code = "storage" // the bus cannot be read
)

// Error is an error of the package. Message and Remedy are for users.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }
