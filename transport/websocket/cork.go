package websocket

import (
	"net"
	"sync"
)

// cork is a socket that can buffer writes and combine them into one. The WebSocket library masks and writes
// a client's data in pieces of four kilobytes; combined they take a sixteenth of the system calls.
type cork struct {
	net.Conn

	mu   sync.Mutex // keeps writes in order; held while the socket writes
	held *[]byte    // nil while the cork is not in
	left int64      // bytes that the system has accepted
}

// count returns how many bytes the system has accepted so far.
func (c *cork) count() int64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

// write writes to the socket; c.mu is held.
func (c *cork) write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.left += int64(n)
	return n, err
}

// maxHeld bounds the buffered bytes: a chunk with its headers.
const maxHeld = chunkSize + 1024

var helds = sync.Pool{New: func() any { b := make([]byte, 0, maxHeld); return &b }}

// Write buffers p if the cork is in and there is room.
func (c *cork) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return c.write(p)
	}
	if len(*c.held)+len(p) > maxHeld {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	if len(p) > maxHeld {
		return c.write(p)
	}
	*c.held = append(*c.held, p...)
	return len(p), nil
}

// put puts the cork in: writes are buffered until pull.
func (c *cork) put() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = helds.Get().(*[]byte)
	}
}

// pull removes the cork and writes the buffer. It blocks as Write does, until the socket is closed.
func (c *cork) pull() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return nil
	}
	err := c.flush()
	helds.Put(c.held)
	c.held = nil
	return err
}

func (c *cork) flush() error {
	b := *c.held
	*c.held = b[:0]
	if len(b) == 0 {
		return nil
	}
	_, err := c.write(b)
	return err
}
