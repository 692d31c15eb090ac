package agentnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/bus"
)

// seat is an entry with what the registry knows of it.
type seat struct {
	Entry
	revision uint64
	seen     time.Time // when the server stored it
	beat     time.Time // LastHeartbeat
	raw      []byte    // as it is stored; only in a roll
}

func (n *Network) entryCell(guid string) cell {
	return cell{n.registryStream(), bucketKeys + n.cfg.Bucket + "." + guid}
}

// seat returns an agent's entry; nil if there is none that is valid.
func (n *Network) seat(ctx context.Context, b *bus.Bus, guid string) (*seat, error) {
	v, err := n.entryCell(guid).read(ctx, b)
	if err != nil || !v.there() {
		return nil, err
	}
	e, err := decodeEntry(v.data)
	if err != nil {
		n.log.Debug("an entry of the registry is skipped: it does not match the schema", "guid", guid, "error", err)
		return nil, nil
	}
	return &seat{Entry: e, revision: v.revision, seen: v.time, beat: parseTime(e.LastHeartbeat)}, nil
}

func (n *Network) liveness(s seat) Liveness {
	return s.liveness(s.seen, n.clock.now(), n.cfg.TimeoutThreshold)
}

// Filter selects agents (REQ-TOOL-DISCOVER-002). Empty fields select all.
type Filter struct {
	AgentType  string
	Capability string // or part of one
	Hostname   string
	ProjectID  string
	Status     Presence
	Scope      Scope
	// Limit is 0 for DefaultDiscoverLimit.
	Limit          int
	IncludeOffline bool
}

// The limits of a Filter.
const (
	DefaultDiscoverLimit = 50
	MaxDiscoverLimit     = 1000
)

func (f Filter) check() error {
	if f.Limit < 0 || f.Limit > MaxDiscoverLimit {
		return invalid("The limit %d is not allowed.", f.Limit).WithRemedy("Use a limit from 1 to %d.", MaxDiscoverLimit)
	}
	if f.Status != "" && !slices.Contains(Presences, f.Status) {
		return invalid("There is no status %s.", quote(string(f.Status))).WithRemedy("Use active, idle, busy or offline.")
	}
	if f.Scope != "" && !slices.Contains(Scopes, f.Scope) {
		return invalid("There is no scope %s.", quote(string(f.Scope))).WithRemedy("Use user, project or cross-project.")
	}
	return nil
}

func (f Filter) takes(s Summary) bool {
	has := func(c string) bool { return strings.Contains(strings.ToLower(c), strings.ToLower(f.Capability)) }
	switch {
	case f.AgentType != "" && s.AgentType != f.AgentType,
		f.Capability != "" && !slices.ContainsFunc(s.Capabilities, has),
		f.Hostname != "" && !strings.EqualFold(s.Hostname, f.Hostname),
		f.ProjectID != "" && s.ProjectID != f.ProjectID,
		f.Status != "" && s.Status != f.Status,
		f.Scope != "" && s.Scope != f.Scope,
		s.Status == Offline && !f.IncludeOffline && f.Status != Offline: // REQ-TOOL-DISCOVER-007
		return false
	}
	return true
}

// Discovery is what Discover found.
type Discovery struct {
	Agents []Summary // most recently active first; never nil
	// Total is how many there are, with those beyond the limit.
	Total int
}

// Discover lists the agents that this one may see. No match is no error
// (REQ-TOOL-DISCOVER-008).
func (a *Agent) Discover(ctx context.Context, f Filter) (Discovery, error) {
	b, _, err := a.either()
	if err != nil {
		return Discovery{}, err
	}
	if err := f.check(); err != nil {
		return Discovery{}, err
	}
	if err := a.charge(ctx, discoverLimit); err != nil {
		return Discovery{}, err
	}
	if a.net.near != nil {
		return a.net.discoverBoth(ctx, a.viewer(), f)
	}
	return a.net.discover(ctx, b, a.viewer(), f)
}

