package drivers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	"github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

// The test binary is also the agent's program: it speaks ACP and connects to the test's
// socket. The end of that connection shows the end of the process.
const (
	fakeEnv = "DRIVERS_TEST_FAKE"
	callEnv = "DRIVERS_TEST_CALL"
)

func TestMain(m *testing.M) {
	switch os.Getenv(fakeEnv) {
	case "agent":
		call("agent")
		agent()
	case "orphan":
		call("orphan")
		select {}
	default:
		goleak.VerifyTestMain(m)
	}
}

// call connects to the test's socket; the connection ends with the process.
func call(name string) {
	conn, err := net.Dial("unix", os.Getenv(callEnv))
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(conn, name)
}

// agent runs an ACP agent that follows the directives in the prompts.
func agent() {
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		fmt.Println("1.0.0")
		return
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Prompt []struct{ Text string }
			}
		}
		if json.Unmarshal(in.Bytes(), &m) != nil {
			os.Exit(4)
		}
		reply := func(result string) { fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, result) }
		switch m.Method {
		case "initialize":
			reply(`{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}}}`)
		case "session/new":
			reply(`{"sessionId":"S"}`)
		case "session/resume":
			reply(`{}`)
		case "session/prompt":
			text := m.Params.Prompt[0].Text
			fmt.Printf(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"S","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":%q}}}}`+"\n", text)
			obey(text)
			reply(`{"stopReason":"end_turn"}`)
		}
	}
}

func obey(text string) {
	switch text {
	case "deaf":
		signal.Ignore()
		select {}
	case "refused":
		for n := range 3 {
			fmt.Fprintf(os.Stderr, "Attempt %d failed with status 529. Retrying with backoff...\n", n+1)
		}
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is stopped
	case "crash":
		fmt.Fprintln(os.Stderr, "fatal: token=verysecretvalue is wrong")
		os.Exit(7)
	case "orphan": // starts a grandchild whose parent ends
		cmd := exec.Command("/bin/sh", "-c", `"$0" & `, os.Args[0])
		cmd.Env = append(os.Environ(), fakeEnv+"=orphan")
		if err := cmd.Run(); err != nil {
			os.Exit(5)
		}
	}
}

// lives reports each process that connects, with a channel that is closed at its end.
type lives struct{ calls chan life }

type life struct {
	name  string
	ended chan struct{}
}

func listen(t *testing.T) (*lives, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "drivers") // short, because a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.Close() // ends the goroutine
		_ = os.RemoveAll(dir)
	})
	ls := &lives{calls: make(chan life, 16)}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				r := bufio.NewReader(conn)
				name, _ := r.ReadString('\n')
				lf := life{strings.TrimSpace(name), make(chan struct{})}
				ls.calls <- lf
				_, _ = io.Copy(io.Discard, r) // blocks until the process ends
				close(lf.ended)
				_ = conn.Close()
			}()
		}
	}()
	return ls, path
}

// next waits for the next process with the name.
func (l *lives) next(name string) life {
	for {
		if lf := <-l.calls; lf.name == name {
			return lf
		}
	}
}

func open(t *testing.T, change func(*runner.Definition)) (runner.Session, *lives) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs Unix sockets and a shell")
	}
	calls, path := listen(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	def := runner.Definition{
		ID: "fake", Name: "Fake", Driver: runner.DriverACP, Command: self,
		Env:  runner.EnvSpec{Set: map[string]string{fakeEnv: "agent", callEnv: path, "GORACE": "atexit_sleep_ms=0"}, Allow: []string{"GOCOVERDIR"}},
		Stop: runner.StopSpec{Grace: 20 * time.Millisecond},
	}
	if change != nil {
		change(&def)
	}
	a, err := runner.Open(def, runner.Options{Drivers: drivers.All()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := a.Open(runner.SessionSpec{ContextID: "c", WorkDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s, calls
}

func turn(ctx context.Context, s runner.Session, text string, h runner.Handler) (runner.Outcome, error) {
	return s.Turn(ctx, runner.Turn{TaskID: "task", Parts: []*a2a.Part{a2a.NewTextPart(text)}}, h)
}

func TestAProgramServesTurnsUntilItsSessionIsClosed(t *testing.T) {
	s, calls := open(t, nil)
	for _, text := range []string{"one", "two"} {
		if out, err := turn(t.Context(), s, text, &duplextest.Handler{}); err != nil || out.Text != text {
			t.Fatalf("outcome %+v, %v", out, err)
		}
	}
	a := calls.next("agent")
	if len(calls.calls) != 0 {
		t.Error("a second process was started")
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-a.ended
}

func TestAProgramThatCrashesIsStartedAgain(t *testing.T) {
	s, _ := open(t, nil)
	out, err := turn(t.Context(), s, "crash", &duplextest.Handler{})
	e, ok := errors.AsType[*runner.Error](err)
	if !ok || e.Code != runner.CodeProtocol || out.ExitCode != 7 {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	if !strings.Contains(e.Message, "fatal:") || strings.Contains(e.Error(), "verysecretvalue") {
		t.Errorf("message %q", e.Message)
	}
	if out, err := turn(t.Context(), s, "again", &duplextest.Handler{}); err != nil || out.Text != "again" {
		t.Fatalf("outcome %+v, %v", out, err)
	}
}

func TestRetriesOnStandardErrorAreReportedAndLimited(t *testing.T) {
	s, _ := open(t, func(def *runner.Definition) { def.Limits.Retries = 2 })
	h := &duplextest.Handler{}
	out, err := turn(t.Context(), s, "refused", h)
	if e, ok := errors.AsType[*runner.Error](err); !ok || e.Code != runner.CodeUnavailable || e.Remedy == "" {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	want := "the model answered with overloaded (529); try 1\nthe model answered with overloaded (529); try 2\n"
	if !strings.HasPrefix(h.Notices(), want) {
		t.Errorf("notices %q", h.Notices())
	}
}

func TestCancelEndsAProgramThatIgnoresEverything(t *testing.T) {
	s, calls := open(t, nil)
	h := &duplextest.Handler{}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		h.AwaitText("deaf")
		cancel()
	}()
	out, err := turn(ctx, s, "deaf", h)
	if err != nil || out.Status != runner.OutcomeCanceled {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	<-calls.next("agent").ended
}

func TestAnIdleProgramIsEnded(t *testing.T) {
	s, calls := open(t, func(d *runner.Definition) { d.Limits.SessionIdle = time.Millisecond })
	if _, err := turn(t.Context(), s, "one", &duplextest.Handler{}); err != nil {
		t.Fatal(err)
	}
	<-calls.next("agent").ended
	if out, err := turn(t.Context(), s, "two", &duplextest.Handler{}); err != nil || out.Text != "two" {
		t.Fatalf("outcome %+v, %v", out, err)
	}
}

// A background process of a tool ends with the turn; the agent's program does not.
func TestAnOrphanOfAToolEndsWithItsTurn(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("orphans are found through /proc")
	}
	s, calls := open(t, nil)
	h := &duplextest.Handler{}
	out, err := turn(t.Context(), s, "orphan", h)
	if err != nil || out.Status != runner.OutcomeCompleted {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	if !strings.Contains(h.Notices(), "ended 1 process ") {
		t.Errorf("notices %q", h.Notices())
	}
	a := calls.next("agent")
	select {
	case o := <-calls.calls: // it may have connected before it was ended
		<-o.ended
	default:
	}
	if out, err := turn(t.Context(), s, "on", &duplextest.Handler{}); err != nil || out.Text != "on" {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	select {
	case <-a.ended:
		t.Error("the program has ended")
	default:
	}
}

func TestAProgramThatIsTooOldIsNotUsed(t *testing.T) {
	s, _ := open(t, func(d *runner.Definition) { d.Probe.MinVersion = "1.0.1" })
	_, err := turn(t.Context(), s, "x", &duplextest.Handler{})
	if e, ok := errors.AsType[*runner.Error](err); !ok || e.Code != runner.CodeConfig || !strings.Contains(e.Message, "1.0.1") {
		t.Fatalf("error %v", err)
	}
	s, _ = open(t, func(d *runner.Definition) { d.Probe.MinVersion = "1.0" })
	for range 2 {
		if _, err := turn(t.Context(), s, "x", &duplextest.Handler{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEveryBuiltinAgentOpens(t *testing.T) {
	for id, def := range runner.Builtin() {
		if _, err := runner.Open(def, runner.Options{Drivers: drivers.All()}); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}
