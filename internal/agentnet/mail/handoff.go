package mail

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
)

// MessageType says what a message is for.
type MessageType string

// The types of messages; all but direct and error belong to the hand-off of work.
const (
	Direct         MessageType = "direct"
	WorkOffer      MessageType = "work-offer"
	WorkClaim      MessageType = "work-claim"
	WorkAccept     MessageType = "work-accept"
	WorkReject     MessageType = "work-reject"
	ProgressUpdate MessageType = "progress-update"
	Completion     MessageType = "completion"
	ErrorReport    MessageType = "error"
)

// MessageTypes lists the types that agents send.
var MessageTypes = []MessageType{Direct, WorkOffer, WorkClaim, WorkAccept, WorkReject, ProgressUpdate, Completion, ErrorReport}

// The types of a hub's messages about a task, see [Service.PostTask]. No agent sends them.
const (
	Task         MessageType = "task"
	TaskCanceled MessageType = "task-canceled"
	TaskAnswer   MessageType = "task-answer" // of a task that the recipient has given to another agent
)

// ReceivedTypes lists all types.
var ReceivedTypes = append(slices.Clip(MessageTypes), Task, TaskCanceled, TaskAnswer)

// maxMetadata bounds a message's metadata, in bytes of JSON.
const maxMetadata = 64 << 10

// MaxTaskID bounds a task's id, in bytes.
const MaxTaskID = 256

// field is what a message type's metadata must hold.
type field struct {
	name     string
	check    func(any) string // returns what is wrong, "" for nothing
	required bool
	fill     bool // a missing field is filled in with the present time
}

// handoffs are the fields of each type's metadata. Others are allowed.
var handoffs = map[MessageType][]field{
	WorkOffer: {
		{name: "taskId", check: IsTaskID, required: true},
		{name: "taskDescription", check: isText, required: true},
		{name: "requiredCapabilities", check: isTexts, required: true},
		{name: "priority", check: isNumber},
		{name: "deadline", check: isTime},
		{name: "contextData", check: isObject},
	},
	WorkClaim: {
		{name: "taskId", check: IsTaskID, required: true},
		{name: "estimatedDuration", check: isText},
		{name: "acceptedAt", check: isTime, fill: true},
	},
	WorkAccept: {{name: "taskId", check: IsTaskID, required: true}},
	WorkReject: {{name: "taskId", check: IsTaskID, required: true}},
	ProgressUpdate: {
		{name: "taskId", check: IsTaskID, required: true},
		{name: "progressPercent", check: isPercent},
		{name: "statusMessage", check: isText, required: true},
		{name: "updatedAt", check: isTime, fill: true},
	},
	Completion: {
		{name: "taskId", check: IsTaskID, required: true},
		{name: "success", check: isBool, required: true},
		{name: "resultSummary", check: isText, required: true},
		{name: "resultData", check: isObject},
		{name: "completedAt", check: isTime, fill: true},
	},
	ErrorReport: {{name: "taskId", check: IsTaskID}},
}

// checkMetadata returns a message's metadata in JSON, with the missing times filled in, or
// an error that names everything that is wrong.
func checkMetadata(t MessageType, metadata map[string]any, now time.Time) (json.RawMessage, error) {
	if !slices.Contains(MessageTypes, t) {
		return nil, invalidType(t, MessageTypes)
	}
	full := map[string]any{}
	maps.Copy(full, metadata)
	var wrong []string
	for _, f := range handoffs[t] {
		v, there := full[f.name]
		switch {
		case !there && f.fill:
			full[f.name] = store.Timestamp(now)
		case !there && f.required:
			wrong = append(wrong, f.name+" is missing")
		case there:
			if why := f.check(v); why != "" {
				wrong = append(wrong, f.name+" "+why)
			}
		}
	}
	if len(wrong) > 0 {
		return nil, store.Invalid("The metadata of a message of the type %s is wrong: %s.", t, strings.Join(wrong, ", ")).WithRemedy("It has: %s.", describeFields(t))
	}
	if len(full) == 0 {
		return nil, nil
	}
	data, err := json.Marshal(full)
	if err != nil {
		return nil, store.Invalid("The metadata is not JSON: %v.", err).WithRemedy("Use an object.")
	}
	if len(data) > maxMetadata {
		return nil, store.Invalid("The metadata is %d bytes long; at most %d are allowed.", len(data), maxMetadata).
			WithRemedy("Write the long part to a file and send its path.")
	}
	return data, nil
}

func invalidType(t MessageType, allowed []MessageType) error {
	names := make([]string, len(allowed))
	for i, t := range allowed {
		names[i] = string(t)
	}
	return store.Invalid("There is no message type %s.", store.Quote(string(t))).WithRemedy("Use one of: %s.", strings.Join(names, ", "))
}

