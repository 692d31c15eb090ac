package lib0

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// The tags of an Any.
const (
	TagUndefined = 127
	TagNull      = 126
	TagInteger   = 125
	TagFloat32   = 124
	TagFloat64   = 123
	TagBigInt    = 122
	TagFalse     = 121
	TagTrue      = 120
	TagString    = 119
	TagObject    = 118
	TagArray     = 117
	TagBytes     = 116
)

// Errors of malformed values.
var (
	ErrDepth     = errors.New("a value is nested too deeply")
	ErrElements  = errors.New("a value has too many elements")
	ErrDuplicate = errors.New("an object has a key twice")
	ErrProto     = errors.New("an object has the key __proto__")
	ErrTag       = errors.New("a value begins with an unknown tag")
)

// AnyLimits bounds decoded values.
type AnyLimits struct {
	Depth    int // nesting of arrays and objects
	Elements int // remaining values; each value read takes one
	String   int // bytes of a string or byte slice
	Key      int // bytes of an object's key
}

// Any reads one value and returns its encoding. It decrements l.Elements, so that one budget can cover many values.
func (r *Reader) Any(l *AnyLimits) []byte {
	start := r.pos
	r.skipAny(l, 0)
	if r.err != nil {
		return nil
	}
	return r.Since(start)
}

func (r *Reader) skipAny(l *AnyLimits, depth int) {
	if l.Elements--; l.Elements < 0 {
		r.Fail(ErrElements)
		return
	}
	switch tag := r.Byte(); tag {
	case TagUndefined, TagNull, TagFalse, TagTrue:
	case TagInteger:
		r.Int()
	case TagFloat32:
		r.Take(4)
	case TagFloat64, TagBigInt:
		r.Take(8)
	case TagString:
		r.String(l.String)
	case TagBytes:
		if b := r.Bytes(); len(b) > l.String {
			r.Fail(ErrTooLong)
		}
	case TagArray:
		r.skipMany(l, depth, nil)
	case TagObject:
		r.skipMany(l, depth, &keys{})
	default:
		r.Fail(ErrTag)
	}
}

// skipMany reads the elements of an array, or the members of an object if seen is not nil. It does
// not preallocate by the declared count, which may be forged.
func (r *Reader) skipMany(l *AnyLimits, depth int, seen *keys) {
	n := r.Uint()
	if depth++; depth > l.Depth {
		r.Fail(ErrDepth)
	}
	if n > uint64(r.Len()) { // every element has at least one byte
		r.Fail(ErrShort)
	}
	for ; n > 0 && r.err == nil; n-- {
		if seen != nil {
			k := r.String(l.Key)
			if r.err != nil {
				return
			}
			if string(k) == "__proto__" {
				r.Fail(ErrProto)
			}
			if !seen.add(k) {
				r.Fail(ErrDuplicate)
			}
		}
		r.skipAny(l, depth)
	}
}

// keys is a set of an object's keys; most objects are small.
type keys struct {
	few  [8][]byte
	n    int
	many map[string]struct{}
}

func (s *keys) add(k []byte) bool {
	if s.many == nil && s.n < len(s.few) {
		for _, f := range s.few[:s.n] {
			if string(f) == string(k) {
				return false
			}
		}
		s.few[s.n] = k
		s.n++
		return true
	}
	if s.many == nil {
		s.many = make(map[string]struct{}, 2*len(s.few))
		for _, f := range s.few {
			s.many[string(f)] = struct{}{}
		}
	}
	if _, ok := s.many[string(k)]; ok {
		return false
	}
	s.many[string(k)] = struct{}{}
	return true
}

// AppendNumber appends a number as JavaScript writes it: an integer of up to 31 bits as one, else the
// smaller float that holds it exactly.
func AppendNumber(b []byte, v float64) []byte {
	if v == math.Trunc(v) && math.Abs(v) <= math.MaxInt32 {
		b = append(b, TagInteger)
		if v == 0 && math.Signbit(v) {
			return append(b, 0x40)
		}
		return AppendInt(b, int64(v))
	}
	if f := float32(v); float64(f) == v {
		return binary.BigEndian.AppendUint32(append(b, TagFloat32), math.Float32bits(f))
	}
	bits := math.Float64bits(v)
	if v != v {
		bits = 0x7ff8000000000000 // the NaN of JavaScript; Go's has another bit pattern
	}
	return binary.BigEndian.AppendUint64(append(b, TagFloat64), bits)
}

// Undefined is JavaScript's undefined.
type Undefined struct{}

// MarshalJSON returns null.
func (Undefined) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

// BigInt is a JavaScript BigInt of 64 bits.
type BigInt int64

// String returns it in decimal.
func (v BigInt) String() string { return strconv.FormatInt(int64(v), 10) }

// Member is one member of an Object.
type Member struct {
	Key   string
	Value any
}

// Object is an object in its own order.
type Object []Member

// Get returns the value of a key.
func (o Object) Get(key string) (any, bool) {
	for _, m := range o {
		if m.Key == key {
			return m.Value, true
		}
	}
	return nil, false
}

// Value decodes one value that Reader.Any has checked: nil, Undefined, bool, float64, BigInt, string,
// []byte, []any or Object.
func Value(raw []byte) any {
	r := Reader{b: raw}
	v := r.value()
	if r.err != nil {
		panic(fmt.Sprintf("lib0: a checked value is broken: %v", r.err))
	}
	return v
}

func (r *Reader) value() any {
	switch tag := r.Byte(); tag {
	case TagUndefined:
		return Undefined{}
	case TagFalse, TagTrue:
		return tag == TagTrue
	case TagInteger:
		v, negativeZero := r.Int()
		if negativeZero {
			return math.Copysign(0, -1)
		}
		return float64(v)
	case TagFloat32:
		return float64(math.Float32frombits(binary.BigEndian.Uint32(r.Take(4))))
	case TagFloat64:
		return math.Float64frombits(binary.BigEndian.Uint64(r.Take(8)))
	case TagBigInt:
		return BigInt(binary.BigEndian.Uint64(r.Take(8)))
	case TagString:
		return string(r.Bytes())
	case TagBytes:
		return append([]byte{}, r.Bytes()...)
	case TagArray:
		a := make([]any, 0, r.Uint())
		for range cap(a) {
			a = append(a, r.value())
		}
		return a
	case TagObject:
		o := make(Object, 0, r.Uint())
		for range cap(o) {
			k := string(r.Bytes())
			o = append(o, Member{k, r.value()})
		}
		return o
	default: // null
		return nil
	}
}
