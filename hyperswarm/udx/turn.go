package udx

import (
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
)

// Each socket has a goroutine that reads it. When it wakes a goroutine that waits in a stream's Read, the
// runtime wakes a second thread as well, which costs as much as everything else that a short message needs.
// Therefore the goroutine lends the reading to a stream that receives one datagram after the other: the
// stream's Read then waits at the socket itself. The borrower handles packets of streams only. Any other
// datagram, even of a second stream, ends the loan: the goroutine reads again.
const (
	// lendAfter is how many datagrams in a row, one per read and all for the same stream, make the
	// goroutine lend the reading.
	lendAfter = 8
	// shortDatagram is the longest that counts: others probably follow a longer one, and then receiving and
	// decrypting in two goroutines is faster.
	shortDatagram = 1024
	// lendTime is how long a borrower may leave the socket unread before the loan ends; the end takes up to
	// twice as long. Datagrams wait meanwhile.
	lendTime = time.Millisecond
)

// interruptible is a connection whose reads can be interrupted by a deadline.
type interruptible interface {
	SetReadDeadline(t time.Time) error
}

// turn decides which goroutine reads a socket.
type turn struct {
	conn   interruptible // nil: the reading is never lent
	back   chan struct{} // has room for one: the reading is returned
	timer  *time.Timer   // makes the socket's goroutine check the borrower
	last   *Stream       // that received; used by the goroutine only
	streak int           // datagrams in a row for last

	mu          sync.Mutex
	borrower    *Stream // nil: the socket's goroutine reads
	reading     bool    // the borrower waits at the socket
	used        bool    // the borrower has read since the last check
	unwatched   bool    // the timer is stopped
	interrupted bool
}

func (t *turn) init(conn PacketConn) {
	t.back = make(chan struct{}, 1)
	t.conn, _ = conn.(interruptible)
}

// due counts datagrams and reports whether to lend the reading. Only is the stream that received the only
// datagram of a read, or nil.
func (t *turn) due(only *Stream, size int) bool {
	if t.conn == nil || only == nil || size > shortDatagram {
		t.last, t.streak = nil, 0
		return false
	}
	if only != t.last {
		t.last, t.streak = only, 0
	}
	t.streak++
	return t.streak >= lendAfter && only.comesBack()
}

// lend blocks while a stream reads, until the stream returns the reading or leaves the socket unread too long.
func (t *turn) lend(to *Stream) {
	t.last, t.streak = nil, 0
	t.mu.Lock()
	t.borrower, t.used, t.unwatched = to, false, false
	if t.timer == nil {
		t.timer = time.NewTimer(lendTime)
	} else {
		t.timer.Reset(lendTime)
	}
	t.mu.Unlock()
	for {
		select {
		case <-t.back:
			t.timer.Stop()
			return
		case <-t.timer.C:
			if t.reclaim() {
				return
			}
		}
	}
}

// reclaim ends the loan if the borrower has not read since the last check.
func (t *turn) reclaim() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.borrower == nil: // already returned
	case t.reading:
		t.unwatched = true
	case t.used:
		t.used = false
		t.timer.Reset(lendTime)
	default:
		t.borrower = nil
		return true
	}
	return false
}

// begin reports whether a stream has borrowed the reading, and marks it as waiting at the socket.
func (t *turn) begin(s *Stream) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.borrower != s || t.reading {
		return false
	}
	t.reading, t.used = true, true
	return true
}

// pause marks the borrower as not waiting at the socket.
func (t *turn) pause() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calm()
	t.reading = false
	if t.unwatched {
		t.unwatched = false
		t.timer.Reset(lendTime)
	}
}

// end returns the reading to the socket's goroutine.
func (t *turn) end() {
	t.mu.Lock()
	t.calm()
	t.borrower, t.reading = nil, false
	t.mu.Unlock()
	t.back <- struct{}{} // has room: there is one end for each lend
}

// interrupt makes a borrower that waits at the socket check its stream.
func (t *turn) interrupt(s *Stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.borrower == s && t.reading && !t.interrupted {
		t.interrupted = true
		_ = t.conn.SetReadDeadline(time.Unix(1, 0)) // fails if the socket is closed, which also interrupts
	}
}

// calm ends an interruption; t.mu is held.
func (t *turn) calm() {
	if t.interrupted {
		t.interrupted = false
		_ = t.conn.SetReadDeadline(time.Time{}) // as above
	}
}

// lead waits at the stream's socket if the reading has been lent to the stream, and reports whether to
// check the stream again.
func (s *Stream) lead() bool {
	sock := s.Socket()
	if sock == nil || !sock.turn.begin(s) {
		return false
	}
	a := &sock.received
	for {
		if !s.waitAt(sock) {
			s.leads.Store(nil)
			if s.readBy.isSet() {
				sock.turn.end()
				return false
			}
			sock.turn.pause()
			return true
		}
		a.flush() // sends acknowledgements that were not sent with data
		err := a.read(sock)
		s.leads.Store(nil)
		sock.dispatchStreams()
		if err == nil && !a.isShortFor(s) || err != nil && !sock.turn.wasInterrupted() {
			sock.turn.end()
			return true
		}
	}
}

// isShortFor reports whether the read returned a single short datagram for the stream.
func (a *datagrams) isShortFor(s *Stream) bool {
	return a.at == a.n && a.only() == s && a.msgs[0].N <= shortDatagram
}

// wasInterrupted reports whether interrupt ended the read, and ends the interruption.
func (t *turn) wasInterrupted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.interrupted
	t.calm()
	return was
}

// waitAt records that the stream waits at a socket, unless there is no reason to wait. Whatever ends the
// reason afterwards interrupts the wait.
func (s *Stream) waitAt(sock *Socket) bool {
	s.leads.Store(sock)
	if s.readBy.isSet() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.over && !s.in.discard && !s.in.eof && s.in.buf.Len() == 0 && s.sock == sock
}

// comesBack reports whether a waiting Read will consume what arrived; its caller is likely to read again.
func (s *Stream) comesBack() bool {
	if s.readers.Load() == 0 || s.readBy.isSet() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connected && !s.over && !s.in.eof && s.in.buf.Len() > 0
}

// interrupt interrupts a Read that waits at a socket.
func (s *Stream) interrupt() {
	if sock := s.leads.Load(); sock != nil {
		sock.turn.interrupt(s)
	}
}

// wake wakes a waiting Read.
func (s *Stream) wake() {
	wait.Nudge(s.readable)
	s.interrupt()
}
