//go:build unix

package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/config"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

var update = flag.Bool("update", false, "write the golden files")

// outcome is the exit code and the output of a command.
type outcome struct {
	code           int
	stdout, stderr string
}

// run runs a command line in this process.
func (p setup) run(t *testing.T, args ...string) outcome {
	t.Helper()
	return p.runWith(t, strings.NewReader(""), nil, args...)
}

func (p setup) runWith(t *testing.T, stdin io.Reader, signals <-chan os.Signal, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := cli.Run(context.Background(), "parley", p.args(args...), stdin, &stdout, &stderr, nil, signals)
	return outcome{code, p.short(stdout.String()), p.short(stderr.String())}
}

// short removes the flags that name the hub from the commands that the output recommends.
func (p setup) short(text string) string {
	text = strings.ReplaceAll(text, "parley --socket "+p.socket+" --data-dir "+p.dir+" ", "parley ")
	return strings.ReplaceAll(text, "parley --socket "+p.socket+" doc", "parley doc")
}

// hub runs a hub in this process.
func (p setup) hub(t *testing.T) {
	t.Helper()
	cfg, err := config.Load(config.Options{
		LookupEnv: func(string) (string, bool) { return "", false },
		Overrides: []config.Override{{Key: "dataDir", Value: p.dir}, {Key: "socket.path", Value: p.socket}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- daemon.Run(ctx, cfg, daemon.Options{
			Version: "1.0.0-test", Logger: daemon.NewLogger(io.Discard, cfg.Logging, false),
			Ready: func(daemon.Info) { close(ready) },
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the hub: %v", err)
		}
	})
}

func newHub(t *testing.T) setup {
	t.Helper()
	p := newSetup(t)
	p.hub(t)
	return p
}

func decode[T any](t *testing.T, o outcome) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(o.stdout), &v); err != nil {
		t.Fatalf("%v in %q, stderr %q", err, o.stdout, o.stderr)
	}
	return v
}

func want(t *testing.T, o outcome, code int, stdout string) {
	t.Helper()
	if o.code != code || !strings.Contains(o.stdout, stdout) {
		t.Errorf("exit %d, want %d\nstdout %q, want %q in it\nstderr %q", o.code, code, o.stdout, stdout, o.stderr)
	}
}

// HUB-CMD-SEND, HUB-CONFIG-DEFAULTS: stdout has only the answer.
func TestSendPrintsTheAnswer(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	if o := p.run(t, "send", "echo", "hello"); o != (outcome{0, "hello\n", ""}) {
		t.Errorf("got %+v", o)
	}
	if o := p.run(t, "send", "words", "a b c", "--stream"); o.code != 0 || strings.TrimSpace(o.stdout) != "a b c" {
		t.Errorf("got %+v", o)
	}
	o := p.runWith(t, strings.NewReader("from a pipe\n"), nil, "send", "echo", "-")
	want(t, o, 0, "from a pipe\n")
}

// volatile matches the values in JSON output that differ from run to run.
var volatile = regexp.MustCompile(`"[0-9a-f]{8}-[0-9a-f-]{27}"|"20\d\d-[^"]+Z"|"(uptime|pid|latencyMs|durationMs)":\d+|"(version|path|projectDirectory)":"[^"]*"`)

func golden(t *testing.T, name, text string) {
	t.Helper()
	text = volatile.ReplaceAllStringFunc(text, func(s string) string {
		if i := strings.Index(s, `":`); i > 0 {
			return s[:i+2] + `"…"`
		}
		return `"…"`
	})
	var b strings.Builder
	for line := range strings.Lines(text) {
		var out bytes.Buffer
		if err := json.Indent(&out, []byte(line), "", "  "); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		b.Write(out.Bytes())
	}
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	wanted, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(wanted), b.String()); diff != "" {
		t.Errorf("%s differs (run the test with -update if that is meant):\n%s", path, diff)
	}
}

