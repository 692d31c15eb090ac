//go:build unix

package cli_test

import (
	"strings"
	"testing"
)

// Without a terminal, ui says what programs use instead, and starts no hub.
func TestScreensNeedATerminal(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	for _, args := range [][]string{{"ui"}, {"ui", "--format", "json"}} {
		if o := p.run(t, args...); o.code != 2 || !strings.Contains(o.stderr, "the screens need a terminal") {
			t.Errorf("%v: exit %d, %q", args, o.code, o.stderr)
		}
	}
}
