package rawjson

import (
	"encoding/binary"
	"math/bits"
)

// The scanner checks JSON and finds its parts without allocating. The token decoder of jsontext does the same, but
// has no bound for the depth and takes longer for each of the small messages that agents exchange: see
// BenchmarkAgainstJSONText.

// Scan calls f with each quoted key and each value of the object that data is, in order, and stops with f's first
// error. Without an error, data is one JSON object whose values nest at most maxDepth deep; UTF-8 is not checked.
// With one, offset is where the scan stopped.
func Scan(data []byte, maxDepth int, f func(key, value []byte) error) (offset int, err error) {
	end, err := scanObject(data, space(data, 0), maxDepth, f)
	if err != nil {
		return end, err
	}
	if end = space(data, end); end != len(data) {
		return end, ErrSyntax
	}
	return end, nil
}

// space returns the index of the first byte at or after i that is not white space.
func space(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
		i++
	}
	return i
}

// scanValue returns the end of the value that begins at i and nests at most depth deep, or the place of the error.
func scanValue(data []byte, i, depth int) (end int, err error) {
	if i >= len(data) {
		return i, ErrSyntax
	}
	switch c := data[i]; c {
	case '"':
		return scanString(data, i)
	case '{', '[':
		if depth <= 0 {
			return i, ErrDepth
		}
		if c == '{' {
			return scanObject(data, i, depth-1, nil)
		}
		return scanArray(data, i, depth-1, nil)
	case 't':
		return scanLiteral(data, i, "true")
	case 'f':
		return scanLiteral(data, i, "false")
	case 'n':
		return scanLiteral(data, i, "null")
	default:
		return scanNumber(data, i)
	}
}

// scanObject scans the object that begins at i. f may be nil.
func scanObject(data []byte, i, depth int, f func(key, value []byte) error) (int, error) {
	if i >= len(data) || data[i] != '{' {
		return i, ErrSyntax
	}
	if i = space(data, i+1); i < len(data) && data[i] == '}' {
		return i + 1, nil
	}
	for {
		end, err := scanString(data, i)
		if err != nil {
			return end, err
		}
		colon := space(data, end)
		if colon >= len(data) || data[colon] != ':' {
			return colon, ErrSyntax
		}
		key, value := data[i:end], space(data, colon+1)
		if i, err = scanValue(data, value, depth); err != nil {
			return i, err
		}
		if f != nil {
			if err := f(key, data[value:i:i]); err != nil {
				return value, err
			}
		}
		i = space(data, i)
		switch {
		case i < len(data) && data[i] == ',':
			i = space(data, i+1)
		case i < len(data) && data[i] == '}':
			return i + 1, nil
		default:
			return i, ErrSyntax
		}
	}
}

// scanArray scans the array that begins at i. f may be nil.
func scanArray(data []byte, i, depth int, f func(value []byte) error) (int, error) {
	if i >= len(data) || data[i] != '[' {
		return i, ErrSyntax
	}
	if i = space(data, i+1); i < len(data) && data[i] == ']' {
		return i + 1, nil
	}
	for {
		end, err := scanValue(data, i, depth)
		if err != nil {
			return end, err
		}
		if f != nil {
			if err := f(data[i:end:end]); err != nil {
				return i, err
			}
		}
		i = space(data, end)
		switch {
		case i < len(data) && data[i] == ',':
			i = space(data, i+1)
		case i < len(data) && data[i] == ']':
			return i + 1, nil
		default:
			return i, ErrSyntax
		}
	}
}

func scanLiteral(data []byte, i int, word string) (int, error) {
	if len(data)-i < len(word) || string(data[i:i+len(word)]) != word {
		return i, ErrSyntax
	}
	return i + len(word), nil
}

func scanString(data []byte, i int) (end int, err error) {
	if i >= len(data) || data[i] != '"' {
		return i, ErrSyntax
	}
	for i++; ; i++ {
		i = special(data, i)
		switch {
		case i == len(data):
			return i, ErrSyntax
		case data[i] == '"':
			return i + 1, nil
		case data[i] != '\\':
			return i, ErrSyntax
		}
		n := escape(data[i:])
		if n == 0 {
			return i, ErrSyntax
		}
		i += n - 1
	}
}

// special returns the index of the first quote, backslash or control character at or after i, or len(data).
func special(data []byte, i int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(data); i += 8 {
		word := binary.LittleEndian.Uint64(data[i:])
		quote, slash := word^('"'*ones), word^('\\'*ones)
		// A byte is zero, or below ' ', if taking 1, or ' ', from it borrows. A borrow
		// can only come from a byte that is special itself: the lowest mark is right.
		if marks := ((quote-ones)&^quote | (slash-ones)&^slash | (word-' '*ones)&^word) & highs; marks != 0 {
			return i + bits.TrailingZeros64(marks)/8
		}
	}
	for i < len(data) && data[i] >= ' ' && data[i] != '"' && data[i] != '\\' {
		i++
	}
	return i
}

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

func scanNumber(data []byte, i int) (int, error) {
	if i < len(data) && data[i] == '-' {
		i++
	}
	switch {
	case i >= len(data):
		return i, ErrSyntax
	case data[i] == '0':
		i++
	case '1' <= data[i] && data[i] <= '9':
		i = digits(data, i)
	default:
		return i, ErrSyntax
	}
	if i < len(data) && data[i] == '.' {
		from := i + 1
		if i = digits(data, from); i == from {
			return i, ErrSyntax
		}
	}
	if i < len(data) && (data[i] == 'e' || data[i] == 'E') {
		i++
		if i < len(data) && (data[i] == '+' || data[i] == '-') {
			i++
		}
		from := i
		if i = digits(data, from); i == from {
			return i, ErrSyntax
		}
	}
	return i, nil
}

func digits(data []byte, i int) int {
	for i < len(data) && '0' <= data[i] && data[i] <= '9' {
		i++
	}
	return i
}

const hex = "0123456789abcdef"

// AppendString appends s, which must be UTF-8, as a JSON string. It escapes only what JSON demands.
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
