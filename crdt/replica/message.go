package replica

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/envelope"
)

// Version is the version of the message format.
const Version = 1

// Kind is the kind of a message.
type Kind string

// The kinds of messages.
const (
	KindUpdate Kind = "update" // a change, numbered by the vector clock
	KindStep1  Kind = "step1"  // asks for what a state vector lacks
	KindStep2  Kind = "step2"  // the answer
	KindDigest Kind = "digest" // a digest of the sender's document
	KindRefuse Kind = "refuse" // an update was refused, and with it its session

	KindEpoch   Kind = "epoch"   // announces the document's epoch
	KindLate    Kind = "late"    // a state of the former epoch, for the keeper
	KindCarried Kind = "carried" // the answer
)

// Message is a sync message, the payload of an envelope of type stream-data.
type Message struct {
	SourceAgentID string `json:"sourceAgentId"` // its maker; another agent may have forwarded it
	// VectorClock has the number of updates that the maker had applied, by "agent/session". Its own entry is the
	// update's number. Updates omit the entries that have not changed since the maker's previous one.
	VectorClock map[string]uint64 `json:"vectorClock"`
	Payload     []byte            `json:"payload"`   // an update, a state vector, or a digest
	Timestamp   int64             `json:"timestamp"` // Unix time in milliseconds

	V       int      `json:"v"`
	Kind    Kind     `json:"kind"`
	State   string   `json:"state"` // the document's name
	Epoch   uint64   `json:"epoch"`
	Session string   `json:"session"`           // of the maker's process
	Seq     uint64   `json:"seq"`               // number of an update in its session, from 1
	Clients []uint64 `json:"clients,omitempty"` // client ids with structs in the update, ascending; in a step2 the sender's own
	Vector  []byte   `json:"sv,omitempty"`      // the maker's state vector before the update
	Part    int      `json:"part,omitempty"`    // index of a part of a state
	Parts   int      `json:"parts,omitempty"`
	Former  uint64   `json:"former,omitempty"` // the epoch of a late state
	Sum     string   `json:"sum"`              // checksum, against corruption only
}

// sessionKey returns a key of a vector clock.
func sessionKey(agent, session string) string { return agent + "/" + session }

func (m *Message) key() string { return sessionKey(m.SourceAgentID, m.Session) }

// checksum covers everything that the receiver uses.
func (m *Message) checksum() string {
	h := sha256.New()
	var b []byte
	number := func(v uint64) { b = binary.BigEndian.AppendUint64(b, v) }
	text := func(s string) {
		number(uint64(len(s)))
		b = append(b, s...)
	}
	text("parley crdt message 1")
	number(uint64(m.V))
	text(string(m.Kind))
	text(m.State)
	number(m.Epoch)
	text(m.SourceAgentID)
	text(m.Session)
	number(m.Seq)
	number(uint64(m.Part))
	number(uint64(m.Parts))
	number(m.Former)
	number(uint64(len(m.VectorClock)))
	for _, key := range slices.Sorted(maps.Keys(m.VectorClock)) {
		text(key)
		number(m.VectorClock[key])
	}
	number(uint64(len(m.Clients)))
	for _, c := range m.Clients {
		number(c)
	}
	text(string(m.Vector))
	number(uint64(len(m.Payload)))
	h.Write(b)
	h.Write(m.Payload)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Limits of a message.
const (
	maxPayload  = 640 << 10 // fits as base64 in an envelope of 1 MiB
	maxName     = 256
	maxClock    = 4096 // entries of a vector clock
	maxParts    = 512
	sessionSize = 32 // hexadecimal digits
)

// envelope wraps the message for one receiver.
func (m *Message) envelope(from, to string) (*envelope.Envelope, error) {
	payload, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return envelope.New(from, to, envelope.StreamData, json.RawMessage(payload))
}

// head is what tells a sync message from other payloads of stream-data.
type head struct {
	State  *string `json:"state"`
	Kind   Kind    `json:"kind"`
	Source string  `json:"sourceAgentId"`
	V      int     `json:"v"`
	Sum    string  `json:"sum"`
}

// readHead returns nil for an envelope without a sync message.
func readHead(e *envelope.Envelope) *head {
	var h head
	if e.Type != envelope.StreamData || json.Unmarshal(e.Payload, &h) != nil || h.State == nil {
		return nil
	}
	return &h
}

// DocumentOf returns the name of the document that an envelope's sync message is about. ok is false for another
// payload, which no replica understands. It does not check the message.
func DocumentOf(e *envelope.Envelope) (name string, ok bool) {
	h := readHead(e)
	if h == nil || h.Kind == "" || h.Source == "" || h.V == 0 || h.Sum == "" {
		return "", false
	}
	return *h.State, true
}

// concerns reports whether an envelope of a link is for this replica's document.
func (r *Replica) concerns(e *envelope.Envelope) bool {
	h := readHead(e)
	return h != nil && *h.State == r.o.State
}

// decode decodes a message and checks it as far as possible without the document.
func decode(e *envelope.Envelope) (*Message, error) {
	var m Message
	if err := json.Unmarshal(e.Payload, &m); err != nil {
		return nil, unreadable(err, "it is not a sync message")
	}
	if err := m.verify(); err != nil {
		return nil, err
	}
	return &m, nil
}

// verify checks a decoded message.
func (m *Message) verify() error {
	if m.V != Version {
		return unreadable(nil, "it has version %d; this program supports version %d", m.V, Version)
	}
	if m.Sum == "" || subtle.ConstantTimeCompare([]byte(m.Sum), []byte(m.checksum())) == 0 {
		return unreadable(nil, "its checksum is wrong")
	}
	return m.check()
}

func (m *Message) check() error {
	switch {
	case m.SourceAgentID == "" || len(m.SourceAgentID) > maxName || strings.Contains(m.SourceAgentID, "/"):
		return unreadable(nil, "its source is not an agent id")
	case len(m.Session) != sessionSize || strings.Trim(m.Session, "0123456789abcdef") != "":
		return unreadable(nil, "its session is not valid")
	case len(m.Payload) > maxPayload:
		return unreadable(nil, "its payload has %d bytes; the maximum is %d", len(m.Payload), maxPayload)
	case len(m.VectorClock) > maxClock:
		return unreadable(nil, "its vector clock has %d entries; the maximum is %d", len(m.VectorClock), maxClock)
	case m.Kind == KindUpdate && (m.Seq == 0 || m.VectorClock[m.key()] != m.Seq):
		return unreadable(nil, "its number differs from that in its vector clock")
	case m.Parts < 0 || m.Parts > maxParts || m.Part < 0 || m.Part >= max(m.Parts, 1):
		return unreadable(nil, "it is part %d of %d", m.Part, m.Parts)
	}
	for key := range m.VectorClock {
		if len(key) > maxName+1+sessionSize {
			return unreadable(nil, "a key of its vector clock is too long")
		}
	}
	return nil
}

// update decodes the update of a message and checks that it matches the message.
func (m *Message) update(limits crdt.Limits) (*crdt.Update, error) {
	u, err := crdt.ParseUpdate(m.Payload, limits)
	if err != nil {
		return nil, err
	}
	if clients := slices.Sorted(maps.Keys(u.Clients())); !slices.Equal(clients, m.Clients) {
		return nil, unreadable(nil, "its structs are of other clients than it lists")
	}
	return u, nil
}

// digest is the payload of a KindDigest.
type digest struct {
	Vector  []byte `json:"vector"`
	Deletes []byte `json:"deletes"`
	Order   []byte `json:"order"`
	Content []byte `json:"content"`
	Parked  bool   `json:"parked"`
}
