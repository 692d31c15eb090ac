package identity

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/parleyhub/parley/internal/base/statefile"
)

// Load reads a pair from a file, or generates one and creates the file. The file holds the seed in
// hexadecimal with mode 0600. A file that others may read is an error, except on Windows, where the
// directory's access list protects it.
//
// A copy with a checksum is kept beside it, path + ".copy": a file that is damaged, or gone, is restored from it, and the damaged one is moved
// aside. Whoever wants a new identity removes both. A damaged file without a copy is an error.
func Load(path string) (*Pair, error) {
	p, err := read(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	p = Generate()
	if err := write(path, p); err != nil {
		if errors.Is(err, fs.ErrExist) { // another process created it first
			return read(path)
		}
		return nil, fmt.Errorf("the identity cannot be stored: %w", err)
	}
	_, _ = keyFile(path).Read() // writes the copy
	return p, nil
}

func keyFile(path string) statefile.Raw {
	return statefile.Raw{Path: path, Valid: func(b []byte) error {
		_, err := decode(b)
		return err
	}}
}

var errSeed = errors.New("does not hold 64 hexadecimal digits") // without a byte of the secret

func decode(text []byte) (*Pair, error) {
	var seed [32]byte
	text = bytes.TrimSpace(text)
	if len(text) != hex.EncodedLen(len(seed)) {
		return nil, errSeed
	}
	if _, err := hex.Decode(seed[:], text); err != nil {
		return nil, errSeed
	}
	return FromSeed(seed), nil
}

func read(path string) (*Pair, error) {
	f := keyFile(path)
	for _, p := range []string{path, path + ".copy"} {
		if err := checkPrivate(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	text, damage, err := f.Peek()
	switch {
	case err != nil:
		return nil, fmt.Errorf("the identity cannot be read: %w", err)
	case damage != nil && !damage.Restored:
		return nil, fmt.Errorf("the identity %s %w", path, errSeed)
	case text == nil:
		return nil, fmt.Errorf("the identity cannot be read: %w", fs.ErrNotExist)
	}
	if isLink(path) { // its owner keeps the secret elsewhere
		return decode(text)
	}
	if text, err = f.Read(); err != nil {
		return nil, fmt.Errorf("the identity cannot be read: %w", err)
	}
	return decode(text)
}

// checkPrivate returns an error for what is no regular file of the user's alone.
func checkPrivate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("the identity cannot be read: %w", err)
	}
	// On Windows the mode says nothing about access.
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("the identity %s is readable by others (mode %v): run chmod 600 on it, or remove it and its copy (.copy) to get a new one", path, info.Mode())
	}
	return nil
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// write creates the file atomically and never replaces an existing one.
func write(path string, p *Pair) error {
	seed := p.Seed()
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(hex.EncodeToString(seed[:]) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}
