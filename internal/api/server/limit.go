package server

import (
	"errors"
	"net"
	"sync"
	"syscall"
)

// limitListener accepts at most as many connections at a time as it has slots; others wait in the system's queue. In contrast
// to netutil.LimitListener its connections pass the system's on, for writes that do not block.
type limitListener struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}
	end    sync.Once
}

func limit(ln net.Listener, conns int) *limitListener {
	return &limitListener{Listener: ln, slots: make(chan struct{}, conns), closed: make(chan struct{})}
}

// Accept implements [net.Listener].
func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close implements [net.Listener].
func (l *limitListener) Close() error {
	l.end.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	free func()
}

// Close implements [net.Conn].
func (c *limitedConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}

// SyscallConn implements [syscall.Conn].
func (c *limitedConn) SyscallConn() (syscall.RawConn, error) {
	if system, ok := c.Conn.(syscall.Conn); ok {
		return system.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
