package dialect_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/hub"
)

// Generators of messages and tasks.
var (
	anID     = rapid.StringMatching(`[a-zA-Z0-9._-]{1,40}`)
	metadata = rapid.OneOf(rapid.Just(map[string]any(nil)), rapid.MapOfN(rapid.StringMatching(`[a-z.]{1,8}`), someValue(2), 1, 3))
	states   = rapid.SampledFrom([]a2a.TaskState{
		a2a.TaskStateSubmitted, a2a.TaskStateWorking, a2a.TaskStateInputRequired, a2a.TaskStateCompleted,
		a2a.TaskStateCanceled, a2a.TaskStateFailed, a2a.TaskStateRejected, a2a.TaskStateAuthRequired,
	})
)

func someValue(depth int) *rapid.Generator[any] {
	scalars := rapid.OneOf(
		rapid.Map(rapid.String(), func(s string) any { return s }),
		rapid.Map(rapid.Int32(), func(n int32) any { return float64(n) }),
		rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Just(any(json.Number("-92233720368547758080"))),
		rapid.Just(any(nil)),
	)
	if depth == 0 {
		return scalars
	}
	return rapid.OneOf(scalars,
		rapid.Map(rapid.SliceOfN(someValue(depth-1), 0, 3), func(l []any) any { return l }),
		rapid.Map(rapid.MapOfN(rapid.String(), someValue(depth-1), 0, 3), func(m map[string]any) any { return m }),
	)
}

func parts(t *rapid.T) a2a.ContentParts {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *a2a.Part {
		p := &a2a.Part{Metadata: metadata.Draw(t, "part metadata")}
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			p.Content = a2a.Text(rapid.String().Draw(t, "text"))
		case 1:
			p.Content = a2a.Raw(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
			p.Filename, p.MediaType = rapid.String().Draw(t, "name"), "application/octet-stream"
		case 2:
			p.Content = a2a.URL("https://example.org/" + anID.Draw(t, "uri"))
			p.Filename = anID.Draw(t, "name")
		default:
			p.Content = a2a.Data{Value: someValue(2).Draw(t, "data")}
			if p.Metadata == nil {
				p.Metadata = map[string]any{} // removing the mark of a wrapped value leaves an empty map
			}
		}
		return p
	}), 1, 4).Draw(t, "parts")
}

func message(t *rapid.T) *a2a.Message {
	return &a2a.Message{
		ID: anID.Draw(t, "message"), Role: a2a.MessageRoleUser, Parts: parts(t),
		ContextID: rapid.OneOf(rapid.Just(""), anID).Draw(t, "context"),
		TaskID:    a2a.TaskID(anID.Draw(t, "task")),
		Metadata:  metadata.Draw(t, "metadata"),
	}
}

// A message that is sent to a client and back is unchanged.
// HUB-TYPE-MESSAGE, HUB-TYPE-PART.
func TestMessagesSurviveTheRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := message(rt)
		params, err := json.Marshal(map[string]any{"message": dialect.FromMessage(want)})
		if err != nil {
			rt.Fatal(err)
		}
		f := &fakeHub{task: specTask()}
		_, err = newService(f).Handle(t.Context(), jsonrpc.Request{ID: jsonrpc.NumberID(1), Method: dialect.MethodSend, Params: params}, nil)
		if err != nil {
			rt.Fatalf("%s: %v", params, err)
		}
		if diff := cmp.Diff(want, f.sent[0].Message, equateEmptyMetadata); diff != "" {
			rt.Fatalf("%s\n%s", params, diff)
		}
	})
}

// equateEmptyMetadata ignores the difference between empty and no metadata, since JSON omits both.
var equateEmptyMetadata = cmp.FilterPath(
	func(p cmp.Path) bool { return p.Last().String() == ".Metadata" },
	cmp.Transformer("nilIfEmpty", func(m map[string]any) map[string]any {
		if len(m) == 0 {
			return nil
		}
		return m
	}))

// A task that a client decodes and encodes again is unchanged.
// HUB-TYPE-TASK, HUB-TYPE-ARTIFACT.
func TestTasksSurviveTheRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		at := time.UnixMilli(rapid.Int64Range(0, 4e12).Draw(rt, "time"))
		task := &a2a.Task{
			ID: a2a.TaskID(anID.Draw(rt, "id")), ContextID: anID.Draw(rt, "context"), Metadata: metadata.Draw(rt, "metadata"),
			Status:    a2a.TaskStatus{State: states.Draw(rt, "state"), Timestamp: &at, Message: message(rt)},
			History:   []*a2a.Message{message(rt)},
			Artifacts: []*a2a.Artifact{{ID: a2a.ArtifactID(anID.Draw(rt, "artifact")), Parts: parts(rt)}},
		}
		first, err := json.Marshal(dialect.FromTask(task, nil))
		if err != nil {
			rt.Fatal(err)
		}
		var read dialect.Task
		d := json.NewDecoder(bytes.NewReader(first))
		d.UseNumber()
		if err := d.Decode(&read); err != nil {
			rt.Fatalf("%s: %v", first, err)
		}
		second, err := json.Marshal(read)
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(string(first), string(second)); diff != "" {
			rt.Fatal(diff)
		}
		if !read.Status.Timestamp.Equal(at) {
			rt.Fatalf("%v became %v", at, read.Status.Timestamp)
		}
	})
}

// FuzzSend checks for any parameters that the hub gets a complete message or none, and
// the client an answer.
func FuzzSend(f *testing.F) {
	for _, seed := range []string{
		send(`{}`), send(`{"parts":[{"kind":"file","file":{"name":"a","mimeType":"b","bytes":"aGk="}},{"kind":"data","data":{"a":[1]}}]}`),
		send(`{"metadata":{"targetAgent":5}}`), `{"message":{"parts":[[]]}}`, `[]`, `{}`,
		`{"message":{"kind":"message","messageId":"m","role":"user","taskId":"t","parts":[{"kind":"text","text":"\ud800"}]},"configuration":{"historyLength":1e1,"blocking":false,"timeout":5}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, params string) {
		h := &fakeHub{task: specTask()}
		d := &jsonrpc.Dispatcher{Handler: newService(h), Log: slog.New(slog.DiscardHandler)}
		msg := jsonrpc.Decode([]byte(method("message/send", params)), jsonrpc.Limits{})
		if d.Serve(context.Background(), msg, nil) == nil && !msg.Calls[0].Request.IsNotification() {
			t.Fatal("no answer")
		}
		for _, req := range h.sent {
			checkSent(t, req)
		}
	})
}

func checkSent(t *testing.T, req hub.SendRequest) {
	m := req.Message
	if m == nil || m.ID == "" || m.Role != a2a.MessageRoleUser || len(m.Parts) == 0 || req.AgentID == "" && m.TaskID == "" {
		t.Fatalf("the hub received %+v", req)
	}
	for _, p := range m.Parts {
		if p.Content == nil {
			t.Fatalf("the hub received an empty part: %+v", m)
		}
	}
}
