//lint:file-ignore SA1019 clients of the revisions up to 2025-11-25 still have logging

package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// web is a Handler that is served over HTTP.
type web struct {
	t       testing.TB
	url     string
	handler *mcpserver.Handler

	mu     sync.Mutex
	opened map[string]int
}

func startWeb(t testing.TB, opts mcpserver.HandlerOptions) *web {
	t.Helper()
	n := startServer(t)
	w := &web{t: t, opened: map[string]int{}}
	opts.Open = func(dir string) (*mcpserver.Project, error) {
		w.mu.Lock()
		w.opened[dir]++
		w.mu.Unlock()
		if strings.Contains(dir, "wrong") {
			return nil, errors.New("the configuration is wrong:\n" + dir + "/.mcp-config.json:1:2: x: unknown key")
		}
		p, err := mcpserver.OpenProject(configOf("web"+strings.ReplaceAll(dir, "/", "-")), mcpserver.ProjectOptions{Version: "1", Dial: n.dial})
		if err == nil {
			mcpserver.BoundTokens(p, webTokens)
		}
		return p, err
	}
	w.handler = mcpserver.NewHandler(opts)
	site := httptest.NewServer(w.handler)
	w.url = site.URL + mcpserver.Path
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := w.handler.Close(ctx); err != nil {
			t.Error(err)
		}
		site.Close()
	})
	return w
}

func (w *web) times(dir string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened[dir]
}

// join connects a client of the revision to a project.
func (w *web) join(project, revision string) *agent {
	w.t.Helper()
	a := &agent{t: w.t, updated: make(chan string, 100), logged: make(chan *mcp.LoggingMessageParams, 100)}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { a.updated <- r.Params.URI },
	})
	transport := &http.Transport{}
	endpoint := w.url
	if project != "" {
		endpoint += "?project=" + url.QueryEscape(project)
	}
	var err error
	a.session, err = client.Connect(w.t.Context(), &mcp.StreamableClientTransport{Endpoint: endpoint, HTTPClient: &http.Client{Transport: transport}},
		&mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		a.session.Close() // the test may have closed it
		transport.CloseIdleConnections()
	})
	return a
}

var (
	earlier = []string{"2025-03-26", "2025-06-18", "2025-11-25"}
	later   = "2026-07-28"
)

func TestSessionsOverHTTPHaveTheirOwnHandles(t *testing.T) {
	w := startWeb(t, mcpserver.HandlerOptions{})
	for _, revision := range earlier {
		t.Run(revision, func(t *testing.T) {
			project := "/p/" + revision
			a, b := w.join(project, revision).named("ann"), w.join(project, revision).named("bob")
			a.send("roadmap", "from a")
			b.send("roadmap", "from b")
			want := "Messages from #roadmap:\n\n[TIME] **ann**: from a\n[TIME] **bob**: from b"
			if got := timeless(w.join(project, revision).read("roadmap")); got != want {
				t.Error(got)
			}
			if got := a.must("get_my_handle", nil); got.content["handle"] != "ann" {
				t.Error(got.text)
			}
			if w.times(project) != 1 {
				t.Errorf("the project was opened %d times", w.times(project))
			}
		})
	}
	if got := w.join("/p/another", later).read("roadmap"); got != "No messages in #roadmap" {
		t.Error("another project reads " + got)
	}
}

// In a revision without sessions, the server creates a token that identifies the agent;
// no other agent sees it.
func TestATokenKeepsTheHandleWithoutSessions(t *testing.T) {
	w := startWeb(t, mcpserver.HandlerOptions{})
	a := w.join("/p", later)
	set := a.must("set_handle", map[string]any{"handle": "ann"})
	token, _ := set.content["session"].(string)
	if len(token) < 20 || !strings.Contains(set.text, token) || !strings.HasPrefix(set.text, "Handle set to: ann\n") {
		t.Fatal(set.text)
	}
	send := func(arguments map[string]any) called {
		arguments["channel"], arguments["message"] = "roadmap", "hello"
		return a.call("send_message", arguments)
	}
	if c := send(map[string]any{"session": token}); c.isError || c.text != "Message sent to #roadmap by ann" {
		t.Error(c.text)
	}
	for _, wrong := range []map[string]any{{}, {"session": ""}} {
		if c := send(wrong); !c.isError || !strings.Contains(c.text, "set_handle") || !strings.Contains(c.text, "session") {
			t.Error(c.text)
		}
	}
	if c := send(map[string]any{"session": "WRONG"}); !c.isError || !strings.Contains(c.text, "not known") {
		t.Error(c.text)
	}
	// A second agent and a new name of the first do not change each other's token.
	other := w.join("/p", later).must("set_handle", map[string]any{"handle": "bob"}).content["session"].(string)
	if renamed := a.must("set_handle", map[string]any{"handle": "anna", "session": token}); renamed.content["session"] != token {
		t.Errorf("renaming gave %v", renamed.content)
	}
	for want, token := range map[string]string{"anna": token, "bob": other} {
		if c := a.must("get_my_handle", map[string]any{"session": token}); c.content["handle"] != want {
			t.Error(c.text)
		}
	}
	read := a.must("read_messages", map[string]any{"channel": "roadmap"})
	if all := fmt.Sprintf("%+v", read); strings.Contains(all, token) || strings.Contains(all, other) {
		t.Errorf("a token is visible: %s", all)
	}
	if c := w.join("/other", later).call("get_my_handle", map[string]any{"session": token}); !c.isError {
		t.Error("a token is valid in another project: " + c.text)
	}
	// A wait returns the messages since the session's last read.
	w.join("/p", later).must("send_message", map[string]any{"channel": "errors", "message": "it burns", "session": other})
	if c := a.must("wait_for_messages", map[string]any{"session": token}); !strings.Contains(c.text, "**bob**: it burns") {
		t.Error(c.text)
	}
}

