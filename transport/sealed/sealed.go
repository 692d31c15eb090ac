// Package sealed carries frames over a secret stream, encrypted end to end with the owner of a public key.
// It is the common part of the Hyperswarm and NATS transports. Each end first sends [Greeting] and the size
// of the largest message it accepts; each later message holds one or more frames.
package sealed

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/transport"
)

// Backlog is a listener's queue of connections that wait for Accept, with the goroutines that open them.
type Backlog = wait.Backlog[transport.Conn]

// NewBacklog returns a backlog with room for size connections. It aborts those that are never accepted.
func NewBacklog(size int) *Backlog {
	drop := func(c transport.Conn) { c.(*Conn).Abort() }
	return wait.NewBacklog(context.Background(), size, drop, func() error { return transport.ErrClosed("the listener", nil) })
}

// Greeting begins the first message of each end. The largest message that this end accepts follows, in
// bytes, as a uvarint.
const Greeting = "parley-channel/1 "

const (
	greetingTime = 10 * time.Second
	minMessage   = 64 << 10 // the least that a peer must accept
)

// Greet exchanges greetings with the peer, for ten seconds at most, and returns a connection that owns the
// stream. After an error the stream is destroyed. The greeting also proves that the handshake is not a
// recording. The stream's options must allow messages of c.MaxMessage bytes.
func Greet(ctx context.Context, s *secretstream.Conn, c *transport.Codec) (*Conn, error) {
	limit, err := greet(ctx, s, c)
	if err != nil {
		s.Destroy()
		return nil, err
	}
	return newConn(s, c, limit), nil
}

// greet exchanges the greetings and returns the largest message that the peer accepts.
func greet(ctx context.Context, s *secretstream.Conn, c *transport.Codec) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, greetingTime)
	defer cancel()
	defer context.AfterFunc(ctx, s.Destroy)()
	hello := binary.AppendUvarint([]byte(Greeting), uint64(c.MaxMessage()))
	if err := s.WriteMessage(hello); err != nil {
		return 0, closed(ctx, err)
	}
	m, err := s.ReadMessage()
	if err != nil {
		return 0, closed(ctx, err)
	}
	return parseGreeting(m)
}

func parseGreeting(m []byte) (int, error) {
	if len(m) < len(Greeting) || string(m[:len(Greeting)]) != Greeting {
		return 0, &transport.Error{Code: transport.CodeInvalid, Message: "the peer is not an agent: it does not send " + Greeting}
	}
	limit, n := binary.Uvarint(m[len(Greeting):])
	if n <= 0 || limit < minMessage {
		return 0, &transport.Error{Code: transport.CodeInvalid, Message: "the peer's greeting has no valid message size"}
	}
	return int(min(limit, 1<<24-18)), nil
}

func closed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return transport.ErrClosed("the connection", err)
}
