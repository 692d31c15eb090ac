package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/parleyhub/parley/internal/base/local"
)

const (
	listVersion = 1
	maxListed   = 10_000 // beyond it the first entry is dropped
)

// entry is what a list has; entries with the same name replace each other.
type entry interface {
	comparable
	name() string
}

// list is a list in a file, which is replaced with each change. It is safe for concurrent use.
type list[E entry] struct {
	path string

	mu      sync.Mutex
	entries []E
}

type listFile[E entry] struct {
	Version int `json:"version"`
	Entries []E `json:"entries"`
}

// readList reads a list; one without a file is empty. The error says what removing the file would lose.
func readList[E entry](path, loss string) (*list[E], error) {
	l := &list[E]{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	var f listFile[E]
	if err = json.Unmarshal(data, &f); err == nil && f.Version != listVersion {
		err = fmt.Errorf("its version is %d, not %d", f.Version, listVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove the file: %s", path, err, loss)
	}
	l.entries = f.Entries
	return l, nil
}

func (l *list[E]) all() []E {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// put stores an entry.
func (l *list[E]) put(e E) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.entries, func(x E) bool { return x.name() == e.name() })
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

// remove removes the entry with a name, if there is one.
func (l *list[E]) remove(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	entries := slices.DeleteFunc(slices.Clone(l.entries), func(x E) bool { return x.name() == name })
	if len(entries) == len(l.entries) {
		return nil
	}
	return l.store(entries)
}

// store writes the file. mu is held.
func (l *list[E]) store(entries []E) error {
	data, err := json.Marshal(listFile[E]{listVersion, entries})
	if err == nil {
		err = local.ReplaceFile(l.path, data)
	}
	if err == nil {
		l.entries = entries
	}
	return err
}
