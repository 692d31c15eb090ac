package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/bus"
)

const (
	// identityGrace is how long a new identity counts as live though its agent is not in the registry yet.
	identityGrace       = 30 * time.Second
	maxAgentsOnThisHost = 64 // live agents of one type in one project
	refreshesPerTTL     = 24 // of an identity's record
)

// identityRecord records which process uses a GUID. An agent type of a project on a host has a
// slot with such a record for each of its agents that run at the same time.
type identityRecord struct {
	GUID     string `json:"guid"`
	Holder   string `json:"holder"` // identifies the process
	Since    string `json:"since"`
	Lock     string `json:"place,omitempty"`    // identifies the directory of the holder's lock
	Released bool   `json:"released,omitempty"` // the holder does not use it any more
	Hub      string `json:"hub,omitempty"`      // on a cluster: the ID of the hub that authenticates the holder
	Handle   string `json:"handle,omitempty"`   // digest of the holder's handle; entries of private agents show none
}

// Identity is a GUID that this process uses.
type Identity struct {
	guid    string
	key     store.Key // of the record
	holder  string    // "" without a record, as for a person
	record  identityRecord
	written time.Time    // when the record was written
	kind    string       // the type under which it is kept; "" if it is not known
	slot    string       // names the lock file and the file of the GUID; "" without them
	lock    *flock.Flock // nil without a state directory
	reused  bool
}

// TakeIdentity returns the GUID of an offline agent of the same kind or type, and of the same handle, in the same project on the same host,
// or a new one. It never returns that of an agent with another handle, whose mail would come with it.
func (g *Registry) TakeIdentity(ctx context.Context, r Registration) (*Identity, error) {
	b, err := g.Connected()
	switch {
	case err != nil:
		return nil, err
	case g.cfg.GUID != "":
		id, err := g.takeSlot(ctx, b, "fixed."+g.cfg.GUID, "fixed."+g.cfg.GUID, g.cfg.GUID, "")
		if err == nil && id == nil { // the server confines it to this one
			return nil, &store.Error{Code: store.ConflictError,
				Message: fmt.Sprintf("Another process is registered with the GUID %s of the configuration.", g.cfg.GUID),
				Remedy:  "End it, or give this agent a GUID (crossComputer.agentGuid) and a credential of its own."}
		}
		return id, err
	case g.cfg.Admission != nil:
		return g.AdmittedIdentity(*g.cfg.Admission), nil
	}
	return g.firstFree(r, func(kind string) ([]owner, error) {
		owners, err := g.recordedOwners(ctx, b, kind)
		return owners, store.AsError(err)
	}, func(slot, handle string) (*Identity, error) {
		return g.takeSlot(ctx, b, slotKey(slot), slot, uuid.NewString(), handle)
	})
}

// firstFree returns the first identity that take returns: of the slots of an agent of this role that is away, or else of any slot of the
// agent's kind.
func (g *Registry) firstFree(r Registration, ownersOf func(kind string) ([]owner, error), take func(slot, handle string) (*Identity, error)) (*Identity, error) {
	handle := store.Digest(r.Handle)
	try := func(kind string, known bool) (*Identity, error) {
		owners, err := ownersOf(kind)
		if err != nil {
			return nil, err
		}
		for _, slot := range preferredSlots(owners, handle) {
			if o := owners[slot]; known && (o.guid == "" || o.handle != handle) {
				continue
			}
			id, err := take(g.slotName(g.cfg.ProjectPath, kind, slot), handle)
			if err != nil || id != nil {
				if id != nil {
					id.kind = kind
				}
				return id, err
			}
		}
		return nil, nil
	}
	if kinds := r.kinds(); r.Known || len(kinds) > 1 {
		for _, kind := range kinds {
			if id, err := try(kind, true); err != nil || id != nil {
				return id, err
			}
		}
	}
	if r.Known {
		return nil, noneKnown(r)
	}
	id, err := try(r.kind(), false)
	if err == nil && id == nil {
		err = tooManyAgents(r.kind())
	}
	return id, err
}

