package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Both implementations of the store behave the same.
func TestStores(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) store{
		"memory": func(*testing.T) store { return &Memory{} },
		"jetstream": func(t *testing.T) store {
			b, err := bus.Open(t.Context(), bus.Config{DataDir: t.TempDir(), Durability: bus.DurabilityFast})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := b.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
			s, err := openJetStream(t.Context(), b, "local", 0)
			if err != nil {
				t.Fatal(err)
			}
			s.piece = 100
			return s
		},
	} {
		t.Run(name, func(t *testing.T) { testStore(t, open(t)) })
	}
}

func testStore(t *testing.T, s store) {
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	one := head{ID: "one", Agent: "a.b", Context: "* > . ü", State: a2a.TaskStateWorking, Created: 1, Updated: 2, Live: true,
		Spent: spent{ms: 9}} // of no project
	two := head{ID: "two", Agent: "a", Context: "c", State: a2a.TaskStateCompleted, Created: 3, Updated: 4,
		Spent: spent{project: "/p", ms: 5, input: 6, output: 7, cached: 8, cost: 0.25}}
	must(s.putTask(ctx, one, []byte("small")))
	must(s.putTask(ctx, two, []byte("body of two")))
	for i, size := range []int{1000, 250, 10, 100, 101} { // stored in one piece or several
		one.Updated = int64(10 + i)
		body := bytes.Repeat([]byte{byte('a' + i)}, size)
		must(s.putTask(ctx, one, body))
		got, err := s.task(ctx, "one")
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("body of %d bytes: %d, %v", size, len(got), err)
		}
	}
	if _, err := s.task(ctx, "none"); !errors.Is(err, errNotStored) {
		t.Errorf("body of an unknown task: %v", err)
	}

	must(s.appendDelta(ctx, "one", bytes.Repeat([]byte("x"), 150)))
	must(s.appendDelta(ctx, "one", []byte("y\n")))
	must(s.appendDelta(ctx, "two", []byte("z\n")))
	got, err := s.deltas(ctx, "one")
	if err != nil || string(got) != strings.Repeat("x", 150)+"y\n" {
		t.Errorf("deltas %q, %v", got, err)
	}
	must(s.dropDeltas(ctx, "one"))
	if got, err := s.deltas(ctx, "one"); err != nil || len(got) != 0 {
		t.Errorf("deltas %q, %v", got, err)
	}
	must(s.dropAllDeltas(ctx))

	must(s.putRecord(ctx, kindSession, "a/c *.>", []byte("s")))
	must(s.putRecord(ctx, kindSession, "b", []byte("t")))
	must(s.putRecord(ctx, kindSession, "b", []byte("u")))
	must(s.deleteRecord(ctx, kindSession, "none"))
	must(s.putRecord(ctx, kindExpired, "gone", nil))
	must(s.deleteRecord(ctx, kindExpired, "gone"))

	load := func() (heads []head, records map[string]string) {
		records = map[string]string{}
		must(s.load(ctx, func(*index) {}, func(h head) { heads = append(heads, h) }, func(kind, key string, value []byte) { records[kind+" "+key] = string(value) },
			func(err error) { t.Error(err) }))
		return heads, records
	}
	heads, records := load()
	if d := cmp.Diff([]head{two, one}, heads, cmp.AllowUnexported(spent{})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]string{"session a/c *.>": "s", "session b": "u"}, records); d != "" {
		t.Error(d)
	}
	must(s.deleteTask(ctx, "one"))
	must(s.deleteTask(ctx, "none"))
	if _, err := s.task(ctx, "one"); !errors.Is(err, errNotStored) {
		t.Errorf("body of a removed task: %v", err)
	}
	if heads, _ := load(); len(heads) != 1 {
		t.Errorf("heads %+v", heads)
	}
}

// failing is a store whose writes of tasks fail while fail is set.
type failing struct {
	store
	fail atomic.Bool
	err  error // errDisk if nil
}

var errDisk = errors.New("the disk is full")

func (f *failing) putTask(ctx context.Context, h head, body []byte) error {
	if f.fail.Load() {
		if f.err != nil {
			return f.err
		}
		return errDisk
	}
	return f.store.putTask(ctx, h, body)
}

