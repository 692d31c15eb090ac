//go:build unix

package cli_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"

	"github.com/parleyhub/parley/internal/app/cli"
)

// screen is a pseudo-terminal and the text that was written to it.
type screen struct {
	master, tty *os.File

	mu   sync.Mutex
	text bytes.Buffer
	more *sync.Cond
	done chan struct{}
	runs sync.WaitGroup // of commands at the terminal
}

func newScreen(t *testing.T) *screen {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	s := &screen{master: master, tty: tty, done: make(chan struct{})}
	s.more = sync.NewCond(&s.mu)
	go s.read()
	t.Cleanup(func() {
		if !t.Failed() { // else a command may wait for what the test has not said
			s.runs.Wait() // commands ask for the terminal's descriptor, which must not be closed meanwhile
		}
		tty.Close()
		master.Close()
		<-s.done
	})
	return s
}

func (s *screen) read() {
	defer close(s.done)
	buf := make([]byte, 4096)
	for {
		n, err := s.master.Read(buf)
		s.mu.Lock()
		s.text.Write(buf[:n])
		s.more.Broadcast()
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// await blocks until the screen shows text.
func (s *screen) await(text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !strings.Contains(s.text.String(), text) {
		s.more.Wait()
	}
	return s.text.String()
}

// run starts a command at the terminal; the channel receives its exit code.
func (s *screen) run(p setup, env map[string]string, signals <-chan os.Signal, args ...string) <-chan int {
	code := make(chan int, 1)
	s.runs.Go(func() {
		code <- cli.Run(context.Background(), "parley", p.args(args...), s.tty, s.tty, s.tty, env, signals)
		s.tty.WriteString("<end>") //nolint:errcheck // then await blocks until the test's timeout
	})
	return code
}

func TestTerminalShowsColourAnswerAndFooter(t *testing.T) {
	t.Parallel()
	p, s := newHub(t), newScreen(t)
	code := s.run(p, nil, nil, "send", "echo", "hello")
	text := s.await("<end>")
	if <-code != 0 || !strings.Contains(text, "hello\r\n") || !strings.Contains(text, "\x1b[2mtask ") {
		t.Errorf("got %q", text)
	}
	s.run(p, nil, nil, "status")
	s.await("\x1b[32mhealthy\x1b[0m")
}

func TestNoColourOnADumbTerminalOrWithNoColor(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	for _, env := range []map[string]string{{"NO_COLOR": "1"}, {"TERM": "dumb"}} {
		s := newScreen(t)
		s.run(p, env, nil, "status")
		if text := s.await("<end>"); strings.Contains(text, "\x1b[3") {
			t.Errorf("%v: got %q", env, text)
		}
	}
}

func TestQuestionIsAnsweredAtTheTerminal(t *testing.T) {
	t.Parallel()
	p, s := newHub(t), newScreen(t)
	code := s.run(p, nil, nil, "send", "asks", "hi")
	text := s.await("1-2? ")
	if !strings.Contains(text, "Run `rm -rf build`?") || !strings.Contains(text, "Allow once") || strings.Contains(text, "\x1b[2K\r\n") {
		t.Errorf("the question: %q", text)
	}
	if _, err := s.master.WriteString("7\n"); err != nil {
		t.Fatal(err)
	}
	s.await("1-2 or the beginning of an answer")
	if _, err := s.master.WriteString("2\n"); err != nil {
		t.Fatal(err)
	}
	text = s.await("<end>")
	if c := <-code; c != 0 || !strings.Contains(text, "you said no-once") {
		t.Errorf("exit %d, got %q", c, text)
	}
}

// A table that is too narrow for what is to be done is followed by it, broken between words.
func TestHealthSaysAtANarrowTerminalWhatToDo(t *testing.T) {
	t.Parallel()
	p, s := newHub(t), newScreen(t)
	code := s.run(p, nil, nil, "agents", "--health")
	text := s.await("<end>")
	_, below, found := strings.Cut(text, "\n\x1b[1mmissing\x1b[0m\r\n  ")
	if c := <-code; c != 0 || !found || !strings.Contains(strings.ReplaceAll(below, "\r\n  ", " "), "install it with: magic") {
		t.Errorf("exit %d, %q", c, text)
	}
}

// The messages of a task that asked say what was asked and answered, without placeholders.
func TestTaskShowHasQuestionAndAnswer(t *testing.T) {
	t.Parallel()
	p, s := newHub(t), newScreen(t)
	code := s.run(p, nil, nil, "send", "asks", "hi")
	s.await("1-2? ")
	if _, err := s.master.WriteString("y\n"); err != nil {
		t.Fatal(err)
	}
	s.await("<end>")
	o := p.run(t, "task", "show", "latest")
	if <-code != 0 || o.code != 0 || strings.Contains(o.stdout, "[data]") || !strings.Contains(o.stdout, "agent\n  Allow Run `rm -rf build`?\n\nyou\n  yes-once\n") {
		t.Errorf("%+v", o)
	}
	p.runWith(t, pipe(t, "the diff\n", false), nil, "send", "echo", "review")
	want(t, p.run(t, "task", "show", "latest"), 0, "you\n  review\n\n  the diff\n")
}

func TestQuestionIsAnsweredInWords(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	for answer, want := range map[string]string{"y": "yes-once", "No": "no-once", "1": "yes-once", "allow": "yes-once", "rej": "no-once", "no-once": "no-once"} {
		s := newScreen(t)
		code := s.run(p, nil, nil, "send", "asks", "hi")
		if text := s.await("1-2? "); !strings.Contains(text, "$ rm -rf build\r\n") {
			t.Errorf("the command is shown as %q", text)
		}
		if _, err := s.master.WriteString(answer + "\n"); err != nil {
			t.Fatal(err)
		}
		if text := s.await("<end>"); <-code != 0 || !strings.Contains(text, "you said "+want) {
			t.Errorf("%q: %q", answer, text)
		}
	}
}

func TestCtrlCAtAQuestionSaysHowToAnswerLater(t *testing.T) {
	t.Parallel()
	p, s := newHub(t), newScreen(t)
	signals := make(chan os.Signal, 1)
	code := s.run(p, nil, signals, "send", "asks", "hi")
	s.await("1-2? ")
	signals <- os.Interrupt
	text := s.await("<end>")
	if c := <-code; c != 130 || !strings.Contains(text, "answer later with:") {
		t.Errorf("exit %d, got %q", c, text)
	}
	if _, err := s.master.WriteString("\n"); err != nil { // ends the read of the terminal
		t.Fatal(err)
	}
}

func TestToolInputsAreReadable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"command":"echo \"a\"\nls"}`:                                   "$ echo \"a\"\n  ls",
		`{"command":["bash","-lc","rm -rf build"]}`:                      "$ bash '-lc' 'rm -rf build'",
		`{"command":"ls\u001b[2J","description":"list <it>"}`:            "$ ls\ndescription: list <it>",
		`{"file_path":"a.go","old_string":"x\ny","new_string":"z"}`:      "file a.go\n-x\n-y\n+z",
		`{"file_path":"a.go","content":"one\ntwo\n"}`:                    "file a.go\n+one\n+two",
		`{"file_path":"a","edits":[{"old_string":"x","new_string":""}]}`: "file a\n-x",
		`{"path":"a","diff":"@@ -1 +1 @@\n-a\n+b"}`:                      "file a\n@@ -1 +1 @@\n-a\n+b",
		`{"n":[1,"<"],"q":"x"}`:                                          "n: [1,\"<\"]\nq: x",
		`"only text"`:                                                    "only text", `null`: "", `{}`: "",
	} {
		if got := cli.DescribeInput(in); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", in, got, want)
		}
	}
}

func TestQuestionIsLeftOpenAtTheTerminal(t *testing.T) {
	t.Parallel()
	p, s := newHub(t), newScreen(t)
	code := s.run(p, nil, nil, "send", "asks", "hi")
	s.await("1-2? ")
	if _, err := s.master.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	text := s.await("<end>")
	if c := <-code; c != 6 || !strings.Contains(text, "send --task") {
		t.Errorf("exit %d, got %q", c, text)
	}
}

func TestSpinnerIsShownWhileWaitingAndTheTaskIsCanceled(t *testing.T) {
	t.Parallel()
	p, s := newHub(t), newScreen(t)
	signals := make(chan os.Signal, 1)
	code := s.run(p, nil, signals, "send", "hangs", "hi")
	s.await("thinking…")
	signals <- os.Interrupt
	text := s.await("<end>")
	if c := <-code; c != 5 || !strings.Contains(text, "a second Ctrl-C exits") || !strings.Contains(text, "canceled:") {
		t.Errorf("exit %d, got %q", c, text)
	}
	p.run(t, "send", "--detach", "--context", "busy", "hangs", "hi")
	code = s.run(p, nil, signals, "send", "--context", "busy", "hangs", "again") // waits for the first task
	s.await("waiting for the agent 0s")
	signals <- os.Interrupt
	if c := <-code; c != 5 {
		t.Errorf("exit %d", c)
	}
}

// start runs a copy of its own executable: the test binary, which with this variable runs as parley.
func TestStartAtATerminal(t *testing.T) {
	t.Setenv(beParley, "parley")
	t.Setenv("GOCOVERDIR", t.TempDir())
	p, s := newSetup(t), newScreen(t)
	p.stopAtEnd(t)
	code := s.run(p, nil, nil, "--verbose", "send", "echo", "hello")
	text := s.await("<end>")
	if c := <-code; c != 0 || !strings.Contains(text, "hello\r\n") || !strings.Contains(text, "started the hub in the background") {
		t.Errorf("exit %d, got %q", c, text)
	}
	s.run(p, nil, nil, "start")
	s.await("The hub is already running")
	want(t, p.run(t, "stop"), 0, "has stopped")
	want(t, p.run(t, "--format", "json", "start"), 0, `"alreadyRunning":false`)
}

func TestShellQuoting(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"allow_once": "allow_once", "": "''", "-x": "'-x'", "a b": "'a b'", "it's": `'it'\''s'`, "$(x)": "'$(x)'"} {
		if got := cli.Quote(in); got != want {
			t.Errorf("Quote(%q) = %s, want %s", in, got, want)
		}
	}
}
