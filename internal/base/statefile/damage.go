package statefile

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/local"
)

// The names of damaged files that were moved aside: that of the file, one of these, and a part of their own checksum.
const (
	restoredName = ".damaged-"
	lostName     = ".damaged-lost-" // there was no good copy
)

// damageOf describes the damage of a file.
func damageOf(path string, reason error, loss string) *Damage {
	at := path
	if errors.Is(reason, errGone) {
		at = copyOf(path)
	}
	return &Damage{Path: path, Reason: local.Reason(reason), Loss: loss, ID: damageID(path, at)}
}

// damageID identifies the damage of a file by its content and the time of its last change, which stay when it is moved aside.
func damageID(path, at string) string {
	sum := sha256.New()
	fmt.Fprintln(sum, path)
	if info, err := os.Stat(at); err == nil {
		fmt.Fprintln(sum, info.ModTime().UnixNano())
	}
	raw, _ := read(at)
	_, _ = sum.Write(raw)
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// mend moves a damaged file aside, writes it again if there is a good copy, and reports what it has done. What fails is repeated by the next
// Read. A file that is restored is never gone for others.
func mend(d *Damage, restore func() error, damaged func(Damage)) {
	var err error
	if d.Restored {
		if d.Kept, err = setAside(d.Path, restoredName, link); err == nil {
			_ = keepTime(d.Path, copyOf(d.Path), restore)
		}
	} else if d.Kept, err = setAside(d.Path, lostName, os.Rename); err == nil {
		_, _ = setAside(copyOf(d.Path), lostName, os.Rename)
	}
	if damaged != nil {
		damaged(*d)
	}
}

// keepTime gives a file that write writes the time at which another one was written.
func keepTime(path, of string, write func() error) error {
	info, err := os.Stat(of)
	if err == nil {
		err = write()
	}
	if err == nil {
		err = os.Chtimes(path, time.Time{}, info.ModTime())
	}
	return err
}

// SetAside returns the damage of a file that some process has moved aside, by the path at which it is now; ok is false for another file.
func SetAside(kept string) (d Damage, ok bool) {
	path, sum, ok := cutLast(kept, restoredName)
	if _, isCopy := CopyOf(path); !ok || isCopy {
		return d, false
	}
	d = Damage{Path: path, Reason: "a process has found it damaged", Kept: kept, ID: damageID(path, kept)}
	d.Restored = !strings.HasPrefix(restoredName+sum, lostName)
	return d, true
}

// KeepDamaged gives a damaged file a second name, by which SetAside knows it as lost, and returns that.
func KeepDamaged(path string) (kept string, err error) { return setAside(path, lostName, link) }

// CopyOf returns the file that a path is the copy of; ok is false if it is no copy's.
func CopyOf(path string) (of string, ok bool) { return strings.CutSuffix(path, copyOf("")) }

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// setAside names a file after what it has, so that no other one is overwritten. It returns "" for one that does not exist.
func setAside(path, name string, place func(path, kept string) error) (kept string, err error) {
	raw, err := read(path)
	switch {
	case errors.Is(err, errGone):
		return "", nil
	case err != nil && !isDamage(err):
		return "", err
	}
	sum := sha256.Sum256(raw)
	kept = path + name + hex.EncodeToString(sum[:4])
	if err := place(path, kept); err != nil {
		return "", err
	}
	return kept, nil
}

// link gives a file a second name, or renames it on a file system that cannot.
func link(path, kept string) error {
	_ = os.Remove(kept) // the same damage, of before
	if os.Link(path, kept) == nil {
		return nil
	}
	return os.Rename(path, kept)
}

// replace writes a file and its copy. The copy is first, so that no error leaves a new file with an old one; but a copy without a file would
// be one whose file is gone, so that of a new file comes later.
func replace(path string, content, copied []byte) error {
	if exists(path) || exists(copyOf(path)) {
		if err := writeCopy(path, copied); err != nil {
			return err
		}
		return local.ReplaceFile(path, content)
	}
	err := local.ReplaceFile(path, content)
	if err == nil {
		_ = writeCopy(path, copied) // else the next Read writes it
	}
	return err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// writeCopy writes the copy of a file. It is not synced: it matters only once the file, which is, has been damaged.
func writeCopy(path string, raw []byte) error {
	next := copyOf(path) + ".new"
	err := os.WriteFile(next, raw, 0o600)
	if err == nil {
		err = os.Rename(next, copyOf(path))
	}
	if err != nil {
		return errors.Join(err, remove(next))
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
