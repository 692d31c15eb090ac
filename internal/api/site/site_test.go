package site

import (
	"bytes"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func TestTheHubServesTheSite(t *testing.T) {
	h := Handler("1.2.3")
	for path, want := range map[string]struct {
		code        int
		kind, holds string
	}{
		"/docs/":            {200, "text/html", "Parley 1.2.3"},
		"/docs/cli.html":    {200, "text/html", "Command line"},
		"/docs/style.css":   {200, "text/css", "prefers-color-scheme"},
		"/docs/search.js":   {200, "text/javascript", "stem"},
		"/docs/none.html":   {404, "text/plain", "not found"},
		"/docs/sections.js": {200, "text/javascript", "install.html"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != want.code || !strings.HasPrefix(w.Header().Get("Content-Type"), want.kind) || !strings.Contains(w.Body.String(), want.holds) {
			t.Errorf("%s: %d, %s", path, w.Code, w.Header().Get("Content-Type"))
		}
	}
}

func TestAPackedSiteIsTheSameSite(t *testing.T) {
	files := pages("1.2.3")
	if files["page.png"] == nil {
		t.Error("the site lacks a picture that is no text")
	}
	first, err := Pack(files)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Pack(maps.Clone(files))
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("the same files gave other bytes: %v", err)
	}
	again, err := unpack(first)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(again, files, slices.Equal) {
		t.Errorf("%d files, want %d", len(again), len(files))
	}
}

func TestWhatIsNoSiteIsRefused(t *testing.T) {
	whole, err := Pack(map[string][]byte{"index.html": []byte("<p>")})
	if err != nil {
		t.Fatal(err)
	}
	for name, packed := range map[string][]byte{"nothing": nil, "a part": whole[:len(whole)-9]} {
		if _, err := unpack(packed); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
