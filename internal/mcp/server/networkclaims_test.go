package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

func TestAgentsClaimFiles(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	there := func(c *mcpconfig.Config) { c.ProjectPath = dir }
	ann, annGUID := join(t, networked(t, n, "shop", there)).registered(asWorker)
	bob, _ := join(t, networked(t, n, "shop", there)).registered(asDispatcher)
	if got := ann.must("list_claims", nil); !strings.Contains(got.text, "Nobody") {
		t.Error(got.text)
	}
	held := ann.must("claim_files", map[string]any{"paths": []string{"a.go", "docs/**"}, "why": "I split\nit", "until": "30m"})
	id, _ := held.content["claimId"].(string)
	if !strings.Contains(held.text, "a.go, docs/**") || id == "" || held.content["mode"] != "exclusive" {
		t.Errorf("%s %v", held.text, held.content)
	}
	bob.fails("claim_files", map[string]any{"paths": []string{"docs/x.md"}}, "ConflictError", `not your user's: "I split it"`)
	bob.fails("claim_files", map[string]any{"paths": []string{"a.go"}, "mode": "shared"}, "ConflictError", "send_direct_message to "+annGUID)
	bob.fails("claim_files", map[string]any{"paths": []string{"../x"}}, "ValidationError", "not in the repository")
	bob.fails("claim_files", map[string]any{"paths": []string{"b.go"}, "until": "soon"}, "ValidationError", "which is no time")
	bob.fails("claim_files", map[string]any{"paths": []string{"b.go"}, "until": "2001-01-01T00:00:00Z"}, "ValidationError", "would end")
	for a, who := range map[*agent]string{ann: "**you**", bob: annGUID} {
		if got := a.must("list_claims", nil); !strings.Contains(got.text, who) || !strings.Contains(got.text, `Why: "I split it"`) || !strings.Contains(got.text, id) {
			t.Error(got.text)
		}
	}
	if got := bob.must("release_files", map[string]any{"claimId": id}); !strings.Contains(got.text, "no such claim") {
		t.Error(got.text)
	}
	if got := ann.must("release_files", nil); !strings.Contains(got.text, "Released: a.go, docs/**") {
		t.Error(got.text)
	}
	if got := bob.must("claim_files", map[string]any{"paths": []string{"."}, "allWorkTrees": true}); !strings.Contains(got.text, "You have **") {
		t.Error(got.text)
	}
	if got := ann.must("list_claims", nil); !strings.Contains(got.text, "in all work trees") {
		t.Error(got.text)
	}
}
