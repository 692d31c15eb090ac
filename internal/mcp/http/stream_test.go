package http_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/wait"
	mcphttp "github.com/parleyhub/parley/internal/mcp/http"
)

// rig serves MCP, and says what becomes of the server's connections and requests.
type rig struct {
	server   *mcp.Server
	url      string
	handler  *mcphttp.Handler
	hijacked chan struct{}
	ended    chan struct{} // requests that are not a POST
}

func newRig(t *testing.T, opts mcphttp.Options) *rig {
	r := &rig{server: newServer(nil, nil), hijacked: make(chan struct{}, 10), ended: make(chan struct{}, 10)}
	always := func(*http.Request) *mcp.Server { return r.server }
	opts.Session, opts.Request = always, always
	r.handler = mcphttp.New(opts)
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("X-Test", "kept")
		r.handler.Serve(w, req, func() {
			if req.Method != http.MethodPost {
				r.ended <- struct{}{}
			}
		})
	}))
	web.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateHijacked {
			r.hijacked <- struct{}{}
		}
	}
	web.Start()
	t.Cleanup(func() {
		if err := r.handler.Close(); err != nil {
			t.Error(err)
		}
		web.Close()
	})
	r.url = web.URL
	return r
}

// begin begins a session and returns its id.
func (r *rig) begin(t *testing.T) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url, strings.NewReader(initialize))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	answer := r.do(t, req)
	defer answer.Body.Close()
	if _, err := io.ReadAll(answer.Body); err != nil {
		t.Fatal(err)
	}
	return answer.Header.Get("Mcp-Session-Id")
}

func (r *rig) do(t *testing.T, req *http.Request) *http.Response {
	t.Helper()
	req.Header.Set("Accept", "application/json, text/event-stream")
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// stream opens the stream of a session.
func (r *rig) stream(ctx context.Context, t *testing.T, session string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Mcp-Session-Id", session)
	return r.do(t, req)
}

// A stream is open for as long as its session, so it must not hold what the HTTP server keeps for a request in progress.
func TestAStreamTakesItsConnectionFromTheHTTPServer(t *testing.T) {
	r := newRig(t, mcphttp.Options{})
	answer := r.stream(t.Context(), t, r.begin(t))
	defer answer.Body.Close()
	<-r.hijacked
	if h := answer.Header; answer.StatusCode != http.StatusOK || h.Get("Content-Type") != "text/event-stream" || h.Get("X-Test") != "kept" || !answer.Close {
		t.Errorf("%d %v", answer.StatusCode, h)
	}
	mcp.AddTool(r.server, &mcp.Tool{Name: "another", Description: "Is new."}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{}, nil, nil
	})
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), "notifications/tools/list_changed") {
	}
	if err := lines.Err(); err != nil || lines.Text() == "" {
		t.Fatalf("the stream ended before the event: %v", err)
	}
	select {
	case <-r.ended:
		t.Error("the request counts as ended while its stream is open")
	default:
	}
	if err := r.handler.Close(); err != nil {
		t.Error(err)
	}
	<-r.ended
	if _, err := io.ReadAll(answer.Body); err != nil {
		t.Errorf("the answer has no end: %v", err)
	}
}

func TestAStreamEndsWithItsClient(t *testing.T) {
	r := newRig(t, mcphttp.Options{MaxSessions: 1, SpareAfter: time.Nanosecond})
	session := r.begin(t)
	ctx, cancel := context.WithCancel(t.Context())
	answer := r.stream(ctx, t, session)
	defer answer.Body.Close()
	if status, _ := post(t, r.url, initialize, nil); status != http.StatusServiceUnavailable {
		t.Errorf("a session whose stream is open was ended for another: %d", status)
	}
	cancel()
	<-r.ended
	second := r.stream(t.Context(), t, session) // has the place of the first
	defer second.Body.Close()
	if second.StatusCode != http.StatusOK {
		t.Errorf("the stream could not be opened again: %d", second.StatusCode)
	}
}

func TestARefusedStreamLeavesTheConnection(t *testing.T) {
	r := newRig(t, mcphttp.Options{})
	session := r.begin(t)
	first := r.stream(t.Context(), t, session)
	defer first.Body.Close()
	<-r.hijacked
	second := r.stream(t.Context(), t, session)
	defer second.Body.Close()
	if second.StatusCode != http.StatusConflict {
		t.Errorf("a second stream at once: %d", second.StatusCode)
	}
	unknown := r.stream(t.Context(), t, "unknown")
	defer unknown.Body.Close()
	if unknown.StatusCode != http.StatusNotFound {
		t.Errorf("a stream of an unknown session: %d", unknown.StatusCode)
	}
	<-r.ended
	<-r.ended
	if len(r.hijacked) > 0 {
		t.Error("a refused request lost its connection")
	}
}

// A client that does not read must not block those who send it events for ever.
func TestAStreamThatIsNotReadEnds(t *testing.T) {
	r := newRig(t, mcphttp.Options{WriteTimeout: time.Millisecond})
	answer := r.stream(t.Context(), t, r.begin(t))
	defer answer.Body.Close()
	<-r.hijacked
	large := strings.Repeat("x", 1<<20)
	for session := range r.server.Sessions() {
		wait.Eventually(t, "the client's buffers are full", func() bool {
			return session.NotifyProgress(t.Context(), &mcp.ProgressNotificationParams{ProgressToken: "x", Message: large}) != nil
		})
	}
}
