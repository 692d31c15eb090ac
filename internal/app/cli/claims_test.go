//go:build unix

package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Two sessions have the same handle: the list of claims calls each as the list of agents does.
func TestTheHoldersOfClaimsHaveTheirAddresses(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	claims := make(map[string]string) // by the file
	for _, file := range []string{"main.go", "other.go"} {
		s := d.program("claude-code", "a")
		t.Cleanup(func() { s.end() })
		wait.Eventually(t, "the session has claimed "+file, func() bool {
			return strings.HasPrefix(s.say("claim_files", `{"paths":[%q]}`, file), "You have")
		})
	}
	wait.Eventually(t, "both holders are listed by their addresses", func() bool {
		for line := range strings.Lines(d.parley("claims")) {
			if agent := strings.Fields(line); len(agent) > 1 {
				claims[agent[1]] = agent[0]
			}
		}
		agents := d.agents()
		one, other := claims["main.go"], claims["other.go"]
		return one != other && agents[one].Kind == "session" && agents[other].Kind == "session"
	})
}

func TestAPersonSeesAndBreaksClaims(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	s := d.openSession("refactorer")
	t.Cleanup(func() { s.end() })
	file := filepath.Join(d.root, "a", "main.go")
	if err := os.WriteFile(file, []byte("package main\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := s.say("claim_files", `{"paths":["main.go"],"why":"renaming"}`); !strings.HasPrefix(said, "You have") {
		t.Fatal(said)
	}
	out := d.parley("claims")
	for _, want := range []string{"refactorer", "main.go", "renaming", "UNTIL"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in %s", want, out)
		}
	}
	var all []dialect.FileClaim
	if err := json.Unmarshal([]byte(d.parley("claims", "--format", "json")), &all); err != nil || len(all) != 1 || all[0].Why != "renaming" || all[0].Mode != "exclusive" {
		t.Errorf("the claims are %+v, %v", all, err)
	}
	if out := d.parley("claims", "break", "other.go"); !strings.Contains(out, "no agent has claimed other.go") {
		t.Errorf("a file that is free: %s", out)
	}
	if out := d.parley("claims", "break", "main.go"); !strings.Contains(out, "refactorer no longer holds main.go; it has mail about it.") {
		t.Errorf("broken: %s", out)
	}
	if said := s.say("read_direct_messages", `{}`); !strings.Contains(said, "The user has ended your claim") {
		t.Errorf("the holder reads %s", said)
	}
	if out := d.parley("claims"); !strings.Contains(out, "No agent has claimed files.") {
		t.Errorf("after: %s", out)
	}
	if out := d.parley("claims", "break", "0000"); !strings.Contains(out, "claim") {
		t.Errorf("an unknown id: %s", out)
	}
}
