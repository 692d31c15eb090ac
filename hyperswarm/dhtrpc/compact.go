package dhtrpc

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// MaxUint is the largest number that peers decode exactly: they use doubles.
const MaxUint = 1<<53 - 1

// addrSize is the size of an encoded IPv4 address with its port.
const addrSize = 6

// ErrInvalid reports a message that does not decode.
var ErrInvalid = errors.New("the message is cut off or holds a number that is too large")

// AppendUint appends a number in its shortest form.
func AppendUint(b []byte, v uint64) []byte {
	switch {
	case v <= 0xfc:
		return append(b, byte(v))
	case v <= 0xffff:
		return binary.LittleEndian.AppendUint16(append(b, 0xfd), uint16(v))
	case v <= 0xffffffff:
		return binary.LittleEndian.AppendUint32(append(b, 0xfe), uint32(v))
	}
	return binary.LittleEndian.AppendUint64(append(b, 0xff), v)
}

// AppendBuffer appends bytes, prefixed with their length.
func AppendBuffer(b, v []byte) []byte {
	return append(AppendUint(b, uint64(len(v))), v...)
}

// AppendAddr appends an IPv4 address and its port. Any other address becomes 0.0.0.0.
func AppendAddr(b []byte, a netip.AddrPort) []byte {
	var ip [4]byte
	if a.Addr().Is4() || a.Addr().Is4In6() {
		ip = a.Addr().As4()
	}
	return binary.LittleEndian.AppendUint16(append(b, ip[:]...), a.Port())
}

// AppendAddrs appends a counted list of addresses.
func AppendAddrs(b []byte, all []netip.AddrPort) []byte {
	b = AppendUint(b, uint64(len(all)))
	for _, a := range all {
		b = AppendAddr(b, a)
	}
	return b
}

// Reader decodes a message. After the first error it returns zero values; check Err once at the end.
// Returned slices may refer to the message.
type Reader struct {
	data []byte
	err  error
}

// NewReader returns a reader of a message.
func NewReader(data []byte) *Reader { return &Reader{data: data} }

// Err returns nil or [ErrInvalid].
func (r *Reader) Err() error { return r.err }

// Len returns how many bytes are left.
func (r *Reader) Len() int { return len(r.data) }

// Fail marks the message as invalid.
func (r *Reader) Fail() { r.data, r.err = nil, ErrInvalid }

// Fixed returns the next n bytes.
func (r *Reader) Fixed(n int) []byte {
	if n < 0 || n > len(r.data) {
		r.Fail()
		return nil
	}
	part := r.data[:n:n]
	r.data = r.data[n:]
	return part
}

// Fixed32 returns the next 32 bytes.
func (r *Reader) Fixed32() (v [32]byte) {
	copy(v[:], r.Fixed(len(v)))
	return v
}

// Fixed64 returns the next 64 bytes.
func (r *Reader) Fixed64() (v [64]byte) {
	copy(v[:], r.Fixed(len(v)))
	return v
}

// U16 returns the next two bytes as a number.
func (r *Reader) U16() uint16 {
	if b := r.Fixed(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

// U32 returns the next four bytes as a number.
func (r *Reader) U32() uint32 {
	if b := r.Fixed(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// Uint returns the next number. Forms that are longer than needed are accepted.
func (r *Reader) Uint() uint64 {
	first := r.Fixed(1)
	if first == nil {
		return 0
	}
	switch first[0] {
	case 0xfd:
		return uint64(r.U16())
	case 0xfe:
		return uint64(r.U32())
	case 0xff:
		b := r.Fixed(8)
		if b == nil {
			return 0
		}
		if v := binary.LittleEndian.Uint64(b); v <= MaxUint {
			return v
		}
		r.Fail()
		return 0
	}
	return uint64(first[0])
}

// Buffer returns the next length-prefixed bytes; nil only on an error.
func (r *Reader) Buffer() []byte {
	n := r.Uint()
	if r.err != nil || n > uint64(len(r.data)) {
		r.Fail()
		return nil
	}
	return r.Fixed(int(n))
}

// Count returns the number of items that follow, of at least size bytes each. A count that exceeds the
// message is an error, so that callers may allocate for it.
func (r *Reader) Count(size int) int {
	n := r.Uint()
	if n > uint64(len(r.data)/size) {
		r.Fail()
		return 0
	}
	return int(n)
}

// Addr returns the next address.
func (r *Reader) Addr() netip.AddrPort {
	b := r.Fixed(addrSize)
	if b == nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), binary.LittleEndian.Uint16(b[4:]))
}

// Addrs returns a list of addresses, nil if it is empty.
func (r *Reader) Addrs() []netip.AddrPort {
	n := r.Count(addrSize)
	if n == 0 {
		return nil
	}
	all := make([]netip.AddrPort, n)
	for i := range all {
		all[i] = r.Addr()
	}
	return all
}

// Coder encodes the fields of a message in order, or decodes them: one function describes both directions.
type Coder struct {
	in  *Reader // nil: encodes
	out []byte
}

// Encode appends the message that code describes.
func Encode(b []byte, code func(*Coder)) []byte {
	c := Coder{out: b}
	code(&c)
	return c.out
}

// Decode decodes the message that code describes. The message refers to data. Bytes after it are ignored.
func Decode(data []byte, code func(*Coder)) error {
	c := Coder{in: NewReader(data)}
	code(&c)
	return c.in.err
}

func field[T any](c *Coder, v *T, read func(*Reader) T, write func([]byte, T) []byte) {
	if c.in != nil {
		*v = read(c.in)
		return
	}
	c.out = write(c.out, *v)
}

// Decodes reports whether the message is decoded.
func (c *Coder) Decodes() bool { return c.in != nil }

// Fail marks a message that is decoded as invalid.
func (c *Coder) Fail() { c.in.Fail() }

// Uint codes a number.
func (c *Coder) Uint(v *uint64) { field(c, v, (*Reader).Uint, AppendUint) }

// Buffer codes bytes with their length.
func (c *Coder) Buffer(v *[]byte) { field(c, v, (*Reader).Buffer, AppendBuffer) }

// Addr codes an address.
func (c *Coder) Addr(v *netip.AddrPort) { field(c, v, (*Reader).Addr, AppendAddr) }

// Addrs codes a list of addresses.
func (c *Coder) Addrs(v *[]netip.AddrPort) { field(c, v, (*Reader).Addrs, AppendAddrs) }

// Fixed codes bytes whose number is known.
func (c *Coder) Fixed(v []byte) {
	if c.in != nil {
		copy(v, c.in.Fixed(len(v)))
		return
	}
	c.out = append(c.out, v...)
}

// Optional codes 32 bytes if they are present.
func (c *Coder) Optional(present bool, v **[32]byte) {
	if !present {
		return
	}
	if c.in != nil {
		*v = new([32]byte)
	}
	c.Fixed((*v)[:])
}

// Flags codes the bits that are set and returns them; the first is bit 0.
func (c *Coder) Flags(set ...bool) (flags uint64) {
	for i, on := range set {
		if on {
			flags |= 1 << i
		}
	}
	c.Uint(&flags)
	return flags
}

// List codes a counted list of items, of at least size bytes each.
func List[T any](c *Coder, all *[]T, size int, item func(*T)) {
	if c.in == nil {
		c.out = AppendUint(c.out, uint64(len(*all)))
	} else if n := c.in.Count(size); n > 0 {
		*all = make([]T, n)
	}
	for i := range *all {
		item(&(*all)[i])
	}
}
