package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// Info is what a running hub tells other processes of its user, in hub.json in
// the data directory. It holds no secret.
type Info struct {
	PID        int       `json:"pid"`
	Version    string    `json:"version"`
	StartedAt  time.Time `json:"startedAt"`
	DataDir    string    `json:"dataDir"`
	Socket     string    `json:"socket,omitempty"`
	HTTP       string    `json:"http,omitempty"` // base URL
	GRPC       string    `json:"grpc,omitempty"` // host:port
	Durability string    `json:"durability"`
	Log        string    `json:"log,omitempty"` // "" where it went to the terminal
}

const (
	infoName = "hub.json"
	lockName = "hub.lock"
	maxInfo  = 64 << 10 // bytes
)

// Read returns what the hub of a data directory said of itself. A missing file
// is os.ErrNotExist. The file of a hub that was killed is still there: only
// [Running] tells.
func Read(dataDir string) (Info, error) {
	f, err := os.Open(filepath.Join(dataDir, infoName))
	if err != nil {
		return Info{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxInfo))
	if err != nil {
		return Info{}, err
	}
	var info Info
	if err := json.Unmarshal(data, &info); err != nil {
		return Info{}, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return info, nil
}

// write replaces the file as a whole: a reader sees the old one or the new one.
func (i Info) write() error {
	data, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(i.DataDir, infoName+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(i.DataDir, infoName))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Running tells whether a hub has the data directory, and what it says of
// itself; of a hub that is still starting only the PID may be known, or
// nothing.
func Running(dataDir string) (Info, bool, error) {
	lock := flock.New(filepath.Join(dataDir, lockName), flock.SetFlag(os.O_RDONLY))
	free, err := lock.TryRLock()
	if errors.Is(err, fs.ErrNotExist) {
		return Info{}, false, nil
	}
	if err != nil {
		return Info{}, false, fmt.Errorf("look at %s: %w", lock.Path(), err)
	}
	if free {
		return Info{}, false, lock.Close()
	}
	info, err := Read(dataDir)
	if err != nil { // it is starting, or stopping
		return Info{}, true, nil
	}
	return info, true, nil
}

// A process that looks whether a hub runs holds the lock for an instant, and
// one that stops for a little longer: try for so long.
const (
	lockPatience = 500 * time.Millisecond
	lockRetry    = 10 * time.Millisecond
)

// prepare makes the data directory and takes its lock.
func prepare(ctx context.Context, dataDir string) (*flock.Flock, error) {
	if err := makePrivate(dataDir); err != nil {
		return nil, err
	}
	lock := flock.New(filepath.Join(dataDir, lockName), flock.SetPermissions(0o600))
	waitCtx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	ok, err := lock.TryLockContext(waitCtx, lockRetry)
	if ok {
		return lock, nil
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, &Error{
			Code: CodeDataDir, Message: "cannot lock " + lock.Path(),
			Remedy: "put the data directory on a local file system that you can write to", Err: err,
		}
	}
	who := "another hub"
	if info, err := Read(dataDir); err == nil {
		who = fmt.Sprintf("a hub (process %d)", info.PID)
	}
	return nil, &Error{
		Code:    CodeRunning,
		Message: who + " runs already with the data directory " + dataDir,
		Remedy:  "stop it, or give this one a data directory and a socket of its own",
	}
}

// makePrivate makes the data directory for its user alone, and takes away the
// rights of others where it is there already.
func makePrivate(dir string) error {
	fail := func(err error) error {
		return &Error{
			Code: CodeDataDir, Message: fmt.Sprintf("cannot use the data directory %s: %v", dir, err),
			Remedy: "set dataDir or PARLEY_DATA_DIR to a directory of your own", Err: err,
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fail(err)
	}
	if !ownedByUser(info) {
		return fail(errors.New("it belongs to another user"))
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return fail(err)
		}
	}
	return nil
}
