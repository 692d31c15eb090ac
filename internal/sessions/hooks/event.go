// Package hooks answers the hooks of coding agents' programs: it decodes what each vendor's hook gets on standard input, tells
// the records of open sessions and what is new for them, and encodes the answer that the vendor honours.
package hooks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/sessions/news"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

// Vendors lists the vendors whose hooks are known.
var Vendors = []string{presence.Claude, presence.Codex, presence.Gemini, presence.OpenCode}

// Kind is what an event means, whatever a vendor calls it.
type Kind string

// The kinds.
const (
	Start        Kind = "start"
	End          Kind = "end"
	BeforeTurn   Kind = "before-turn"
	AfterTurn    Kind = "after-turn"
	BeforeTool   Kind = "before-tool"
	AfterTool    Kind = "after-tool"
	Notification Kind = "notification" // the program says something to its user
	Interrupt    Kind = "interrupt"    // its user ended a turn
	Bell         Kind = "bell"         // a file that the hub changes to wake the session
	Other        Kind = "other"        // nothing to be done
)

// kinds are the vendors' events.
var kinds = map[string]map[string]Kind{
	presence.Claude: {"SessionStart": Start, "SessionEnd": End, "UserPromptSubmit": BeforeTurn, "Stop": AfterTurn, "PreToolUse": BeforeTool,
		"PostToolUse": AfterTool, "Notification": Notification, "FileChanged": Bell},
	presence.Codex: {"SessionStart": Start, "SessionEnd": End, "UserPromptSubmit": BeforeTurn, "Stop": AfterTurn, "PreToolUse": BeforeTool,
		"PostToolUse": AfterTool, "Interrupt": Interrupt},
	presence.Gemini: {"SessionStart": Start, "SessionEnd": End, "BeforeAgent": BeforeTurn, "AfterAgent": AfterTurn, "BeforeTool": BeforeTool,
		"AfterTool": AfterTool, "Notification": Notification},
	presence.OpenCode: {"session.created": Start, "session.deleted": End, "chat.message": BeforeTurn, "tool.execute.before": BeforeTool,
		"session.idle": Notification,
		"parley.bell":  Bell},
}

// KindOf returns what a vendor's event means.
func KindOf(vendor, event string) Kind {
	if k, ok := kinds[vendor][event]; ok {
		return k
	}
	return Other
}

// Events returns the events of a vendor that [KindOf] knows, by kind.
func Events(vendor string) map[string]Kind { return kinds[vendor] }

// The limits of an event.
const (
	MaxInput = 8 << 20 // bytes of standard input; a tool's input may hold a whole file
	maxID    = 256
	maxPath  = 4096
	maxWord  = 64
)

// Event is one event of a session.
type Event struct {
	Vendor string
	Name   string // the vendor's
	Kind   Kind

	Session    string
	Transcript string
	Dir        string
	// Source says why a session started, Reason why it ended.
	Source, Reason string
	// StopActive says that a hook has made the session go on before, in this row.
	StopActive bool
	// NotificationType is what a notification is about.
	NotificationType string
	// Bell is the id of the hub's bell whose text a turn begins with; "" if it begins with something else, or the vendor does not say.
	Bell string
	// Tool, ToolInput and ToolUse are the tool of BeforeTool and AfterTool. The input is the model's, to be checked.
	Tool      string
	ToolInput json.RawMessage
	ToolUse   string
}

// wire is the JSON of all vendors.
type wire struct {
	Session          string          `json:"session_id"`
	Transcript       string          `json:"transcript_path"`
	Dir              string          `json:"cwd"`
	Event            string          `json:"hook_event_name"`
	Source           string          `json:"source"`
	Reason           string          `json:"reason"`
	StopActive       bool            `json:"stop_hook_active"`
	NotificationType string          `json:"notification_type"`
	Prompt           json.RawMessage `json:"prompt"`
	Tool             string          `json:"tool_name"`
	ToolInput        json.RawMessage `json:"tool_input"`
	ToolUse          string          `json:"tool_use_id"`
}

// Decode reads what a vendor's hook gets. name is the event that the hook was configured for; "" takes the one of the input.
func Decode(vendor, name string, input []byte) (Event, error) {
	if kinds[vendor] == nil {
		return Event{}, fmt.Errorf("the hooks of %s are not known", text.Quote(vendor, maxWord))
	}
	if len(input) > MaxInput {
		return Event{}, fmt.Errorf("the input is longer than %d bytes", MaxInput)
	}
	if !utf8.Valid(input) {
		return Event{}, errors.New("the input is not UTF-8")
	}
	var w wire
	if err := json.Unmarshal(bytes.TrimSpace(input), &w); err != nil {
		return Event{}, err
	}
	if name == "" {
		name = w.Event
	}
	e := Event{Vendor: vendor, Name: name, Kind: KindOf(vendor, name), Session: w.Session, Transcript: w.Transcript, Dir: w.Dir,
		Source: w.Source, Reason: w.Reason, StopActive: w.StopActive, NotificationType: w.NotificationType,
		Tool: w.Tool, ToolInput: w.ToolInput, ToolUse: w.ToolUse}
	if e.Kind == BeforeTurn {
		e.Bell = bellIn(w.Prompt)
	}
	for _, f := range []struct {
		name, value string
		most        int
	}{
		{"hook_event_name", e.Name, maxWord}, {"session_id", e.Session, maxID}, {"transcript_path", e.Transcript, maxPath}, {"cwd", e.Dir, maxPath},
		{"source", e.Source, maxWord}, {"reason", e.Reason, maxWord}, {"notification_type", e.NotificationType, maxWord},
		{"tool_name", e.Tool, maxID}, {"tool_use_id", e.ToolUse, maxID},
	} {
		if len(f.value) > f.most {
			return Event{}, fmt.Errorf("%s is longer than %d bytes", f.name, f.most)
		}
	}
	if e.Session == "" {
		return Event{}, errors.New("the input names no session")
	}
	return e, nil
}

// bellIn returns the id of the bell in a prompt. A prompt that is no text is nothing that a bell says.
func bellIn(prompt json.RawMessage) string {
	var words string
	if json.Unmarshal(prompt, &words) != nil {
		return ""
	}
	return news.BellIn(words)
}