// docs/json.md specifies the JSON output.
// HUB-CMD-GLOBAL, HUB-CMD-STATUS, HUB-CMD-AGENTS, HUB-CMD-TASKS.
func TestJSONOutput(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	jsonArgs := func(args ...string) []string { return append([]string{"--format", "json"}, args...) }
	for _, tt := range []struct {
		name string
		code int
		args []string
	}{
		{"send", 0, []string{"send", "echo", "hi", "--context", "c1"}},
		{"send-stream", 0, []string{"send", "echo", "hi", "--stream"}},
		{"send-failed", 5, []string{"send", "fails", "hi"}},
		{"tasks", 0, []string{"tasks", "--context", "c1"}},
		{"contexts", 0, []string{"contexts", "--limit", "1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := p.run(t, jsonArgs(tt.args...)...)
			if o.code != tt.code {
				t.Errorf("exit %d, stderr %q", o.code, o.stderr)
			}
			golden(t, tt.name, o.stdout)
		})
	}
	status := decode[dialect.Status](t, p.run(t, jsonArgs("status")...))
	if status.Version != "1.0.0-test" || status.Total != len(status.Agents) || status.Total == 0 || status.PID != os.Getpid() || !status.Bus.Embedded {
		t.Errorf("status %+v", status)
	}
	agents := decode[[]dialect.Agent](t, p.run(t, jsonArgs("agents", "--health")...))
	if i := slices.IndexFunc(agents, func(a dialect.Agent) bool { return a.ID == "echo" }); i < 0 || agents[i].Health == nil {
		t.Errorf("agents %+v", agents)
	}
	for _, name := range []string{"error-not-found", "error-usage"} {
		args := map[string][]string{"error-not-found": {"send", "nobody", "hi"}, "error-usage": {"send", "echo"}}[name]
		golden(t, name, p.run(t, jsonArgs(args...)...).stderr)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	for _, tt := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{[]string{"send", "nobody", "hi"}, 4, "parley agents"},
		{[]string{"task", "show", "01a1fc6c-0000-7000-8000-000000000000"}, 4, "parley tasks"},
		{[]string{"send", "fails", "hi"}, 5, "failed:"},
		{[]string{"send", "missing", "hi"}, 9, "magic"},
		{[]string{"send", "hangs", "hi", "--timeout", "50"}, 8, "failed:"},
		{[]string{"send", "asks", "hi"}, 6, "send --task"},
		{[]string{"send", "echo"}, 2, "missing MESSAGE"},
		{[]string{"send", "echo", "a", "b"}, 2, "quotes"},
		{[]string{"send", "echo", " "}, 2, "empty"},
		{[]string{"send", "echo", "\xff"}, 2, "UTF-8"},
		{[]string{"send", "echo", "a", "--timeout", "-1"}, 2, "negative"},
		{[]string{"send", "echo", "a", "--no-such"}, 2, "unknown flag"},
		{[]string{"send", "echo", "a", "--context", strings.Repeat("x", 5000)}, 2, "contextId"},
		{[]string{"tasks", "--state", "done"}, 2, "completed"},
		{[]string{"tasks", "--limit", "0"}, 2, "between 1 and 1000"},
		{[]string{"contexts", "--limit", "2000"}, 2, "between 1 and 1000"},
		{[]string{"status", "x"}, 2, "unexpected argument"},
		{[]string{"stauts"}, 2, "did you mean start or status?"},
		{[]string{"frob"}, 2, "list them with: parley --help"},
		{[]string{"send", "echo", "a", "--dir", "/no/such/directory"}, 2, "check the path after --dir"},
		{[]string{"task", "shwo"}, 2, "show, follow and cancel"},
		{[]string{"config", "x"}, 2, "show, validate and path"},
		{[]string{"--format", "xml", "status"}, 2, "pretty, json"},
		{[]string{"start", "--http-port", "99999"}, 2, "not a port"},
		{[]string{"start", "--durability", "none"}, 2, "commit, always, fast"},
	} {
		t.Run(strings.Join(tt.args, " ")[:min(40, len(strings.Join(tt.args, " ")))], func(t *testing.T) {
			o := p.run(t, tt.args...)
			if o.code != tt.code || !strings.Contains(o.stderr, tt.stderr) {
				t.Errorf("exit %d, want %d; stderr %q, want %q in it", o.code, tt.code, o.stderr, tt.stderr)
			}
		})
	}
}

