// Package registry is the registry of the agents' network on one bus: the agents'
// entries, their heartbeats and identities, and discovery.
package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// Registry is a process's access to the registry on one bus. It is safe for concurrent
// use once the Store is started.
type Registry struct {
	*store.Store
	cfg     store.Config
	onEnter []func(ctx context.Context, b *bus.Bus, guid string) error

	reading *semaphore.Weighted // of 1: who reads the registry, and uses the snapshot

	heartbeats heartbeats

	mu       sync.Mutex
	snapshot *snapshot // the newest; nil before the first
}

// New returns the registry on a bus. It adds to what the Store prepares.
func New(s *store.Store) *Registry {
	g := &Registry{Store: s, cfg: s.Config(), reading: semaphore.NewWeighted(1), heartbeats: heartbeats{all: map[*heartbeat]struct{}{}}}
	s.Prepare(g.prepare)
	s.OnFirstConnect(func(b *bus.Bus) { g.Go(func(ctx context.Context) { g.heartbeats.run(ctx, b) }) })
	return g
}

// OnEnter adds what has to succeed before an agent is entered in the registry. Call it before the Store is started.
func (g *Registry) OnEnter(f func(ctx context.Context, b *bus.Bus, guid string) error) {
	g.onEnter = append(g.onEnter, f)
}

func (g *Registry) prepare(ctx context.Context, b *bus.Bus) error {
	g.mu.Lock()
	g.snapshot = nil // it may be another server, with other revisions
	g.mu.Unlock()
	ttl := g.cfg.RegistryTTL
	return g.EnsureStreams(ctx, b,
		store.BucketConfig(g.cfg.Bucket, "The agents' registry", ttl),
		store.BucketConfig(g.cfg.IdentityBucket(), "Which agent had which GUID", ttl+ttl/refreshesPerTTL),
		jetstream.StreamConfig{
			Name:        store.AuditStream,
			Description: "What the collector removed",
			Subjects:    []string{store.AuditSubject},
			MaxMsgs:     10_000,
			MaxAge:      30 * 24 * time.Hour,
			AllowDirect: true,
		})
}

// StoredEntry is an entry as the registry stores it.
type StoredEntry struct {
	Entry
	revision uint64
	seen     time.Time // when the server stored it
	beat     time.Time // LastHeartbeat
	digest   uint64    // in a snapshot: of its JSON without LastHeartbeat
	isTimed  bool      // in a snapshot: digest counts
}

// entry returns an agent's entry; nil if there is none that is valid.
func (g *Registry) entry(ctx context.Context, b *bus.Bus, guid string) (*StoredEntry, error) {
	v, err := g.cfg.EntryKey(guid).Get(ctx, b)
	if err != nil || !v.Exists() {
		return nil, err
	}
	e, err := DecodeEntry(v.Data)
	if err != nil {
		g.Log().Debug("an entry of the registry is skipped: it does not match the schema", "guid", guid, "error", err)
		return nil, nil
	}
	return &StoredEntry{Entry: e, revision: v.Revision, seen: v.Time, beat: store.ParseTime(e.LastHeartbeat)}, nil
}

// Liveness returns that of an entry now.
func (g *Registry) Liveness(e *StoredEntry) Liveness {
	return e.liveness(g.heard(e.seen, g.clockSet()), g.Now(), g.cfg.TimeoutThreshold)
}

// futureTolerance is by how much a time of the server may be later than the estimate of its clock.
const futureTolerance = time.Minute

// heard returns since when an agent counts as silent whose heartbeat was stored at seen: not before the clock was set, since no time has
// passed for the agent. After the clock was set back, a time that is yet to come says only that it is from before.
func (g *Registry) heard(seen, set time.Time) time.Time {
	if set.After(seen) || !set.IsZero() && seen.Sub(g.Now()) > futureTolerance {
		return set
	}
	return seen
}

// clockSet returns when the clock of the server was set, or its computer has slept, as far as is known; the zero time if it is not.
func (g *Registry) clockSet() time.Time {
	set := g.ClockSet()
	b, err := g.Connected()
	if !set.IsZero() || err != nil {
		return set
	}
	return b.ClockSet()
}

// IsGone reports whether an agent is offline or not registered.
func (g *Registry) IsGone(ctx context.Context, b *bus.Bus, guid string) (bool, error) {
	e, err := g.entry(ctx, b, guid)
	return err == nil && (e == nil || g.Liveness(e) == Gone), err
}

// IsLive reports whether an agent that registered at a time, in RFC 3339, is not offline, and has not registered again since.
func (g *Registry) IsLive(ctx context.Context, b *bus.Bus, guid, registeredAt string) (bool, error) {
	e, err := g.entry(ctx, b, guid)
	return err == nil && e != nil && e.RegisteredAt == registeredAt && g.Liveness(e) != Gone, err
}

