package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

const (
	runFileName  = "run.json"
	runFileLimit = 16 << 10 // bytes
)

// A runFile tells the user's other processes where the hub's bus is. It lies
// in the bus directory while the hub runs, readable by the user alone.
type runFile struct {
	PID        int        `json:"pid"`
	StartedAt  time.Time  `json:"startedAt"`
	Address    string     `json:"address"` // host:port
	User       string     `json:"user"`
	Password   string     `json:"password"`
	Durability Durability `json:"durability"` // effective
}

// writeRunFile makes the run file appear as a whole. The caller holds the lock.
func writeRunFile(dir string, r runFile) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	temporary := filepath.Join(dir, runFileName+".tmp")
	if err := remove(temporary); err != nil { // of a hub that was killed here
		return err
	}
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(dir, runFileName))
}

func removeRunFile(dir string) error { return remove(filepath.Join(dir, runFileName)) }

// remove removes a file that may be missing.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// readRunFile refuses a file that another user owns or could have read or
// written. A missing file is os.ErrNotExist.
func readRunFile(dir string) (runFile, error) {
	var r runFile
	path := filepath.Join(dir, runFileName)
	f, err := openNoFollow(path)
	if err != nil {
		return r, err
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	if err != nil {
		return r, err
	}
	if err := checkPrivate(path, info); err != nil {
		return r, err
	}
	data, err := io.ReadAll(io.LimitReader(f, runFileLimit+1))
	if err != nil {
		return r, err
	}
	if len(data) > runFileLimit {
		return r, fmt.Errorf("%s is longer than %d bytes", path, runFileLimit)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	addr, err := netip.ParseAddrPort(r.Address)
	if err != nil || !addr.Addr().IsLoopback() || addr.Port() == 0 || r.Password == "" {
		return runFile{}, fmt.Errorf("%s has no credential or no address on this machine", path)
	}
	return r, nil
}
