// Package sealed carries frames over a secret stream, under end-to-end encryption
// with the owner of a public key: what the Hyperswarm and the NATS transport have in
// common. Each end first says [Greeting] and how much it takes at once; then each
// message of the stream is one or more frames.
package sealed

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/transport"
)

// Greeting is the start of the first message of each end; how many bytes a
// message may have follows, as a uvarint.
const Greeting = "parley-channel/1 "

const (
	greetingTime = 10 * time.Second
	minMessage   = 64 << 10 // a peer that takes less is of no use
)

// Greet exchanges greetings with the peer, for ten seconds at most, and makes a
// connection of the stream, which it takes over: after an error it is destroyed. The
// greeting shows that the peer is there, and no recording. The stream's options must
// allow messages of the codec's MaxMessage bytes.
func Greet(ctx context.Context, s *secretstream.Conn, c *transport.Codec) (*Conn, error) {
	limit, err := greet(ctx, s, c)
	if err != nil {
		s.Destroy()
		return nil, err
	}
	return newConn(s, c, limit), nil
}

// greet exchanges the first messages and returns how much the peer takes at once.
func greet(ctx context.Context, s *secretstream.Conn, c *transport.Codec) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, greetingTime)
	defer cancel()
	stop := context.AfterFunc(ctx, s.Destroy)
	defer stop()
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
		return 0, &transport.Error{Code: transport.CodeInvalid, Message: "the peer is no agent: it does not say " + Greeting}
	}
	limit, n := binary.Uvarint(m[len(Greeting):])
	if n <= 0 || limit < minMessage {
		return 0, &transport.Error{Code: transport.CodeInvalid, Message: "the peer does not say how much it takes"}
	}
	return int(min(limit, 1<<24-18)), nil
}

func closed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return transport.ErrClosed("the connection", err)
}
