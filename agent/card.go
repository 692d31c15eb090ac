// Package agent describes agents: a [Card] states an agent's [Tier], capabilities, endpoints and sandbox.
//
// A Card is a plain value, with the JSON form of the coordination specification (see package schema). [Decode] reads
// what [Encode] writes without loss. [Card.Validate] names every missing or wrong field.
package agent

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
)

// Origin is where a card is from.
type Origin string

// The two origins.
const (
	Local  Origin = "local"  // registered in this process
	Remote Origin = "remote" // discovered elsewhere
)

// Transport is a way to reach an agent.
type Transport string

// The transports. The specification has the first three; NATS is Parley's own.
const (
	TransportLocal      Transport = "local"
	TransportHyperswarm Transport = "hyperswarm"
	TransportWebSocket  Transport = "websocket"
	TransportNATS       Transport = "nats"
)

// Endpoint is an address at which an agent can be reached.
type Endpoint struct {
	Transport Transport `json:"transport"`
	Address   string    `json:"address,omitempty"` // a URL or a topic key; none for TransportLocal
}

// Capability is one thing that an agent can do.
type Capability struct {
	ID          string `json:"id"`          // e.g. "codegen.react"
	Name        string `json:"name"`        // for people
	Description string `json:"description"` // for people and models
	// InputSchema and OutputSchema are JSON Schemas; empty means not stated.
	InputSchema  json.RawMessage `json:"inputSchema,omitempty"`
	OutputSchema json.RawMessage `json:"outputSchema,omitempty"`
}

// Card describes an agent to others. ID, Name, Version, Tier and Capabilities are
// required; Capabilities may be empty but not nil.
type Card struct {
	ID          string `json:"id"`          // unique, e.g. "sun"; see [CheckID]
	Name        string `json:"name"`        // for people, e.g. "SUN"
	Version     string `json:"version"`     // of the agent; semantic versioning by convention
	Description string `json:"description"` // what the agent is for

	Tier         Tier         `json:"tier"`         // 0 to 3; limits which agents it may address
	Protocols    []string     `json:"protocols"`    // e.g. "a2a/1.0", "mcp/2024-11-05"
	Endpoints    []Endpoint   `json:"endpoints"`    // in order of preference
	Capabilities []Capability `json:"capabilities"` // with unique ids
	Revision     uint64       `json:"revision"`     // counts the card's changes, at most MaxRevision; set by the registry

	SandboxID  string `json:"sandboxId,omitempty"` // that the agent runs in; empty means none
	Origin     Origin `json:"origin"`              // set by the registry; empty means local
	LastSeenAt int64  `json:"lastSeenAt"`          // Unix time in milliseconds; 0 means not stated
}

// Identity is the part of a card that routing policy needs, without references to the card.
type Identity struct {
	ID        string
	Tier      Tier
	SandboxID string // empty means none
	Origin    Origin
}

// Identity returns the part of the card that routing policy needs.
func (c *Card) Identity() Identity {
	return Identity{ID: c.ID, Tier: c.Tier, SandboxID: c.SandboxID, Origin: c.Origin}
}

// Has reports whether the card declares the capability with this id.
func (c *Card) Has(capabilityID string) bool {
	return slices.ContainsFunc(c.Capabilities, func(have Capability) bool { return have.ID == capabilityID })
}

// Endpoint returns the card's first endpoint of a transport.
func (c *Card) Endpoint(t Transport) (Endpoint, bool) {
	i := slices.IndexFunc(c.Endpoints, func(e Endpoint) bool { return e.Transport == t })
	if i < 0 {
		return Endpoint{}, false
	}
	return c.Endpoints[i], true
}

// Clone returns a copy that shares no memory with c.
func (c Card) Clone() Card {
	c.Protocols = slices.Clone(c.Protocols)
	c.Endpoints = slices.Clone(c.Endpoints)
	c.Capabilities = slices.Clone(c.Capabilities)
	for i := range c.Capabilities {
		have := &c.Capabilities[i]
		have.InputSchema = bytes.Clone(have.InputSchema)
		have.OutputSchema = bytes.Clone(have.OutputSchema)
	}
	return c
}

