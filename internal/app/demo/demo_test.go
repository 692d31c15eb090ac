package demo_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/demo"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/swarm"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("1.0.0")
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == "agent" {
		if err := demo.Play(context.Background(), os.Args[2], time.Millisecond, os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") //nolint:errcheck // without it each process of the tests takes a second to end
	goleak.VerifyTestMain(m, testbed.Leaks()...)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 600 {
		if ok() {
			return
		}
		if !wait.Pause(t.Context(), 100*time.Millisecond) {
			break
		}
	}
	t.Fatalf("never: %s", what)
}

func TestTheDemonstrationsHub(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h, err := demo.Start(t.Context(), demo.Options{Command: []string{exe, "agent"}, Env: map[string]string{"GORACE": "atexit_sleep_ms=0", "GOCOVERDIR": t.TempDir()}, Version: "1.2.3", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	project := h.Project()
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(project); err == nil {
			t.Error("the project is still there")
		}
	})
	if err := h.Perform(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := h.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	eventually(t, "the swarm is done", func() bool {
		list, err := c.Swarms(t.Context())
		return err == nil && len(list) == 1 && list[0].Status == swarm.Completed
	})
	var need dialect.Need
	eventually(t, "venus asks", func() bool {
		found, err := c.Needs(t.Context())
		if err == nil && len(found.Needs) > 0 {
			need = found.Needs[0]
		}
		return need.Kind == dialect.NeedPermission
	})
	answer := dialect.DataPart(map[string]any{"requestId": need.RequestID, "optionId": need.Allow})
	if _, err := c.Send(t.Context(), dialect.SendParams{Message: dialect.Message{Kind: dialect.KindMessage, MessageID: uuid.NewString(), Role: dialect.RoleUser, TaskID: need.TaskID, Parts: []dialect.Part{answer}}}); err != nil {
		t.Fatal(err)
	}
	tasks := ended(t, c)
	for _, want := range []string{"venus completed: The guide is published", "titan failed: titan reported an error: the quota of this month", "mars completed: moons.md has"} {
		if !strings.Contains(strings.Join(tasks, "\n"), want) {
			t.Errorf("no %q in %q", want, tasks)
		}
	}
	if text, err := os.ReadFile(project + "/moons.md"); err != nil || !strings.Contains(string(text), "methane") {
		t.Errorf("mars has written %q, %v", text, err)
	}
}

// ended returns the tasks with their ends, when all have ended.
func ended(t *testing.T, c *client.Client) (list []string) {
	eventually(t, "all tasks have ended", func() bool {
		list = nil
		page, err := c.Tasks(t.Context(), dialect.TasksListParams{Limit: 100, IncludeArtifacts: true})
		if err != nil {
			return false
		}
		for _, task := range page.Tasks {
			agent, _ := task.Metadata[hub.MetaAgent].(string)
			if task.Status.State != dialect.StateCompleted && task.Status.State != dialect.StateFailed {
				return false
			}
			said := task.Text()
			if task.Status.State == dialect.StateFailed {
				said = task.Status.Message.Text()
			}
			list = append(list, agent+" "+string(task.Status.State)+": "+said)
		}
		return true
	})
	return list
}

// An agent plays what the protocol asks of it, also what it does not know, and ends with its input.
func TestAnAgentPlays(t *testing.T) {
	in, hubEnd := io.Pipe()
	agentOut, out := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- demo.Play(t.Context(), "venus", time.Millisecond, in, out) }()
	answers := json.NewDecoder(agentOut)
	next := func() string {
		var raw json.RawMessage
		if err := answers.Decode(&raw); err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	until := func(part string) string {
		for {
			if line := next(); strings.Contains(line, part) {
				return line
			}
		}
	}
	say := func(line string) {
		if _, err := io.Copy(hubEnd, bytes.NewReader([]byte(line+"\n"))); err != nil {
			t.Fatal(err)
		}
	}
	say("nonsense")
	say(`{"jsonrpc":"2.0","id":1,"method":"initialize"}`)
	until(`"protocolVersion":1`)
	say(`{"jsonrpc":"2.0","id":2,"method":"session/set_mode"}`)
	until(`-32601`)
	say(`{"jsonrpc":"2.0","id":3,"method":"session/new","params":{"cwd":"` + strings.ReplaceAll(t.TempDir(), `\`, `/`) + `"}}`)
	until(`"sessionId"`)
	say(`{"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{"prompt":[{"text":"Publish the guide"}]}}`)
	until("session/request_permission")
	say(`{"jsonrpc":"2.0","id":"venus-2","result":{"outcome":{"outcome":"selected","optionId":"deny"}}}`)
	until("leave")
	until(`"stopReason":"end_turn"`)
	say(`{"jsonrpc":"2.0","id":5,"method":"session/prompt","params":{"prompt":[{"text":"Publish the guide"}]}}`)
	until("session/request_permission")
	say(`{"jsonrpc":"2.0","method":"session/cancel"}`)
	until(`"stopReason":"cancelled"`)
	say(`{"jsonrpc":"2.0","id":6,"method":"session/prompt","params":{"prompt":[{"text":"hello"}]}}`)
	until("demonstration:")
	until(`"stopReason":"end_turn"`)
	if err := hubEnd.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Without a directory for its files, or with a canceled context, there is no hub, and nothing is left.
func TestTheDemonstrationNeedsADirectory(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir+"/missing")
	t.Setenv("TMP", dir+"/missing")
	if _, err := demo.Start(t.Context(), demo.Options{Command: []string{"x"}}); err == nil {
		t.Error("it started")
	}
	t.Setenv("TMPDIR", dir)
	t.Setenv("TMP", dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := demo.Start(ctx, demo.Options{Command: []string{"x"}}); err == nil {
		t.Error("it started")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

func TestAnAgentFails(t *testing.T) {
	var out bytes.Buffer
	in := strings.NewReader(`{"id":1,"method":"session/new","params":{"cwd":"/there/is/no/such/directory"}}
{"id":2,"method":"session/prompt","params":{"prompt":[{"text":"count"}]}}
`)
	if err := demo.Play(t.Context(), "titan", 0, in, &out); err != nil || !strings.Contains(out.String(), "wc -w") {
		t.Errorf("%s, %v", out.String(), err)
	}
}
