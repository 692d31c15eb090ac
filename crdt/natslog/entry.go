package natslog

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
)

// An entry of the log has messages of a replica, or marks the end of the epoch. Its message id is the
// writer and the entry's number, so that an entry sent twice is stored once.

const (
	sumHeader    = "Parley-Document-Sum"
	sourceHeader = "Parley-Document-Source"
	kindHeader   = "Parley-Document-Entry"

	kindUpdates = "updates"
	kindClose   = "close"
)

// Limits of an entry.
const (
	maxEntry         = 900 << 10 // below the default limit of a server, 1 MiB
	maxMessage       = 640 << 10 // payload of a message
	maxEntryMessages = 1024
)

// closing marks the end of an epoch and determines the next one.
type closing struct {
	Epoch    uint64   `json:"epoch"`
	Writer   string   `json:"writer"`
	Client   uint64   `json:"client"`
	Counters []string `json:"counters"`
}

// entry is a decoded entry of the log.
type entry struct {
	messages []*replica.Message
	closing  *closing
}

func newEntry(subject, source, id, kind string, body []byte) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = body
	m.Header.Set(jetstream.MsgIDHeader, id)
	m.Header.Set(sourceHeader, source)
	m.Header.Set(kindHeader, kind)
	m.Header.Set(sumHeader, sumOf(kind, body))
	return m
}

func sumOf(kind string, body []byte) string {
	h := sha256.New()
	h.Write([]byte("parley document log 1 " + kind + "\n"))
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// sumOfClock hashes a vector clock: it is equal for replicas with the same updates.
func sumOfClock(clock map[string]uint64) string {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(clock)) {
		fmt.Fprintf(h, "%s %d\n", key, clock[key]) // never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// appendMessage appends a message to an entry's body.
func appendMessage(body []byte, m *replica.Message) ([]byte, error) {
	b, err := m.MarshalBinary()
	if err != nil {
		return nil, err
	}
	return append(binary.AppendUvarint(body, uint64(len(b))), b...), nil
}

func badEntry(cause error, format string, args ...any) error {
	return &crdt.Error{Code: crdt.CodeDeserialization, Message: "an entry of the log cannot be decoded", Err: failed(CodeEntry, cause, format, args...)}
}

// readEntry decodes and checks an entry. Errors have [crdt.CodeDeserialization].
func readEntry(header nats.Header, body []byte) (entry, error) {
	kind := header.Get(kindHeader)
	if header.Get(sumHeader) != sumOf(kind, body) {
		return entry{}, badEntry(nil, "its checksum is wrong")
	}
	switch kind {
	case kindUpdates:
		messages, err := readMessages(body)
		return entry{messages: messages}, err
	case kindClose:
		var c closing
		if err := json.Unmarshal(body, &c); err != nil || c.Client == 0 {
			return entry{}, badEntry(err, "it does not describe the end of an epoch")
		}
		return entry{closing: &c}, nil
	default:
		return entry{}, badEntry(nil, "its kind is unknown to this program")
	}
}

func readMessages(body []byte) ([]*replica.Message, error) {
	var messages []*replica.Message
	for len(body) > 0 {
		n, size := binary.Uvarint(body)
		if size <= 0 || n > uint64(len(body)-size) || len(messages) == maxEntryMessages {
			return nil, badEntry(nil, "it is not a list of messages")
		}
		m := new(replica.Message)
		if err := m.UnmarshalBinary(body[size : size+int(n)]); err != nil {
			return nil, badEntry(err, "one of its messages is not valid")
		}
		messages = append(messages, m)
		body = body[size+int(n):]
	}
	return messages, nil
}

// source returns the writer that an entry names, for logging.
func source(header nats.Header) string {
	s := header.Get(sourceHeader)
	if s == "" {
		return "unknown"
	}
	return string(bytes.ToValidUTF8([]byte(s[:min(len(s), 256)]), []byte("?")))
}

// entryID returns the message id of a writer's n-th entry.
func entryID(writer string, n uint64) string { return writer + "/" + strconv.FormatUint(n, 10) }
