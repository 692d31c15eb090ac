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

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/local"
)

// Code is the kind of an error.
type Code string

// The codes of an [Error].
const (
	CodeRunning  Code = "already-running" // another hub has locked the data directory
	CodeStart    Code = "start-failed"
	CodeInUse    Code = "address-in-use" // another program uses the port, or another hub the socket
	CodeStop     Code = "stop-failed"
	CodeDataDir  Code = "data-directory"
	CodeOtherHub Code = "other-hub" // the data directory and the socket are of different hubs
	CodeInternal Code = "internal"
)

// Error is what the package returns. Message and Remedy are fit for users and
// hold no secrets; Err is the cause, for logs.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

// Info describes a running hub to other processes of its user, in the file hub.json in the data
// directory. It contains no secret.
type Info struct {
	PID        int       `json:"pid"`
	Version    string    `json:"version"`
	StartedAt  time.Time `json:"startedAt"`
	DataDir    string    `json:"dataDir"`
	Socket     string    `json:"socket,omitempty"`
	HTTP       string    `json:"http,omitempty"`    // base URL
	GRPC       string    `json:"grpc,omitempty"`    // host:port
	Notices    []string  `json:"notices,omitempty"` // where an address is not the configured one, for people
	Durability string    `json:"durability"`
	Log        string    `json:"log,omitempty"` // "" for the terminal
}

const (
	infoName  = "hub.json"
	lockName  = "hub.lock"
	startName = "start.lock" // held by the process that starts a hub
	maxInfo   = 64 << 10     // bytes
)

// Read reads the Info of a data directory's hub. The error for a missing file is
// os.ErrNotExist. A killed hub leaves its file behind: use [Running] to check for a hub.
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

// write replaces the file atomically.
func (i Info) write() error {
	data, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	return local.ReplaceFile(filepath.Join(i.DataDir, infoName), append(data, '\n'))
}

// Running reports whether a hub has the data directory, and returns its Info. The Info of a
// hub that is starting or stopping may be incomplete or zero.
func Running(dataDir string) (Info, bool, error) {
	lock := flock.New(filepath.Join(dataDir, lockName), flock.SetFlag(os.O_RDONLY))
	free, err := lock.TryRLock()
	if errors.Is(err, fs.ErrNotExist) {
		return Info{}, false, nil
	}
	if err != nil {
		return Info{}, false, fmt.Errorf("check the lock %s: %w", lock.Path(), err)
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

// A process that checks for a hub holds the lock for an instant, and a process that stops a hub
// a little longer: retry that long.
const (
	lockTimeout = 500 * time.Millisecond
	lockRetry   = 10 * time.Millisecond
)

// prepare creates the data directory and locks it.
func prepare(ctx context.Context, dataDir string) (*flock.Flock, error) {
	if err := makePrivate(dataDir); err != nil {
		return nil, err
	}
	lock := flock.New(filepath.Join(dataDir, lockName), flock.SetPermissions(0o600))
	waitCtx, cancel := context.WithTimeout(ctx, lockTimeout)
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
		Message: who + " is already running with the data directory " + dataDir,
		Remedy:  "stop it, or set another data directory and socket for this one",
	}
}

// dataDirError describes for users why a data directory cannot be used.
func dataDirError(dir string, err error) *Error {
	reason := local.Reason(err)
	var path *fs.PathError
	if errors.As(err, &path) && filepath.Dir(path.Path) == dir {
		reason = filepath.Base(path.Path) + ": " + reason
	}
	return &Error{
		Code: CodeDataDir, Message: fmt.Sprintf("cannot use the data directory %s: %s", dir, reason),
		Remedy: "name a directory that you own with --data-dir or PARLEY_DATA_DIR", Err: err,
	}
}

// makePrivate creates the data directory with mode 0700, and removes the permissions of others from an existing one.
func makePrivate(dir string) error {
	fail := func(err error) error { return dataDirError(dir, err) }
	if err := os.MkdirAll(dir, 0o700); err != nil {
		if _, statErr := os.Stat(dir); errors.Is(err, fs.ErrExist) && errors.Is(statErr, fs.ErrNotExist) {
			err = errors.New("it is a symbolic link to a directory that does not exist")
		}
		return fail(err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fail(err)
	}
	if !local.OwnedByUser(info) {
		return fail(errors.New("it belongs to another user"))
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return fail(err)
		}
	}
	return nil
}
