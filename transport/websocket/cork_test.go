package websocket_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// countedConn counts the writes to a socket, and can be made to fail.
type countedConn struct {
	net.Conn
	mu     sync.Mutex
	writes int
	broken bool
}

var errBroken = errors.New("the cable is cut")

func (c *countedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.writes++
	broken := c.broken
	c.mu.Unlock()
	if broken {
		return 0, errBroken
	}
	return c.Conn.Write(p)
}

func (c *countedConn) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes
}

// counted returns a connection whose dialling end counts its writes.
func counted(t *testing.T) (here, there transport.Conn, socket *countedConn) {
	t.Helper()
	l := listenUntilTheEnd(t, websocket.ListenOptions{})
	socket = &countedConn{}
	d := &websocket.Dialer{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		var err error
		socket.Conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return socket, err
	}}
	here = dial(t, d, l.Endpoint())
	there = accept(t, l)
	return here, there, socket
}

// A chunk is one write, although the WebSocket library writes a client's data in pieces of 4 KiB.
func TestChunkIsOneWrite(t *testing.T) {
	here, there, socket := counted(t)
	for _, size := range []int{1, 4 << 10, 60 << 10, 200 << 10} {
		before := socket.count()
		text := strings.Repeat("x", size)
		if err := here.Send(t.Context(), []transport.Frame{data(t, text)}); err != nil {
			t.Fatal(err)
		}
		got, err := there.Receive(patience(t))
		if err != nil {
			t.Fatal(err)
		}
		var back string
		if err := got[0].Envelope.Unmarshal(&back); err != nil || back != text {
			t.Errorf("%d bytes: got %d, %v", size, len(back), err)
		}
		if n, most := socket.count()-before, 2+2*size/(64<<10); n > most {
			t.Errorf("%d bytes took %d writes, more than %d", size, n, most)
		}
	}
}

func TestFailedWriteEndsTheConnection(t *testing.T) {
	here, _, socket := counted(t)
	socket.mu.Lock()
	socket.broken = true
	socket.mu.Unlock()
	if err := here.Send(t.Context(), []transport.Frame{data(t, "lost")}); transport.CodeOf(err) != transport.CodeClosed || !errors.Is(err, errBroken) {
		t.Errorf("%v", err)
	}
	if _, err := here.Receive(patience(t)); transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("%v", err)
	}
}
