package transport

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/parleyhub/parley/envelope"
)

// Codec writes and reads frames as bytes, for transports that carry bytes. The
// zero Codec is ready; it is safe for concurrent use once set up.
//
// A frame is a byte with its kind, then
//
//	Open, Accept          uvarint length, Hello as JSON
//	Refuse, Close         uvarint length, Reason as JSON
//	Ready                 nothing
//	Data                  uvarint Seq, uvarint Ack, uvarint length, Envelope as JSON; length 0: given up
//	Ack                   uvarint Seq, uvarint Ack
//	Reject                uvarint Seq, uvarint length, Reason as JSON
//
// and frames follow each other without separators.
type Codec struct {
	// Envelope writes and reads the envelopes and bounds their size.
	Envelope envelope.Codec
}

// maxHello bounds a Hello; it leaves room for an agent card.
const maxHello = 512 << 10

// MaxFrames bounds the frames of one Decode: the smallest has one byte, and takes
// much more in memory.
const MaxFrames = 4096

// maxFrameHeader is a kind and three numbers.
const maxFrameHeader = 1 + 3*binary.MaxVarintLen64

// MaxFrame returns how many bytes the largest frame may have.
func (c *Codec) MaxFrame() int {
	size := c.Envelope.MaxSize
	if size <= 0 {
		size = envelope.DefaultMaxSize
	}
	return max(size, maxHello) + maxFrameHeader
}

// MessageSize is up to how many bytes frames share a message of a transport that
// has messages; a larger frame has one of its own.
const MessageSize = 64 << 10

// MaxMessage returns how many bytes the largest message of AppendMessages may have.
func (c *Codec) MaxMessage() int { return max(c.MaxFrame(), MessageSize) }

// AppendMessages appends frames to dst, and returns where in it each message ends.
// The peer takes frames of at most maxFrame bytes: a larger one gives CodeTooLarge.
func (c *Codec) AppendMessages(dst []byte, frames []Frame, maxFrame int) ([]byte, []int, error) {
	var ends []int
	begin, first := len(dst), 0 // of the present message: its first byte and frame
	for i := range frames {
		at := len(dst)
		var err error
		if dst, err = c.Append(dst, &frames[i]); err != nil {
			return dst, nil, err
		}
		if size := len(dst) - at; size > maxFrame {
			return dst, nil, &Error{Code: CodeTooLarge, Message: fmt.Sprintf("the frame has %d bytes; the peer takes %d", size, maxFrame)}
		}
		if at > begin && (len(dst)-begin > min(MessageSize, maxFrame) || i-first == MaxFrames) {
			ends = append(ends, at)
			begin, first = at, i
		}
	}
	if len(dst) > begin {
		ends = append(ends, len(dst))
	}
	return dst, ends, nil
}

// Append appends a frame to dst. An envelope that is too large gives
// CodeTooLarge and leaves dst as it came.
func (c *Codec) Append(dst []byte, f *Frame) ([]byte, error) {
	out := append(dst, byte(f.Kind))
	switch f.Kind {
	case Ready:
		return out, nil
	case Open, Accept:
		return appendJSON(dst, out, f.Hello)
	case Refuse, Close:
		return appendJSON(dst, out, f.Reason)
	case Ack:
		return binary.AppendUvarint(binary.AppendUvarint(out, f.Seq), f.Ack), nil
	case Reject:
		return appendJSON(dst, binary.AppendUvarint(out, f.Seq), f.Reason)
	case Data:
		return c.appendData(dst, out, f)
	}
	return dst, &Error{Code: CodeInvalid, Message: fmt.Sprintf("there is no frame of kind %d", f.Kind)}
}

func appendJSON(dst, out []byte, v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return dst, &Error{Code: CodeInvalid, Message: "the frame cannot be written as JSON", Err: err}
	}
	if len(data) > maxHello {
		return dst, &Error{Code: CodeTooLarge, Message: fmt.Sprintf("the frame has %d bytes; at most %d are allowed", len(data), maxHello)}
	}
	return append(binary.AppendUvarint(out, uint64(len(data))), data...), nil
}

