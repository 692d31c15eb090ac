// Package nats carries channels between agents over a NATS server, cluster or leaf
// link that both ends are connected to. Nothing is stored: what NATS loses breaks
// the connection, and the channel on it resumes.
//
// Peers are reached by their public keys, at the subject [Address] of the key. They
// prove their keys in the handshake, which also decides who is let in, and the
// frames travel under end-to-end encryption: who else is on the server can neither
// read nor change them, nor pretend to be a peer. It can only cut connections, if it
// may subscribe or publish below the prefix; see docs/peers-operate.md for permissions.
//
// Subjects, below the prefix ("parley" unless set):
//
//	PREFIX.hub.KEY      where the owner of a key takes connections
//	PREFIX.link.TOKEN   one end of one connection; the token is random
//
// The first message of a connection goes to the owner's subject, its answer and all
// else to the ends' own. A message is a byte that says its kind, eight bytes with a
// position in the stream of this direction, big endian, and for data the bytes from
// there on. The receiver grants how far the sender may go, so that a slow reader
// slows its sender down and loses nothing at the server.
package nats

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/sealed"
)

// DefaultPrefix is what subjects begin with unless told otherwise.
const DefaultPrefix = "parley"

// Options are what both ends have in common.
type Options struct {
	// Conn is the connection to NATS. It is the caller's, and has to outlive what is
	// made with it.
	Conn *nats.Conn
	// Pair is the identity of this end.
	Pair *identity.Pair
	// Prefix is what subjects begin with; "" means DefaultPrefix. Both ends need the
	// same.
	Prefix string
	// Codec writes and reads the frames.
	Codec transport.Codec
	// Silence is after how long without a sign of life a connection counts as
	// broken; 0 means 15 s. Signs of life are exchanged three times as often.
	Silence time.Duration
}

const (
	defaultSilence = 15 * time.Second
	dialTime       = 10 * time.Second // for the answer to a handshake
)

func (o *Options) check() error {
	switch {
	case o.Conn == nil:
		return invalid("the NATS transport needs a connection", nil)
	case o.Pair == nil:
		return invalid("the NATS transport needs an identity", nil)
	case !ValidPrefix(o.prefix()):
		return invalid(fmt.Sprintf("%q cannot be the beginning of subjects", o.Prefix), nil)
	}
	return nil
}

func (o *Options) prefix() string {
	if o.Prefix == "" {
		return DefaultPrefix
	}
	return o.Prefix
}

func (o *Options) silence() time.Duration {
	if o.Silence <= 0 {
		return defaultSilence
	}
	return o.Silence
}

func (o *Options) secret() secretstream.Options {
	// The stream has signs of life of its own.
	return secretstream.Options{MaxMessage: o.Codec.MaxMessage(), KeepAlive: -1}
}

// newLink returns a fresh subject for one end of one connection.
func (o *Options) newLink() string { return o.prefix() + ".link." + nuid.New().Next() }

var (
	prefixPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}(\.[A-Za-z0-9_-]{1,32}){0,7}$`)
	linkPattern   = regexp.MustCompile(`^[A-Za-z0-9]{22}$`)
)

// ValidPrefix reports whether subjects can begin with a text: one to eight tokens
// of letters, digits, "-" and "_".
func ValidPrefix(prefix string) bool { return prefixPattern.MatchString(prefix) }

// isLink reports whether a subject that a peer names is that of an end of a
// connection. Any other could be meant to make us say something where the peer may
// not.
func (o *Options) isLink(subject string) bool {
	token, ok := strings.CutPrefix(subject, o.prefix()+".link.")
	return ok && linkPattern.MatchString(token)
}

// Address is the subject at which the owner of a key takes connections: the address
// of its endpoint.
func Address(prefix string, key identity.PublicKey) string {
	o := Options{Prefix: prefix}
	return o.prefix() + ".hub." + key.String()
}

// ParseAddress reads what Address has written.
func ParseAddress(address string) (prefix string, key identity.PublicKey, err error) {
	prefix, text, ok := cutLast(address, ".hub.")
	if !ok || !ValidPrefix(prefix) {
		return "", key, fmt.Errorf("the address %.100q is not of the form prefix.hub.KEY", address)
	}
	key, err = identity.ParsePublicKey(text)
	if err == nil && key.String() != text {
		err = errors.New("the key is not in lower case")
	}
	return prefix, key, err
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// Dialer dials peers by the subjects of their keys. Do not change it while it is in
// use; it is then safe for concurrent use.
type Dialer struct {
	Options
}

// Dial implements [transport.Dialer]. The connection's Peer is the key in the
// address, which the peer has proved. Errors are CodeInvalid for an address that is
// none, or a peer that is no agent; CodeUnreachable for all else: a peer that does
// not let us in does not answer either.
func (d *Dialer) Dial(ctx context.Context, to agent.Endpoint) (transport.Conn, error) {
	if to.Transport != agent.TransportNATS {
		return nil, invalid(fmt.Sprintf("the NATS transport cannot dial %q", to.Transport), nil)
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	prefix, key, err := ParseAddress(to.Address)
	if err != nil {
		return nil, invalid("the endpoint's address is no peer's", err)
	}
	if prefix != d.prefix() {
		return nil, invalid(fmt.Sprintf("the peer is reached below %q, we below %q", prefix, d.prefix()), nil)
	}
	if !d.Conn.IsConnected() { // others may know another way
		return nil, &transport.Error{Code: transport.CodeUnreachable, Message: "no connection to " + key.String(), Err: nats.ErrConnectionReconnecting}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	s, err := d.connect(ctx, to.Address, key)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(errors.New("it does not answer; has it paired with us?"), ctx.Err())
		}
		return nil, &transport.Error{Code: transport.CodeUnreachable, Message: "no connection to " + key.String(), Err: err}
	}
	c, err := sealed.Greet(ctx, s, &d.Codec)
	if err != nil {
		return nil, err // not c: a nil pointer would be a connection
	}
	return c, nil
}

// connect shakes hands with the owner of a key.
func (d *Dialer) connect(ctx context.Context, address string, key identity.PublicKey) (*secretstream.Conn, error) {
	i, err := secretstream.NewInitiator(d.Pair, key)
	if err != nil {
		return nil, err
	}
	s, err := newStream(&d.Options, d.newLink())
	if err != nil {
		return nil, err
	}
	result, err := s.knock(ctx, i, address)
	if err != nil {
		s.Destroy()
		return nil, err
	}
	c, err := secretstream.New(s, result, d.secret())
	if err != nil {
		s.Destroy()
		return nil, err
	}
	return c, nil
}

func invalid(message string, err error) *transport.Error {
	return &transport.Error{Code: transport.CodeInvalid, Message: message, Err: err}
}
