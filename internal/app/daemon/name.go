package daemon

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// nameFile holds the hub's name on a bus that it shares with other hubs.
const nameFile = "hub-name"

var namePattern = regexp.MustCompile(`^[a-z0-9]{1,32}$`)

// hubName is what tells this hub's tasks from those of others on the same bus.
// An embedded bus has no others. On an external one the name is made once for a
// data directory: two hubs of one name would end each other's tasks, and a hub
// whose name changed would not find its own.
func hubName(dataDir string, embedded bool) (string, error) {
	if embedded {
		return "local", nil
	}
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
	if !namePattern.Match(name) {
		return "", &Error{Code: CodeDataDir, Message: fmt.Sprintf("%s does not hold a name", path),
			Remedy: "restore the file; without it the hub does not find its tasks on the shared bus"}
	}
	return string(name), nil
}
