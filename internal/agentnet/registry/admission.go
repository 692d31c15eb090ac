package registry

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// A hub that admits agents decides itself which identity each of them has. It writes
// their identity records, and relays their heartbeats.

// AdmissionRequest is an agent's request to a hub for admission.
type AdmissionRequest struct {
	AgentType   string
	ProjectPath string
	// Handle is the agent's name; empty if its program does not tell it.
	Handle string
	// GUID and Secret are those of the Admission that the agent had before the hub or its own
	// process was restarted; empty for a new agent.
	GUID, Secret string
	// LateInbox is set by programs that need no inbox before there is mail.
	LateInbox bool
}

// Check returns the request with its GUID in lower case, or a ValidationError.
func (r AdmissionRequest) Check() (AdmissionRequest, error) {
	err := store.CheckName("agent type", r.AgentType)
	if err == nil && r.GUID != "" { // it becomes part of subjects
		r.GUID, err = store.CheckGUID("guid", r.GUID)
	}
	return r, err
}

func (r AdmissionRequest) handleDigest() string {
	if r.Handle == "" {
		return ""
	}
	return store.Digest(r.Handle)
}

// ConnectionState is the state of an agent's connection to the hub's bus.
type ConnectionState int

// The connection states.
const (
	NeverConnected ConnectionState = iota // the hub has not admitted it since its start
	Connected                             // it is connected, or is about to be
	Disconnected                          // it was connected
)

// hubLock is in the place of a lock in the records of identities that a hub assigns.
const hubLock = "hub"

// Assign gives an agent the identity that it had: that of its GUID and secret, else a free one of its kind and handle. A
// new agent gets a new identity, never that of an agent with another handle. state reports the connection state of a GUID.
func (g *Registry) Assign(ctx context.Context, b *bus.Bus, r AdmissionRequest, state func(guid string) ConnectionState) (store.Admission, error) {
	var spare *slotRecord // of the agent that has been away the longest
	for slot := range maxAgentsOnThisHost {
		adm := store.Admission{GUID: uuid.NewString(), Slot: slotKey(g.slotName(r.ProjectPath, r.AgentType, slot)), Secret: rand.Text(), Handle: r.handleDigest()}
		key := g.cfg.IdentityKey(adm.Slot)
		v, err := key.Get(ctx, b)
		if err != nil {
			return adm, err
		}
		before, ok := decodeIdentity(v)
		switch {
		case ok && r.GUID == before.GUID:
			if before.Holder != store.Digest(r.Secret) {
				return adm, store.ErrReplaced
			}
			adm.GUID, adm.Secret, adm.Reused = r.GUID, r.Secret, true
			if !before.Released {
				return adm, nil
			}
		case ok:
			live, err := g.isAdmittedLive(ctx, b, before, state)
			if err != nil {
				return adm, err
			}
			if live {
				continue
			}
			if r.GUID != "" || before.Handle != adm.Handle {
				if spare == nil || before.Since < spare.since {
					spare = &slotRecord{adm.Slot, before.Since, v.Revision}
				}
				continue
			}
			adm.GUID, adm.Reused = before.GUID, true
		case r.GUID != "": // the bus has lost the record
			adm.GUID, adm.Secret, adm.Reused = r.GUID, r.Secret, true
			if err := g.checkHolder(ctx, b, adm); err != nil {
				return adm, err
			}
		}
		// A conflict is an agent of a project that the hub serves itself.
		if _, err := key.Put(ctx, b, g.admittedRecord(adm), v.Revision); !errors.Is(err, store.ErrConflict) {
			return adm, err
		}
	}
	return g.assignSpare(ctx, b, r, spare)
}

// slotRecord is a slot whose record may be replaced.
type slotRecord struct {
	slot, since string
	revision    uint64
}

// assignSpare gives an agent an identity of its own in the slot of one that is away. Without its record, that one comes
// back by the secret that it remembers.
func (g *Registry) assignSpare(ctx context.Context, b *bus.Bus, r AdmissionRequest, spare *slotRecord) (store.Admission, error) {
	if spare == nil {
		return store.Admission{}, tooManyAgents(r.AgentType)
	}
	adm := store.Admission{GUID: uuid.NewString(), Slot: spare.slot, Secret: rand.Text(), Handle: r.handleDigest()}
	if r.GUID != "" {
		adm.GUID, adm.Secret, adm.Reused = r.GUID, r.Secret, true
		if err := g.checkHolder(ctx, b, adm); err != nil {
			return adm, err
		}
	}
	_, err := g.cfg.IdentityKey(adm.Slot).Put(ctx, b, g.admittedRecord(adm), spare.revision)
	if errors.Is(err, store.ErrConflict) {
		err = tooManyAgents(r.AgentType)
	}
	return adm, err
}

func (g *Registry) isAdmittedLive(ctx context.Context, b *bus.Bus, r identityRecord, state func(string) ConnectionState) (bool, error) {
	if r.Lock == hubLock && !r.Released {
		if s := state(r.GUID); s != NeverConnected {
			return s == Connected, nil
		}
	}
	return g.isLive(ctx, b, r, false)
}

// ClaimForHub writes into the record of an identity on a cluster that the hub adm.HubID authenticates its holder. It
// fails with ErrReplaced if another hub does, or if somebody else has the GUID.
func (g *Registry) ClaimForHub(ctx context.Context, b *bus.Bus, adm store.Admission) error {
	record := g.admittedRecord(adm)
	_, err := g.cfg.IdentityKey(adm.Slot).Update(ctx, b, func(v store.Value) (any, error) {
		if !v.Exists() {
			return record, g.checkHolder(ctx, b, adm)
		}
		var before identityRecord
		if json.Unmarshal(v.Data, &before) != nil || before.Hub != adm.HubID && before.Holder != record.Holder {
			return nil, store.ErrReplaced
		}
		return record, nil
	})
	return err
}

