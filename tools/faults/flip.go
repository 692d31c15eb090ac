package main

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// records returns the files of a directory that have records of a store.
func records(dir string) ([]string, error) {
	return filesOf(dir, func(path string) (string, bool) { return path, filepath.Ext(path) == ".blk" })
}

// copied returns the files of a directory that have copies with checksums: those of Parley's own that are not records.
func copied(dir string) ([]string, error) {
	return filesOf(dir, func(path string) (string, bool) { return strings.CutSuffix(path, ".copy") })
}

// signedLines returns the files of a directory whose lines have checksums: the ledger of damage, audit logs, and messages that wait for the bus.
func signedLines(dir string) ([]string, error) {
	return filesOf(dir, func(path string) (string, bool) {
		return path, filepath.Ext(path) == ".jsonl" || strings.HasPrefix(filepath.Base(path), "unsent-") && filepath.Ext(path) == ".json"
	})
}

// filesOf returns, in order, what of selects of the files in a directory, unless it is empty or gone.
func filesOf(dir string, of func(path string) (string, bool)) (files []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // agents go on
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if file, ok := of(path); ok {
			if info, err := os.Lstat(file); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
				files = append(files, file)
			}
		}
		return nil
	})
	slices.Sort(files)
	return files, err
}

// flipBit flips a bit of one of some files. Without files it does nothing.
func flipBit(files []string, random *rand.Rand) error {
	if len(files) == 0 {
		return nil
	}
	f, err := os.OpenFile(files[random.IntN(len(files))], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		at, b := random.Int64N(info.Size()), make([]byte, 1)
		if _, err = f.ReadAt(b, at); err == nil {
			b[0] ^= 1 << random.IntN(8)
			_, err = f.WriteAt(b, at)
		}
	}
	return errors.Join(err, f.Close())
}
