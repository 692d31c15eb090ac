// Package websocket carries frames over WebSocket (RFC 6455), subprotocol
// [Subprotocol]: the way between hubs that can reach each other over TCP (Req 3.6).
//
// One end listens, alone with [Listen] or inside an HTTP server of yours with
// [NewListener]; the other dials with a [Dialer]:
//
//	l, err := websocket.Listen(":8443", websocket.ListenOptions{
//		TLS:          serverTLS,
//		Authenticate: websocket.Tokens(map[string]string{"venus-hub": token}),
//	})
//	d := &websocket.Dialer{Token: func(ctx context.Context, to *url.URL) (string, error) { … }}
//	conn, err := d.Dial(ctx, agent.Endpoint{Transport: agent.TransportWebSocket, Address: "wss://hub.example:8443"})
//
// # Security
//
// What is not meant to be open is closed: an address that is not loopback needs
// TLS and authentication, a bearer token is not sent in the clear, redirects are
// not followed, and requests of browsers are refused, so that no web page can
// reach a hub on its user's machine.
//
// # Wire
//
// A binary message holds one or more frames as [transport.Codec] writes them.
// Frames that are sent together share messages of about 64 KiB. In the HTTP
// headers both ends name the largest message that they take ([MaxMessageHeader]),
// so that what is too large for the other end is refused before it is sent.
//
// # Silence
//
// After Options.PingInterval without a byte from the peer a ping is sent; after
// Options.PingTimeout without an answer the connection is broken. Pings are
// answered while somebody receives, or until a message waits to be received: keep
// calling Receive.
package websocket

import (
	"time"

	"github.com/parleyhub/parley/transport"
)

// Subprotocol is what both ends must speak.
const Subprotocol = "a2a.v1"

// MaxMessageHeader names, in both HTTP headers, how many bytes the largest
// message may have that the sender of the header takes.
const MaxMessageHeader = "A2a-Max-Message"

// Options are what either end may set. The zero value is ready; durations that
// are zero mean the default that each names.
type Options struct {
	// Codec writes and reads the frames and bounds the envelopes.
	Codec transport.Codec
	// PingInterval is how long the peer may be silent before it is asked whether
	// it is alive; 15 s.
	PingInterval time.Duration
	// PingTimeout is how long its answer may take, and how long a write may make
	// no progress, before the connection is broken; 15 s.
	PingTimeout time.Duration
}

func (o Options) withDefaults() Options {
	if o.PingInterval <= 0 {
		o.PingInterval = 15 * time.Second
	}
	if o.PingTimeout <= 0 {
		o.PingTimeout = 15 * time.Second
	}
	return o
}
