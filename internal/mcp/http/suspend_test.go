//lint:file-ignore SA1019 clients of the revisions up to 2025-11-25 still have logging

package http_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/wait"
	mcphttp "github.com/parleyhub/parley/internal/mcp/http"
)

// soon is SuspendAfter of most tests.
const soon = time.Millisecond

// resting serves sessions that are suspended at once, and counts what becomes of them.
type resting struct {
	url     string
	dial    func(ctx context.Context, network, addr string) (net.Conn, error) // nil for the usual one
	handler *mcphttp.Handler
	lists   [3]atomic.Uint64
	stay    atomic.Bool // sessions are not suspended
	wrong   atomic.Bool // restored servers give sessions other ids
	reached atomic.Pointer[func(moment)]

	suspended, restored, ended, released atomic.Int32
	calls                                atomic.Int32  // whose events are stored
	streams                              chan struct{} // of streams that have ended

	mu      sync.Mutex
	servers map[*mcp.Server]*memory // in use
}

// moment is one at which the lock of the handler is not held although a session changes.
type moment string

const (
	suspending moment = "suspending"
	suspended  moment = "suspended"
	restoring  moment = "restoring"
)

func (r *resting) reach(m moment) {
	if f := r.reached.Load(); f != nil {
		(*f)(m)
	}
}

// memory is what a session's server keeps while it is suspended.
type memory struct {
	rig   *resting
	calls atomic.Int32
	heard atomic.Value // what the present server was asked for first, a string
	began chan struct{}
	end   chan struct{}
}

// counted is an event store that counts the streams of calls.
type counted struct {
	mcp.EventStore
	*resting
}

func (c counted) Open(ctx context.Context, sessionID, streamID string) error {
	if streamID != "" {
		c.calls.Add(1)
	}
	return c.EventStore.Open(ctx, sessionID, streamID)
}

func startResting(t *testing.T, opts mcphttp.Options) *resting {
	r := &resting{}
	web := httptest.NewUnstartedServer(nil)
	web.Config.Handler = r.open(t, opts)
	web.Start()
	r.url = web.URL
	r.closeWith(t, web.Close)
	return r
}

// open makes the handler, and returns what serves its requests.
func (r *resting) open(t *testing.T, opts mcphttp.Options) http.Handler {
	r.servers, r.streams = map[*mcp.Server]*memory{}, make(chan struct{}, 1000)
	opts.Events = counted{mcp.NewMemoryEventStore(nil), r}
	if opts.SuspendAfter == 0 {
		opts.SuspendAfter = soon
	}
	opts.Session = func(*http.Request) *mcp.Server {
		return r.serverOf(&memory{rig: r, began: make(chan struct{}, 1), end: make(chan struct{})}, "")
	}
	opts.Request = func(*http.Request) *mcp.Server { return nil }
	opts.Release = func(s *mcp.Server) { r.released.Add(1); r.drop(s) }
	opts.Suspend = func(s *mcp.Server) func() mcphttp.Suspended {
		if r.stay.Load() {
			return nil
		}
		r.reach(suspending)
		return func() mcphttp.Suspended {
			r.reach(suspended)
			if n := len(collect(s)); n != 0 {
				t.Errorf("the server is dropped with %d connections", n)
			}
			m := r.drop(s)
			r.suspended.Add(1)
			return m
		}
	}
	opts.Lists = func() (n mcphttp.Lists) {
		for i := range n {
			n[i] = r.lists[i].Load()
		}
		return n
	}
	r.handler = mcphttp.New(opts)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.handler.Serve(w, req, func() {
			if req.Method == http.MethodGet {
				r.streams <- struct{}{}
			}
		})
	})
}

// closeWith has the handler closed at the end of the test, and then what serves it.
func (r *resting) closeWith(t *testing.T, end func()) {
	t.Cleanup(func() {
		if err := r.handler.Close(); err != nil {
			t.Error(err)
		}
		end()
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.servers) != 0 || r.handler.Sessions() != 0 {
			t.Errorf("%d servers of %d sessions remain", len(r.servers), r.handler.Sessions())
		}
	})
}

