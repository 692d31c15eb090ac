package server

import (
	"bytes"
	"encoding/json"
)

// maxScanned bounds the names and ids that an idScanner keeps, in bytes.
const maxScanned = 256

// idScanner finds the id of a JSON-RPC request in a line that is too long to be kept: many clients write it last. It
// looks at the members of the outermost object only and does not check that the line is valid JSON.
type idScanner struct {
	depth             int
	inString, escaped bool
	inValue           bool   // after the colon of a member
	name              []byte // of the member, with its quotes
	value             []byte // of the member; longer than maxScanned if it is no id
	id                []byte
	method            bool
}

// add continues with a part of the line.
func (s *idScanner) add(part []byte, first bool) {
	if first {
		*s = idScanner{}
	}
	for _, c := range part {
		s.next(c)
	}
}

func (s *idScanner) next(c byte) {
	if s.inString {
		s.keep(c)
		switch {
		case s.escaped:
			s.escaped = false
		case c == '\\':
			s.escaped = true
		case c == '"':
			s.inString = false
		}
		return
	}
	switch c {
	case '"':
		s.inString = true
		s.keep(c)
	case '{', '[':
		s.keep(c) // before the depth: a value that is an object or a list is no id
		s.depth++
	case '}', ']':
		if s.depth == 1 {
			s.endMember()
		}
		s.depth--
		s.keep(c)
	case ',':
		if s.depth == 1 {
			s.endMember()
		}
	case ':':
		s.inValue = s.inValue || s.depth == 1
	default:
		s.keep(c)
	}
}

// keep adds a character to the name or the value of a member of the outermost object.
func (s *idScanner) keep(c byte) {
	if s.depth != 1 {
		return
	}
	if s.inValue && len(s.value) <= maxScanned {
		s.value = append(s.value, c)
	}
	if !s.inValue && len(s.name) <= maxScanned {
		s.name = append(s.name, c)
	}
}

func (s *idScanner) endMember() {
	switch string(bytes.TrimSpace(s.name)) {
	case `"id"`:
		s.id = bytes.TrimSpace(bytes.Clone(s.value))
	case `"method"`:
		s.method = true
	}
	s.inValue, s.name, s.value = false, s.name[:0], s.value[:0]
}

// request returns the id of the line's request, nil if there is none.
func (s *idScanner) request() json.RawMessage {
	if !s.method || s.depth != 0 || len(s.id) == 0 || len(s.id) > maxScanned || !json.Valid(s.id) {
		return nil
	}
	return s.id
}
