package testbed

import (
	"strings"

	"github.com/parleyhub/parley/internal/base/text"
)

var says = text.Pattern(`not (by )?your user`)

// Unframed returns the line of a text for a model in which another agent's words could be Parley's own: they are not quoted, and
// nothing before them says that they are not the user's. It returns "" if there is none.
func Unframed(text, words string) string {
	framed := false
	for line := range strings.Lines(text) {
		before, _, found := strings.Cut(line, words)
		framed = framed || says().MatchString(before)
		quoted := strings.Count(before, `"`) - strings.Count(before, `\"`)
		if found && !framed && quoted%2 == 0 {
			return line
		}
		framed = framed || says().MatchString(line)
	}
	return ""
}
