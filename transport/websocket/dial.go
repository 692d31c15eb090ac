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

// Dialer dials "ws://" and "wss://" addresses. The zero value is ready. Do not
// change it while it is in use; it is then safe for concurrent use.
type Dialer struct {
	Options
	// Token returns the bearer token to show at an address, "" for none. It is
	// asked for each connection and should give a token only to hosts that it is
	// meant for: addresses come from other agents' cards. Nil shows none.
	Token func(ctx context.Context, to *url.URL) (string, error)
	// TLS is for wss; nil trusts the system's authorities.
	TLS *tls.Config
	// Insecure lets tokens travel in the clear to hosts that are not loopback, as
	// in a network that is encrypted below.
	Insecure bool
	// DialContext opens the TCP connection, e.g. to look at the address first; nil
	// means net.Dialer's and the proxies that the environment names.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// maxHeader bounds the HTTP headers of the handshake in bytes.
const maxHeader = 64 << 10

// Dial implements [transport.Dialer]. The connection's Peer is the host that the
// server's certificate proves, "" over ws.
//
// Errors are CodeInvalid for an address that is not one or leads to no peer that
// speaks [Subprotocol], CodeUnauthorized if either end does not trust the other,
// CodeUnreachable for all else, ctx's end included.
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
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: "there is no peer at " + u.Redacted(), Err: err}
	}
	peer := ""
	if u.Scheme == "wss" && (d.TLS == nil || !d.TLS.InsecureSkipVerify) {
		peer = u.Host
	}
	return newConn(ws, socket, &o, peer, limit), nil
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
			Message: "the token for " + u.Host + " would travel in the clear: use a wss address"}
	}
	h.Set("Authorization", "Bearer "+token)
	return h, nil
}

// client returns an HTTP client for one handshake, which leaves its socket in
// *socket: the connection outlives the client.
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
		e.Code = transport.CodeInvalid // somebody answers, but it is no peer
	}
	return e
}

// peerLimit returns the largest message that the peer takes; a peer that does
// not say takes what we take.
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
