package envelope

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/rawjson"
)

// DefaultMaxSize bounds an envelope's JSON unless a [Codec] says otherwise, in bytes.
const DefaultMaxSize = 1 << 20

// Migration turns the JSON of one schema version into that of the next.
type Migration func(data []byte) ([]byte, error)

// Codec writes and reads envelopes as JSON. [Encode] and [Decode] use the zero Codec.
// It is safe for concurrent use as long as it is not changed.
type Codec struct {
	MaxSize int // bytes of one envelope's JSON; 0 means DefaultMaxSize
	// Migrations holds the steps to the next schema version, by the version that they
	// read. Decode applies them up to SchemaVersion.
	Migrations map[int]Migration
}

// Encode returns the envelope's JSON. See [Codec.Append].
func Encode(e *Envelope) ([]byte, error) { return new(Codec).Append(nil, e) }

// Decode reads one envelope's JSON. See [Codec.Decode].
func Decode(data []byte) (*Envelope, error) { return new(Codec).Decode(data) }

func (c *Codec) maxSize() int { return defaults.Or(c.MaxSize, DefaultMaxSize) }

// Append validates the envelope and appends its JSON to dst, with the payload byte for
// byte. Errors are [*Error]s; dst is then returned unchanged.
func (c *Codec) Append(dst []byte, e *Envelope) ([]byte, error) {
	if err := e.Validate(); err != nil {
		return dst, err
	}
	out := rawjson.AppendString(append(dst, `{"id":`...), e.ID)
	out = strconv.AppendInt(append(out, `,"schemaVersion":`...), int64(e.SchemaVersion), 10)
	out = rawjson.AppendString(append(out, `,"sender":`...), e.Sender)
	out = rawjson.AppendString(append(out, `,"recipient":`...), e.Recipient)
	if e.CorrelationID != "" {
		out = rawjson.AppendString(append(out, `,"correlationId":`...), e.CorrelationID)
	}
	out = rawjson.AppendString(append(out, `,"type":`...), string(e.Type))
	out = strconv.AppendInt(append(out, `,"timestamp":`...), e.Timestamp, 10)
	out = append(out, `,"payload":`...)
	out = append(out, e.Payload...)
	if e.Metadata != nil {
		out = e.Metadata.append(append(out, `,"metadata":`...))
	}
	out = append(out, '}')
	if size := len(out) - len(dst); size > c.maxSize() {
		return dst, tooLarge(e.ID, size, c.maxSize())
	}
	return out, nil
}

func (m *Metadata) append(out []byte) []byte {
	out = strconv.AppendInt(append(out, `{"tier":`...), int64(m.Tier.Level()), 10)
	for _, f := range [...]struct{ key, value string }{
		{`,"sandboxId":`, m.SandboxID},
		{`,"routingHint":`, string(m.RoutingHint)},
		{`,"traceparent":`, m.TraceParent},
		{`,"tracestate":`, m.TraceState},
	} {
		if f.value != "" {
			out = rawjson.AppendString(append(out, f.key...), f.value)
		}
	}
	return append(out, '}')
}

// Decode reads the JSON of one envelope and validates it. An unknown schema version gives [CodeSchemaVersion] with
// the versions, more than MaxSize bytes give [CodeTooLarge], all else that is wrong [CodeInvalidEnvelope]. Keys are
// matched exactly; a known key that comes twice is an error, since two readers could understand it differently;
// unknown keys are ignored. The envelope does not refer to data.
func (c *Codec) Decode(data []byte) (*Envelope, error) {
	if len(data) > c.maxSize() {
		return nil, tooLarge("", len(data), c.maxSize())
	}
	if !utf8.Valid(data) {
		return nil, invalid("", "not the JSON of an envelope: not UTF-8")
	}
	data, err := c.migrate(data, SchemaVersion)
	if err != nil {
		return nil, err
	}
	e := new(Envelope)
	if err := e.read(data); err != nil {
		return nil, err
	}
	if e.validHeader() && len(e.Payload) > 0 { // read has checked the payload
		return e, nil
	}
	return nil, e.explain()
}

// migrate converts data to the schema version want.
func (c *Codec) migrate(data []byte, want int) ([]byte, error) {
	for {
		version, err := schemaVersion(data)
		if err != nil || version == want || version == 0 { // validation names a version that is missing
			return data, err
		}
		step := c.Migrations[version]
		if step == nil || version > want {
			return nil, versionMismatch(version, want)
		}
		next, err := step(data)
		if err != nil {
			mismatch := versionMismatch(version, want)
			mismatch.Err = err
			mismatch.Message += ", and it cannot be migrated: " + err.Error()
			return nil, mismatch
		}
		if len(next) > c.maxSize() {
			return nil, tooLarge("", len(next), c.maxSize())
		}
		if after, err := schemaVersion(next); err != nil || after != version+1 {
			return nil, invalid("", fmt.Sprintf("the migration from schema version %d did not make version %d", version, version+1))
		}
		data = next
	}
}

// errFound ends a search.
var errFound = errors.New("found")

