//go:build unix

package cli_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/internal/base/wait"
)

// mcpConn is a connection to nats-mcp-server in this process.
type mcpConn struct {
	t   *testing.T
	in  *io.PipeWriter
	out *bufio.Reader
	log *watched
	end chan int
	id  int
}

// serveMCP runs the MCP server for the project of the current directory, with the hub of p.
func (p setup) serveMCP(t *testing.T, signals <-chan os.Signal) *mcpConn {
	t.Helper()
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	s := &mcpConn{t: t, in: in, out: bufio.NewReader(out), log: newWatched("the MCP server is ready"), end: make(chan int, 1)}
	go func() {
		code := cli.Run(t.Context(), cli.MCPServer, p.args(), stdin, stdout, s.log, nil, signals)
		stdout.Close()
		s.end <- code
	}()
	s.ask("initialize", initializeParams)
	s.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return s
}

func (s *mcpConn) write(line string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, line+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

// until returns the first line that contains part.
func (s *mcpConn) until(part string) string {
	s.t.Helper()
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			s.t.Fatalf("%v before %s; the log:\n%s", err, part, s.logged())
		}
		if strings.Contains(line, part) {
			return line
		}
	}
}

func (s *mcpConn) ask(method, params string) string {
	s.t.Helper()
	s.id++
	s.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, s.id, method, params))
	return s.until(fmt.Sprintf(`"id":%d,`, s.id))
}

