package udx

import (
	"errors"
	"net"
)

// The errors of streams.
var (
	// ErrReset says that the peer has destroyed the stream.
	ErrReset = errors.New("the peer has reset the stream")
	// ErrTimeout says that the peer has not answered for so long that the stream
	// was given up.
	ErrTimeout = errors.New("the peer does not answer any more")
	// ErrDestroyed says that this end has destroyed the stream.
	ErrDestroyed = errors.New("the stream was destroyed")
	// ErrEnded says that this end has ended its direction of the stream.
	ErrEnded = errors.New("the stream was ended")
	// ErrClosed says that this end has closed the stream.
	ErrClosed = net.ErrClosed
)
