package doorbell

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/local"
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

// NewFile returns a bell whose files are in a directory, which is made if it is missing. It has to be the user's, and is closed to
// others: whoever can change a file wakes its session.
func NewFile(dir string) (*File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return nil, err
	case !info.IsDir() || !local.OwnedByUser(info):
		return nil, fmt.Errorf("%s is not a directory of the user: remove it", dir)
	case local.OthersMayRead(info):
		if err := os.Chmod(dir, 0o700); err != nil {
			return nil, err
		}
	}
	return &File{dir: dir, rings: make(map[presence.Process]*fileRing)}, nil
}

// Watch makes the file of a session, and returns its path; "" for a session of another vendor.
func (f *File) Watch(s presence.Session) (path string, err error) {
	if s.Vendor != presence.Claude && s.Vendor != presence.OpenCode || s.Process.PID <= 1 {
		return "", nil
	}
	name, ok := fileName(s.Process)
	if !ok {
		return "", errNoProcess
	}
	path = filepath.Join(f.dir, name)
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
		return path, nil // a change of it would call the hook
	}
	f.sweep()
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	return path, write(root, name, os.O_CREATE|os.O_EXCL, nil)
}

// write writes a file of the directory. A link out of it is not followed.
func write(root *os.Root, name string, flag int, data []byte) error {
	file, err := root.OpenFile(name, os.O_WRONLY|flag, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}

// fileName returns the name of a session's file. What a process is called comes from whoever reports it.
func fileName(p presence.Process) (name string, ok bool) {
	ok = !strings.ContainsFunc(p.Start, func(r rune) bool { return r < '0' || r > '9' })
	return fmt.Sprintf("%d-%s", p.PID, p.Start), ok
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
	errNoProcess  = errors.New("its process has no such start")
)

// Ring implements [Bell].
func (f *File) Ring(ctx context.Context, s presence.Session, text string, _ func(Outcome)) (Outcome, error) {
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return Unable, err
	}
	defer root.Close()
	name, ok := fileName(s.Process)
	if info, err := root.Lstat(name); !ok || err != nil || !info.Mode().IsRegular() {
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
	if err := write(root, name, os.O_TRUNC, []byte(time.Now().Format(time.RFC3339Nano)+"\n")); err != nil {
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