func noneKnown(r Registration) error {
	return &store.Error{Code: store.NotFoundError, Message: fmt.Sprintf("No agent of the type %s is offline in this project on this computer.", store.Quote(r.AgentType)),
		Remedy: "Register without it."}
}

func (g *Registry) slotName(projectPath, agentType string, slot int) string {
	return fmt.Sprintf("%s.%d", store.Digest(g.cfg.Hostname, projectPath, agentType), slot)
}

// slotKey is the key of a slot's record in the identity bucket.
func slotKey(name string) string { return "slot." + name }

func tooManyAgents(agentType string) error {
	return &store.Error{Code: store.ConflictError,
		Message: fmt.Sprintf("There are already %d agents of the type %s in this project on this computer.", maxAgentsOnThisHost, store.Quote(agentType)),
		Remedy:  "End some of them, or use another agent type."}
}

// owner is the agent that had a slot last, by the slot's record or file; its GUID is empty if no agent had it.
type owner struct {
	guid   string
	handle string // digest; empty if it is not known: earlier versions did not store it
	at     time.Time
}

// isAnother reports whether the owner registered under another handle.
func (o owner) isAnother(handle string) bool {
	return o.guid != "" && o.handle != "" && o.handle != handle
}

// preferredSlots returns the slots in the order in which an agent tries them: those of its handle, those of an unknown
// handle, unused ones, and those of other agents, of which the one that is away the longest comes first.
func preferredSlots(owners []owner, handle string) []int {
	rank := func(o owner) int {
		switch {
		case o.guid == "":
			return 2
		case o.isAnother(handle):
			return 3
		case o.handle == "":
			return 1
		}
		return 0
	}
	slots := make([]int, len(owners))
	for i := range slots {
		slots[i] = i
	}
	slices.SortStableFunc(slots, func(a, b int) int {
		if c := cmp.Compare(rank(owners[a]), rank(owners[b])); c != 0 || rank(owners[a]) < 3 {
			return c
		}
		return owners[a].at.Compare(owners[b].at)
	})
	return slots
}

// recordedOwners returns the owners of the slots of a type. The files of this computer count before the records: they
// may be of agents that have not reached the bus.
func (g *Registry) recordedOwners(ctx context.Context, b *bus.Bus, agentType string) ([]owner, error) {
	ctx, cancel := context.WithTimeout(ctx, store.RequestTimeout)
	defer cancel()
	owners, err := g.rememberedOwners(agentType)
	if err != nil {
		return nil, err
	}
	all := g.cfg.IdentityKey(slotKey(store.Digest(g.cfg.Hostname, g.cfg.ProjectPath, agentType)) + ".*")
	stream, err := b.JetStream().Stream(ctx, all.Stream)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(all.Subject))
	if err != nil {
		return nil, err
	}
	for slot := range owners {
		key := g.cfg.IdentityKey(slotKey(g.slotName(g.cfg.ProjectPath, agentType, slot)))
		if owners[slot].guid != "" || info.State.Subjects[key.Subject] == 0 {
			continue
		}
		v, err := key.Get(ctx, b)
		if err != nil {
			return nil, err
		}
		if r, ok := decodeIdentity(v); ok {
			owners[slot] = owner{r.GUID, r.Handle, store.ParseTime(r.Since)}
		}
	}
	return owners, nil
}

// rememberedOwners returns the owners of the slots of a type by the files of this computer.
func (g *Registry) rememberedOwners(agentType string) (owners []owner, err error) {
	owners = make([]owner, maxAgentsOnThisHost)
	for slot := range owners {
		if owners[slot], err = g.rememberedOwner(g.slotName(g.cfg.ProjectPath, agentType, slot), peek); err != nil {
			return nil, err
		}
	}
	return owners, nil
}

