package transport

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/parleyhub/parley/envelope"
)

// Codec encodes and decodes frames, for transports that carry bytes. The zero Codec is ready to use. It is
// safe for concurrent use if it is not changed.
//
// A frame is a byte with its kind, then
//
//	Open, Accept          uvarint length, Hello as JSON
//	Refuse, Close         uvarint length, Reason as JSON
//	Ready                 nothing
//	Data                  uvarint Seq, uvarint Ack, uvarint length, Envelope as JSON; length 0: none
//	Ack                   uvarint Seq, uvarint Ack
//	Reject                uvarint Seq, uvarint length, Reason as JSON
//
// Frames follow each other without separators.
type Codec struct {
	// Envelope encodes and decodes the envelopes and bounds their size.
	Envelope envelope.Codec
}

// maxHello bounds a Hello; it leaves room for an agent card.
const maxHello = 512 << 10

// MaxFrames bounds the frames of one Decode: a frame may have one byte, but takes much more memory.
const MaxFrames = 4096

// maxFrameHeader is a kind and three numbers.
const maxFrameHeader = 1 + 3*binary.MaxVarintLen64

// MaxFrame returns the size of the largest frame in bytes.
func (c *Codec) MaxFrame() int {
	size := cmp.Or(max(c.Envelope.MaxSize, 0), envelope.DefaultMaxSize)
	return max(size, maxHello) + maxFrameHeader
}

// MessageSize bounds how many bytes of frames share a message; a larger frame has a message of its own.
const MessageSize = 64 << 10

// MaxMessage returns the size of the largest message of AppendMessages in bytes.
func (c *Codec) MaxMessage() int { return max(c.MaxFrame(), MessageSize) }

// AppendMessages appends frames to dst and returns the offsets at which the messages end. A frame larger
// than maxFrame, the peer's limit, is an error with CodeTooLarge.
func (c *Codec) AppendMessages(dst []byte, frames []Frame, maxFrame int) ([]byte, []int, error) {
	var ends []int
	begin, first := len(dst), 0 // of the current message: its first byte and frame
	for i := range frames {
		at := len(dst)
		var err error
		if dst, err = c.Append(dst, &frames[i]); err != nil {
			return dst, nil, err
		}
		if size := len(dst) - at; size > maxFrame {
			return dst, nil, &Error{Code: CodeTooLarge, Message: fmt.Sprintf("the frame has %d bytes; the peer accepts %d", size, maxFrame)}
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

// Append appends a frame to dst. An envelope that is too large is an error with CodeTooLarge and leaves dst
// unchanged.
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
		return dst, &Error{Code: CodeInvalid, Message: "the frame cannot be encoded as JSON", Err: err}
	}
	if len(data) > maxHello {
		return dst, &Error{Code: CodeTooLarge, Message: fmt.Sprintf("the frame has %d bytes; at most %d are allowed", len(data), maxHello)}
	}
	return append(binary.AppendUvarint(out, uint64(len(data))), data...), nil
}

// lengthSize is the size of an envelope's length: a uvarint padded to a fixed size, since the length is
// known only after the envelope is encoded.
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

// Decode appends the frames in data to dst. Data must hold one or more whole frames, at most [MaxFrames];
// anything else is an error with CodeInvalid. The error of an invalid envelope is its frame's Err and does
// not affect other frames. The frames do not refer to data.
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
			return dst, &Error{Code: CodeInvalid, Message: fmt.Sprintf("a frame of kind %d cannot be decoded", f.Kind), Err: r.err}
		}
		dst = append(dst, f)
		data = r.data
	}
	return dst, nil
}

// reader decodes data. After the first error it returns zero values.
type reader struct {
	data []byte
	err  error
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.data)
	if n <= 0 || r.err != nil {
		if r.err == nil {
			r.err = errors.New("a number is truncated or too large")
		}
		return 0
	}
	r.data = r.data[n:]
	return v
}

func (r *reader) bytes() []byte {
	n := r.uvarint()
	if r.err == nil && n > uint64(len(r.data)) {
		r.err = fmt.Errorf("the length is %d bytes, but %d remain", n, len(r.data))
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
		r.err = fmt.Errorf("the length is %d bytes; the maximum is %d", len(part), maxHello)
	}
	if r.err == nil {
		r.err = json.Unmarshal(part, v)
	}
}