func describeFields(t MessageType) string {
	var names []string
	for _, f := range handoffs[t] {
		name := f.name
		if !f.required {
			name += " (optional)"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

var (
	isText   = is[string]("is not text")
	isBool   = is[bool]("is not true or false")
	isObject = is[map[string]any]("is not an object")
)

// is returns a check that a value has the type T.
func is[T any](problem string) func(any) string {
	return func(v any) string {
		if _, ok := v.(T); ok {
			return ""
		}
		return problem
	}
}

// IsTaskID returns what is wrong with a task's id, "" for nothing.
func IsTaskID(v any) string {
	text, ok := v.(string)
	if !ok || text == "" || len(text) > MaxTaskID {
		return fmt.Sprintf("is not text of 1 to %d bytes", MaxTaskID)
	}
	return ""
}

func isTexts(v any) string {
	ok := false
	switch list := v.(type) {
	case []string:
		ok = len(list) <= registry.MaxCapabilities
	case []any:
		ok = len(list) <= registry.MaxCapabilities && !slices.ContainsFunc(list, func(item any) bool { return isText(item) != "" })
	}
	if !ok {
		return fmt.Sprintf("is not a list of at most %d texts", registry.MaxCapabilities)
	}
	return ""
}

func isNumber(v any) string {
	switch v.(type) {
	case float64, int, json.Number:
		return ""
	}
	return "is not a number"
}

func isPercent(v any) string {
	n, ok := v.(float64)
	if i, isInt := v.(int); isInt {
		n, ok = float64(i), true
	}
	if ok && n >= 0 && n <= 100 {
		return ""
	}
	return "is not a number from 0 to 100"
}

func isTime(v any) string {
	text, ok := v.(string)
	if !ok || store.ParseTime(text).IsZero() {
		return "is not a time such as 2026-01-31T12:00:00Z"
	}
	return ""
}

// Offer is work that is offered to agents, or put into a queue.
type Offer struct {
	TaskID               string         `json:"taskId" jsonschema:"A name for the task that no other has"`
	Description          string         `json:"taskDescription" jsonschema:"What is to be done, so that it can be done without asking back"`
	RequiredCapabilities []string       `json:"requiredCapabilities" jsonschema:"What an agent must be able to do, all of it"`
	Priority             *float64       `json:"priority,omitempty" jsonschema:"Higher is more urgent"`
	Deadline             string         `json:"deadline,omitempty" jsonschema:"ISO 8601, for example 2026-01-31T12:00:00Z"`
	ContextData          map[string]any `json:"contextData,omitempty" jsonschema:"What the worker needs to know besides"`
}

// metadata returns the offer as a message's metadata.
func (o Offer) metadata() map[string]any {
	m := map[string]any{"taskId": o.TaskID, "taskDescription": o.Description, "requiredCapabilities": o.RequiredCapabilities}
	if o.RequiredCapabilities == nil {
		m["requiredCapabilities"] = []string{}
	}
	if o.Priority != nil {
		m["priority"] = *o.Priority
	}
	if o.Deadline != "" {
		m["deadline"] = o.Deadline
	}
	if o.ContextData != nil {
		m["contextData"] = o.ContextData
	}
	return m
}

// CheckMetadata returns the offer's metadata in JSON, or a ValidationError.
func (o Offer) CheckMetadata(now time.Time) (json.RawMessage, error) {
	return checkMetadata(WorkOffer, o.metadata(), now)
}

// Broadcast is an offer with its addressees.
type Broadcast struct {
	Offer
	TargetAgentTypes []string `json:"targetAgentTypes,omitempty" jsonschema:"Only agents of these types"`
	TargetProjectID  string   `json:"targetProjectId,omitempty" jsonschema:"Only agents of this project"`
}

// Draft returns the offer as a message.
func (o Broadcast) Draft(now time.Time) (Draft, error) {
	metadata, err := o.CheckMetadata(now)
	return Draft{o.Description, WorkOffer, metadata}, err
}

// Selects reports whether an agent of the registry is to get the offer.
func (o Broadcast) Selects(e registry.Entry) bool {
	return e.Can(o.RequiredCapabilities) &&
		(len(o.TargetAgentTypes) == 0 || slices.Contains(o.TargetAgentTypes, e.AgentType)) &&
		(o.TargetProjectID == "" || e.ProjectID == o.TargetProjectID)
}

// Offered is an agent that an offer was for.
type Offered struct {
	GUID      string `json:"guid"`
	AgentType string `json:"agentType"`
	Handle    string `json:"handle"`
	Hostname  string `json:"hostname"`
	MessageID string `json:"messageId,omitempty"`
	// Problem is why the offer was not sent.
	Problem string `json:"problem,omitempty"`
}

// OfferResult is the result of a broadcast.
type OfferResult struct {
	SentTo []Offered `json:"sentTo"`
	Failed []Offered `json:"failed,omitempty"`
	// Full are agents that have as many tasks as they accept.
	Full []Offered `json:"full,omitempty"`
}
