package parley_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tests that the table of threats names are in the tree.
func TestThreatsHaveTheirTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## Threats and their tests")
	table, _, _ = strings.Cut(table, "\n## ")
	missing := map[string]bool{}
	for row := range strings.Lines(table) {
		names := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(row, -1)
		if strings.HasPrefix(row, "| ") && !strings.HasPrefix(row, "| Who ") && len(names) == 0 {
			t.Errorf("no test: %s", row)
		}
		for _, name := range names {
			missing[name[1]] = true
		}
	}
	if len(missing) == 0 {
		t.Fatal("docs/security.md names no test")
	}
	function := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t \*testing\.T\)`)
	err = filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == ".git"):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, found := range function.FindAllSubmatch(source, -1) {
			delete(missing, string(found[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range missing {
		t.Errorf("docs/security.md names %s, which does not exist", name)
	}
}
