package documents

import (
	"context"
	"encoding/json"
	"errors"
	"maps"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/crdt/replica"
)

// Role is what an agent of another process may do with a document. The hub's user and the hub's own agents need
// none.
type Role string

// The roles; each includes those before it.
const (
	RoleReader Role = "reader" // receives changes
	RoleWriter Role = "writer" // makes changes
	RoleOwner  Role = "owner"  // gives roles to others
)

// access returns what a role permits a replica. No role includes [replica.Relay]: an agent's replica cannot forward
// changes of other writers.
func (r Role) access() replica.Access {
	switch r {
	case RoleReader:
		return replica.Read
	case RoleWriter, RoleOwner:
		return replica.Read | replica.Write
	}
	return 0
}

// Writers that are no agents of other processes; they cannot be given a role.
const (
	hubAgent = "hub"     // the hub's own replica
	Browser  = "browser" // all clients of y-websocket
)

// MaxShares bounds the agents that have a role in one document.
const MaxShares = 1000

// Share gives an agent of another process a role in a document, which is created if it is missing. The role ""
// withdraws the agent's role. Replicas that are linked already are affected at once.
func (l *Library) Share(ctx context.Context, name, agentID string, role Role) error {
	if err := checkShare(agentID, role); err != nil {
		return err
	}
	get := l.Ensure
	if role == "" {
		get = l.Get
	}
	d, err := get(ctx, name)
	if err != nil {
		return err
	}
	next, err := l.store.changeShares(ctx, name, agentID, role)
	if err != nil {
		return err
	}
	d.adopt(next)
	if reopened, err := l.Get(ctx, name); err == nil { // perhaps another instance, loaded before the change
		reopened.adopt(next)
	}
	return nil
}

func checkShare(agentID string, role Role) error {
	if err := agent.CheckID(agentID); err != nil {
		return invalid("the agent's id %v", err)
	}
	if agentID == hubAgent || agentID == Browser {
		return invalid("%q is no agent of another process", agentID)
	}
	if role != "" && role.access() == 0 {
		return invalid("there is no role %q: the roles are reader, writer, owner and none", role)
	}
	return nil
}

// Shares returns the roles in a document, by agent.
func (l *Library) Shares(ctx context.Context, name string) (map[string]Role, error) {
	d, err := l.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	return cloneRoles(d.shares.Load().roles), nil
}

// cloneRoles returns a copy that is not nil.
func cloneRoles(roles map[string]Role) map[string]Role {
	if roles == nil {
		return map[string]Role{}
	}
	return maps.Clone(roles)
}

// Role returns an agent's role in a document, "" for none or if there is no such document, so that an agent without
// a role does not learn whether it exists. It does not open the document.
func (l *Library) Role(ctx context.Context, name, agentID string) (Role, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	l.mu.Lock()
	o := l.open[name]
	l.mu.Unlock()
	if o != nil {
		select {
		case <-o.done:
			if o.doc != nil {
				return o.doc.Role(agentID), nil
			}
		default: // it is being opened
		}
	}
	stored, err := l.store.shares(ctx, name)
	if err != nil {
		return "", err
	}
	return stored.roles[agentID], nil
}

// Role returns an agent's role in the document, "" for none.
func (d *Document) Role(agentID string) Role { return d.shares.Load().roles[agentID] }

// adopt replaces the roles by stored ones, unless those in force are newer.
func (d *Document) adopt(next *shares) {
	for {
		old := d.shares.Load()
		if old.revision >= next.revision || d.shares.CompareAndSwap(old, next) {
			return
		}
	}
}

// accessOf returns what an agent's replica may do.
func (d *Document) accessOf(agentID string) replica.Access {
	if agentID == hubAgent {
		return replica.Read | replica.Write | replica.Relay | replica.Keep
	}
	return d.Role(agentID).access()
}

// shares is the stored access list of a document. It is immutable.
type shares struct {
	roles    map[string]Role // by agent
	revision uint64          // of the entry in the bucket, 0 if there is none
}

// shares loads the access list of a document.
func (s *store) shares(ctx context.Context, name string) (*shares, error) {
	e, err := s.access.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return new(shares), nil
	}
	if err != nil {
		return nil, storage(err, "the roles in the document %s cannot be read", name)
	}
	found := shares{revision: e.Revision()}
	if err := json.Unmarshal(e.Value(), &found.roles); err != nil {
		return nil, storage(err, "the stored roles in the document %s are corrupt", name)
	}
	return &found, nil
}

// shareAttempts bounds the retries after concurrent changes of the same access list.
const shareAttempts = 50

// changeShares gives an agent a role in a document and returns the new access list once it is durable. Each change
// is a compare-and-set on the entry's revision, so that concurrent changes are not lost.
func (s *store) changeShares(ctx context.Context, name, agentID string, role Role) (*shares, error) {
	var err error
	for range shareAttempts {
		var old *shares
		if old, err = s.shares(ctx, name); err != nil {
			return nil, err
		}
		if old.roles[agentID] == role {
			return old, nil
		}
		roles := cloneRoles(old.roles)
		if roles[agentID] = role; role == "" {
			delete(roles, agentID)
		}
		if len(roles) > MaxShares {
			return nil, invalid("the document %s is shared with too many agents", name)
		}
		next := &shares{roles: roles}
		if next.revision, err = s.setShares(ctx, name, roles, old.revision); err == nil {
			return next, nil
		}
		if !errors.Is(err, jetstream.ErrKeyExists) && !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
			break
		}
	}
	return nil, storage(err, "the roles in the document %s cannot be stored", name)
}

// setShares replaces the entry of a revision and returns when that is durable. The error is
// [jetstream.ErrKeyExists] or [jetstream.ErrKeyRevisionMismatch] if the entry has changed.
func (s *store) setShares(ctx context.Context, name string, roles map[string]Role, revision uint64) (next uint64, err error) {
	b, err := json.Marshal(roles)
	switch {
	case err != nil:
	case revision == 0:
		next, err = s.access.Create(ctx, name, b)
	default:
		next, err = s.access.Update(ctx, name, b, revision)
	}
	if err == nil {
		err = s.bus.Commit(ctx)
	}
	return next, err
}
