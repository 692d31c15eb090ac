package keys

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Entry is a peer that may connect, and what its owner calls it.
type Entry struct {
	Key  PublicKey
	Name string
}

// AllowList is the peers that may connect, kept in a file: a key a line, in
// hexadecimal, then its name. It is safe for concurrent use in one process.
type AllowList struct {
	path string

	change sync.Mutex // held while the file is written
	mu     sync.RWMutex
	names  map[PublicKey]string
}

const (
	maxEntries  = 10_000
	maxNameSize = 100
)

// OpenAllowList reads a list. A file that is not there is an empty one.
func OpenAllowList(path string) (*AllowList, error) {
	l := &AllowList{path: path}
	return l, l.Reload()
}

// Reload reads the file again, e.g. because another process has changed it. When
// it cannot be read the list stays as it is.
func (l *AllowList) Reload() error {
	f, err := os.Open(l.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the allow-list cannot be read: %w", err)
	}
	names := make(map[PublicKey]string)
	if err == nil {
		defer f.Close()
		if names, err = parseAllowList(f); err != nil {
			return fmt.Errorf("the allow-list %s: %w", l.path, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = names
	return nil
}

// parseAllowList reads entries; lines that are empty or begin with # are none.
func parseAllowList(r io.Reader) (map[PublicKey]string, error) {
	names := make(map[PublicKey]string)
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		text, name, _ := strings.Cut(line, " ")
		key, err := ParsePublicKey(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if name = strings.TrimSpace(name); checkName(name) != nil {
			return nil, fmt.Errorf("line %d: %w", n, checkName(name))
		}
		if names[key] = name; len(names) > maxEntries {
			return nil, fmt.Errorf("there are more than %d keys", maxEntries)
		}
	}
	return names, in.Err()
}

func checkName(name string) error {
	if len(name) > maxNameSize || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("a peer's name has at most %d bytes, and no control characters", maxNameSize)
	}
	return nil
}

// Allowed reports whether a key is in the list. It does not block: it is what a
// listener asks inside the handshake.
func (l *AllowList) Allowed(key PublicKey) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	_, ok := l.names[key]
	return ok
}

// Entries returns the list, by key.
func (l *AllowList) Entries() []Entry {
	l.mu.RLock()
	defer l.mu.RUnlock()
	all := make([]Entry, 0, len(l.names))
	for k, name := range l.names {
		all = append(all, Entry{k, name})
	}
	slices.SortFunc(all, func(a, b Entry) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	return all
}

// Add lets a peer in, or changes its name. When it returns, the file says so.
func (l *AllowList) Add(e Entry) error {
	if !e.Key.Valid() {
		return errPoint
	}
	if err := checkName(e.Name); err != nil {
		return err
	}
	return l.store(func(names map[PublicKey]string) error {
		if _, ok := names[e.Key]; !ok && len(names) >= maxEntries {
			return fmt.Errorf("there are %d keys already", maxEntries)
		}
		names[e.Key] = e.Name
		return nil
	})
}

// Remove lets a peer in no more, and reports whether it was let in before. It does
// not end connections.
func (l *AllowList) Remove(key PublicKey) (bool, error) {
	had := l.Allowed(key)
	return had, l.store(func(names map[PublicKey]string) error {
		delete(names, key)
		return nil
	})
}

// store changes a copy, writes it, and takes it over when that is done.
func (l *AllowList) store(change func(map[PublicKey]string) error) error {
	l.change.Lock()
	defer l.change.Unlock()
	names := make(map[PublicKey]string)
	for _, e := range l.Entries() {
		names[e.Key] = e.Name
	}
	if err := change(names); err != nil {
		return err
	}
	if err := l.write(names); err != nil {
		return fmt.Errorf("the allow-list cannot be stored: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = names
	return nil
}

// write replaces the file whole or not at all.
func (l *AllowList) write(names map[PublicKey]string) error {
	dir := filepath.Dir(l.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".peers-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // it is gone if all went well
	keys := make([]PublicKey, 0, len(names))
	for k := range names {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b PublicKey) int { return bytes.Compare(a[:], b[:]) })
	out := bufio.NewWriter(f)
	for _, k := range keys {
		fmt.Fprintln(out, strings.TrimSpace(k.String()+" "+names[k])) // Flush tells of errors
	}
	if err := errors.Join(out.Flush(), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), l.path)
}
