package udx

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"time"
)

const (
	maxAhead    = 8192 // packets kept beyond the next expected one
	maxEarly    = 16   // packets kept before the stream is connected
	spareBuffer = 64 << 10
)

// inbound is the receiving half of a stream.
type inbound struct {
	next       uint32           // next expected
	ahead      map[uint32]piece // received out of order
	aheadBytes int
	early      int // packets received before the stream was connected
	buf        bytes.Buffer
	eof        bool // the peer's END has been reached
	discard    bool // the stream was closed for reading
	ackDue     bool
	advertised int // the window last sent to the peer
}

type piece struct {
	payload []byte
	end     bool
}

// receive handles a packet for this stream. The caller calls flush afterwards.
func (s *Stream) receive(sock *Socket, p *packet, from netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		// The peer repeats its END if the acknowledgement was lost.
		s.in.ackDue = s.in.eof && p.types&(typeData|typeEnd) != 0 && from == s.remote
		return
	}
	if !s.from(sock, p, from) {
		return
	}
	now := time.Now()
	if p.types&typeHeartbeat != 0 {
		s.in.ackDue = true
		s.out.updateWindow(p)
		return
	}
	if !s.accept(p) {
		return
	}
	if before(s.out.next, p.ack) { // acknowledges unsent data
		return
	}
	s.out.updateWindow(p)
	s.acknowledged(p, now)
	s.finishIfEnded()
}

// from checks the source of a packet. The first packet sets the peer's address for good; later ones may
// come from any port of the same host.
func (s *Stream) from(sock *Socket, p *packet, from netip.AddrPort) bool {
	if s.proven {
		if from.Addr() != s.remote.Addr() {
			return false
		}
	} else {
		s.proven = true
		s.sock, s.remote = sock, from
		s.first <- Source{sock, from} // has room: it is sent once
	}
	if !s.connected {
		s.in.early++
	}
	return s.connected || s.in.early <= maxEarly
}

// accept stores a packet's data and reports whether to process the rest of the packet.
func (s *Stream) accept(p *packet) bool {
	distance := int32(p.seq - s.in.next)
	if p.types&typeDestroy != 0 {
		if distance >= 0 && distance <= maxAhead {
			s.finish(ErrReset)
		}
		return false
	}
	if p.types&(typeData|typeEnd) == 0 {
		return true
	}
	if distance > maxAhead {
		return false
	}
	if distance >= 0 && !s.in.eof {
		if distance > 0 && s.in.buf.Len()+s.in.aheadBytes+len(p.payload) > s.m.opts.ReceiveBuffer {
			return false // exceeds the advertised window
		}
		if distance == 0 && s.in.buf.Len() > 0 && s.in.buf.Len()+len(p.payload) > s.m.opts.ReceiveBuffer {
			return false
		}
	}
	s.in.ackDue = true
	s.stats.Received++
	if distance < 0 || s.in.eof {
		s.stats.Duplicates++
		return true
	}
	if distance > 0 {
		s.storeAhead(p)
		return true
	}
	s.deliver(piece{p.payload, p.types&typeEnd != 0})
	for !s.in.eof {
		next, ok := s.in.ahead[s.in.next]
		if !ok {
			break
		}
		delete(s.in.ahead, s.in.next)
		s.in.aheadBytes -= len(next.payload)
		s.deliver(next)
	}
	s.wake()
	return true
}

func (s *Stream) storeAhead(p *packet) {
	if _, ok := s.in.ahead[p.seq]; ok {
		s.stats.Duplicates++
		return
	}
	if s.in.ahead == nil {
		s.in.ahead = make(map[uint32]piece)
	}
	s.in.ahead[p.seq] = piece{slices.Clone(p.payload), p.types&typeEnd != 0}
	s.in.aheadBytes += len(p.payload)
}

func (s *Stream) deliver(p piece) {
	if !s.in.discard {
		s.in.buf.Write(p.payload) // never fails
	}
	s.in.next++
	if p.end {
		s.in.eof, s.in.ahead, s.in.aheadBytes = true, nil, 0
	}
}

// window returns how many more bytes the peer may send.
func (s *Stream) window() int {
	return max(s.m.opts.ReceiveBuffer-s.in.buf.Len()-s.in.aheadBytes, 0)
}

// windowOpened schedules an acknowledgement if the window has grown enough, and reports whether it did.
func (s *Stream) windowOpened() bool {
	half := s.m.opts.ReceiveBuffer / 2
	if s.over || !s.connected || s.in.advertised >= half || s.window() < half {
		return false
	}
	s.in.ackDue = true
	return true
}

// appendSack appends the ranges of packets received out of order.
func (s *Stream) appendSack(b []byte) []byte {
	numbers := slices.SortedFunc(maps.Keys(s.in.ahead), func(a, b uint32) int { return int(int32(a - b)) })
	for i, ranges := 0, 0; i < len(numbers) && ranges < sackRanges; ranges++ {
		first := numbers[i]
		end := first
		for ; i < len(numbers) && numbers[i] == end; i++ {
			end++
		}
		b = binary.LittleEndian.AppendUint32(b, first)
		b = binary.LittleEndian.AppendUint32(b, end)
	}
	return b
}
