package registry

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/statefile"
)

// The computer remembers what agents have registered themselves as, by the conversation of their program in which they did. A program
// that begins anew in a conversation does not tell its model: its agent is registered by itself, as the agent had done it.

const (
	maxSaid     = 64 // conversations of a kind of program in a project
	maxSaidSize = 64 << 10
)

// said is what an agent has registered itself as, in a conversation.
type said struct {
	Conversation       string     `json:"conversation"`
	AgentType          string     `json:"agentType"`
	Scope              Scope      `json:"scope"`
	Visibility         Visibility `json:"visibility,omitempty"`
	Capabilities       []string   `json:"capabilities,omitempty"`
	MaxConcurrentTasks int        `json:"maxConcurrentTasks,omitempty"`
}

// Say remembers a registration that an agent has asked for, in its conversation. Without a conversation it does nothing. hub tells the
// user's hubs apart. cfg has the directory, the host and the project.
func Say(ctx context.Context, cfg store.Config, hub string, r Registration) error {
	return changeSaid(ctx, cfg, hub, r, &said{r.Conversation, r.AgentType, r.Scope, r.Visibility, r.Capabilities, r.MaxConcurrentTasks})
}

// Unsay forgets what was registered in the conversation of a registration.
func Unsay(ctx context.Context, cfg store.Config, hub string, r Registration) error {
	return changeSaid(ctx, cfg, hub, r, nil)
}

// Said returns the registration of an agent that is registered by itself as it had registered itself in the same conversation. ok is
// false if it had not.
func Said(cfg store.Config, hub string, r Registration) (_ Registration, ok bool) {
	if !r.talks() {
		return r, false
	}
	all, _ := readSaid(saidBase(cfg, hub, r.Vendor)+".json", peek)
	i := slices.IndexFunc(all, func(s said) bool { return s.Conversation == r.Conversation })
	if i < 0 {
		return r, false
	}
	as, s := r, all[i]
	as.AgentType, as.Scope, as.Visibility, as.Capabilities, as.MaxConcurrentTasks = s.AgentType, s.Scope, s.Visibility, s.Capabilities, s.MaxConcurrentTasks
	if r.Handle == r.DefaultHandle() { // no handle was chosen
		as.Handle = as.DefaultHandle()
	}
	if as.Check() != nil {
		return r, false
	}
	return as, true
}

// talks reports whether it is known which conversation a registration is for.
func (r Registration) talks() bool {
	return r.Vendor != "" && r.Conversation != "" && len(r.Conversation) <= maxConversation
}

// changeSaid replaces what is remembered of a conversation; nil forgets it. The latest is the last.
func changeSaid(ctx context.Context, cfg store.Config, hub string, r Registration, to *said) error {
	if !r.talks() {
		return nil
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return err
	}
	base := saidBase(cfg, hub, r.Vendor)
	lock, err := lockFor(ctx, base)
	if err != nil {
		return err
	}
	defer unlock(lock)
	before, err := readSaid(base+".json", statefile.Raw.Read)
	if err != nil {
		return err
	}
	all := slices.DeleteFunc(slices.Clone(before), func(s said) bool { return s.Conversation == r.Conversation })
	if to != nil {
		all = append(all, *to)
	} else if len(all) == len(before) {
		return nil
	}
	data, err := encodeSaid(all)
	if err != nil {
		return err
	}
	return saidFile(base + ".json").Write(data)
}

// encodeSaid leaves out the oldest of what would be too much.
func encodeSaid(all []said) ([]byte, error) {
	for all = all[max(len(all)-maxSaid, 0):]; ; all = all[1:] {
		data, err := json.Marshal(all)
		if err != nil || len(data) <= maxSaidSize || len(all) == 0 {
			return data, err
		}
	}
}

// readSaid returns nothing of a file that is damaged and has no copy: it is written anew. Only with the file's lock read may be its Read.
// The error is a shortage.
func readSaid(path string, read func(statefile.Raw) ([]byte, error)) (all []said, err error) {
	if !isOurs(path, maxSaidSize) {
		return nil, nil
	}
	data, err := read(saidFile(path))
	if statefile.IsShortage(err) {
		return nil, err
	}
	if err != nil || json.Unmarshal(data, &all) != nil {
		return nil, nil
	}
	return all, nil
}

func saidBase(cfg store.Config, hub, vendor string) string {
	return filepath.Join(cfg.StateDir, saidPrefix+store.Digest(hub, cfg.Hostname, cfg.ProjectPath, vendor))
}
