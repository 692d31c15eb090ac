package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/hub/runner"
)

const (
	keptVersion = 1
	maxKept     = 10_000 // beyond it the first one is not kept
)

// kept is a durable agent of another hub. It is registered again when the hub starts, whether its hub can be reached or not:
// its tasks wait for it.
type kept struct {
	Local string     `json:"id"` // at this hub
	ID    string     `json:"globalId"`
	Name  string     `json:"name"`
	Tier  agent.Tier `json:"tier"`
}

// keeper stores the durable agents in a file. It is safe for concurrent use.
type keeper struct {
	path string

	mu   sync.Mutex
	list []kept
}

type keptFile struct {
	Version int    `json:"version"`
	Agents  []kept `json:"agents"`
}

func readKept(path string) (*keeper, error) {
	k := &keeper{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return nil, err
	}
	var f keptFile
	if err = json.Unmarshal(data, &f); err == nil && f.Version != keptVersion {
		err = fmt.Errorf("its version is %d, not %d", f.Version, keptVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove the file: tasks for peers' sessions wait until these announce themselves then", path, err)
	}
	k.list = slices.DeleteFunc(f.Agents, func(x kept) bool { return !runner.ValidID(x.Local) })
	return k, nil
}

func keptPath(dataDir string) string { return filepath.Join(dataDir, "peer-sessions.json") }

func (k *keeper) all() []kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.list)
}

// keep stores an agent, or what has changed of it.
func (k *keeper) keep(x kept) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.list, func(y kept) bool { return y.Local == x.Local })
	list := slices.Clone(k.list)
	switch {
	case i >= 0 && list[i] == x:
		return nil
	case i >= 0:
		list[i] = x
	default:
		list = append(list, x)
	}
	return k.store(list[max(len(list)-maxKept, 0):])
}

func (k *keeper) forget(local string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(k.list), func(x kept) bool { return x.Local == local })
	if len(list) == len(k.list) {
		return nil
	}
	return k.store(list)
}

// store writes the file. mu is held.
func (k *keeper) store(list []kept) error {
	data, err := json.Marshal(keptFile{keptVersion, list})
	if err == nil {
		err = local.ReplaceFile(k.path, data)
	}
	if err == nil {
		k.list = list
	}
	return err
}

// restore registers the durable agents of the hub's last run.
func (p *Peers) restore() {
	for _, x := range p.kept.all() {
		name, key, ok := signedcard.ParseID(x.ID)
		peer := ""
		for _, e := range p.allow.Entries() {
			if e.Key == key {
				peer = NameOf(e)
			}
		}
		if !ok || peer == "" || x.Local != peer+"."+name {
			p.forget(x.Local)
			continue
		}
		r := &remote{peers: p, id: x.ID, local: x.Local, peer: peer, durable: true}
		p.register(r, agent.Card{ID: x.ID, Name: x.Name, Tier: x.Tier})
	}
}

// keep stores a durable agent, so that its tasks go on after a restart.
func (p *Peers) keep(r *remote) {
	if !r.durable {
		return
	}
	r.mu.Lock()
	x := kept{Local: r.local, ID: r.id, Name: r.card.Name, Tier: r.card.Tier}
	r.mu.Unlock()
	if err := p.kept.keep(x); err != nil {
		p.log.Error("a peer's session cannot be stored; its tasks may wait after a restart", "agent", r.local, "error", err)
	}
}

func (p *Peers) forget(local string) {
	if err := p.kept.forget(local); err != nil {
		p.log.Warn("the list of the peers' sessions cannot be stored", "error", err)
	}
}

// busy reports whether an agent has tasks that must not be lost.
func (p *Peers) busy(r *remote) bool {
	info, err := p.o.Hub.Agent(r.local)
	return r.durable && err == nil && info.Running+info.Queued > 0
}
