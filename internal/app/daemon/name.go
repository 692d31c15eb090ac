package daemon

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/parleyhub/parley/internal/base/text"
)

// nameFile is the file with the hub's name on a bus that it shares with other hubs.
const nameFile = "hub-name"

var namePattern = text.Pattern(`^[a-z0-9]{1,32}$`)

// hubName returns the name that marks this hub's tasks on the bus. An embedded bus has no
// other hubs. On an external bus the name is created once for each data directory: two hubs
// with one name would end each other's tasks, and a hub with a new name would not find its own.
func hubName(dataDir string, embedded bool) (string, error) {
	if embedded {
		return "local", nil
	}
	return uniqueName(dataDir)
}

// uniqueName returns the name that a data directory's hub shares with no other. It is created once.
func uniqueName(dataDir string) (string, error) {
	path := filepath.Join(dataDir, nameFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		name := strings.ToLower(rand.Text()[:16])
		return name, os.WriteFile(path, []byte(name+"\n"), 0o600)
	}
	if err != nil {
		return "", err
	}
	name := bytes.TrimSpace(data)
	if !namePattern().Match(name) {
		return "", &Error{Code: CodeDataDir, Message: fmt.Sprintf("%s does not contain a name", path),
			Remedy: "restore the file; without it the hub does not find its tasks on the shared bus"}
	}
	return string(name), nil
}

// ownerOf returns the name under which the processes of a data directory's hub are marked: the
// next hub finds those that a killed hub left behind, and only those.
func ownerOf(dataDir string) string {
	sum := sha256.Sum256([]byte(dataDir))
	return "hub-" + hex.EncodeToString(sum[:8])
}
