//go:build unix

package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// A caller of /mcp names any directory: a link there must not show another file, nor a stranger's file choose a server.
func TestForOthersOnlyRegularFilesOfTheUserAreRead(t *testing.T) {
	load := func(dir string) (*mcpconfig.Config, error) {
		return mcpconfig.Load(mcpconfig.Sources{WorkDir: dir, HomeDir: t.TempDir(), ForOthers: true, LookupEnv: func(string) (string, bool) { return "", false }})
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(`password-of-mine: 1`), 0o600); err != nil {
		t.Fatal(err)
	}
	linked := t.TempDir()
	if err := os.Symlink(secret, filepath.Join(linked, mcpconfig.ProjectFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := load(linked); err == nil || !strings.Contains(err.Error(), "no regular file") || strings.Contains(err.Error(), "password") {
		t.Errorf("a link: %v", err)
	}
	own := t.TempDir()
	path := filepath.Join(own, mcpconfig.ProjectFile)
	if err := os.WriteFile(path, []byte(`{"namespace": "mine"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := load(own); err != nil || c.Namespace != "mine" {
		t.Errorf("a file of one's own: %+v %v", c, err)
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(path, 41_907, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := load(own); err == nil || !strings.Contains(err.Error(), "another user") {
		t.Errorf("another user's file: %v", err)
	}
}