// schemaVersion returns the version that data states, 0 if none. It reads only as far as it must.
func schemaVersion(data []byte) (version int, err error) {
	err = fields(data, func(key, value []byte) error {
		if string(key) != `"schemaVersion"` {
			return nil
		}
		n, ok := rawjson.Integer(value)
		if !ok || n < 1 || n > math.MaxInt32 {
			return invalid("", "schemaVersion is not a positive number")
		}
		version = int(n)
		return errFound
	})
	if err == errFound {
		return version, nil
	}
	return 0, err
}

// maxDepth is how deep arrays and objects may nest in a payload.
const maxDepth = 1000

// fields calls f with each quoted key and value of the object that data is, and
// stops with the first error. Without an error all of data is JSON.
func fields(data []byte, f func(key, value []byte) error) error {
	if rawjson.KindOf(data) != rawjson.Object {
		return invalid("", "not a JSON object")
	}
	at, err := rawjson.Scan(data, maxDepth, f)
	if err == rawjson.ErrSyntax || err == rawjson.ErrDepth {
		return invalid("", fmt.Sprintf("not the JSON of an envelope: unexpected text at byte %d", at))
	}
	return err
}

func validPayload(data []byte) bool { return rawjson.Check(data, maxDepth) == nil }

// known lists the keys whose repetition is an error, as bits of a set.
var known = map[string]uint16{
	`"id"`: 1 << 0, `"schemaVersion"`: 1 << 1, `"sender"`: 1 << 2, `"recipient"`: 1 << 3, `"correlationId"`: 1 << 4,
	`"type"`: 1 << 5, `"timestamp"`: 1 << 6, `"payload"`: 1 << 7, `"metadata"`: 1 << 8,
	`"tier"`: 1 << 9, `"sandboxId"`: 1 << 10, `"routingHint"`: 1 << 11, `"traceparent"`: 1 << 12, `"tracestate"`: 1 << 13,
}

// keySet refuses a known key that comes twice.
type keySet uint16

func (s *keySet) add(key []byte) error {
	bit := known[string(key)]
	if uint16(*s)&bit != 0 {
		return invalid("", fmt.Sprintf("the key %s comes twice", key))
	}
	*s |= keySet(bit)
	return nil
}

func (e *Envelope) read(data []byte) error {
	var seen keySet
	return fields(data, func(key, value []byte) error {
		if err := seen.add(key); err != nil {
			return err
		}
		switch string(key) {
		case `"id"`:
			return text(&e.ID, key, value)
		case `"schemaVersion"`:
			n, _ := rawjson.Integer(value) // migrate has checked it
			e.SchemaVersion = int(n)
		case `"sender"`:
			return text(&e.Sender, key, value)
		case `"recipient"`:
			return text(&e.Recipient, key, value)
		case `"correlationId"`:
			return optionalText(&e.CorrelationID, key, value)
		case `"type"`:
			return messageType(&e.Type, key, value)
		case `"timestamp"`:
			n, ok := rawjson.Integer(value)
			if !ok {
				return invalid("", "timestamp is not a whole number of milliseconds")
			}
			e.Timestamp = n
		case `"payload"`:
			e.Payload = bytes.Clone(value)
		case `"metadata"`:
			if string(value) == "null" {
				return nil
			}
			e.Metadata = new(Metadata)
			return e.Metadata.read(value)
		}
		return nil
	})
}

func (m *Metadata) read(data []byte) error {
	var seen keySet
	return fields(data, func(key, value []byte) error {
		if err := seen.add(key); err != nil {
			return err
		}
		switch string(key) {
		case `"tier"`:
			n, ok := rawjson.Integer(value)
			if !ok || n < 0 || n > 3 {
				return invalid("", "metadata.tier is not one of 0, 1, 2, 3")
			}
			m.Tier = agent.TierOf(int(n))
		case `"sandboxId"`:
			return optionalText(&m.SandboxID, key, value)
		case `"routingHint"`:
			return optionalText((*string)(&m.RoutingHint), key, value)
		case `"traceparent"`:
			return optionalText(&m.TraceParent, key, value)
		case `"tracestate"`:
			return optionalText(&m.TraceState, key, value)
		}
		return nil
	})
}

func optionalText(dst *string, key, value []byte) error {
	if string(value) == "null" {
		return nil
	}
	return text(dst, key, value)
}

func text(dst *string, key, value []byte) error {
	if value[0] != '"' {
		return invalid("", fmt.Sprintf("%s is not a string", key))
	}
	*dst = rawjson.Text(value)
	return nil
}

// messageType avoids a copy of the text for the ten types.
func messageType(dst *Type, key, value []byte) error {
	for _, t := range Types() {
		if len(value) == len(t)+2 && string(value[1:len(value)-1]) == string(t) {
			*dst = t
			return nil
		}
	}
	return text((*string)(dst), key, value)
}

// MarshalJSON lets an envelope stand inside other JSON. encoding/json then compacts the payload and escapes <, > and
// & in it: the value stays the same, the bytes may not. [Encode] keeps them.
func (e Envelope) MarshalJSON() ([]byte, error) { return Encode(&e) }

// UnmarshalJSON reads an envelope inside other JSON, as [Decode] does.
func (e *Envelope) UnmarshalJSON(data []byte) error {
	d, err := Decode(data)
	if err != nil {
		return err
	}
	*e = *d
	return nil
}
