package udx

import (
	"encoding/binary"
)

// The first bytes of a packet.
const (
	magic      = 0xff
	version    = 1
	headerSize = 20
)

// The bits of a packet's type. A packet without any is an acknowledgement.
const (
	typeData      = 1 << iota // the payload is stream data
	typeEnd                   // the last packet of the stream
	typeSack                  // ranges that arrived out of order follow the header
	typeMessage               // the payload is one unordered message
	typeDestroy               // the stream is reset
	typeHeartbeat             // asks for an acknowledgement
)

// maxSackRanges bounds the ranges in a received packet, sackRanges those in a sent one.
const (
	maxSackRanges = 50
	sackRanges    = 8
)

// header is a packet's header. Sequence numbers wrap and are compared by signed difference.
type header struct {
	types  byte
	offset byte   // bytes between header and payload
	id     uint32 // the receiver's stream id
	window uint32 // bytes that the sender of this packet accepts
	seq    uint32
	ack    uint32 // next expected
}

func (h *header) append(b []byte) []byte {
	b = append(b, magic, version, h.types, h.offset)
	b = binary.LittleEndian.AppendUint32(b, h.id)
	b = binary.LittleEndian.AppendUint32(b, h.window)
	b = binary.LittleEndian.AppendUint32(b, h.seq)
	return binary.LittleEndian.AppendUint32(b, h.ack)
}

// packet is a decoded packet. It refers to the datagram.
type packet struct {
	header
	sack    []byte // ranges of 8 bytes
	payload []byte
}

// looksLikePacket reports whether a datagram may be a packet, and returns the stream's id.
func looksLikePacket(data []byte) (id uint32, ok bool) {
	if len(data) < headerSize || data[0] != magic || data[1] != version {
		return 0, false
	}
	return binary.LittleEndian.Uint32(data[4:]), true
}

// parsePacket decodes a datagram that looksLikePacket accepts.
func parsePacket(data []byte) (p packet, ok bool) {
	p.header = header{
		types: data[2], offset: data[3],
		id:     binary.LittleEndian.Uint32(data[4:]),
		window: binary.LittleEndian.Uint32(data[8:]),
		seq:    binary.LittleEndian.Uint32(data[12:]),
		ack:    binary.LittleEndian.Uint32(data[16:]),
	}
	rest := data[headerSize:]
	if int(p.offset) > len(rest) {
		return p, false
	}
	between := rest[:p.offset]
	p.payload = rest[p.offset:]
	if p.types&typeSack != 0 {
		if p.offset == 0 { // the ranges fill the packet
			between, p.payload = rest, nil
		}
		n := min(len(between)/8, maxSackRanges)
		p.sack = between[:8*n]
	}
	return p, true
}

// ranges calls f for each range [first, end) of sequence numbers received out of order.
func (p *packet) ranges(f func(first, end uint32)) {
	for b := p.sack; len(b) >= 8; b = b[8:] {
		f(binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]))
	}
}

// before reports whether a comes before b.
func before(a, b uint32) bool { return int32(a-b) < 0 }
