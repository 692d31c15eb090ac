package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// BenchmarkCommand measures the processor time of commands, user and system, in a built program: the least and the median of
// the runs. The least is free of what else runs on the computer. `hello` is a program that does nothing.
func BenchmarkCommand(b *testing.B) {
	dir, err := os.MkdirTemp("", "parley") // short: a socket's path is limited
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	parley, hello := filepath.Join(dir, "parley"), filepath.Join(dir, "hello")
	source := filepath.Join(dir, "hello.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println(\"hello\") }\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(b.Context(), name, args...)
		cmd.Env = append(os.Environ(), "HOME="+dir, "PARLEY_HTTP_PORT=0")
		return cmd
	}
	do := func(name string, args ...string) {
		b.Helper()
		if out, err := command(name, args...).CombinedOutput(); err != nil {
			b.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	do("go", "build", "-tags", "grpcnotrace", "-o", parley, "github.com/parleyhub/parley/cmd/parley")
	do("go", "build", "-o", hello, source)
	do(parley, "start")
	b.Cleanup(func() {
		cmd := exec.Command(parley, "stop")
		cmd.Env = append(os.Environ(), "HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Errorf("stop: %v\n%s", err, out)
		}
	})
	const turn = `{"session_id":"s1","transcript_path":"/t","cwd":"/p","hook_event_name":"UserPromptSubmit","prompt":"hi"}`
	for _, c := range []struct {
		name, input string
		command     []string
	}{
		{"hello", "", []string{hello}},
		{"version", "", []string{parley, "--version"}},
		{"hook", turn, []string{parley, "hook", "claude", "UserPromptSubmit"}},
		{"status", "", []string{parley, "status"}},
		{"send", "", []string{parley, "send", "echo", "hi"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var times []time.Duration
			for b.Loop() {
				cmd := command(c.command[0], c.command[1:]...)
				if c.input != "" {
					cmd.Stdin = strings.NewReader(c.input)
				}
				if out, err := cmd.CombinedOutput(); err != nil {
					b.Fatalf("%v\n%s", err, out)
				}
				times = append(times, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[0])/1e6, "min-cpu-ms")
			b.ReportMetric(float64(times[len(times)/2])/1e6, "median-cpu-ms")
		})
	}
}
