package damage

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// span is a part of a block file that could not be read.
type span struct {
	offset, length int
	first, last    uint64 // sequences; last is 0 if nothing says how many there were
	why            reason
	original       []byte // its bytes, before the correction
	fixed          bool   // the block has its correct bytes now
	bit            int    // that was wrong, if fixed
	unfinished     bool   // the end of a write that was never completed
	deletion       bool   // a deletion mark
	subject        string // as far as it can be told
}

// scan is the result of reading a block.
type scan struct {
	first, last uint64 // sequences of messages, 0 if there is none
	records     int
	spans       []span
}

// whole reports whether each record of a block is readable. It is the fast path, and changes nothing.
func (v *reader) whole(b []byte) (s scan, ok bool) {
	for len(b) > 0 {
		r, why := v.verify(b)
		if why != reasonNone {
			return s, false
		}
		if _, wrong := v.misplaced(r, b); wrong {
			return s, false
		}
		s.add(r)
		b = b[r.length:]
	}
	return s, true
}

func (s *scan) add(r record) {
	s.records++
	if r.deletion || r.sequence <= s.last {
		return
	}
	if s.first == 0 {
		s.first = r.sequence
	}
	s.last = r.sequence
}

// examine reads a block that has damage, corrects in b what it can, and returns the spans it found. before is the
// last sequence of the blocks before, and after the first of those after it, 0 if unknown; open says that the block is
// its stream's last.
func (v *reader) examine(b []byte, before, after uint64, open bool) scan {
	s := scan{last: before}
	for at := 0; at < len(b); {
		r, why := v.verify(b[at:])
		if n, wrong := 0, false; why == reasonNone {
			if n, wrong = v.misplaced(r, b[at:]); wrong {
				s.spans = append(s.spans, v.shiftSubject(b, at, r, n))
				r.subject = n
			}
		}
		if why != reasonNone {
			var found span
			r, found = v.damaged(b, at, why, s.last, after, open)
			if found.length > 0 {
				s.spans = append(s.spans, found)
			}
			if !found.fixed && found.length > 0 {
				s.last = max(s.last, found.last)
				at += found.length
				continue
			}
		}
		s.add(r)
		at += r.length
	}
	return s
}

func (v *reader) shiftSubject(b []byte, at int, r record, length int) span {
	original := bytes.Clone(b[at : at+r.length])
	binary.LittleEndian.PutUint16(b[at+20:], uint16(length))
	wrong := r.subject
	r.subject = length
	return span{offset: at, length: r.length, first: r.sequence, last: r.sequence, why: reasonSubject, original: original, fixed: true,
		bit: 20*8 + bits.TrailingZeros(uint(length^wrong)), subject: subjectAt(b[at:], r)}
}

// damaged deals with the record at an offset that cannot be read for a reason. It returns an empty span if the record
// is as it was written: its checksum is right, and what no checksum covers cannot be wrong by one bit.
func (v *reader) damaged(b []byte, at int, why reason, last, after uint64, open bool) (record, span) {
	if r, bit := v.correct(b[at:], why); bit >= 0 {
		original := bytes.Clone(b[at : at+r.length])
		flipBit(original, bit)
		return r, span{offset: at, length: r.length, first: r.sequence, last: r.sequence, why: why, original: original, fixed: true, bit: bit, deletion: r.deletion, subject: subjectAt(b[at:], r)}
	}
	r, parsed := parse(b[at:])
	if why == reasonHeaders || why == reasonSubject {
		return r, span{}
	}
	end, next := v.resume(b, at, r, parsed == reasonNone, last)
	lost := span{offset: at, length: end - at, why: why, original: bytes.Clone(b[at:end]), subject: guessSubject(b[at:end], v)}
	lost.unfinished = open && end == len(b) && (why == reasonCut || bytes.HasSuffix(b[at:], make([]byte, min(sumSize, end-at))))
	lost.deletion = r.deletion && parsed == reasonNone
	if end == len(b) && !open {
		next = after
	}
	lost.first, lost.last = missing(r, last, next, parsed == reasonNone && end == at+r.length)
	return r, lost
}

// resume returns where the next readable record begins, and its sequence, 0 if there is none.
func (v *reader) resume(b []byte, at int, r record, parsed bool, last uint64) (end int, next uint64) {
	follows := func(p int) bool {
		n, why := parse(b[p:])
		if why != reasonNone || n.sequence == 0 || !n.deletion && (n.sequence <= last || n.sequence > last+1<<32 && last > 0) {
			return false
		}
		_, why = v.verify(b[p:])
		next = n.sequence
		if n.deletion {
			next = 0
		}
		return why == reasonNone
	}
	// The next one may be damaged as well.
	continues := func(p int) bool {
		n, why := parse(b[p:])
		return why == reasonNone && !r.deletion && n.sequence == r.sequence+1
	}
	if parsed && (at+r.length == len(b) || follows(at+r.length) || continues(at+r.length)) {
		return at + r.length, next
	}
	for p := at + 1; p+minRecord <= len(b); p++ {
		if follows(p) {
			return p, next
		}
	}
	return len(b), 0
}

// missing returns the sequences of a part that cannot be read, between those before and after it. one says that the
// part is as long as its record says.
func missing(r record, last, next uint64, one bool) (uint64, uint64) {
	known := !r.deletion && r.sequence > last && (next == 0 || r.sequence < next) && (last == 0 || r.sequence-last < 1<<20)
	switch {
	case one && r.deletion:
		return 0, 0
	case one && known:
		return r.sequence, r.sequence
	case last > 0 && next > last+1:
		return last + 1, next - 1
	case last > 0 && next == 0:
		return last + 1, last + 1
	case known:
		return r.sequence, max(r.sequence, next-min(next, 1))
	}
	return 0, 0
}

func subjectAt(b []byte, r record) string {
	return string(b[headSize : headSize+r.subject])
}

// guessSubject returns the subject of a record that cannot be read, if it is one of the stream's.
func guessSubject(b []byte, v *reader) string {
	if len(b) < headSize {
		return ""
	}
	n := int(binary.LittleEndian.Uint16(b[20:]))
	if n == 0 || headSize+n > len(b) || len(v.subjects) == 0 || !v.accepts(b[headSize:headSize+n]) {
		return ""
	}
	return string(b[headSize : headSize+n])
}
