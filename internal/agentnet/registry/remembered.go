package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/local"
)

// The computer remembers the identities that a hub has assigned to its agents, with the secrets that prove them. So an
// agent that comes back is the same at once, whether the hub knows that its former process has ended or not, and also
// if the hub has lost its record. The process that uses an identity holds a lock, which the system releases when it ends.

// Remembered is an identity that this process holds, or may get. Its holder calls Release.
type Remembered struct {
	// GUID and Secret are of the last admission; empty for a new identity.
	GUID, Secret string

	handle string
	at     time.Time // when it was remembered
	file   string
	lock   *flock.Flock
}

// rememberedFile is the content of the file of an identity.
type rememberedFile struct {
	GUID   string `json:"guid"`
	Secret string `json:"secret"`
	Handle string `json:"handle,omitempty"`
}

const (
	// lockTimeout bounds the wait for another process that chooses an identity, which takes it milliseconds.
	lockTimeout = 10 * time.Second
	lockRetry   = 2 * time.Millisecond
	maxRemember = 4 << 10 // bytes of a file
)

// Remember returns an identity of an agent of this kind and handle that no process of this computer uses, else a new one.
// It never returns that of an agent with another handle, whose mail would come with it. hub tells the user's hubs apart. cfg
// has the directory, the host and the project.
func Remember(ctx context.Context, cfg store.Config, hub, agentType, handle string) (*Remembered, error) {
	base := filepath.Join(cfg.StateDir, "admitted."+store.Digest(hub, cfg.Hostname, cfg.ProjectPath, agentType))
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, err
	}
	// One process at a time chooses: a lock that is only looked at would appear as held to others.
	choice := flock.New(base+lockSuffix, flock.SetPermissions(0o600))
	waiting, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	if _, err := choice.TryLockContext(waiting, lockRetry); err != nil {
		return nil, err
	}
	defer unlock(choice)
	var unused, oldest *Remembered // oldest is of the agent that has not come back for the longest time
	for i := range maxAgentsOnThisHost {
		slot := fmt.Sprintf("%s.%d", base, i)
		if _, err := os.Stat(slot + lockSuffix); unused != nil && errors.Is(err, fs.ErrNotExist) {
			break // no process has had it or one after it
		}
		r, err := lockRemembered(slot)
		switch {
		case err != nil:
			unused.Release()
			oldest.Release()
			return nil, err
		case r == nil: // a live process has it
		case r.GUID != "" && r.handle == handle:
			unused.Release()
			oldest.Release()
			return r, nil
		case r.GUID == "" && unused == nil:
			unused = r
		case r.GUID != "" && (oldest == nil || r.at.Before(oldest.at)):
			oldest.Release()
			oldest = r
		default:
			r.Release()
		}
	}
	switch {
	case unused != nil:
		oldest.Release()
		return unused, nil
	case oldest != nil:
		oldest.GUID, oldest.Secret = "", ""
		return oldest, nil
	}
	return nil, tooManyAgents(agentType)
}

const lockSuffix = ".lock"

// lockRemembered returns the identity of a slot; nil if a live process has it.
func lockRemembered(slot string) (*Remembered, error) {
	lock := flock.New(slot+lockSuffix, flock.SetPermissions(0o600))
	free, err := lock.TryLock()
	if err != nil || !free {
		return nil, err
	}
	r := &Remembered{file: slot + ".json", lock: lock}
	data, err := readAtMost(r.file, maxRemember)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	var have rememberedFile
	if err == nil && json.Unmarshal(data, &have) == nil && uuid.Validate(have.GUID) == nil { // else it is damaged, and written anew
		r.GUID, r.Secret, r.handle = have.GUID, have.Secret, have.Handle
		if info, err := os.Stat(r.file); err == nil {
			r.at = info.ModTime()
		}
	}
	return r, nil
}

func readAtMost(path string, limit int64) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, errors.New("not a file of Parley's")
	}
	return os.ReadFile(path)
}

// Keep remembers an admission, on the disk, before the agent is entered under it.
func (r *Remembered) Keep(adm store.Admission, handle string) error {
	if r == nil || (r.GUID == adm.GUID && r.Secret == adm.Secret && r.handle == handle) {
		return nil
	}
	data, err := json.Marshal(rememberedFile{adm.GUID, adm.Secret, handle})
	if err == nil {
		err = local.ReplaceFile(r.file, data)
	}
	if err == nil {
		r.GUID, r.Secret, r.handle = adm.GUID, adm.Secret, handle
	}
	return err
}

// Release lets the next process of this kind have the identity. nil is released, too.
func (r *Remembered) Release() {
	if r != nil {
		unlock(r.lock)
	}
}
