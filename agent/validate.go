package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/base/text"
)

// Code is the kind of an [Error].
type Code string

// CodeInvalidCard is for a card with missing or wrong fields, or invalid JSON.
const CodeInvalidCard Code = "INVALID_CARD"

// Problem is one thing that is wrong with a card.
type Problem struct {
	Field   string // as in JSON, e.g. "capabilities[2].id"
	Reason  string // e.g. "is missing"
	Missing bool   // the field is absent, rather than wrong
}

// Problems are the things that are wrong with a card, in order; at most a hundred.
type Problems []Problem

// Error returns every problem.
func (p Problems) Error() string {
	parts := make([]string, len(p))
	for i, problem := range p {
		parts[i] = problem.Field + " " + problem.Reason
	}
	return strings.Join(parts, "; ")
}

// Missing returns the fields that are absent.
func (p Problems) Missing() []string {
	var fields []string
	for _, problem := range p {
		if problem.Missing {
			fields = append(fields, problem.Field)
		}
	}
	return fields
}

// Error is what the package returns. Its fields are Code, Subject (the card's id, empty if it has none), Message
// (with every problem), and Err (the cause, may be nil: [Problems] of a card with missing or wrong fields).
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func tooLarge(id string, size int) *Error {
	return &Error{Code: CodeInvalidCard, Subject: id,
		Message: fmt.Sprintf("the card has %d bytes; at most %d are allowed", size, MaxCardSize)}
}

// Limits of a valid card.
const (
	MaxIDLength     = 256       // bytes of an id without its hub's key, name, version, sandbox id or protocol
	MaxTextLength   = 16 << 10  // bytes of a description or an address
	MaxSchemaLength = 128 << 10 // bytes of one JSON Schema
	MaxSchemaDepth  = 512       // nested arrays and objects in it
	MaxRevision     = 1<<53 - 1 // the largest integer that every JSON reader holds exactly
	MaxListLength   = 1024      // entries of a list
)

// Broadcast is the recipient that means every agent. No agent has this id.
const Broadcast = "*"

// CheckID returns nil if id can be an agent's: 1 to MaxIDLength bytes of UTF-8 without control characters or spaces, and
// not "*". The key in another hub's id (see [SplitID]) does not count, so that every id can be announced.
func CheckID(id string) error {
	switch {
	case id == "":
		return fmt.Errorf("is missing")
	case tooLong(id):
		return fmt.Errorf("has %d bytes; at most %d are allowed", len(id), MaxIDLength)
	case isGraphicASCII(id) && id != Broadcast: // the quick check, since every delivery asks
		return nil
	case id == Broadcast:
		return fmt.Errorf("must not be %q, which means every agent", Broadcast)
	case !utf8.ValidString(id):
		return fmt.Errorf("is not UTF-8")
	case strings.ContainsFunc(id, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }):
		return fmt.Errorf("must not contain spaces or control characters")
	}
	return nil
}

func tooLong(id string) bool {
	if len(id) <= MaxIDLength {
		return false
	}
	name, _ := SplitID(id)
	return len(name) > MaxIDLength
}

// keyLength is the length of a hub's public key at the end of an id, in lower-case hexadecimal.
const keyLength = 64

// SplitID splits the id of a hub's agent, NAME@KEY, into the agent's id at its hub and the hub's public key as 64
// hexadecimal digits. Any other id is returned whole, with an empty key.
func SplitID(id string) (name, key string) {
	i := len(id) - keyLength - 1
	if i < 1 || id[i] != '@' || strings.Trim(id[i+1:], "0123456789abcdef") != "" {
		return id, ""
	}
	return id[:i], id[i+1:]
}

