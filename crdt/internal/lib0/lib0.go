// Package lib0 encodes and decodes the primitives of the Yjs wire format: variable-length integers, byte
// strings and the self-describing value "Any".
package lib0

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"
)

// MaxSafe is the largest integer that the format allows, 2^53-1: the largest that a JavaScript number holds exactly.
const MaxSafe = 1<<53 - 1

// Errors of malformed data.
var (
	ErrShort   = errors.New("the data is truncated")
	ErrRange   = errors.New("an integer is greater than 2^53-1 or longer than 8 bytes")
	ErrUTF8    = errors.New("a string is not valid UTF-8")
	ErrTooLong = errors.New("a string is longer than allowed")
)

// Reader decodes primitives from a byte slice. After the first error it returns zero values. Returned
// slices refer to the data.
type Reader struct {
	b   []byte
	pos int
	err error
}

// NewReader returns a reader of b.
func NewReader(b []byte) *Reader { return &Reader{b: b} }

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// Fail sets the reader's error unless it has one.
func (r *Reader) Fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// Len returns the number of unread bytes.
func (r *Reader) Len() int { return len(r.b) - r.pos }

// Pos returns the number of bytes read.
func (r *Reader) Pos() int { return r.pos }

// Since returns the bytes read since an earlier position.
func (r *Reader) Since(pos int) []byte { return r.b[pos:r.pos:r.pos] }

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if r.err != nil || r.pos >= len(r.b) {
		r.Fail(ErrShort)
		return 0
	}
	r.pos++
	return r.b[r.pos-1]
}

// Uint reads a varUint: groups of 7 bits, the least significant first.
func (r *Reader) Uint() uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.pos:])
	switch {
	case n == 0:
		r.Fail(ErrShort)
	case n < 0 || n > 8 || v > MaxSafe:
		r.Fail(ErrRange)
	default:
		r.pos += n
		return v
	}
	return 0
}

// Int reads a varInt: a sign in bit 6 of the first byte. A negative zero is reported, since JavaScript
// distinguishes it from 0.
func (r *Reader) Int() (v int64, negativeZero bool) {
	c := r.Byte()
	negative := c&0x40 != 0
	u := uint64(c & 0x3f)
	for shift := 6; c >= 0x80; shift += 7 {
		if shift >= 55 {
			r.Fail(ErrRange)
			return 0, false
		}
		c = r.Byte()
		if r.err != nil {
			return 0, false
		}
		u |= uint64(c&0x7f) << shift
	}
	if u > MaxSafe {
		r.Fail(ErrRange)
		return 0, false
	}
	if negative {
		return -int64(u), u == 0
	}
	return int64(u), false
}

// Take reads n bytes.
func (r *Reader) Take(n uint64) []byte {
	if r.err != nil {
		return nil
	}
	if n > uint64(r.Len()) {
		r.Fail(ErrShort)
		return nil
	}
	s := r.b[r.pos : r.pos+int(n) : r.pos+int(n)]
	r.pos += int(n)
	return s
}

// Bytes reads a length and as many bytes.
func (r *Reader) Bytes() []byte { return r.Take(r.Uint()) }

// String reads a length, which must be at most max, and as many bytes of valid UTF-8.
func (r *Reader) String(max int) []byte {
	n := r.Uint()
	if n > uint64(max) && n <= uint64(r.Len()) {
		r.Fail(ErrTooLong)
	}
	s := r.Take(n)
	if r.err == nil && !utf8.Valid(s) {
		r.Fail(ErrUTF8)
		return nil
	}
	return s
}

// AppendUint appends a varUint.
func AppendUint(b []byte, v uint64) []byte { return binary.AppendUvarint(b, v) }

// AppendInt appends a varInt.
func AppendInt(b []byte, v int64) []byte {
	if v < 0 {
		return appendSigned(b, uint64(-v), 0x40)
	}
	return appendSigned(b, uint64(v), 0)
}

func appendSigned(b []byte, u uint64, sign byte) []byte {
	if u < 0x40 {
		return append(b, byte(u)|sign)
	}
	b = append(b, byte(u&0x3f)|sign|0x80)
	return binary.AppendUvarint(b, u>>6)
}

// AppendBytes appends a length and the bytes.
func AppendBytes(b, v []byte) []byte {
	return append(AppendUint(b, uint64(len(v))), v...)
}

// AppendString appends a length in bytes and the string.
func AppendString(b []byte, v string) []byte {
	return append(AppendUint(b, uint64(len(v))), v...)
}
