// Package websocket carries frames over WebSocket (RFC 6455) with the subprotocol [Subprotocol], between
// hubs that can reach each other over TCP.
//
// One end listens, with its own server ([Listen]) or inside an existing HTTP server ([NewListener]); the
// other dials with a [Dialer]:
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
// The defaults are safe: an address that is not loopback needs TLS and authentication, bearer tokens are
// not sent unencrypted, redirects are not followed, and requests of browsers are refused, so that a web
// page cannot reach a hub on its user's computer.
//
// # Wire
//
// A binary message holds one or more frames as [transport.Codec] encodes them. Frames that are sent
// together share messages of about 64 KiB. In the HTTP headers both ends name the largest message that they
// accept ([MaxMessageHeader]), so that a larger one is refused before it is sent.
//
// # Keep-alive
//
// After Options.PingInterval without a byte from the peer a ping is sent; after Options.PingTimeout without
// an answer the connection is broken. Pings are answered only while Receive is called, or until a message
// waits for it: keep calling Receive.
package websocket

import (
	"cmp"
	"time"

	"github.com/parleyhub/parley/transport"
)

// Subprotocol is the WebSocket subprotocol of both ends.
const Subprotocol = "a2a.v1"

// MaxMessageHeader is the HTTP header with the size of the largest message, in bytes, that its sender accepts.
const MaxMessageHeader = "A2a-Max-Message"

// Options are the options of both ends. The zero value is ready to use; zero durations mean the defaults.
type Options struct {
	// Codec encodes and decodes the frames and bounds the envelopes.
	Codec transport.Codec
	// PingInterval is how long the peer may be silent before a ping is sent; 0 means 15 s.
	PingInterval time.Duration
	// PingTimeout is how long the answer may take, and how long a write may make no progress, before the
	// connection is broken; 0 means 15 s.
	PingTimeout time.Duration
}

func (o Options) withDefaults() Options {
	o.PingInterval = cmp.Or(max(o.PingInterval, 0), 15*time.Second)
	o.PingTimeout = cmp.Or(max(o.PingTimeout, 0), 15*time.Second)
	return o
}
