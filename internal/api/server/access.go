package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/parleyhub/parley/internal/base/caller"
	"github.com/parleyhub/parley/internal/hub"
)

// minToken is the minimum length of a token on addresses other than loopback.
const minToken = 16

// access controls access to the HTTP server.
type access struct {
	token   [sha256.Size]byte // the configured one, or the local one
	guarded bool              // every request needs the token, not only those of other users
	anyIP   bool              // the server listens on all addresses, so any IP is a valid host
	hosts   []string
	origins []string
}

func newAccess(cfg Config) (access, error) {
	host, _, err := net.SplitHostPort(cfg.HTTP)
	if err != nil {
		return access{}, &Error{Code: CodeConfig, Message: "the HTTP address " + cfg.HTTP + " is not host:port", Err: err}
	}
	a := access{hosts: trimmed(cfg.Hosts), origins: trimmed(cfg.Origins)}
	ip := net.ParseIP(host)
	a.anyIP = host == "" || (ip != nil && ip.IsUnspecified())
	if !a.anyIP {
		a.hosts = append(a.hosts, strings.ToLower(host))
	}
	for _, origin := range a.origins {
		if u, err := url.Parse(origin); err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" {
			return access{}, &Error{Code: CodeConfig, Message: "the allowed origin " + origin + " is not scheme://host[:port]", Err: err}
		}
	}
	local := isLoopback(host)
	switch {
	case cfg.Token == "" && !local:
		return access{}, errNeedsToken(cfg.HTTP)
	case cfg.Token != "" && !isToken(cfg.Token):
		return access{}, &Error{Code: CodeConfig, Message: "the token has characters other than letters, digits and -._~+/="}
	case cfg.Token != "" && !local && len(cfg.Token) < minToken:
		return access{}, &Error{Code: CodeConfig, Message: "the token is too short for an open network address", Remedy: "use at least 16 random characters"}
	}
	a.guarded = cfg.Token != ""
	a.token = sha256.Sum256([]byte(cmp.Or(cfg.Token, cfg.LocalToken)))
	return a, nil
}

func errNeedsToken(address string) error {
	return &Error{
		Code:    CodeConfig,
		Message: "listening on " + address + " would open the hub to other machines, and no token is configured",
		Remedy:  "configure a token, or listen on 127.0.0.1",
	}
}

// isToken reports whether a text is a valid bearer token.
func isToken(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		alnum := r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !alnum && !strings.ContainsRune("-._~+/=", r)
	})
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || ip != nil && ip.IsLoopback()
}

// hostAllowed reports whether a request's Host is one of the server's names. After DNS
// rebinding, a browser sends another name.
func (a *access) hostAllowed(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if isLoopback(host) || slices.Contains(a.hosts, host) {
		return true
	}
	return a.anyIP && net.ParseIP(host) != nil // an IP address cannot be rebound
}

// originAllowed reports whether the Origin of a browser's page may send requests: the
// server's own, none, or an allowed foreign one, which needs CORS headers.
func (a *access) originAllowed(r *http.Request) (ok, foreign bool) {
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return true, false
	}
	origin := strings.ToLower(origins[0])
	if len(origins) > 1 {
		return false, false
	}
	if slices.Contains(a.origins, origin) {
		return true, true
	}
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host == strings.ToLower(r.Host), false
}

// permitted reports whether the request has the token, or needs none: without a configured token, that of the user's own
// programs does not.
func (a *access) permitted(r *http.Request) bool {
	if !a.guarded && callerOf(r).Kind == caller.Own {
		return true
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		given = offeredToken(r)
	}
	if given = strings.TrimSpace(given); given == "" {
		return false
	}
	sum := sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(sum[:], a.token[:]) == 1
}

type callerKey struct{}

// withCaller records who made a connection, for its requests.
func withCaller(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, callerKey{}, caller.Of(conn))
}

// callerOf returns who made the connection of a request.
func callerOf(r *http.Request) caller.Caller {
	c, _ := r.Context().Value(callerKey{}).(caller.Caller)
	return c
}

// proxyHeaders are set by proxies and tunnels: whoever calls through one may be on another computer.
var proxyHeaders = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via", "Cf-Connecting-Ip", "True-Client-Ip"}

// senderOf returns who sends a request. It is a program of this computer only if the connection, the Host and the headers
// all say so. foreign is that of originAllowed.
func senderOf(r *http.Request, foreign bool) hub.Sender {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	direct := !foreign && callerOf(r).Kind != caller.Other && isLoopback(strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), ".")))
	for _, name := range proxyHeaders {
		direct = direct && len(r.Header[name]) == 0
	}
	sender := hub.ClientAt(r.RemoteAddr, direct)
	if foreign {
		sender = hub.Sender{Kind: hub.SenderA2A, ID: "page of " + strings.ToLower(r.Header.Get("Origin"))}
	}
	sender.Label = r.UserAgent()
	return sender
}

// tokenProtocol begins the WebSocket subprotocol with a page's token. Pages cannot set headers, and URLs are logged.
const tokenProtocol = "parley.token."

// offeredToken returns the token in a WebSocket request's subprotocols.
func offeredToken(r *http.Request) string {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return ""
	}
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for offer := range strings.SplitSeq(line, ",") {
			if token, ok := strings.CutPrefix(strings.TrimSpace(offer), tokenProtocol); ok {
				return token
			}
		}
	}
	return ""
}
