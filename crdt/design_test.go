package crdt_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The design page names only tests that exist.
func TestTheDesignNamesExistingTests(t *testing.T) {
	page, err := os.ReadFile(filepath.FromSlash("../docs/design/documents.md"))
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	for _, dir := range []string{".", "../internal", "../test/interop"} {
		err := filepath.WalkDir(filepath.FromSlash(dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && d.Name() == "node_modules" {
				return fs.SkipDir
			}
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range declaration.FindAllSubmatch(text, -1) {
				declared[string(m[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	named := regexp.MustCompile("`((?:Test|Fuzz|Benchmark)\\w+)`").FindAllSubmatch(page, -1)
	if len(named) == 0 {
		t.Error("the page names no test")
	}
	for _, m := range named {
		if !declared[string(m[1])] {
			t.Errorf("the page names %s, which does not exist", m[1])
		}
	}
}
