package agentnet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// MessageType says what a message is for (REQ-TOOL-DIRECT-004).
type MessageType string

// The types of messages; all but direct and error belong to the hand-off of
// work (REQ-HANDOFF-002).
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

// MessageTypes lists them.
var MessageTypes = []MessageType{Direct, WorkOffer, WorkClaim, WorkAccept, WorkReject, ProgressUpdate, Completion, ErrorReport}

// maxMetadata bounds a message's metadata, in bytes of JSON.
const maxMetadata = 64 << 10

// maxTaskID bounds a task's id, in bytes.
const maxTaskID = 256

// field is what a message type's metadata must hold.
type field struct {
	name     string
	check    func(any) string // says what is wrong, "" for nothing
	required bool
	// fill is set where the field is a time that the server knows as well as
	// the sender.
	fill bool
}

// handoffs are the fields of each type's metadata (REQ-HANDOFF-003 to
// REQ-HANDOFF-006). Others are allowed.
var handoffs = map[MessageType][]field{
	WorkOffer: {
		{name: "taskId", check: isTaskID, required: true},
		{name: "taskDescription", check: isText, required: true},
		{name: "requiredCapabilities", check: isTexts, required: true},
		{name: "priority", check: isNumber},
		{name: "deadline", check: isTime},
		{name: "contextData", check: isObject},
	},
	WorkClaim: {
		{name: "taskId", check: isTaskID, required: true},
		{name: "estimatedDuration", check: isText},
		{name: "acceptedAt", check: isTime, fill: true},
	},
	WorkAccept: {{name: "taskId", check: isTaskID, required: true}},
	WorkReject: {{name: "taskId", check: isTaskID, required: true}},
	ProgressUpdate: {
		{name: "taskId", check: isTaskID, required: true},
		{name: "progressPercent", check: isPercent},
		{name: "statusMessage", check: isText, required: true},
		{name: "updatedAt", check: isTime, fill: true},
	},
	Completion: {
		{name: "taskId", check: isTaskID, required: true},
		{name: "success", check: isBool, required: true},
		{name: "resultSummary", check: isText, required: true},
		{name: "resultData", check: isObject},
		{name: "completedAt", check: isTime, fill: true},
	},
	ErrorReport: {{name: "taskId", check: isTaskID}},
}

// checkMetadata returns a message's metadata as JSON, with the times that the
// sender left out, or says everything that is wrong with it.
func checkMetadata(t MessageType, metadata map[string]any, now time.Time) (json.RawMessage, error) {
	if !slices.Contains(MessageTypes, t) {
		return nil, invalid("There is no message type %s.", quote(string(t))).WithRemedy("Use one of: %s.", joinTypes())
	}
	full := map[string]any{}
	for name, v := range metadata {
		full[name] = v
	}
	var wrong []string
	for _, f := range handoffs[t] {
		v, there := full[f.name]
		switch {
		case !there && f.fill:
			full[f.name] = timestamp(now)
		case !there && f.required:
			wrong = append(wrong, f.name+" is missing")
		case there:
			if why := f.check(v); why != "" {
				wrong = append(wrong, f.name+" "+why)
			}
		}
	}
	if len(wrong) > 0 {
		return nil, invalid("The metadata of a message of the type %s is wrong: %s.", t, strings.Join(wrong, ", ")).WithRemedy("It has: %s.", describeFields(t))
	}
	if len(full) == 0 {
		return nil, nil
	}
	data, err := json.Marshal(full)
	if err != nil {
		return nil, invalid("The metadata is not JSON: %v.", err).WithRemedy("Use an object.")
	}
	if len(data) > maxMetadata {
		return nil, invalid("The metadata is %d bytes long; at most %d are allowed.", len(data), maxMetadata).
			WithRemedy("Write the long part to a file and send its path.")
	}
	return data, nil
}

