package udx

import (
	"sync"
	"time"
)

// A socket has a goroutine that reads it. When it wakes the one that waits in a
// stream's Read, the runtime wakes a second thread as well, which costs as much as
// everything else that a short message needs. Therefore the goroutine lends the
// reading to a stream that receives one datagram after the other: its Read then
// waits at the socket itself. It does nothing there but what belongs to streams;
// anything else, also a second stream's datagram, makes it give the reading back.
const (
	// lendAfter is how many datagrams in a row, each by itself and for the same
	// stream, show that lending pays.
	lendAfter = 8
	// shortDatagram is the longest that counts: one of more is likely to be followed by
	// others, and then it is better that one goroutine receives and another decrypts.
	shortDatagram = 1024
	// lendTime is how long a borrower may stay away from the socket, at least, and
	// twice that at most: what comes meanwhile waits.
	lendTime = time.Millisecond
)

// interruptible is a connection whose reading can be ended from elsewhere.
type interruptible interface {
	SetReadDeadline(t time.Time) error
}

// turn says whose turn it is to read a socket.
type turn struct {
	conn   interruptible // nil: nothing is lent
	back   chan struct{} // has room for one: the reading is given back
	timer  *time.Timer   // for the socket's goroutine to look after what it lent
	last   *Stream       // that received; the goroutine's
	streak int           // how often in a row

	mu          sync.Mutex
	borrower    *Stream // nil: it is the goroutine's turn
	reading     bool    // the borrower waits at the socket
	used        bool    // it did since the goroutine looked
	unwatched   bool    // the timer does not run
	interrupted bool
}

func (t *turn) init(conn PacketConn) {
	t.back = make(chan struct{}, 1)
	t.conn, _ = conn.(interruptible)
}

// due counts what came, and says whether to lend: only is the stream for which a
// single datagram came, or nil.
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

// lend lets a stream read until that gives the reading back or stays away.
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

// reclaim takes the reading back from a borrower that did not use it for a while.
func (t *turn) reclaim() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.borrower == nil: // given back just now
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

// begin reports whether a stream has borrowed the reading, and then says that it
// waits at the socket.
func (t *turn) begin(s *Stream) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.borrower != s || t.reading {
		return false
	}
	t.reading, t.used = true, true
	return true
}

// pause says that the borrower does not wait at the socket for now.
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

// end gives the reading back.
func (t *turn) end() {
	t.mu.Lock()
	t.calm()
	t.borrower, t.reading = nil, false
	t.mu.Unlock()
	t.back <- struct{}{} // has room: one end for each lend
}

// interrupt has a borrower that waits at the socket look at its stream.
func (t *turn) interrupt(s *Stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.borrower == s && t.reading && !t.interrupted {
		t.interrupted = true
		_ = t.conn.SetReadDeadline(time.Unix(1, 0)) // fails if the socket is closed, which interrupts, too
	}
}

// calm takes an interruption back; t.mu is held.
func (t *turn) calm() {
	if t.interrupted {
		t.interrupted = false
		_ = t.conn.SetReadDeadline(time.Time{}) // as above
	}
}

// lead waits for the stream at its socket, if that has been lent to it, and
// reports whether to look at the stream again.
func (s *Stream) lead() bool {
	sock := s.Socket()
	if sock == nil || !sock.turn.begin(s) {
		return false
	}
	a := &sock.arrived
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
		a.flush() // acknowledges what the caller has not answered
		err := a.read(sock)
		s.leads.Store(nil)
		sock.dispatchStreams()
		if err == nil && !a.isShortFor(s) || err != nil && !sock.turn.wasInterrupted() {
			sock.turn.end()
			return true
		}
	}
}

// isShortFor reports whether a single short datagram came, for the stream.
func (a *arrivals) isShortFor(s *Stream) bool {
	return a.at == a.n && a.only() == s && a.msgs[0].N <= shortDatagram
}

// wasInterrupted reports whether the reading ended by interrupt, and takes that
// back.
func (t *turn) wasInterrupted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.interrupted
	t.calm()
	return was
}

// waitAt says that the stream waits at a socket, unless it has no reason to.
// Whatever ends the waiting after that interrupts it.
func (s *Stream) waitAt(sock *Socket) bool {
	s.leads.Store(sock)
	if s.readBy.isSet() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.over && !s.in.discard && !s.in.eof && s.in.buf.len() == 0 && s.sock == sock
}

// comesBack reports whether a Read is about to take what came, after which its
// caller is likely to read again.
func (s *Stream) comesBack() bool {
	if s.readers.Load() == 0 || s.readBy.isSet() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connected && !s.over && !s.in.eof && s.in.buf.len() > 0
}

// interrupt has a Read that waits at a socket look at the stream.
func (s *Stream) interrupt() {
	if sock := s.leads.Load(); sock != nil {
		sock.turn.interrupt(s)
	}
}

// wake wakes a Read.
func (s *Stream) wake() {
	signal(s.readable)
	s.interrupt()
}
