package registry

import (
	"encoding/json"
	"fmt"

	"github.com/parleyhub/parley/agent"
)

// SchemaVersion is the version of the format that [Registry.Encode] writes.
const SchemaVersion = 1

// MaxSize bounds the JSON that Decode reads, in bytes.
const MaxSize = 512 << 20

// document is a registry as JSON.
type document struct {
	SchemaVersion int               `json:"schemaVersion"`
	Cards         []json.RawMessage `json:"cards"` // in order of registration
}

// Encode returns all cards as JSON, in order of registration.
func (r *Registry) Encode() ([]byte, error) { return Encode(r.All()) }

// Encode returns cards as JSON, like [Registry.Encode].
func Encode(cards []agent.Card) ([]byte, error) {
	doc := document{SchemaVersion: SchemaVersion, Cards: []json.RawMessage{}}
	for _, card := range cards {
		data, err := agent.Encode(card)
		if err != nil {
			return nil, err
		}
		doc.Cards = append(doc.Cards, data)
	}
	return json.Marshal(doc)
}

// Decode makes a registry from the JSON of [Registry.Encode]. Revisions and origins are kept. Remote cards count as
// seen now and belong to the first source that finds them again.
func Decode(data []byte, o Options) (*Registry, error) {
	if len(data) > MaxSize {
		return nil, invalid(fmt.Sprintf("the registry has %d bytes; at most %d are allowed", len(data), MaxSize), nil)
	}
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, invalid("not the JSON of a registry", err)
	}
	if doc.SchemaVersion != SchemaVersion {
		return nil, invalid(fmt.Sprintf("the registry has schema version %d; this program reads version %d", doc.SchemaVersion, SchemaVersion), nil)
	}
	r := New(o)
	for i, raw := range doc.Cards {
		if err := r.restore(raw); err != nil {
			_ = r.Close() // returns nil
			return nil, invalid(fmt.Sprintf("cards[%d]: %v", i, err), err)
		}
	}
	return r, nil
}

func (r *Registry) restore(raw json.RawMessage) error {
	card, err := agent.Decode(raw)
	if err != nil {
		return err
	}
	if _, known := r.Identity(card.ID); known {
		return conflict(card.ID, "it occurs twice")
	}
	_, err = r.Register(card)
	return err
}

func invalid(message string, err error) *Error {
	return &Error{Code: CodeInvalidRegistry, Message: message, Err: err}
}
