package agentnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/bus"
)

// identityGrace is how long an identity that was just taken counts as live
// though the registry does not show it yet.
const identityGrace = 30 * time.Second

// identityRecord is who has a GUID: an agent type of a project on a host has
// one for each agent of it that lives at the same time (REQ-TOOL-REGISTER-009).
type identityRecord struct {
	GUID     string `json:"guid"`
	Holder   string `json:"holder"` // of the process, so that there is one
	Since    string `json:"since"`
	Place    string `json:"place,omitempty"`    // where the holder's lock is
	Released bool   `json:"released,omitempty"` // the holder is done with it
	Hub      string `json:"hub,omitempty"`      // at a cluster: the mark of the hub that says who the holder is
}

// identity is a GUID that this process has.
type identity struct {
	guid     string
	cell     cell // none of a person, whose identity is nobody else's
	holder   string
	record   identityRecord
	revision uint64
	written  time.Time    // when, to refresh it before it expires
	slot     string       // names the lock, and what is remembered of it; none of a person
	lock     *flock.Flock // nil without a state directory
	reused   bool
}

// takeIdentity returns the GUID of an agent that is gone, of the same type in
// the same project on the same host, or else a new one.
func (n *Network) takeIdentity(ctx context.Context, b *bus.Bus, agentType string) (*identity, error) {
	if n.cfg.GUID != "" {
		return n.takeFixed(ctx, b)
	}
	if n.cfg.Place != nil {
		return n.placed(n.cfg.Place), nil
	}
	key := digest(n.cfg.Hostname, n.cfg.ProjectPath, agentType)
	for slot := range maxAgentsOnThisHost {
		name := fmt.Sprintf("%s.%d", key, slot)
		id, err := n.takeSlot(ctx, b, "slot."+name, name, uuid.NewString())
		if err != nil || id != nil {
			return id, err
		}
	}
	return nil, tooManyAgents(agentType)
}

func tooManyAgents(agentType string) error {
	return &Error{Code: ConflictError,
		Message: fmt.Sprintf("There are already %d agents of the type %s in this project on this computer.", maxAgentsOnThisHost, quote(agentType)),
		Remedy:  "End some of them, or use another agent type."}
}

// takeFixed is for agents that the server confines to one GUID.
func (n *Network) takeFixed(ctx context.Context, b *bus.Bus) (*identity, error) {
	id, err := n.takeSlot(ctx, b, "fixed."+n.cfg.GUID, "fixed."+n.cfg.GUID, n.cfg.GUID)
	if err == nil && id == nil {
		return nil, &Error{Code: ConflictError,
			Message: fmt.Sprintf("Another process is registered with the GUID %s of the configuration.", n.cfg.GUID),
			Remedy:  "End it, or give this agent a GUID (crossComputer.agentGuid) and a credential of its own."}
	}
	return id, err
}

// takeSlot returns nil if a live agent has the slot.
func (n *Network) takeSlot(ctx context.Context, b *bus.Bus, key, lockName, guid string) (*identity, error) {
	lock, free, err := n.lockSlot(lockName)
	if err != nil || !free {
		return nil, err
	}
	recalled := n.recallGUID(lockName)
	id, err := n.takeRecord(ctx, b, n.identityCell(key), or(recalled, guid), recalled != "", lock != nil)
	if id == nil {
		unlock(lock)
		return nil, err
	}
	id.slot, id.lock = lockName, lock
	n.noteGUID(id)
	return id, nil
}

func (n *Network) identityCell(key string) cell {
	return cell{bucketStream + n.identityBucket(), bucketKeys + n.identityBucket() + "." + key}
}

// takeRecord writes this process into an identity's record, if nobody live is
// there. The GUID is that of the record, unless the computer remembers another.
func (n *Network) takeRecord(ctx context.Context, b *bus.Bus, c cell, guid string, recalled, locked bool) (*identity, error) {
	v, err := c.read(ctx, b)
	if err != nil {
		return nil, connectionError(err)
	}
	var before identityRecord
	reused := v.there() && json.Unmarshal(v.data, &before) == nil && uuid.Validate(before.GUID) == nil
	if reused {
		if !recalled {
			guid = before.GUID
		}
		live, err := n.holds(ctx, b, before, locked)
		if err != nil || live {
			return nil, err
		}
	}
	now := n.clock.now()
	record := identityRecord{GUID: guid, Holder: uuid.NewString(), Since: timestamp(now)}
	if locked {
		record.Place = n.place()
	}
	id := &identity{guid: guid, cell: c, holder: record.Holder, record: record, written: now, reused: reused || recalled}
	data, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	id.revision, err = c.write(ctx, b, data, v.revision)
	if errors.Is(err, errConflict) {
		return nil, nil // another process was quicker
	}
	if err != nil {
		return nil, connectionError(err)
	}
	return id, nil
}

