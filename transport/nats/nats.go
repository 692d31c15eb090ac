// Package nats carries channels between agents over a NATS server, cluster or leaf node that both ends are
// connected to. Nothing is stored: a lost message breaks the connection, and the channel on it resumes.
//
// A peer is reached by its public key, at the subject [Address] of the key. The handshake proves both keys
// and checks whether the peer is allowed. Frames are encrypted end to end: other users of the server cannot
// read, change or forge them. A user who may subscribe or publish below the prefix can only break
// connections; see docs/peers.md for permissions.
//
// Subjects, below the prefix ("parley" unless set):
//
//	PREFIX.hub.KEY      the key's owner accepts connections
//	PREFIX.link.TOKEN   one end of one connection; the token is random
//
// The first message of a connection is sent to the owner's subject, its answer and all others to the
// subjects of the ends. A message is a byte with its kind, eight bytes with a position in the stream of
// this direction (big endian), and for data the bytes from that position. The receiver grants how far the
// sender may send, so that a slow reader blocks its sender instead of losing messages at the server.
package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/sealed"
)

// DefaultPrefix is the default of Options.Prefix.
const DefaultPrefix = "parley"

// Options are the options of both ends.
type Options struct {
	// Conn is the connection to NATS. It stays the caller's, and must outlive everything made with it.
	Conn *nats.Conn
	// Pair is this end's identity.
	Pair *identity.Pair
	// Prefix begins all subjects; "" means DefaultPrefix. Both ends need the same.
	Prefix string
	// Codec encodes and decodes the frames.
	Codec transport.Codec
	// Silence is the time without a message after which a connection counts as broken; 0 means 15 s.
	// Keep-alives are sent three times as often.
	Silence time.Duration
}

const (
	defaultSilence = 15 * time.Second
	dialTime       = 10 * time.Second // timeout of the handshake
)

func (o *Options) check() error {
	switch {
	case o.Conn == nil:
		return invalid("the NATS transport needs a connection", nil)
	case o.Pair == nil:
		return invalid("the NATS transport needs an identity", nil)
	case !ValidPrefix(o.prefix()):
		return invalid(fmt.Sprintf("%q is not a valid subject prefix", o.Prefix), nil)
	}
	return nil
}

func (o *Options) prefix() string { return cmp.Or(o.Prefix, DefaultPrefix) }

func (o *Options) silence() time.Duration { return cmp.Or(max(o.Silence, 0), defaultSilence) }

func (o *Options) secret() secretstream.Options {
	// The stream below has its own keep-alive.
	return secretstream.Options{MaxMessage: o.Codec.MaxMessage(), KeepAlive: -1}
}

// newLink returns a new random subject for one end of a connection.
func (o *Options) newLink() string { return o.prefix() + ".link." + nuid.New().Next() }

var linkPattern = text.Pattern(`^[A-Za-z0-9]{22}$`)

// ValidPrefix reports whether a text can be a prefix: one to eight tokens, divided by dots, of 1 to 32 letters, digits, "-"
// and "_". Every command asks it, and the regular expression for it takes 0.5 ms to compile.
func ValidPrefix(prefix string) bool {
	tokens := strings.Split(prefix, ".")
	return len(tokens) <= 8 && !slices.ContainsFunc(tokens, func(token string) bool {
		return len(token) < 1 || len(token) > 32 || strings.Trim(token, tokenCharacters) != ""
	})
}

const tokenCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

// isLink reports whether a subject named by a peer is that of an end of a connection. With any other the
// peer could make us publish where it may not.
func (o *Options) isLink(subject string) bool {
	token, ok := strings.CutPrefix(subject, o.prefix()+".link.")
	return ok && linkPattern().MatchString(token)
}

// Address returns the subject at which the owner of a key accepts connections, which is the address of its endpoint.
func Address(prefix string, key identity.PublicKey) string {
	o := Options{Prefix: prefix}
	return o.prefix() + ".hub." + key.String()
}

// ParseAddress parses the result of Address.
func ParseAddress(address string) (prefix string, key identity.PublicKey, err error) {
	prefix, text, ok := cutLast(address, ".hub.")
	if !ok || !ValidPrefix(prefix) {
		return "", key, fmt.Errorf("the address %.100q is not of the form prefix.hub.KEY", address)
	}
	key, err = identity.ParsePublicKey(text)
	if err == nil && key.String() != text {
		err = errors.New("the key is not in lowercase")
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

// Dialer dials peers by the subjects of their keys. It is safe for concurrent use if it is not changed.
type Dialer struct {
	Options
}

// Dial implements [transport.Dialer]. The connection's Peer is the key in the address, which the peer has
// proved. The error is CodeInvalid for an invalid address or a peer that is not an agent, and
// CodeUnreachable otherwise: a peer that does not allow this key does not answer.
func (d *Dialer) Dial(ctx context.Context, to agent.Endpoint) (transport.Conn, error) {
	if to.Transport != agent.TransportNATS {
		return nil, invalid(fmt.Sprintf("the NATS transport cannot dial %q", to.Transport), nil)
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	prefix, key, err := ParseAddress(to.Address)
	if err != nil {
		return nil, invalid("the endpoint's address is not valid", err)
	}
	if prefix != d.prefix() {
		return nil, invalid(fmt.Sprintf("the peer's subject prefix is %q, ours is %q", prefix, d.prefix()), nil)
	}
	if !d.Conn.IsConnected() { // fail at once: another transport may work
		return nil, &transport.Error{Code: transport.CodeUnreachable, Message: "no connection to " + key.String(), Err: nats.ErrConnectionReconnecting}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	s, err := d.connect(ctx, to.Address, key)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(errors.New("the peer does not answer; has it paired with this hub?"), ctx.Err())
		}
		return nil, &transport.Error{Code: transport.CodeUnreachable, Message: "no connection to " + key.String(), Err: err}
	}
	c, err := sealed.Greet(ctx, s, &d.Codec)
	if err != nil {
		return nil, err // not c, which would be a non-nil interface
	}
	return c, nil
}

// connect runs the handshake with the owner of a key.
func (d *Dialer) connect(ctx context.Context, address string, key identity.PublicKey) (*secretstream.Conn, error) {
	i, err := secretstream.NewInitiator(d.Pair, key)
	if err != nil {
		return nil, err
	}
	s, err := newStream(&d.Options, d.newLink())
	if err != nil {
		return nil, err
	}
	result, err := s.handshake(ctx, i, address)
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
