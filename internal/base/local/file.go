package local

import (
	"errors"
	"os"
	"path/filepath"
)

// ReplaceFile gives a file new contents, atomically and durably: after a kill or a power cut it has the old ones or the
// new ones. Only the user may read and write it. A kill within the call may leave a file with the same name and a dot
// and digits after it.
func ReplaceFile(path string, data []byte) error {
	dir, name := filepath.Split(path)
	f, err := os.CreateTemp(dir, name+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return SyncDir(filepath.Dir(path))
}
