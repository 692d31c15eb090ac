package identity

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Load reads a pair from a file, or generates one and creates the file. The file holds the seed in
// hexadecimal with mode 0600. A file that others may read is an error, except on Windows, where the
// directory's access list protects it.
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
	return p, nil
}

func read(path string) (*Pair, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the identity cannot be read: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("the identity cannot be read: %w", err)
	}
	// On Windows the mode says nothing about access.
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("the identity %s is readable by others (mode %v): run chmod 600 on it, or remove it to get a new one", path, info.Mode())
	}
	var text [128]byte
	n, err := f.Read(text[:])
	if err != nil {
		return nil, fmt.Errorf("the identity cannot be read: %w", err)
	}
	seed, err := hex.DecodeString(strings.TrimSpace(string(text[:n])))
	if err != nil || len(seed) != 32 {
		return nil, fmt.Errorf("the identity %s does not hold 64 hexadecimal digits", path)
	}
	return FromSeed([32]byte(seed)), nil
}

// write creates the file atomically and never replaces an existing one.
func write(path string, p *Pair) error {
	seed := p.Seed()
	return writeFile(path, hex.EncodeToString(seed[:])+"\n", os.Link)
}

// writeFile writes a text to a temporary file with mode 0600 and then gives it its name by calling place.
func writeFile(path, text string, place func(from, to string) error) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after a rename
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return place(f.Name(), path)
}
