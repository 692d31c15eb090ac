package runner_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// fakeEnv names the fake program that the test binary runs as.
const fakeEnv = "RUNNER_TEST_FAKE"

func TestMain(m *testing.M) {
	if name := os.Getenv(fakeEnv); name != "" {
		os.Exit(fake(name, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// fake runs the fake program called name and returns its exit code.
func fake(name string, args []string) int {
	switch name {
	case "replay": // prints a recorded output and ends with its exit code, whatever the arguments
		return replay()
	case "say": // prints its arguments and input
		in, _ := io.ReadAll(os.Stdin)
		fmt.Printf("args=%q stdin=%q", args, in)
	case "hang":
		fmt.Println(os.Getenv("FAKE_FIRST"))
		select {}
	case "polite": // ends with 0 at the first signal, without further output
		ch := make(chan os.Signal, 1)
		signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
		fmt.Println(os.Getenv("FAKE_FIRST"))
		<-ch
	case "deaf": // does not read its input, and succeeds
		fmt.Print("did not listen")
	case "retry": // prints retries until it is ended
		for i := 0; ; i++ {
			if _, err := fmt.Println(strings.ReplaceAll(os.Getenv("FAKE_FIRST"), "N", strconv.Itoa(i))); err != nil {
				return 1
			}
			time.Sleep(time.Millisecond)
		}
	case "sessions":
		return sessions(args)
	case "long":
		fmt.Println(`{"type":"text","text":"` + strings.Repeat("z", 1<<20) + `"}`)
		fmt.Println(`{"type":"text","text":"short"}`)
		if slices.Contains(args, "done") {
			fmt.Println(`{"type":"done"}`)
		}
	case "utf8": // writes a character of several bytes in two pieces
		for _, b := range []byte("zwölf€") {
			_, _ = os.Stdout.Write([]byte{b})
			time.Sleep(time.Millisecond)
		}
	case "probe":
		return probe(args)
	}
	return 0
}

func replay() int {
	_, _ = io.Copy(io.Discard, os.Stdin)
	for _, s := range []struct {
		ext string
		to  io.Writer
	}{{".err", os.Stderr}, {".out", os.Stdout}} {
		b, err := os.ReadFile(os.Getenv("FAKE_CAPTURE") + s.ext)
		if err == nil {
			_, _ = s.to.Write(b)
		}
	}
	code, _ := strconv.Atoi(os.Getenv("FAKE_EXIT"))
	return code
}

// sessions counts the turns of a conversation in a file, as claude does with
// --session-id and --resume.
func sessions(args []string) int {
	prompt, _ := io.ReadAll(os.Stdin)
	mode, id := args[0], args[1]
	file := filepath.Join(os.Getenv("FAKE_CAPTURE"), id)
	before, err := os.ReadFile(file)
	if mode == "--resume" && err != nil {
		fmt.Fprintf(os.Stderr, "No conversation found with session ID: %s\n", id)
		return 1
	}
	if mode == "--session-id" && err == nil {
		fmt.Fprintf(os.Stderr, "Session ID %s is already in use.\n", id)
		return 1
	}
	all := string(before) + string(prompt) + "|"
	if err := os.WriteFile(file, []byte(all), 0o600); err != nil {
		return 2
	}
	enc := json.NewEncoder(os.Stdout)
	_ = enc.Encode(map[string]any{"type": "system", "subtype": "init", "session_id": id, "model": "m"})
	_ = enc.Encode(map[string]any{"type": "result", "subtype": "success", "session_id": id, "result": all})
	return 0
}

func probe(args []string) int {
	switch strings.Join(args, " ") {
	case "--version":
		fmt.Println("fake-cli 2.3.4-beta (build 7)")
	case "auth ok":
	case "auth no":
		return 1
	case "hang":
		select {}
	default:
		fmt.Fprintln(os.Stderr, "unknown command; token=verysecretvalue")
		return 2
	}
	return 0
}

// fakeAgent is a definition of the fake program called name, with variables set.
func fakeAgent(name string, set map[string]string) runner.Definition {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	env := map[string]string{fakeEnv: name, "GORACE": "atexit_sleep_ms=0"}
	for k, v := range set {
		env[k] = v
	}
	return runner.Definition{
		ID: "fake", Name: "Fake", Driver: runner.DriverExec, Command: self,
		Env:  runner.EnvSpec{Set: env, Allow: []string{"GOCOVERDIR"}},
		Stop: runner.StopSpec{Grace: 50 * time.Millisecond},
		Probe: runner.ProbeSpec{
			Install: "install the fake", Login: "log in to the fake",
		},
	}
}

// record is a Handler that records all events.
type record struct {
	mu     sync.Mutex
	events []runner.Event
	seen   func(runner.Event) // called with each event; may be nil
}

func (r *record) Event(e runner.Event) {
	r.mu.Lock()
	r.events = append(r.events, e)
	r.mu.Unlock()
	if r.seen != nil {
		r.seen(e)
	}
}

func eventsOf[E runner.Event](r *record) []E {
	r.mu.Lock()
	defer r.mu.Unlock()
	var es []E
	for _, e := range r.events {
		if e, ok := e.(E); ok {
			es = append(es, e)
		}
	}
	return es
}

func (r *record) Permission(ctx context.Context, _ runner.PermissionRequest) (runner.PermissionAnswer, error) {
	<-ctx.Done()
	return runner.PermissionAnswer{}, ctx.Err()
}

func (r *record) text() string {
	var b strings.Builder
	for _, d := range eventsOf[runner.TextDelta](r) {
		b.WriteString(d.Text)
	}
	return b.String()
}

func (r *record) tools() map[string]runner.ToolCall {
	last := make(map[string]runner.ToolCall)
	for _, t := range eventsOf[runner.ToolCall](r) {
		last[t.ID] = t
	}
	return last
}

func open(t *testing.T, def runner.Definition) runner.Agent {
	t.Helper()
	agent, err := runner.Open(def, runner.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return agent
}

func openSession(t *testing.T, def runner.Definition, resume string) runner.Session {
	t.Helper()
	s, err := open(t, def).Open(runner.SessionSpec{ContextID: "c", Resume: resume, WorkDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return s
}

func prompt(text string) runner.Turn {
	return runner.Turn{TaskID: "task-1", Parts: []*a2a.Part{a2a.NewTextPart(text)}}
}
