//go:build unix

package cli_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/cli"
)

// pipe returns a pipe into which text was written, closed at its end unless it stays open.
func pipe(t *testing.T, text string, open bool) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if !open {
		w.Close()
	} else {
		t.Cleanup(func() { w.Close() })
	}
	return r
}

func TestWhatIsPipedIsSentWithTheMessage(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	file := filepath.Join(p.dir, "diff")
	if err := os.WriteFile(file, []byte("in a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(name string) *os.File {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	for _, tt := range []struct {
		name    string
		stdin   *os.File
		message string
		want    string
	}{
		{"a pipe", pipe(t, "the diff\n", false), "review", "review\n\nthe diff\n"},
		{"a pipe alone", pipe(t, "the diff\n", false), "-", "the diff\n"},
		{"an empty pipe", pipe(t, "", false), "review", "review\n"},
		{"blank lines", pipe(t, "\n \n", false), "review", "review\n"},
		{"a file", open(file), "review", "review\n\nin a file\n"},
		{"/dev/null", open(os.DevNull), "review", "review\n"},
	} {
		if o := p.runWith(t, tt.stdin, nil, "send", "echo", tt.message); o != (outcome{0, tt.want, ""}) {
			t.Errorf("%s: %+v", tt.name, o)
		}
	}
	if o := p.runWith(t, pipe(t, "", false), nil, "send", "echo", "-"); o.code != 2 || !strings.Contains(o.stderr, "the command before the pipe") {
		t.Errorf("nothing but an empty pipe: %+v", o)
	}
	o := p.runWith(t, pipe(t, "more", false), nil, "--format", "json", "send", "echo", "review")
	if task := decode[dialect.Task](t, o); len(task.History) == 0 || len(task.History[0].Parts) != 2 {
		t.Errorf("%+v", task)
	}
	want(t, p.runWith(t, pipe(t, "piped words", false), nil, "swarm", "run", "--agents", "words", "say"), 0, "piped words")
	if o := p.runWith(t, pipe(t, "\xff", false), nil, "send", "echo", "review"); o.code != 2 || !strings.Contains(o.stderr, "UTF-8") {
		t.Errorf("not UTF-8: %+v", o)
	}
}

// A pipe that stays open and silent ends neither in a hang nor in a message without its input.
func TestAPipeThatStaysOpen(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	s := make(chan os.Signal, 1)
	s <- os.Interrupt
	if o := p.runWith(t, pipe(t, "", true), s, "send", "echo", "review"); o.code != 130 {
		t.Errorf("interrupted: %+v", o)
	}
	if page := decode[dialect.TaskPage](t, p.run(t, "--format", "json", "tasks")); page.Total != 0 {
		t.Errorf("sent: %+v", page)
	}
}

func TestASilentPipeIsAnErrorAndASilentSocketIsNot(t *testing.T) {
	t.Parallel()
	var stderr strings.Builder
	if _, err := cli.ReadOpen(pipe(t, "", true), io.Discard, 1, 30); err == nil || !strings.Contains(err.Error(), "open pipe") {
		t.Errorf("a pipe: %v", err)
	}
	if text, err := cli.ReadOpen(pipe(t, "", true), &stderr, 0, 30); err != nil || text != "" || !strings.Contains(stderr.String(), "without it") {
		t.Errorf("a socket: %q, %v, %q", text, err, stderr.String())
	}
}

func TestRetriesAreNotedInAPipe(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	const notes = "note: the model answered with too many requests (429); try 1\nnote: the model answered with too many requests (429); try 2\n"
	if o := p.runWith(t, strings.NewReader(""), nil, "send", "refused", "hi"); o != (outcome{0, "an answer after all\n", notes}) {
		t.Errorf("%+v", o)
	}
}
