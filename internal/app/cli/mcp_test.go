//go:build unix

package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed"
)

// machine is a user's computer with two projects and no running hub.
type machine struct {
	t    *testing.T
	root string
	env  []string // of all its programs, in addition
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	root, err := os.MkdirTemp("", "parley") // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	d := &machine{t: t, root: root}
	for _, dir := range []string{"home", "data", "a", "b"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	config := "http: {port: 0}\nagents: {claude-code: {disabled: true}, gemini: {disabled: true}, codex: {disabled: true}, vibe: {disabled: true}}\n"
	if err := os.WriteFile(filepath.Join(root, "data", "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.stopHub()
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	return d
}

// stopHub stops the hub if an MCP process has started one.
func (d *machine) stopHub() {
	d.t.Helper()
	_, _, err := daemon.Stop(context.Background(), filepath.Join(d.root, "data"), func(context.Context) error { return errors.New("by signal") })
	if err != nil {
		d.t.Error(err)
	}
}

// mcpChild is nats-mcp-server as a child process.
type mcpChild struct {
	*exec.Cmd
	t      *testing.T
	in     io.WriteCloser
	stdout io.ReadCloser
	out    *bufio.Reader
	stderr bytes.Buffer
}

// command returns the command that runs program in a project. Only the hub's directory and socket are configured.
func (d *machine) command(program, project string, args ...string) *exec.Cmd {
	args = append(args, "--data-dir", filepath.Join(d.root, "data"), "--socket", filepath.Join(d.root, "s"))
	cmd := exec.Command(os.Args[0], args...)
	cmd.Dir = filepath.Join(d.root, project)
	cmd.Env = []string{beParley + "=" + program, "HOME=" + filepath.Join(d.root, "home"), "PATH=" + os.Getenv("PATH"), "GOCOVERDIR=" + d.t.TempDir(), "GORACE=atexit_sleep_ms=0"}
	cmd.Env = append(cmd.Env, d.env...)
	return cmd
}

func (d *machine) start(project string, env ...string) *mcpChild {
	d.t.Helper()
	cmd := d.command(cli.MCPServer, project)
	cmd.Env = append(cmd.Env, env...)
	return d.serve(cmd)
}

// serve starts an MCP server.
func (d *machine) serve(cmd *exec.Cmd) *mcpChild {
	d.t.Helper()
	p := &mcpChild{Cmd: cmd, t: d.t}
	p.Stderr = &p.stderr
	in, err := p.StdinPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		d.t.Fatal(err)
	}
	p.in, p.stdout, p.out = in, out, bufio.NewReader(out)
	return p
}

// ask sends a request and returns the response's text.
func (p *mcpChild) ask(id int, method, params string) string {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", id, method, params); err != nil {
		p.t.Fatal(err, p.stderr.String())
	}
	line, err := p.out.ReadBytes('\n')
	for err == nil && string(line) == toolsChanged {
		line, err = p.out.ReadBytes('\n')
	}
	if err != nil {
		p.t.Fatalf("%v; the log:\n%s", err, p.stderr.String())
	}
	var answer struct {
		ID     int
		Result struct {
			Content []struct{ Text string }
		}
	}
	if err := json.Unmarshal(line, &answer); err != nil || answer.ID != id {
		p.t.Fatalf("%v in %s", err, line)
	}
	if len(answer.Result.Content) == 0 {
		return string(line)
	}
	return answer.Result.Content[0].Text
}

// toolsChanged is a notification that may arrive at any time once the hub's tools are visible.
const toolsChanged = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{}}` + "\n"

const initializeParams = `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`

func (p *mcpChild) call(id int, tool, arguments string) string {
	p.t.Helper()
	return p.ask(id, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
}

// end closes the input and returns the rest of standard output.
func (p *mcpChild) end() string {
	p.t.Helper()
	p.in.Close()
	return p.wait()
}

// wait waits for the process, which must exit with 0, and returns the rest of standard output.
func (p *mcpChild) wait() string {
	p.t.Helper()
	rest, err := io.ReadAll(p.out)
	if err != nil {
		p.t.Error(err)
	}
	if err := p.Wait(); err != nil {
		p.t.Errorf("%v; the log:\n%s", err, p.stderr.String())
	}
	return strings.ReplaceAll(string(rest), toolsChanged, "")
}

// Without any configuration, two agents of one project read each other's messages, and another project reads none.
// Standard output has only protocol messages. REQ-USE-008, REQ-STACK-005, REQ-SEC-TEST-001, US-001
func TestTwoAgentsNeedNoConfiguration(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	one, two, other := d.start("a"), d.start("a"), d.start("b")
	for _, p := range []*mcpChild{one, two, other} {
		p.ask(1, "initialize", initializeParams)
	}
	if got := one.call(2, "set_handle", `{"handle":"one"}`); got != "Handle set to: one" {
		t.Error(got)
	}
	if got := one.call(3, "send_message", `{"channel":"roadmap","message":"hello"}`); got != "Message sent to #roadmap by one" {
		t.Error(got)
	}
	if got := two.call(2, "read_messages", `{"channel":"roadmap"}`); !strings.Contains(got, "**one**: hello") {
		t.Error(got)
	}
	if got := other.call(2, "read_messages", `{"channel":"roadmap"}`); got != "No messages in #roadmap" {
		t.Error("another project reads", got)
	}
	// An agent that connects over HTTP reads the same messages of its project.
	info, err := daemon.Read(filepath.Join(d.root, "data"))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		for project, want := range map[string]string{"?project=" + filepath.Join(d.root, "a"): "**one**: hello", "?project=" + filepath.Join(d.root, "b"): "No messages", "": "No messages"} {
			session, err := mcp.NewClient(&mcp.Implementation{Name: "web", Version: "1"}, nil).Connect(t.Context(),
				&mcp.StreamableClientTransport{Endpoint: info.HTTP + "/mcp" + project, HTTPClient: &http.Client{Transport: transport}},
				&mcp.ClientSessionOptions{ProtocolVersion: revision})
			if err != nil {
				t.Fatal(err)
			}
			result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "read_messages", Arguments: map[string]any{"channel": "roadmap"}})
			if err != nil || !strings.Contains(result.Content[0].(*mcp.TextContent).Text, want) {
				t.Errorf("%s %q: %+v %v", revision, project, result, err)
			}
			if err := session.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	for _, p := range []*mcpChild{one, two, other} {
		if rest := p.end(); rest != "" {
			t.Errorf("standard output has more: %s", rest)
		}
		for line := range strings.Lines(p.stderr.String()) {
			if !json.Valid([]byte(line)) {
				t.Errorf("not JSON in the log: %s", line)
			}
		}
	}
}

// REQ-REL-008, REQ-REL-009: after each signal and at the end of input the exit code is 0, also during a
// wait, and the messages are stored.
func TestTheMCPServerStopsGracefully(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	for i, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, 0} {
		p := d.start("a", "LOG_FORMAT=text")
		p.ask(1, "initialize", initializeParams)
		p.call(2, "set_handle", `{"handle":"ending"}`)
		p.call(3, "send_message", fmt.Sprintf(`{"channel":"errors","message":"before signal %d"}`, i))
		if _, err := io.WriteString(p.in, `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"wait_for_messages"}}`+"\n"); err != nil {
			t.Fatal(err)
		}
		p.call(5, "get_my_handle", `{}`) // then the wait has begun
		if signal == 0 {
			p.in.Close()
		} else if err := p.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if rest := p.wait(); !strings.Contains(rest, `"id":4`) {
			t.Errorf("%v: the wait was answered with %q", signal, rest)
		}
		if !strings.Contains(p.stderr.String(), "the MCP server has stopped") {
			t.Errorf("%v: the log is %s", signal, p.stderr.String())
		}
	}
	p := d.start("a")
	p.ask(1, "initialize", initializeParams)
	if got := p.call(2, "read_messages", `{"channel":"errors"}`); strings.Count(got, "before signal") != 4 {
		t.Error(got)
	}
	p.end()
}

// A client that closes both ends does not end the server with SIGPIPE, which would lose queued messages.
func TestAClosedConnectionCausesNoSIGPIPE(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	p := d.start("a")
	p.ask(1, "initialize", initializeParams)
	p.stdout.Close()
	if _, err := io.WriteString(p.in, `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	p.in.Close()
	if err := p.Wait(); err != nil {
		t.Errorf("%v; the log:\n%s", err, p.stderr.String())
	}
	if !strings.Contains(p.stderr.String(), "the MCP server has stopped") {
		t.Error(p.stderr.String())
	}
}

