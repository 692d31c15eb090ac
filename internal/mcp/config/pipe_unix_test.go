//go:build unix

package config_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Opening a named pipe without a writer would block.
func TestAPipeIsRefusedAsConfiguration(t *testing.T) {
	m := newMachine(t)
	if err := syscall.Mkfifo(filepath.Join(m.project, ".mcp-config.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.load(); err == nil || !strings.Contains(err.Error(), "is no regular file") {
		t.Error(err)
	}
}
