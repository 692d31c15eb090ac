//go:build unix

package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/wait"
)

// The hub's user sees which agent has which files, and can end a claim, of which its holder is told.
func TestTheUserSeesAndBreaksClaims(t *testing.T) {
	t.Parallel()
	dir, shop := newDir(t), t.TempDir()
	r := run(t, mustLoad(t, dir, "http.enabled=false"))
	defer r.end(t)
	c, err := client.Dial(t.Context(), r.info.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if all, err := c.FileClaims(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("before an agent has joined there are %+v, %v", all, err)
	}
	ann := enter(t, membershipsOf(t, dir, shop), "writer")
	claim, err := ann.ClaimFiles(t.Context(), claims.Request{Paths: []string{"a.go"}, Why: "refactoring"})
	if err != nil {
		t.Fatal(err)
	}
	var all []dialect.FileClaim
	wait.Eventually(t, "the claim is listed", func() bool {
		all, err = c.FileClaims(t.Context())
		return err == nil && len(all) == 1
	})
	if got := all[0]; got.ID != claim.ID || got.HolderGUID != ann.GUID() || got.Why != "refactoring" || len(got.Paths) != 1 || got.Paths[0] != "a.go" {
		t.Errorf("the claim is %+v", got)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	files, err := claims.Locate(host, filepath.Join(shop, "a.go"))
	if err != nil {
		t.Fatal(err)
	}
	check := dialect.FileCheckParams{Files: []string{"no file"}}
	for _, f := range files {
		check.Files = append(check.Files, f.String())
	}
	if held, err := c.CheckFiles(t.Context(), check); err != nil || len(held) != 1 || held[0].ID != claim.ID || held[0].Path != "a.go" {
		t.Errorf("for somebody else the files are held by %+v, %v", held, err)
	}
	check.GUID = ann.GUID()
	if held, err := c.CheckFiles(t.Context(), check); err != nil || len(held) != 0 {
		t.Errorf("for the holder the files are held by %+v, %v", held, err)
	}
	if _, err := c.BreakFileClaim(t.Context(), "there is none"); err == nil || !strings.Contains(err.Error(), "claim") {
		t.Error("a claim that there is not:", err)
	}
	if broken, err := c.BreakFileClaim(t.Context(), claim.ID); err != nil || broken.ID != claim.ID || !broken.Notified {
		t.Errorf("broken is %+v, %v", broken, err)
	}
	if got, _, err := ann.Wait(t.Context(), mail.Selection{}); err != nil || len(got) != 1 || !strings.Contains(got[0].Text, claim.ID) {
		t.Errorf("the holder has %+v, %v", got, err)
	}
}
