package daemon

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"path/filepath"
	"strings"

	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/text"
)

var namePattern = text.Pattern(`^[a-z0-9]{1,32}$`)

// nameFile returns the file with the hub's name on a bus that it shares with other hubs. Former programs read it, too.
func nameFile(dataDir string, damaged func(statefile.Damage)) statefile.Raw {
	return statefile.Raw{
		Path: filepath.Join(dataDir, "hub-name"), Loss: "the hub has a new name", Damaged: damaged,
		Valid: func(raw []byte) error {
			if !namePattern().Match(bytes.TrimSpace(raw)) {
				return errors.New("it does not contain a name")
			}
			return nil
		},
	}
}

// hubName returns the name that marks this hub's tasks on the bus. An embedded bus has no
// other hubs. On an external bus the name is created once for each data directory: two hubs
// with one name would end each other's tasks, and a hub with a new name would not find its own.
func hubName(dataDir string, embedded bool, damaged func(statefile.Damage)) (string, error) {
	if embedded {
		return "local", nil
	}
	f := nameFile(dataDir, damaged)
	if _, damage, err := f.Peek(); err == nil && damage != nil && !damage.Restored {
		return "", &Error{Code: CodeDataDir, Message: f.Path + " is damaged: " + damage.Reason,
			Remedy: "restore the file; without it the hub does not find its tasks on the shared bus"}
	}
	return uniqueName(dataDir, damaged)
}

// uniqueName returns the name that a data directory's hub shares with no other. It is created once.
func uniqueName(dataDir string, damaged func(statefile.Damage)) (string, error) {
	f := nameFile(dataDir, damaged)
	raw, err := f.Read()
	if err != nil || raw != nil {
		return string(bytes.TrimSpace(raw)), err
	}
	name := strings.ToLower(rand.Text()[:16])
	return name, f.Write([]byte(name + "\n"))
}

// ownerOf returns the name under which the processes of a data directory's hub are marked: the
// next hub finds those that a killed hub left behind, and only those.
func ownerOf(dataDir string) string {
	sum := sha256.Sum256([]byte(dataDir))
	return "hub-" + hex.EncodeToString(sum[:8])
}
