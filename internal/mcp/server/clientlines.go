package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/mcp/wire"
)

// maxAnswer bounds a message that a client reads, in bytes: the largest that the hub reads from a mounted server, with each of its characters escaped.
const maxAnswer = 64 << 20

// ClientLines returns a transport for a client of [Service.ServeLines]: one message a line over a stream, which its connection closes.
func ClientLines(stream io.ReadWriteCloser) mcp.Transport { return &clientLines{stream: stream} }

// clientLines is a transport for one use, and its connection.
type clientLines struct {
	stream io.ReadWriteCloser
	unread chan received
	done   chan struct{}
	once   sync.Once

	writing sync.Mutex
}

type received struct {
	message jsonrpc.Message
	err     error
}

// Connect implements mcp.Transport.
func (l *clientLines) Connect(context.Context) (mcp.Connection, error) {
	l.unread, l.done = make(chan received), make(chan struct{})
	go l.pump() // ends with the stream
	return l, nil
}

func (l *clientLines) pump() {
	in := process.NewLines(l.stream, maxAnswer)
	for {
		m, err := nextMessage(in)
		select {
		case l.unread <- received{m, err}:
		case <-l.done:
			return
		}
		if err != nil {
			return
		}
	}
}

func nextMessage(in *process.Lines) (jsonrpc.Message, error) {
	for {
		line, err := in.Next()
		if err != nil {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return wire.Decode(line)
		}
	}
}

// Read implements mcp.Connection.
func (l *clientLines) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case r := <-l.unread:
		return r.message, r.err
	case <-l.done:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements mcp.Connection. It blocks while the other end does not read.
func (l *clientLines) Write(ctx context.Context, m jsonrpc.Message) error {
	data, err := wire.Encode(m)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err = l.stream.Write(append(data, '\n'))
	return err
}

// Close implements mcp.Connection.
func (l *clientLines) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.stream.Close()
}

// SessionID implements mcp.Connection.
func (l *clientLines) SessionID() string { return "" }
