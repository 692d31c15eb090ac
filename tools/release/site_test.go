package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// A release's program has the finished site instead of the Markdown and its parser, which is half a megabyte of code that every
// start initializes.
func TestAReleaseHasTheFinishedSite(t *testing.T) {
	chdirRoot(t)
	overlay, err := writeSite(filepath.Join(t.TempDir(), "linux-amd64"), "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	page, err := output(t.Context(), nil, "go", "run", "-tags", buildTags, "-overlay", overlay, "./tools/release/testdata/site")
	if err != nil || !strings.Contains(string(page), "Parley 1.2.3") {
		t.Errorf("%v, %.300s", err, page)
	}
	deps, err := output(t.Context(), nil, "go", "list", "-deps", "-tags", buildTags, "-overlay", overlay, "./cmd/parley")
	if err != nil || !strings.Contains(string(deps), "/internal/api/site\n") || strings.Contains(string(deps), "goldmark") {
		t.Errorf("the program has goldmark, or no site: %v", err)
	}
}
