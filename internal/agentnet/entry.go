package agentnet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/parleyhub/parley/schema"
)

// Scope says what an agent is there for.
type Scope string

// The scopes.
const (
	ScopeUser         Scope = "user"
	ScopeProject      Scope = "project"
	ScopeCrossProject Scope = "cross-project"
)

// Scopes lists them.
var Scopes = []Scope{ScopeUser, ScopeProject, ScopeCrossProject}

// Visibility says who can discover an agent (REQ-TOOL-DISCOVER-003).
type Visibility string

// The visibilities.
const (
	Private     Visibility = "private"      // nobody but itself
	ProjectOnly Visibility = "project-only" // agents of the same project
	UserOnly    Visibility = "user-only"    // agents of the same user on the same host
	Public      Visibility = "public"       // all
)

// Visibilities lists them.
var Visibilities = []Visibility{Private, ProjectOnly, UserOnly, Public}

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

// Entry is an agent in the registry (REQ-REGISTRY-005).
type Entry struct {
	GUID       string     `json:"guid"`
	AgentType  string     `json:"agentType"`
	Handle     string     `json:"handle"`
	Hostname   string     `json:"hostname"`
	Username   string     `json:"username,omitempty"`  // REQ-REGISTRY-006
	ProjectID  string     `json:"projectId,omitempty"` // REQ-REGISTRY-007
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

// decodeEntry reads an entry that this or another program has written, if the
// shipped schema accepts it.
func decodeEntry(data []byte) (Entry, error) {
	if err := checkSchema(data); err != nil {
		return Entry{}, err
	}
	var e Entry
	if err := json.Unmarshal(data, &e); err != nil {
		return Entry{}, err
	}
	return e, nil
}

// encode returns the entry's JSON. It refuses what the shipped schema does
// (REQ-REGISTRY-008).
func (e Entry) encode() ([]byte, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return data, checkSchema(data)
}

// entrySchema is the shipped schema, compiled once. The formats (GUID, date,
// URI) are part of it.
var entrySchema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema.AgentRegistry))
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

// Liveness is what a look at the clock says of an agent.
type Liveness string

// The livenesses.
const (
	Live            Liveness = "live"
	PossiblyOffline Liveness = "possibly-offline" // REQ-LIVENESS-002
	Gone            Liveness = "offline"          // REQ-LIVENESS-003, or it says so
)

// liveness judges an entry whose last heartbeat the server stored at seen.
func (e Entry) liveness(seen, now time.Time, threshold time.Duration) Liveness {
	limit := threshold
	if e.HeartbeatInterval > 0 {
		limit = 3 * e.interval()
	}
	switch silent := now.Sub(seen); {
	case e.Status == Offline || silent > limit:
		return Gone
	case silent > limit/3*2:
		return PossiblyOffline
	}
	return Live
}

// interval is HeartbeatInterval as a duration, bounded.
func (e Entry) interval() time.Duration {
	return time.Duration(min(e.HeartbeatInterval, maximumHeartbeat.Seconds()) * float64(time.Second))
}

// viewer is from where somebody looks at the registry.
type viewer struct{ guid, projectID, username, hostname string }

// sees says whether a viewer may know of an agent (REQ-TOOL-DISCOVER-003). An
// entry that names no visibility has the default, project-only.
func (v viewer) sees(e Entry) bool {
	if e.GUID == v.guid {
		return true
	}
	switch or(e.Visibility, ProjectOnly) {
	case Public:
		return true
	case ProjectOnly:
		return e.ProjectID != "" && e.ProjectID == v.projectID
	case UserOnly:
		return v.sameUser(e)
	}
	return false
}

func (v viewer) sameUser(e Entry) bool {
	return e.Username != "" && e.Username == v.username && e.Hostname == v.hostname
}

// redact removes what the viewer may not know though it sees the agent
// (REQ-TOOL-DISCOVER-004): its user's name, unless it is the viewer's too.
func (v viewer) redact(e Entry) Entry {
	if e.GUID != v.guid && !v.sameUser(e) {
		e.Username = ""
	}
	return e
}

// Summary is an agent as discover_agents lists it (REQ-TOOL-DISCOVER-006).
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

// can says whether an agent names all the capabilities.
func (e Entry) can(capabilities []string) bool {
	for _, want := range capabilities {
		if !slices.ContainsFunc(e.Capabilities, func(have string) bool { return strings.EqualFold(have, want) }) {
			return false
		}
	}
	return true
}

// full says whether an agent has as many tasks as it takes.
func (e Entry) full() bool {
	return e.MaxConcurrentTasks > 0 && e.CurrentTaskCount >= e.MaxConcurrentTasks
}
