package assignment_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// Claims that are for a task end when it is canceled, and others stay.
func TestClaimsEndWithACanceledTask(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	host := r.net.Host("office", "ann", "shop")
	host.ProjectPath = t.TempDir()
	ann := nettest.Register(t, nettest.Open(t, host), nettest.Worker("review"))
	for path, task := range map[string]string{"a.go": "T1", "b.go": "T2", "c.go": ""} {
		if _, err := ann.ClaimFiles(t.Context(), claims.Request{Paths: []string{path}, Task: task}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.assigner.Post(t.Context(), assignment.Notice{Recipient: ann.GUID(), TaskID: "T1", Canceled: true, Text: "canceled"}); err != nil {
		t.Fatal(err)
	}
	all, err := r.assigner.FileClaims(t.Context())
	if err != nil || len(all) != 2 || slices.ContainsFunc(all, func(c claims.Claim) bool { return c.TaskID == "T1" }) {
		t.Errorf("the claims are %+v, %v", all, err)
	}
}

// The hub knows the claims of all agents, and before it is connected it knows none.
func TestTheHubChecksFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	host := r.net.Host("office", "ann", "shop")
	host.ProjectPath = t.TempDir()
	ann := nettest.Register(t, nettest.Open(t, host), nettest.Worker("review"))
	c, err := ann.ClaimFiles(t.Context(), claims.Request{Paths: []string{"a.go"}, Why: "refactoring"})
	if err != nil {
		t.Fatal(err)
	}
	files, err := claims.Locate("office", filepath.Join(host.ProjectPath, "a.go"))
	if err != nil {
		t.Fatal(err)
	}
	hits, err := r.assigner.CheckFiles(t.Context(), r.agent.GUID(), files)
	if err != nil || len(hits) != 1 || hits[0].ID != c.ID || hits[0].Path != "a.go" {
		t.Errorf("the claims of others are %+v, %v", hits, err)
	}
	if hits, err := r.assigner.CheckFiles(t.Context(), ann.GUID(), files); err != nil || len(hits) != 0 {
		t.Errorf("the holder is kept from its own file by %+v, %v", hits, err)
	}
	if all, err := r.assigner.ClaimsIn(t.Context(), host.ProjectPath); err != nil || len(all) != 1 || all[0].ID != c.ID {
		t.Errorf("the claims of the directory are %+v, %v", all, err)
	}
	if all, err := r.assigner.FileClaims(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("all claims are %+v, %v", all, err)
	}
	if _, _, err := r.assigner.BreakFileClaim(t.Context(), "none"); store.CodeOf(err) != store.NotFoundError {
		t.Error("a claim that there is not:", err)
	}
	if broken, notified, err := r.assigner.BreakFileClaim(t.Context(), c.ID[:8]); err != nil || !notified || broken.ID != c.ID {
		t.Errorf("broken is %+v, %t, %v", broken, notified, err)
	}
	list, _, err := ann.Read(t.Context(), mail.Selection{})
	if err != nil || len(list) != 1 || list[0].SenderHandle != "hub" || !strings.Contains(list[0].Text, "The user has ended your claim "+c.ID+" of a.go") {
		t.Errorf("the holder has %+v, %v", list, err)
	}
	if _, err := r.assigner.ClaimsIn(t.Context(), filepath.Join(host.ProjectPath, "none")); err != nil {
		t.Error("a directory that is missing:", err)
	}
	if err := r.assigner.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.assigner.CheckFiles(t.Context(), ann.GUID(), files); err == nil {
		t.Error("a closed assigner knows claims")
	}
	if _, err := r.assigner.ClaimsIn(t.Context(), host.ProjectPath); err == nil {
		t.Error("a closed assigner lists claims")
	}
	if _, err := r.assigner.FileClaims(t.Context()); err == nil {
		t.Error("a closed assigner lists all claims")
	}
}