func TestWithoutAHub(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	for _, args := range [][]string{
		{"status"}, {"agents"}, {"tasks"}, {"contexts"}, {"task", "show", "x"}, {"send", "echo", "hi", "--no-start"},
	} {
		o := p.run(t, args...)
		if o.code != 3 || !strings.Contains(o.stderr, "start it with: parley start") {
			t.Errorf("%q: %+v", args, o)
		}
	}
	want(t, p.run(t, "stop"), 0, "No hub is running.")
}

// A command that an error message recommends names the same hub.
func TestRemediesCanBeCopied(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	var stderr bytes.Buffer
	cli.Run(t.Context(), "parley", []string{"--socket", p.dir + "/it's", "status"}, strings.NewReader(""), io.Discard, &stderr, nil, nil)
	if want := `parley --socket '` + p.dir + `/it'\''s' start`; !strings.Contains(stderr.String(), want) {
		t.Errorf("got %q, want %q in it", stderr.String(), want)
	}
}

func TestContextIsContinued(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	first := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "echo", "one", "--context", "talk"))
	second := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "echo", "two", "--context", "talk"))
	if first.ContextID != "talk" || second.ContextID != "talk" || first.ID == second.ID {
		t.Errorf("tasks %s in %s and %s in %s", first.ID, first.ContextID, second.ID, second.ContextID)
	}
	page := decode[dialect.TaskPage](t, p.run(t, "--format", "json", "tasks", "--context", "talk", "--state", "completed", "--limit", "1"))
	if len(page.Tasks) != 1 || page.Total != 2 || page.Tasks[0].ID != second.ID {
		t.Errorf("page %+v", page)
	}
	want(t, p.run(t, "tasks", "--limit", "1"), 0, "completed")
	want(t, p.run(t, "contexts"), 0, "talk")
	want(t, p.run(t, "task", "show", first.ID), 0, "you\n  one")
	want(t, p.run(t, "task", "follow", first.ID), 0, "one")
}

func TestDetachedTaskIsFollowedAndCanceled(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	o := p.run(t, "send", "--detach", "hangs", "hi")
	want(t, o, 0, "")
	id := strings.TrimSpace(o.stdout)
	followed := make(chan outcome, 1)
	go func() { followed <- p.run(t, "task", "follow", id) }()
	want(t, p.run(t, "task", "cancel", "--keep-delegated", id), 0, "is canceled")
	if o := <-followed; o.code != 5 {
		t.Errorf("follow: %+v", o)
	}
	if o := p.run(t, "task", "cancel", id); o.code != 1 || !strings.Contains(o.stderr, "error:") {
		t.Errorf("the second cancel: %+v", o)
	}
}

func TestQuestionIsAnsweredByACommand(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	o := p.run(t, "--format", "json", "send", "asks", "hi")
	task := decode[dialect.Task](t, o)
	if o.code != 6 || task.Status.State != dialect.StateInputRequired {
		t.Fatalf("got %+v", o)
	}
	shown := p.run(t, "task", "show", task.ID)
	if !strings.Contains(shown.stderr, "send --task "+task.ID+" yes-once") || !strings.Contains(shown.stderr, "rm -rf build\n") {
		t.Errorf("the question is shown as %q", shown.stderr)
	}
	want(t, p.run(t, "send", "--task", task.ID, "yes-once"), 0, "you said yes-once")
}

func TestAMessageToAnEndedTaskSaysHowItsConversationGoesOn(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	task := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "echo", "hi"))
	for _, more := range [][]string{nil, {"--detach"}} {
		o := p.run(t, append([]string{"send", "--task", task.ID, "again"}, more...)...)
		if o.code != 1 || !strings.Contains(o.stderr, "has ended (completed)") || !strings.Contains(o.stderr, "send echo MESSAGE --context "+task.ContextID+"\n") {
			t.Errorf("%q: %+v", more, o)
		}
	}
}

// Output of agents cannot control the terminal.
func TestAgentsCannotControlTheTerminal(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	o := p.run(t, "send", "hostile", "hi")
	want(t, o, 0, "red alert done.\n")
	if strings.ContainsAny(o.stdout, "\x1b\x07\u202e") {
		t.Errorf("got %q", o.stdout)
	}
	if o := p.run(t, "tasks"); strings.ContainsAny(o.stdout, "\x1b\x07\u202e") {
		t.Errorf("tasks: %q", o.stdout)
	}
}