// HostOf returns the host of an agent, "" if it is not registered.
func (g *Registry) HostOf(ctx context.Context, b *bus.Bus, guid string) (string, error) {
	e, err := g.entry(ctx, b, guid)
	if err != nil || e == nil {
		return "", err
	}
	return e.Hostname, nil
}

// Filter selects agents. Empty fields select all.
type Filter struct {
	AgentType      string   `json:"agentType,omitempty" jsonschema:"Only agents of exactly this type"`
	Capability     string   `json:"capability,omitempty" jsonschema:"Only agents that can do this; a part of the word is enough"`
	Hostname       string   `json:"hostname,omitempty" jsonschema:"Only agents on this computer"`
	ProjectID      string   `json:"projectId,omitempty" jsonschema:"Only agents of this project"`
	Status         Presence `json:"status,omitempty" jsonschema:"Only agents with this status"`
	Scope          Scope    `json:"scope,omitempty" jsonschema:"Only agents with this scope"`
	Limit          int      `json:"limit,omitempty" jsonschema:"How many at most: 1 to 1000, 50 by default"`
	IncludeOffline bool     `json:"includeOffline,omitempty" jsonschema:"Also agents that are offline"`
}

// The limits of a Filter.
const (
	DefaultDiscoverLimit = 50
	MaxDiscoverLimit     = 1000
)

// Check returns a ValidationError if the filter is invalid.
func (f Filter) Check() error {
	switch {
	case f.Limit < 0 || f.Limit > MaxDiscoverLimit:
		return store.Invalid("The limit %d is not allowed.", f.Limit).WithRemedy("Use a limit from 1 to %d.", MaxDiscoverLimit)
	case f.Status != "" && !slices.Contains(Presences, f.Status):
		return invalidStatus(f.Status)
	case f.Scope != "" && !slices.Contains(Scopes, f.Scope):
		return invalidScope(f.Scope)
	}
	return nil
}

func invalidStatus(p Presence) error {
	return store.Invalid("There is no status %s.", store.Quote(string(p))).WithRemedy("Use active, idle, busy or offline.")
}

func invalidScope(s Scope) error {
	return store.Invalid("There is no scope %s.", store.Quote(string(s))).WithRemedy("Use user, project or cross-project.")
}

func (f Filter) matches(s Summary) bool {
	has := func(c string) bool { return strings.Contains(strings.ToLower(c), strings.ToLower(f.Capability)) }
	return (f.AgentType == "" || s.AgentType == f.AgentType) &&
		(f.Capability == "" || slices.ContainsFunc(s.Capabilities, has)) &&
		(f.Hostname == "" || strings.EqualFold(s.Hostname, f.Hostname)) &&
		(f.ProjectID == "" || s.ProjectID == f.ProjectID) &&
		(f.Status == "" || s.Status == f.Status) &&
		(f.Scope == "" || s.Scope == f.Scope) &&
		(s.Status != Offline || f.IncludeOffline || f.Status == Offline)
}

// Discovery is the result of a discovery.
type Discovery struct {
	Agents []Summary `json:"agents" jsonschema:"The agents, the most recently active first"` // never nil
	Total  int       `json:"total" jsonschema:"How many there are, with those beyond the limit"`
}

// Limit returns d with as many agents as the filter allows.
func (d Discovery) Limit(f Filter) Discovery {
	d.Agents = d.Agents[:min(len(d.Agents), cmp.Or(f.Limit, DefaultDiscoverLimit))]
	return d
}

// Discover lists all agents that the viewer sees and the filter selects, whatever its
// Limit. To find none is no error.
func (g *Registry) Discover(ctx context.Context, v Viewer, f Filter) (Discovery, error) {
	found := Discovery{Agents: []Summary{}}
	b, err := g.Connected()
	if err != nil {
		return found, err
	}
	all, err := g.Entries(ctx, b)
	if err != nil {
		return found, store.AsError(err)
	}
	for _, e := range all {
		if !v.Sees(e.Entry) {
			continue
		}
		if s := e.summary(g.Liveness(e)); f.matches(s) {
			found.Agents = append(found.Agents, s)
		}
	}
	found.Total = len(found.Agents)
	return found, nil
}