func (r *resting) serverOf(m *memory, id string) *mcp.Server {
	opts := &mcp.ServerOptions{}
	if id != "" {
		opts.GetSessionID = func() string { return id }
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, opts)
	m.heard.Store("")
	s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			m.heard.Store(m.heard.Load().(string) + " " + method)
			return next(ctx, method, req)
		}
	})
	type in struct {
		Text string `json:"text,omitempty"`
	}
	mcp.AddTool(s, &mcp.Tool{Name: "echo"}, func(_ context.Context, req *mcp.CallToolRequest, in in) (*mcp.CallToolResult, any, error) {
		calls := m.calls.Add(1)
		if err := req.Session.Log(context.Background(), &mcp.LoggingMessageParams{Level: "info", Data: in.Text}); err != nil {
			return nil, nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: in.Text}, &mcp.TextContent{Text: req.Session.ID()},
			&mcp.TextContent{Text: fmt.Sprint(calls)}, &mcp.TextContent{Text: req.Session.InitializeParams().ClientInfo.Name}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "history"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: m.heard.Load().(string)}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "wait"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		m.began <- struct{}{}
		<-m.end
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "waited"}}}, nil, nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.servers[s] = m
	return s
}

func (r *resting) drop(s *mcp.Server) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.servers[s]
	delete(r.servers, s)
	return m
}

// Restore implements mcphttp.Suspended.
func (m *memory) Restore(id string) *mcp.Server {
	m.rig.reach(restoring)
	m.rig.restored.Add(1)
	if m.rig.wrong.Load() {
		id += "x"
	}
	return m.rig.serverOf(m, id)
}

// End implements mcphttp.Suspended.
func (m *memory) End() { m.rig.ended.Add(1) }

// awaitSuspended waits until no session has a server.
func (r *resting) awaitSuspended(t *testing.T) {
	t.Helper()
	wait.Eventually(t, "all sessions are suspended", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.servers) == 0
	})
}

// heard is what a client was notified of.
type heard struct {
	session *mcp.ClientSession
	lists   chan string
	logged  chan string
}

func (r *resting) join(t *testing.T, revision string) *heard {
	t.Helper()
	stream := &streaming{open: make(chan struct{})}
	t.Cleanup(stream.CloseIdleConnections)
	h := &heard{lists: make(chan string, 1000), logged: make(chan string, 1000)}
	c := mcp.NewClient(&mcp.Implementation{Name: "client of " + revision, Version: "1"}, &mcp.ClientOptions{
		ToolListChangedHandler:     func(context.Context, *mcp.ToolListChangedRequest) { h.lists <- "tools" },
		ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { h.lists <- "resources" },
		PromptListChangedHandler:   func(context.Context, *mcp.PromptListChangedRequest) { h.lists <- "prompts" },
		LoggingMessageHandler:      func(_ context.Context, m *mcp.LoggingMessageRequest) { h.logged <- fmt.Sprint(m.Params.Data) },
	})
	defer r.stay.Store(r.stay.Swap(true)) // what the client says last is accepted before it is handled, which may take longer than soon
	var err error
	h.session, err = c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: r.url, HTTPClient: &http.Client{Transport: stream}},
		&mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.session.Close() }) // mostly for the second time
	<-stream.open
	wait.Eventually(t, "the server knows that the client is ready", func() bool { return r.isReady(h.session.ID()) })
	return h
}

// isReady reports whether the server of a new session has handled what begins one.
func (r *resting) isReady(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s, m := range r.servers {
		for _, session := range collect(s) {
			if session.ID() == id {
				return strings.HasSuffix(m.heard.Load().(string), "notifications/initialized")
			}
		}
	}
	return false
}

// echo calls the tool and returns the number of the session's calls that it says.
func (h *heard) echo(t *testing.T, text string) string {
	t.Helper()
	result, err := h.session.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": text}})
	if err != nil || len(result.Content) != 4 {
		t.Errorf("%s: %+v %v", text, result, err)
		return ""
	}
	said := func(i int) string { return result.Content[i].(*mcp.TextContent).Text }
	if said(0) != text || said(1) != h.session.ID() || !strings.HasPrefix(said(3), "client of ") {
		t.Errorf("%q in session %q of %q, not %q in %q", said(0), said(1), said(3), text, h.session.ID())
	}
	return said(2)
}

