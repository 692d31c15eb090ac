package damage

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/minio/highwayhash"
)

// The layout of a record in a block file of nats-server:
//
//	length (4 bytes, the highest bit: it has headers), sequence (8, the highest bits: erased, deletion mark),
//	time (8), length of the subject (2), subject, [length of the headers (4), headers], body, checksum (8)
//
// The checksum covers all but the three lengths. It has a key of its own in each block.
const (
	headSize  = 22
	sumSize   = 8
	minRecord = headSize + sumSize
	maxRecord = 32 << 20

	headersBit  = 1 << 31
	erasedBit   = 1 << 63
	deletionBit = 1 << 62
)

// reason is why a record cannot be read.
type reason string

const (
	reasonNone    reason = ""
	reasonCut     reason = "it ends after the file does"
	reasonLength  reason = "its length is impossible"
	reasonSum     reason = "its checksum does not match"
	reasonHeaders reason = "the length of its headers is wrong"
	reasonSubject reason = "its subject is none of the stream's"
)

// record is what the head of a record says.
type record struct {
	length   int
	headers  bool
	subject  int
	sequence uint64 // without the highest bits
	erased   bool
	deletion bool
	at       int64
}

// parse reads the record at the beginning of b.
func parse(b []byte) (record, reason) {
	if len(b) < headSize {
		return record{}, reasonCut
	}
	le := binary.LittleEndian
	length, sequence := le.Uint32(b), le.Uint64(b[4:])
	r := record{
		length: int(length &^ headersBit), headers: length&headersBit != 0, subject: int(le.Uint16(b[20:])),
		sequence: sequence &^ (erasedBit | deletionBit), erased: sequence&erasedBit != 0, deletion: sequence&deletionBit != 0,
		at: int64(le.Uint64(b[12:])),
	}
	least := minRecord + r.subject
	if r.headers {
		least += 4
	}
	switch {
	case r.length < least || r.length > maxRecord:
		return r, reasonLength
	case r.length > len(b):
		return r, reasonCut
	}
	return r, reasonNone
}

// reader verifies the records of one block. It is for one goroutine.
type reader struct {
	hash     *highwayhash.Digest64
	subjects []string // the stream's; empty for any
	accepted []byte   // a subject that the stream stores, usually that of the record before
	trials   int      // the largest record whose body is searched for a flipped bit
	sum      [sumSize]byte
}

func newReader(stream string, block int, subjects []string) (*reader, error) {
	hash, err := digest(fmt.Sprintf("%s-%d", stream, block))
	if err != nil {
		return nil, err
	}
	return &reader{hash: hash, subjects: subjects, trials: maxTrials}, nil
}

// digest returns nats-server's checksum of a name.
func digest(name string) (*highwayhash.Digest64, error) {
	key := sha256.Sum256([]byte(name))
	return highwayhash.NewDigest64(key[:])
}

// verify checks the record at the beginning of b.
func (v *reader) verify(b []byte) (record, reason) {
	r, why := parse(b)
	if why != reasonNone {
		return r, why
	}
	b = b[:r.length]
	if !bytes.Equal(v.sumOf(r, b), b[len(b)-sumSize:]) {
		return r, reasonSum
	}
	return r, v.structure(r, b)
}

func (v *reader) sumOf(r record, b []byte) []byte {
	v.hash.Reset()
	_, _ = v.hash.Write(b[4:20])
	_, _ = v.hash.Write(b[headSize : headSize+r.subject])
	rest := headSize + r.subject
	if r.headers {
		rest += 4
	}
	_, _ = v.hash.Write(b[rest : len(b)-sumSize])
	return v.hash.Sum(v.sum[:0])
}

const headersBegin, headersEnd = "NATS/1.0", "\r\n\r\n"

// structure checks the lengths that the checksum does not cover.
func (v *reader) structure(r record, b []byte) reason {
	if r.erased || r.deletion || r.sequence == 0 {
		return reasonNone
	}
	subject, rest := b[headSize:headSize+r.subject], b[headSize+r.subject:len(b)-sumSize]
	if !v.accepts(subject) {
		return reasonSubject
	}
	if !r.headers {
		return reasonNone
	}
	n := int(binary.LittleEndian.Uint32(rest))
	if rest = rest[4:]; n > len(rest) {
		return reasonHeaders
	}
	if h := rest[:n]; n > 0 && (!bytes.HasPrefix(h, []byte(headersBegin)) || !bytes.HasSuffix(h, []byte(headersEnd))) {
		return reasonHeaders
	}
	return reasonNone
}

