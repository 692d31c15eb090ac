package shortcut

import (
	"errors"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/app/version"
)

func TestTheVersionIsAnswered(t *testing.T) {
	for _, name := range []string{"parley", "a2a-hub", "nats-mcp-server"} {
		var out strings.Builder
		if !answer([]string{"/usr/bin/" + name, "--version"}, &out) {
			t.Errorf("%s: no answer", name)
		}
		if want := name + " " + version.String() + "\n"; out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	}
}

func TestEverythingElseIsLeftToTheCommands(t *testing.T) {
	for _, args := range [][]string{nil, {"parley"}, {"parley", "version"}, {"parley", "--version", "--format=json"}, {"parley", "send", "--version"}} {
		var out strings.Builder
		if answer(args, &out) || out.Len() > 0 {
			t.Errorf("%q: answered %q", args, out.String())
		}
	}
}

func TestAnOutputThatFailsIsLeftToTheCommand(t *testing.T) {
	if answer([]string{"parley", "--version"}, failing{}) {
		t.Error("answered")
	}
}

// failing refuses all writes.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no space left") }
