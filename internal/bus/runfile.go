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

// writeRunFile replaces the run file as a whole: a reader sees the old one or
// the new one.
func writeRunFile(dir string, r runFile) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	// CreateTemp makes the file with mode 0600.
	f, err := os.CreateTemp(dir, runFileName+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, runFileName))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func removeRunFile(dir string) error {
	err := os.Remove(filepath.Join(dir, runFileName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
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
