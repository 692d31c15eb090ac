//go:build unix

package cli_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/app/cli"
)

// mcpSession is nats-mcp-server in this process, and its client.
type mcpSession struct {
	t   *testing.T
	in  *io.PipeWriter
	out *bufio.Reader
	log *watched
	end chan int
	id  int
}

// speak starts the MCP server of the current directory's project, with the hub of p.
func (p place) speak(t *testing.T, signals <-chan os.Signal) *mcpSession {
	t.Helper()
	// The server tunes the garbage collector of its process.
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent); debug.SetMemoryLimit(limit) })
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	s := &mcpSession{t: t, in: in, out: bufio.NewReader(out), log: newWatched("the MCP server is ready"), end: make(chan int, 1)}
	go func() {
		code := cli.Run(t.Context(), cli.MCPServer, p.args(), stdin, stdout, s.log, nil, signals)
		stdout.Close()
		s.end <- code
	}()
	s.ask("initialize", shake)
	s.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return s
}

func (s *mcpSession) write(line string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, line+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

// until returns the first line that has a text.
func (s *mcpSession) until(part string) string {
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

func (s *mcpSession) ask(method, params string) string {
	s.t.Helper()
	s.id++
	s.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, s.id, method, params))
	return s.until(fmt.Sprintf(`"id":%d,`, s.id))
}

// call calls a tool, wants a text in the answer, and returns it.
func (s *mcpSession) call(tool, arguments, want string) string {
	s.t.Helper()
	got := s.ask("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
	if !strings.Contains(got, want) {
		s.t.Errorf("%s %s: got %s, want %s in it", tool, arguments, got, want)
	}
	return got
}

// drain returns the exit code when the server has ended.
func (s *mcpSession) drain() int {
	s.t.Helper()
	if _, err := io.Copy(io.Discard, s.out); err != nil {
		s.t.Error(err)
	}
	return <-s.end
}

func (s *mcpSession) logged() string {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return s.log.text.String()
}

// Documents of the hub are there for the agents of a project, with the project's names.
func TestTheMCPServerSharesTheHubsDocuments(t *testing.T) {
	p := newHub(t)
	project(t)
	s := p.speak(t, nil)
	s.call("list_documents", `{}`, "no documents")
	s.call("edit_document", `{"name":"plan","edits":[{"op":"set","path":["plan","status"],"value":"open"}]}`, `"status":"open"`)
	s.call("list_documents", `{}`, "plan")
	s.call("read_document", `{"name":"plan"}`, "open")
	if said := s.call("read_document", `{"name":"none"}`, `NotFoundError: there is no document none`); strings.Contains(said, "project-") {
		t.Errorf("it tells the hub's own name: %s", said)
	}
	s.call("edit_document", `{"name":"plan","edits":[{"op":"set","path":["plan"],"value":1}]}`, "needs a key")
	// Whoever subscribes hears of a change that another client of the hub makes.
	s.ask("resources/subscribe", `{"uri":"parley://documents/plan"}`)
	names := decode[[]string](t, p.run(t, "--format", "json", "doc", "list"))
	if len(names) != 1 || !strings.HasSuffix(names[0], "=plan") {
		t.Fatalf("at the hub the documents are %v", names)
	}
	want(t, p.run(t, "doc", "edit", names[0], "--set", "plan.status=done"), 0, `"status": "done"`)
	if line := s.until("notifications/resources/updated"); !strings.Contains(line, "parley://documents/plan") {
		t.Errorf("it hears %s", line)
	}
	s.call("read_document", `{"name":"plan"}`, "done")
	s.in.Close()
	if code := s.drain(); code != 0 || !strings.Contains(s.logged(), "the MCP server has stopped") {
		t.Errorf("exit %d, the log:\n%s", code, s.logged())
	}
}

// Agents meet in the channels, and a signal ends the server in order.
func TestTheMCPServerKeepsMessagesOverASignal(t *testing.T) {
	p := newHub(t)
	project(t)
	signals := make(chan os.Signal, 1)
	s := p.speak(t, signals)
	s.call("set_handle", `{"handle":"one"}`, "Handle set to: one")
	s.call("send_message", `{"channel":"roadmap","message":"hello"}`, "Message sent to #roadmap by one")
	signals <- os.Interrupt
	if code := s.drain(); code != 0 {
		t.Errorf("exit %d, the log:\n%s", code, s.logged())
	}
	s.in.Close()
	next := p.speak(t, nil)
	next.call("read_messages", `{"channel":"roadmap"}`, "**one**: hello")
	next.in.Close()
	if code := next.drain(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// Without a hub a document's tool says what to do; the channels have a server of their own.
func TestTheMCPServerSaysThatNoHubKeepsTheDocuments(t *testing.T) {
	p := newPlace(t)
	project(t)
	srv := startNATS(t)
	t.Setenv("NATS_URL", srv.URL())
	t.Setenv("NATS_USERNAME", "ann")
	t.Setenv("NATS_PASSWORD", "hunter2")
	s := p.speak(t, nil)
	s.call("list_documents", `{}`, "parley start")
	s.call("send_message", `{"channel":"roadmap","message":"x"}`, "set_handle")
	s.in.Close()
	if code := s.drain(); code != 0 || strings.Contains(s.logged(), "hunter2") {
		t.Errorf("exit %d, the log:\n%s", code, s.logged())
	}
}

// An agent of a project in the network is told of insecure settings, and registers.
func TestTheMCPServerTakesPartInTheNetwork(t *testing.T) {
	p := newPlace(t)
	network(t, false)
	s := p.speak(t, nil)
	s.call("register_agent", `{"agentType":"tester","capabilities":["go"],"scope":"user","visibility":"public"}`, `"again":false`)
	s.call("discover_agents", `{}`, "worker-1")
	s.in.Close()
	if code := s.drain(); code != 0 || !strings.Contains(s.logged(), "crossComputer.tlsRequired is false") {
		t.Errorf("exit %d, the log:\n%s", code, s.logged())
	}
}

// The refusals are an exit code and a line of the log each; standard output stays the protocol's.
func TestTheMCPServerRefusesToStart(t *testing.T) {
	p := newPlace(t)
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
				t.Errorf("the log has %s", line)
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
