// Package signedcard signs agent cards, so that hubs can pass them on over any
// network: a statement is an agent's card, signed with its hub's key, with an expiry.
//
// A statement is a JSON object
//
//	{"signature": BASE64, "statement": {"version": 1, "key": HEX, "sequence": N,
//	 "issuedAt": MS, "expiresAt": MS, "card": {…}}}
//
// or has "withdrawn", the id of a withdrawn agent, instead of "card". The signature
// is Ed25519 over [Context] and the statement in canonical JSON (RFC 8785, but with numbers as written). The
// canonical form is also what is decoded, so that nothing unsigned is ever read.
//
// In a statement an agent's id names its hub's key: NAME@KEY, see [ID]. A hub may call its agents NAME, such as "venus":
// an [Author] adds its key, and other hubs know the agent as venus@KEY. So equal ids of several hubs stay apart.
// Statements about an agent of another key are refused, and so are those older than the last one: see [Book].
package signedcard

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/fault"
)

// Context precedes the signed statement, so that the signature is valid for nothing else.
const Context = "parley signed card 1\n"

// Bounds of a statement.
const (
	MaxSize     = agent.MaxCardSize + 4<<10 // bytes
	MaxLifetime = 10 * time.Minute          // from issue to expiry
	MaxSkew     = 2 * time.Minute           // between two clocks
	maxInteger  = 1<<53 - 1                 // the largest integer that every JSON reader holds exactly
	version     = 1
)

// Code classifies an [Error].
type Code string

// The codes of an [Error].
const (
	CodeInvalid   Code = "STATEMENT_INVALID"   // not a statement
	CodeForged    Code = "STATEMENT_FORGED"    // wrong signature, or an agent of another key
	CodeExpired   Code = "STATEMENT_EXPIRED"   // or not yet valid
	CodeOld       Code = "STATEMENT_OLD"       // a later statement was read before
	CodeUntrusted Code = "STATEMENT_UNTRUSTED" // this hub has not paired with the key
	CodeTaken     Code = "STATEMENT_ID_TAKEN"  // another agent of this hub has the id between hubs
	CodeTooMany   Code = "STATEMENT_TOO_MANY"  // too many agents of one key
)

// Error is what the package returns. Its fields are Code, Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func invalid(err error, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Message: fmt.Sprintf(format, args...), Err: err}
}

// Statement is a statement of the owner of a key about one of its agents.
type Statement struct {
	Key       identity.PublicKey // the signer
	Sequence  uint64             // the highest one counts
	IssuedAt  time.Time          // to the millisecond
	ExpiresAt time.Time
	// Card is the agent's, without origin and LastSeenAt.
	Card agent.Card
	// Withdrawn is the id of a withdrawn agent; Card is then empty.
	Withdrawn string
}

// AgentID returns the id of the statement's agent.
func (s *Statement) AgentID() string {
	if s.Withdrawn != "" {
		return s.Withdrawn
	}
	return s.Card.ID
}

// ID returns the id between hubs of the agent that its hub calls name, such as "venus".
func ID(name string, key identity.PublicKey) string { return name + "@" + key.String() }

// ParseID splits an id. It reports false for an id without a key.
func ParseID(id string) (name string, key identity.PublicKey, ok bool) {
	name, text := agent.SplitID(id)
	if text == "" {
		return "", key, false
	}
	key, err := identity.ParsePublicKey(text)
	if err != nil {
		return "", identity.PublicKey{}, false
	}
	return name, key, true
}

// document and statement are the wire format.
type document struct {
	Signature string          `json:"signature"`
	Statement json.RawMessage `json:"statement"`
}

type statement struct {
	Version   int             `json:"version"`
	Key       string          `json:"key"`
	Sequence  uint64          `json:"sequence"`
	IssuedAt  int64           `json:"issuedAt"`
	ExpiresAt int64           `json:"expiresAt"`
	Card      json.RawMessage `json:"card,omitempty"`
	Withdrawn string          `json:"withdrawn,omitempty"`
}