// call calls a tool and returns the response, which must contain want.
func (s *mcpConn) call(tool, arguments, want string) string {
	s.t.Helper()
	got := s.ask("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
	if !strings.Contains(got, want) {
		s.t.Errorf("%s %s: got %s, want %s in it", tool, arguments, got, want)
	}
	return got
}

// drain waits for the server's end and returns its exit code.
func (s *mcpConn) drain() int {
	s.t.Helper()
	if _, err := io.Copy(io.Discard, s.out); err != nil {
		s.t.Error(err)
	}
	return <-s.end
}

func (s *mcpConn) logged() string {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return s.log.text.String()
}

// A project's agents use the hub's documents under the project's names.
func TestTheMCPServerSharesTheHubsDocuments(t *testing.T) {
	p := newHub(t)
	project(t)
	s := p.serveMCP(t, nil)
	s.call("list_documents", `{}`, "no documents")
	s.call("edit_document", `{"name":"plan","edits":[{"op":"set","path":["plan","status"],"value":"open"}]}`, `"status":"open"`)
	s.call("list_documents", `{}`, "plan")
	s.call("read_document", `{"name":"plan"}`, "open")
	if said := s.call("read_document", `{"name":"none"}`, `NotFoundError: there is no document none`); strings.Contains(said, "project-") {
		t.Errorf("the response has the hub's own name: %s", said)
	}
	s.call("edit_document", `{"name":"plan","edits":[{"op":"set","path":["plan"],"value":1}]}`, "needs a key")
	// A subscriber is notified of a change by another client of the hub.
	s.ask("resources/subscribe", `{"uri":"parley://documents/plan"}`)
	names := decode[[]string](t, p.run(t, "--format", "json", "doc", "list"))
	if len(names) != 1 || !strings.HasSuffix(names[0], "=plan") {
		t.Fatalf("the hub has the documents %v", names)
	}
	want(t, p.run(t, "doc", "edit", names[0], "--set", "plan.status=done"), 0, `"status": "done"`)
	if line := s.until("notifications/resources/updated"); !strings.Contains(line, "parley://documents/plan") {
		t.Errorf("notified with %s", line)
	}
	s.call("read_document", `{"name":"plan"}`, "done")
	s.in.Close()
	if code := s.drain(); code != 0 || !strings.Contains(s.logged(), "the MCP server has stopped") {
		t.Errorf("exit %d, the log:\n%s", code, s.logged())
	}
}

// A message that was sent before a signal ended the server is stored.
func TestASignalLosesNoMessageOfTheMCPServer(t *testing.T) {
	p := newHub(t)
	project(t)
	signals := make(chan os.Signal, 1)
	s := p.serveMCP(t, signals)
	s.call("set_handle", `{"handle":"one"}`, "Handle set to: one")
	s.call("send_message", `{"channel":"roadmap","message":"hello"}`, "Message sent to #roadmap by one")
	signals <- os.Interrupt
	if code := s.drain(); code != 0 {
		t.Errorf("exit %d, the log:\n%s", code, s.logged())
	}
	s.in.Close()
	next := p.serveMCP(t, nil)
	next.call("read_messages", `{"channel":"roadmap"}`, "**one**: hello")
	next.in.Close()
	if code := next.drain(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// Without a hub the document tools are not offered, and name the command that starts one; the channels work on the
// configured server. The tools come and go with the hub.
func TestTheMCPServerReportsThatNoHubRuns(t *testing.T) {
	p := newSetup(t)
	project(t)
	srv := startNATS(t)
	t.Setenv("NATS_URL", srv.URL())
	t.Setenv("NATS_USERNAME", "ann")
	t.Setenv("NATS_PASSWORD", "hunter2")
	s := p.serveMCP(t, nil)
	// The hub may come or go between the two answers.
	offered := func() (inTools, inTemplates bool) {
		tools, templates := s.ask("tools/list", `{}`), s.ask("resources/templates/list", `{}`)
		inTools = strings.Contains(tools, `"list_documents"`)
		if strings.Contains(tools, `"edit_document"`) != inTools || !strings.Contains(tools, `"send_message"`) {
			t.Errorf("the tools are %s", tools)
		}
		return inTools, strings.Contains(templates, "parley://documents/")
	}
	if tools, templates := offered(); tools || templates {
		t.Errorf("documents are offered without a hub: tools %t, templates %t", tools, templates)
	}
	s.call("list_documents", `{}`, "parley start")
	p.hub(t)
	s.until("notifications/tools/list_changed")
	wait.Eventually(t, "the document tools are offered", func() bool {
		tools, templates := offered()
		return tools && templates
	})
	s.call("list_documents", `{}`, "no documents")
	want(t, p.run(t, "stop"), 0, "")
	wait.Eventually(t, "the document tools are not offered", func() bool {
		tools, templates := offered()
		return !tools && !templates
	})
	s.call("send_message", `{"channel":"roadmap","message":"x"}`, "set_handle")
	s.in.Close()
	if code := s.drain(); code != 0 || strings.Contains(s.logged(), "hunter2") {
		t.Errorf("exit %d, the log:\n%s", code, s.logged())
	}
}

// The server logs a warning of insecure settings, and its agent registers.
func TestTheMCPServerJoinsTheNetwork(t *testing.T) {
	p := newSetup(t)
	network(t, false)
	s := p.serveMCP(t, nil)
	s.call("register_agent", `{"agentType":"tester","capabilities":["go"],"scope":"user","visibility":"public"}`, `"again":false`)
	s.call("discover_agents", `{}`, "worker-1")
	s.in.Close()
	if code := s.drain(); code != 0 || !strings.Contains(s.logged(), "crossComputer.tlsRequired is false") {
		t.Errorf("exit %d, the log:\n%s", code, s.logged())
	}
}

// Each refusal sets the exit code and logs one line; standard output stays empty.
func TestTheMCPServerRefusesToStart(t *testing.T) {
	p := newSetup(t)
	network(t, true)
	refused := func(message string) {
		t.Helper()
		var stdout, stderr strings.Builder
		code := cli.Run(t.Context(), cli.MCPServer, p.args(), strings.NewReader(""), &stdout, &stderr, nil, nil)
		if code != 2 || stdout.Len() > 0 || !strings.Contains(stderr.String(), message) {
			t.Errorf("exit %d, stdout %q, stderr %q, want %q in it", code, stdout.String(), stderr.String(), message)
		}
		for line := range strings.Lines(stderr.String()) {
			if !json.Valid([]byte(line)) {
				t.Errorf("not JSON in the log: %s", line)
			}
		}
	}
	refused("the NATS server has no TLS")
	if err := os.WriteFile(".mcp-config.json", []byte("{\"chanels\": []}"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(`did you mean \"channels\"?`)
	if o := p.run(t, "mcp"); o.code != 2 || !strings.Contains(o.stderr, "parley config validate") {
		t.Errorf("parley mcp: %+v", o)
	}
	if o := p.run(t, "network", "agents"); o.code != 2 || !strings.Contains(o.stderr, filepath.Base(".mcp-config.json")) {
		t.Errorf("parley network: %+v", o)
	}
}
