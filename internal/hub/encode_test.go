package hub

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// source makes values of all kinds, also unusual ones.
type source struct{ *rand.Rand }

func some[T any](s source, values ...T) T { return values[s.IntN(len(values))] }

func listOf[T any](s source, one func() T) []T {
	var all []T
	if s.IntN(4) == 0 {
		return some(s, nil, []T{})
	}
	for range s.IntN(3) + 1 {
		all = append(all, one())
	}
	return all
}

func (s source) text() string {
	return some(s, "", "a", "ü <&> \"\\\b\f\n\r\t\x00\x7f", "\u2028\u2029", "no UTF-8: \xff", "0190d5a2-7c3b-7def-8123-456789abcdef")
}

func (s source) metadata() map[string]any {
	return some(s, nil, map[string]any{}, map[string]any{s.text(): s.value(), s.text(): s.value()}, nil, nil)
}

func (s source) value() any {
	return some[any](s, nil, true, false, s.text(), 0.0, math.Copysign(0, -1), 1.0, -7.0, 1.5, 1e300, float64(1<<53), 3, []any{nil, 1.0}, []any(nil), map[string]any(nil),
		map[string]any{s.text(): s.text()}, json.Number("12"), json.RawMessage(` {"a": 1}`))
}

func (s source) part() *a2a.Part {
	p := &a2a.Part{Content: some[a2a.PartContent](s, a2a.Text(s.text()), a2a.Text(s.text()), a2a.Raw("raw"), a2a.Data{Value: []any{1.0}}, a2a.URL("http://x"), nil)}
	if s.IntN(4) == 0 {
		p.Filename, p.MediaType, p.Metadata = s.text(), s.text(), s.metadata()
	}
	return some(s, p, p, p, p, nil)
}

func (s source) message() *a2a.Message {
	m := &a2a.Message{ID: s.text(), ContextID: s.text(), Extensions: listOf(s, s.text), Metadata: s.metadata(), Parts: listOf(s, s.part),
		ReferenceTasks: listOf(s, func() a2a.TaskID { return a2a.TaskID(s.text()) }), Role: some(s, a2a.MessageRoleUser, a2a.MessageRoleUnspecified), TaskID: a2a.TaskID(s.text())}
	return some(s, m, m, m, nil)
}

func (s source) artifact() *a2a.Artifact {
	a := &a2a.Artifact{ID: a2a.ArtifactID(s.text()), Description: s.text(), Extensions: listOf(s, s.text), Metadata: s.metadata(), Name: s.text(), Parts: listOf(s, s.part)}
	return some(s, a, a, a, nil)
}

func (s source) status() a2a.TaskStatus {
	at := time.Unix(s.Int64N(1<<33), s.Int64N(1e9)).UTC()
	return a2a.TaskStatus{Message: s.message(), State: some(s, a2a.TaskStateWorking, a2a.TaskStateUnspecified), Timestamp: some(s, &at, nil)}
}

func (s source) task() *a2a.Task {
	return &a2a.Task{ID: a2a.TaskID(s.text()), Artifacts: listOf(s, s.artifact), ContextID: s.text(), History: listOf(s, s.message), Metadata: s.metadata(), Status: s.status()}
}

func (s source) event() a2a.Event {
	flag := s.IntN(2) == 0
	switch s.IntN(5) {
	case 0:
		if m := s.message(); m != nil {
			return m
		}
	case 1:
		return &a2a.TaskStatusUpdateEvent{ContextID: s.text(), Status: s.status(), TaskID: a2a.TaskID(s.text()), Metadata: s.metadata()}
	case 2:
		return &a2a.TaskArtifactUpdateEvent{Append: flag, Artifact: s.artifact(), ContextID: s.text(), LastChunk: !flag, TaskID: a2a.TaskID(s.text()), Metadata: s.metadata()}
	}
	return s.task()
}

// means returns what a text of JSON says.
func means(t *testing.T, text []byte, err error) (v any) {
	t.Helper()
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	if err == nil {
		err = rawjson.Check(text, 100)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// Whatever an event has, it is written as by the SDK.
func TestEventsAreWrittenAsByTheSDK(t *testing.T) {
	seed := rand.Uint64()
	s := source{rand.New(rand.NewPCG(seed, 0))}
	for range 3000 {
		event := s.event()
		text, err := AppendEvent(nil, event)
		got := means(t, text, err)
		text, err = rawjson.Append(nil, a2a.StreamResponse{Event: event})
		if d := cmp.Diff(means(t, text, err), got); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
	}
	for _, event := range []a2a.Event{nil, &a2a.Task{Metadata: map[string]any{"": func() {}}}} {
		if text, err := AppendEvent([]byte("before"), event); err == nil || string(text[:6]) != "before" {
			t.Errorf("%v: %s, %v", event, text, err)
		}
	}
}

// Whatever a record has, it is written as by the library.
func TestRecordsAreWrittenAsByTheLibrary(t *testing.T) {
	seed := rand.Uint64()
	s := source{rand.New(rand.NewPCG(seed, 0))}
	for range 1000 {
		r := record{Task: s.task(), StatusInHistory: s.IntN(2) == 0, AnswerInHistory: s.IntN(2), Turns: s.IntN(3), Waiting: listOf(s, s.message),
			WaitingFrom: listOf(s, func() Sender { return Sender{} }), Tally: tally{Model: s.text(), Turns: s.IntN(2)}}
		text, err := appendRecord(nil, r)
		got := means(t, text, err)
		text, err = json.Marshal(r)
		if d := cmp.Diff(means(t, text, err), got); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
	}
}

func BenchmarkAppendEvent(b *testing.B) {
	message := &a2a.Message{ID: "m", Parts: a2a.ContentParts{a2a.NewTextPart("hello")}, Role: a2a.MessageRoleUser}
	at := time.Now()
	task := &a2a.Task{ID: "0190d5a2-7c3b-7def-8123-456789abcdef", ContextID: "0190d5a2-7c3b-7def-8123-456789abcdef", History: []*a2a.Message{message, message},
		Artifacts: []*a2a.Artifact{{ID: "a", Parts: message.Parts}}, Status: a2a.TaskStatus{State: a2a.TaskStateCompleted, Timestamp: &at, Message: message}}
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := AppendEvent(nil, task); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("SDK", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := rawjson.Append(nil, a2a.StreamResponse{Event: task}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A sender in a task's metadata is as its JSON, and is read from both.
func TestSendersInMetadataAreAsTheirJSON(t *testing.T) {
	seed := rand.Uint64()
	s := source{rand.New(rand.NewPCG(seed, 0))}
	for range 300 {
		sender := storedSender{Sender{Kind: some(s, SenderA2A, SenderClient), ID: some(s, "", "x", "<ü>"), Label: some(s, "", "y")}, s.IntN(2) == 0}
		data := sender.data()
		if d := cmp.Diff(plain(sender), any(data)); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
		if got := readSender(map[string]any{MetaSender: data}); got != sender {
			t.Fatalf("seed %d: %+v is read as %+v", seed, sender, got)
		}
	}
	unknown := storedSender{Sender: Sender{Kind: SenderA2A, ID: "unknown"}}
	for _, stored := range []any{nil, map[string]any{}, map[string]any{"id": "x"}, map[string]any{"kind": 1.0}, "client"} {
		if got := readSender(map[string]any{MetaSender: stored}); got != unknown {
			t.Errorf("%v is read as %+v", stored, got)
		}
	}
	if got := readSender(map[string]any{MetaSender: map[string]any{"kind": "client", "new": 1.0}}); got.Kind != SenderClient {
		t.Errorf("with an unknown member it is read as %+v", got)
	}
}
