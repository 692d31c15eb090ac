package hub_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// busy is an agent whose turn has everything that a trace records.
func busy() *fakeAgent {
	return &fakeAgent{turn: func(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		h.Event(runner.SessionStarted{ID: "s", Model: "m-1"})
		h.Event(runner.ToolCall{ID: "1", Name: "Bash", Title: "Bash: ls", Status: runner.ToolRunning, Input: json.RawMessage(`{"command":"ls"}`)})
		h.Event(runner.Notice{Text: "tried again"})
		answer, err := h.Permission(ctx, runner.PermissionRequest{ID: "q", Title: "Run ls?", Options: []runner.PermissionOption{
			{ID: "yes", Kind: runner.AllowOnce}, {ID: "no", Kind: runner.RejectOnce}}})
		if err != nil {
			return runner.Outcome{Status: runner.OutcomeCanceled}, nil
		}
		h.Event(runner.ToolCall{ID: "1", Status: runner.ToolCompleted, Output: "a token=abcdefghijkl " + answer.OptionID})
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done", Usage: runner.Usage{InputTokens: 5}}, nil
	}}
}

func traces(t *testing.T, h *hub.Hub, id string, q hub.TraceQuery) []hub.Trace {
	t.Helper()
	list, _, err := h.Traces(t.Context(), a2a.TaskID(id), q)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestATraceHasWhatATurnDid(t *testing.T) {
	b := openBus(t, t.TempDir(), bus.DurabilityFast)
	project := t.TempDir()
	if out, err := exec.Command("git", "init", "-q", project).CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	cfg := hub.Config{Bus: b, DataDir: t.TempDir(), WorkRoots: []string{project}, Agents: []hub.Agent{{Definition: working("a"), Runner: busy()}}}
	h := newHub(t, cfg, nil)
	req := request("a", "look")
	req.Message.Metadata = map[string]any{hub.MetaWorkDir: project}
	asks := send(t, h, req)
	running := traces(t, h, string(asks.ID), hub.TraceQuery{})
	if len(running) != 1 || running[0].State != hub.TraceRunning || len(running[0].Questions) != 1 || running[0].Questions[0].Answer != nil {
		t.Errorf("while it asks: %+v", running)
	}
	answer := request("a", "yes")
	answer.Message.TaskID = asks.ID
	send(t, h, answer)
	for _, where := range []string{"in memory", "after a restart"} {
		list := traces(t, h, string(asks.ID), hub.TraceQuery{})
		if len(list) != 1 {
			t.Fatalf("%s: %+v", where, list)
		}
		got := list[0]
		if got.State != "completed" || got.Prompt != "look" || got.Model != "m-1" || got.WorkDir == nil || got.StartedAt.After(got.EndedAt) ||
			got.Usage.InputTokens != 5 || len(got.Notices) != 1 || got.Git == nil || got.Derived {
			t.Errorf("%s: %+v", where, got)
		}
		if c := got.Tools[0]; c.Status != runner.ToolCompleted || c.Name != "Bash" || string(c.Input) != `{"command":"ls"}` || c.Output != "a token=[redacted] yes" || c.EndedAt.IsZero() {
			t.Errorf("%s: %+v", where, c)
		}
		if q := got.Questions[0]; q.Title != "Run ls?" || q.Answer == nil || !q.Answer.Allowed || q.Answer.By != "user" || len(q.Options) != 2 {
			t.Errorf("%s: %+v", where, q)
		}
		if err := h.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		h = newHub(t, cfg, nil)
	}
	if _, _, err := h.Traces(t.Context(), asks.ID, hub.TraceQuery{Turn: 2}); hub.CodeOf(err) != hub.CodeInvalid {
		t.Error(err)
	}
	if _, _, err := h.Traces(t.Context(), "none", hub.TraceQuery{}); hub.CodeOf(err) != hub.CodeTaskNotFound {
		t.Error(err)
	}
}

func TestATurnWithoutARecordIsDerivedFromItsTask(t *testing.T) {
	b := openBus(t, t.TempDir(), bus.DurabilityFast)
	if err := hub.Seed(t.Context(), b, 1, 1); err != nil {
		t.Fatal(err)
	}
	h := newHub(t, hub.Config{Bus: b}, map[string]*fakeAgent{"a": echo()})
	page, err := h.Tasks(t.Context(), hub.TaskQuery{})
	if err != nil {
		t.Fatal(err)
	}
	for want, task := range map[string]string{"what is the time?": string(page.Tasks[0].ID), "hello": string(send(t, h, request("a", "hello")).ID)} {
		list := traces(t, h, task, hub.TraceQuery{})
		if len(list) != 1 || list[0].Prompt != want || list[0].State != "completed" || !list[0].Derived {
			t.Errorf("%+v", list)
		}
	}
}

// A hub that is killed leaves the record of what was known, marked as interrupted.
func TestTheTraceOfAKilledHubIsInterrupted(t *testing.T) {
	b := openBus(t, t.TempDir(), bus.DurabilityFast)
	data := t.TempDir()
	begun := make(chan struct{})
	stuck := &fakeAgent{turn: func(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		h.Event(runner.ToolCall{ID: "1", Title: "make"})
		close(begun)
		<-ctx.Done()
		return runner.Outcome{Status: runner.OutcomeCanceled}, nil
	}}
	cfg := hub.Config{Bus: b, DataDir: data, Agents: []hub.Agent{{Definition: working("a"), Runner: stuck}}}
	h := newHub(t, cfg, nil)
	task, err := h.Send(t.Context(), request("a", "build"))
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	if err := hub.AwaitTrace(t.Context(), b, "local", task.ID); err != nil {
		t.Fatal(err)
	}
	// A second hub on the same store finds what a killed one leaves.
	second := newHub(t, hub.Config{Bus: b, DataDir: data}, nil)
	list := traces(t, second, string(task.ID), hub.TraceQuery{})
	if len(list) != 1 || list[0].State != hub.TraceInterrupted || list[0].Prompt != "build" || !list[0].EndedAt.IsZero() {
		t.Errorf("%+v", list)
	}
	if strings.Contains(list[0].Prompt, "\x00") || time.Since(list[0].StartedAt) > time.Hour {
		t.Errorf("%+v", list[0])
	}
}

// childTool makes the child process of restore_test.go run a turn with tool calls that never ends.
const childTool = "PARLEY_HUB_TEST_TOOL"

func toolChild(b *bus.Bus, dir string) error {
	stuck := &fakeAgent{turn: func(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		h.Event(runner.ToolCall{ID: "1", Name: "Bash", Title: "ls", Status: runner.ToolCompleted, Output: "a.txt"})
		h.Event(runner.ToolCall{ID: "2", Name: "Bash", Title: "make", Status: runner.ToolRunning})
		<-ctx.Done()
		return runner.Outcome{Status: runner.OutcomeCanceled}, nil
	}}
	h, err := hub.New(context.Background(), hub.Config{Bus: b, Name: "tools", DataDir: dir, Agents: []hub.Agent{{Definition: working("b"), Runner: stuck}}})
	if err != nil {
		return err
	}
	task, err := h.Send(context.Background(), request("b", "build"))
	if err != nil {
		return err
	}
	if err := hub.AwaitTrace(context.Background(), b, "tools", task.ID); err != nil {
		return err
	}
	fmt.Println(task.ID)
	select {}
}

// A hub that is killed in a turn leaves what was known of it.
func TestAKilledHubLeavesTheTraceOfItsTurn(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childDir+"="+dir, childTool+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err := errors.Join(err, cmd.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the child ended before it was killed")
	}
	h := newHub(t, hub.Config{Bus: openBus(t, dir, bus.DurabilityFast), Name: "tools", DataDir: dir}, nil)
	list := traces(t, h, strings.TrimSpace(line), hub.TraceQuery{})
	if len(list) != 1 || list[0].State != hub.TraceInterrupted || list[0].Prompt != "build" || len(list[0].Tools) != 2 {
		t.Fatalf("%+v", list)
	}
	if done, cut := list[0].Tools[0], list[0].Tools[1]; done.Output != "a.txt" || done.EndedAt.IsZero() || cut.Status != runner.ToolRunning || !cut.EndedAt.IsZero() {
		t.Errorf("%+v", list[0].Tools)
	}
}

// talkative is an agent whose traces are as long as the prompt says, in KiB.
func talkative(t *testing.T) *fakeAgent {
	return &fakeAgent{turn: func(_ context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
		size, err := strconv.Atoi(prompt(turn))
		if err != nil {
			t.Error(err)
		}
		h.Event(runner.ToolCall{ID: "1", Name: "Read", Status: runner.ToolCompleted, Output: strings.Repeat("x", size<<10)})
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done"}, nil
	}}
}

// The oldest traces are removed above the size of all, also if the traces are not equally long; their tasks stay.
func TestTheOldestTracesAreRemovedFirst(t *testing.T) {
	b := openBus(t, t.TempDir(), bus.DurabilityFast)
	const total = 64 << 10
	cfg := hub.Config{
		Bus: b, DataDir: t.TempDir(), Trace: hub.TraceConfig{TotalBytes: total, TTL: 48 * time.Hour},
		Agents: []hub.Agent{{Definition: working("a"), Runner: talkative(t)}},
	}
	h := newHub(t, cfg, nil)
	var ids []string
	for i := range 40 {
		size := "1"
		if i >= 30 {
			size = "15" // the mean of all says that more of them fit
		}
		ids = append(ids, string(send(t, h, request("a", size)).ID))
	}
	hub.Trim(t.Context(), h)
	info, err := hub.TraceStream(t.Context(), b, "local")
	if err != nil {
		t.Fatal(err)
	}
	if info.Config.MaxAge != cfg.Trace.TTL || info.State.Bytes > total || info.State.Msgs < 2 {
		t.Errorf("%d traces of %d bytes, kept for %s", info.State.Msgs, info.State.Bytes, info.Config.MaxAge)
	}
	kept := int(info.State.Msgs)
	for i, id := range ids {
		if got := traces(t, h, id, hub.TraceQuery{}); len(got) != 1 || got[0].Derived != (i < len(ids)-kept) || got[0].State != "completed" {
			t.Errorf("task %d of %d, of which %d have a trace: %+v", i, len(ids), kept, got)
		}
	}
	hub.Trim(t.Context(), h)
	if again, err := hub.TraceStream(t.Context(), b, "local"); err != nil || again.State.Msgs != info.State.Msgs {
		t.Errorf("a second round leaves %d traces, %v", again.State.Msgs, err)
	}
}

func TestTheTraceOfARemovedTaskIsRemoved(t *testing.T) {
	b := openBus(t, t.TempDir(), bus.DurabilityFast)
	cfg := hub.Config{Bus: b, DataDir: t.TempDir(), MaxTasks: 1, Agents: []hub.Agent{{Definition: working("a"), Runner: talkative(t)}}}
	h := newHub(t, cfg, nil)
	old, latest := send(t, h, request("a", "1")).ID, send(t, h, request("a", "1")).ID
	hub.Trim(t.Context(), h)
	wait.Eventually(t, "the task is removed", func() bool { // its turn's goroutine may still have it in memory
		_, _, err := h.Traces(t.Context(), old, hub.TraceQuery{})
		return hub.CodeOf(err) == hub.CodeTaskNotFound
	})
	info, err := hub.TraceStream(t.Context(), b, "local")
	if err != nil {
		t.Fatal(err)
	}
	if n := info.State.Subjects["parley.hub.local.trace."+string(latest)+".1"]; info.State.Msgs != 1 || n != 1 {
		t.Errorf("%+v", info.State)
	}
}

// What an agent shows of its tools while it works, and what it was refused, has no secrets, also without traces; nor
// has any event of the hub, not even where the whole title of a question is a command.
func TestToolsAndEventsHaveNoSecrets(t *testing.T) {
	const secret, quoted = "the-config-secret", `in "quotes" and \\`
	b := openBus(t, t.TempDir(), bus.DurabilityFast)
	log, err := events.Open(t.Context(), events.Options{Bus: b, Name: "local"})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close(context.Background()) //nolint:errcheck // the bus ends with the test
	input, err := json.Marshal(map[string]string{"command": "curl " + secret + quoted})
	if err != nil {
		t.Fatal(err)
	}
	call := runner.ToolCall{ID: "1", Title: "curl " + secret, Status: runner.ToolRunning, Input: input, Output: "got " + secret + quoted}
	agent := &fakeAgent{turn: func(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		h.Event(call)
		if _, err := h.Permission(ctx, runner.PermissionRequest{ID: "q", Title: call.Title, Tool: call, Options: []runner.PermissionOption{{ID: "yes", Kind: runner.AllowOnce}}}); err != nil {
			return runner.Outcome{Status: runner.OutcomeCanceled}, nil
		}
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done", Denials: []runner.ToolCall{call}}, nil
	}}
	def := working("a")
	def.Permissions = runner.PermissionsAllow
	h := newHub(t, hub.Config{
		Bus: b, DataDir: t.TempDir(), Events: log, Secrets: []string{secret, quoted}, Trace: hub.TraceConfig{Disabled: true},
		Agents: []hub.Agent{{Definition: def, Runner: agent}, {Definition: working("asks"), Runner: agent}},
	}, nil)
	stream, err := h.SendAndStream(t.Context(), request("a", "go"))
	if err != nil {
		t.Fatal(err)
	}
	if text := jsonOfAll(t, stream.Next); strings.Contains(text, secret) || strings.Contains(text, "quotes") || strings.Count(text, "[redacted]") < 4 {
		t.Errorf("the stream is %s", text)
	}
	asked := send(t, h, request("asks", "go"))
	answer := request("asks", "yes")
	answer.Message.TaskID = asked.ID
	send(t, h, answer)
	var seen string
	wait.Eventually(t, "the answer is an event", func() bool {
		reader, err := log.Subscribe(t.Context(), events.Query{Since: time.Now().Add(-time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		seen = jsonOfAll(t, reader.Next)
		return strings.Contains(seen, string(events.PermissionAnswered))
	})
	if strings.Contains(seen, secret) || !strings.Contains(seen, string(events.PermissionAsked)) || !strings.Contains(seen, string(events.TurnTool)) || !strings.Contains(seen, `"title":"curl [redacted]"`) {
		t.Errorf("the events are %s", seen)
	}
}

// jsonOfAll returns what next returns before its end.
func jsonOfAll[T any](t *testing.T, next func(context.Context) (T, error)) string {
	t.Helper()
	var all []byte
	for {
		v, err := next(t.Context())
		if errors.Is(err, io.EOF) {
			return string(all)
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
}