// person is the identity of the user on this computer, the same in every process.
func (n *Network) person() *identity {
	name := "parley:person:" + n.cfg.Hostname + "/" + n.cfg.Username
	return &identity{guid: uuid.NewSHA1(uuid.NameSpaceURL, []byte(name)).String(), written: n.clock.now(), reused: true}
}

// holds says whether the process that an identity's record names still lives.
func (n *Network) holds(ctx context.Context, b *bus.Bus, r identityRecord, locked bool) (bool, error) {
	switch {
	case r.Released:
		return false, nil
	case locked && r.Place == n.place():
		return false, nil // its lock is ours now
	case n.clock.now().Sub(parseTime(r.Since)) < identityGrace:
		return true, nil
	}
	s, err := n.seat(ctx, b, r.GUID)
	if err != nil {
		return false, connectionError(err)
	}
	return s != nil && n.liveness(*s) != Gone, nil
}

// place tells this state directory from those of other computers and users.
func (n *Network) place() string { return digest(n.cfg.Hostname, n.cfg.Username, n.cfg.StateDir) }

// lockSlot takes the lock of a slot, which ends with the process. Without a
// state directory every slot is free here.
func (n *Network) lockSlot(name string) (lock *flock.Flock, free bool, err error) {
	if n.cfg.StateDir == "" {
		return nil, true, nil
	}
	fail := func(err error) error {
		return &Error{Code: InternalError, Message: fmt.Sprintf("The directory %s cannot be used.", n.cfg.StateDir),
			Remedy: "Make it writable.", Err: err}
	}
	if err := os.MkdirAll(n.cfg.StateDir, 0o700); err != nil {
		return nil, false, fail(err)
	}
	lock = flock.New(filepath.Join(n.cfg.StateDir, name+".lock"), flock.SetPermissions(0o600))
	free, err = lock.TryLock()
	if err != nil {
		return nil, false, fail(err)
	}
	return lock, free, nil
}

func unlock(lock *flock.Flock) {
	if lock != nil {
		// The file stays: to remove it would free it under one who waits for it.
		_ = lock.Unlock() // the end of the process frees it at the latest
	}
}

// keep makes sure that the identity is still this process's, and refreshes its
// record before it expires.
func (id *identity) keep(ctx context.Context, n *Network, b *bus.Bus) error {
	if id.holder == "" {
		return nil
	}
	v, err := id.cell.read(ctx, b)
	if err != nil {
		return err
	}
	var now identityRecord
	if v.there() {
		if err := json.Unmarshal(v.data, &now); err != nil {
			return err
		}
		if now.Holder != id.holder {
			return errReplaced
		}
	}
	if v.there() && !id.due(n) {
		return nil
	}
	data, err := json.Marshal(id.record)
	if err != nil {
		return err
	}
	if _, err := id.cell.write(ctx, b, data, v.revision); err != nil {
		return err
	}
	id.written = n.clock.now()
	return nil
}

// due says that the identity's record has to be refreshed, lest it expires.
func (id *identity) due(n *Network) bool {
	return n.clock.now().Sub(id.written) >= n.cfg.RegistryTTL/identityRefreshesPerLife
}

// release lets the next process of this kind have the identity at once.
func (id *identity) release(ctx context.Context, b *bus.Bus) error {
	defer unlock(id.lock)
	if id.holder == "" {
		return nil
	}
	_, err := id.cell.change(ctx, b, func(v value) ([]byte, error) {
		var now identityRecord
		if !v.there() || json.Unmarshal(v.data, &now) != nil || now.Holder != id.holder {
			return nil, nil
		}
		now.Released = true
		return json.Marshal(now)
	})
	return err
}