func TestASuspendedSessionIsTheSame(t *testing.T) {
	for _, revision := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		t.Run(revision, func(t *testing.T) {
			r := startResting(t, mcphttp.Options{})
			c := r.join(t, revision)
			r.awaitSuspended(t)
			if err := c.session.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
				t.Fatal(err)
			}
			r.awaitSuspended(t)
			before := r.restored.Load()
			for i := 1; i <= 5; i++ {
				r.awaitSuspended(t)
				text := fmt.Sprint("call ", i)
				if n := c.echo(t, text); n != fmt.Sprint(i) {
					t.Errorf("call %d is the %s. one", i, n)
				}
				if logged := <-c.logged; logged != text { // through the stream that was open meanwhile
					t.Errorf("logged %q", logged)
				}
			}
			if n := r.restored.Load() - before; n != 5 {
				t.Errorf("restored %d times", n)
			}
			r.awaitSuspended(t)
			result, err := c.session.CallTool(t.Context(), &mcp.CallToolParams{Name: "history"})
			if err != nil {
				t.Fatal(err)
			}
			if got := result.Content[0].(*mcp.TextContent).Text; got != " initialize notifications/initialized logging/setLevel tools/call" {
				t.Errorf("the restored server got%s", got)
			}
			if n := r.calls.Load(); n != 8 { // without those that restored it
				t.Errorf("the events of %d calls are kept", n)
			}
			if len(r.streams) > 0 {
				t.Error("the stream has ended")
			}
			if err := c.session.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestASuspendedSessionIsNotifiedOfLists(t *testing.T) {
	r := startResting(t, mcphttp.Options{})
	a, b := r.join(t, "2025-11-25"), r.join(t, "2025-06-18")
	r.awaitSuspended(t)
	before := r.restored.Load()
	for i, name := range []string{"tools", "resources", "prompts"} {
		r.lists[i].Add(2)
		r.handler.ListsChanged()
		for _, c := range []*heard{a, b} {
			if got := <-c.lists; got != name {
				t.Errorf("notified of %s, not %s", got, name)
			}
		}
	}
	if n := r.restored.Load() - before; n != 0 {
		t.Errorf("%d sessions were restored for notifications", n)
	}
	r.handler.ListsChanged() // nothing has changed
	for _, c := range []*heard{a, b} {
		c.echo(t, "after them")
		if len(c.lists) > 0 {
			t.Errorf("notified again of %s", <-c.lists)
		}
	}
}

// A change that nobody has reported yet when a session is restored would be lost: the SDK does not know of it.
func TestARestoredSessionIsNotifiedOfEarlierChanges(t *testing.T) {
	r := startResting(t, mcphttp.Options{})
	c := r.join(t, "2025-11-25")
	r.awaitSuspended(t)
	r.lists[2].Add(1)
	c.echo(t, "first")
	if got := <-c.lists; got != "prompts" {
		t.Errorf("notified of %s", got)
	}
}

// raw is a session without a client of the SDK.
type raw struct {
	*resting
	id string
}

func (r *resting) begin(t *testing.T, body string) raw {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer := r.send(t, req)
	defer answer.Body.Close()
	if _, err := io.ReadAll(answer.Body); err != nil {
		t.Fatal(err)
	}
	return raw{r, answer.Header.Get("Mcp-Session-Id")}
}

func (r *resting) send(t *testing.T, req *http.Request) *http.Response {
	t.Helper()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	answer, err := (&http.Transport{DisableKeepAlives: true, DialContext: r.dial}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// request sends a request of the session. The caller closes the answer.
func (s raw) request(ctx context.Context, t *testing.T, method, body, last string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, s.url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Mcp-Session-Id", s.id)
	req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	return s.send(t, req)
}

// event reads a line of a stream that has something.
func event(t *testing.T, lines *bufio.Scanner, has string) string {
	t.Helper()
	for lines.Scan() {
		if strings.Contains(lines.Text(), has) {
			return lines.Text()
		}
	}
	t.Errorf("the stream ended before %q: %v", has, lines.Err())
	return ""
}

const echo = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hi"}}}`

func TestASuspendedSessionIsResumed(t *testing.T) {
	r := startResting(t, mcphttp.Options{})
	s := r.begin(t, initialize)
	r.awaitSuspended(t)
	call := s.request(t.Context(), t, http.MethodPost, echo, "")
	lines := bufio.NewScanner(call.Body)
	first := strings.TrimPrefix(event(t, lines, "id: "), "id: ")
	answered := event(t, lines, "data: {")
	call.Body.Close()
	r.awaitSuspended(t)
	again := s.request(t.Context(), t, http.MethodGet, "", first)
	defer again.Body.Close()
	if got := event(t, bufio.NewScanner(again.Body), "data: {"); got != answered {
		t.Errorf("the answer to the call is %s, not %s", got, answered)
	}
	for i := range 3 { // without a stream
		r.awaitSuspended(t)
		r.lists[i].Add(1)
	}
	r.handler.ListsChanged()
	wait.Eventually(t, "the last notification is stored", func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		missed := s.request(ctx, t, http.MethodGet, "", "_1")
		defer missed.Body.Close()
		lines := bufio.NewScanner(missed.Body)
		lines.Scan() // the comment
		return missed.StatusCode == http.StatusOK && strings.Contains(event(t, lines, "id: "), "_2") && strings.Contains(event(t, lines, "data: {"), "prompts")
	})
}

func TestTheEndsOfASuspendedSession(t *testing.T) {
	gone := func(t *testing.T, s raw) {
		t.Helper()
		wait.Eventually(t, "the session is gone", func() bool { return s.handler.Sessions() == 0 })
		answer := s.request(t.Context(), t, http.MethodPost, echo, "")
		answer.Body.Close()
		if answer.StatusCode != http.StatusNotFound {
			t.Errorf("a request after the end: %d", answer.StatusCode)
		}
	}
	for name, tc := range map[string]struct {
		opts mcphttp.Options
		end  func(t *testing.T, s raw)
	}{
		"the client ends it": {mcphttp.Options{}, func(t *testing.T, s raw) {
			answer := s.request(t.Context(), t, http.MethodDelete, "", "")
			answer.Body.Close()
			if answer.StatusCode != http.StatusNoContent {
				t.Errorf("%d", answer.StatusCode)
			}
			gone(t, s)
		}},
		"its time is over": {mcphttp.Options{SessionTimeout: 300 * time.Millisecond}, gone},
		"the handler is closed": {mcphttp.Options{}, func(t *testing.T, s raw) {
			if err := s.handler.Close(); err != nil {
				t.Error(err)
			}
			gone(t, s)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := startResting(t, tc.opts)
			s := r.begin(t, initialize)
			stream := s.request(t.Context(), t, http.MethodGet, "", "")
			defer stream.Body.Close()
			r.awaitSuspended(t)
			tc.end(t, s)
			if _, err := io.ReadAll(stream.Body); err != nil {
				t.Errorf("the stream has no end: %v", err)
			}
			<-r.streams
			wait.Eventually(t, "what is left of it is released", func() bool { return r.ended.Load()+r.released.Load() == 1 })
		})
	}
}

func TestASuspendedSessionIsReplacedByANewOne(t *testing.T) {
	r := startResting(t, mcphttp.Options{MaxSessions: 1, SpareAfter: time.Nanosecond})
	r.begin(t, initialize)
	r.awaitSuspended(t)
	if s := r.begin(t, initialize); s.id == "" {
		t.Error("there is no second session")
	}
	wait.Eventually(t, "the first is released", func() bool { return r.ended.Load() == 1 })
	used := r.begin(t, initialize)
	stream := used.request(t.Context(), t, http.MethodGet, "", "")
	defer stream.Body.Close()
	r.awaitSuspended(t)
	if s := r.begin(t, initialize); s.id != "" {
		t.Error("a suspended session whose stream is open was ended for another")
	}
}

func TestASessionThatCannotBeRestoredEnds(t *testing.T) {
	r := startResting(t, mcphttp.Options{})
	s := r.begin(t, initialize)
	r.awaitSuspended(t)
	r.wrong.Store(true)
	answer := s.request(t.Context(), t, http.MethodPost, echo, "")
	answer.Body.Close()
	if answer.StatusCode != http.StatusNotFound {
		t.Errorf("%d", answer.StatusCode)
	}
	wait.Eventually(t, "its server is released", func() bool { return r.released.Load() == 1 && r.handler.Sessions() == 0 })
}

func TestTheClientOfASuspendedSessionGoes(t *testing.T) {
	r := startResting(t, mcphttp.Options{})
	s := r.begin(t, initialize)
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		stream := s.request(ctx, t, http.MethodGet, "", "")
		r.awaitSuspended(t)
		cancel()
		stream.Body.Close()
		<-r.streams
	}
	answer := s.request(t.Context(), t, http.MethodPost, echo, "")
	defer answer.Body.Close()
	event(t, bufio.NewScanner(answer.Body), `"hi"`)
}

// A call goes on when its client is gone: the answer can be fetched later, also if the session becomes idle before the answer is stored.
func TestASessionWithACallIsNotSuspended(t *testing.T) {
	r := startResting(t, mcphttp.Options{})
	r.stay.Store(true)
	s := r.begin(t, initialize)
	returned, store := make(chan struct{}), make(chan struct{})
	server, m := r.only(t)
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			result, err := next(ctx, method, req)
			close(returned)
			<-store
			return result, err
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	call := s.request(ctx, t, http.MethodPost, waits, "")
	first := strings.TrimPrefix(event(t, bufio.NewScanner(call.Body), "id: "), "id: ")
	<-m.began
	cancel()
	call.Body.Close()
	r.stay.Store(false)
	r.beginSuspended(t)
	r.only(t)
	close(m.end)
	<-returned
	r.beginSuspended(t)
	r.only(t)
	close(store)
	r.awaitSuspended(t)
	again := s.request(t.Context(), t, http.MethodGet, "", first)
	defer again.Body.Close()
	event(t, bufio.NewScanner(again.Body), "waited")
}

// only returns the only server in use.
func (r *resting) only(t *testing.T) (*mcp.Server, *memory) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.servers) != 1 {
		t.Fatalf("%d servers are in use", len(r.servers))
	}
	for s, m := range r.servers {
		return s, m
	}
	return nil, nil
}