// The first Ctrl-C cancels the task and waits for its end; task follow only stops following.
func TestInterrupts(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	signals := make(chan os.Signal, 2)
	out := newWatched("thinking")
	done := make(chan int, 1)
	go func() {
		done <- cli.Run(t.Context(), "parley", p.args("send", "--stream", "hangs", "hi"), strings.NewReader(""), out, io.Discard, nil, signals)
	}()
	<-out.seen
	signals <- os.Interrupt
	if code := <-done; code != 5 {
		t.Errorf("send: exit %d, want 5: the task is canceled", code)
	}
	want(t, p.run(t, "tasks", "--state", "canceled"), 0, "hangs")

	id := strings.TrimSpace(p.run(t, "send", "--detach", "hangs", "hi").stdout)
	out = newWatched("thinking")
	go func() {
		done <- cli.Run(t.Context(), "parley", p.args("task", "follow", id), strings.NewReader(""), out, io.Discard, nil, signals)
	}()
	<-out.seen
	signals <- os.Interrupt
	if code := <-done; code != 130 {
		t.Errorf("follow: exit %d, want 130", code)
	}
	want(t, p.run(t, "tasks", "--state", "working"), 0, cli.ShortID(id))
	want(t, p.run(t, "task", "cancel", id), 0, "canceled")
}

// watched is a writer that closes seen once word has been written.
type watched struct {
	mu   sync.Mutex
	text bytes.Buffer
	word string
	seen chan struct{}
}

func newWatched(word string) *watched { return &watched{word: word, seen: make(chan struct{})} }

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	had := strings.Contains(w.text.String(), w.word)
	w.text.Write(p)
	if !had && strings.Contains(w.text.String(), w.word) {
		close(w.seen)
	}
	return len(p), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

func TestPrettyStatusAndAgents(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	want(t, p.run(t, "status"), 0, "The hub is running: 1.0.0-test")
	want(t, p.run(t, "status"), 0, "durability fast: a power cut can lose the last seconds")
	want(t, p.run(t, "agents"), 0, "Answers with the message itself")
	want(t, p.run(t, "agents", "--health"), 0, "HEALTH")
	want(t, p.run(t, "agents", "--kind", "session"), 0, "parley install")
	if o := p.run(t, "agents", "rename", "echo", ""); o.code != 2 || !strings.Contains(o.stderr, "--reset") {
		t.Errorf("an empty name: %+v", o)
	}
	want(t, p.run(t, "--verbose", "agents"), 0, "echo")
}