func isGraphicASCII(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// Validate returns nil for a valid card, and otherwise an [*Error] with
// [CodeInvalidCard] that names every missing or wrong field, or the size of a card that is too large.
func (c *Card) Validate() error {
	var v validation
	v.id("id", c.ID)
	v.name("name", c.Name)
	v.name("version", c.Version)
	v.text("description", c.Description, MaxTextLength)
	switch {
	case c.Tier == NoTier:
		v.missing("tier")
	case !c.Tier.Valid():
		v.wrong("tier", "is not one of 0, 1, 2, 3")
	}
	if c.Capabilities == nil {
		v.missing("capabilities")
	}
	v.capabilities(c.Capabilities)
	v.endpoints(c.Endpoints)
	v.length("protocols", len(c.Protocols))
	for i, p := range c.Protocols {
		v.name(fmt.Sprintf("protocols[%d]", i), p)
	}
	if c.SandboxID != "" {
		v.id("sandboxId", c.SandboxID)
	}
	if c.Origin != "" && c.Origin != Local && c.Origin != Remote {
		v.wrong("origin", "is neither local nor remote")
	}
	if c.Revision > MaxRevision {
		v.wrong("revision", fmt.Sprintf("is %d; at most %d is allowed", c.Revision, uint64(MaxRevision)))
	}
	if c.LastSeenAt < 0 {
		v.wrong("lastSeenAt", "is negative")
	}
	if len(v.problems) == 0 {
		return c.checkSize()
	}
	return &Error{Code: CodeInvalidCard, Subject: c.ID, Message: "the agent card is not valid: " + v.problems.Error(), Err: v.problems}
}

// validation collects at most a hundred problems, so that a hostile card with
// thousands of bad entries does not become a huge error.
type validation struct{ problems Problems }

func (v *validation) add(p Problem) {
	if len(v.problems) < 100 {
		v.problems = append(v.problems, p)
	}
}

func (v *validation) missing(field string) {
	v.add(Problem{Field: field, Reason: "is missing", Missing: true})
}
func (v *validation) wrong(field, reason string) { v.add(Problem{Field: field, Reason: reason}) }

func (v *validation) id(field, id string) {
	if id == "" {
		v.missing(field)
		return
	}
	if err := CheckID(id); err != nil {
		v.wrong(field, err.Error())
	}
}

func (v *validation) name(field, s string) {
	if strings.TrimSpace(s) == "" {
		v.missing(field)
		return
	}
	v.text(field, s, MaxIDLength)
}

func (v *validation) text(field, s string, limit int) {
	if len(s) > limit {
		v.wrong(field, fmt.Sprintf("has %d bytes; at most %d are allowed", len(s), limit))
	}
	if !utf8.ValidString(s) {
		v.wrong(field, "is not UTF-8")
	}
}

func (v *validation) length(field string, n int) {
	if n > MaxListLength {
		v.wrong(field, fmt.Sprintf("has %d entries; at most %d are allowed", n, MaxListLength))
	}
}

func (v *validation) capabilities(list []Capability) {
	v.length("capabilities", len(list))
	seen := make(map[string]bool, len(list))
	for i, c := range list {
		field := fmt.Sprintf("capabilities[%d]", i)
		v.id(field+".id", c.ID)
		if c.ID != "" && seen[c.ID] {
			v.wrong(field+".id", fmt.Sprintf("repeats %q", c.ID))
		}
		seen[c.ID] = true
		v.text(field+".name", c.Name, MaxIDLength)
		v.text(field+".description", c.Description, MaxTextLength)
		v.schema(field+".inputSchema", c.InputSchema)
		v.schema(field+".outputSchema", c.OutputSchema)
	}
}

func (v *validation) schema(field string, s json.RawMessage) {
	switch {
	case len(s) == 0:
	case len(s) > MaxSchemaLength:
		v.wrong(field, fmt.Sprintf("has %d bytes; at most %d are allowed", len(s), MaxSchemaLength))
	case rawjson.Check(s, MaxSchemaDepth) != nil:
		v.wrong(field, fmt.Sprintf("is not JSON in UTF-8 with at most %d nested values", MaxSchemaDepth))
	default:
		if err := rawjson.Unambiguous(s); err != nil {
			v.wrong(field, text.Valid(err.Error(), 300))
		}
	}
}

func (v *validation) endpoints(list []Endpoint) {
	v.length("endpoints", len(list))
	for i, e := range list {
		field := fmt.Sprintf("endpoints[%d]", i)
		switch e.Transport {
		case TransportLocal, TransportHyperswarm, TransportWebSocket, TransportNATS:
		case "":
			v.missing(field + ".transport")
		default:
			v.wrong(field+".transport", "is not one of local, hyperswarm, websocket, nats")
		}
		v.text(field+".address", e.Address, MaxTextLength)
	}
}
