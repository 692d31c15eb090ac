package codexappserver

import (
	"encoding/json"
	"strings"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// approvalKind is a request of the server that a person decides.
type approvalKind struct {
	// tool and verb describe it where the item is not known.
	tool, verb string
	// the words of the answer
	accept, acceptForSession, decline, cancel string
	// grant answers with the permissions that were asked for, not with a word.
	grant bool
}

// approvals are the requests by method; the last two are those of older servers.
var approvals = map[string]approvalKind{
	"item/commandExecution/requestApproval": {
		tool: "shell", verb: "Run a command",
		accept: "accept", acceptForSession: "acceptForSession", decline: "decline", cancel: "cancel",
	},
	"item/fileChange/requestApproval": {
		tool: "apply_patch", verb: "Change files",
		accept: "accept", acceptForSession: "acceptForSession", decline: "decline", cancel: "cancel",
	},
	"item/permissions/requestApproval": {
		tool: "request_permissions", verb: "Grant more permissions",
		accept: "turn", acceptForSession: "session", decline: "none", grant: true,
	},
	"execCommandApproval": {
		tool: "shell", verb: "Run a command",
		accept: "approved", acceptForSession: "approved_for_session", decline: "denied", cancel: "abort",
	},
	"applyPatchApproval": {
		tool: "apply_patch", verb: "Change files",
		accept: "approved", acceptForSession: "approved_for_session", decline: "denied", cancel: "abort",
	},
}

func (a approval) item() string {
	if a.ItemID != "" {
		return a.ItemID
	}
	return a.CallID
}

// command is the command as one line; older servers send a list.
func (a approval) command() string {
	var s string
	if json.Unmarshal(a.Command, &s) == nil {
		return s
	}
	var list []string
	if json.Unmarshal(a.Command, &list) == nil {
		return strings.Join(list, " ")
	}
	return ""
}

// offers reports whether the server takes a decision: it lists those it takes,
// or does not say.
func (a approval) offers(decision string) bool {
	if len(a.AvailableDecisions) == 0 {
		return true
	}
	for _, d := range a.AvailableDecisions {
		var word string
		if json.Unmarshal(d, &word) == nil && word == decision {
			return true
		}
	}
	return false
}

// request is the question for a person.
func (k approvalKind) request(a approval, known runner.ToolCall) runner.PermissionRequest {
	tool := known
	if tool.ID == "" {
		tool = runner.ToolCall{ID: a.item(), Name: k.tool, Title: k.verb}
	}
	if cmd := a.command(); cmd != "" {
		tool.Title = duplex.OneLine(plainCommand(cmd, a.CommandActions))
		tool.Input = object("command", cmd, "cwd", a.Cwd)
	}
	if len(tool.Input) == 0 {
		tool.Input = firstOf(a.FileChanges, a.Permissions)
	}
	tool.Status = runner.ToolPending
	title := k.verb
	if tool.Title != k.verb && tool.Title != "" {
		title += ": " + tool.Title
	}
	if a.GrantRoot != "" {
		title += " below " + a.GrantRoot
	}
	if a.Reason != "" {
		title += " (" + duplex.OneLine(a.Reason) + ")"
	}
	return runner.PermissionRequest{Title: title, Tool: tool, Options: k.options(a)}
}

func firstOf(list ...json.RawMessage) json.RawMessage {
	for _, m := range list {
		if len(m) > 0 && string(m) != "null" {
			return m
		}
	}
	return nil
}

// options are what may be answered. Rules that codex would write into its own
// configuration are left out: whoever answers a task decides about this session.
func (k approvalKind) options(a approval) []runner.PermissionOption {
	options := []runner.PermissionOption{{ID: k.accept, Name: "Allow", Kind: runner.AllowOnce}}
	if k.grant || a.offers(k.acceptForSession) {
		options = append(options, runner.PermissionOption{
			ID: k.acceptForSession, Name: "Allow for this session", Kind: runner.AllowAlways,
		})
	}
	return append(options, runner.PermissionOption{ID: k.decline, Name: "Deny", Kind: runner.RejectOnce})
}

type decisionResult struct {
	Decision string `json:"decision"`
}

type grantResult struct {
	Permissions json.RawMessage `json:"permissions"`
	Scope       string          `json:"scope,omitempty"`
}

// answer is what the server gets. Without a decision the turn is being cancelled,
// or nobody could be asked.
func (k approvalKind) answer(a approval, d duplex.Decision) any {
	switch {
	case k.grant && d.Allowed():
		return grantResult{Permissions: a.Permissions, Scope: d.Option.ID}
	case k.grant:
		return grantResult{Permissions: json.RawMessage("{}")}
	case d.Answered():
		return decisionResult{Decision: d.Option.ID}
	default:
		return decisionResult{Decision: k.cancel}
	}
}
