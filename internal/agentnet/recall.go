package agentnet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/bus"
)

// While the network cannot be reached, nothing there says who an agent was. So a
// computer with a hub remembers the GUIDs of its agents in its state directory, for
// as long as the network does.

func (n *Network) guidFile(slot string) string { return filepath.Join(n.cfg.StateDir, slot+".guid") }

// recallGUID returns the GUID that had a slot; "" if none is remembered.
func (n *Network) recallGUID(slot string) string {
	if n.near == nil || n.cfg.StateDir == "" {
		return ""
	}
	file := n.guidFile(slot)
	info, err := os.Stat(file)
	if err != nil || n.cfg.Now().Sub(info.ModTime()) > n.cfg.RegistryTTL {
		return ""
	}
	data, err := os.ReadFile(file)
	if err != nil {
		n.log.Warn("an agent's GUID cannot be recalled", "error", err)
		return ""
	}
	id, err := uuid.Parse(strings.TrimSpace(string(data)))
	if err != nil {
		return "" // it was not written to its end
	}
	return id.String()
}

// noteGUID remembers the GUID of a slot. The caller has the slot's lock.
func (n *Network) noteGUID(id *identity) {
	if n.near == nil || n.cfg.StateDir == "" || id.slot == "" {
		return
	}
	if err := os.WriteFile(n.guidFile(id.slot), []byte(id.guid+"\n"), 0o600); err != nil {
		n.log.Warn("an agent's GUID is not remembered on this computer", "guid", id.guid, "error", err)
	}
}

// recallIdentity is takeIdentity without the network: the GUID of an agent of
// this type that has ended, or else a new one. Nobody elsewhere can have it,
// because an identity is that of a host and a directory.
func (n *Network) recallIdentity(agentType string) (*identity, error) {
	if n.cfg.Place != nil {
		return n.placed(n.cfg.Place), nil
	}
	key, slots := digest(n.cfg.Hostname, n.cfg.ProjectPath, agentType), maxAgentsOnThisHost
	if n.cfg.GUID != "" {
		slots = 1
	}
	for i := range slots {
		slot := fmt.Sprintf("%s.%d", key, i)
		if n.cfg.GUID != "" {
			slot = "fixed." + n.cfg.GUID
		}
		lock, free, err := n.lockSlot(slot)
		if err != nil {
			return nil, err
		}
		if !free {
			continue
		}
		recalled := n.recallGUID(slot)
		id := &identity{guid: or(n.cfg.GUID, or(recalled, uuid.NewString())), slot: slot, lock: lock, reused: recalled != "", written: n.clock.now()}
		n.noteGUID(id)
		return id, nil
	}
	return nil, tooManyAgents(agentType)
}

// claimIdentity enters an identity that was taken without the network into its
// records.
func (a *Agent) claimIdentity(ctx context.Context, b *bus.Bus) error {
	select {
	case <-a.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { a.turn <- struct{}{} }()
	n, have := a.net, a.identity
	key := have.slot
	switch {
	case have.lock == nil: // nothing says which slot is free
		key = "fixed." + a.guid
	case n.cfg.GUID == "":
		key = "slot." + key
	}
	id, err := n.takeRecord(ctx, b, n.identityCell(key), a.guid, true, have.lock != nil)
	if err != nil {
		return err
	}
	if id == nil {
		return &Error{Code: ConflictError, Message: "Another process has this agent's identity in the network.",
			Remedy: "End it; otherwise the identity is free when its heartbeat has been missing three times."}
	}
	have.cell, have.holder, have.record, have.revision, have.written = id.cell, id.holder, id.record, id.revision, id.written
	return nil
}
