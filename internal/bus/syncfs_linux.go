package bus

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// filesystemSyncer syncs the filesystem of a directory. It keeps the directory open, because the
// kernel reports a failed write-back only to descriptors that were open at the time.
type filesystemSyncer struct{ dir *os.File }

// openSyncer syncs once, so that it fails if the filesystem does not support it.
func openSyncer(dir string) (syncer, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	s := filesystemSyncer{dir: f}
	if err := s.Sync(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

func (s filesystemSyncer) Sync() error {
	for {
		err := unix.Syncfs(int(s.dir.Fd()))
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("syncfs %s: %w", s.dir.Name(), err)
		}
	}
}

func (s filesystemSyncer) Close() error { return s.dir.Close() }
