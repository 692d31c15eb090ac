// Package signedcard makes agent cards that can travel anywhere: what a hub says of
// an agent, signed with the hub's key, for a while (Req 1.7, 1.8).
//
// A statement is a JSON object
//
//	{"signature": BASE64, "statement": {"version": 1, "key": HEX, "sequence": N,
//	 "issuedAt": MS, "expiresAt": MS, "card": {…}}}
//
// or has "withdrawn", the id of an agent that is no more, in the place of "card". The
// signature is Ed25519 over [Context] and the statement in canonical JSON (RFC 8785).
// What is read is the canonical form too, so that nothing can be read that was not
// signed.
//
// The id of an agent says whose it is: NAME@KEY, see [ID]. A statement about an
// agent of another key is refused, and so is one that is older than what was said
// before: see [Book].
package signedcard

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/fault"
)

// Context begins what is signed, so that the signature is of no use for anything
// else.
const Context = "parley signed card 1\n"

// Bounds of a statement.
const (
	MaxSize     = agent.MaxCardSize + 4<<10 // bytes
	MaxLifetime = 10 * time.Minute          // from issue to expiry
	MaxSkew     = 2 * time.Minute           // that clocks may differ by
	maxInteger  = 1<<53 - 1                 // that JSON carries everywhere
	version     = 1
)

// Code says what is wrong with a statement.
type Code string

// The codes of an [Error].
const (
	CodeInvalid   Code = "STATEMENT_INVALID"   // not a statement
	CodeForged    Code = "STATEMENT_FORGED"    // the signature is not the key's, or the agent not the signer's
	CodeExpired   Code = "STATEMENT_EXPIRED"   // or not valid yet
	CodeOld       Code = "STATEMENT_OLD"       // something later was said before
	CodeUntrusted Code = "STATEMENT_UNTRUSTED" // nobody has paired with this key
	CodeTooMany   Code = "STATEMENT_TOO_MANY"  // of one key
)

// Error is what the package returns. Its fields are Code, Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func invalid(err error, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Message: fmt.Sprintf(format, args...), Err: err}
}

// Statement is what the owner of a key says of an agent.
type Statement struct {
	Key       identity.PublicKey // who says it
	Sequence  uint64             // the later one counts
	IssuedAt  time.Time          // to the millisecond
	ExpiresAt time.Time
	// Card is the agent's. Its origin and its time of being seen do not travel.
	Card agent.Card
	// Withdrawn is the id of an agent that is no more; Card is then empty.
	Withdrawn string
}

// AgentID returns which agent it is about.
func (s *Statement) AgentID() string {
	if s.Withdrawn != "" {
		return s.Withdrawn
	}
	return s.Card.ID
}

// ID is the id, among hubs, of an agent that its hub calls name.
func ID(name string, key identity.PublicKey) string { return name + "@" + key.String() }

// ParseID takes an id apart. It reports false for one that says nothing of a key.
func ParseID(id string) (name string, key identity.PublicKey, ok bool) {
	i := strings.LastIndexByte(id, '@')
	if i < 1 {
		return "", key, false
	}
	key, err := identity.ParsePublicKey(id[i+1:])
	if err != nil || key.String() != id[i+1:] {
		return "", identity.PublicKey{}, false
	}
	return id[:i], key, true
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

// Sign returns a statement as bytes, signed with the pair, whose key it gets.
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
		return nil, invalid(err, "the statement cannot be written")
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

// check holds for a statement that is signed and for one that is read.
func (s *Statement) check() error {
	life := s.ExpiresAt.Sub(s.IssuedAt)
	switch {
	case (s.Withdrawn == "") == (s.Card.ID == ""):
		return invalid(nil, "a statement has a card or says which was withdrawn")
	case s.Sequence == 0 || s.Sequence > maxInteger || s.Card.Revision > maxInteger:
		return invalid(nil, "the sequence or the card's revision is out of range")
	case life <= 0 || life > MaxLifetime:
		return invalid(nil, "a statement holds for at most %v, not %v", MaxLifetime, life)
	}
	_, key, ok := ParseID(s.AgentID())
	if !ok || key != s.Key {
		return &Error{Code: CodeForged, Message: fmt.Sprintf("%.150q is not an agent of %s", s.AgentID(), s.Key)}
	}
	return nil
}

// canonical returns a JSON value as RFC 8785 has it. It refuses repeated names and
// text that is not UTF-8.
func canonical(raw []byte) ([]byte, error) {
	v := jsontext.Value(bytes.Clone(raw))
	if err := v.Canonicalize(); err != nil {
		return nil, invalid(err, "not canonical JSON")
	}
	return v, nil
}

// Open reads a statement and checks who signed it. trusted, if not nil, is asked
// about the key before the signature is looked at. Whether it has expired or was
// said before is for a [Book] to say.
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
		return Statement{}, invalid(err, "the statement's key is none")
	}
	if trusted != nil && !trusted(key) {
		return Statement{}, &Error{Code: CodeUntrusted, Message: "nobody here has paired with " + key.String()}
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
	if err := s.check(); err != nil {
		return Statement{}, err
	}
	return s, nil
}