// beginSuspended begins a session, and waits until it is suspended.
func (r *resting) beginSuspended(t *testing.T) {
	t.Helper()
	before := r.suspended.Load()
	r.begin(t, initialize)
	wait.Eventually(t, "the session is suspended", func() bool { return r.suspended.Load() > before })
}

// rival is what meets a session that is being suspended or restored.
type rival struct {
	r       *resting
	s       raw
	leave   func()         // ends the client's stream
	stream  *bufio.Scanner // of the client
	others  *bufio.Scanner // of another one, whose session is suspended
	work    sync.WaitGroup
	answers chan string // to calls, with their status
	calls   int
}

// do sends a request, with an id of its own.
func (x *rival) do(t *testing.T, method, body string) {
	x.calls++
	body = strings.Replace(body, `"id":7`, fmt.Sprintf(`"id":%d`, x.calls), 1)
	x.work.Go(func() {
		req, err := http.NewRequestWithContext(t.Context(), method, x.r.url, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header = http.Header{"Mcp-Session-Id": {x.s.id}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
		answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Error(err)
			return
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Error(err)
		}
		x.answers <- fmt.Sprint(answer.StatusCode, " ", string(text))
	})
}

// succeed waits for the calls, all of which succeed.
func (x *rival) succeed(t *testing.T) {
	t.Helper()
	for x.work.Wait(); len(x.answers) > 0; {
		if got := <-x.answers; !strings.HasPrefix(got, "200 ") || !strings.Contains(got, `"hi"`) {
			t.Errorf("a call: %s", got)
		}
	}
}

// Whatever meets a session that is being suspended or restored, has the same end as at any other time.
func TestWhatMeetsASuspensionOrARestoration(t *testing.T) {
	for name, c := range map[string]struct{ meet, after func(*testing.T, *rival) }{
		"a call": {
			func(t *testing.T, x *rival) { x.do(t, http.MethodPost, echo) },
			func(t *testing.T, x *rival) { x.succeed(t) },
		},
		"a change of a list": {
			func(t *testing.T, x *rival) {
				x.r.lists[1].Add(1)
				x.r.handler.ListsChanged()
				event(t, x.others, resourcesChanged)
			},
			func(t *testing.T, x *rival) { event(t, x.stream, resourcesChanged) },
		},
		"the end of its client": {
			func(_ *testing.T, x *rival) { x.leave(); <-x.r.streams },
			func(t *testing.T, x *rival) {
				x.do(t, http.MethodPost, echo)
				x.succeed(t)
				x.r.awaitSuspended(t)
			},
		},
		"its deletion": {
			func(t *testing.T, x *rival) { x.do(t, http.MethodDelete, "") },
			func(t *testing.T, x *rival) {
				<-x.r.streams
				wait.Eventually(t, "its end", func() bool { return x.r.handler.Sessions() == 1 && x.r.ended.Load()+x.r.released.Load() == 1 })
			},
		},
		"the end of the handler": {
			func(t *testing.T, x *rival) {
				x.work.Go(func() {
					if err := x.r.handler.Close(); err != nil {
						t.Error(err)
					}
				})
			},
			func(_ *testing.T, x *rival) { <-x.r.streams },
		},
	} {
		for _, m := range []moment{suspending, suspended, restoring} {
			t.Run(name+" while it is "+string(m), func(t *testing.T) {
				t.Parallel()
				x := meetSession(t, m, c.meet)
				c.after(t, x)
				x.leave()
			})
		}
	}
}

const resourcesChanged = "notifications/resources/list_changed"

// meetSession has meet called while a session is suspended or restored, and returns when that, and what meet has begun, has ended.
func meetSession(t *testing.T, at moment, meet func(*testing.T, *rival)) *rival {
	r := startResting(t, mcphttp.Options{})
	other := r.begin(t, initialize).request(t.Context(), t, http.MethodGet, "", "")
	t.Cleanup(func() { other.Body.Close() })
	r.awaitSuspended(t)
	r.stay.Store(true)
	x := &rival{r: r, others: bufio.NewScanner(other.Body), s: r.begin(t, initialize), answers: make(chan string, 10)}
	ctx, leave := context.WithCancel(t.Context())
	stream := x.s.request(ctx, t, http.MethodGet, "", "")
	x.stream, x.leave = bufio.NewScanner(stream.Body), func() { leave(); stream.Body.Close() }
	reached, goOn := make(chan struct{}), make(chan struct{})
	stop := sync.OnceFunc(func() { close(reached); <-goOn })
	hook := func(m moment) {
		if m == at {
			stop()
		}
	}
	r.reached.Store(&hook)
	r.stay.Store(false)
	if at == restoring {
		r.awaitSuspended(t)
		x.do(t, http.MethodPost, echo)
	}
	<-reached
	meet(t, x)
	close(goOn)
	x.work.Wait()
	return x
}

func TestWhatIsNotSuspended(t *testing.T) {
	large := strings.Replace(initialize, `"name":"c"`, `"name":"`+strings.Repeat("x", 20_000)+`"`, 1)
	for name, tc := range map[string]struct {
		body string
		stay bool
	}{"a session whose server stays": {initialize, true}, "a session that began with a large request": {large, false}} {
		t.Run(name, func(t *testing.T) {
			r := startResting(t, mcphttp.Options{})
			r.stay.Store(tc.stay)
			s := r.begin(t, tc.body)
			r.begin(t, initialize)
			if !tc.stay {
				wait.Eventually(t, "the other session is suspended", func() bool { return r.suspended.Load() == 1 })
			}
			answer := s.request(t.Context(), t, http.MethodPost, echo, "")
			defer answer.Body.Close()
			event(t, bufio.NewScanner(answer.Body), `"hi"`)
			if n := r.restored.Load(); n != 0 {
				t.Errorf("restored %d times", n)
			}
		})
	}
}

// Sessions that are suspended all the time lose nothing and mix nothing up, whatever comes meanwhile.
func TestSessionsSurviveHundredsOfSuspensions(t *testing.T) {
	r := startResting(t, mcphttp.Options{})
	const sessions, rounds = 6, 60
	var clients []*heard
	for i := range sessions {
		clients = append(clients, r.join(t, []string{"2025-03-26", "2025-06-18", "2025-11-25"}[i%3]))
	}
	var work sync.WaitGroup
	for i, c := range clients {
		if err := c.session.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
			t.Fatal(err)
		}
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			var calls []string
			for round := range rounds {
				wait.Pause(t.Context(), time.Duration(random.IntN(12))*time.Millisecond)
				var both sync.WaitGroup
				var mu sync.Mutex
				for k := range 1 + random.IntN(2) {
					both.Go(func() {
						n := c.echo(t, fmt.Sprint(i, " ", round, " ", k))
						mu.Lock()
						calls = append(calls, n)
						mu.Unlock()
					})
				}
				both.Wait()
			}
			slices.Sort(calls)
			if distinct := len(slices.Compact(slices.Clone(calls))); distinct != len(calls) {
				t.Errorf("session %d has counted %d calls as %d", i, len(calls), distinct)
			}
			for range calls { // each is logged once, through the stream
				<-c.logged
			}
			if len(c.logged) > 0 {
				t.Errorf("session %d has a message too many: %s", i, <-c.logged)
			}
		})
	}
	work.Wait()
	if n := r.suspended.Load(); n < 100 {
		t.Errorf("only %d suspensions", n)
	}
	r.awaitSuspended(t)
}
