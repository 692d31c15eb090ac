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

// errUnauthorized does not say which part of the check failed.
var errUnauthorized = errors.New("the bearer token is missing or not known")

// Tokens returns an Authenticate function that accepts these bearer tokens (RFC 6750). The keys are the peers'
// names, which their connections return as Peer. Tokens are compared in constant time; an empty one is never
// accepted. A token should have at least 128 random bits, like those of crypto/rand.Text. The map is copied.
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
		for i := range entries { // always all of them: constant time
			found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], entries[i].sum[:]), i, found)
		}
		if found < 0 {
			return "", errUnauthorized
		}
		return entries[found].peer, nil
	}
}

// TokenFor returns a Token function for a Dialer that sends the token to one host, "name:port" as in the
// endpoint's address, and none to others.
func TokenFor(host, token string) func(context.Context, *url.URL) (string, error) {
	return func(_ context.Context, to *url.URL) (string, error) {
		if to.Host != host {
			return "", nil
		}
		return token, nil
	}
}

// loopback reports whether a host, a name or an address, is the local computer.
func loopback(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}
