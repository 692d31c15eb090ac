package sessions

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/hub/runner"
)

const (
	namesVersion = 1
	// maxNames bounds the names that are kept; beyond it the first one given is not.
	maxNames = 10_000
)

// named is a session with its name.
type named struct {
	GUID  string    `json:"guid"`
	Name  string    `json:"name"`
	Given time.Time `json:"given"`
	// Called is the handle that people have given the session; "" for its own.
	Called string `json:"called,omitempty"`

	about
	Capabilities []string  `json:"capabilities,omitempty"`
	Seen         time.Time `json:"seen,omitzero"` // when it was last there; zero while it is
}

// about is what the registry says of a session, in texts.
type about struct {
	Handle     string `json:"handle,omitempty"`
	Type       string `json:"type,omitempty"`
	Project    string `json:"project,omitempty"`
	Vendor     string `json:"vendor,omitempty"`
	Folder     string `json:"folder,omitempty"`
	Computer   string `json:"computer,omitempty"`
	Visibility string `json:"visibility,omitempty"`
}

// describe takes over what the registry says of a session, and when it was last there; zero while it is. It reports whether that is new.
func (x *named) describe(e *registry.Entry, seen time.Time) (changed bool) {
	says := about{e.Handle, e.AgentType, e.ProjectID, e.Vendor, e.Project, e.Hostname, string(e.Visibility)}
	seen = seen.UTC().Round(0)
	changed = x.about != says || !slices.Equal(x.Capabilities, e.Capabilities) || !x.Seen.Equal(seen)
	if changed {
		x.about, x.Capabilities, x.Seen = says, e.Capabilities, seen
	}
	return changed
}

// entry is the reverse of describe, for a hub that has just started.
func (x *named) entry(started time.Time) *registry.Entry {
	seen := x.Seen
	if seen.IsZero() { // it was there when the last hub ended
		seen = started
	}
	return &registry.Entry{GUID: x.GUID, Handle: x.Handle, AgentType: x.Type, ProjectID: x.Project, Vendor: x.Vendor, Project: x.Folder, Hostname: x.Computer,
		Visibility: registry.Visibility(x.Visibility), Capabilities: x.Capabilities, LastHeartbeat: store.Timestamp(seen)}
}

// names are the names of the sessions, in a file: a session keeps its name as long as the registry remembers it. They are
// safe for concurrent use.
type names struct {
	file statefile.File[namesFile]

	mu   sync.Mutex
	list []named // in the order in which they were given
}

type namesFile struct {
	Sessions []named `json:"sessions"`
}

func readNames(path string, damaged func(statefile.Damage)) (*names, error) {
	n := &names{file: statefile.File[namesFile]{Path: path, Version: namesVersion, Valid: namesFile.check, Loss: "sessions get new names", Damaged: damaged}}
	f, err := n.file.Read()
	if err != nil {
		return nil, err
	}
	n.list = f.Sessions
	return n, nil
}

func (f namesFile) check() error {
	for _, x := range f.Sessions {
		if !runner.ValidID(x.Name) {
			return fmt.Errorf("%q is not a name", x.Name)
		}
	}
	return nil
}

func (n *names) all() []named {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}

// of returns a session with its name; ok is false if it has none.
func (n *names) of(guid string) (x named, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := n.index(guid)
	if i < 0 {
		return x, false
	}
	return n.list[i], true
}

func (n *names) index(guid string) int {
	return slices.IndexFunc(n.list, func(x named) bool { return x.GUID == guid })
}

// give gives each session without a name one after its handle that no other agent has. The file is written once for all of them.
func (n *names) give(entries []*registry.Entry, taken func(string) bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := slices.Clone(n.list)
	known, used := make(map[string]bool, len(list)), make(map[string]bool, len(list))
	for _, x := range list {
		known[x.GUID], used[x.Name] = true, true
	}
	for _, e := range entries {
		if known[e.GUID] {
			continue
		}
		x := named{GUID: e.GUID, Given: time.Now().UTC()}
		x.describe(e, time.Time{})
		x.Name = runner.FreeID(baseOf(e), func(name string) bool { return used[name] || taken(name) })
		known[x.GUID], used[x.Name] = true, true
		list = append(list, x)
	}
	if len(list) == len(n.list) {
		return nil
	}
	return n.store(list[max(len(list)-maxNames, 0):])
}

// describe stores what is known of the sessions now, if that is new. of returns it for a GUID; see [named.describe].
func (n *names) describe(of func(guid string) (e *registry.Entry, seen time.Time, ok bool)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []named // with the changes; nil without any
	for i := range n.list {
		x := n.list[i]
		e, seen, ok := of(x.GUID)
		if !ok || !x.describe(e, seen) {
			continue
		}
		if list == nil {
			list = slices.Clone(n.list)
		}
		list[i] = x
	}
	if list == nil {
		return nil
	}
	return n.store(list)
}

// call changes what people call a session.
func (n *names) call(guid, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := n.index(guid)
	if i < 0 {
		return nil // it has just been removed
	}
	list := slices.Clone(n.list)
	list[i].Called = name
	return n.store(list)
}

// forget frees the name of a session.
func (n *names) forget(guid string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := n.index(guid)
	if i < 0 {
		return nil
	}
	return n.store(slices.Delete(slices.Clone(n.list), i, i+1))
}

// store writes the file. mu is held: the order of the writes is that of the changes.
func (n *names) store(list []named) error {
	err := n.file.Write(namesFile{list})
	if err == nil {
		n.list = list
	}
	return err
}

// baseOf returns the name that a session would have if no other had it: its handle, unless that only repeats its type or
// vendor; then these with the project.
func baseOf(e *registry.Entry) string {
	handle := e.Handle
	if e.Project != "" && isUnnamed(e) {
		handle += "-" + e.Project
	}
	for _, text := range []string{handle, e.AgentType} {
		if name := runner.Identifier(text); name != "" {
			return name
		}
	}
	return "session"
}

// isUnnamed reports whether a session has not named itself: its handle only repeats what its program is.
func isUnnamed(e *registry.Entry) bool {
	return registry.IsProgram(e.Handle, e.Vendor) && registry.IsProgram(e.AgentType, e.Vendor)
}
