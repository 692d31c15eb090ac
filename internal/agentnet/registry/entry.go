package registry

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/third_party/jsonschema"
)

// Scope is for whom an agent works.
type Scope string

// The scopes.
const (
	ScopeUser         Scope = "user"
	ScopeProject      Scope = "project"
	ScopeCrossProject Scope = "cross-project"
)

// Scopes lists them.
var Scopes = []Scope{ScopeUser, ScopeProject, ScopeCrossProject}

// Visibility is who can discover an agent.
type Visibility = store.Visibility

// Visibilities lists them.
var Visibilities = []Visibility{store.Private, store.ProjectOnly, store.UserOnly, store.Public}

// Presence is an agent's availability.
type Presence string

// The presences.
const (
	Active  Presence = "active"
	Idle    Presence = "idle"
	Busy    Presence = "busy"
	Offline Presence = "offline"
)

// Presences lists them.
var Presences = []Presence{Active, Idle, Busy, Offline}

// Entry is an agent in the registry.
type Entry struct {
	GUID       string     `json:"guid"`
	AgentType  string     `json:"agentType"`
	Handle     string     `json:"handle"`
	Hostname   string     `json:"hostname"`
	Username   string     `json:"username,omitempty"`
	ProjectID  string     `json:"projectId,omitempty"`
	Project    string     `json:"project,omitempty"` // the name of the project's directory
	Vendor     string     `json:"vendor,omitempty"`  // of the agent's program
	Scope      Scope      `json:"scope"`
	Visibility Visibility `json:"visibility,omitempty"`
	NATSURL    string     `json:"natsUrl"`
	// Capabilities are what the agent can do.
	Capabilities  []string `json:"capabilities,omitempty"`
	Status        Presence `json:"status"`
	RegisteredAt  string   `json:"registeredAt"`  // ISO 8601
	LastHeartbeat string   `json:"lastHeartbeat"` // ISO 8601
	// HeartbeatInterval is in seconds; 0 where the entry names none.
	HeartbeatInterval  float64 `json:"heartbeatInterval,omitempty"`
	MaxConcurrentTasks float64 `json:"maxConcurrentTasks"` // 0 is unlimited
	CurrentTaskCount   float64 `json:"currentTaskCount"`
}

// DecodeEntry reads an entry of any program. It fails where the schema does not accept the entry.
func DecodeEntry(data []byte) (Entry, error) {
	if err := checkSchema(data); err != nil {
		return Entry{}, err
	}
	var e Entry
	if err := json.Unmarshal(data, &e); err != nil {
		return Entry{}, err
	}
	return e, nil
}

// OnlyBeat reports whether a later entry of an agent differs only by the time of its heartbeat.
func (e *Entry) OnlyBeat(later *Entry) bool {
	return e.GUID == later.GUID && e.AgentType == later.AgentType && e.Handle == later.Handle && e.Hostname == later.Hostname &&
		e.Username == later.Username && e.ProjectID == later.ProjectID && e.Project == later.Project && e.Vendor == later.Vendor &&
		e.Scope == later.Scope && e.Visibility == later.Visibility && e.NATSURL == later.NATSURL &&
		slices.Equal(e.Capabilities, later.Capabilities) && e.Status == later.Status && e.RegisteredAt == later.RegisteredAt &&
		e.HeartbeatInterval == later.HeartbeatInterval && e.MaxConcurrentTasks == later.MaxConcurrentTasks && e.CurrentTaskCount == later.CurrentTaskCount
}

// encode returns the entry's JSON. It fails where the schema does not accept it.
func (e Entry) encode() ([]byte, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return data, checkSchema(data)
}

// schemaText is the JSON Schema of an entry's JSON (draft 07, as specified). go run ./tools/docs copies it to the
// folder schema, for programs in other languages.
//
//go:embed agent-registry.schema.json
var schemaText []byte

// entrySchema is schemaText, compiled once. It checks formats (GUID, date, URI).
var entrySchema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemaText))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("urn:parley:agent-registry", doc); err != nil {
		return nil, err
	}
	return c.Compile("urn:parley:agent-registry")
})