// said is an agent that answers, possibly after a permission request.
type said struct{ ask bool }

func (s said) Probe(context.Context) runner.Probe {
	return runner.Probe{Stage: runner.StageAuthenticated}
}

func (s said) Open(runner.SessionSpec) (runner.Session, error) { return s, nil }

func (s said) Close(context.Context) error { return nil }

func (s said) Turn(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
	if s.ask {
		if _, err := h.Permission(ctx, runner.PermissionRequest{ID: "1", Options: []runner.PermissionOption{{ID: "a", Kind: runner.AllowOnce}}}); err != nil {
			return runner.Outcome{Status: runner.OutcomeCompleted, Text: "denied: " + err.Error()}, nil
		}
	}
	h.Event(runner.TextDelta{Text: "ok"})
	return runner.Outcome{Status: runner.OutcomeCompleted, Text: "ok"}, nil
}

// A result that is not stored would be lost at a restart.
func TestAResultIsReportedOnlyOnceStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &failing{store: &Memory{}}
		cfg, err := Config{Agents: []Agent{
			{Definition: runner.Definition{ID: "a", Driver: runner.DriverEcho}, Runner: said{}},
			{Definition: runner.Definition{ID: "asks", Driver: runner.DriverEcho}, Runner: said{ask: true}},
		}}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		h, err := newHub(t.Context(), cfg, st)
		if err != nil {
			t.Fatal(err)
		}
		msg := func() *a2a.Message { return a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("x")) }
		st.fail.Store(true)
		task, err := h.SendAndWait(t.Context(), SendRequest{AgentID: "a", Message: msg()})
		if err != nil || task.Status.State != a2a.TaskStateFailed || len(task.History) != 2 {
			t.Errorf("SendAndWait = %+v, %v", task, err)
		}
		if _, err := h.Send(t.Context(), SendRequest{AgentID: "a", Message: msg()}); err == nil {
			t.Error("Send has returned a task that is not stored")
		}
		if _, err := h.SendAndStream(t.Context(), SendRequest{AgentID: "a", Message: msg()}); err == nil {
			t.Error("SendAndStream has returned a task that is not stored")
		}
		// A permission request that cannot be stored is denied.
		var asked *a2a.Task
		done := make(chan struct{})
		go func() {
			defer close(done)
			asked, err = h.SendAndWait(t.Context(), SendRequest{AgentID: "asks", Message: msg()})
		}()
		time.Sleep(900 * time.Millisecond) // the request is denied after three tries; then writes succeed again
		st.fail.Store(false)
		<-done
		if err != nil || asked.Status.State != a2a.TaskStateCompleted || !strings.Contains(asked.Status.Message.Parts[0].Text(), errDisk.Error()) {
			t.Errorf("SendAndWait = %+v, %v", asked, err)
		}
		// Writes are retried, so a short failure has no effect.
		st.fail.Store(true)
		go func() {
			time.Sleep(300 * time.Millisecond)
			st.fail.Store(false)
		}()
		task, err = h.SendAndWait(t.Context(), SendRequest{AgentID: "a", Message: msg()})
		if err != nil || task.Status.State != a2a.TaskStateCompleted {
			t.Errorf("SendAndWait = %+v, %v", task, err)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestWhyATaskIsNotStoredIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := &bus.Error{Code: bus.CodeNotRunning, Message: "the connection to the bus is lost", Remedy: "start the server"}
		st := &failing{store: &Memory{}, err: fmt.Errorf("store it: %w", away)}
		st.fail.Store(true)
		cfg, err := Config{Agents: []Agent{{Definition: runner.Definition{ID: "a", Driver: runner.DriverEcho}, Runner: said{}}}}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		h, err := newHub(t.Context(), cfg, st)
		if err != nil {
			t.Fatal(err)
		}
		msg := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("x"))
		_, err = h.Send(t.Context(), SendRequest{AgentID: "a", Message: msg})
		if e, ok := errors.AsType[*Error](err); !ok || e.Message != "the task could not be stored: the connection to the bus is lost" || e.Remedy != "start the server" {
			t.Errorf("Send = %+v", err)
		}
		task, err := h.SendAndWait(t.Context(), SendRequest{AgentID: "a", Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("y"))})
		if err != nil || task.Status.Message.Parts[0].Text() != "the task's result could not be stored: the connection to the bus is lost" {
			t.Errorf("SendAndWait = %+v, %v", task, err)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func genPart() *rapid.Generator[*a2a.Part] {
	return rapid.Custom(func(t *rapid.T) *a2a.Part {
		var p *a2a.Part
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			p = a2a.NewTextPart(rapid.SampledFrom([]string{"", "same", "ü\x00", rapid.String().Draw(t, "text")}).Draw(t, "t"))
		case 1:
			p = a2a.NewRawPart(rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "raw"))
		case 2:
			p = a2a.NewFileURLPart("http://x/y", "text/plain")
		default:
			p = a2a.NewDataPart(map[string]any{"k": []any{1.5, "s", nil, true}})
		}
		p.MediaType = rapid.SampledFrom([]string{"", "text/markdown"}).Draw(t, "media")
		return p
	})
}

