package doorbell

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/sessions/presence"
)

// fileTime is how long a program may take to call the hook of a file that has changed.
const fileTime = 8 * time.Second

// File wakes sessions of Claude Code and OpenCode by a file that each of them watches. The change calls the session's hook, which asks
// for the text with [File.Take] and wakes the session with it. It is safe for concurrent use.
type File struct {
	dir string

	mu    sync.Mutex
	rings map[presence.Process]*fileRing
}

type fileRing struct {
	text  string
	taken chan struct{}
}

// NewFile returns a bell whose files are in a directory, which is made if it is missing.
func NewFile(dir string) (*File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &File{dir: dir, rings: make(map[presence.Process]*fileRing)}, nil
}

// Watch makes the file of a session, and returns its path; "" for a session of another vendor.
func (f *File) Watch(s presence.Session) (path string, err error) {
	if s.Vendor != presence.Claude && s.Vendor != presence.OpenCode || s.Process.PID <= 1 {
		return "", nil
	}
	path = f.path(s.Process)
	if _, err := os.Lstat(path); err == nil {
		return path, nil // a change of it would call the hook
	}
	f.sweep()
	return path, os.WriteFile(path, nil, 0o600)
}

func (f *File) path(p presence.Process) string {
	return filepath.Join(f.dir, fmt.Sprintf("%d-%s", p.PID, strings.Trim(p.Start, "/.")))
}

// sweep removes the files of processes that have ended.
func (f *File) sweep() {
	files, err := os.ReadDir(f.dir)
	if err != nil {
		return
	}
	for _, x := range files {
		var p presence.Process
		if _, err := fmt.Sscanf(x.Name(), "%d-%s", &p.PID, &p.Start); err == nil && !p.Alive() {
			_ = os.Remove(filepath.Join(f.dir, x.Name())) // the next sweep tries again
		}
	}
}

var (
	errNotWatched = errors.New("it does not watch the bell's file: it began before the hooks were entered, or without a hub")
	errNoHook     = errors.New("the hook of the bell's file was not called")
)

// Ring implements [Bell].
func (f *File) Ring(ctx context.Context, s presence.Session, text string, _ func(Outcome)) (Outcome, error) {
	path := f.path(s.Process)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return Unable, errNotWatched
	}
	r := &fileRing{text, make(chan struct{})}
	f.mu.Lock()
	f.rings[s.Process] = r
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		if f.rings[s.Process] == r {
			delete(f.rings, s.Process)
		}
		f.mu.Unlock()
	}()
	if err := os.WriteFile(path, []byte(time.Now().Format(time.RFC3339Nano)+"\n"), 0o600); err != nil {
		return Unable, err
	}
	timeout := time.NewTimer(fileTime)
	defer timeout.Stop()
	select {
	case <-r.taken:
		return Rung, nil
	case <-timeout.C:
		return Unable, errNoHook
	case <-ctx.Done():
		return Unable, ctx.Err()
	}
}

// Take returns the text of the bell that rings for a session, once.
func (f *File) Take(p presence.Process) (text string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rings[p]
	if r == nil {
		return "", false
	}
	delete(f.rings, p)
	close(r.taken)
	return r.text, true
}
