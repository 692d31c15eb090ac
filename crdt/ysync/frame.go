package ysync

import (
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

func encodeSync(kind uint64, payload []byte) []byte {
	return lib0.AppendBytes([]byte{frameSync, byte(kind)}, payload)
}

func encodeAwareness(payload []byte) []byte {
	return lib0.AppendBytes([]byte{frameAwareness}, payload)
}