// accepts reports whether the stream stores messages of a subject.
func (v *reader) accepts(subject []byte) bool {
	if len(subject) == 0 {
		return false
	}
	if bytes.Equal(subject, v.accepted) {
		return true
	}
	for _, c := range subject {
		if c <= ' ' || c == 0x7f {
			return false
		}
	}
	if len(v.subjects) > 0 && !slices.ContainsFunc(v.subjects, func(s string) bool { return matches(s, subject) }) {
		return false
	}
	v.accepted = append(v.accepted[:0], subject...)
	return true
}

// matches reports whether a subject matches a filter.
func matches(filter string, subject []byte) bool {
	for {
		if filter == ">" {
			return len(subject) > 0 && subject[0] != '.'
		}
		end := bytes.IndexByte(subject, '.')
		if end < 0 {
			end = len(subject)
		}
		filterEnd := strings.IndexByte(filter, '.')
		if filterEnd < 0 {
			filterEnd = len(filter)
		}
		f := filter[:filterEnd]
		switch {
		case end == 0, f != "*" && f != string(subject[:end]):
			return false
		case filterEnd == len(filter) || end == len(subject):
			return filterEnd == len(filter) && end == len(subject)
		}
		filter, subject = filter[filterEnd+1:], subject[end+1:]
	}
}

// misplaced returns the length of the subject of a record without headers, which no checksum covers, if it is wrong by
// one bit: with the other length the body is a JSON object, and with this one it is not.
func (v *reader) misplaced(r record, b []byte) (length int, ok bool) {
	if r.headers || r.erased || r.deletion || r.sequence == 0 {
		return 0, false
	}
	rest := b[headSize : r.length-sumSize]
	subject, body := rest[:r.subject], rest[r.subject:]
	if len(body) == 0 || isObject(body[:1]) && !slices.ContainsFunc(subject, beginsJSON) || json.Valid(body) && isObject(body) {
		return 0, false
	}
	for bit := range 16 {
		n := r.subject ^ 1<<bit
		if n > 0 && n < len(rest) && isObject(rest[n:]) && json.Valid(rest[n:]) && v.accepts(rest[:n]) {
			return n, true
		}
	}
	return 0, false
}

// beginsJSON reports whether c is part of the beginning of a JSON object or array.
func beginsJSON(c byte) bool { return c == '{' || c == '[' || c == '"' }

// isObject reports whether b begins like a JSON object or array.
func isObject(b []byte) bool { return b[0] == '{' || b[0] == '[' }

// The sizes of records whose body is searched for a flipped bit, at a start and in a repair. The time is quadratic in it:
// the second one takes some seconds.
const (
	maxTrials       = 8 << 10
	maxRepairTrials = 64 << 10
)

// correct searches for the one flipped bit that makes the record at the beginning of b unreadable, and flips it back. It
// returns the record and the number of the bit, -1 if there is none. With a checksum of 64 bits no other record is
// taken for it.
func (v *reader) correct(b []byte, why reason) (record, int) {
	try := func(from, to int) (record, int) {
		for i := from * 8; i < to*8; i++ {
			flipBit(b, i)
			if r, why := v.verify(b); why == reasonNone {
				return r, i
			}
			flipBit(b, i)
		}
		return record{}, -1
	}
	if len(b) < minRecord {
		return record{}, -1
	}
	if r, bit := try(0, 4); bit >= 0 {
		return r, bit
	}
	if r, bit := try(20, headSize); bit >= 0 {
		return r, bit
	}
	r, parsed := parse(b)
	if parsed != reasonNone {
		return r, -1
	}
	if why == reasonHeaders {
		return try(headSize+r.subject, headSize+r.subject+4)
	}
	end := r.length - sumSize
	if bit := oneBit(v.sumOf(r, b[:r.length]), b[end:r.length]); bit >= 0 && v.structure(r, b[:r.length]) == reasonNone {
		flipBit(b[end:], bit)
		return r, end*8 + bit
	}
	if c, bit := try(4, 20); bit >= 0 || r.length > v.trials {
		return c, bit
	}
	return try(headSize, end)
}

func flipBit(b []byte, bit int) { b[bit/8] ^= 1 << (bit % 8) }

// oneBit returns the number of the only bit in which two checksums differ, -1 if they do not differ in one.
func oneBit(a, b []byte) int {
	le := binary.LittleEndian
	if d := le.Uint64(a) ^ le.Uint64(b); bits.OnesCount64(d) == 1 {
		return bits.TrailingZeros64(d)
	}
	return -1
}

// erase makes b an erased record, which the server skips and whose sequence it keeps. Its other bytes stay.
func (v *reader) erase(b []byte, sequence uint64, at int64) {
	le := binary.LittleEndian
	le.PutUint32(b, uint32(len(b)))
	le.PutUint64(b[4:], sequence|erasedBit)
	le.PutUint64(b[12:], uint64(at))
	le.PutUint16(b[20:], 0)
	copy(b[len(b)-sumSize:], v.sumOf(record{}, b))
}