// Equal reports whether two cards are equal. Absent and empty lists of protocols and
// endpoints are equal, and schemas are compared as JSON values.
func (c Card) Equal(d Card) bool {
	return c.ID == d.ID && c.Name == d.Name && c.Version == d.Version && c.Description == d.Description &&
		c.Identity() == d.Identity() && c.Revision == d.Revision && c.LastSeenAt == d.LastSeenAt &&
		slices.Equal(c.Protocols, d.Protocols) && slices.Equal(c.Endpoints, d.Endpoints) &&
		(c.Capabilities == nil) == (d.Capabilities == nil) && slices.EqualFunc(c.Capabilities, d.Capabilities, Capability.Equal)
}

// Equal reports whether two capabilities are equal.
func (c Capability) Equal(d Capability) bool {
	return c.ID == d.ID && c.Name == d.Name && c.Description == d.Description &&
		sameJSON(c.InputSchema, d.InputSchema) && sameJSON(c.OutputSchema, d.OutputSchema)
}

func sameJSON(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	va, errA := decodeNumber(a)
	vb, errB := decodeNumber(b)
	return errA == nil && errB == nil && reflect.DeepEqual(va, vb)
}

// decodeNumber keeps numbers as text, so that rounding does not make large ones equal.
func decodeNumber(data []byte) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	err = dec.Decode(&v)
	return v, err
}

// MarshalJSON writes absent lists of protocols and endpoints as empty ones, as the
// schema requires. Absent capabilities, which are not valid, stay null.
func (c Card) MarshalJSON() ([]byte, error) {
	type plain Card // without this method
	if c.Protocols == nil {
		c.Protocols = []string{}
	}
	if c.Endpoints == nil {
		c.Endpoints = []Endpoint{}
	}
	return json.Marshal(plain(c))
}

// MaxCardSize bounds the JSON of one card in bytes, without the key in its id (see [SplitID]) and with room for the
// longest origin, revision and time. So a valid card can be stored, encoded and announced whatever a registry sets.
const MaxCardSize = 256 << 10

// maxEncoded is the size of the longest JSON of a valid card.
const maxEncoded = MaxCardSize + 1 + keyLength

// checkSize decides for every use of a card whether it is small enough.
func (c *Card) checkSize() error {
	if c.mostBytes() <= MaxCardSize {
		return nil
	}
	longest := *c
	longest.ID, _ = SplitID(c.ID)
	longest.Revision, longest.Origin, longest.LastSeenAt = MaxRevision, Remote, math.MaxInt64
	data, err := json.Marshal(longest)
	if err != nil {
		return &Error{Code: CodeInvalidCard, Subject: c.ID, Message: "the card cannot be written as JSON", Err: err}
	}
	if len(data) > MaxCardSize {
		return tooLarge(c.ID, len(data))
	}
	return nil
}

// mostBytes returns at least the size of the card's JSON, quickly: a byte of text takes up to six.
func (c *Card) mostBytes() int {
	const perEntry, perByte = 128, 6
	text := len(c.ID) + len(c.Name) + len(c.Version) + len(c.Description) + len(c.SandboxID)
	for _, p := range c.Protocols {
		text += len(p)
	}
	for _, e := range c.Endpoints {
		text += len(e.Transport) + len(e.Address)
	}
	for _, x := range c.Capabilities {
		text += len(x.ID) + len(x.Name) + len(x.Description) + len(x.InputSchema) + len(x.OutputSchema)
	}
	return perEntry*(4+len(c.Protocols)+len(c.Endpoints)+len(c.Capabilities)) + perByte*text
}

// Encode validates the card and returns its JSON. Errors are [*Error]s.
func Encode(c Card) ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	data, err := json.Marshal(c)
	if err != nil {
		return nil, &Error{Code: CodeInvalidCard, Subject: c.ID, Message: "the card cannot be written as JSON", Err: err}
	}
	return data, nil
}

// Decode reads and validates the JSON of one card. It ignores unknown fields, which
// later versions may add. Errors are [*Error]s.
func Decode(data []byte) (Card, error) {
	if len(data) > maxEncoded {
		return Card{}, tooLarge("", len(data))
	}
	var c Card
	if err := json.Unmarshal(data, &c); err != nil {
		return Card{}, &Error{Code: CodeInvalidCard, Message: "not the JSON of an agent card: " + strings.TrimPrefix(err.Error(), "json: "), Err: err}
	}
	if err := c.Validate(); err != nil {
		return Card{}, err
	}
	return c, nil
}
