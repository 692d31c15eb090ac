// Package hyperswarm carries channels between agents over Hyperswarm: peers are reached by their public
// keys, across NATs, and encrypted end to end.
//
// The protocol is in the packages below the repository's hyperswarm directory: hyperdht finds peers and
// connects to them, swarm keeps connections to the peers of topics.
package hyperswarm

import (
	"context"
	"fmt"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/relay"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/sealed"
)

// Dialer dials peers by their public keys: an endpoint's address is the key in hexadecimal. It is safe for
// concurrent use.
type Dialer struct {
	// Node is the DHT node to dial with.
	Node *hyperdht.Node
	// Pair is the identity; nil means the node's.
	Pair *identity.Pair
	// Codec encodes and decodes the frames.
	Codec transport.Codec
	// Relays are the keys of relays, tried in order when there is no direct path to a peer; see package relay.
	Relays []identity.PublicKey
}

// Dial implements [transport.Dialer]. The connection's Peer is the key in hexadecimal, which the peer has
// proved. The error is CodeInvalid for an invalid address or a peer that is not an agent, and
// CodeUnreachable otherwise: a peer that does not allow this key does not answer.
func (d *Dialer) Dial(ctx context.Context, to agent.Endpoint) (transport.Conn, error) {
	if to.Transport != agent.TransportHyperswarm {
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: fmt.Sprintf("the Hyperswarm transport cannot dial %q", to.Transport)}
	}
	key, err := identity.ParsePublicKey(to.Address)
	if err != nil {
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: "the endpoint's address is not a public key", Err: err}
	}
	s, err := relay.DialAny(ctx, d.Node, d.Relays, key, hyperdht.DialOptions{Pair: d.Pair}, secretstream.Options{MaxMessage: d.Codec.MaxMessage()})
	if err != nil {
		return nil, &transport.Error{Code: transport.CodeUnreachable, Message: "no connection to " + key.String(), Err: err}
	}
	c, err := sealed.Greet(ctx, s, &d.Codec)
	if err != nil {
		return nil, err // not c, which would be a non-nil interface
	}
	return c, nil
}

// Greeting is the start of the first message of each end; see [sealed.Greeting].
const Greeting = sealed.Greeting
