package websocket

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/coder/websocket"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/transport"
)

// Dialer dials "ws://" and "wss://" addresses. The zero value is ready to use. It is safe for concurrent
// use if it is not changed.
type Dialer struct {
	Options
	// Token returns the bearer token for an address, "" for none. It is called for each connection. Addresses come
	// from other agents' cards, so it should return a token only for the hosts that may receive it. Nil sends none.
	Token func(ctx context.Context, to *url.URL) (string, error)
	// TLS configures wss; nil trusts the system's certificate authorities.
	TLS *tls.Config
	// Insecure allows sending tokens unencrypted to hosts that are not loopback, e.g. in a network that is
	// encrypted at a lower layer.
	Insecure bool
	// DialContext opens the TCP connection, e.g. after a check of the address; nil means that of
	// net.Dialer, with the proxies that the environment names.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// maxHeader bounds the HTTP headers of the handshake in bytes.
const maxHeader = 64 << 10

// Dial implements [transport.Dialer]. The connection's Peer is the host name in the server's certificate,
// "" over ws.
//
// The error is CodeInvalid for an invalid address or a server that does not speak [Subprotocol], CodeUnauthorized if
// either end does not trust the other, and CodeUnreachable otherwise, also when ctx ends.
func (d *Dialer) Dial(ctx context.Context, to agent.Endpoint) (transport.Conn, error) {
	u, err := parse(to)
	if err != nil {
		return nil, err
	}
	o := d.Options.withDefaults()
	header, err := d.header(ctx, u, &o)
	if err != nil {
		return nil, err
	}
	var socket *cork
	client, release := d.client(&socket)
	defer release()
	ws, resp, err := websocket.Dial(ctx, u.String(), &websocket.DialOptions{
		HTTPClient: client, HTTPHeader: header, Subprotocols: []string{Subprotocol},
	})
	if err != nil {
		return nil, dialError(u, resp, err)
	}
	limit, err := peerLimit(resp.Header, &o)
	if err == nil && ws.Subprotocol() != Subprotocol {
		err = errors.New("the server does not speak " + Subprotocol)
	}
	if err != nil {
		_ = ws.CloseNow() // never used
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: "the server at " + u.Redacted() + " is not a peer", Err: err}
	}
	peer := ""
	if u.Scheme == "wss" && (d.TLS == nil || !d.TLS.InsecureSkipVerify) {
		peer = u.Host
	}
	return newConn(ws, socket, socket, &o, peer, limit), nil
}

func parse(to agent.Endpoint) (*url.URL, error) {
	if to.Transport != agent.TransportWebSocket {
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: fmt.Sprintf("the WebSocket transport cannot dial %q", to.Transport)}
	}
	u, err := url.Parse(to.Address)
	if err != nil {
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: "the endpoint's address is not a URL", Err: err}
	}
	if u.Scheme != "ws" && u.Scheme != "wss" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return nil, &transport.Error{Code: transport.CodeInvalid,
			Message: fmt.Sprintf("the endpoint's address %q is not of the form wss://host:port/path", u.Redacted())}
	}
	return u, nil
}

func (d *Dialer) header(ctx context.Context, u *url.URL, o *Options) (http.Header, error) {
	h := http.Header{}
	h.Set(MaxMessageHeader, strconv.Itoa(o.Codec.MaxMessage()))
	if d.Token == nil {
		return h, nil
	}
	token, err := d.Token(ctx, u)
	if err != nil {
		return nil, &transport.Error{Code: transport.CodeUnauthorized, Message: "there is no token for " + u.Host, Err: err}
	}
	if token == "" {
		return h, nil
	}
	if u.Scheme != "wss" && !d.Insecure && !loopback(u.Hostname()) {
		return nil, &transport.Error{Code: transport.CodeInvalid,
			Message: "the token for " + u.Host + " would be sent unencrypted: use a wss address"}
	}
	h.Set("Authorization", "Bearer "+token)
	return h, nil
}

// client returns an HTTP client for one handshake, which stores its socket in *socket. The socket outlives
// the client.
func (d *Dialer) client(socket **cork) (client *http.Client, release func()) {
	dial, proxy := d.DialContext, (func(*http.Request) (*url.URL, error))(nil)
	if dial == nil {
		dial, proxy = new(net.Dialer).DialContext, http.ProxyFromEnvironment
	}
	t := &http.Transport{
		Proxy: proxy,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			*socket = &cork{Conn: conn}
			return *socket, nil
		},
		TLSClientConfig:        d.TLS.Clone(),
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
	}
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: t, CheckRedirect: stay}, t.CloseIdleConnections
}

func dialError(u *url.URL, resp *http.Response, err error) error {
	e := &transport.Error{Code: transport.CodeUnreachable, Message: "no connection to " + u.Redacted(), Err: err}
	var untrusted *tls.CertificateVerificationError
	var op *net.OpError
	switch {
	case errors.As(err, &untrusted), errors.As(err, &op) && op.Op == "remote error": // a TLS alert, e.g. about our certificate
		e.Code = transport.CodeUnauthorized
	case resp == nil:
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		e.Code = transport.CodeUnauthorized
	case resp.StatusCode < http.StatusInternalServerError && resp.StatusCode != http.StatusTooManyRequests:
		e.Code = transport.CodeInvalid // the server is not a peer
	}
	return e
}

// peerLimit returns the largest message that the peer accepts, by default this end's limit.
func peerLimit(h http.Header, o *Options) (int, error) {
	text := h.Get(MaxMessageHeader)
	if text == "" {
		return o.Codec.MaxMessage(), nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, errors.New("the header " + MaxMessageHeader + " is not a positive number")
	}
	return n, nil
}