func joinTypes() string {
	names := make([]string, len(MessageTypes))
	for i, t := range MessageTypes {
		names[i] = string(t)
	}
	return strings.Join(names, ", ")
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

func isText(v any) string {
	if _, ok := v.(string); !ok {
		return "is not text"
	}
	return ""
}

func isTaskID(v any) string {
	text, ok := v.(string)
	if !ok || text == "" || len(text) > maxTaskID {
		return fmt.Sprintf("is not text of 1 to %d bytes", maxTaskID)
	}
	return ""
}

func isTexts(v any) string {
	list, ok := v.([]any)
	if texts, is := v.([]string); is {
		return map[bool]string{true: "", false: "is longer than 64"}[len(texts) <= maxCapabilities]
	}
	if !ok || len(list) > maxCapabilities || slices.ContainsFunc(list, func(item any) bool { return isText(item) != "" }) {
		return fmt.Sprintf("is not a list of at most %d texts", maxCapabilities)
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
	if n, ok := v.(float64); ok && n >= 0 && n <= 100 {
		return ""
	}
	if n, ok := v.(int); ok && n >= 0 && n <= 100 {
		return ""
	}
	return "is not a number from 0 to 100"
}

func isBool(v any) string {
	if _, ok := v.(bool); !ok {
		return "is not true or false"
	}
	return ""
}

func isObject(v any) string {
	if _, ok := v.(map[string]any); !ok {
		return "is not an object"
	}
	return ""
}

func isTime(v any) string {
	text, ok := v.(string)
	if !ok || parseTime(text).IsZero() {
		return "is not a time such as 2026-01-31T12:00:00Z"
	}
	return ""
}

// Offer is work that is offered to agents, or put into a queue
// (REQ-TOOL-BROADCAST-002, REQ-TOOL-BROADCAST-003).
type Offer struct {
	TaskID               string
	Description          string
	RequiredCapabilities []string
	Priority             *float64
	Deadline             string // ISO 8601, may be empty
	ContextData          map[string]any
}

// metadata is the offer as REQ-HANDOFF-003 writes it.
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

// Broadcast says to whom an offer goes.
type Broadcast struct {
	Offer
	TargetAgentTypes []string
	TargetProjectID  string
}

// Offered is one agent that an offer was sent to, or was not.
type Offered struct {
	GUID      string `json:"guid"`
	AgentType string `json:"agentType"`
	Handle    string `json:"handle"`
	Hostname  string `json:"hostname"`
	MessageID string `json:"messageId,omitempty"`
	// Problem is why it was not sent.
	Problem string `json:"problem,omitempty"`
}

// OfferResult is what came of a broadcast (REQ-TOOL-BROADCAST-006).
type OfferResult struct {
	SentTo []Offered `json:"sentTo"`
	Failed []Offered `json:"failed,omitempty"`
	// Full are agents that have as many tasks as they take.
	Full []Offered `json:"full,omitempty"`
}

// BroadcastOffer sends a work offer to every agent that this one sees, that is
// not offline and has all the capabilities (REQ-TOOL-BROADCAST-004,
// REQ-TOOL-BROADCAST-005). It counts as one broadcast, not as messages.
func (a *Agent) BroadcastOffer(ctx context.Context, o Broadcast) (OfferResult, error) {
	b, at, err := a.either()
	if err != nil {
		return OfferResult{}, err
	}
	metadata, err := checkMetadata(WorkOffer, o.metadata(), a.net.clock.now())
	if err != nil {
		return OfferResult{}, err
	}
	if err := a.charge(ctx, broadcastLimit); err != nil {
		return OfferResult{}, err
	}
	all, err := a.seatsBoth(ctx, b, at.net)
	if err != nil {
		return OfferResult{}, connectionError(err)
	}
	result, v := OfferResult{SentTo: []Offered{}}, a.viewer()
	for _, s := range all {
		if !a.eligible(v, s, o) {
			continue
		}
		to := Offered{GUID: s.GUID, AgentType: s.AgentType, Handle: s.Handle, Hostname: s.Hostname}
		if s.full() {
			result.Full = append(result.Full, to)
			continue
		}
		receipt, err := a.deliver(ctx, s.GUID, mailPayload{Message: o.Description, MessageType: WorkOffer, Metadata: metadata})
		if err != nil {
			to.Problem = err.Error()
			result.Failed = append(result.Failed, to)
			continue
		}
		to.MessageID = receipt.ID
		result.SentTo = append(result.SentTo, to)
	}
	return result, nil
}

func (a *Agent) eligible(v viewer, s seat, o Broadcast) bool {
	return s.GUID != a.guid && v.sees(s.Entry) && a.net.liveness(s) != Gone && s.can(o.RequiredCapabilities) &&
		(len(o.TargetAgentTypes) == 0 || slices.Contains(o.TargetAgentTypes, s.AgentType)) &&
		(o.TargetProjectID == "" || s.ProjectID == o.TargetProjectID)
}
