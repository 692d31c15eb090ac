package dialect

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/hub"
)

const (
	maxLimit   = 1000
	maxHistory = 1 << 20
	maxTimeout = int64(7 * 24 * time.Hour / time.Millisecond)
	maxOffset  = 1 << 40
)

// sendCall holds the parameters of message/send or message/stream.
type sendCall struct {
	request       hub.SendRequest
	historyLength *int
	blocking      bool
}

func decodeSend(params object) sendCall {
	call := sendCall{blocking: true}
	call.request.Metadata = params.metadata()
	message, _ := params.child("message", true)
	call.request.Message = decodeMessage(message)
	if config, ok := params.child("configuration", false); ok {
		call.blocking = config.boolean("blocking", true)
		call.historyLength = config.count("historyLength", maxHistory)
		config.texts("acceptedOutputModes") // a hint that agents ignore
		if ms := config.integer("timeout", 0, maxTimeout); ms != nil {
			call.request.Timeout = time.Duration(*ms) * time.Millisecond
		}
		if _, ok := config.child("pushNotificationConfig", false); ok {
			params.record(unsupported("The hub's dialect has no push notifications",
				"leave out configuration.pushNotificationConfig, or use A2A at /a2a"))
		}
	}
	call.request.AgentID = targetAgent(params, call.request)
	return call
}

// targetAgent finds the agent in the request's metadata, or else in the
// message's. A message that continues a task need not name one.
func targetAgent(params object, req hub.SendRequest) string {
	field, value := "metadata.targetAgent", req.Metadata[hub.MetaTargetAgent]
	if value == nil {
		field, value = "message.metadata.targetAgent", req.Message.Metadata[hub.MetaTargetAgent]
	}
	if value == nil && req.Message.TaskID != "" {
		return ""
	}
	id, isText := value.(string)
	switch {
	case value == nil:
		params.fail(field, "is missing: name the agent that the message is for")
	case !isText || id == "":
		params.fail(field, "must be the id of an agent")
	case len(id) > maxID:
		params.fail(field, fmt.Sprintf("has more than %d bytes", maxID))
	}
	return id
}

func decodeMessage(o object) *a2a.Message {
	o.literal("kind", KindMessage)
	m := &a2a.Message{
		ID:         o.requiredText("messageId", maxID),
		Role:       a2a.MessageRoleUser,
		ContextID:  o.text("contextId", maxID),
		TaskID:     a2a.TaskID(o.text("taskId", maxID)),
		Metadata:   o.metadata(),
		Extensions: o.texts("extensions"),
	}
	for _, id := range o.texts("referenceTaskIds") {
		m.ReferenceTasks = append(m.ReferenceTasks, a2a.TaskID(id))
	}
	if role := o.literal("role", RoleUser, RoleAgent); role == RoleAgent {
		o.fail("role", `must be "user": only the hub writes agents' messages`)
	}
	m.Parts = decodeParts(o)
	return m
}

func decodeParts(o object) a2a.ContentParts {
	var parts a2a.ContentParts
	for i, element := range rawjson.Elements(o.get("parts", rawjson.Array, true)) {
		if i == maxParts {
			o.fail("parts", fmt.Sprintf("has more than %d elements", maxParts))
			break
		}
		name := fmt.Sprintf("parts[%d]", i)
		if rawjson.KindOf(element) != rawjson.Object {
			o.fail(name, "must be an object")
		}
		parts = append(parts, decodePart(o.read(name, element)))
	}
	if len(parts) == 0 {
		o.fail("parts", "must not be empty")
	}
	return parts
}

func decodePart(o object) *a2a.Part {
	p := &a2a.Part{Metadata: o.metadata()}
	switch o.literal("kind", KindText, KindFile, KindData) {
	case KindText:
		p.Content = a2a.Text(rawjson.Text(o.get("text", rawjson.String, true)))
	case KindData:
		p.Content = decodeData(o, p)
	case KindFile:
		if file, ok := o.child("file", true); ok {
			decodeFile(file, p)
		}
	}
	return p
}

// compatKey marks a data part whose value is not an object in A2A 1.0: 0.3 only
// has objects, so the value is wrapped in {"value": …}, as the A2A SDK does.
const compatKey = "data_part_compat"

func decodeData(o object, p *a2a.Part) a2a.PartContent {
	data := o.values("data", maxData, true)
	if wrapped, _ := p.Metadata[compatKey].(bool); wrapped {
		if value, ok := data["value"]; ok && len(data) == 1 {
			delete(p.Metadata, compatKey)
			return a2a.Data{Value: value}
		}
	}
	return a2a.Data{Value: data}
}

func decodeFile(o object, p *a2a.Part) {
	p.Filename = o.text("name", maxURI)
	p.MediaType = o.text("mimeType", maxID)
	content := o.get("bytes", rawjson.String, false)
	uri := o.text("uri", maxURI)
	switch {
	case (content == nil) == (uri == ""):
		o.fail("", "must have exactly one of bytes and uri")
	case content != nil:
		decoded, err := base64.StdEncoding.DecodeString(rawjson.Text(content))
		if err != nil {
			o.fail("bytes", "must be base64")
		}
		p.Content = a2a.Raw(decoded)
	default:
		if u, err := url.Parse(uri); err != nil || u.Scheme == "" {
			o.fail("uri", "must be an absolute URI")
		}
		p.Content = a2a.URL(uri)
	}
}