// Values that a record stores once but a task contains several times are restored
// everywhere.
func TestRecordsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(0, rapid.Int64Range(1, 1<<60).Draw(t, "at")).UTC()
		task := &a2a.Task{ID: "id", ContextID: "c", Status: a2a.TaskStatus{State: a2a.TaskStateCompleted, Timestamp: &at}}
		for i := range rapid.IntRange(0, 3).Draw(t, "messages") {
			task.History = append(task.History, &a2a.Message{ID: fmt.Sprint(i), Role: a2a.MessageRoleAgent, Parts: rapid.SliceOfN(genPart(), 1, 2).Draw(t, "parts")})
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "artifacts") {
			task.Artifacts = append(task.Artifacts, &a2a.Artifact{ID: a2a.ArtifactID(fmt.Sprint(i)), Parts: rapid.SliceOfN(genPart(), 1, 2).Draw(t, "parts")})
		}
		if n := len(task.History); n > 0 && rapid.Bool().Draw(t, "status") {
			task.Status.Message = task.History[n-1]
		} else if rapid.Bool().Draw(t, "own") {
			task.Status.Message = &a2a.Message{ID: "s", Role: a2a.MessageRoleAgent, Parts: a2a.ContentParts{a2a.NewTextPart("s")}}
		}
		was, err := json.Marshal(task)
		if err != nil {
			t.Fatal(err)
		}
		body, err := encodeRecord(record{Task: task, Turns: 3})
		if err != nil {
			t.Fatal(err)
		}
		rec, err := decodeRecord(body)
		if err != nil {
			t.Fatal(err)
		}
		is, err := json.Marshal(rec.Task)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(was, is) || rec.Turns != 3 {
			t.Fatalf("was %s\n is %s", was, is)
		}
	})
}

// A number beyond a float64 must not make a finished task unreadable.
func TestNumbersRoundTripThroughTheStore(t *testing.T) {
	numbers := func() map[string]any {
		return map[string]any{"big": json.Number("9007199254740993"), "huge": json.Number("1e400"), "plain": 0.5, "list": []any{json.Number("-18446744073709551615")}}
	}
	part := a2a.NewDataPart(numbers())
	part.Metadata = numbers()
	bare := a2a.NewDataPart(json.Number("1e999"))
	null := a2a.NewDataPart(nil)
	m := a2a.NewMessage(a2a.MessageRoleUser, part, bare, null, a2a.NewTextPart(""), a2a.NewRawPart([]byte{}), a2a.NewFileURLPart("https://x.example", "a/b"))
	m.Metadata, m.Extensions, m.ReferenceTasks = numbers(), []string{"e"}, []a2a.TaskID{"r"}
	status := a2a.NewMessage(a2a.MessageRoleAgent, part)
	artifact := &a2a.Artifact{ID: "a", Name: "n", Description: "d", Extensions: []string{"e"}, Parts: a2a.ContentParts{part}, Metadata: numbers()}
	now := time.Now().UTC().Round(0)
	want := record{
		Task: &a2a.Task{
			ID: "t", ContextID: "c", History: []*a2a.Message{m}, Artifacts: []*a2a.Artifact{artifact}, Metadata: numbers(),
			Status: a2a.TaskStatus{State: a2a.TaskStateInputRequired, Message: status, Timestamp: &now},
		},
		Turns: 2, Waiting: []*a2a.Message{m},
	}
	body, err := encodeRecord(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeRecord(body)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	out := delta{Turn: 1, Artifact: &a2a.TaskArtifactUpdateEvent{TaskID: "t", ContextID: "c", Append: true, LastChunk: true, Artifact: artifact, Metadata: numbers()}}
	line, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]delta{out}, decodeDeltas(append(line, '\n'), 0)); d != "" {
		t.Error(d)
	}
}

