package hub

import (
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// EncodedSize returns the bytes that suffice for most events with their encoding's envelope, so that the encoding need not grow.
func EncodedSize(event a2a.Event) int {
	size := ContentSize(event)
	return 3<<9 + size + size/8
}

// AppendEvent appends an event as the SDK's [a2a.StreamResponse] writes it, but once: the SDK encodes each part of a message by itself, checks and
// copies it for the message, and again for the event.
func AppendEvent(dst []byte, event a2a.Event) ([]byte, error) {
	e := encoding{dst: dst}
	switch v := event.(type) {
	case *a2a.Task:
		e.raw(`{"task":`)
		e.task(v)
	case *a2a.Message:
		e.raw(`{"message":`)
		e.message(v)
	case *a2a.TaskStatusUpdateEvent:
		e.raw(`{"statusUpdate":`)
		e.statusUpdate(v)
	case *a2a.TaskArtifactUpdateEvent:
		e.raw(`{"artifactUpdate":`)
		e.artifactUpdate(v)
	default:
		return rawjson.Append(dst, a2a.StreamResponse{Event: event})
	}
	e.raw(`}`)
	return e.dst, e.err
}

// encoding is JSON that is being written.
type encoding struct {
	dst []byte
	err error // of the first value that could not be written
}

func (e *encoding) raw(s string) { e.dst = append(e.dst, s...) }

func (e *encoding) text(s string) { e.value(s) }

// value writes a value, in particular of metadata. What is not usual in metadata is left to the library.
func (e *encoding) value(v any) {
	switch v := v.(type) {
	case string:
		if utf8.ValidString(v) {
			e.dst = rawjson.AppendString(e.dst, v)
			return
		}
	case bool:
		e.dst = strconv.AppendBool(e.dst, v)
		return
	case float64:
		if n := int64(v); n != 0 && float64(n) == v && n < 1<<53 && n > -1<<53 {
			e.dst = strconv.AppendInt(e.dst, n, 10)
			return
		}
	case map[string]any:
		if v != nil {
			e.object(v)
			return
		}
	}
	if e.err == nil {
		e.dst, e.err = rawjson.Append(e.dst, v)
	}
}

func (e *encoding) object(m map[string]any) {
	e.raw(`{`)
	for i, name := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			e.raw(`,`)
		}
		e.text(name)
		e.raw(`:`)
		e.value(m[name])
	}
	e.raw(`}`)
}

// optional writes a member with a text that is not empty, after others.
func (e *encoding) optional(name, s string) {
	if s != "" {
		e.raw(name)
		e.text(s)
	}
}

func (e *encoding) metadata(m map[string]any) {
	if len(m) > 0 {
		e.raw(`,"metadata":`)
		e.value(m)
	}
}

func (e *encoding) time(t time.Time) {
	text, err := t.MarshalJSON()
	if err != nil && e.err == nil {
		e.err = err
	}
	e.dst = append(e.dst, text...)
}

func (e *encoding) task(t *a2a.Task) {
	e.taskMembers(t)
	e.raw(`}`)
}

// taskMembers writes a task without its last brace.
func (e *encoding) taskMembers(t *a2a.Task) {
	e.raw(`{"id":`)
	e.text(string(t.ID))
	if len(t.Artifacts) > 0 {
		e.raw(`,"artifacts":`)
		writeList(e, t.Artifacts, (*encoding).artifact)
	}
	e.raw(`,"contextId":`)
	e.text(t.ContextID)
	if len(t.History) > 0 {
		e.raw(`,"history":`)
		writeList(e, t.History, (*encoding).message)
	}
	e.metadata(t.Metadata)
	e.raw(`,"status":`)
	e.status(t.Status)
}

func (e *encoding) statusUpdate(u *a2a.TaskStatusUpdateEvent) {
	e.raw(`{"contextId":`)
	e.text(u.ContextID)
	e.raw(`,"status":`)
	e.status(u.Status)
	e.raw(`,"taskId":`)
	e.text(string(u.TaskID))
	e.metadata(u.Metadata)
	e.raw(`}`)
}