func checkSchema(data []byte) error {
	s, err := entrySchema()
	if err != nil {
		return fmt.Errorf("the shipped schema of the registry: %w", err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

// Liveness is whether an agent's heartbeats arrive.
type Liveness string

// The livenesses.
const (
	Live            Liveness = "live"
	PossiblyOffline Liveness = "possibly-offline"
	Gone            Liveness = "offline" // silent for too long, or its entry says so
)

// liveness returns that of an entry whose last heartbeat the server stored at seen. An agent is offline after the
// threshold, and after three of its heartbeats if they end before.
func (e Entry) liveness(seen, now time.Time, threshold time.Duration) Liveness {
	limit := min(threshold, e.patience(threshold))
	switch silent := now.Sub(seen); {
	case e.Status == Offline || silent > limit:
		return Gone
	case silent > limit/3*2:
		return PossiblyOffline
	}
	return Live
}

// patience returns how long an entry stays without a heartbeat: three heartbeats, or the threshold where it names no
// interval.
func (e Entry) patience(threshold time.Duration) time.Duration {
	if e.HeartbeatInterval > 0 {
		return 3 * e.interval()
	}
	return threshold
}

// interval returns HeartbeatInterval as a bounded duration.
func (e Entry) interval() time.Duration {
	return time.Duration(min(e.HeartbeatInterval, maximumHeartbeat.Seconds()) * float64(time.Second))
}

// Viewer is an agent or a person that reads the registry.
type Viewer struct{ GUID, ProjectID, Username, Hostname string }

// Sees reports whether the viewer may know of an agent. An entry without a visibility has the default, project-only.
func (v Viewer) Sees(e Entry) bool {
	if e.GUID == v.GUID {
		return true
	}
	switch cmp.Or(e.Visibility, store.ProjectOnly) {
	case store.Public:
		return true
	case store.ProjectOnly:
		return e.ProjectID != "" && e.ProjectID == v.ProjectID
	case store.UserOnly:
		return v.sameUser(e)
	}
	return false
}

func (v Viewer) sameUser(e Entry) bool {
	return e.Username != "" && e.Username == v.Username && e.Hostname == v.Hostname
}

// redact removes the name of the agent's user, unless it is the viewer's too.
func (v Viewer) redact(e Entry) Entry {
	if e.GUID != v.GUID && !v.sameUser(e) {
		e.Username = ""
	}
	return e
}

// Summary is an agent as discover_agents lists it.
type Summary struct {
	GUID               string   `json:"guid"`
	AgentType          string   `json:"agentType"`
	Handle             string   `json:"handle"`
	Hostname           string   `json:"hostname"`
	ProjectID          string   `json:"projectId,omitempty"`
	Scope              Scope    `json:"scope"`
	Capabilities       []string `json:"capabilities"`
	Status             Presence `json:"status"`
	LastHeartbeat      string   `json:"lastHeartbeat"`
	CurrentTaskCount   float64  `json:"currentTaskCount"`
	MaxConcurrentTasks float64  `json:"maxConcurrentTasks"`
	// PossiblyOffline says that two heartbeats are missing.
	PossiblyOffline bool `json:"possiblyOffline,omitempty"`
}

func (e Entry) summary(l Liveness) Summary {
	s := Summary{e.GUID, e.AgentType, e.Handle, e.Hostname, e.ProjectID, e.Scope, e.Capabilities, e.Status,
		e.LastHeartbeat, e.CurrentTaskCount, e.MaxConcurrentTasks, l == PossiblyOffline}
	if s.Capabilities == nil {
		s.Capabilities = []string{}
	}
	if l == Gone {
		s.Status = Offline
	}
	return s
}

// Can reports whether the agent names all the capabilities.
func (e Entry) Can(capabilities []string) bool {
	for _, want := range capabilities {
		if !slices.ContainsFunc(e.Capabilities, func(have string) bool { return strings.EqualFold(have, want) }) {
			return false
		}
	}
	return true
}

// Full reports whether the agent has as many tasks as it accepts.
func (e Entry) Full() bool {
	return e.MaxConcurrentTasks > 0 && e.CurrentTaskCount >= e.MaxConcurrentTasks
}