// takeSlot returns nil if a live agent has the slot. guid is for a new identity.
func (g *Registry) takeSlot(ctx context.Context, b *bus.Bus, key, slot, guid, handle string) (*Identity, error) {
	lock, free, err := g.lockSlot(slot)
	if err != nil || !free {
		return nil, err
	}
	w := wanted{key: g.cfg.IdentityKey(key), guid: guid, handle: handle, locked: lock != nil}
	before, err := g.rememberedOwner(slot, statefile.Raw.Read)
	if err != nil {
		unlock(lock)
		return nil, err
	}
	if before.guid != "" {
		w.exactly = true
		if !before.isAnother(handle) {
			w.guid, w.reused = before.guid, true
		}
	}
	id, err := g.takeRecord(ctx, b, w)
	if id == nil {
		unlock(lock)
		return nil, err
	}
	id.slot, id.lock = slot, lock
	g.rememberGUID(id)
	return id, nil
}

// wanted is an identity that this process wants to have.
type wanted struct {
	key     store.Key // of its record
	guid    string    // for a new identity
	exactly bool      // guid counts, not that of the record
	reused  bool      // an agent of this kind had guid before
	handle  string    // digest
	locked  bool      // the process has the slot's lock
}

// takeAttempts is how often an identity is tried whose record another process changes. With the slot's lock that is only the former
// one, which releases it late, after an outage.
const takeAttempts = 5

// takeRecord writes this process into an identity's record, or returns nil if a live
// agent is there. The GUID is the record's, unless that is another agent's or exactly one is wanted.
func (g *Registry) takeRecord(ctx context.Context, b *bus.Bus, w wanted) (id *Identity, err error) {
	for range takeAttempts {
		id, err = g.tryRecord(ctx, b, w)
		if !w.locked || !errors.Is(err, store.ErrConflict) {
			break
		}
	}
	if errors.Is(err, store.ErrConflict) {
		return nil, nil // another process was faster
	}
	return id, err
}

func (g *Registry) tryRecord(ctx context.Context, b *bus.Bus, w wanted) (*Identity, error) {
	v, err := w.key.Get(ctx, b)
	if err != nil {
		return nil, store.AsError(err)
	}
	if before, ok := decodeIdentity(v); ok {
		live, err := g.isLive(ctx, b, before, w.locked)
		if err != nil || live {
			return nil, err
		}
		had := owner{guid: before.GUID, handle: before.Handle}
		if !w.exactly && !had.isAnother(w.handle) {
			w.guid = before.GUID
		}
		w.reused = w.reused || w.guid == before.GUID
	}
	now := g.Now()
	record := identityRecord{GUID: w.guid, Holder: uuid.NewString(), Since: store.Timestamp(now), Handle: w.handle}
	if w.locked {
		record.Lock = g.lockID()
	}
	_, err = w.key.Put(ctx, b, record, v.Revision)
	if errors.Is(err, store.ErrConflict) {
		return nil, err
	}
	if err != nil {
		return nil, store.AsError(err)
	}
	return &Identity{guid: w.guid, key: w.key, holder: record.Holder, record: record, written: now, reused: w.reused}, nil
}

// decodeIdentity decodes a record; ok is false if there is no valid one.
func decodeIdentity(v store.Value) (r identityRecord, ok bool) {
	return r, v.Exists() && json.Unmarshal(v.Data, &r) == nil && uuid.Validate(r.GUID) == nil
}

// PersonIdentity returns the identity of the user on this computer, the same in every process.
func (g *Registry) PersonIdentity() *Identity {
	id := g.BorrowIdentity(g.PersonGUID())
	id.reused = true
	return id
}

// PersonGUID returns the GUID of the user on this computer.
func (g *Registry) PersonGUID() string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte("parley:person:"+g.cfg.Hostname+"/"+g.cfg.Username)).String()
}

// BorrowIdentity returns an identity without a record: the caller ensures that no other process uses the GUID.
func (g *Registry) BorrowIdentity(guid string) *Identity {
	return &Identity{guid: guid, written: g.Now()}
}

