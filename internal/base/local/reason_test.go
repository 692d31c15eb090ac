package local_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/base/local"
)

func TestReasonsNameNoSystemCall(t *testing.T) {
	dir := t.TempDir()
	_, open := os.Open(filepath.Join(dir, "none"))
	rename := os.Rename(filepath.Join(dir, "none"), filepath.Join(dir, "other"))
	_, connect := net.Dial("unix", filepath.Join(dir, "none"))
	for name, err := range map[string]error{"open": open, "wrapped": fmt.Errorf("read it: %w", open), "rename": rename, "connect": connect} {
		if got := local.Reason(err); !errors.Is(err, fs.ErrNotExist) || strings.Contains(got, dir) || strings.Contains(got, name) {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := local.Reason(errors.New("it is full")); got != "it is full" {
		t.Errorf("another error: %q", got)
	}
}
