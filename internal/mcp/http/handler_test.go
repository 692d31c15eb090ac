package http_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/base/wait"
	mcphttp "github.com/parleyhub/parley/internal/mcp/http"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// endpoint serves server over HTTP until the test ends, and returns the URL.
func endpoint(t *testing.T, server *mcp.Server, opts mcphttp.Options) string {
	t.Helper()
	always := func(*http.Request) *mcp.Server { return server }
	if opts.Session == nil {
		opts.Session, opts.Request = always, always
	}
	h := mcphttp.New(opts)
	web := httptest.NewServer(h)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		web.Close()
		if n := len(collect(server)); n != 0 {
			t.Errorf("%d sessions remain", n)
		}
	})
	return web.URL
}

func collect(server *mcp.Server) (all []*mcp.ServerSession) {
	for s := range server.Sessions() {
		all = append(all, s)
	}
	return all
}

// newServer returns a server with the tools echo and wait. wait sends to began when it
// starts and to ended when its context ends.
func newServer(began, ended chan struct{}) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	type in struct {
		Text string `json:"text,omitempty"`
	}
	mcp.AddTool(s, &mcp.Tool{Name: "echo", Description: "Repeats the text."}, func(_ context.Context, req *mcp.CallToolRequest, in in) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: in.Text}, &mcp.TextContent{Text: req.Session.ID()}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "wait", Description: "Waits for the end."}, func(ctx context.Context, _ *mcp.CallToolRequest, _ in) (*mcp.CallToolResult, any, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return nil, nil, ctx.Err()
	})
	return s
}

func connect(t *testing.T, url, version string) *mcp.ClientSession {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return connectOver(t, transport, url, version)
}

func connectOver(t *testing.T, transport http.RoundTripper, url, version string) *mcp.ClientSession {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil)
	session, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: transport}},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() }) // mostly for the second time
	return session
}

// Every revision is served at the same URL, with a session where it has sessions.
func TestAllRevisionsAreServedAtOneURL(t *testing.T) {
	server := newServer(nil, nil)
	url := endpoint(t, server, mcphttp.Options{})
	for _, version := range []string{"2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			session := connect(t, url, version)
			for range 2 {
				result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "hi"}})
				if err != nil || len(result.Content) != 2 || result.Content[0].(*mcp.TextContent).Text != "hi" {
					t.Fatalf("%+v %v", result, err)
				}
				if id := result.Content[1].(*mcp.TextContent).Text; id != session.ID() || (id == "") != (version >= "2026-07-28") {
					t.Errorf("session %q, the client's is %q", id, session.ID())
				}
			}
			if err := session.Close(); err != nil {
				t.Error(err)
			}
			for _, left := range collect(server) {
				if left.ID() != "" { // the session of a single request ends with it, after the answer
					t.Errorf("session %s remains after the client's end", left.ID())
				}
			}
		})
	}
}