func (e *encoding) artifactUpdate(u *a2a.TaskArtifactUpdateEvent) {
	e.raw(`{`)
	if u.Append {
		e.raw(`"append":true,`)
	}
	e.raw(`"artifact":`)
	if u.Artifact == nil {
		e.raw(`null`)
	} else {
		e.artifact(u.Artifact)
	}
	e.raw(`,"contextId":`)
	e.text(u.ContextID)
	if u.LastChunk {
		e.raw(`,"lastChunk":true`)
	}
	e.raw(`,"taskId":`)
	e.text(string(u.TaskID))
	e.metadata(u.Metadata)
	e.raw(`}`)
}

func (e *encoding) status(s a2a.TaskStatus) {
	e.raw(`{`)
	if s.Message != nil {
		e.raw(`"message":`)
		e.message(s.Message)
		e.raw(`,`)
	}
	e.raw(`"state":`)
	e.text(s.State.String())
	if s.Timestamp != nil {
		e.raw(`,"timestamp":`)
		e.time(*s.Timestamp)
	}
	e.raw(`}`)
}

func (e *encoding) artifact(a *a2a.Artifact) {
	e.raw(`{"artifactId":`)
	e.text(string(a.ID))
	e.optional(`,"description":`, a.Description)
	if len(a.Extensions) > 0 {
		e.raw(`,"extensions":`)
		e.value(a.Extensions)
	}
	e.metadata(a.Metadata)
	e.optional(`,"name":`, a.Name)
	e.raw(`,"parts":`)
	e.parts(a.Parts)
	e.raw(`}`)
}

func (e *encoding) message(m *a2a.Message) {
	e.raw(`{"messageId":`)
	e.text(m.ID)
	e.optional(`,"contextId":`, m.ContextID)
	if len(m.Extensions) > 0 {
		e.raw(`,"extensions":`)
		e.value(m.Extensions)
	}
	e.metadata(m.Metadata)
	e.raw(`,"parts":`)
	e.parts(m.Parts)
	if len(m.ReferenceTasks) > 0 {
		e.raw(`,"referenceTaskIds":`)
		e.value(m.ReferenceTasks)
	}
	e.raw(`,"role":`)
	e.text(m.Role.String())
	e.optional(`,"taskId":`, string(m.TaskID))
	e.raw(`}`)
}

func (e *encoding) parts(parts a2a.ContentParts) {
	if parts == nil {
		e.raw(`null`)
		return
	}
	writeList(e, parts, (*encoding).part)
}

func (e *encoding) part(p *a2a.Part) {
	text, ok := plainText(p)
	if !ok {
		e.value(p)
		return
	}
	e.raw(`{"text":`)
	e.text(string(text))
	e.raw(`}`)
}

// writeList writes an array; a nil element is null.
func writeList[T any](e *encoding, list []*T, write func(*encoding, *T)) {
	for i, v := range list {
		e.raw([]string{`[`, `,`}[min(i, 1)])
		if v == nil {
			e.raw(`null`)
			continue
		}
		write(e, v)
	}
	if len(list) == 0 {
		e.raw(`[`)
	}
	e.raw(`]`)
}

// appendRecord appends the members of a record. They are those of its task, and its own.
func appendRecord(dst []byte, r record) ([]byte, error) {
	e := encoding{dst: dst}
	e.taskMembers(r.Task)
	if r.StatusInHistory {
		e.raw(`,"statusInHistory":true`)
	}
	for _, n := range []struct {
		name  string
		value int
	}{{`,"answerInHistory":`, r.AnswerInHistory}, {`,"turns":`, r.Turns}} {
		if n.value != 0 {
			e.raw(n.name)
			e.dst = strconv.AppendInt(e.dst, int64(n.value), 10)
		}
	}
	if len(r.Waiting) > 0 {
		e.raw(`,"waiting":`)
		writeList(&e, r.Waiting, (*encoding).message)
	}
	if len(r.WaitingFrom) > 0 {
		e.raw(`,"waitingFrom":`)
		e.value(r.WaitingFrom)
	}
	if r.Tally != (tally{}) {
		e.raw(`,"tally":`)
		e.value(r.Tally)
	}
	e.raw(`}`)
	return e.dst, e.err
}
