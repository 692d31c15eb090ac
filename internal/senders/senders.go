package senders

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/hub"
)

const (
	version = 1
	// maxSenders bounds the senders that are always allowed; beyond it the first one is not any more.
	maxSenders = 1000
)

// Allowed is a sender that the user has always allowed.
type Allowed struct {
	ID     string     `json:"id"` // derived from the sender's kind and id
	Sender hub.Sender `json:"sender"`
	Since  time.Time  `json:"since"`
}

// list has the senders that the user has always allowed, in a file. It is safe for concurrent use.
type list struct {
	file statefile.File[stored]

	mu      sync.Mutex
	senders []Allowed // in the order in which they were allowed
	waiting map[string]*permission
}

// permission is a sender whose tasks wait for the user.
type permission struct {
	granted chan struct{} // closed when the user has always allowed the sender
	waiting int
}

type stored struct {
	Senders []Allowed `json:"senders"`
}

func read(path string, damaged func(statefile.Damage)) (*list, error) {
	s := &list{waiting: make(map[string]*permission), file: statefile.File[stored]{Path: path, Version: version, Valid: stored.check,
		Loss: "the user is asked again for each sender", Damaged: damaged}}
	f, err := s.file.Read()
	if err != nil {
		return nil, err
	}
	for i, x := range f.Senders {
		f.Senders[i].ID = idOf(x.Sender)
	}
	s.senders = f.Senders
	return s, nil
}

func (f stored) check() error {
	for _, x := range f.Senders {
		if x.Sender.Own() {
			return fmt.Errorf("%q is no sender", x.ID)
		}
	}
	return nil
}

// idOf returns the id by which people name a sender.
func idOf(s hub.Sender) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %s", len(s.Kind), s.Kind, s.ID))
	return hex.EncodeToString(sum[:6])
}

func (s *list) all() []Allowed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.senders)
}

// wait reports whether the user has always allowed a sender. If not, granted is closed when that changes; the caller ends
// its wait with unwait in either case.
func (s *list) wait(from hub.Sender) (granted <-chan struct{}, allowed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := idOf(from)
	if s.index(id) >= 0 {
		return nil, true
	}
	p := s.waiting[id]
	if p == nil {
		p = &permission{granted: make(chan struct{})}
		s.waiting[id] = p
	}
	p.waiting++
	return p.granted, false
}

// unwait ends a wait for granted, which may be nil.
func (s *list) unwait(from hub.Sender, granted <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := idOf(from)
	p := s.waiting[id]
	if p == nil || p.granted != granted {
		return
	}
	if p.waiting--; p.waiting == 0 {
		delete(s.waiting, id)
	}
}

func (s *list) index(id string) int {
	return slices.IndexFunc(s.senders, func(x Allowed) bool { return x.ID == id })
}

// add always allows a sender, and permits its tasks that wait.
func (s *list) add(from hub.Sender) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := idOf(from)
	if s.index(id) < 0 {
		list := append(slices.Clone(s.senders), Allowed{ID: id, Sender: from, Since: time.Now().UTC().Truncate(time.Second)})
		if err := s.store(list[max(len(list)-maxSenders, 0):]); err != nil {
			return err
		}
	}
	if p := s.waiting[id]; p != nil {
		close(p.granted)
		delete(s.waiting, id)
	}
	return nil
}

// remove revokes the permission of the sender whose id begins with a prefix, which must be unique.
func (s *list) remove(prefix string) (Allowed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []Allowed
	for _, x := range s.senders {
		if prefix != "" && strings.HasPrefix(x.ID, prefix) {
			found = append(found, x)
		}
	}
	switch len(found) {
	case 0:
		return Allowed{}, &hub.Error{Code: hub.CodeInvalid, Subject: "id", Message: fmt.Sprintf("no sender with the id %.64q is always allowed", prefix),
			Remedy: "list them with: " + local.Program() + " senders"}
	case 1:
		i := s.index(found[0].ID)
		return found[0], s.store(slices.Delete(slices.Clone(s.senders), i, i+1))
	}
	return Allowed{}, &hub.Error{Code: hub.CodeInvalid, Subject: "id", Message: fmt.Sprintf("%d senders have ids that begin with %.64q", len(found), prefix),
		Remedy: "give more of the id"}
}

// store writes the file. mu is held: the order of the writes is that of the changes.
func (s *list) store(list []Allowed) error {
	err := s.file.Write(stored{list})
	if err == nil {
		s.senders = list
	}
	return err
}
