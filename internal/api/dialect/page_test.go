package dialect_test

import (
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
)

func TestLinksToThePage(t *testing.T) {
	http := true
	s := newService(&fakeHub{}, func(c *dialect.Config) {
		c.PageLink = func(viewOnly bool) (dialect.PageLink, bool) {
			link := "http://127.0.0.1:1/all"
			if viewOnly {
				link = "http://127.0.0.1:1/view"
			}
			return dialect.PageLink{URL: link}, http
		}
	})
	for params, want := range map[string]string{`{}`: "/all", `{"viewOnly":true}`: "/view", `{"viewOnly":1}`: "INVALID_PARAMS"} {
		if answer, _ := call(t, s, method(dialect.MethodPageLink, params)); !strings.Contains(string(answer), want) {
			t.Errorf("%s: %s", params, answer)
		}
	}
	http = false
	if answer, _ := call(t, s, method(dialect.MethodPageLink, `{}`)); !strings.Contains(string(answer), "UNSUPPORTED_OPERATION") {
		t.Errorf("without HTTP: %s", answer)
	}
}

func TestOnlyKnownMethodsReadOnly(t *testing.T) {
	for name, want := range map[string]bool{dialect.MethodNeeds: true, dialect.MethodTaskGet: true, dialect.MethodSend: false, dialect.MethodDocumentsEdit: false, "hub/unknown": false} {
		if dialect.ReadsOnly(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
}
