package local

import (
	"cmp"
	"os/user"
	"strings"
)

// PersonHandle returns the handle under which the user of this process writes to agents: the user's name, in the letters that handles have.
func PersonHandle() string {
	u, err := user.Current()
	if err != nil {
		return "person"
	}
	return handleOf(u.Username)
}

// handleOf replaces each run of other characters than lowercase letters, digits and hyphens by a hyphen.
func handleOf(name string) string {
	parts := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-')
	})
	return cmp.Or(strings.Trim(strings.Join(parts, "-"), "-"), "person")
}
