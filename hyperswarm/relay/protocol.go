// Package relay connects peers that have no direct path, through a relay that both can reach. The two ends
// run a handshake and a secret stream of their own inside their connections to the relay, so the relay
// learns who connects to whom, when, and how many bytes are sent, but not the content.
//
// Peers that want to be reachable keep a connection to the relay. The protocol is Parley's own, not that of
// the npm package blind-relay.
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

// The first message on a connection to the relay is one of these requests. The peer's key follows dial, the
// path's id follows accept.
const (
	greeting = "parley-relay/1 "
	register = greeting + "register "
	dial     = greeting + "dial "
	accept   = greeting + "accept "
)

// The relay's answers. To a registered peer the relay then sends the ids of the paths that others request.
const (
	answerOK      = "ok"
	answerUnknown = "unknown"
	answerBusy    = "busy"
)

const (
	idSize     = 16
	stepTime   = 10 * time.Second // timeout of one step of opening a path
	maxMessage = 1 << 10          // bytes of an inner handshake message
)

type pathID [idSize]byte

// Errors of dialling through a relay.
var (
	// ErrUnknown reports that the peer is not registered with the relay, or did not accept the path.
	ErrUnknown = errors.New("the relay cannot reach the peer")
	// ErrBusy reports that the relay is at a limit.
	ErrBusy = errors.New("the relay is busy")
	// ErrProtocol reports an invalid answer of the relay.
	ErrProtocol = errors.New("the relay does not speak the relay protocol")
	// ErrClosed reports that the listener was closed.
	ErrClosed = errors.New("the relay's listener is closed")
)

// ask sends a request to the relay and waits for its answer.
func ask(ctx context.Context, c *secretstream.Conn, request string) error {
	defer context.AfterFunc(ctx, c.Destroy)()
	if err := c.WriteMessage([]byte(request)); err != nil {
		return why(ctx, err)
	}
	// Read exactly the answer: the bytes after it are the peer's.
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

// initiate makes the inner stream of a path, at the dialling end.
func initiate(ctx context.Context, c *secretstream.Conn, pair *identity.Pair, to identity.PublicKey, o secretstream.Options) (*secretstream.Conn, error) {
	defer context.AfterFunc(ctx, c.Destroy)()
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
	// An empty message proves to the peer that this handshake is not a recording.
	if err := inner.WriteMessage(nil); err != nil {
		inner.Destroy()
		return nil, why(ctx, err)
	}
	return inner, nil
}

// respond makes the inner stream of a path, at the accepting end. A peer that is not allowed gets no answer.
func respond(ctx context.Context, c *secretstream.Conn, pair *identity.Pair, allow identity.Allow, o secretstream.Options) (*secretstream.Conn, error) {
	defer context.AfterFunc(ctx, c.Destroy)()
	msg, err := readPart(c)
	if err != nil {
		return nil, why(ctx, err)
	}
	r, remote, _, err := secretstream.NewResponder(pair, msg)
	if err != nil {
		return nil, err
	}
	if allow != nil && !allow(remote) {
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

// writePart writes a message with its length, since the relay does not keep message boundaries.
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