// isLive reports whether the process that an identity's record names is live. locked
// says that the caller has the slot's lock.
func (g *Registry) isLive(ctx context.Context, b *bus.Bus, r identityRecord, locked bool) (bool, error) {
	switch {
	case r.Released, locked && r.Lock == g.lockID(): // a live one has the lock
		return false, nil
	case g.Now().Sub(store.ParseTime(r.Since)) < identityGrace:
		return true, nil
	}
	gone, err := g.IsGone(ctx, b, r.GUID)
	return err == nil && !gone, store.AsError(err)
}

// lockID identifies this state directory among all computers and users.
func (g *Registry) lockID() string {
	return store.Digest(g.cfg.Hostname, g.cfg.Username, g.cfg.StateDir)
}

// lockSlot acquires the lock of a slot, which the system releases when the process ends.
// Without a state directory every slot is free here.
func (g *Registry) lockSlot(name string) (lock *flock.Flock, free bool, err error) {
	if g.cfg.StateDir == "" {
		return nil, true, nil
	}
	if err = os.MkdirAll(g.cfg.StateDir, 0o700); err == nil {
		lock = flock.New(filepath.Join(g.cfg.StateDir, name+".lock"), flock.SetPermissions(0o600))
		free, err = lock.TryLock()
	}
	if statefile.IsShortage(err) {
		return nil, false, store.AsError(err)
	}
	if err != nil {
		return nil, false, &store.Error{Code: store.InternalError, Message: fmt.Sprintf("The directory %s cannot be used.", g.cfg.StateDir),
			Remedy: "Make it writable.", Err: err}
	}
	return lock, free, nil
}

func unlock(lock *flock.Flock) {
	if lock != nil {
		// The file stays: removing it would free it under a process that waits for it.
		_ = lock.Unlock() // it ends with the process at the latest
	}
}

// Unlock frees the identity's lock, for an identity that no agent uses.
func (id *Identity) Unlock() { unlock(id.lock) }

// keepUnder changes the handle in the record, which refresh writes then; "" changes nothing, and an identity without a handle is anybody's of
// its kind.
func (id *Identity) keepUnder(handle string) {
	if handle != "" && id.record.Handle != "" && id.record.Handle != handle {
		id.record.Handle, id.written = handle, time.Time{}
	}
}

// refresh checks that the identity is still this process's, and writes its record again before that expires.
func (id *Identity) refresh(ctx context.Context, g *Registry, b *bus.Bus) error {
	if id.holder == "" {
		return nil
	}
	v, err := id.key.Get(ctx, b)
	if err != nil {
		return err
	}
	if v.Exists() {
		var now identityRecord
		if err := json.Unmarshal(v.Data, &now); err != nil {
			return err
		}
		if now.Holder != id.holder {
			return store.ErrReplaced
		}
		if !id.due(g) {
			return nil
		}
	}
	if _, err := id.key.Put(ctx, b, id.record, v.Revision); err != nil {
		return err
	}
	id.written = g.Now()
	return nil
}

// due reports whether the record has to be written again, before it expires.
func (id *Identity) due(g *Registry) bool {
	return g.Now().Sub(id.written) >= g.cfg.RegistryTTL/refreshesPerTTL
}

// release frees the identity for the next process of this kind.
func (id *Identity) release(ctx context.Context, b *bus.Bus) error {
	defer unlock(id.lock)
	if id.holder == "" {
		return nil
	}
	_, err := id.key.Update(ctx, b, func(v store.Value) (any, error) {
		var now identityRecord
		if !v.Exists() || json.Unmarshal(v.Data, &now) != nil || now.Holder != id.holder {
			return nil, nil
		}
		now.Released = true
		return now, nil
	})
	return err
}

// While the bus cannot be reached, an agent's earlier GUID is not known. Therefore with Config.RememberGUIDs the
// state directory has the agents' GUIDs, valid for the registry's TTL.

func (g *Registry) guidFile(slot string) statefile.Raw {
	return guidFile(filepath.Join(g.cfg.StateDir, slot+guidSuffix))
}

