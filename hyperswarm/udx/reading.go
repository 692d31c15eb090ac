package udx

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/net/ipv4"
)

// batchSize is how many datagrams one system call may return. Preparing for many takes time, so only
// fewBatch are asked for while few arrive.
const (
	batchSize = 64
	fewBatch  = 4
)

// datagrams is the result of the last read of a socket: many datagrams where the system returns them with
// one call, otherwise one.
type datagrams struct {
	msgs    []ipv4.Message
	from    netip.AddrPort // sender, if batches is false
	batches bool
	size    int       // how many to ask for
	n, at   int       // number of datagrams, index of the next
	touched []*Stream // to be flushed
}

func (a *datagrams) init(batches bool) {
	n := 1
	if a.batches = batches; batches {
		n = batchSize
	}
	a.msgs, a.size, a.touched = make([]ipv4.Message, n), fewBatch, make([]*Stream, 0, n)
	for i := range a.msgs {
		a.msgs[i].Buffers = [][]byte{make([]byte, maxDatagram)}
	}
}

// read blocks until datagrams arrive.
func (a *datagrams) read(s *Socket) error {
	a.n, a.at = 0, 0
	if !a.batches {
		n, from, err := s.conn.ReadFromUDPAddrPort(a.msgs[0].Buffers[0])
		if err != nil {
			return err
		}
		a.n, a.msgs[0].N, a.from = 1, n, unmap(from)
		return nil
	}
	n, err := s.ip.ReadBatch(a.msgs[:a.size], 0)
	if err != nil {
		return err
	}
	a.n = n
	if a.size = batchSize; n < fewBatch {
		a.size = fewBatch
	}
	return nil
}

// datagram returns the next datagram and its sender; the zero AddrPort if it is unknown.
func (a *datagrams) datagram() (data []byte, from netip.AddrPort) {
	m := &a.msgs[a.at]
	data = m.Buffers[0][:m.N]
	if !a.batches {
		return data, a.from
	}
	if addr, ok := m.Addr.(*net.UDPAddr); ok {
		from = unmap(addr.AddrPort())
	}
	return data, from
}

// touch adds a stream to those to be flushed.
func (a *datagrams) touch(s *Stream) {
	if len(a.touched) == 0 || a.touched[len(a.touched)-1] != s {
		a.touched = append(a.touched, s)
	}
}

// flush flushes the streams: one acknowledgement for all packets of a read.
func (a *datagrams) flush() {
	for i, stream := range a.touched {
		stream.flush()
		a.touched[i] = nil
	}
	a.touched = a.touched[:0]
}

// only returns the stream that received the only datagram, or nil.
func (a *datagrams) only() *Stream {
	if a.n == 1 && len(a.touched) == 1 {
		return a.touched[0]
	}
	return nil
}

// read dispatches datagrams until the socket is closed. Errors of single datagrams, such as an unreachable
// port reported by a peer's host, do not end it.
func (s *Socket) read() {
	defer close(s.closed)
	a := &s.received
	var failures failures
	for {
		err := a.read(s)
		if failures.over(err) {
			return
		}
		s.dispatchAll()
		only := a.only()
		if !s.turn.due(only, a.msgs[0].N) {
			if only != nil {
				runtime.Gosched() // a Read that was waiting may answer at once, with the acknowledgement
			}
			a.flush()
			continue
		}
		s.turn.lend(only)
		s.dispatchAll() // what the borrower left
		a.flush()
	}
}

// dispatchAll dispatches the remaining datagrams.
func (s *Socket) dispatchAll() {
	for s.dispatchStreams(); s.received.at < s.received.n; s.dispatchStreams() {
		if data, from := s.received.datagram(); s.handler != nil && from.IsValid() {
			s.handler(s, data, from)
		}
		s.received.at++
	}
}

// dispatchStreams dispatches datagrams to their streams, up to the first that belongs to none.
func (s *Socket) dispatchStreams() {
	for a := &s.received; a.at < a.n; a.at++ {
		data, from := a.datagram()
		if !from.IsValid() {
			continue
		}
		stream, ok := s.m.receive(s, data, from)
		if !ok {
			return
		}
		a.touch(stream)
	}
}

// failures counts consecutive read errors.
type failures int

// over reports whether the socket is closed. After many consecutive errors it sleeps, so that a broken
// socket does not use up a processor.
func (f *failures) over(err error) bool {
	const many, wait = 16, 10 * time.Millisecond
	switch {
	case err == nil:
		*f = 0
	case errors.Is(err, net.ErrClosed):
		return true
	default:
		if *f++; *f > many {
			time.Sleep(wait)
		}
	}
	return false
}
