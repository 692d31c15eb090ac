package identity

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/parleyhub/parley/internal/base/statefile"
)

// Allow reports whether a peer may connect. It is called inside the handshake and must not block.
type Allow func(PublicKey) bool

// Entry is a peer that may connect.
type Entry struct {
	Key  PublicKey
	Name string // local name, "" for none
	// Address is the host:port of the peer's bootstrap node, or "".
	Address string
}

// AllowList holds the peers that may connect, stored in a file with one line per peer: the hexadecimal key, then
// optionally "@" and the address, then optionally the name. It is safe for concurrent use within one process.
//
// People may edit the file. A copy with a checksum is kept beside it, path + ".copy": a file that differs from what was last read or written
// in one flipped bit of a key, or one that makes a line unreadable, is restored, and the damaged one is moved aside. Any other change counts.
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

// ErrLine is the error of a list with lines that are no entries.
var ErrLine = errors.New("it has lines that are no entries")

// OpenAllowList reads the list at path. A missing file is an empty list. With [ErrLine] the list has the entries of the other lines; whoever
// changes it then loses these lines.
func OpenAllowList(path string) (*AllowList, error) {
	l := &AllowList{path: path}
	entries, err := l.read()
	l.entries = entries
	return l, err
}

// Reload reads the file again, e.g. after another process has changed it. With [ErrLine] the list has the entries of the other lines; on
// another error it is unchanged.
func (l *AllowList) Reload() error {
	entries, err := l.read()
	if err != nil && !errors.Is(err, ErrLine) {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = entries
	return err
}

// read returns the entries of the file; with ErrLine those of the other lines.
func (l *AllowList) read() (map[PublicKey]Entry, error) {
	text, err := l.file().ReadShared(l.lock())
	if err != nil {
		return nil, fmt.Errorf("the allow-list cannot be read: %w", err)
	}
	entries, err := parseAllowList(bytes.NewReader(text))
	if err != nil {
		err = fmt.Errorf("the allow-list %s: %w", l.path, err)
	}
	return entries, err
}

func (l *AllowList) file() statefile.Raw {
	f := statefile.Edited(l.path)
	f.Edit = sameKeys
	return f
}

// sameKeys reports whether two lists have the same keys, so that they differ in addresses and names.
func sameKeys(a, b []byte) bool {
	before, err := parseAllowList(bytes.NewReader(a))
	after, aerr := parseAllowList(bytes.NewReader(b))
	return err == nil && aerr == nil && maps.EqualFunc(before, after, func(Entry, Entry) bool { return true })
}

// lock returns the file that processes lock to write the list.
func (l *AllowList) lock() string { return l.path + ".lock" }

// parseAllowList skips empty lines and lines that begin with #. With ErrLine, of which the first line is named, it returns the other entries.
func parseAllowList(r io.Reader) (map[PublicKey]Entry, error) {
	entries := make(map[PublicKey]Entry)
	var bad error
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		e, err := parseEntry(line)
		if err != nil {
			bad = cmp.Or(bad, fmt.Errorf("%w: line %d: %w", ErrLine, n, err))
			continue
		}
		if entries[e.Key] = e; len(entries) > maxEntries {
			return nil, fmt.Errorf("there are more than %d keys", maxEntries)
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	return entries, bad
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

// String returns the entry's line in the file.
func (e Entry) String() string {
	at := ""
	if e.Address != "" {
		at = "@" + e.Address
	}
	return strings.Join(slices.DeleteFunc([]string{e.Key.String(), at, strings.TrimSpace(e.Name)}, func(s string) bool { return s == "" }), " ")
}

// Check validates the name and the address.
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
		return errors.New("a peer's name must not begin with @")
	}
	if len(name) > maxNameSize || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("a peer's name must have at most %d bytes and no control characters", maxNameSize)
	}
	return nil
}

// Allowed reports whether a key is in the list; it is an [Allow]. It does not block.
func (l *AllowList) Allowed(key PublicKey) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	_, ok := l.entries[key]
	return ok
}

// Entries returns the list, sorted by key.
func (l *AllowList) Entries() []Entry {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return sorted(l.entries)
}

func sorted(entries map[PublicKey]Entry) []Entry {
	return slices.SortedFunc(maps.Values(entries), func(a, b Entry) int { return bytes.Compare(a.Key[:], b.Key[:]) })
}

// Add adds or replaces an entry and writes the file.
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

// Remove removes a key, writes the file and reports whether the key was in the list. It does not close connections.
func (l *AllowList) Remove(key PublicKey) (bool, error) {
	had := l.Allowed(key)
	return had, l.store(func(entries map[PublicKey]Entry) error {
		delete(entries, key)
		return nil
	})
}

// store applies a change to a copy, writes the copy to the file, then uses it.
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

// lockTime is how long another process may take to write the list.
const lockTime = 5 * time.Second

// write replaces the file atomically.
func (l *AllowList) write(entries map[PublicKey]Entry) error {
	var text strings.Builder
	for _, e := range sorted(entries) {
		fmt.Fprintln(&text, e)
	}
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return err
	}
	lock := flock.New(l.lock(), flock.SetPermissions(0o600))
	ctx, cancel := context.WithTimeout(context.Background(), lockTime)
	defer cancel()
	if _, err := lock.TryLockContext(ctx, 10*time.Millisecond); err != nil {
		return err
	}
	defer lock.Close()
	return l.file().Write([]byte(text.String()))
}