// rememberedOwner returns the last owner of a slot; its GUID is empty if none is remembered. Only with the slot's lock read may be the
// file's Read. The error is a shortage: who the owner is may be known later.
func (g *Registry) rememberedOwner(slot string, read func(statefile.Raw) ([]byte, error)) (owner, error) {
	if !g.cfg.RememberGUIDs || g.cfg.StateDir == "" {
		return owner{}, nil
	}
	f := g.guidFile(slot)
	at, ok := f.Changed()
	if !ok || g.cfg.Now().Sub(at) > g.cfg.RegistryTTL {
		return owner{}, nil
	}
	f.Damaged = func(d statefile.Damage) {
		g.Log().Warn("the file with an agent's GUID was damaged", "file", d.Path, "reason", d.Reason, "kept", d.Kept, "restored", d.Restored)
	}
	data, err := read(f)
	switch {
	case statefile.IsShortage(err):
		return owner{}, store.AsError(err)
	case err != nil:
		g.Log().Warn("an agent's GUID cannot be read from the state directory", "error", err)
		return owner{}, nil
	}
	guid, handle, err := decodeGUIDFile(data)
	if err != nil {
		return owner{}, nil // the file was not written completely
	}
	return owner{guid, handle, at}, nil
}

// rememberGUID writes the owner of a slot whose lock the caller has.
func (g *Registry) rememberGUID(id *Identity) {
	if !g.cfg.RememberGUIDs || g.cfg.StateDir == "" || id.slot == "" {
		return
	}
	if err := g.guidFile(id.slot).Write([]byte(id.guid + "\n" + id.record.Handle + "\n")); err != nil {
		g.Log().Warn("an agent's GUID is not remembered on this computer", "guid", id.guid, "error", err)
	}
}

// StoredIdentity is TakeIdentity without the bus: it returns the GUID of an agent of this kind or type and handle that has ended,
// or else a new one. No other computer can have it, because an identity is that of a host and a directory.
func (g *Registry) StoredIdentity(r Registration) (*Identity, error) {
	switch {
	case g.cfg.Admission != nil:
		return g.AdmittedIdentity(*g.cfg.Admission), nil
	case g.cfg.GUID != "":
		if id, err := g.storedSlot("fixed."+g.cfg.GUID, ""); err != nil || id != nil {
			return id, err
		}
		return nil, tooManyAgents(r.kind())
	}
	return g.firstFree(r, g.rememberedOwners, g.storedSlot)
}

// storedSlot is takeSlot without the bus.
func (g *Registry) storedSlot(slot, handle string) (*Identity, error) {
	lock, free, err := g.lockSlot(slot)
	if err != nil || !free {
		return nil, err
	}
	before, err := g.rememberedOwner(slot, statefile.Raw.Read)
	if err != nil {
		unlock(lock)
		return nil, err
	}
	if before.isAnother(handle) {
		before = owner{}
	}
	id := g.BorrowIdentity(cmp.Or(g.cfg.GUID, before.guid, uuid.NewString()))
	id.slot, id.lock, id.reused, id.record.Handle = slot, lock, before.guid != "", handle
	g.rememberGUID(id)
	return id, nil
}

// claimIdentity writes the record of an identity that was assigned without the bus.
func (a *Agent) claimIdentity(ctx context.Context, b *bus.Bus) error {
	if err := a.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer a.turn.Release(1)
	have := a.identity
	key := have.slot
	switch {
	case have.lock == nil: // no lock proves that the slot is free
		key = "fixed." + a.guid
	case a.reg.cfg.GUID == "":
		key = slotKey(key)
	}
	id, err := a.reg.takeRecord(ctx, b, wanted{key: a.reg.cfg.IdentityKey(key), guid: a.guid, exactly: true, handle: have.record.Handle, locked: have.lock != nil})
	if err != nil {
		return err
	}
	if id == nil {
		return &store.Error{Code: store.ConflictError, Message: "Another process has this agent's identity in the network.",
			Remedy: "End it; otherwise the identity is free when three of its heartbeats are missing."}
	}
	have.key, have.holder, have.record, have.written = id.key, id.holder, id.record, id.written
	return nil
}
