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

// builtProgram is the built program, with a home of its own and a running hub.
type builtProgram struct {
	b         *testing.B
	dir, path string
}

// buildProgram builds the program and starts its hub until the end of the benchmark.
func buildProgram(b *testing.B) *builtProgram {
	dir, err := os.MkdirTemp("", "parley") // short: a socket's path is limited
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	p := &builtProgram{b: b, dir: dir, path: filepath.Join(dir, "parley")}
	p.do("go", "build", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", p.path, "github.com/parleyhub/parley/cmd/parley")
	p.do(p.path, "start")
	b.Cleanup(func() {
		cmd := exec.Command(p.path, "stop")
		cmd.Env = append(os.Environ(), "HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Errorf("stop: %v\n%s", err, out)
		}
	})
	return p
}

// command returns a command of any program in the home.
func (p *builtProgram) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(p.b.Context(), name, args...)
	cmd.Env = append(os.Environ(), "HOME="+p.dir, "PARLEY_HTTP_PORT=0")
	return cmd
}

func (p *builtProgram) do(name string, args ...string) {
	p.b.Helper()
	if out, err := p.command(name, args...).CombinedOutput(); err != nil {
		p.b.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// BenchmarkCommand measures the processor time of commands, user and system, in a built program: the least and the median of
// the runs. The least is free of what else runs on the computer. `hello` is a program that does nothing.
func BenchmarkCommand(b *testing.B) {
	p := buildProgram(b)
	parley, hello := p.path, filepath.Join(p.dir, "hello")
	source := filepath.Join(p.dir, "hello.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println(\"hello\") }\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	p.do("go", "build", "-o", hello, source)
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
				cmd := p.command(c.command[0], c.command[1:]...)
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