// Info returns an agent's entry. An agent that the viewer does not see is not found.
func (g *Registry) Info(ctx context.Context, v Viewer, guid string) (Entry, Liveness, error) {
	b, err := g.Connected()
	if err != nil {
		return Entry{}, "", err
	}
	if guid, err = store.CheckGUID("guid", guid); err != nil {
		return Entry{}, "", err
	}
	s, err := g.entry(ctx, b, guid)
	if err != nil {
		return Entry{}, "", store.AsError(err)
	}
	if s == nil || !v.Sees(s.Entry) {
		return Entry{}, "", &store.Error{Code: store.NotFoundError, Message: fmt.Sprintf("There is no agent %s that you can see.", guid),
			Remedy: "Use discover_agents to find agents and their GUIDs."}
	}
	e, live := v.redact(s.Entry), g.Liveness(s)
	if live == Gone {
		e.Status = Offline
	}
	return e, live, nil
}

// Operator views the registry as a person at this computer: such a person sees what the
// agents of this user and project see.
func (g *Registry) Operator() Viewer {
	return Viewer{ProjectID: g.cfg.ProjectID, Username: g.cfg.Username, Hostname: g.cfg.Hostname}
}

// known is the record of an agent whose entry may have expired.
type known struct {
	GUID      string `json:"guid"`
	Handle    string `json:"handle"`
	AgentType string `json:"agentType"`
	Holder    string `json:"holder,omitempty"` // of an admitted agent: that of its identity's record
}

func (g *Registry) knownKey(guid string) store.Key { return g.cfg.IdentityKey("guid." + guid) }

// Addressee is an agent that can receive mail.
type Addressee struct {
	Handle string
	Status Presence
}

// Addressee finds an agent that is registered, or was within the registry's TTL and may register again.
func (g *Registry) Addressee(ctx context.Context, b *bus.Bus, guid string) (Addressee, error) {
	e, err := g.entry(ctx, b, guid)
	if err != nil {
		return Addressee{}, store.AsError(err)
	}
	if e != nil {
		if g.Liveness(e) == Gone {
			e.Status = Offline
		}
		return Addressee{e.Handle, e.Status}, nil
	}
	v, err := g.knownKey(guid).Get(ctx, b)
	if err != nil {
		return Addressee{}, store.AsError(err)
	}
	var k known
	if !v.Exists() || json.Unmarshal(v.Data, &k) != nil {
		return Addressee{}, &store.Error{Code: store.NotFoundError, Message: fmt.Sprintf("There is no agent %s in the registry.", guid),
			Remedy: "Use discover_agents to find agents and their GUIDs.", Err: errors.New("neither an entry nor an identity")}
	}
	return Addressee{k.Handle, Offline}, nil
}

// Removal is the audit log's record of an entry that the collector removed.
type Removal struct {
	GUID          string `json:"guid"`
	AgentType     string `json:"agentType"`
	Handle        string `json:"handle"`
	Hostname      string `json:"hostname"`
	LastHeartbeat string `json:"lastHeartbeat"`
	RemovedAt     string `json:"removedAt"`
	RemovedBy     string `json:"removedBy"` // the host of the collector
}

// RemoveStale removes the entries of agents that miss three heartbeats, and returns
// their GUIDs. An entry that is written in the same moment stays.
func (g *Registry) RemoveStale(ctx context.Context, b *bus.Bus) ([]string, error) {
	all, err := g.entriesOnce(ctx, b)
	if err != nil {
		return nil, err
	}
	var removed []string
	now, set := g.Now(), g.clockSet()
	for _, s := range all {
		if now.Sub(g.heard(s.seen, set)) <= s.patience(g.cfg.TimeoutThreshold) { // a deregistered agent's entry stays as long as any
			continue
		}
		err := g.cfg.EntryKey(s.GUID).Delete(ctx, b, s.revision)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return removed, err
		}
		removed = append(removed, s.GUID)
		r := Removal{s.GUID, s.AgentType, s.Handle, s.Hostname, s.LastHeartbeat, store.Timestamp(now), g.cfg.Hostname}
		g.Log().Info("a stale entry was removed from the registry", "guid", r.GUID, "agentType", r.AgentType,
			"handle", r.Handle, "hostname", r.Hostname, "lastHeartbeat", r.LastHeartbeat)
		data, err := json.Marshal(r)
		if err == nil {
			_, err = b.Publish(ctx, &nats.Msg{Subject: store.AuditSubject, Data: data}, jetstream.WithExpectStream(store.AuditStream))
		}
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// Removals returns the audit log's records, oldest first.
func (g *Registry) Removals(ctx context.Context) ([]Removal, error) {
	b, err := g.Connected()
	if err != nil {
		return nil, err
	}
	list := []Removal{}
	err = store.Scan(ctx, b, store.AuditStream, store.AuditSubject, 1, func(m store.Message) bool {
		var r Removal
		if json.Unmarshal(m.Data, &r) == nil {
			list = append(list, r)
		}
		return true
	})
	return list, store.AsError(err)
}
