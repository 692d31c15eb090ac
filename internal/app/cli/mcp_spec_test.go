//go:build unix

package cli_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/app/cli"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	"github.com/parleyhub/parley/internal/testbed"
)

// startNATS starts a NATS server with a password.
func startNATS(t *testing.T) *testbed.Server {
	t.Helper()
	return testbed.StartNATS(t, func(o *server.Options) { o.Username, o.Password = "ann", "hunter2" })
}

// mcpClient runs nats-mcp-server as a process, as an agent's program does.
type mcpClient struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr bytes.Buffer
	lines  []string // of standard output
	id     int
}

func startMCP(t *testing.T, env map[string]string) *mcpClient {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &mcpClient{t: t, cmd: exec.Command(exe)}
	p.cmd.Dir, p.cmd.Stderr = project(t), &p.stderr
	p.cmd.Env = append(os.Environ(), beParley+"="+cli.MCPServer, "GOCOVERDIR="+t.TempDir())
	for name, value := range env {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin, p.stdout = stdin, bufio.NewReader(stdout)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // if the test has failed
	p.request("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`)
	fmt.Fprintln(stdin, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return p
}

// request sends a request and returns the response's line.
func (p *mcpClient) request(method, params string) string {
	p.t.Helper()
	p.id++
	fmt.Fprintf(p.stdin, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", p.id, method, params)
	for {
		line, err := p.stdout.ReadString('\n')
		if err != nil {
			p.t.Fatalf("%v\n%s", err, p.stderr.String())
		}
		p.lines = append(p.lines, line)
		if strings.Contains(line, fmt.Sprintf(`"id":%d,`, p.id)) {
			return line
		}
	}
}

func (p *mcpClient) call(tool, arguments string) string {
	p.t.Helper()
	return p.request("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
}

// end waits for the process and returns its log records.
func (p *mcpClient) end() []map[string]any {
	p.t.Helper()
	rest, err := io.ReadAll(p.stdout)
	if err != nil {
		p.t.Fatal(err)
	}
	p.lines = append(p.lines, slices.Collect(strings.Lines(string(rest)))...)
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("%v\n%s", err, p.stderr.String())
	}
	var records []map[string]any
	for line := range strings.Lines(p.stderr.String()) {
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			p.t.Fatalf("the log has the line %q: %v", line, err)
		}
		records = append(records, record)
	}
	return records
}

// record returns the first record with a message.
func record(t *testing.T, records []map[string]any, message string) map[string]any {
	t.Helper()
	for _, r := range records {
		if r["message"] == message {
			return r
		}
	}
	t.Fatalf("nothing was logged as %q: %v", message, records)
	return nil
}

// REQ-LOG-001, REQ-LOG-002, REQ-LOG-003, REQ-LOG-005, REQ-LOG-006, REQ-LOG-008,
// REQ-SEC-TEST-003, REQ-ERROR-005, REQ-USE-003, REQ-PROJECT-003, REQ-PROJECT-006,
// REQ-STACK-005, REQ-DEPLOY-003: the log of a whole connection is on standard error, and standard output has only
// protocol messages.
func TestTheMCPServersLog(t *testing.T) {
	srv := startNATS(t)
	p := startMCP(t, map[string]string{"NATS_URL": srv.URL(), "NATS_USERNAME": "ann", "NATS_PASSWORD": "hunter2",
		"NATS_MCP_NAMESPACE": "logged", "LOG_LEVEL": "debug"})
	p.call("set_handle", `{"handle":"me"}`)
	if got := p.call("send_message", `{"channel":"roadmap","message":"hello"}`); !strings.Contains(got, "Message sent to #roadmap by me") {
		t.Fatal(got)
	}
	nc, err := nats.Connect(srv.URL(), nats.UserInfo("ann", "hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "logged.roadmap", []byte("garbage")); err != nil {
		t.Fatal(err)
	}
	p.call("read_messages", `{"channel":"roadmap"}`)
	p.call("read_messages", `{"channel":"nowhere"}`)
	p.stdin.Close()
	records := p.end()

	levels := map[string]int{}
	for _, r := range records {
		at, _ := r["timestamp"].(string)
		if _, err := time.Parse("2006-01-02T15:04:05.000Z", at); err != nil {
			t.Errorf("the time of %v: %v", r, err)
		}
		for _, field := range []string{"level", "component", "message"} {
			if text, _ := r[field].(string); text == "" {
				t.Errorf("%v has no %s", r, field)
			}
		}
		levels[fmt.Sprint(r["level"])]++
	}
	for _, level := range []string{"DEBUG", "INFO", "WARN", "ERROR"} {
		if levels[level] == 0 {
			t.Errorf("no record of level %s among %v", level, slices.Sorted(maps.Keys(levels)))
		}
	}
	begin := record(t, records, "the MCP server is ready")
	if begin["project"] != p.cmd.Dir || begin["projectId"] != mcpconfig.ProjectID(p.cmd.Dir) || begin["namespace"] != "logged" {
		t.Errorf("the start is logged as %v", begin)
	}
	if r := record(t, records, "there is no .mcp-config.json: the defaults are in force"); r["level"] != "INFO" {
		t.Errorf("got %v", r)
	}
	if r := record(t, records, "message stored"); r["level"] != "DEBUG" || r["subject"] != "logged.roadmap" {
		t.Errorf("got %v", r)
	}
	for _, operation := range []string{"stream ready", "stream looked up", "messages read"} {
		// The server also prepares the other channels, at the same time.
		of := slices.DeleteFunc(slices.Clone(records), func(r map[string]any) bool { return r["stream"] != "logged_ROADMAP" })
		if r := record(t, of, operation); r["level"] != "DEBUG" {
			t.Errorf("got %v", r)
		}
	}
	if r := record(t, records, "a message is skipped: it is not in the channel's format"); r["level"] != "ERROR" || !strings.Contains(fmt.Sprint(r["stack"]), "goroutine") {
		t.Errorf("got %v", r)
	}
	if strings.Contains(p.stderr.String()+strings.Join(p.lines, ""), "hunter2") {
		t.Error("the password is shown")
	}
	for _, line := range p.lines {
		var message struct{ JSONRPC string }
		if err := json.Unmarshal([]byte(line), &message); err != nil || message.JSONRPC != "2.0" {
			t.Errorf("standard output has %q", line)
		}
	}
}

// REQ-LOG-003, REQ-LOG-004
func TestTheMCPServersLogHasALevel(t *testing.T) {
	srv := startNATS(t)
	for level, least := range map[string]string{"": "INFO", "error": "ERROR"} {
		p := startMCP(t, map[string]string{"NATS_URL": srv.URL(), "NATS_USERNAME": "ann", "NATS_PASSWORD": "hunter2", "LOG_LEVEL": level})
		p.call("read_messages", `{"channel":"nowhere"}`)
		p.stdin.Close()
		for _, r := range p.end() {
			if r["level"] == "DEBUG" || least == "ERROR" && r["level"] != "ERROR" {
				t.Errorf("LOG_LEVEL %q: %v", level, r)
			}
		}
	}
}

// REQ-REL-008, REQ-REL-009: accepted messages are stored, and the exit code is 0.
func TestSignalsStopTheMCPServerGracefully(t *testing.T) {
	srv := startNATS(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			p := startMCP(t, map[string]string{"NATS_URL": srv.URL(), "NATS_USERNAME": "ann", "NATS_PASSWORD": "hunter2"})
			p.call("set_handle", `{"handle":"me"}`)
			for i := range 20 {
				if got := p.call("send_message", fmt.Sprintf(`{"channel":"roadmap","message":"%d"}`, i)); strings.Contains(got, `"isError":true`) {
					t.Fatal(got)
				}
			}
			if err := p.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if r := record(t, p.end(), "the MCP server has stopped"); r["lost"] != 0.0 {
				t.Errorf("got %v", r)
			}
		})
	}
}
