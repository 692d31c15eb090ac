package drivers

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// approvalKind is a kind of request that the user decides.
type approvalKind struct {
	// tool and verb describe the request if its item is not known.
	tool, verb string
	// The words of the answer.
	accept, acceptForSession, decline, cancel string
	// grant is set if the answer holds the requested permissions, not a word.
	grant bool
}

// approvals are the requests by method. Older servers send the last two.
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

func (a approval) item() string { return cmp.Or(a.ItemID, a.CallID) }

// command returns the command as one line; older servers send a list.
func (a approval) command() string {
	var s string
	if json.Unmarshal(a.Command, &s) == nil {
		return s
	}
	var list []string
	_ = json.Unmarshal(a.Command, &list) // without a command the kind describes the request
	return strings.Join(list, " ")
}

// offers reports whether the server accepts a decision. A server that lists none
// accepts all.
func (a approval) offers(decision string) bool {
	return len(a.AvailableDecisions) == 0 || slices.ContainsFunc(a.AvailableDecisions, func(d json.RawMessage) bool {
		var word string
		return json.Unmarshal(d, &word) == nil && word == decision
	})
}

// request returns the question for the user.
func (k approvalKind) request(a approval, known runner.ToolCall) runner.PermissionRequest {
	tool := known
	if tool.ID == "" {
		tool = runner.ToolCall{ID: a.item(), Name: k.tool, Title: k.verb}
	}
	if command := a.command(); command != "" {
		tool.Title = duplex.OneLine(plainCommand(command, a.CommandActions))
		tool.Input = commandInput(command, a.Cwd)
	}
	for _, input := range []json.RawMessage{a.FileChanges, a.Permissions} {
		if len(tool.Input) == 0 && string(input) != "null" {
			tool.Input = input
		}
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

// options returns the possible answers. Rules that codex would write into its own
// configuration are omitted: the user of a task decides about this session only.
func (k approvalKind) options(a approval) []runner.PermissionOption {
	options := []runner.PermissionOption{{ID: k.accept, Name: "Allow", Kind: runner.AllowOnce}}
	if k.grant || a.offers(k.acceptForSession) {
		options = append(options, runner.PermissionOption{
			ID: k.acceptForSession, Name: "Allow for this session", Kind: runner.AllowAlways,
		})
	}
	return append(options, runner.PermissionOption{ID: k.decline, Name: "Deny", Kind: runner.RejectOnce})
}

// answer returns the result for the server. Without a decision the turn is being
// cancelled, or no user could be asked.
func (k approvalKind) answer(a approval, d duplex.Decision) any {
	switch {
	case k.grant && d.Allowed():
		return object{"permissions": a.Permissions, "scope": d.Option.ID}
	case k.grant:
		return object{"permissions": object{}}
	case d.Answered():
		return object{"decision": d.Option.ID}
	default:
		return object{"decision": k.cancel}
	}
}
