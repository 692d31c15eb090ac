package local_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/parleyhub/parley/internal/base/local"
)

func TestAFileIsReplacedWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "record.json")
	for _, data := range []string{"a long first version", "second"} {
		if err := local.ReplaceFile(path, []byte(data)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != data {
			t.Errorf("%q, %v", got, err)
		}
	}
	// A directory cannot be replaced by a file: what was there stays, and nothing is left beside it.
	taken := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(taken, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := local.ReplaceFile(taken, []byte("x")); err == nil {
		t.Error("a directory was replaced")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}
