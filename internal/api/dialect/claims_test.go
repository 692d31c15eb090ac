package dialect_test

import (
	"context"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
)

// fakeClaims has one claim.
type fakeClaims struct{ checked dialect.FileCheckParams }

var oneClaim = dialect.FileClaim{ID: "c1", Holder: "ann", Paths: []string{"a.go"}}

func (f *fakeClaims) FileClaims(context.Context) ([]dialect.FileClaim, error) {
	return []dialect.FileClaim{oneClaim}, nil
}

func (f *fakeClaims) CheckFiles(_ context.Context, p dialect.FileCheckParams) ([]dialect.HeldFile, error) {
	f.checked = p
	if p.GUID == "g1" {
		return nil, nil
	}
	return []dialect.HeldFile{{FileClaim: oneClaim, Path: "a.go", Held: "ann has it"}}, nil
}

func (f *fakeClaims) BreakFileClaim(_ context.Context, id string) (dialect.BrokenClaim, error) {
	if id != "c1" {
		return dialect.BrokenClaim{}, &hub.Error{Code: hub.CodeInvalid, Subject: "claimId", Message: "there is no such claim", Remedy: "list them"}
	}
	return dialect.BrokenClaim{FileClaim: oneClaim, Notified: true}, nil
}

func TestClaimsOfFiles(t *testing.T) {
	f := &fakeClaims{}
	s := newService(&fakeHub{}, func(c *dialect.Config) { c.Claims = f })
	for _, c := range []struct{ method, params, want string }{
		{"hub/claims/list", `{}`, `"holder":"ann"`},
		{"hub/claims/check", `{"files":["a"]}`, `"held":"ann has it"`},
		{"hub/claims/check", `{"files":["a"],"guid":"g1"}`, `"result":[]`},
		{"hub/claims/break", `{"claimId":"c1"}`, `"notified":true`},
	} {
		if answer, _ := call(t, s, method(c.method, c.params)); !strings.Contains(answer, c.want) {
			t.Errorf("%s %s: %s", c.method, c.params, answer)
		}
	}
	if len(f.checked.Files) != 1 || f.checked.GUID != "g1" {
		t.Errorf("checked is %+v", f.checked)
	}
	answer, _ := call(t, s, method("hub/claims/break", `{"claimId":"c2"}`))
	wantError(t, answer, -32602, "INVALID_PARAMS", "claimId")
	for files, want := range map[int]string{dialect.MaxFiles: `"held":"ann has it"`, dialect.MaxFiles + 1: "has more than 500 elements"} {
		list := `"a"` + strings.Repeat(`,"a"`, files-1)
		if answer, _ := call(t, s, method("hub/claims/check", `{"files":[`+list+`]}`)); !strings.Contains(answer, want) {
			t.Errorf("%d files: %s", files, answer)
		}
	}
	answer, _ = call(t, s, method("hub/claims/check", `{"files":[1]}`))
	wantError(t, answer, -32602, "INVALID_PARAMS", "files[0]")
	for _, name := range []string{"hub/claims/list", "hub/claims/check", "hub/claims/break"} { // as over HTTP
		answer, _ := call(t, newService(&fakeHub{}), method(name, `{}`))
		wantError(t, answer, -32601, "METHOD_NOT_FOUND", "")
	}
}
