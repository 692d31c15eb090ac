package drivers

import "encoding/json"

// The app-server speaks JSON-RPC 2.0, one message a line, without the field
// jsonrpc. The types hold what this driver reads; other fields are ignored.

type threadParams struct {
	ThreadID       string `json:"threadId,omitempty"` // of thread/resume
	Cwd            string `json:"cwd,omitempty"`
	Model          string `json:"model,omitempty"`
	ApprovalPolicy string `json:"approvalPolicy,omitempty"`
	Sandbox        string `json:"sandbox,omitempty"`
	ExcludeTurns   bool   `json:"excludeTurns,omitempty"` // of thread/resume
}

type threadResult struct {
	Thread struct {
		ID string `json:"id"`
	} `json:"thread"`
	Model string `json:"model"`
}

type turnInfo struct {
	ID     string     `json:"id"`
	Status string     `json:"status"` // inProgress, completed, interrupted, failed
	Error  *turnError `json:"error"`
}

type turnError struct {
	Message        string          `json:"message"`
	CodexErrorInfo json.RawMessage `json:"codexErrorInfo"` // a word, or an object with one key
}

// notification is the union of the notifications' parameters.
type notification struct {
	ThreadID   string          `json:"threadId"`
	TurnID     string          `json:"turnId"`
	ItemID     string          `json:"itemId"`
	Delta      string          `json:"delta"`
	Message    string          `json:"message"`
	WillRetry  bool            `json:"willRetry"`
	RequestID  json.RawMessage `json:"requestId"`
	Turn       *turnInfo       `json:"turn"`
	Item       *item           `json:"item"`
	Error      *turnError      `json:"error"`
	TokenUsage *struct {
		Total tokens `json:"total"`
		Last  tokens `json:"last"`
	} `json:"tokenUsage"`
}

type tokens struct {
	Input  int64 `json:"inputTokens"`
	Cached int64 `json:"cachedInputTokens"`
	Output int64 `json:"outputTokens"`
}

// item is a step of a turn: the union of the kinds that are read.
type item struct {
	Type   string `json:"type"`
	ID     string `json:"id"`
	Status string `json:"status"` // inProgress, completed, failed, declined

	Text string `json:"text"` // agentMessage, plan

	Command string   `json:"command"` // commandExecution
	Actions []action `json:"commandActions"`
	Cwd     string   `json:"cwd"`
	Output  *string  `json:"aggregatedOutput"`

	Changes json.RawMessage `json:"changes"` // fileChange

	Server    string          `json:"server"` // mcpToolCall
	Tool      string          `json:"tool"`   // mcpToolCall, dynamicToolCall, collabAgentToolCall
	Arguments json.RawMessage `json:"arguments"`

	Query string `json:"query"` // webSearch
}

type action struct {
	Command string `json:"command"`
}

// approval is the union of the approval requests' parameters.
type approval struct {
	ItemID             string            `json:"itemId"`
	CallID             string            `json:"callId"` // older servers
	Reason             string            `json:"reason"`
	Command            json.RawMessage   `json:"command"` // a string; a list from older servers
	CommandActions     []action          `json:"commandActions"`
	Cwd                string            `json:"cwd"`
	GrantRoot          string            `json:"grantRoot"`
	AvailableDecisions []json.RawMessage `json:"availableDecisions"`
	Permissions        json.RawMessage   `json:"permissions"`
	FileChanges        json.RawMessage   `json:"fileChanges"`
}