func (n *Network) discover(ctx context.Context, b *bus.Bus, v viewer, f Filter) (Discovery, error) {
	all, err := n.seats(ctx, b)
	if err != nil {
		return Discovery{}, connectionError(err)
	}
	found := Discovery{Agents: []Summary{}}
	for _, s := range all {
		if !v.sees(s.Entry) {
			continue
		}
		if summary := s.summary(n.liveness(s)); f.takes(summary) {
			found.Total++
			if len(found.Agents) < or(f.Limit, DefaultDiscoverLimit) {
				found.Agents = append(found.Agents, summary)
			}
		}
	}
	return found, nil
}

// Info returns another agent's entry, or the caller's own (REQ-TOOL-GETINFO-003,
// REQ-TOOL-GETINFO-004). An agent that the caller may not see does not exist
// for it.
func (a *Agent) Info(ctx context.Context, guid string) (Entry, Liveness, error) {
	b, err := a.ready()
	if near := a.nearby(); near != nil {
		if err != nil && isConnection(err) {
			return near.Info(ctx, guid)
		}
		if err == nil {
			if e, live, err := a.infoOne(ctx, b, guid); !isNotFound(err) {
				return e, live, err
			}
			return near.Info(ctx, guid)
		}
	}
	if err != nil {
		return Entry{}, "", err
	}
	return a.infoOne(ctx, b, guid)
}

func (a *Agent) infoOne(ctx context.Context, b *bus.Bus, guid string) (Entry, Liveness, error) {
	guid, err := checkGUID("guid", guid)
	if err != nil {
		return Entry{}, "", err
	}
	s, err := a.net.seat(ctx, b, guid)
	if err != nil {
		return Entry{}, "", connectionError(err)
	}
	v := a.viewer()
	if s == nil || !v.sees(s.Entry) {
		return Entry{}, "", unknownAgent(guid)
	}
	e, live := v.redact(s.Entry), a.net.liveness(*s)
	if live == Gone {
		e.Status = Offline
	}
	return e, live, nil
}

func unknownAgent(guid string) *Error {
	return &Error{Code: NotFoundError, Message: fmt.Sprintf("There is no agent %s that you can see.", guid),
		Remedy: "Use discover_agents to find agents and their GUIDs."}
}

// everyone is for people at the console of the computer that the Network runs
// on: they see what any program of theirs could read.
func (n *Network) everyone() viewer {
	return viewer{projectID: n.cfg.ProjectID, username: n.cfg.Username, hostname: n.cfg.Hostname}
}

// Agents lists agents without being one of them, for people: those that agents
// of this user and project see.
func (n *Network) Agents(ctx context.Context, f Filter) (Discovery, error) {
	if err := f.check(); err != nil {
		return Discovery{}, err
	}
	if n.near != nil {
		return n.discoverBoth(ctx, n.everyone(), f)
	}
	b, err := n.connected()
	if err != nil {
		return Discovery{}, err
	}
	return n.discover(ctx, b, n.everyone(), f)
}

// known is what is remembered of an agent whose entry may be gone.
type known struct {
	GUID      string `json:"guid"`
	Handle    string `json:"handle"`
	AgentType string `json:"agentType"`
}

func (n *Network) knownCell(guid string) cell {
	return cell{bucketStream + n.identityBucket(), bucketKeys + n.identityBucket() + ".guid." + guid}
}

// addressee is an agent that mail is for.
type addressee struct {
	guid, handle string
	status       Presence
}

// addressee finds an agent that is registered, or was within the registry's
// TTL and may come back (REQ-TOOL-DIRECT-005).
func (n *Network) addressee(ctx context.Context, b *bus.Bus, guid string) (addressee, error) {
	s, err := n.seat(ctx, b, guid)
	if err != nil {
		return addressee{}, connectionError(err)
	}
	if s != nil {
		to := addressee{guid, s.Handle, s.Status}
		if n.liveness(*s) == Gone {
			to.status = Offline
		}
		return to, nil
	}
	v, err := n.knownCell(guid).read(ctx, b)
	if err != nil {
		return addressee{}, connectionError(err)
	}
	var k known
	if !v.there() || json.Unmarshal(v.data, &k) != nil {
		return addressee{}, &Error{Code: NotFoundError, Message: fmt.Sprintf("There is no agent %s in the registry.", guid),
			Remedy: "Use discover_agents to find agents and their GUIDs.", Err: errors.New("neither an entry nor an identity")}
	}
	return addressee{guid, k.Handle, Offline}, nil
}
