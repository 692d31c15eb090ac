package ralph

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/text"
)

// Status is the state of an item.
type Status string

// The states of an item.
const (
	Waiting   Status = "open"
	Working   Status = "working"  // at an agent
	Checking  Status = "checking" // being validated
	Completed Status = "completed"
	GivenUp   Status = "given-up"
)

// Progress is a loop's state of an item.
type Progress struct {
	Text    string    `json:"text"`          // the first 200 bytes of the item's
	Sum     string    `json:"sum,omitempty"` // of the whole text, at the last attempt
	Status  Status    `json:"status"`
	Attempt int       `json:"attempt"`           // the present or the last one
	Ref     string    `json:"ref,omitempty"`     // the dispatcher's, of the present work
	Failure string    `json:"failure,omitempty"` // of the last attempt
	Since   time.Time `json:"since"`             // of the last change
}

// State is a loop's state file.
type State struct {
	Version int                  `json:"version"`
	Current string               `json:"current,omitempty"` // id of the present item, "" for none
	Items   map[string]*Progress `json:"items"`
	Updated time.Time            `json:"updated"`
}

const (
	stateVersion = 1
	maxState     = 64 << 20 // bytes
)

func fileOfState(path string) statefile.Raw { return statefile.Edited(path) }

// ReadState returns the state in a file, an empty one where there is no file. A flipped bit of the file is corrected by its copy, path + ".copy".
func ReadState(path string) (*State, error) {
	s := &State{Version: stateVersion, Items: make(map[string]*Progress)}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil && info.Size() > maxState {
		err = errors.New("it is too large")
	}
	var data []byte
	if err == nil {
		data, _, err = fileOfState(path).Peek()
	}
	if err != nil {
		return nil, wrap(CodeState, err, "the state file cannot be read")
	}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, wrap(CodeState, err, "the state file %s is damaged; remove it to start again", path)
	}
	if s.Version != stateVersion {
		return nil, wrap(CodeState, nil, "the state file %s has version %d, this program reads %d", path, s.Version, stateVersion)
	}
	maps.DeleteFunc(s.Items, func(_ string, p *Progress) bool { return p == nil })
	if s.Items == nil {
		s.Items = make(map[string]*Progress)
	}
	return s, nil
}

// forget bounds the state, since a queue never ends: it removes the items that were completed first.
func (s *State) forget() {
	if len(s.Items) <= MaxItems {
		return
	}
	var done []string
	for id, p := range s.Items {
		if p.Status == Completed {
			done = append(done, id)
		}
	}
	slices.SortFunc(done, func(a, b string) int { return s.Items[a].Since.Compare(s.Items[b].Since) })
	for _, id := range done[:min(len(done), len(s.Items)-MaxItems+MaxItems/10)] {
		delete(s.Items, id)
	}
}

// reopen makes the items that were given up open again.
func (s *State) reopen() {
	for _, p := range s.Items {
		if p.Status == GivenUp {
			p.Status, p.Attempt, p.Ref = Waiting, 0, ""
		}
	}
}

func (s *State) write(path string) error {
	s.forget()
	s.Updated = time.Now().UTC()
	data, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = fileOfState(path).Write(append(data, '\n'))
	}
	if err != nil {
		return wrap(CodeState, err, "the state file cannot be written")
	}
	return nil
}

func (s *State) of(item Item) *Progress {
	p := s.Items[item.ID]
	if p == nil {
		p = &Progress{Status: Waiting}
		p.note(item)
		s.Items[item.ID] = p
	}
	return p
}

// note stores the item's present text.
func (p *Progress) note(item Item) { p.Text, p.Sum = text.Clip(item.Text, 200), sumOf(item) }

// about reports whether the item's text is that of the last attempt.
func (p *Progress) about(item Item) bool { return p.Sum == "" || p.Sum == sumOf(item) }

func sumOf(item Item) string {
	sum := sha256.Sum256([]byte(item.Text))
	return hex.EncodeToString(sum[:8])
}

// Running reports whether a loop of any process uses a state file.
func Running(stateFile string) (bool, error) {
	if _, err := os.Stat(lockOf(stateFile)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	l := flock.New(lockOf(stateFile))
	free, err := l.TryLock()
	if err != nil {
		return false, wrap(CodeState, err, "the lock of the state file cannot be read")
	}
	return !free, l.Unlock()
}

// Stop requests that the loop of any process that uses a state file stops. It does not
// wait for that. Without such a loop it does nothing.
func Stop(stateFile string) error {
	running, err := Running(stateFile)
	if err != nil || !running {
		return err
	}
	if err := writeFile(stopOf(stateFile), []byte("stop\n"), 0o600, nil); err != nil {
		return wrap(CodeState, err, "the request to stop cannot be written")
	}
	return nil
}

func lockOf(stateFile string) string { return stateFile + ".lock" }
func stopOf(stateFile string) string { return stateFile + ".stop" }

// acquire locks the state file.
func acquire(stateFile string) (release func() error, err error) {
	if err := os.MkdirAll(filepath.Dir(stateFile), 0o700); err != nil {
		return nil, wrap(CodeState, err, "the state file has no directory")
	}
	l := flock.New(lockOf(stateFile), flock.SetPermissions(0o600))
	free, err := l.TryLock()
	if err != nil {
		return nil, wrap(CodeState, err, "the state file cannot be locked")
	}
	if !free {
		return nil, wrap(CodeRunning, nil, "another loop uses %s", stateFile)
	}
	if err := os.Remove(stopOf(stateFile)); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an earlier loop
		return nil, errors.Join(wrap(CodeState, err, "an old request to stop cannot be removed"), l.Unlock())
	}
	return l.Unlock, nil
}
