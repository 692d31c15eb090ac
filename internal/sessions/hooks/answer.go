package hooks

import (
	"encoding/json"

	"github.com/parleyhub/parley/internal/sessions/presence"
)

// Answer is what a hook has to say. The zero value says nothing.
type Answer struct {
	// Context is added to what the model sees: at the start of a session, before a turn, after a tool.
	Context string
	// Continue makes the session go on with this text instead of stopping, after a turn.
	Continue string
	// Deny keeps a tool from running, for this reason.
	Deny string
	// Wake wakes the session: the hook writes it to standard error and exits with [WakeExit] (Claude Code), or answers it (OpenCode).
	Wake string
	// Watch are files whose changes call the hook FileChanged (Claude Code, at the start) or Parley's plugin (OpenCode).
	Watch []string
}

// WakeExit is the exit code of a hook that wakes its session.
const WakeExit = 2

// added is the part of an answer that Claude Code, Codex and Gemini CLI share.
type added struct {
	Event      string   `json:"hookEventName"`
	Context    string   `json:"additionalContext,omitempty"`
	Decision   string   `json:"permissionDecision,omitempty"`
	Reason     string   `json:"permissionDecisionReason,omitempty"`
	WatchPaths []string `json:"watchPaths,omitempty"`
}

type output struct {
	Decision string `json:"decision,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Added    *added `json:"hookSpecificOutput,omitempty"`
}

// Encode returns what a vendor's hook writes to standard output, nil for nothing. What the event's vendor does not honour is
// left out.
func (a Answer) Encode(e Event) []byte {
	out := a.output(e)
	if out == (output{}) {
		return nil
	}
	data, err := json.Marshal(out)
	if err != nil { // it has strings only
		return nil
	}
	return append(data, '\n')
}

func (a Answer) output(e Event) output {
	block, denies := "block", e.Vendor == presence.Gemini || e.Vendor == presence.OpenCode // for OpenCode, Parley's plugin reads the answer
	if denies {
		block = "deny"
	}
	switch e.Kind {
	case AfterTurn:
		if a.Continue != "" {
			return output{Decision: block, Reason: a.Continue}
		}
	case BeforeTool:
		if a.Deny == "" {
			return a.context(e, !denies)
		}
		if denies {
			return output{Decision: block, Reason: a.Deny}
		}
		return output{Added: &added{Event: e.Name, Decision: "deny", Reason: a.Deny}}
	case Start, BeforeTurn, AfterTool:
		return a.context(e, true)
	case Bell:
		if a.Wake != "" && e.Vendor == presence.OpenCode {
			return output{Decision: "wake", Reason: a.Wake}
		}
	}
	return output{}
}

// context returns the answer that adds context, where the vendor honours that.
func (a Answer) context(e Event, honoured bool) output {
	x := added{Event: e.Name}
	if honoured {
		x.Context = a.Context
	}
	if e.Kind == Start && e.Vendor == presence.Claude || e.Vendor == presence.OpenCode {
		x.WatchPaths = a.Watch
	}
	if x.Context == "" && len(x.WatchPaths) == 0 {
		return output{}
	}
	return output{Added: &x}
}
