package server_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/base/caller"
)

const pageToken = "0123456789abcdef"

// startPages runs a server with a token and pages, behind which there is a page and a WebSocket's path.
func startPages(t *testing.T, token string) (*rig, *server.Pages) {
	t.Helper()
	pages := &server.Pages{}
	r := start(t, func(c *server.Config) {
		c.Token, c.Pages, c.Origins = token, pages, []string{"https://allowed.example"}
	})
	r.Mount("GET /ui", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("the page")) }))
	return r, pages
}

// cookieOf opens a link and returns the header of its cookie.
func (r *rig) cookieOf(t *testing.T, link string) string {
	t.Helper()
	got := r.do(t, "GET", link, "")
	set := got.header.Get("Set-Cookie")
	cookie, attributes, _ := strings.Cut(set, "; ")
	if got.status != http.StatusOK || attributes != "Path=/; HttpOnly; SameSite=Strict" || !strings.Contains(got.body, "url=/ui\"") ||
		got.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%+v", got)
	}
	return cookie
}

func TestALinkOpensThePageOnce(t *testing.T) {
	r, pages := startPages(t, pageToken)
	if got := r.do(t, "GET", "/ui", ""); got.status != http.StatusUnauthorized || !strings.Contains(got.body, "parley ui --web") {
		t.Errorf("without a cookie: %+v", got)
	}
	link, _ := pages.Link(false)
	for _, other := range []string{link + "x", "/ui/open/", "/ui/open/nope"} {
		if got := r.do(t, "GET", other, ""); got.status != http.StatusForbidden || got.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %+v", other, got)
		}
	}
	for _, method := range []string{"HEAD", "POST"} {
		if got := r.do(t, method, link, ""); got.status != http.StatusUnauthorized || got.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %+v", method, got)
		}
	}
	cookie := r.cookieOf(t, link)
	if got := r.do(t, "GET", link, ""); got.status != http.StatusForbidden || got.header.Get("Set-Cookie") != "" {
		t.Errorf("a second time: %+v", got)
	}
	if got := r.do(t, "GET", "/ui", "", "Cookie", cookie); got.status != http.StatusOK || got.body != "the page" {
		t.Errorf("the page: %+v", got)
	}
	want(t, r.post(t, "/", rpc(1, "message/send", sendParams("hello")), "Cookie", cookie, "Sec-Fetch-Site", "same-origin", "Origin", r.url).body, "1 ok")
	for _, bad := range []string{cookie + "x", "parley-ui=" + cookie[strings.IndexByte(cookie, '=')+1:], cookie[:strings.IndexByte(cookie, '=')] + "="} {
		if got := r.do(t, "GET", "/ui", "", "Cookie", bad); got.status != http.StatusUnauthorized {
			t.Errorf("%s: %+v", bad, got)
		}
	}
	if got := r.do(t, "GET", "/ui", "", "Cookie", cookie, "Authorization", "Bearer wrong"); got.status != http.StatusUnauthorized {
		t.Errorf("with a wrong token: %+v", got)
	}
}

func TestACookieIsOfNoUseElsewhere(t *testing.T) {
	r, pages := startPages(t, pageToken)
	link, _ := pages.Link(false)
	cookie := r.cookieOf(t, link)
	call := rpc(1, "hub/status", `{}`)
	for name, header := range map[string][]string{
		"a page of another port":     {"Sec-Fetch-Site", "same-site"},
		"another site":               {"Sec-Fetch-Site", "cross-site"},
		"another origin":             {"Origin", "http://127.0.0.1:1"},
		"an allowed other origin":    {"Origin", "https://allowed.example"},
		"a name that leads here":     {"Host", "evil.example"},
		"another port in the Origin": {"Origin", "http://localhost:1", "Sec-Fetch-Site", "same-site"},
	} {
		got := r.post(t, "/", call, append([]string{"Cookie", cookie}, header...)...)
		if got.status != http.StatusUnauthorized && got.status != http.StatusForbidden {
			t.Errorf("%s: %+v", name, got)
		}
	}
	another, _ := startPages(t, pageToken)
	if got := another.post(t, "/", call, "Cookie", cookie); got.status != http.StatusUnauthorized {
		t.Errorf("another run: %+v", got)
	}
}

func TestAnotherUserCannotUseLinksAndCookies(t *testing.T) {
	for name, token := range map[string]string{"with a token": pageToken, "without": ""} {
		t.Run(name, func(t *testing.T) {
			r, pages := startPages(t, token)
			by := func(kind caller.Kind, path, cookie string) *httptest.ResponseRecorder {
				req := httptest.NewRequest("GET", path, nil)
				req.Host = "localhost"
				req.Header.Set("Cookie", cookie)
				w := httptest.NewRecorder()
				r.CalledBy(caller.Caller{Kind: kind}).ServeHTTP(w, req)
				return w
			}
			link, _ := pages.Link(false)
			if w := by(caller.Other, link, ""); w.Code != http.StatusUnauthorized || w.Header().Get("Set-Cookie") != "" {
				t.Errorf("a link: %d %v", w.Code, w.Header())
			}
			cookie, _, _ := strings.Cut(by(caller.Unknown, link, "").Header().Get("Set-Cookie"), ";") // the attempt did not use it up
			for kind, want := range map[caller.Kind]int{caller.Other: http.StatusUnauthorized, caller.Unknown: http.StatusOK, caller.Own: http.StatusOK} {
				if w := by(kind, "/ui", cookie); w.Code != want {
					t.Errorf("caller %d: %d %s", kind, w.Code, w.Body)
				}
			}
		})
	}
}

