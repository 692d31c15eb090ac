//go:build unix

package cli_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/parleyhub/parley/internal/app/cli"
)

// failingWriter fails with err after a number of writes.
type failingWriter struct {
	after int
	err   error
}

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.after--; w.after < 0 {
		return 0, w.err
	}
	return len(p), nil
}

// Whatever a command prints, an output that is lost makes it fail, and says why.
func TestOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	full := &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
	for _, args := range [][]string{
		{"--help"}, {"--version"}, {"version"}, {"status"}, {"agents"}, {"tasks"}, {"send", "echo", "hi"}, {"send", "echo", "hi", "--stream"},
		{"send", "echo", "hi", "--detach"}, {"events"}, {"events", "-f", "--since", "1h"}, {"totals"}, {"trust", "--list"}, {"config", "show"}, {"completion", "bash"}, {"stop", "--help"},
		{"__complete", "send", ""},
	} {
		for _, format := range []string{"pretty", "json"} {
			var stderr strings.Builder
			code := cli.Run(context.Background(), "parley", p.args(append(args, "--format", format)...), strings.NewReader(""),
				&failingWriter{err: full}, &stderr, nil, nil)
			if code != 1 || !strings.Contains(stderr.String(), "the output could not be written: no space left on device") ||
				!strings.Contains(stderr.String(), "make room") || format == "json" && args[0] != "__complete" && !strings.Contains(stderr.String(), `"code":"output-lost"`) {
				t.Errorf("%q in %s: exit %d, stderr %q", args, format, code, stderr.String())
			}
		}
	}
	var stderr strings.Builder
	code := cli.Run(context.Background(), "parley", p.args("status"), strings.NewReader(""), &failingWriter{after: 1, err: errors.New("the tape is torn")}, &stderr, nil, nil)
	if code != 1 || !strings.Contains(stderr.String(), "the tape is torn") {
		t.Errorf("output that is written in part: exit %d, stderr %q", code, stderr.String())
	}
}

// An answer in JSON holds what the agent said, and a terminal obeys nothing of it.
func TestJSONOutputIsEscapedForTerminals(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	var stdout, stderr strings.Builder
	code := cli.Run(context.Background(), "parley", p.args("send", "echo", "a\u202eb\u009bc", "--format", "json"), strings.NewReader(""), &stdout, &stderr, nil, nil)
	if code != 0 || strings.ContainsAny(stdout.String(), "\u202e\u009b") || !strings.Contains(stdout.String(), `a\u202eb\u009bc`) {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
	}
}

// The reader of a pipe may leave when it has read enough: `parley tasks | head -1`.
func TestAClosedPipeIsQuiet(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	for name, err := range map[string]error{"system": &os.PathError{Op: "write", Err: syscall.EPIPE}, "library": fmt.Errorf("copy: %w", io.ErrClosedPipe)} {
		var stderr strings.Builder
		code := cli.Run(context.Background(), "parley", p.args("events", "-f", "--since", "1h"), strings.NewReader(""), &failingWriter{err: err}, &stderr, nil, nil)
		if code != 1 || stderr.String() != "" {
			t.Errorf("%s: exit %d, stderr %q", name, code, stderr.String())
		}
	}
}

// The same with the real program and the device that is always full.
func TestAFullDeviceIsAFailure(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--version"}, {"version"}, {"--help"}} {
		var stderr strings.Builder
		cmd := exec.Command(exe, args...)
		cmd.Env = append(os.Environ(), beParley+"=parley")
		cmd.Stdout, cmd.Stderr = full, &stderr
		if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%q: %v, stderr %q", args, err, stderr.String())
		}
	}
}
