package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testAgent answers with the prompt. For "wait" it reports so and blocks until free is
// called; for "chunks N" it answers in N chunks.
type testAgent struct {
	release chan struct{}
	once    sync.Once
}

func newTestAgent() *testAgent { return &testAgent{release: make(chan struct{})} }

func (a *testAgent) free() { a.once.Do(func() { close(a.release) }) }

func (a *testAgent) Probe(context.Context) runner.Probe {
	return runner.Probe{Stage: runner.StageAuthenticated, Version: "1.2.3"}
}

func (a *testAgent) Open(runner.SessionSpec) (runner.Session, error) { return a, nil }

func (a *testAgent) Close(context.Context) error { return nil }

func (a *testAgent) Turn(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
	var text string
	for _, p := range turn.Parts {
		text += p.Text()
	}
	var n int
	if _, err := fmt.Sscanf(text, "chunks %d", &n); err == nil {
		piece := strings.Repeat("x", 1000)
		for range n {
			h.Event(runner.TextDelta{Text: piece})
		}
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: strings.Repeat(piece, n)}, nil
	}
	h.Event(runner.TextDelta{Text: text})
	if text == "wait" {
		select {
		case <-a.release:
		case <-ctx.Done():
			return runner.Outcome{Status: runner.OutcomeCanceled}, nil
		}
	}
	return runner.Outcome{Status: runner.OutcomeCompleted, Text: text}, nil
}

// rig is a running server over a real hub.
type rig struct {
	*server.Server
	agent  *testAgent
	hub    *hub.Hub
	socket string
	url    string
}

// start runs a server for the test; change may alter its configuration.
func start(t testing.TB, change ...func(*server.Config)) *rig {
	t.Helper()
	r := &rig{agent: newTestAgent()}
	var err error
	r.hub, err = hub.New(t.Context(), hub.Config{Version: "1.0.0", Agents: []hub.Agent{{
		Definition: runner.Definition{
			ID: "echo", Name: "Echo", Driver: runner.DriverEcho, // which needs no working directory
			Limits: runner.Limits{Concurrency: 64, Queue: 20_000},
		},
		Runner: r.agent,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.agent.free()
		if err := r.hub.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	cards := &dialect.Directory{Agents: r.hub, Version: "1.0.0", BaseURL: func() string { return r.url }}
	service := dialect.New(dialect.Config{Hub: dialect.OnHub(r.hub), Cards: cards})
	cfg := server.Config{
		Socket: filepath.Join(t.TempDir(), "hub.sock"), SocketHandler: service,
		HTTP: "127.0.0.1:0", HTTPHandler: service, Cards: cards, Health: service.Health,
		Log: slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&cfg)
	}
	r.serve(t, cfg)
	return r
}

func (r *rig) serve(t testing.TB, cfg server.Config) {
	t.Helper()
	s, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // end connections that a test left open
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	r.Server, r.socket = s, cfg.Socket
	if s.Addr() != nil {
		r.url = "http://" + s.Addr().String()
	}
}

// handler returns an option that serves f instead of the hub.
func handler(f jsonrpc.HandlerFunc) func(*server.Config) {
	return func(c *server.Config) { c.SocketHandler, c.HTTPHandler = f, f }
}

func limits(l server.Limits) func(*server.Config) {
	return func(c *server.Config) { c.Limits = l }
}

func rpc(id int, method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params)
}

func sendParams(text string) string {
	return fmt.Sprintf(`{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":%q}],"metadata":{"targetAgent":"echo"}}}`, text)
}

// lineClient is a connection to the socket; each line is a JSON text.
type lineClient struct {
	t    testing.TB
	conn *net.UnixConn
	r    *bufio.Reader
}

func (r *rig) dial(t testing.TB) *lineClient {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: r.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	c := &lineClient{t: t, conn: conn, r: bufio.NewReaderSize(conn, 1<<20)}
	t.Cleanup(c.close)
	return c
}

func (c *lineClient) close() {
	if err := c.conn.Close(); err != nil && !strings.Contains(err.Error(), "closed") {
		c.t.Error(err)
	}
}

func (c *lineClient) write(lines ...string) {
	c.t.Helper()
	if _, err := io.WriteString(c.conn, strings.Join(lines, "\n")+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *lineClient) read() string {
	c.t.Helper()
	line, err := c.r.ReadString('\n')
	if err != nil {
		c.t.Fatalf("read %q: %v", line, err)
	}
	return strings.TrimSuffix(line, "\n")
}

// ended reads until the server closes the connection.
func (c *lineClient) ended() string {
	rest, err := io.ReadAll(c.r)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		c.t.Error(err)
	}
	return string(rest)
}

// verdict shortens a response to "id ok" or "id code NAME".
func verdict(t testing.TB, text string) string {
	t.Helper()
	var response struct {
		JSONRPC string
		ID      json.RawMessage
		Result  json.RawMessage
		Error   *jsonrpc.Error
	}
	if err := json.Unmarshal([]byte(text), &response); err != nil || response.JSONRPC != "2.0" {
		t.Fatalf("not a response: %.300q (%v)", text, err)
	}
	if response.Error != nil {
		return fmt.Sprintf("%s %d %s", response.ID, response.Error.Code, response.Error.Details().Code)
	}
	return fmt.Sprintf("%s ok", response.ID)
}

func want(t testing.TB, text, expected string) {
	t.Helper()
	if got := verdict(t, text); got != expected {
		t.Errorf("got %s, want %s: %.400s", got, expected, text)
	}
}

// reply is an HTTP response with its body.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r *rig) do(t testing.TB, method, path, body string, header ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Add(header[i], header[i+1])
	}
	return fetch(t, req)
}

func fetch(t testing.TB, req *http.Request) reply {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, body.String()}
}

func (r *rig) post(t testing.TB, path, body string, header ...string) reply {
	t.Helper()
	return r.do(t, http.MethodPost, path, body, append([]string{"Content-Type", "application/json"}, header...)...)
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