// REQ-DESIGN-CONFIG-004, REQ-USE-007, REQ-CONFIG-008, section 15.1
func TestTheMCPServerReportsConfigurationErrorsWithTheirPosition(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	file := filepath.Join(d.root, "a", ".mcp-config.json")
	if err := os.WriteFile(file, []byte("{\n  \"logging\": {\"level\": \"LOUD\"},\n  \"chanels\": []\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	resolved, err := filepath.EvalSymlinks(file)
	if err != nil {
		t.Fatal(err)
	}
	cmd := d.command(cli.MCPServer, "a")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 || stdout.Len() > 0 {
		t.Errorf("%v, on standard output %q", err, stdout.String())
	}
	for _, want := range []string{resolved + `:2:24: logging.level: \"LOUD\" is not allowed; allowed: DEBUG, INFO, WARN, ERROR`,
		resolved + `:3:3: chanels: unknown key; did you mean \"channels\"?`, `"line":3,"column":3`, `"component":"configuration"`} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("%s is not in:\n%s", want, stderr.String())
		}
	}
}

// REQ-ERROR-002, REQ-ERROR-008: an unreachable configured server is reported, and no
// hub is started instead.
func TestAConfiguredServerThatIsDownIsReported(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	p := d.start("a", "NATS_URL=nats://ann:s3cret@127.0.0.1:1", "NATS_PASSWORD=")
	p.ask(1, "initialize", initializeParams)
	p.call(2, "set_handle", `{"handle":"me"}`)
	if got := p.call(3, "read_messages", `{"channel":"roadmap"}`); !strings.HasPrefix(got, "ConnectionError: No NATS server is running at nats://127.0.0.1:1") ||
		!strings.Contains(got, "nats-server -js") {
		t.Error(got)
	}
	if got := p.call(4, "send_message", `{"channel":"roadmap","message":"x"}`); !strings.Contains(got, "is queued") || !strings.Contains(got, "127.0.0.1:1") ||
		!strings.Contains(got, "nats-server -js") {
		t.Error(got)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.wait()
	if log := p.stderr.String(); strings.Contains(log, "s3cret") || !strings.Contains(log, "queued messages are kept for the project's next process") {
		t.Errorf("the log is %s", log)
	}
	if _, running, err := daemon.Running(filepath.Join(d.root, "data")); running || err != nil {
		t.Errorf("a hub runs (%v)", err)
	}
}

// REQ-TOOL-022, REQ-REL-003: what a process has queued when it is killed is stored by the project's next one.
func TestAKilledProcessLosesNoQueuedMessage(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	port := testbed.FreePorts(t, 1)[0]
	url := fmt.Sprintf("NATS_URL=nats://127.0.0.1:%d", port)
	p := d.start("a", url)
	p.ask(1, "initialize", initializeParams)
	p.call(2, "set_handle", `{"handle":"me"}`)
	for i := range 3 {
		if got := p.call(3+i, "send_message", fmt.Sprintf(`{"channel":"roadmap","message":"word%d"}`, i)); !strings.Contains(got, "is queued") {
			t.Fatal(got)
		}
	}
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait() // it was killed
	testbed.StartNATS(t, func(o *server.Options) { o.Port = port })
	p = d.start("a", url)
	p.ask(1, "initialize", initializeParams)
	p.call(2, "set_handle", `{"handle":"me"}`)
	id := 3
	wait.Eventually(t, "the messages are stored", func() bool {
		id++
		got := p.call(id, "read_messages", `{"channel":"roadmap"}`)
		return regexp.MustCompile(`(?s)word0.*word1.*word2`).MatchString(got)
	})
	p.end()
}

// Without a command the program runs the server, which starts the hub.
func TestTheMCPProgramsCommands(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	for _, args := range [][]string{{"--help"}, {"version"}, {"--version"}} {
		cmd := d.command(cli.MCPServer, "a", args...)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "nats-mcp-server") {
			t.Errorf("%v: %v %s", args, err, out)
		}
	}
	out, err := d.command("parley", "a", "mcp", "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "claude mcp add parley") {
		t.Errorf("%v %s", err, out)
	}
	if out, err := d.command(cli.MCPServer, "a", "--help").CombinedOutput(); err != nil || !strings.Contains(string(out), "claude mcp add parley -- nats-mcp-server mcp") {
		t.Errorf("%v %s", err, out)
	}
	if out, err := d.command(cli.MCPServer, "a", "nonsense").CombinedOutput(); err == nil || !strings.Contains(string(out), "nonsense") {
		t.Errorf("%v %s", err, out)
	}
}
