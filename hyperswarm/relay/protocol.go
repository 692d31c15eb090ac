// Package relay connects peers between which no direct path can be had, through
// a third that both reach: a hub that forwards what it cannot read. The two ends
// make a handshake and a secret stream of their own inside of the connections
// with the hub, so that it learns who talks with whom, when and how much, and
// nothing else.
//
// Peers that want to be reached hold a connection with the hub. The protocol is
// Parley's own; npm's blind-relay is another.
package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
)

// What the first message on a connection with the hub asks for. Behind dial
// follows the peer's key, behind accept the path's id.
const (
	greeting = "parley-relay/1 "
	register = greeting + "register "
	dial     = greeting + "dial "
	accept   = greeting + "accept "
)

// The hub's answer. While one is registered the hub sends the ids of paths that
// others want.
const (
	answerOK      = "ok"
	answerUnknown = "unknown"
	answerBusy    = "busy"
)

const (
	idSize     = 16
	stepTime   = 10 * time.Second // for one step of making a path
	maxMessage = 1 << 10          // of the handshake inside
)

type pathID [idSize]byte

// Errors of dialling through a hub.
var (
	// ErrUnknown says that the peer is not registered with the hub, or does not
	// take the path.
	ErrUnknown = errors.New("the relay does not reach the peer")
	// ErrBusy says that the hub forwards as much as it may.
	ErrBusy = errors.New("the relay is busy")
	// ErrProtocol says that the hub is none.
	ErrProtocol = errors.New("the relay does not speak the relay protocol")
	// ErrClosed says that this end was closed.
	ErrClosed = errors.New("the relay's listener is closed")
)

// ask sends a request to the hub and waits for its answer.
func ask(ctx context.Context, c *secretstream.Conn, request string) error {
	stop := context.AfterFunc(ctx, c.Destroy)
	defer stop()
	if err := c.WriteMessage([]byte(request)); err != nil {
		return why(ctx, err)
	}
	// The answer is read byte for byte: what follows it is the peer's.
	var size [1]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return why(ctx, err)
	}
	answer := make([]byte, size[0])
	if _, err := io.ReadFull(c, answer); err != nil {
		return why(ctx, err)
	}
	switch string(answer) {
	case answerOK:
		return nil
	case answerUnknown:
		return ErrUnknown
	case answerBusy:
		return ErrBusy
	}
	return ErrProtocol
}

func say(c *secretstream.Conn, answer string) error {
	return c.WriteMessage(append([]byte{byte(len(answer))}, answer...))
}

func why(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("the connection with the relay broke: %w", err)
}

// initiate makes the stream inside of a path, as the end that dials.
func initiate(ctx context.Context, c *secretstream.Conn, pair *identity.Pair, to identity.PublicKey, o secretstream.Options) (*secretstream.Conn, error) {
	stop := context.AfterFunc(ctx, c.Destroy)
	defer stop()
	i, err := secretstream.NewInitiator(pair, to)
	if err != nil {
		return nil, err
	}
	msg, err := i.Message(nil)
	if err != nil {
		return nil, err
	}
	if err := writePart(c, msg); err != nil {
		return nil, why(ctx, err)
	}
	if msg, err = readPart(c); err != nil {
		return nil, why(ctx, err)
	}
	_, result, err := i.Finish(msg)
	if err != nil {
		return nil, err
	}
	inner, err := secretstream.New(c, result, o)
	if err != nil {
		return nil, why(ctx, err)
	}
	// An empty message proves to the peer that this is no recording.
	if err := inner.WriteMessage(nil); err != nil {
		inner.Destroy()
		return nil, why(ctx, err)
	}
	return inner, nil
}

// respond makes the stream inside of a path, as the end that is dialled. A peer
// that is not let in gets no answer.
func respond(ctx context.Context, c *secretstream.Conn, pair *identity.Pair, access func(identity.PublicKey) bool, o secretstream.Options) (*secretstream.Conn, error) {
	stop := context.AfterFunc(ctx, c.Destroy)
	defer stop()
	msg, err := readPart(c)
	if err != nil {
		return nil, why(ctx, err)
	}
	r, remote, _, err := secretstream.NewResponder(pair, msg)
	if err != nil {
		return nil, err
	}
	if access != nil && !access(remote) {
		return nil, fmt.Errorf("the peer %.8s… may not connect", remote)
	}
	msg, result, err := r.Finish(nil)
	if err != nil {
		return nil, err
	}
	if err := writePart(c, msg); err != nil {
		return nil, why(ctx, err)
	}
	inner, err := secretstream.New(c, result, o)
	if err != nil {
		return nil, why(ctx, err)
	}
	if err := inner.WaitConfirmed(ctx); err != nil {
		inner.Destroy()
		return nil, why(ctx, err)
	}
	return inner, nil
}

// writePart writes a message with its length: the hub does not keep the limits of
// messages.
func writePart(w io.Writer, msg []byte) error {
	_, err := w.Write(append(binary.LittleEndian.AppendUint16(nil, uint16(len(msg))), msg...))
	return err
}

func readPart(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint16(size[:])
	if n > maxMessage {
		return nil, ErrProtocol
	}
	msg := make([]byte, n)
	_, err := io.ReadFull(r, msg)
	return msg, err
}