func post(t *testing.T, url, body string, headers map[string]string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range headers {
		if k == "Host" {
			r.Host = v
		}
		r.Header.Set(k, v)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

const (
	initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
	list       = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",
		"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
)

func TestHeadersAndBodiesAreChecked(t *testing.T) {
	url := endpoint(t, newServer(nil, nil), mcphttp.Options{MaxBody: 2000})
	for name, tc := range map[string]struct {
		body    string
		headers map[string]string
		status  int
		says    string
	}{
		"without sessions":             {list, map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}, 200, `"echo"`},
		"a method, no version":         {list, map[string]string{"Mcp-Method": "tools/list"}, 400, `-32020`},
		"a future revision":            {list, map[string]string{"Mcp-Protocol-Version": "2999-01-01", "Mcp-Method": "tools/list"}, 400, `2026-07-28`},
		"another's session":            {list, map[string]string{"Mcp-Session-Id": "stolen", "Mcp-Protocol-Version": "2025-11-25"}, 404, `session not found`},
		"a session in the later era":   {list, map[string]string{"Mcp-Session-Id": "stolen", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}, 404, `session not found`},
		"an unknown revision":          {initialize, map[string]string{"Mcp-Protocol-Version": "2025-01-01"}, 400, `Unsupported protocol version`},
		"another host":                 {initialize, map[string]string{"Host": "evil.example.com"}, 403, `Host`},
		"another host, later":          {list, map[string]string{"Host": "evil.example.com", "Mcp-Protocol-Version": "2026-07-28"}, 403, `Host`},
		"a body that is too large":     {strings.Repeat(" ", 2000) + list, map[string]string{"Mcp-Protocol-Version": "2026-07-28"}, 413, ``},
		"not JSON":                     {`{`, nil, 400, ``},
		"not JSON, later":              {`{`, map[string]string{"Mcp-Protocol-Version": "2026-07-28"}, 400, ``},
		"a type that is not JSON":      {initialize, map[string]string{"Content-Type": "text/plain"}, 415, ``},
		"a call without initialize":    {`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, nil, 200, `initializ`},
		"an empty header is no header": {initialize, map[string]string{"Mcp-Protocol-Version": "", "Mcp-Method": ""}, 200, `"protocolVersion":"2025-11-25"`},
	} {
		t.Run(name, func(t *testing.T) {
			if status, body := post(t, url, tc.body, tc.headers); status != tc.status || !strings.Contains(body, tc.says) {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

func TestHostIsNotCheckedTwice(t *testing.T) {
	url := endpoint(t, newServer(nil, nil), mcphttp.Options{HostChecked: true})
	if status, body := post(t, url, initialize, map[string]string{"Host": "hub.example.com"}); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
}

func TestSessionsAreBounded(t *testing.T) {
	server := newServer(nil, nil)
	url := endpoint(t, server, mcphttp.Options{MaxSessions: 2})
	first := connect(t, url, "2025-11-25")
	connect(t, url, "2025-06-18")
	if status, body := post(t, url, initialize, nil); status != http.StatusServiceUnavailable || !strings.Contains(body, "2 sessions") {
		t.Errorf("%d %s", status, body)
	}
	if _, err := first.ListTools(t.Context(), nil); err != nil {
		t.Errorf("an open session: %v", err)
	}
	if _, err := connect(t, url, "2026-07-28").ListTools(t.Context(), nil); err != nil {
		t.Errorf("a request without a session: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if status, body := post(t, url, initialize, nil); status != http.StatusOK {
		t.Errorf("after the end of a session: %d %s", status, body)
	}
}

// A client that has ended its session and begins another one is not refused.
func TestASessionThatIsDeletedIsNotCounted(t *testing.T) {
	for stored, store := range stores {
		t.Run(stored, func(t *testing.T) {
			t.Parallel()
			url := endpoint(t, newServer(nil, nil), mcphttp.Options{MaxSessions: 1, Events: store()})
			for range 200 {
				if err := connect(t, url, "2025-11-25").Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

var stores = map[string]func() mcp.EventStore{
	"nothing is stored": func() mcp.EventStore { return nil },
	"events are stored": func() mcp.EventStore { return mcp.NewMemoryEventStore(nil) },
}

// streaming reports when a session's stream for notifications is open.
type streaming struct {
	http.Transport
	once sync.Once
	open chan struct{}
}

func (s *streaming) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := s.Transport.RoundTrip(r)
	if r.Method == http.MethodGet {
		s.once.Do(func() { close(s.open) })
	}
	return answer, err
}

// Clients that are killed, and many others, do not delete their session.
func TestTheIdlestSessionIsClosedForANewOne(t *testing.T) {
	server := newServer(nil, nil)
	url := endpoint(t, server, mcphttp.Options{MaxSessions: 2, SpareAfter: time.Nanosecond})
	stream := &streaming{open: make(chan struct{})}
	defer stream.CloseIdleConnections()
	used := connectOver(t, stream, url, "2025-11-25")
	<-stream.open
	for range 5 {
		if status, body := post(t, url, initialize, nil); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
	}
	if _, err := used.ListTools(t.Context(), nil); err != nil {
		t.Errorf("the session in use: %v", err)
	}
}

func TestRequestsFailWithoutAServer(t *testing.T) {
	none := func(*http.Request) *mcp.Server { return nil }
	url := endpoint(t, newServer(nil, nil), mcphttp.Options{Session: none, Request: none, MaxSessions: 1})
	for range 2 { // the failed request must not count as a session
		for _, version := range []string{"2025-11-25", "2026-07-28"} {
			if status, body := post(t, url, initialize, map[string]string{"Mcp-Protocol-Version": version}); status != http.StatusBadRequest {
				t.Errorf("%s: %d %s", version, status, body)
			}
		}
	}
}

func TestASessionMayHaveAServerOfItsOwn(t *testing.T) {
	var made atomic.Int32
	url := endpoint(t, newServer(nil, nil), mcphttp.Options{
		Session: func(*http.Request) *mcp.Server { made.Add(1); return newServer(nil, nil) },
		Request: func(*http.Request) *mcp.Server { return nil },
	})
	for range 2 {
		session := connect(t, url, "2025-11-25")
		for range 3 {
			if _, err := session.ListTools(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := made.Load(); n != 2 {
		t.Errorf("%d servers for 2 sessions", n)
	}
}

func TestAServerIsReleasedOnceWhenItsSessionEnds(t *testing.T) {
	ends := map[string]func(t *testing.T, url string, h *mcphttp.Handler, s *mcp.ClientSession) error{
		"the client ends it": func(_ *testing.T, _ string, _ *mcphttp.Handler, s *mcp.ClientSession) error { return s.Close() },
		"another one replaces it": func(t *testing.T, url string, _ *mcphttp.Handler, _ *mcp.ClientSession) error {
			wait.Eventually(t, "another session", func() bool { // the last request may not have been counted as ended
				status, _ := post(t, url, initialize, nil)
				return status == http.StatusOK
			})
			return nil
		},
		"the handler is closed": func(_ *testing.T, _ string, h *mcphttp.Handler, _ *mcp.ClientSession) error { return h.Close() },
	}
	for stored, store := range stores {
		for name, end := range ends {
			t.Run(stored+", "+name, func(t *testing.T) {
				released := make(chan *mcp.Server, 10)
				h := mcphttp.New(mcphttp.Options{MaxSessions: 1, SpareAfter: time.Nanosecond, Events: store(),
					Session: func(*http.Request) *mcp.Server { return newServer(nil, nil) },
					Request: func(*http.Request) *mcp.Server { return nil },
					Release: func(s *mcp.Server) { released <- s }})
				web := httptest.NewServer(h)
				defer web.Close()
				transport := &http.Transport{}
				defer transport.CloseIdleConnections()
				s, err := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{
					Endpoint: web.URL, HTTPClient: &http.Client{Transport: transport}, DisableStandaloneSSE: true}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close() //nolint:errcheck // mostly for the second time
				if err := end(t, web.URL, h, s); err != nil {
					t.Fatal(err)
				}
				first := <-released
				if err := h.Close(); err != nil {
					t.Error(err)
				}
				close(released)
				for again := range released {
					if again == first {
						t.Error("the server was released twice")
					}
				}
				if n := h.Sessions(); n != 0 {
					t.Errorf("%d sessions remain", n)
				}
			})
		}
	}
}

// recorded is an event store that remembers what it got.
type recorded struct {
	mcp.EventStore
	mu   sync.Mutex
	data [][]byte
}

func (r *recorded) Append(ctx context.Context, sessionID, streamID string, data []byte) error {
	r.mu.Lock()
	r.data = append(r.data, data)
	r.mu.Unlock()
	return r.EventStore.Append(ctx, sessionID, streamID, data)
}

func TestEqualEventsAreStoredOnce(t *testing.T) {
	store := &recorded{EventStore: mcp.NewMemoryEventStore(nil)}
	url := endpoint(t, newServer(nil, nil), mcphttp.Options{Events: store})
	for i := range 30 { // each has an answer of its own besides
		if _, err := connect(t, url, "2025-11-25").CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": fmt.Sprint(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	answers, copies := 0, map[*byte]bool{}
	for _, data := range store.data {
		if strings.Contains(string(data), `"protocolVersion"`) {
			answers++
			copies[&data[0]] = true
		}
	}
	if answers != 30 || len(copies) != 1 {
		t.Errorf("%d answers to initialize are stored %d times", answers, len(copies))
	}
}

// What is large is not kept beyond its session.
func TestLargeEventsAreNotKept(t *testing.T) {
	store := &recorded{EventStore: mcp.NewMemoryEventStore(nil)}
	server, large := newServer(nil, nil), strings.Repeat("x", 300_000)
	server.AddTool(&mcp.Tool{Name: "large", Description: large, InputSchema: map[string]any{"type": "object"}}, nil)
	url := endpoint(t, server, mcphttp.Options{Events: store})
	for range 2 {
		if _, err := connect(t, url, "2025-11-25").ListTools(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	copies := map[*byte]bool{}
	for _, data := range store.data {
		if strings.Contains(string(data), large) {
			copies[&data[0]] = true
		}
	}
	if len(copies) != 2 {
		t.Errorf("two large answers are %d", len(copies))
	}
}

func TestARequestWithoutASessionDoesNotCount(t *testing.T) {
	url := endpoint(t, newServer(nil, nil), mcphttp.Options{MaxSessions: 1})
	for range 3 {
		if status, _ := post(t, url, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, nil); status != http.StatusOK {
			t.Errorf("%d", status)
		}
	}
	if status, body := post(t, url, initialize, nil); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
}

func TestCloseEndsSessionsAndStreams(t *testing.T) {
	server := newServer(nil, nil)
	always := func(*http.Request) *mcp.Server { return server }
	h := mcphttp.New(mcphttp.Options{Session: always, Request: always})
	web := httptest.NewServer(h)
	connect(t, web.URL, "2025-11-25") // keeps a stream open
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, web.URL, strings.NewReader(
		strings.Replace(strings.Replace(list, "tools/list", "subscriptions/listen", 1), `{"_meta"`, `{"notifications":{"toolsListChanged":true},"_meta"`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"} {
		r.Header.Set(k, v)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%+v %v", resp, err)
	}
	defer resp.Body.Close()
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(b), "acknowledged") {
		t.Errorf("the stream has %s, %v", b, err)
	}
	if status, _ := post(t, web.URL, initialize, nil); status != http.StatusServiceUnavailable {
		t.Errorf("after the end: %d", status)
	}
	web.Close() // waits for requests in flight
	if n := len(collect(server)); n != 0 {
		t.Errorf("%d sessions remain", n)
	}
}

func TestACallIsCanceledWhenItsClientDisconnects(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	url := endpoint(t, newServer(began, ended), mcphttp.Options{})
	session := connect(t, url, "2026-07-28")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "wait"})
		done <- err
	}()
	<-began
	cancel()
	<-ended
	if err := <-done; err == nil {
		t.Error("the call has a result")
	}
}