func TestAnAnswerIsStoredOnce(t *testing.T) {
	answer := strings.Repeat("x", 1000)
	m := a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart(answer))
	now := time.Now()
	body, err := encodeRecord(record{Task: &a2a.Task{
		History: []*a2a.Message{m}, Status: a2a.TaskStatus{Message: m, Timestamp: &now},
		Artifacts: []*a2a.Artifact{{ID: "answer", Parts: a2a.ContentParts{a2a.NewTextPart(answer)}}},
	}})
	if err != nil || bytes.Count(body, []byte(answer)) != 1 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

// A crash may happen after the turn's output is stored with the task and before its
// deltas are removed.
func TestDeltasOfAStoredTurnAreIgnored(t *testing.T) {
	got := decodeDeltas([]byte(`{"turn":1,"text":"old"}
{"turn":2,"text":"new"}
{"turn":2,"te`), 1)
	if d := cmp.Diff([]delta{{Turn: 2, Text: "new"}}, got); d != "" {
		t.Error(d)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"id":"x","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"},"statusInHistory":true}`))
	f.Add([]byte(`{"answerInHistory":1,"artifacts":[{"artifactId":"a","parts":[]}],"history":[{"messageId":"m","parts":[{"text":"t"}],"role":"ROLE_AGENT"}]}`))
	f.Add([]byte(`{"answerInHistory":-1,"history":[null],"artifacts":[null]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		rec, err := decodeRecord(body)
		if err == nil && rec.Task == nil {
			t.Fatal("no task and no error")
		}
	})
}

func FuzzDecodeHead(f *testing.F) {
	f.Add(encodeHead(head{Agent: "a", Context: "c", State: a2a.TaskStateWorking, Created: 1, Updated: 2, Live: true}, 5, 2))
	f.Add("1 TASK_STATE_COMPLETED 1 1 false 0 -1 a YQ")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		h, rev, n, err := decodeHead(s)
		if err != nil {
			return
		}
		again, rev2, n2, err := decodeHead(encodeHead(h, rev, n))
		if err != nil || again != h || rev2 != rev || n2 != n {
			t.Fatalf("%+v becomes %+v, %v", h, again, err)
		}
	})
}

func FuzzDecodeDeltas(f *testing.F) {
	f.Add([]byte(`{"turn":1,"text":"a"}`+"\n"+`{"turn":2,"artifact":{"artifact":{"artifactId":"x","parts":[{"text":"b"}]}}}`+"\n"+`{"tu`), 0)
	f.Fuzz(func(t *testing.T, data []byte, turns int) {
		if n := len(decodeDeltas(data, turns)); n > bytes.Count(data, []byte("\n")) {
			t.Fatalf("%d deltas", n)
		}
	})
}

func FuzzReply(f *testing.F) {
	f.Add("yes", `{"optionId":"a"}`)
	f.Add("nope\xff", `[1]`)
	req := runner.PermissionRequest{ID: "1", Options: []runner.PermissionOption{{ID: "a", Name: "Allow", Kind: runner.AllowOnce}, {ID: "r", Name: "No", Kind: runner.RejectAlways}}}
	f.Fuzz(func(t *testing.T, text, data string) {
		m := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))
		var v any
		if json.Unmarshal([]byte(data), &v) == nil {
			m.Parts = append(m.Parts, a2a.NewDataPart(v))
		}
		d, err := parseReply(req, m)
		if err != nil {
			var he *Error
			if !errors.As(err, &he) || he.Code != CodeInvalid || he.Subject == "" {
				t.Fatalf("error %#v", err)
			}
			return
		}
		if d.answer.OptionID != "a" && d.answer.OptionID != "r" {
			t.Fatalf("answer %+v", d)
		}
	})
}
