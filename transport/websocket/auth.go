package websocket

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// errUnauthorized says no more than that, so that nobody learns what was wrong.
var errUnauthorized = errors.New("the bearer token is missing or not known")

// Tokens lets in whoever shows one of these bearer tokens (RFC 6750). The keys
// are the peers' names, which their connections return as Peer. Tokens are
// compared in constant time; an empty one lets nobody in. Make them of at least
// 128 random bits, as crypto/rand.Text does. The map is copied.
func Tokens(tokens map[string]string) func(*http.Request) (peer string, err error) {
	type entry struct {
		peer string
		sum  [sha256.Size]byte
	}
	var entries []entry
	for peer, token := range tokens {
		if token != "" {
			entries = append(entries, entry{peer, sha256.Sum256([]byte(token))})
		}
	}
	return func(r *http.Request) (string, error) {
		headers := r.Header.Values("Authorization")
		if len(headers) != 1 {
			return "", errUnauthorized
		}
		scheme, token, _ := strings.Cut(headers[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", errUnauthorized
		}
		sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
		found := -1
		for i := range entries { // all of them, whichever it is
			found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], entries[i].sum[:]), i, found)
		}
		if found < 0 {
			return "", errUnauthorized
		}
		return entries[found].peer, nil
	}
}

// TokenFor is a Dialer's Token: it shows the token to one host, "name:port" as
// in the endpoint's address, and nothing to others.
func TokenFor(host, token string) func(context.Context, *url.URL) (string, error) {
	return func(_ context.Context, to *url.URL) (string, error) {
		if to.Host != host {
			return "", nil
		}
		return token, nil
	}
}

// loopback reports whether a host, a name or an address, is this machine.
func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