// checkHolder returns ErrReplaced if the GUID of an identity without a record is that of an agent with another secret.
func (g *Registry) checkHolder(ctx context.Context, b *bus.Bus, adm store.Admission) error {
	v, err := g.knownKey(adm.GUID).Get(ctx, b)
	if err != nil {
		return err
	}
	var k known
	if v.Exists() && json.Unmarshal(v.Data, &k) == nil && k.Holder != "" && k.Holder == store.Digest(adm.Secret) {
		return nil
	}
	return g.checkUnused(ctx, b, adm.GUID)
}

// checkUnused returns ErrReplaced if an agent has the GUID.
func (g *Registry) checkUnused(ctx context.Context, b *bus.Bus, guid string) error {
	for _, key := range []store.Key{g.knownKey(guid), g.cfg.IdentityKey("fixed." + guid), g.cfg.EntryKey(guid)} {
		v, err := key.Get(ctx, b)
		if err != nil {
			return err
		}
		if v.Exists() {
			return store.ErrReplaced
		}
	}
	return nil
}

// HubSlot is the key of an identity's record on a cluster, where a hub authenticates the holder.
func HubSlot(guid string) string { return "hub." + guid }

// admittedRecord is the identity's record of an admission. Everybody may read it, so it
// holds only a hash of the secret.
func (g *Registry) admittedRecord(adm store.Admission) identityRecord {
	return identityRecord{GUID: adm.GUID, Holder: store.Digest(adm.Secret), Since: store.Timestamp(g.Now()), Lock: hubLock, Hub: adm.HubID, Handle: adm.Handle}
}

// AdmittedIdentity is the identity of an agent that a hub has admitted.
func (g *Registry) AdmittedIdentity(adm store.Admission) *Identity {
	id := g.BorrowIdentity(adm.GUID)
	id.key, id.record, id.reused = g.cfg.IdentityKey(adm.Slot), g.admittedRecord(adm), adm.Reused
	id.holder = id.record.Holder
	return id
}

// A heartbeat that changes only the time is relayed: the agent publishes it to its hub, which writes the time into
// the agent's entry. The hub answers only if it cannot, and then the agent writes its entry itself. So an idle agent
// receives nothing: a delivery takes 32 KiB of stack of the server's connection, which the server keeps until the
// garbage was collected several times.

// HeartbeatToken ends the subject on which an admitted agent publishes heartbeats.
const HeartbeatToken = ".pulse"

// relayHeartbeat publishes a heartbeat to the hub. It returns false if the agent has to write its entry itself: the
// entry has changed, the identity's record is due, or the hub cannot be reached.
func (a *Agent) relayHeartbeat(b *bus.Bus) bool {
	if !a.turn.TryAcquire(1) {
		return false // the entry is being written
	}
	defer a.turn.Release(1)
	a.mu.Lock()
	dirty := a.dirty
	a.mu.Unlock()
	return !dirty && !a.identity.due(a.reg) &&
		b.Conn().PublishRequest(a.reg.cfg.Admission.Control+HeartbeatToken, a.heartbeatAnswers(), nil) == nil
}

// heartbeatAnswers returns the subject on which the hub tells an agent to write its entry itself.
func (a *Agent) heartbeatAnswers() string { return HeartbeatAnswers(a.guid) }

// HeartbeatAnswers is the subject on which a hub answers heartbeats of an agent that failed.
func HeartbeatAnswers(guid string) string { return store.InboxPrefix(guid) + HeartbeatToken }

// RelayHeartbeat is the hub's side of a relayed heartbeat of an agent.
func (g *Registry) RelayHeartbeat(ctx context.Context, b *bus.Bus, guid string, m *nats.Msg) {
	ctx, cancel := context.WithTimeout(ctx, store.RequestTimeout)
	defer cancel()
	err := g.writeHeartbeat(ctx, b, guid)
	if err == nil || !strings.HasPrefix(m.Reply, store.InboxPrefix(guid)+".") { // the agent may not publish elsewhere, so neither does the hub for it
		return
	}
	g.Log().Debug("an agent has to write its entry itself", "guid", guid, "reason", err)
	if err := m.Respond(nil); err != nil && ctx.Err() == nil {
		g.Log().Warn("a heartbeat that failed was not answered", "guid", guid, "error", err)
	}
}

// Heartbeat writes a heartbeat into the entry of an agent whose connection rests. After an error the agent has to write its entry itself.
func (g *Registry) Heartbeat(ctx context.Context, guid string) error {
	ctx, cancel := context.WithTimeout(ctx, store.RequestTimeout)
	defer cancel()
	b, err := g.Connected()
	if err != nil {
		return err
	}
	return g.writeHeartbeat(ctx, b, guid)
}

// writeHeartbeat writes the present time into an agent's entry.
func (g *Registry) writeHeartbeat(ctx context.Context, b *bus.Bus, guid string) error {
	_, err := g.cfg.EntryKey(guid).Update(ctx, b, func(v store.Value) (any, error) {
		if !v.Exists() {
			return nil, errors.New("there is no entry")
		}
		from, to := heartbeatIn(v.Data)
		if from == to {
			return nil, errors.New("the entry has no time of a heartbeat")
		}
		return slices.Concat(v.Data[:from], []byte(store.Timestamp(g.Now())), v.Data[to:]), nil
	})
	return err
}
