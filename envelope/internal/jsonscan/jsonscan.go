// Package jsonscan checks JSON and finds its parts without allocating. The
// envelope codec is built on it: encoding/json would copy, compact and escape
// the payload, and cost more than the rest of a delivery.
package jsonscan

import (
	"encoding/binary"
	"unicode/utf8"
)

// MaxDepth is how deeply arrays and objects may nest.
const MaxDepth = 1000

// Valid reports whether data is one JSON value in UTF-8, with white space around
// it, and nests at most MaxDepth deep.
func Valid(data []byte) bool {
	end, ok := Value(data, Space(data, 0), 0)
	return ok && Space(data, end) == len(data) && utf8.Valid(data)
}

// Space returns the index of the first byte at or after i that is no white space.
func Space(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
		i++
	}
	return i
}

// Value returns the end of the value that begins at i, inside depth arrays and
// objects. It does not check UTF-8.
func Value(data []byte, i, depth int) (end int, ok bool) {
	if i >= len(data) || depth > MaxDepth {
		return i, false
	}
	switch c := data[i]; c {
	case '"':
		return String(data, i)
	case '{':
		return object(data, i, depth)
	case '[':
		return array(data, i, depth)
	case 't':
		return literal(data, i, "true")
	case 'f':
		return literal(data, i, "false")
	case 'n':
		return literal(data, i, "null")
	default:
		return number(data, i)
	}
}

func literal(data []byte, i int, word string) (int, bool) {
	if len(data)-i < len(word) || string(data[i:i+len(word)]) != word {
		return i, false
	}
	return i + len(word), true
}

// String returns the end of the string that begins at i.
func String(data []byte, i int) (end int, ok bool) {
	if i >= len(data) || data[i] != '"' {
		return i, false
	}
	for i++; ; i++ {
		i += plain(data[i:])
		for i < len(data) && !special[data[i]] {
			i++
		}
		if i == len(data) {
			return i, false
		}
		switch data[i] {
		case '"':
			return i + 1, true
		case '\\':
			n := escape(data[i:])
			if n == 0 {
				return i, false
			}
			i += n - 1
		default:
			return i, false
		}
	}
}

// plain returns how many bytes of data, in steps of eight, come before the first
// special one.
func plain(data []byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; n+8 <= len(data); n += 8 {
		word := binary.LittleEndian.Uint64(data[n:])
		quote, slash := word^('"'*ones), word^('\\'*ones)
		// A byte is zero, or below ' ', if taking 1, or ' ', from it borrows. A borrow
		// can only come from a byte that is special itself: no word is missed.
		if ((quote-ones)&^quote|(slash-ones)&^slash|(word-' '*ones)&^word)&highs != 0 {
			break
		}
	}
	return n
}

// special marks the bytes that are not themselves inside a string.
var special = func() (table [256]bool) {
	for c := range ' ' {
		table[c] = true
	}
	table['"'], table['\\'] = true, true
	return table
}()

// escape returns the length of the escape sequence that data begins with, or 0.
func escape(data []byte) int {
	if len(data) < 2 {
		return 0
	}
	switch data[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(data) < 6 {
			return 0
		}
		for _, c := range data[2:6] {
			if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
				return 0
			}
		}
		return 6
	}
	return 0
}

func object(data []byte, i, depth int) (int, bool) {
	i = Space(data, i+1)
	if i < len(data) && data[i] == '}' {
		return i + 1, true
	}
	for {
		var ok bool
		if _, i, ok = Key(data, i); !ok {
			return i, false
		}
		if i, ok = Value(data, i, depth+1); !ok {
			return i, false
		}
		i = Space(data, i)
		if i >= len(data) {
			return i, false
		}
		if data[i] == '}' {
			return i + 1, true
		}
		if data[i] != ',' {
			return i, false
		}
		i = Space(data, i+1)
	}
}

// Key returns the quoted key that begins at i and the index of its value.
func Key(data []byte, i int) (key []byte, value int, ok bool) {
	end, ok := String(data, i)
	if !ok {
		return nil, end, false
	}
	key = data[i:end]
	i = Space(data, end)
	if i >= len(data) || data[i] != ':' {
		return nil, i, false
	}
	return key, Space(data, i+1), true
}

func array(data []byte, i, depth int) (int, bool) {
	i = Space(data, i+1)
	if i < len(data) && data[i] == ']' {
		return i + 1, true
	}
	for {
		var ok bool
		if i, ok = Value(data, i, depth+1); !ok {
			return i, false
		}
		i = Space(data, i)
		if i >= len(data) {
			return i, false
		}
		if data[i] == ']' {
			return i + 1, true
		}
		if data[i] != ',' {
			return i, false
		}
		i = Space(data, i+1)
	}
}

func number(data []byte, i int) (int, bool) {
	if i < len(data) && data[i] == '-' {
		i++
	}
	switch {
	case i >= len(data):
		return i, false
	case data[i] == '0':
		i++
	case '1' <= data[i] && data[i] <= '9':
		i = digits(data, i)
	default:
		return i, false
	}
	if i < len(data) && data[i] == '.' {
		from := i + 1
		if i = digits(data, from); i == from {
			return i, false
		}
	}
	if i < len(data) && (data[i] == 'e' || data[i] == 'E') {
		i++
		if i < len(data) && (data[i] == '+' || data[i] == '-') {
			i++
		}
		from := i
		if i = digits(data, from); i == from {
			return i, false
		}
	}
	return i, true
}

func digits(data []byte, i int) int {
	for i < len(data) && '0' <= data[i] && data[i] <= '9' {
		i++
	}
	return i
}

const hex = "0123456789abcdef"

// AppendString appends s as a JSON string. Only what JSON demands is escaped; s
// must be UTF-8.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(dst, s[from:]...), '"')
}
