package dhtrpc

import (
	"net/netip"
)

// ID is a point of the DHT's key space: a node's id or a target.
type ID = [32]byte

// The first byte of a message.
const (
	requestByte  = 0x03
	responseByte = 0x13
)

// The flags of a message. Bit 2 means an internal command in a request and closer nodes in a response, bit
// 3 a target in a request and an error in a response.
const (
	flagID = 1 << iota
	flagToken
	flagInternalOrCloser
	flagTargetOrError
	flagValue
)

// maxCloser is how many closer nodes a response may name.
const maxCloser = 20

// Message is a decoded request or response. Absent fields are nil or 0.
type Message struct {
	Response bool
	TID      uint16
	To       netip.AddrPort // the receiver's address as the sender sees it
	ID       *ID            // of the sender, if it is persistent
	Token    *[32]byte
	Internal bool // of a request: the command is one of the DHT's own
	Command  uint64
	Target   *ID
	Closer   []netip.AddrPort // of a response
	Error    uint64           // of a response
	Value    []byte
}

// Append appends the message to b.
func (m *Message) Append(b []byte) []byte {
	first, flags := byte(requestByte), byte(0)
	if m.Response {
		first = responseByte
	}
	set := func(on bool, flag byte) {
		if on {
			flags |= flag
		}
	}
	set(m.ID != nil, flagID)
	set(m.Token != nil, flagToken)
	set(m.Internal && !m.Response || len(m.Closer) > 0 && m.Response, flagInternalOrCloser)
	set(m.Target != nil && !m.Response || m.Error != 0 && m.Response, flagTargetOrError)
	set(m.Value != nil, flagValue)
	b = append(b, first, flags, byte(m.TID), byte(m.TID>>8))
	b = AppendAddr(b, m.To)
	if m.ID != nil {
		b = append(b, m.ID[:]...)
	}
	if m.Token != nil {
		b = append(b, m.Token[:]...)
	}
	if m.Response {
		if len(m.Closer) > 0 {
			b = AppendAddrs(b, m.Closer[:min(len(m.Closer), maxCloser)])
		}
		if m.Error != 0 {
			b = AppendUint(b, m.Error)
		}
	} else {
		b = AppendUint(b, m.Command)
		if m.Target != nil {
			b = append(b, m.Target[:]...)
		}
	}
	if m.Value != nil {
		b = AppendBuffer(b, m.Value)
	}
	return b
}

// Parse decodes a datagram. The message refers to data. Bytes after the known fields are ignored.
func Parse(data []byte) (*Message, error) {
	r := NewReader(data)
	first := r.Fixed(1)
	if first == nil || first[0] != requestByte && first[0] != responseByte {
		return nil, ErrInvalid
	}
	m := &Message{Response: first[0] == responseByte}
	flags := r.Uint()
	m.TID = r.U16()
	m.To = r.Addr()
	fixed := func(flag uint64) *[32]byte {
		if flags&flag == 0 {
			return nil
		}
		v := r.Fixed32()
		return &v
	}
	m.ID = fixed(flagID)
	m.Token = fixed(flagToken)
	if m.Response {
		if flags&flagInternalOrCloser != 0 {
			m.Closer = r.Addrs()
		}
		if flags&flagTargetOrError != 0 {
			m.Error = r.Uint()
		}
	} else {
		m.Internal = flags&flagInternalOrCloser != 0
		m.Command = r.Uint()
		m.Target = fixed(flagTargetOrError)
	}
	if flags&flagValue != 0 {
		m.Value = r.Buffer()
	}
	if r.Err() != nil {
		return nil, r.Err()
	}
	if len(m.Closer) > maxCloser {
		m.Closer = m.Closer[:maxCloser]
	}
	return m, nil
}
