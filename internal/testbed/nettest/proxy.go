package nettest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Proxy forwards connections to an address. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	done     sync.WaitGroup
	mu       sync.Mutex
	conns    map[net.Conn]struct{}
	down     bool // it accepts no connections
	// tap decides which data is forwarded; nil is all.
	tap func(toServer bool, data []byte) bool
}

// StartProxy runs a proxy until the test ends.
func StartProxy(t *testing.T, address string) *Proxy {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: ln, conns: map[net.Conn]struct{}{}}
	p.done.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", address)
			if err == nil && p.IsDown() {
				_ = out.Close()
				err = net.ErrClosed
			}
			if err != nil {
				_ = in.Close() // the server is down
				continue
			}
			p.pass(in, out, true)
			p.pass(out, in, false)
		}
	})
	t.Cleanup(func() {
		_ = ln.Close() // once
		p.Cut()
		p.done.Wait()
	})
	return p
}

// tapped is a connection as a proxy writes to it.
type tapped struct {
	io.Writer
	proxy    *Proxy
	toServer bool
}

func (w tapped) Write(data []byte) (int, error) {
	w.proxy.mu.Lock()
	tap := w.proxy.tap
	w.proxy.mu.Unlock()
	if tap != nil && !tap(w.toServer, data) {
		return len(data), nil
	}
	return w.Writer.Write(data)
}

// SetTap has tap decide which data is forwarded; nil is all.
func (p *Proxy) SetTap(tap func(toServer bool, data []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tap = tap
}

func (p *Proxy) pass(from, to net.Conn, toServer bool) {
	p.mu.Lock()
	p.conns[from] = struct{}{}
	p.mu.Unlock()
	p.done.Go(func() {
		_, _ = io.Copy(tapped{to, p, toServer}, from) // until either is closed
		p.mu.Lock()
		delete(p.conns, from)
		p.mu.Unlock()
		_ = from.Close() // the other direction may have done it
		_ = to.Close()
	})
}

// IsDown reports whether the link is down.
func (p *Proxy) IsDown() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.down
}

// SetDown closes the link and all connections, or opens the link again.
func (p *Proxy) SetDown(down bool) {
	p.mu.Lock()
	p.down = down
	p.mu.Unlock()
	if down {
		p.Cut()
	}
}

// URL is the proxy's NATS URL.
func (p *Proxy) URL() string { return "nats://" + p.listener.Addr().String() }

// Cut closes every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close() // its own end is on the way
	}
}
