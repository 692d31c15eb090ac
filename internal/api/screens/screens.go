// Package screens has what the terminal and the hub's page have in common: the screens with their order, names and
// words, the keys, and the colours of states. Their data comes from the hub's methods; see package dialect.
package screens

import (
	"cmp"
	"maps"
)

// Screen is one of the screens.
type Screen struct {
	ID     string `json:"id"`     // in addresses and commands
	Key    string `json:"key"`    // shows it
	Title  string `json:"title"`  //
	Shows  string `json:"shows"`  // in one sentence
	None   string `json:"none"`   // what it says if there is nothing to show
	Method string `json:"method"` // of the hub, whose result is the screen's snapshot
}

// All returns the screens in their order.
func All() []Screen {
	return []Screen{
		{"needs", "1", "Needs you", "What waits for you, with its age", "Nothing waits for you.", "hub/needs"},
		{"agents", "2", "Agents", "Each agent with its state, its health and what it works on", "There are no agents.", "hub/agents/list"},
		{"tasks", "3", "Tasks", "All tasks, the newest first", "There are no tasks.", "hub/tasks/page"},
		{"conversations", "4", "Conversations", "What was said in tasks, channels and mail, and who has seen it", "There are no conversations.", "hub/contexts/list"},
		{"swarms", "5", "Swarms", "Swarms with their plans, queues with their leases and failed work, and files that agents hold", "There are no swarms, no queues and no claimed files.", "hub/swarms/list"},
		{"network", "6", "Network", "This hub, other hubs, and where the agents are", "This hub is alone.", "hub/status"},
		{"documents", "7", "Documents", "Shared documents", "There are no documents.", "hub/documents/list"},
		{"timeline", "8", "Timeline", "Everything that happened", "Nothing has happened yet.", "hub/events"},
		{"costs", "9", "Costs", "Tasks, failures, time, tokens and cost by day, agent and project", "Nothing was spent.", "hub/totals"},
	}
}

// Key is what a key does.
type Key struct {
	Key  string `json:"key"`
	Word string `json:"word"` // in hints
	Does string `json:"does"` // in the help
	// Writes says that the key changes something, so that whoever may only view does not have it.
	Writes bool `json:"writes,omitempty"`
}

// Keys returns the keys that mean the same everywhere, besides those of the screens.
func Keys() []Key {
	return []Key{
		{"a", "allow", "allow what an agent asks for, once", true},
		{"d", "deny", "deny it, dismiss a loop that failed, or discard failed work for good, after a question", true},
		{"t", "answer", "answer in words: a denial with its reason, or the answer to a question", true},
		{"r", "retry", "send the prompt of a task that failed again, or put failed work back into its queue", true},
		{"c", "cancel", "cancel a task, after a question", true},
		{"b", "break", "end an agent's claim of files, after a question", true},
		{"w", "write", "write to an agent, or in a conversation", true},
		{"m", "mail", "write mail to an open session", true},
		{"e", "edit", "edit a document", true},
		{"/", "filter", "show only what has these words", false},
		{":", "command", "the name of a screen, or another command", false},
		{"?", "keys", "show all keys", false},
		{"Enter", "open", "open what is selected", false},
		{"Esc", "back", "go back", false},
	}
}

// Role is the meaning of a state, which decides its colour.
type Role string

// The roles.
const (
	Plain Role = "plain"
	Good  Role = "good"  // green
	Bad   Role = "bad"   // red
	Waits Role = "waits" // yellow: for a person
	Busy  Role = "busy"  // cyan
)

// Roles returns all roles with the sign of each, for those who see no colours.
func Roles() map[Role]string {
	return map[Role]string{Plain: "·", Good: "✓", Bad: "✗", Waits: "?", Busy: "●"}
}

// states are the states of agents, tasks, sub-tasks and links that have a role.
var states = map[string]Role{
	"completed": Good, "healthy": Good, "connected": Good, "idle": Good, "done": Good,
	"failed": Bad, "rejected": Bad, "unhealthy": Bad, "offline": Bad, "lost": Bad, "dead": Bad, "away": Bad,
	"input-required": Waits, "auth-required": Waits, "waiting": Waits, "degraded": Waits, "blocked": Waits,
	"working": Busy, "submitted": Busy, "running": Busy, "assigned": Busy, "recruiting": Busy, "executing": Busy, "claimed": Busy, "active": Busy,
}

// RoleOf returns the role of a state; that of an unknown one is Plain.
func RoleOf(state string) Role {
	if role, ok := states[state]; ok {
		return role
	}
	return Plain
}

// Mark returns the sign of a state.
func Mark(state string) string { return Roles()[RoleOf(state)] }

// words are what people read instead of the hub's names of events, states, steps of loops, and what waits for them.
var words = map[string]string{
	"agent.added": "agent joined", "agent.removed": "agent left", "agent.updated": "agent changed", "agent.health": "agent's health",
	"task.state": "task", "task.removed": "task removed", "turn.began": "turn began", "turn.tool": "tool", "turn.ended": "turn ended",
	"permission.asked": "asks permission", "permission.answered": "permission answered", "channel.message": "channel message",
	"mail.sent": "mail", "mail.held": "mail held", "work.state": "work of a queue", "deadletter.added": "work failed", "deadletter.removed": "failed work ended",
	"swarm.state": "swarm", "swarm.subtask": "part of a swarm", "loop.step": "loop", "peer.connected": "hub connected", "peer.disconnected": "hub lost",
	"document.changed": "document changed", "claim.changed": "claims of files", "gap": "events missing",

	"input-required": "waits for you", "auth-required": "waits for you", "given-up": "given up",

	"sender": "new sender", "deadletter": "failed work", "loop": "failed loop", "held": "held mail", "health": "not well",
}

// Words returns the word for each name that has one.
func Words() map[string]string { return maps.Clone(words) }

// Word returns what people read instead of a name: the name itself if there is no other word.
func Word(name string) string { return cmp.Or(words[name], name) }

// Contract is all of this package as data, for the hub's page.
type Contract struct {
	Screens []Screen        `json:"screens"`
	Keys    []Key           `json:"keys"`
	States  map[string]Role `json:"states"`
	Marks   map[Role]string `json:"marks"`
	// Words are what people read instead of the hub's names.
	Words map[string]string `json:"words"`
}

// Data returns the contract.
func Data() Contract { return Contract{All(), Keys(), states, Roles(), words} }