// lengthSize is the room kept for an envelope's length, which is not known
// before it is written: a uvarint may be padded to this many bytes.
const lengthSize = 4

func (c *Codec) appendData(dst, out []byte, f *Frame) ([]byte, error) {
	out = binary.AppendUvarint(binary.AppendUvarint(out, f.Seq), f.Ack)
	if f.Envelope == nil {
		return append(out, 0), nil
	}
	at := len(out)
	out, err := c.Envelope.Append(append(out, 0, 0, 0, 0), f.Envelope)
	if err != nil {
		return dst, &Error{Code: CodeTooLarge, Message: "the envelope cannot be sent", Err: err}
	}
	n := len(out) - at - lengthSize
	if n >= 1<<(7*lengthSize) {
		return dst, &Error{Code: CodeTooLarge, Message: fmt.Sprintf("the envelope has %d bytes, too many for a frame", n)}
	}
	for i := range lengthSize {
		out[at+i] = byte(n) | 0x80
		n >>= 7
	}
	out[at+lengthSize-1] &= 0x7f
	return out, nil
}

// Decode appends the frames in data to dst. Data is the whole of one or more
// frames, at most [MaxFrames]; anything else gives CodeInvalid. An envelope that
// is not valid is its own frame's Err and stops no other. The frames do not refer
// to data.
func (c *Codec) Decode(dst []Frame, data []byte) ([]Frame, error) {
	for n := 0; len(data) > 0; n++ {
		if n == MaxFrames {
			return dst, &Error{Code: CodeInvalid, Message: fmt.Sprintf("there are more than %d frames", MaxFrames)}
		}
		f := Frame{Kind: Kind(data[0])}
		r := reader{data: data[1:]}
		switch f.Kind {
		case Ready:
		case Open, Accept:
			f.Hello = new(Hello)
			r.json(f.Hello)
		case Refuse, Close:
			f.Reason = new(Reason)
			r.json(f.Reason)
		case Ack:
			f.Seq, f.Ack = r.uvarint(), r.uvarint()
		case Reject:
			f.Seq, f.Reason = r.uvarint(), new(Reason)
			r.json(f.Reason)
		case Data:
			f.Seq, f.Ack = r.uvarint(), r.uvarint()
			if text := r.bytes(); len(text) > 0 && r.err == nil {
				f.Envelope, f.Err = c.Envelope.Decode(text)
			}
		default:
			return dst, &Error{Code: CodeInvalid, Message: fmt.Sprintf("there is no frame of kind %d", data[0])}
		}
		if r.err != nil {
			return dst, &Error{Code: CodeInvalid, Message: fmt.Sprintf("a frame of kind %d is broken", f.Kind), Err: r.err}
		}
		dst = append(dst, f)
		data = r.data
	}
	return dst, nil
}

// reader takes data apart; after its first error it returns zeros.
type reader struct {
	data []byte
	err  error
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.data)
	if n <= 0 || r.err != nil {
		if r.err == nil {
			r.err = fmt.Errorf("a number is cut off or too large")
		}
		return 0
	}
	r.data = r.data[n:]
	return v
}

func (r *reader) bytes() []byte {
	n := r.uvarint()
	if r.err == nil && n > uint64(len(r.data)) {
		r.err = fmt.Errorf("%d bytes are announced and %d are there", n, len(r.data))
	}
	if r.err != nil {
		return nil
	}
	part := r.data[:n]
	r.data = r.data[n:]
	return part
}

func (r *reader) json(v any) {
	part := r.bytes()
	if r.err == nil && len(part) > maxHello {
		r.err = fmt.Errorf("%d bytes are more than %d", len(part), maxHello)
	}
	if r.err == nil {
		r.err = json.Unmarshal(part, v)
	}
}