// Sign sets the statement's key to the pair's and returns it encoded and signed.
func Sign(pair *identity.Pair, s Statement) ([]byte, error) {
	s.Key = pair.Public()
	if err := s.check(); err != nil {
		return nil, err
	}
	w := statement{
		Version: version, Key: s.Key.String(), Sequence: s.Sequence,
		IssuedAt: s.IssuedAt.UnixMilli(), ExpiresAt: s.ExpiresAt.UnixMilli(), Withdrawn: s.Withdrawn,
	}
	if s.Withdrawn == "" {
		s.Card.Origin, s.Card.LastSeenAt = agent.Local, 0
		var err error
		if w.Card, err = agent.Encode(s.Card); err != nil {
			return nil, err
		}
	}
	raw, err := json.Marshal(w)
	if err != nil {
		return nil, invalid(err, "the statement cannot be encoded")
	}
	if raw, err = canonical(raw); err != nil {
		return nil, err
	}
	sig := pair.Sign(append([]byte(Context), raw...))
	data := fmt.Appendf(nil, `{"signature":%q,"statement":%s}`, base64.StdEncoding.EncodeToString(sig[:]), raw)
	if len(data) > MaxSize {
		return nil, invalid(nil, "the statement has %d bytes; at most %d are allowed", len(data), MaxSize)
	}
	return data, nil
}

// check validates a statement that is signed or read.
func (s *Statement) check() error {
	life := s.ExpiresAt.Sub(s.IssuedAt)
	switch {
	case (s.Withdrawn == "") == (s.Card.ID == ""):
		return invalid(nil, "a statement must have either a card or a withdrawn id")
	case s.Sequence == 0 || s.Sequence > maxInteger || s.Card.Revision > maxInteger:
		return invalid(nil, "the sequence or the card's revision is out of range")
	case life <= 0 || life > MaxLifetime:
		return invalid(nil, "a statement may be valid for at most %v, not %v", MaxLifetime, life)
	}
	_, key, ok := ParseID(s.AgentID())
	if !ok || key != s.Key {
		return &Error{Code: CodeForged, Message: fmt.Sprintf("%.150q is not an agent of %s", s.AgentID(), s.Key)}
	}
	return nil
}

// canonical returns a JSON value in the form of RFC 8785, with its numbers as they are: those of schemas would lose digits or
// become longer than the card may be. It refuses duplicate names and invalid UTF-8.
func canonical(raw []byte) ([]byte, error) {
	v := jsontext.Value(bytes.Clone(raw))
	if err := v.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)); err != nil {
		return nil, invalid(err, "not canonical JSON")
	}
	return v, nil
}

// Open reads a statement and checks its signature. trusted, if not nil, is called
// first and refuses keys. A [Book] checks expiry and order.
func Open(data []byte, trusted func(identity.PublicKey) bool) (Statement, error) {
	if len(data) > MaxSize {
		return Statement{}, invalid(nil, "the statement has %d bytes; at most %d are allowed", len(data), MaxSize)
	}
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		return Statement{}, invalid(err, "not a statement")
	}
	raw, err := canonical(doc.Statement)
	if err != nil {
		return Statement{}, err
	}
	var w statement
	if err := json.Unmarshal(raw, &w); err != nil {
		return Statement{}, invalid(err, "not a statement")
	}
	if w.Version != version {
		return Statement{}, invalid(nil, "the statement has version %d; this program reads version %d", w.Version, version)
	}
	key, err := identity.ParsePublicKey(w.Key)
	if err != nil {
		return Statement{}, invalid(err, "the statement's key is invalid")
	}
	if trusted != nil && !trusted(key) {
		return Statement{}, &Error{Code: CodeUntrusted, Message: "this hub has not paired with " + key.String()}
	}
	sig, err := base64.StdEncoding.Strict().DecodeString(doc.Signature)
	if err != nil || len(sig) != 64 || !identity.Verify(key, append([]byte(Context), raw...), [64]byte(sig)) {
		return Statement{}, &Error{Code: CodeForged, Message: "the signature is not that of " + key.String()}
	}
	return w.open(key)
}

func (w *statement) open(key identity.PublicKey) (Statement, error) {
	s := Statement{
		Key: key, Sequence: w.Sequence, Withdrawn: w.Withdrawn,
		IssuedAt: time.UnixMilli(w.IssuedAt), ExpiresAt: time.UnixMilli(w.ExpiresAt),
	}
	if len(w.Card) > 0 {
		var err error
		if s.Card, err = agent.Decode(w.Card); err != nil {
			return Statement{}, invalid(err, "the card is not valid")
		}
		s.Card.Origin = agent.Remote
	}
	return s, s.check()
}
