package ysync

import (
	"encoding/binary"
	"errors"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// The kinds of frames and of sync messages.
const (
	frameSync      = 0
	frameAwareness = 1
	frameAuth      = 2
	frameQuery     = 3

	syncStep1  = 0
	syncStep2  = 1
	syncUpdate = 2
)

var errFrame = errors.New("the frame is not one of y-protocols")

// frame is one WebSocket message.
type frame struct {
	kind    uint64
	sync    uint64 // of frameSync
	payload []byte
}

func decodeFrame(data []byte) (frame, error) {
	r := lib0.NewReader(data)
	f := frame{kind: r.Uint()}
	switch f.kind {
	case frameSync:
		f.sync = r.Uint()
		f.payload = r.Bytes()
		if f.sync > syncUpdate {
			r.Fail(errFrame)
		}
	case frameAwareness:
		f.payload = r.Bytes()
	case frameAuth, frameQuery:
		f.payload = r.Take(uint64(r.Len()))
	default:
		r.Fail(errFrame)
	}
	if r.Err() == nil && r.Len() > 0 {
		r.Fail(errFrame)
	}
	return f, r.Err()
}

// encodeSync returns the WebSocket frame of a sync message.
func encodeSync(kind uint64, payload []byte) []byte {
	return appendSync(make([]byte, 0, maxHeader+2+binary.MaxVarintLen32+len(payload)), kind, payload)
}

// appendSync appends the WebSocket frame of a sync message.
func appendSync(b []byte, kind uint64, payload []byte) []byte {
	b = appendHeader(b, 2+uintSize(len(payload))+len(payload))
	return lib0.AppendBytes(append(b, frameSync, byte(kind)), payload)
}

// encodeAwareness returns the WebSocket frame of an awareness message.
func encodeAwareness(payload []byte) []byte {
	b := appendHeader(nil, 1+uintSize(len(payload))+len(payload))
	return lib0.AppendBytes(append(b, frameAwareness), payload)
}

func uintSize(n int) int { return len(lib0.AppendUint(nil, uint64(n))) }

const (
	maxHeader     = 10
	binaryMessage = 0x82 // the first byte of a WebSocket frame: a whole binary message
	closeFrame    = 0x88 // that of a close frame
)

// appendHeader appends the header of a server's WebSocket frame with n bytes (RFC 6455, 5.2).
func appendHeader(b []byte, n int) []byte {
	switch {
	case n < 126:
		return append(b, binaryMessage, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, binaryMessage, 126), uint16(n))
	}
	return binary.BigEndian.AppendUint64(append(b, binaryMessage, 127), uint64(n))
}