// webTokens is the limit of tokens for the clients of a web.
const webTokens = 200

// The least recently used tokens become invalid.
func TestTokensAreBounded(t *testing.T) {
	w := startWeb(t, mcpserver.HandlerOptions{})
	a := w.join("", later)
	mint := func() string {
		return a.must("set_handle", map[string]any{"handle": "a"}).content["session"].(string)
	}
	first, second := mint(), mint()
	for range webTokens - 2 {
		mint()
	}
	a.must("get_my_handle", map[string]any{"session": first})
	mint()
	if c := a.call("get_my_handle", map[string]any{"session": second}); !c.isError {
		t.Error("the least recently used token is still valid")
	}
	a.must("get_my_handle", map[string]any{"session": first})
}

func TestWaitingAndSubscriptionsOverHTTP(t *testing.T) {
	w := startWeb(t, mcpserver.HandlerOptions{})
	sender := w.join("/p", "2025-11-25").named("sender")
	t.Run("earlier", func(t *testing.T) {
		a := w.join("/p", "2025-11-25")
		if err := a.session.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "parley://channels/roadmap"}); err != nil {
			t.Fatal(err)
		}
		sender.send("roadmap", "news")
		if got := <-a.updated; got != "parley://channels/roadmap" {
			t.Error(got)
		}
	})
	t.Run("later", func(t *testing.T) {
		body := listenBody("parley://channels/errors")
		resp := w.post(body, map[string]string{"Mcp-Protocol-Version": later, "Mcp-Method": "subscriptions/listen"}, "/p")
		defer resp.Body.Close()
		events := make(chan string, 10)
		go func() {
			defer close(events)
			buf := make([]byte, 64<<10)
			for {
				n, err := resp.Body.Read(buf)
				if n > 0 {
					events <- string(buf[:n])
				}
				if err != nil {
					return
				}
			}
		}()
		if first := <-events; !strings.Contains(first, "acknowledged") {
			t.Fatal(first)
		}
		sender.send("errors", "news")
		if second := <-events; !strings.Contains(second, "notifications/resources/updated") || !strings.Contains(second, "parley://channels/errors") {
			t.Error(second)
		}
	})
}

func listenBody(uri string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{%s,"notifications":{"resourceSubscriptions":[%q]}}}`, meta2026, uri)
}

func (w *web) post(body string, headers map[string]string, project string) *http.Response {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), "POST", w.url+"?project="+url.QueryEscape(project), strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range headers {
		r.Header.Set(k, v)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp
}

const initializeLine = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`

func TestInvalidProjectsAreRefused(t *testing.T) {
	w := startWeb(t, mcpserver.HandlerOptions{MaxProjects: 2, MaxSessions: 1})
	status := func(project string) (int, string) {
		resp := w.post(initializeLine, nil, project)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	for project, want := range map[string]string{"relative/path": "absolute path", "/p/wrong": "/p/wrong/.mcp-config.json:1:2"} {
		code, body := status(project)
		var a answer
		if err := json.Unmarshal([]byte(body), &a); code != http.StatusBadRequest || err != nil || !strings.Contains(a.Error.Message, want) {
			t.Errorf("%s: %d %s", project, code, body)
		}
	}
	if w.times("/p/wrong") != 1 {
		t.Error("the invalid project was not opened exactly once")
	}
	if code, body := status("/p/1"); code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	if code, body := status("/p/1/../1/"); code != http.StatusServiceUnavailable || !strings.Contains(body, "sessions") {
		t.Errorf("a second session: %d %s", code, body)
	}
	for _, project := range []string{"/p/2", "/p/3", "/p/1"} { // each replaces the project that was idle for longest
		if code, body := status(project); code != http.StatusOK {
			t.Errorf("%s: %d %s", project, code, body)
		}
	}
	if w.times("/p/1") != 2 {
		t.Errorf("/p/1 was opened %d times", w.times("/p/1"))
	}
}

func TestProjectsInUseAreNotClosed(t *testing.T) {
	w := startWeb(t, mcpserver.HandlerOptions{MaxProjects: 1})
	listen := w.post(listenBody("parley://channels/errors"), map[string]string{"Mcp-Protocol-Version": later, "Mcp-Method": "subscriptions/listen"}, "/p/1")
	defer listen.Body.Close()
	if resp := w.post(initializeLine, nil, "/p/2"); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("got %d", resp.StatusCode)
	}
}

// Close answers waiting calls.
func TestClosingEndsWaits(t *testing.T) {
	w := startWeb(t, mcpserver.HandlerOptions{})
	a := w.join("/p", "2025-11-25").named("a")
	b := w.join("/p", later)
	answers := make(chan error, 2)
	for _, waiting := range []*agent{a, b} {
		go func() {
			c, err := waiting.try(t.Context(), "wait_for_messages", nil)
			if err == nil && !strings.Contains(c.text, "interrupted") {
				err = errors.New(c.text)
			} else {
				err = nil // answered, or ended with its connection
			}
			answers <- err
		}()
	}
	a.must("get_my_handle", nil)
	if err := w.handler.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if resp := w.post(initializeLine, nil, "/p"); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("after the end: %d", resp.StatusCode)
	}
}
