// Package entries keeps a short list in a file, which each change replaces.
package entries

import (
	"slices"
	"sync"

	"github.com/parleyhub/parley/internal/base/statefile"
)

const (
	listVersion = 1
	maxListed   = 10_000 // beyond it the first entry is dropped
)

// Entry is what a [List] has; entries with the same key replace each other.
type Entry interface {
	comparable
	Key() string
}

// List is a list in a file, which is replaced with each change. It is safe for concurrent use.
type List[E Entry] struct {
	file statefile.File[stored[E]]

	mu      sync.Mutex
	entries []E
}

type stored[E Entry] struct {
	Entries []E `json:"entries"`
}

// Read reads a list; one without a file is empty. loss says what is lost with the file, and damaged, which may be nil, is called if it was
// damaged.
func Read[E Entry](path, loss string, damaged func(statefile.Damage)) (*List[E], error) {
	l := &List[E]{file: statefile.File[stored[E]]{Path: path, Version: listVersion, Loss: loss, Damaged: damaged}}
	f, err := l.file.Read()
	if err != nil {
		return nil, err
	}
	l.entries = f.Entries
	return l, nil
}

// All returns the entries, the oldest first.
func (l *List[E]) All() []E {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// Put stores an entry.
func (l *List[E]) Put(e E) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.entries, func(x E) bool { return x.Key() == e.Key() })
	entries := slices.Clone(l.entries)
	switch {
	case i >= 0 && entries[i] == e:
		return nil
	case i >= 0:
		entries[i] = e
	default:
		entries = append(entries, e)
	}
	return l.store(entries[max(len(entries)-maxListed, 0):])
}

// Remove removes the entry with a key, if there is one.
func (l *List[E]) Remove(key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	entries := slices.DeleteFunc(slices.Clone(l.entries), func(x E) bool { return x.Key() == key })
	if len(entries) == len(l.entries) {
		return nil
	}
	return l.store(entries)
}

// store writes the file. mu is held.
func (l *List[E]) store(entries []E) error {
	err := l.file.Write(stored[E]{entries})
	if err == nil {
		l.entries = entries
	}
	return err
}
