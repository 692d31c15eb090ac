package documents

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/crdt/replica"
)

// Role is what an agent of another process may do with a document. The hub's user and
// the hub's own agents need none.
type Role string

// The roles; each may do what those before it may.
const (
	RoleReader Role = "reader" // hear of changes
	RoleWriter Role = "writer" // make some
	RoleOwner  Role = "owner"  // say who else may what
)

// rights are a role's with a replica. Nobody may speak for others: what an agent brings
// of them is known here or not believed.
func (r Role) rights() replica.Access {
	switch r {
	case RoleReader:
		return replica.Read
	case RoleWriter, RoleOwner:
		return replica.Read | replica.Write
	}
	return 0
}

// Whom the hub's own replica, and y-websocket's clients, write for. No agent can have
// a role under these names.
const (
	hubAgent = "hub"
	Browser  = "browser"
)

// MaxShares bounds the agents that have a role in one document.
const MaxShares = 1000

// Share gives an agent of another process a role in a document, which is made if there is
// none; "" takes it away. It holds for the replicas that are linked now, too.
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
	if now, err := l.Get(ctx, name); err == nil { // it may have been opened anew meanwhile, with the roles of before
		now.adopt(next)
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
	if role != "" && !slices.Contains([]Role{RoleReader, RoleWriter, RoleOwner}, role) {
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
	if roles := maps.Clone(d.roles()); roles != nil {
		return roles, nil
	}
	return map[string]Role{}, nil
}

// Role returns an agent's role in a document, "" for none: whether there is such a
// document is for those to know who have one. It opens nothing.
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
func (d *Document) Role(agentID string) Role { return d.roles()[agentID] }

func (d *Document) roles() map[string]Role { return d.shares.Load().roles }

// adopt takes over roles that were stored, unless later ones are known.
func (d *Document) adopt(next *shares) {
	for {
		old := d.shares.Load()
		if old.revision >= next.revision || d.shares.CompareAndSwap(old, next) {
			return
		}
	}
}

// rights are what an agent may do, for the replica.
func (d *Document) rights(agentID string) replica.Access {
	if agentID == hubAgent {
		return replica.Read | replica.Write | replica.Relay | replica.Keep
	}
	return d.Role(agentID).rights()
}

// shares are the roles in a document as they are stored. They are never changed, only replaced.
type shares struct {
	roles    map[string]Role
	revision uint64 // of the entry, 0 if there is none
}

// shares returns the roles in a document as they are stored.
func (s *store) shares(ctx context.Context, name string) (*shares, error) {
	e, err := s.access.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return new(shares), nil
	}
	if err != nil {
		return nil, storage(err, "who may what with the document %s cannot be looked up", name)
	}
	found := shares{revision: e.Revision()}
	if err := json.Unmarshal(e.Value(), &found.roles); err != nil {
		return nil, storage(err, "who may what with the document %s is stored in a broken way", name)
	}
	return &found, nil
}

// shareAttempts bounds how often roles are changed anew because another changed them at the same moment.
const shareAttempts = 50

// changeShares gives an agent a role in a document, durably, and returns what is stored then. Each change replaces
// the entry that it was made from, so that none is lost.
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
		roles := maps.Clone(old.roles)
		if roles == nil {
			roles = make(map[string]Role)
		}
		if roles[agentID] = role; role == "" {
			delete(roles, agentID)
		}
		if len(roles) > MaxShares {
			return nil, &Error{Code: CodeInvalid, Message: "the document " + name + " is shared with too many agents"}
		}
		next := &shares{roles: roles}
		if next.revision, err = s.setShares(ctx, name, roles, old.revision); err == nil {
			return next, nil
		}
		if !errors.Is(err, jetstream.ErrKeyExists) && !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
			break
		}
	}
	return nil, storage(err, "who may what with the document %s cannot be stored", name)
}

// setShares replaces the entry of a revision, and returns when that is durable. The error is
// [jetstream.ErrKeyExists] or [jetstream.ErrKeyRevisionMismatch] if there is another entry by now.
func (s *store) setShares(ctx context.Context, name string, roles map[string]Role, revision uint64) (next uint64, err error) {
	b, err := json.Marshal(roles)
	if err != nil {
		return 0, err
	}
	if revision == 0 {
		next, err = s.access.Create(ctx, name, b)
	} else {
		next, err = s.access.Update(ctx, name, b, revision)
	}
	if err == nil {
		err = s.bus.Commit(ctx)
	}
	return next, err
}
