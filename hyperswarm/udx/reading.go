package udx

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/net/ipv4"
)

// batchSize is how many datagrams one system call may return; it is asked for
// fewBatch as long as few come, since preparing for more takes time.
const (
	batchSize = 64
	fewBatch  = 4
)

// arrivals is what the last reading of a socket returned: many datagrams, or one
// where the system or the connection does not give more.
type arrivals struct {
	msgs    []ipv4.Message
	from    netip.AddrPort // of the one
	batches bool
	size    int       // to ask for
	n, at   int       // how many there are, and which is next
	touched []*Stream // to be flushed
}

func (a *arrivals) init(batches bool) {
	n := 1
	if a.batches = batches; batches {
		n = batchSize
	}
	a.msgs, a.size, a.touched = make([]ipv4.Message, n), fewBatch, make([]*Stream, 0, n)
	for i := range a.msgs {
		a.msgs[i].Buffers = [][]byte{make([]byte, maxDatagram)}
	}
}

// read waits for datagrams.
func (a *arrivals) read(s *Socket) error {
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

// datagram returns the one that is next; an invalid address if nobody knows
// where it came from.
func (a *arrivals) datagram() (data []byte, from netip.AddrPort) {
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

// touch notes that a stream is to be flushed.
func (a *arrivals) touch(s *Stream) {
	if len(a.touched) == 0 || a.touched[len(a.touched)-1] != s {
		a.touched = append(a.touched, s)
	}
}

// flush lets the streams answer: one acknowledgement for all that came.
func (a *arrivals) flush() {
	for i, stream := range a.touched {
		stream.flush()
		a.touched[i] = nil
	}
	a.touched = a.touched[:0]
}

// only returns the stream that a single datagram was for, if that is what came.
func (a *arrivals) only() *Stream {
	if a.n == 1 && len(a.touched) == 1 {
		return a.touched[0]
	}
	return nil
}

// read hands what arrives on until the socket is closed. Errors of single
// datagrams, such as an unreachable port that a peer's machine reported, do not
// end it.
func (s *Socket) read() {
	defer close(s.closed)
	a := &s.arrived
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
				runtime.Gosched() // whoever waited for this may answer at once, and acknowledge it so
			}
			a.flush()
			continue
		}
		s.turn.lend(only)
		s.dispatchAll() // what its borrower left
		a.flush()
	}
}

// dispatchAll hands the datagrams on that are left.
func (s *Socket) dispatchAll() {
	for s.dispatchStreams(); s.arrived.at < s.arrived.n; s.dispatchStreams() {
		if data, from := s.arrived.datagram(); s.handler != nil && from.IsValid() {
			s.handler(s, data, from)
		}
		s.arrived.at++
	}
}

// dispatchStreams hands datagrams to their streams, up to the first that is for
// none.
func (s *Socket) dispatchStreams() {
	for a := &s.arrived; a.at < a.n; a.at++ {
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

// failures counts errors of reading, one after the other.
type failures int

// over reports whether the socket is closed. After a number of errors in a row it
// waits a little, so that a socket that is broken does not take a processor.
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
