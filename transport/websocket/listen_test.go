package websocket_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// accept returns the next connection.
func accept(t testing.TB, l transport.Listener) transport.Conn {
	t.Helper()
	conn, err := l.Accept(patience(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func dial(t testing.TB, d *websocket.Dialer, to agent.Endpoint) transport.Conn {
	t.Helper()
	conn, err := d.Dial(patience(t), to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func at(address string) agent.Endpoint {
	return agent.Endpoint{Transport: agent.TransportWebSocket, Address: address}
}

func listenUntilTheEnd(t testing.TB, o websocket.ListenOptions) *websocket.Listener {
	t.Helper()
	l := listen(t, o)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

// refusals collects the reasons for which a listener refused connections.
type refusals struct {
	mu      sync.Mutex
	reasons []string
}

func (r *refusals) add(_ *http.Request, reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reasons = append(r.reasons, reason.Error())
}

func (r *refusals) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.reasons...)
}

func TestBearerTokens(t *testing.T) {
	var refused refusals
	l := listenUntilTheEnd(t, websocket.ListenOptions{
		Authenticate: websocket.Tokens(map[string]string{"mars": "token of mars", "venus": "token of venus", "nobody": ""}),
		OnRefuse:     refused.add,
	})
	host := strings.TrimPrefix(l.Endpoint().Address, "ws://")
	for name, want := range map[string]string{"token of mars": "mars", "token of venus": "venus"} {
		dial(t, &websocket.Dialer{Token: websocket.TokenFor(host, name)}, l.Endpoint())
		if got := accept(t, l).Peer(); got != want {
			t.Errorf("the token of %q connects as %q, want %q", name, got, want)
		}
	}
	for name, token := range map[string]func(context.Context, *url.URL) (string, error){
		"none":              nil,
		"wrong":             websocket.TokenFor(host, "token of pluto"),
		"a part":            websocket.TokenFor(host, "token of mar"),
		"for another host":  websocket.TokenFor("elsewhere:1", "token of mars"),
		"empty":             websocket.TokenFor(host, ""),
		"cannot be fetched": func(context.Context, *url.URL) (string, error) { return "", errors.New("locked") },
	} {
		_, err := (&websocket.Dialer{Token: token}).Dial(patience(t), l.Endpoint())
		if transport.CodeOf(err) != transport.CodeUnauthorized {
			t.Errorf("token %s: %v", name, err)
		}
	}
	if got := len(refused.all()); got != 5 {
		t.Errorf("%d refusals were reported, want 5: %v", got, refused.all())
	}
}

func TestAuthorizationHeaders(t *testing.T) {
	authenticate := websocket.Tokens(map[string]string{"mars": "secret"})
	for header, ok := range map[string]bool{
		"Bearer secret":        true,
		"bearer secret":        true,
		"Bearer  secret":       true,
		"Bearer secret2":       false,
		"Bearer":               false,
		"Bearer ":              false,
		"Basic secret":         false,
		"secret":               false,
		"":                     false,
		"Bearer secret\x00":    false,
		"Bearer secret secret": false,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", header)
		if peer, err := authenticate(r); (err == nil) != ok || ok && peer != "mars" {
			t.Errorf("%q: %q, %v", header, peer, err)
		}
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header["Authorization"] = []string{"Bearer wrong", "Bearer secret"}
	if _, err := authenticate(r); err == nil {
		t.Error("a second Authorization header was accepted")
	}
}

// A token is not sent without TLS to the host of a card, which others may have written.
func TestTokensNeedTLS(t *testing.T) {
	seen := make(chan struct{}, 1)
	d := &websocket.Dialer{
		Token: func(context.Context, *url.URL) (string, error) { return "secret", nil },
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			seen <- struct{}{}
			return nil, errors.New("no network in this test")
		},
	}
	if _, err := d.Dial(t.Context(), at("ws://hub.example:80")); transport.CodeOf(err) != transport.CodeInvalid {
		t.Errorf("got %v", err)
	} else if strings.Contains(err.Error(), "secret") {
		t.Errorf("the token is in the error: %v", err)
	}
	if len(seen) != 0 {
		t.Error("the host was dialled")
	}
	d.Insecure = true
	if _, err := d.Dial(t.Context(), at("ws://hub.example:80")); transport.CodeOf(err) != transport.CodeUnreachable || len(seen) != 1 {
		t.Errorf("with Insecure set: %v", err)
	}
}

func TestDialRefusesAddresses(t *testing.T) {
	for _, address := range []string{
		"", "hub", "http://hub", "ws://", "ws:hub", "wss://user:pass@hub", "ws://hub/#part", "ws://h ub", "://", "unix:///tmp/x", "ws://hub:port",
	} {
		_, err := new(websocket.Dialer).Dial(t.Context(), at(address))
		if transport.CodeOf(err) != transport.CodeInvalid {
			t.Errorf("%q: %v", address, err)
		}
		if err != nil && strings.Contains(err.Error(), "user:pass") {
			t.Errorf("the password is in the error: %v", err)
		}
	}
}

// The error of a dial tells whether a retry may help; that depends on the listener's answer.
func TestDialErrors(t *testing.T) {
	for status, want := range map[int]transport.Code{
		http.StatusUnauthorized:        transport.CodeUnauthorized,
		http.StatusForbidden:           transport.CodeUnauthorized,
		http.StatusOK:                  transport.CodeInvalid,
		http.StatusNotFound:            transport.CodeInvalid,
		http.StatusTooManyRequests:     transport.CodeUnreachable,
		http.StatusServiceUnavailable:  transport.CodeUnreachable,
		http.StatusInternalServerError: transport.CodeUnreachable,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		_, err := new(websocket.Dialer).Dial(patience(t), at("ws"+strings.TrimPrefix(server.URL, "http")))
		if transport.CodeOf(err) != want {
			t.Errorf("status %d: %v", status, err)
		}
		server.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := new(websocket.Dialer).Dial(ctx, at("ws://127.0.0.1:1"))
	if transport.CodeOf(err) != transport.CodeUnreachable || !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// A redirect is refused: it could send the token to another host.
func TestRedirectsAreNotFollowed(t *testing.T) {
	l := listenUntilTheEnd(t, websocket.ListenOptions{})
	server := httptest.NewServer(http.RedirectHandler("http"+strings.TrimPrefix(l.Endpoint().Address, "ws"), http.StatusTemporaryRedirect))
	defer server.Close()
	_, err := new(websocket.Dialer).Dial(patience(t), at("ws"+strings.TrimPrefix(server.URL, "http")))
	if transport.CodeOf(err) != transport.CodeInvalid {
		t.Errorf("got %v", err)
	}
}

// handshake sends a WebSocket handshake and returns the answer's status.
func handshake(t *testing.T, address string, change func(http.Header)) int {
	t.Helper()
	r, err := http.NewRequestWithContext(patience(t), "GET", "http"+strings.TrimPrefix(address, "ws"), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}, "Sec-Websocket-Protocol": {websocket.Subprotocol},
	}
	change(r.Header)
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

func TestRefusedHandshakes(t *testing.T) {
	var refused refusals
	l := listenUntilTheEnd(t, websocket.ListenOptions{OnRefuse: refused.add})
	tests := map[string]struct {
		change func(http.Header)
		status int
	}{
		// For a page on a name that resolves to 127.0.0.1, the listener is the same host.
		"a browser of the same host": {func(h http.Header) { h.Set("Origin", "http"+strings.TrimPrefix(l.Endpoint().Address, "ws")) }, http.StatusForbidden},
		"a browser":                  {func(h http.Header) { h.Set("Origin", "https://evil.example") }, http.StatusForbidden},
		"a sandboxed page":           {func(h http.Header) { h.Set("Origin", "null") }, http.StatusForbidden},
		"no upgrade":                 {func(h http.Header) { h.Del("Upgrade") }, http.StatusUpgradeRequired},
		"no key":                     {func(h http.Header) { h.Del("Sec-Websocket-Key") }, http.StatusBadRequest},
		"another version":            {func(h http.Header) { h.Set("Sec-Websocket-Version", "8") }, http.StatusBadRequest},
		"an invalid limit":           {func(h http.Header) { h.Set(websocket.MaxMessageHeader, "much") }, http.StatusBadRequest},
		"a limit of 0":               {func(h http.Header) { h.Set(websocket.MaxMessageHeader, "0") }, http.StatusBadRequest},
	}
	for name, test := range tests {
		if got := handshake(t, l.Endpoint().Address, test.change); got != test.status {
			t.Errorf("%s: status %d, want %d", name, got, test.status)
		}
	}
	if got := len(refused.all()); got != len(tests) {
		t.Errorf("%d refusals were reported, want %d", got, len(tests))
	}
}

func TestSubprotocolIsRequired(t *testing.T) {
	var refused refusals
	l := listenUntilTheEnd(t, websocket.ListenOptions{OnRefuse: refused.add})
	c, _, err := ws.Dial(patience(t), l.Endpoint().Address, &ws.DialOptions{Subprotocols: []string{"chat"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if _, _, err := c.Read(patience(t)); err == nil {
		t.Error("a client with another subprotocol was accepted")
	}
	l.Close() // waits for the handlers
	if got := refused.all(); len(got) != 1 || !strings.Contains(got[0], websocket.Subprotocol) {
		t.Errorf("refused: %v", got)
	}

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := ws.Accept(w, r, nil); err == nil {
			defer c.CloseNow()
			c.Read(r.Context())
		}
	}))
	defer server.Close()
	if _, err := new(websocket.Dialer).Dial(patience(t), at("ws"+strings.TrimPrefix(server.URL, "http"))); transport.CodeOf(err) != transport.CodeInvalid {
		t.Errorf("a server of another subprotocol: %v", err)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	l := listenUntilTheEnd(t, websocket.ListenOptions{MaxConns: 2})
	var d websocket.Dialer
	first := dial(t, &d, l.Endpoint())
	dial(t, &d, l.Endpoint())
	if _, err := d.Dial(patience(t), l.Endpoint()); transport.CodeOf(err) != transport.CodeUnreachable {
		t.Fatalf("a third connection: %v", err)
	}
	accept(t, l)
	first.Close()
	for { // the listener soon detects the end of the first one
		conn, err := d.Dial(patience(t), l.Endpoint())
		if err == nil {
			conn.Close()
			return
		}
		if transport.CodeOf(err) != transport.CodeUnreachable || t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

func TestCloseEndsConnectionsNotAccepted(t *testing.T) {
	l := listen(t, websocket.ListenOptions{})
	conn := dial(t, &websocket.Dialer{}, l.Endpoint())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Receive(patience(t)); transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("got %v", err)
	}
}

func TestAcceptedConnectionsOutliveTheListener(t *testing.T) {
	l := listen(t, websocket.ListenOptions{})
	a := dial(t, &websocket.Dialer{}, l.Endpoint())
	b := accept(t, l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(patience(t), []transport.Frame{{Kind: transport.Ready}}); err != nil {
		t.Fatal(err)
	}
	if frames, err := b.Receive(patience(t)); err != nil || frames[0].Kind != transport.Ready {
		t.Errorf("got %v, %v", frames, err)
	}
}

// By default a listener accepts only loopback connections; others need TLS and authentication.
func TestListenIsSafeByDefault(t *testing.T) {
	server, _ := certificate(t)
	tokens := websocket.Tokens(map[string]string{"mars": "secret"})
	mutual := server.Clone()
	mutual.ClientAuth = tls.RequireAndVerifyClientCert
	for name, test := range map[string]struct {
		o  websocket.ListenOptions
		ok bool
	}{
		"nothing":            {websocket.ListenOptions{}, false},
		"tokens without TLS": {websocket.ListenOptions{Authenticate: tokens}, false},
		"TLS without tokens": {websocket.ListenOptions{TLS: server}, false},
		"TLS and tokens":     {websocket.ListenOptions{TLS: server, Authenticate: tokens}, true},
		"TLS on both sides":  {websocket.ListenOptions{TLS: mutual}, true},
		"insecure, explicit": {websocket.ListenOptions{Insecure: true}, true},
	} {
		l, err := websocket.Listen("0.0.0.0:0", test.o)
		if (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			l.Close()
		} else if transport.CodeOf(err) != transport.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := websocket.Listen("nowhere.invalid:0", websocket.ListenOptions{}); transport.CodeOf(err) != transport.CodeInvalid {
		t.Errorf("an invalid address: %v", err)
	}
}

// certificate returns the TLS configurations of a server and a client on 127.0.0.1.
func certificate(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hub"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	own := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	return &tls.Config{Certificates: own, ClientCAs: pool}, &tls.Config{RootCAs: pool, Certificates: own}
}

func TestTLS(t *testing.T) {
	server, client := certificate(t)
	l := listenUntilTheEnd(t, websocket.ListenOptions{TLS: server})
	if !strings.HasPrefix(l.Endpoint().Address, "wss://") {
		t.Errorf("the endpoint is %v", l.Endpoint())
	}
	a := dial(t, &websocket.Dialer{TLS: client}, l.Endpoint())
	if want := strings.TrimPrefix(l.Endpoint().Address, "wss://"); a.Peer() != want {
		t.Errorf("the peer is %q, want %q", a.Peer(), want)
	}
	b := accept(t, l)
	if err := b.Send(patience(t), []transport.Frame{{Kind: transport.Ready}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Receive(patience(t)); err != nil {
		t.Fatal(err)
	}

	if _, err := new(websocket.Dialer).Dial(patience(t), l.Endpoint()); transport.CodeOf(err) != transport.CodeUnauthorized {
		t.Errorf("a server with an untrusted certificate: %v", err)
	}
	blind := client.Clone()
	blind.InsecureSkipVerify = true
	if got := dial(t, &websocket.Dialer{TLS: blind}, l.Endpoint()).Peer(); got != "" {
		t.Errorf("the peer's name from an unverified certificate is %q", got)
	}
	accept(t, l)
	plain := at("ws" + strings.TrimPrefix(l.Endpoint().Address, "wss"))
	if _, err := new(websocket.Dialer).Dial(patience(t), plain); err == nil {
		t.Error("a TLS listener accepted a connection without TLS")
	}
}

func TestClientCertificates(t *testing.T) {
	server, client := certificate(t)
	server.ClientAuth = tls.RequireAndVerifyClientCert
	l := listenUntilTheEnd(t, websocket.ListenOptions{TLS: server, Authenticate: func(r *http.Request) (string, error) {
		return r.TLS.PeerCertificates[0].Subject.CommonName, nil
	}})
	dial(t, &websocket.Dialer{TLS: client}, l.Endpoint())
	if got := accept(t, l).Peer(); got != "hub" {
		t.Errorf("the peer is %q", got)
	}
	none := client.Clone()
	none.Certificates = nil
	if _, err := (&websocket.Dialer{TLS: none}).Dial(patience(t), l.Endpoint()); transport.CodeOf(err) != transport.CodeUnauthorized {
		t.Errorf("without a certificate: %v", err)
	}
}

// The listener can share a port with other HTTP handlers.
func TestMountedInAServer(t *testing.T) {
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	defer server.Close()
	l := websocket.NewListener(websocket.ListenOptions{URL: "ws" + strings.TrimPrefix(server.URL, "http") + "/agents"})
	mux.Handle("/agents", l)
	dial(t, &websocket.Dialer{}, l.Endpoint())
	accept(t, l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := new(websocket.Dialer).Dial(patience(t), l.Endpoint()); transport.CodeOf(err) != transport.CodeUnreachable {
		t.Errorf("after Close: %v", err)
	}
}

// Close does not wait for a client that has sent half a request.
func TestCloseDoesNotWaitForHandshakes(t *testing.T) {
	l := listen(t, websocket.ListenOptions{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(l.Endpoint().Address, "ws://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: hub\r\n")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	discard(bufio.NewReader(conn))
}

// Close does not wait for the rest of a message in whose middle the peer has stopped.
func TestCloseDoesNotWaitForTheRestOfAMessage(t *testing.T) {
	l := listenUntilTheEnd(t, websocket.ListenOptions{})
	peer, err := net.Dial("tcp", strings.TrimPrefix(l.Endpoint().Address, "ws://"))
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	const sent = 3 << 20                                                    // more than the connection reads at once
	begun := append([]byte{0x82, 0xff, 0, 0, 0, 0, 1, 0, 0, 0}, 1, 2, 3, 4) // of a frame of 16 MiB
	fmt.Fprint(peer, "GET / HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: a2a.v1\r\n\r\n"+string(begun))
	conn := accept(t, l)
	closed := make(chan error, 1)
	go func() { closed <- conn.Close() }()
	r := bufio.NewReader(peer)
	if _, err := http.ReadResponse(r, nil); err != nil {
		t.Fatal(err)
	}
	if first, err := r.ReadByte(); err != nil || first != 0x88 { // the close frame
		t.Fatalf("received %x, %v", first, err)
	}
	_, _ = peer.Write(make([]byte, sent)) // the connection may have ended
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("Close does not end")
	}
}
