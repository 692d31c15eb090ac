package identity

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Entry is a peer that may connect, and what its owner calls it.
type Entry struct {
	Key  PublicKey
	Name string
	// Address is host:port, where the peer can be asked for others and itself; "" for
	// one that is found by others.
	Address string
}

// AllowList is the peers that may connect, kept in a file: a key a line, in
// hexadecimal, then its address behind an @, if it has one, then its name. It is safe for concurrent use in one process.
type AllowList struct {
	path string

	change  sync.Mutex // held while the file is written
	mu      sync.RWMutex
	entries map[PublicKey]Entry
}

const (
	maxEntries     = 10_000
	maxNameSize    = 100
	maxAddressSize = 300
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
	entries := make(map[PublicKey]Entry)
	if err == nil {
		defer f.Close()
		if entries, err = parseAllowList(f); err != nil {
			return fmt.Errorf("the allow-list %s: %w", l.path, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = entries
	return nil
}

// parseAllowList reads entries; lines that are empty or begin with # are none.
func parseAllowList(r io.Reader) (map[PublicKey]Entry, error) {
	entries := make(map[PublicKey]Entry)
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		e, err := parseEntry(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if entries[e.Key] = e; len(entries) > maxEntries {
			return nil, fmt.Errorf("there are more than %d keys", maxEntries)
		}
	}
	return entries, in.Err()
}

func parseEntry(line string) (e Entry, err error) {
	text, rest, _ := strings.Cut(line, " ")
	if e.Key, err = ParsePublicKey(text); err != nil {
		return e, err
	}
	e.Name = strings.TrimSpace(rest)
	if strings.HasPrefix(e.Name, "@") {
		e.Address, e.Name, _ = strings.Cut(e.Name[1:], " ")
		e.Name = strings.TrimSpace(e.Name)
	}
	return e, e.Check()
}

// String is the entry as its line in the file.
func (e Entry) String() string {
	at := ""
	if e.Address != "" {
		at = "@" + e.Address
	}
	return strings.Join(slices.DeleteFunc([]string{e.Key.String(), at, strings.TrimSpace(e.Name)}, func(s string) bool { return s == "" }), " ")
}

// Check returns what is wrong with the name or the address.
func (e Entry) Check() error {
	if err := checkName(e.Name); err != nil || e.Address == "" {
		return err
	}
	host, port, err := net.SplitHostPort(e.Address)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 || host == "" || len(e.Address) > maxAddressSize || strings.ContainsFunc(e.Address, unprintable) {
		return fmt.Errorf("%.100q is not an address of the form host:port", e.Address)
	}
	return nil
}

func unprintable(r rune) bool { return r <= ' ' || r == 0x7f }

func checkName(name string) error {
	if strings.HasPrefix(name, "@") {
		return errors.New("a peer's name does not begin with @")
	}
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
	_, ok := l.entries[key]
	return ok
}

// Entries returns the list, by key.
func (l *AllowList) Entries() []Entry {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return sorted(l.entries)
}

func sorted(entries map[PublicKey]Entry) []Entry {
	return slices.SortedFunc(maps.Values(entries), func(a, b Entry) int { return bytes.Compare(a.Key[:], b.Key[:]) })
}

// Add lets a peer in, or changes what is known of it. When it returns, the file says so.
func (l *AllowList) Add(e Entry) error {
	if !e.Key.Valid() {
		return errPoint
	}
	if err := e.Check(); err != nil {
		return err
	}
	return l.store(func(entries map[PublicKey]Entry) error {
		if _, ok := entries[e.Key]; !ok && len(entries) >= maxEntries {
			return fmt.Errorf("there are %d keys already", maxEntries)
		}
		entries[e.Key] = e
		return nil
	})
}

// Remove lets a peer in no more, and reports whether it was let in before. It does
// not end connections.
func (l *AllowList) Remove(key PublicKey) (bool, error) {
	had := l.Allowed(key)
	return had, l.store(func(entries map[PublicKey]Entry) error {
		delete(entries, key)
		return nil
	})
}

// store changes a copy, writes it, and takes it over when that is done.
func (l *AllowList) store(change func(map[PublicKey]Entry) error) error {
	l.change.Lock()
	defer l.change.Unlock()
	l.mu.RLock()
	entries := maps.Clone(l.entries)
	l.mu.RUnlock()
	if err := change(entries); err != nil {
		return err
	}
	if err := l.write(entries); err != nil {
		return fmt.Errorf("the allow-list cannot be stored: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = entries
	return nil
}

// write replaces the file whole or not at all.
func (l *AllowList) write(entries map[PublicKey]Entry) error {
	dir := filepath.Dir(l.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".peers-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // it is gone if all went well
	out := bufio.NewWriter(f)
	for _, e := range sorted(entries) {
		fmt.Fprintln(out, e) // Flush tells of errors
	}
	if err := errors.Join(out.Flush(), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), l.path)
}
