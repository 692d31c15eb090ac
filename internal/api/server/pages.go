package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/api/screens"
	"github.com/parleyhub/parley/internal/base/caller"
)

const (
	// linkPath is the path of one-time links to the hub's page at pagePath.
	linkPath = "/ui/open/"
	pagePath = "/ui"
	// LinkLife is how long a link can be opened.
	LinkLife = time.Minute

	// viewPrefix begins the cookies of browsers that may change nothing, so that they get no further right when the hub that
	// made the cookie has ended.
	viewPrefix = "view-"

	maxLinks   = 16
	maxCookies = 64
)

// Pages are the browsers that may use the hub's page: the links to it that were not opened yet, and the cookies of
// those that were. They are kept in memory only, so that both end with the hub's run. The zero value is ready.
type Pages struct {
	mu      sync.Mutex
	links   []pageSecret // oldest first
	cookies []pageSecret // oldest first
}

// pageSecret is a link or a cookie. Only the hash of the secret is kept.
type pageSecret struct {
	hash     [sha256.Size]byte
	expires  time.Time // of a link
	viewOnly bool
}

// Link returns the path of a new link. It can be opened once, within LinkLife. With viewOnly, the browser that opens it
// can change nothing.
func (p *Pages) Link(viewOnly bool) (path string, expires time.Time) {
	secret := newSecret()
	p.mu.Lock()
	defer p.mu.Unlock()
	expires = time.Now().Add(LinkLife)
	p.links = appendBounded(p.links, pageSecret{sha256.Sum256([]byte(secret)), expires, viewOnly}, maxLinks)
	return linkPath + secret, expires
}

// open uses a link up. It returns the secret of a new cookie, "" if there is no such link.
func (p *Pages) open(link string) (cookie string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := find(p.links, link)
	if at < 0 {
		return ""
	}
	used := p.links[at]
	p.links = append(p.links[:at], p.links[at+1:]...)
	if !time.Now().Before(used.expires) {
		return ""
	}
	cookie = newSecret()
	if used.viewOnly {
		cookie = viewPrefix + cookie
	}
	p.cookies = appendBounded(p.cookies, pageSecret{hash: sha256.Sum256([]byte(cookie)), viewOnly: used.viewOnly}, maxCookies)
	return cookie
}

// right returns what the holder of a cookie may do.
func (p *Pages) right(cookie string) right {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch at := find(p.cookies, cookie); {
	case at < 0:
		return mayNothing
	case p.cookies[at].viewOnly:
		return mayView
	}
	return mayAll
}

// newSecret returns 256 random bits for a URL or a cookie.
func newSecret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// find compares hashes: how long that takes says nothing about the secret.
func find(list []pageSecret, secret string) int {
	hash := sha256.Sum256([]byte(secret))
	for i := range list {
		if list[i].hash == hash {
			return i
		}
	}
	return -1
}

func appendBounded(list []pageSecret, s pageSecret, limit int) []pageSecret {
	if len(list) == limit {
		list = append(list[:0], list[1:]...)
	}
	return append(list, s)
}

// right is what a request may do.
type right int

const (
	mayNothing right = iota
	mayView
	mayAll
)

// rightOf returns what a request may do: what the cookie of the hub's page says, or else all if it is permitted without. page
// reports whether a cookie says it.
func (s *Server) rightOf(r *http.Request, foreign bool) (may right, page bool) {
	if s.cfg.Pages != nil && r.Header.Get("Authorization") == "" && fromOwnPage(r, foreign) {
		for _, c := range r.CookiesNamed(s.cookieName()) {
			if may := s.cfg.Pages.right(c.Value); may != mayNothing || strings.HasPrefix(c.Value, viewPrefix) {
				return may, true
			}
		}
	}
	if s.access.permitted(r) {
		return mayAll, false
	}
	return mayNothing, false
}

// fromOwnPage reports whether a cookie counts in a request. Cookies are sent to all ports of a computer, so that the
// server of another user may have seen it; and SameSite lets through the pages of other ports.
func fromOwnPage(r *http.Request, foreign bool) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return !foreign && callerOf(r).Kind != caller.Other && (site == "" || site == "same-origin" || site == "none")
}

// cookieName has the port: browsers keep the cookies of all ports of a computer together.
func (s *Server) cookieName() string {
	port := ""
	if a, ok := s.httpAddr.(*net.TCPAddr); ok {
		port = "-" + a.AddrPort().String()[strings.LastIndexByte(a.AddrPort().String(), ':')+1:]
	}
	return "parley-ui" + port
}

// forwardPage shows the page. It is no redirect: browsers would not send the cookie if another site had the link.
const forwardPage = `<!doctype html><html lang="en"><meta charset="utf-8"><title>Parley</title><meta http-equiv="refresh" content="0;url=` + pagePath + `"><a href="` + pagePath + `">Parley</a></html>`

// openPage answers a link to the hub's page with its cookie. It reports whether the request is for a link.
func (s *Server) openPage(w *response, r *http.Request) bool {
	link, ok := strings.CutPrefix(r.URL.Path, linkPath)
	if !ok || s.cfg.Pages == nil || r.Method != http.MethodGet {
		return false
	}
	if callerOf(r).Kind == caller.Other {
		s.requireToken(w, r)
		return true
	}
	cookie := s.cfg.Pages.open(link)
	if cookie == "" {
		s.forbid(w, r, "this link was opened before, or is older than a minute", "make another one: parley ui --web")
		return true
	}
	http.SetCookie(w, &http.Cookie{Name: s.cookieName(), Value: cookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write([]byte(forwardPage)) // fails only if the client has disconnected
	return true
}

// viewable reports whether a request can change nothing, as far as its path says it; see changes for the calls.
func viewable(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return r.Header.Get("Upgrade") == ""
	case http.MethodPost:
		return r.URL.Path == "/" || r.URL.Path == "/stream"
	}
	return false
}

// changes reports whether a call may change something.
func changes(calls []jsonrpc.Call) bool {
	for _, c := range calls {
		if c.Err == nil && !dialect.ReadsOnly(c.Request.Method) {
			return true
		}
	}
	return false
}

type pageKey struct{}

// withRight records what a request may do, for the handlers.
func withRight(ctx context.Context, may right, page bool) context.Context {
	if may == mayView {
		ctx = screens.WithViewOnly(ctx)
	}
	if !page {
		return ctx
	}
	return context.WithValue(ctx, pageKey{}, true)
}

// dispatcher returns the one for a request: the page of the hub's user has more methods than other clients over HTTP.
func (s *Server) dispatcher(r *http.Request) *jsonrpc.Dispatcher {
	if page, _ := r.Context().Value(pageKey{}).(bool); page {
		return s.pageCalls
	}
	return s.calls
}

const (
	viewOnlyMessage = "this browser may only look"
	viewOnlyRemedy  = "open the page without --view-only: parley ui --web"
)
