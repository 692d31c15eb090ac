package runner

import (
	"fmt"
	"strings"
)

// maxBase leaves room in an agent's id for a number.
const maxBase = 56

// FreeID returns the first of name, name-2, name-3 and so on that is not taken.
func FreeID(name string, taken func(string) bool) string {
	for i := 2; ; i++ {
		if !taken(name) {
			return name
		}
		name = fmt.Sprintf("%s-%d", strings.TrimSuffix(name, fmt.Sprintf("-%d", i-1)), i)
	}
}

// Identifier turns a text into what may be an agent's id; "" if nothing is left.
func Identifier(text string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(text) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_', r == '.':
			b.WriteRune(r)
		default:
			b.WriteByte('-')
		}
	}
	name := strings.Trim(b.String(), "-._")
	name = strings.Trim(name[:min(len(name), maxBase)], "-._")
	if !ValidID(name) {
		return ""
	}
	return name
}
