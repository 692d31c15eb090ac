package dhtrpc

import (
	"encoding/binary"
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
	m.Closer = m.Closer[:min(len(m.Closer), maxCloser)]
	first := byte(requestByte)
	if m.Response {
		first = responseByte
	}
	return Encode(append(b, first), m.code)
}

// Parse decodes a datagram. The message refers to data. Bytes after the known fields are ignored.
func Parse(data []byte) (*Message, error) {
	if len(data) == 0 || data[0] != requestByte && data[0] != responseByte {
		return nil, ErrInvalid
	}
	m := &Message{Response: data[0] == responseByte}
	if err := Decode(data[1:], m.code); err != nil {
		return nil, err
	}
	m.Closer = m.Closer[:min(len(m.Closer), maxCloser)]
	return m, nil
}

// code codes what follows the first byte.
func (m *Message) code(c *Coder) {
	third, fourth := m.Internal, m.Target != nil
	if m.Response {
		third, fourth = len(m.Closer) > 0, m.Error != 0
	}
	flags := c.Flags(m.ID != nil, m.Token != nil, third, fourth, m.Value != nil)
	field(c, &m.TID, (*Reader).U16, binary.LittleEndian.AppendUint16)
	c.Addr(&m.To)
	c.Optional(flags&flagID != 0, &m.ID)
	c.Optional(flags&flagToken != 0, &m.Token)
	third, fourth = flags&flagInternalOrCloser != 0, flags&flagTargetOrError != 0
	if !m.Response {
		m.Internal = third
		c.Uint(&m.Command)
		c.Optional(fourth, &m.Target)
	}
	if m.Response && third {
		c.Addrs(&m.Closer)
	}
	if m.Response && fourth {
		c.Uint(&m.Error)
	}
	if flags&flagValue != 0 {
		c.Buffer(&m.Value)
	}
}
