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

// The demonstration's screens need a terminal; its flags are checked before a hub is started.
func TestTheDemonstrationChecksItsFlags(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	for _, tt := range []struct {
		args []string
		says string
	}{
		{[]string{"demo", "--ui"}, "the screens need a terminal"}, {[]string{"demo", "--no-open"}, "--no-open is for --web"},
		{[]string{"demo", "--ui", "--web"}, "exclude each other"}, {[]string{"demo", "--ui", "--pace", "2h"}, "--pace must be"},
		{[]string{"demo", "agent", "mars", "soon"}, "PACE must be a duration"},
	} {
		if o := p.run(t, tt.args...); o.code != 2 || !strings.Contains(o.stderr, tt.says) {
			t.Errorf("%v: exit %d, %q", tt.args, o.code, o.stderr)
		}
	}
	if o := p.runWith(t, strings.NewReader("{\"id\":1,\"method\":\"initialize\"}\n"), nil, "demo", "agent", "mars", "0s"); o.code != 0 || !strings.Contains(o.stdout, "protocolVersion") {
		t.Errorf("exit %d, %q, %q", o.code, o.stdout, o.stderr)
	}
}
