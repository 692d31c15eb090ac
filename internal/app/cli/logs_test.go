//go:build unix

package cli_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/wait"
)

func TestLogsWithoutALogSayWhereItIs(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	o := p.run(t, "logs")
	said := strings.Join(strings.Fields(o.stderr), " ")
	if o.code != 4 || o.stdout != "" {
		t.Errorf("%+v", o)
	}
	for _, part := range []string{"there is no log", daemon.LogPath(p.dir), "--foreground", "parley start", "--data-dir"} {
		if !strings.Contains(said, part) {
			t.Errorf("%q is not in: %s", part, said)
		}
	}
}

// logFile is the log of a hub as the tests write it.
const logFile = `{"time":"2026-05-01T10:00:00Z","level":"INFO","msg":"the hub is ready","version":"1"}
{"time":"2026-05-01T10:00:01Z","level":"WARN","msg":"a turn failed","agent":"codex","task":"0b5c1d7a-aaaa-4000-8000-000000000001","error":"the model \"x\" is gone"}
panic: out of \x1b[31mluck
{"time":"2026-05-01T10:00:02Z","level":"ERROR","msg":"a turn failed","agent":"gemini","task":"9f000000-bbbb-4000-8000-000000000002"}
`

func (p setup) writeLog(t *testing.T, suffix, text string) {
	t.Helper()
	path := daemon.LogPath(p.dir) + suffix
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// The latest records are printed, those of an agent or a task alone where that is asked, and no escape sequence.
func TestLogsAreFilteredAndLimited(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.writeLog(t, ".1", `{"time":"2026-04-30T10:00:00Z","level":"INFO","msg":"before the rotation","agent":"codex"}`+"\n")
	p.writeLog(t, "", strings.ReplaceAll(logFile, `\x1b`, "\x1b"))
	for _, tt := range []struct {
		args []string
		want []string // the beginning of the messages, in order
	}{
		{nil, []string{"before the rotation", "the hub is ready", "a turn failed", "panic: out of", "a turn failed"}},
		{[]string{"-n", "2"}, []string{"panic: out of", "a turn failed"}},
		{[]string{"-n", "0"}, nil},
		{[]string{"--agent", "codex"}, []string{"before the rotation", "a turn failed"}},
		{[]string{"--task", "0b5c1d7a"}, []string{"a turn failed"}},
		{[]string{"--task", "000002", "--agent", "gemini"}, []string{"a turn failed"}},
		{[]string{"--task", "0b5c1d7a", "--agent", "gemini"}, nil},
	} {
		o := p.run(t, append([]string{"logs"}, tt.args...)...)
		lines := strings.Split(strings.TrimSuffix(o.stdout, "\n"), "\n")
		if len(tt.want) == 0 {
			lines = strings.Fields(o.stdout)
		}
		if o.code != 0 || len(lines) != len(tt.want) {
			t.Errorf("logs %q: %+v", tt.args, o)
			continue
		}
		for i, part := range tt.want {
			if !strings.Contains(lines[i], part) || strings.Contains(lines[i], "\x1b") {
				t.Errorf("logs %q: line %d is %q, want %q", tt.args, i, lines[i], part)
			}
		}
	}
	o := p.run(t, "--format", "json", "logs", "--agent", "codex", "-n", "1")
	record := decode[struct{ Level, Msg, Error string }](t, o)
	if record.Level != "WARN" || record.Error != `the model "x" is gone` {
		t.Errorf("%+v", record)
	}
	want(t, p.run(t, "--format", "json", "logs", "-n", "2"), 0, `{"msg":"panic: out of`)
	for _, limit := range []string{"-1", "10001"} {
		want(t, p.run(t, "logs", "-n", limit), 2, "")
	}
}

// With -f each record is printed once, also one that is written in two parts, and those after the rotation of the file.
func TestLogsFollowTheFileThroughItsRotation(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.writeLog(t, "", "first\n")
	out, signals, done := p.background(t, "first", "logs", "-f")
	<-out.seen
	f, err := os.OpenFile(daemon.LogPath(p.dir), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	appendText := func(text string) {
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	appendText("second\nthi")
	wait.Eventually(t, "the second line is printed", func() bool { return strings.Contains(out.String(), "second\n") })
	appendText("rd\n")
	if err := errors.Join(os.Rename(daemon.LogPath(p.dir), daemon.LogPath(p.dir)+".1"), f.Close()); err != nil {
		t.Fatal(err)
	}
	p.writeLog(t, "", "fourth\n")
	wait.Eventually(t, "the line of the new file is printed", func() bool { return strings.Contains(out.String(), "fourth\n") })
	signals <- os.Interrupt
	if code := <-done; code != 0 || out.String() != "first\nsecond\nthird\nfourth\n" {
		t.Errorf("exit %d, printed %q", code, out.String())
	}
}