func TestAViewOnlyBrowserChangesNothing(t *testing.T) {
	for name, token := range map[string]string{"with a token": pageToken, "without": ""} {
		t.Run(name, func(t *testing.T) {
			r, pages := startPages(t, token)
			link, _ := pages.Link(true)
			cookie := r.cookieOf(t, link)
			for _, call := range []string{rpc(1, "hub/status", `{}`), rpc(1, "hub/tasks/page", `{}`), rpc(1, "hub/needs", `{}`)} {
				want(t, r.post(t, "/", call, "Cookie", cookie).body, "1 ok")
			}
			if got := r.do(t, "GET", "/ui", "", "Cookie", cookie); got.status != http.StatusOK {
				t.Errorf("the page: %+v", got)
			}
			for _, c := range []struct{ method, path, body string }{
				{"POST", "/", rpc(1, "message/send", sendParams("x"))}, {"POST", "/stream", rpc(1, "message/send", sendParams("x"))},
				{"POST", "/", rpc(1, "message/stream", sendParams("x"))}, {"POST", "/", rpc(1, "tasks/cancel", `{"id":"x"}`)},
				{"POST", "/", rpc(1, "hub/new", `{}`)}, {"POST", "/", `{"jsonrpc":"2.0","method":"tasks/cancel","params":{"id":"x"}}`},
				{"POST", "/", "[" + rpc(1, "hub/status", `{}`) + "," + rpc(2, "tasks/cancel", `{"id":"x"}`) + "]"},
				{"POST", "/mcp", "{}"}, {"POST", "/a2a", "{}"}, {"DELETE", "/mcp", ""}, {"PUT", "/", ""},
			} {
				if got := r.do(t, c.method, c.path, c.body, "Content-Type", "application/json", "Cookie", cookie); got.status != http.StatusForbidden || !strings.Contains(got.body, "may only look") {
					t.Errorf("%s %s %s: %+v", c.method, c.path, c.body, got)
				}
			}
			if got := r.do(t, "GET", "/ui", "", "Cookie", cookie, "Upgrade", "websocket"); got.status != http.StatusForbidden {
				t.Errorf("a WebSocket: %+v", got)
			}
			if got := r.post(t, "/", rpc(1, "hub/status", `{}`), "Cookie", cookie+"x"); got.status != http.StatusUnauthorized {
				t.Errorf("a cookie of an earlier run: %+v", got)
			}
		})
	}
}

// The page of the hub's user has methods that other clients over HTTP do not have, and only with its cookie.
func TestThePageHasItsOwnMethods(t *testing.T) {
	pages := &server.Pages{}
	r := start(t, func(c *server.Config) {
		c.Pages = pages
		c.PageHandler = jsonrpc.HandlerFunc(func(context.Context, jsonrpc.Request, jsonrpc.Emit) (any, error) { return "of the page", nil })
	})
	for _, viewOnly := range []bool{false, true} {
		link, _ := pages.Link(viewOnly)
		cookie := r.cookieOf(t, link)
		for _, path := range []string{"/", "/stream"} {
			if got := r.post(t, path, rpc(1, "hub/claims/list", `{}`), "Cookie", cookie); !strings.Contains(got.body, "of the page") {
				t.Errorf("view only %t, %s: %+v", viewOnly, path, got)
			}
		}
		if got := r.post(t, "/", rpc(1, "hub/claims/break", `{}`), "Cookie", cookie); (got.status == http.StatusForbidden) != viewOnly {
			t.Errorf("view only %t changes: %+v", viewOnly, got)
		}
		if got := r.post(t, "/", rpc(1, "hub/claims/list", `{}`), "Cookie", cookie, "Authorization", "Bearer x"); strings.Contains(got.body, "of the page") {
			t.Errorf("with a token: %+v", got)
		}
		if got := r.post(t, "/", rpc(1, "hub/claims/list", `{}`)); strings.Contains(got.body, "of the page") {
			t.Errorf("without the cookie: %+v", got)
		}
	}
}

func TestLinksEndAndAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pages := &server.Pages{}
		late, expires := pages.Link(false)
		if d := time.Until(expires); d != server.LinkLife {
			t.Errorf("a link lives %v", d)
		}
		time.Sleep(server.LinkLife)
		if pages.Opens(late) {
			t.Error("a link opens after its end")
		}
		first, _ := pages.Link(false)
		for range 16 {
			if link, _ := pages.Link(false); link == first {
				t.Fatal("the same link twice")
			}
		}
		if pages.Opens(first) {
			t.Error("links are not bounded")
		}
	})
}
