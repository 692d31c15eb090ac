package senders_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/senders"
)

func TestADamagedFileOfSendersIsRefused(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"{", `{"version":2}`, `{"version":1,"senders":[{"id":"x","sender":{}}]}`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "senders.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := senders.Open(senders.Options{Path: filepath.Join(dir, "senders.json")}); err == nil || !strings.Contains(err.Error(), "senders.json") {
			t.Errorf("%s: %v", content, err)
		}
	}
}
