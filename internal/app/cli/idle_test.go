package cli_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/app/daemon"
)

var idlePrograms = flag.Duration("idle-programs-for", 40*time.Second, "how long BenchmarkIdlePrograms leaves idle programs alone before it has measured them")

// BenchmarkIdlePrograms reports what an open session of an agent takes of the hub, in KB of the hub's own memory: that of `parley mcp` as
// agents start it, with its session registered and its connections to the hub's tools, to its project's channels and to the agents'
// network. It is the difference between few and many of them.
func BenchmarkIdlePrograms(b *testing.B) {
	const few, many, projects = 20, 100, 5
	for b.Loop() {
		p := buildProgram(b)
		for i := range few {
			p.openIdle(i % projects)
		}
		before := p.hubMemory()
		for i := range many - few {
			p.openIdle(i % projects)
		}
		after := p.hubMemory()
		b.ReportMetric((after-before)/(many-few), "KB/program")
		b.ReportMetric(after/1e3, fmt.Sprintf("MB-anon-%d", many))
		b.ReportMetric(0, "ns/op")
	}
}

// openIdle begins a session of `parley mcp` in a project, which stays open until the end of the benchmark.
func (p *builtProgram) openIdle(project int) {
	p.b.Helper()
	cmd := p.command(p.path, "mcp")
	cmd.Dir = filepath.Join(p.dir, fmt.Sprintf("shop-%d", project))
	if err := os.MkdirAll(cmd.Dir, 0o700); err != nil {
		p.b.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		p.b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.b.Fatal(err)
	}
	p.b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // the session has ended, whatever the server says
	})
	const first = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"claude-code","version":"2"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"register_agent","arguments":{"agentType":"worker","capabilities":["go"],"scope":"project"}}}
`
	if _, err := io.WriteString(in, first); err != nil {
		p.b.Fatal(err)
	}
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			p.b.Fatal(err)
		}
		var answer struct {
			ID     int
			Result struct{ IsError bool }
		}
		if json.Unmarshal(line, &answer) == nil && answer.ID == 2 {
			if answer.Result.IsError {
				p.b.Fatalf("%s", line)
			}
			return
		}
	}
}

// hubMemory returns the hub's own memory, in KB, once nothing has happened for a while: the median of the second half.
func (p *builtProgram) hubMemory() float64 {
	p.b.Helper()
	info, running, err := daemon.Running(filepath.Join(p.dir, ".a2a-hub"))
	if err != nil || !running {
		p.b.Fatalf("the hub does not run: %v", err)
	}
	<-time.After(*idlePrograms / 2)
	var all []float64
	for end := time.Now().Add(*idlePrograms / 2); time.Now().Before(end); {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", info.PID))
		if err != nil {
			p.b.Skipf("the memory of a process is read from /proc: %v", err)
		}
		_, rest, _ := bytes.Cut(status, []byte("RssAnon:"))
		var kib float64
		if _, err := fmt.Sscan(strings.TrimSpace(string(rest)), &kib); err != nil {
			p.b.Fatal(err)
		}
		all = append(all, kib*1.024)
		<-time.After(100 * time.Millisecond)
	}
	slices.Sort(all)
	return all[len(all)/2]
}