func TestConfigCommands(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	want(t, p.run(t, "config", "path"), 0, p.dir+"/config.yaml")
	want(t, p.run(t, "config", "validate"), 0, "is valid.")
	want(t, p.run(t, "config", "show"), 0, p.dir+"/config.yaml:3")
	want(t, p.run(t, "--format", "json", "config", "path"), 0, `"found":true`)
	want(t, p.run(t, "--format", "json", "config", "validate"), 0, `"warnings":[]`)
	want(t, p.run(t, "--format", "json", "config", "show"), 0, `{"configuration":"hub","key":"dataDir","value":"`+p.dir+`","origin":"flag","source":"--data-dir"}`)
	want(t, p.run(t, "config"), 0, "Usage:")
	if o := p.run(t, "config", "show", "hubb"); o.code != 2 || !strings.Contains(o.stderr, `"hubb" is not one of hub, mcp`) {
		t.Errorf("got %+v", o)
	}
	if o := p.run(t, "config", "show", "hub", "mcp"); o.code != 2 || !strings.Contains(o.stderr, `unexpected argument "mcp"`) {
		t.Errorf("got %+v", o)
	}
	if err := os.WriteFile(p.dir+"/config.yaml", []byte("htpp: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := p.run(t, "config", "validate")
	if o.code != 2 || !strings.Contains(o.stderr, "config.yaml:1:1: htpp: unknown key; did you mean http?") {
		t.Errorf("got %+v", o)
	}
}

// project creates a directory, changes to it, and returns it. HOME is empty, and the environment has no settings.
func project(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range mcpconfig.Variables() {
		t.Setenv(v.Name, "")
	}
	t.Setenv("MCP_CONFIG_PATH", "")
	t.Setenv("MCP_PROJECT_PATH", "")
	t.Setenv("HOME", filepath.Join(dir, "home"))
	project := filepath.Join(dir, "app")
	if err := os.Mkdir(project, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(project)
	return project
}

func TestConfigOfTheProject(t *testing.T) {
	p, dir := newSetup(t), project(t)
	want(t, p.run(t, "config", "validate"), 0, "There is no .mcp-config.json in "+dir+" or above; the default channels are in force.")
	want(t, p.run(t, "config", "path", "mcp"), 0, dir+"/.mcp-config.json\n")
	want(t, p.run(t, "--format", "json", "config", "path", "mcp"), 0, `"found":false`)
	if err := os.WriteFile(dir+"/.mcp-config.json", []byte("{\n \"namespace\": \"my-project\",\n \"natsUrl\": \"nats://u:hunter2@h\"\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LOG_LEVEL", "debug")
	o := p.run(t, "config", "show")
	for _, text := range []string{"The hub\n", "config.yaml:3", "The MCP server in " + dir, "nats://(hidden)@h", "environment (LOG_LEVEL)", `"my-project"`} {
		want(t, o, 0, text)
	}
	if o := p.run(t, "config", "show", "mcp"); strings.Contains(o.stdout, "dataDir") || strings.Contains(o.stdout, "hunter2") {
		t.Errorf("got %+v", o)
	}
	o = p.run(t, "--format", "json", "config", "show", "mcp")
	want(t, o, 0, `{"configuration":"mcp","key":"namespace","value":"my-project","origin":"project","source":"`+dir+`/.mcp-config.json","line":2}`)
	want(t, o, 0, `{"configuration":"mcp","key":"logging.level","value":"DEBUG","origin":"environment","source":"LOG_LEVEL"}`)
	want(t, o, 0, `{"configuration":"mcp","key":"channels[2]","value":{"name":"errors","description":"Error reporting and troubleshooting","maxMessages":5000,"maxBytes":10485760,"maxAge":"48h"},"origin":"default"}`)
	want(t, p.run(t, "config", "validate", "mcp"), 0, "The project is "+dir+", its namespace my-project, its channels roadmap, parallel-work, errors.")
	want(t, p.run(t, "--format", "json", "config", "validate"), 0, `"mcp":{"projectPath":"`+dir+`","projectId":"`)
	want(t, p.run(t, "config", "path", "mcp"), 0, dir+"/.mcp-config.json\n")
}

// REQ-USE-007, REQ-DESIGN-CONFIG-004: all errors of both files are reported together, with their positions.
func TestConfigValidateReportsEveryError(t *testing.T) {
	p, dir := newSetup(t), project(t)
	if err := errors.Join(
		os.WriteFile(p.dir+"/config.yaml", []byte("htpp: {}\n"), 0o600),
		os.WriteFile(dir+"/.mcp-config.json", []byte("{\n \"chanels\": []\n}"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"validate", "show"} {
		o := p.run(t, "config", command)
		if o.code != 2 || !strings.Contains(o.stderr, "config.yaml:1:1: htpp") || !strings.Contains(o.stderr, dir+`/.mcp-config.json:2:2: chanels: unknown key; did you mean "channels"?`) {
			t.Errorf("%s: got %+v", command, o)
		}
	}
	if err := os.WriteFile(dir+"/.mcp-config.json", []byte("{\"\\u001b]0;title\\u0007\": 1, \"x\\ny\": 2}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"config", "validate", "mcp"}, {"doctor"}} {
		if o := p.run(t, command...); strings.ContainsAny(o.stdout+o.stderr, "\x1b\a") || strings.Contains(o.stdout+o.stderr, "x\ny") {
			t.Errorf("a file's content controls the terminal: %+v", o)
		}
	}
	if o := p.run(t, "config", "validate", "mcp"); o.code != 2 || strings.Contains(o.stderr, "htpp") || !strings.Contains(o.stderr, "config validate") {
		t.Errorf("got %+v", o)
	}
}

func TestDoctorNeedsNoHub(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	o := p.run(t, "doctor")
	want(t, o, 0, "is not running; start it with: parley start")
	want(t, o, 0, "→ install it with: magic")
	if err := os.WriteFile(p.dir+"/config.yaml", []byte("htpp: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o = p.run(t, "--format", "json", "doctor")
	if o.code != 1 || !strings.Contains(o.stdout, `"level":"failure"`) {
		t.Errorf("got %+v", o)
	}
}

func TestHelpVersionManAndCompletion(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	want(t, p.run(t), 0, "coding agents of any\nvendor")
	want(t, p.run(t, "task"), 0, "Usage:")
	want(t, p.run(t, "version"), 0, "parley ")
	want(t, p.run(t, "--format", "json", "version"), 0, `"go":"`+runtime.Version())
	want(t, p.run(t, "completion", "bash"), 0, "bash completion")
	want(t, p.run(t, "__complete", "send", ""), 0, "echo\tEcho")
	want(t, p.run(t, "__complete", "tasks", "--state", ""), 0, "completed")
	dir := t.TempDir()
	want(t, p.run(t, "man", dir), 0, "pages")
	page, err := os.ReadFile(filepath.Join(dir, "parley-send.1"))
	if err != nil || !bytes.Contains(page, []byte("AGENT MESSAGE")) {
		t.Errorf("%v: %.200s", err, page)
	}
	if _, err := os.Stat(filepath.Join(dir, "parley-conformance.1")); err == nil {
		t.Error("the hidden command has a manual page")
	}
	if o := p.run(t, "--help"); strings.Contains(o.stdout, "conformance") {
		t.Error("the hidden command is in the help")
	}
}

// process runs this test binary as parley.
func (p setup) process(t *testing.T, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := p.command(t, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// command returns the command that runs this test binary as parley.
func (p setup) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, p.args(args...)...)
	cmd.Env = append(os.Environ(), beParley+"=parley", "HOME="+p.dir, "GOCOVERDIR="+t.TempDir())
	return cmd
}

// stopAtEnd stops the hub when the test ends.
func (p setup) stopAtEnd(t *testing.T) {
	t.Cleanup(func() {
		if o := p.run(t, "stop"); o.code != 0 {
			t.Errorf("stop: %+v", o)
		}
	})
}

// HUB-CMD-START, HUB-CMD-STOP, HUB-SOCKET-PATH, HUB-SERVER-SHUTDOWN.
func TestHubRunsInTheBackground(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.stopAtEnd(t)
	want(t, p.process(t, "start"), 0, "The hub is running (process ")
	again := p.process(t, "start")
	want(t, again, 0, "The hub is already running (process ")
	want(t, p.run(t, "--format", "json", "start"), 0, `"alreadyRunning":true`)
	want(t, p.process(t, "start", "--foreground"), 0, "The hub is already running")
	want(t, p.run(t, "send", "echo", "hello", "--no-start"), 0, "hello")
	want(t, p.run(t, "doctor"), 0, "is running (process ")
	info, err := daemon.Read(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	want(t, p.run(t, "stop"), 0, "has stopped.")
	// A zombie has no command line.
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", info.PID)); err == nil && len(line) > 0 {
		t.Errorf("stop returned before the process had ended: %q", line)
	}
	for _, file := range []string{p.socket, p.dir + "/hub.json"} {
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is left", file)
		}
	}
	want(t, p.run(t, "stop"), 0, "No hub is running.")
}

func TestSendStartsTheHub(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.stopAtEnd(t)
	o := p.process(t, "send", "echo", "hello")
	if o.code != 0 || o.stdout != "hello\n" || !strings.Contains(o.stderr, "started the hub in the background") {
		t.Errorf("got %+v", o)
	}
}

func TestManyStartsMakeOneHub(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.stopAtEnd(t)
	outcomes := make(chan outcome, 4)
	for range cap(outcomes) {
		go func() { outcomes <- p.process(t, "--format", "json", "start") }()
	}
	pids := map[int]bool{}
	fresh := 0
	for range cap(outcomes) {
		o := <-outcomes
		started := decode[struct {
			PID            int
			AlreadyRunning bool
		}](t, o)
		pids[started.PID] = true
		if !started.AlreadyRunning {
			fresh++
		}
	}
	if len(pids) != 1 || fresh != 1 {
		t.Errorf("processes %v, %d of the starts report that they started the hub", pids, fresh)
	}
}

func TestKilledHubIsReplacedAndFinishedTasksStay(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.stopAtEnd(t)
	want(t, p.process(t, "start"), 0, "The hub is running")
	done := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "echo", "kept"))
	cut := strings.TrimSpace(p.run(t, "send", "--detach", "hangs", "hi").stdout)
	info, err := daemon.Read(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(info.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	o := p.process(t, "start")
	want(t, o, 0, "The hub is running (process ")
	want(t, p.run(t, "task", "show", done.ID), 0, "completed")
	want(t, p.run(t, "task", "show", cut), 0, "failed")
}

func TestStartSaysWhyItFails(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	if err := os.Mkdir(p.socket, 0o700); err != nil { // a directory at the socket's path
		t.Fatal(err)
	}
	o := p.process(t, "start")
	if o.code != 1 || !strings.Contains(o.stderr, "hub.sock") {
		t.Errorf("got %+v", o)
	}
	if err := os.WriteFile(p.dir+"/config.yaml", []byte("htpp: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if o := p.process(t, "start"); o.code != 2 || !strings.Contains(o.stderr, "did you mean http?") {
		t.Errorf("got %+v", o)
	}
}

func TestForegroundHubStopsOnASignal(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	signals := make(chan os.Signal, 1)
	out := newWatched("Ctrl-C stops it")
	done := make(chan int, 1)
	go func() {
		done <- cli.Run(context.Background(), "a2a-hub", p.args("start", "--foreground", "--no-http"), strings.NewReader(""), out, io.Discard, nil, signals)
	}()
	<-out.seen
	want(t, p.run(t, "send", "echo", "hi"), 0, "hi")
	signals <- syscall.SIGTERM
	if code := <-done; code != 0 {
		t.Errorf("exit %d", code)
	}
}

// A hub is a data directory and a socket: a command that names one of another hub does nothing to that hub.
func TestACommandActsOnlyOnTheHubThatItNames(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	free := filepath.Join(filepath.Dir(p.socket), "free.sock")
	for name, test := range map[string]struct {
		named  setup
		args   []string
		exit   int
		stderr []string
	}{
		"stop, another data directory":   {setup{t.TempDir(), p.socket}, []string{"stop"}, 1, []string{p.socket, "--data-dir " + p.dir}},
		"status, another data directory": {setup{t.TempDir(), p.socket}, []string{"status"}, 1, []string{p.socket, "--data-dir " + p.dir}},
		"send, another data directory":   {setup{t.TempDir(), p.socket}, []string{"send", "echo", "hi"}, 1, []string{p.socket, "--data-dir " + p.dir}},
		"stop, another socket":           {setup{p.dir, free}, []string{"stop"}, 1, []string{free, "--socket " + p.socket}},
		"tasks, another socket":          {setup{p.dir, free}, []string{"tasks"}, 1, []string{free, "--socket " + p.socket}},
		"start, another socket":          {setup{p.dir, free}, []string{"start"}, 1, []string{free, "--socket " + p.socket}},
		"stop, only a free socket":       {setup{"", free}, []string{"stop"}, 0, nil},
		"status, only a free socket":     {setup{"", free}, []string{"status"}, 3, []string{"no hub is running on " + free}},
	} {
		o := test.named.run(t, test.args...)
		if o.code != test.exit {
			t.Errorf("%s: %+v, want exit %d", name, o, test.exit)
		}
		for _, text := range test.stderr {
			if !strings.Contains(o.stderr, text) {
				t.Errorf("%s: %q is not in %q", name, text, o.stderr)
			}
		}
	}
	want(t, setup{"", p.socket}.run(t, "send", "echo", "hi"), 0, "hi")
	want(t, setup{"", p.socket}.run(t, "stop"), 0, "has stopped.")
}

// Commands that read or change files of a hub do so with the hub at the socket, also for a user without a home.
func TestASocketAloneNamesAHubWithItsFiles(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	project := t.TempDir()
	home := t.TempDir()
	at := func(args ...string) outcome {
		var stdout, stderr bytes.Buffer
		cmd := setup{"", p.socket}.command(t, args...)
		cmd.Env = append(cmd.Env, "HOME="+home)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // the exit code says it
		return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	}
	want(t, at("trust", project), 0, "Agents may work in")
	if dirs, err := config.NewTrust(p.dir).Dirs(); err != nil || !slices.Contains(dirs, realPath(t, project)) {
		t.Errorf("the hub at the socket trusts %v, %v", dirs, err)
	}
	want(t, at("config", "path"), 0, filepath.Join(p.dir, "config.yaml"))
	want(t, at("doctor"), 0, p.dir+" is private")
	if o := at("start"); o.code != 0 || !strings.Contains(o.stdout, "already running") {
		t.Errorf("start: %+v", o)
	}
	if o := at("logs"); !strings.Contains(o.stderr, p.dir) {
		t.Errorf("logs, of a hub that writes none: %+v", o)
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) > 0 {
		t.Errorf("a command has used the data directory at home: %v, %v", entries, err)
	}
	home = ""
	want(t, at("status"), 0, "The hub is running")
}

func realPath(t *testing.T, path string) string {
	t.Helper()
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return real
}

// A variable of a script that is not set must not select the user's main hub, or trust the current directory.
func TestPathsThatAreEmptyAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--data-dir", "", "stop"}, {"--socket=", "stop"}, {"--config", "", "status"}, {"send", "--dir", "", "echo", "hi"}, {"trust", ""},
	} {
		p := newSetup(t)
		if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--socket") || arg == "--data-dir" }) {
			p = setup{}
		}
		if o := p.run(t, args...); o.code != 2 || !strings.Contains(o.stderr, "is empty") {
			t.Errorf("%q: %+v", args, o)
		}
	}
}

func TestAHubStartsOnAnotherPortIfItsOwnIsTaken(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	p := newSetup(t)
	file := filepath.Join(p.dir, "config.yaml")
	if err := errors.Join(os.MkdirAll(p.dir, 0o700), os.WriteFile(file, []byte("bus: {durability: fast}\nhttp: {port: "+port+"}\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if o := p.process(t, "start", "--http-port", port); o.code != 1 || !strings.Contains(o.stderr, port) || !strings.Contains(o.stderr, "--http-port") {
		t.Errorf("a taken port that the command names: %+v", o)
	}
	if err := os.WriteFile(file, []byte("bus: {durability: fast}\nhttp: {port: "+port+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	notice := "port " + port + " is in use"
	if o := p.process(t, "send", "echo", "hi"); o.code != 0 || o.stdout != "hi\n" || !strings.Contains(o.stderr, notice) {
		t.Errorf("send: %+v", o)
	}
	defer p.run(t, "stop")
	if o := p.process(t, "send", "echo", "hi"); strings.Contains(o.stderr, notice) {
		t.Errorf("it is said again: %+v", o)
	}
	var status struct {
		DataDir, Socket, HTTP, Version string
		Notices                        []string
	}
	o := p.run(t, "--format", "json", "status")
	if err := json.Unmarshal([]byte(o.stdout), &status); err != nil {
		t.Fatal(err)
	}
	if status.DataDir != p.dir || status.Socket != p.socket || status.HTTP == "" || strings.HasSuffix(status.HTTP, ":"+port) || len(status.Notices) != 1 {
		t.Errorf("status: %+v", status)
	}
	if o := p.run(t, "doctor"); !strings.Contains(o.stdout, notice) {
		t.Errorf("doctor: %+v", o)
	}
}

// The programs are one: only what runs without a command differs.
func TestEveryNameHasEveryCommand(t *testing.T) {
	names := func(program string) (all []string) {
		for _, c := range cli.Command(program).Commands() {
			all = append(all, c.Name())
		}
		return all
	}
	for _, program := range []string{"a2a-hub", cli.MCPServer} {
		if diff := cmp.Diff(names("parley"), names(program)); diff != "" {
			t.Errorf("%s: %s", program, diff)
		}
	}
}

func TestConformanceServesTheKitsAgent(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	signals := make(chan os.Signal, 1)
	out := newWatched("http://127.0.0.1:")
	done := make(chan int, 1)
	go func() {
		done <- cli.Run(context.Background(), "parley", p.args("conformance", "--http-port", "0"), strings.NewReader(""), out, io.Discard, nil, signals)
	}()
	<-out.seen
	signals <- os.Interrupt
	if code := <-done; code != 0 {
		t.Errorf("exit %d", code)
	}
}
