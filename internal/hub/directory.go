package hub

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Kind is what an agent is.
type Kind string

// The kinds of agents.
const (
	KindProgram Kind = "program" // the hub starts it
	KindSession Kind = "session" // an open conversation of a person
	KindPeer    Kind = "peer"    // of another hub
	KindLibrary Kind = "library" // a Go program that is connected to the hub
)

// Residence is what an agent is and where it is to be found. Residences are comparable.
type Residence struct {
	Kind Kind
	// Handle is the name by which people call the agent; "" is its id. Several agents may have the same.
	Handle     string
	GUID       string // of a session, in the agents' network
	Type       string // of a session, as it says: for example reviewer
	Vendor     string // of the agent's program: claude, codex, gemini and so on; "" if it is not known
	Project    string // its id in the agents' network
	Folder     string // the name of the project's directory
	Computer   string
	Visibility string // of a session, as it says: see package registry
	// Hidden agents are for this hub's own users and agents only: other hubs and clients from outside neither see nor
	// reach them.
	Hidden  bool
	Offline bool
	Busy    bool      // it says that it works, also without a task of the hub
	Seen    time.Time // the last sign of life of an agent that is offline; else zero
}

// AgentState is what an agent does now.
type AgentState string

// The states of agents.
const (
	AgentIdle    AgentState = "idle"
	AgentWorking AgentState = "working"
	AgentWaiting AgentState = "waiting" // for a person: it has asked something
	AgentOffline AgentState = "offline" // or not installed
)

// AgentStates lists the states of agents.
func AgentStates() []AgentState {
	return []AgentState{AgentWorking, AgentWaiting, AgentIdle, AgentOffline}
}

// Work is a task that an agent works on, or for which it waits for a person.
type Work struct {
	Task  a2a.TaskID
	Title string // the first line of the task; "" if the task is not in memory
}

// residence returns the agent's residence with its kind.
func (a Agent) residence() Residence {
	r := a.Residence
	if r.Kind == "" {
		r.Kind = KindProgram
		if a.Definition.Driver == runner.DriverPeer {
			r.Kind = KindPeer
		}
	}
	r.Handle = cmp.Or(r.Handle, a.Definition.ID)
	r.Vendor = cmp.Or(r.Vendor, vendorOf(a.Definition.Driver), vendorOf(filepath.Base(a.Definition.Command)))
	return r
}

// vendorOf returns the vendor whose name a driver's or program's name begins with, "" if it is not known.
func vendorOf(name string) string {
	vendor, _, _ := strings.Cut(name, "-")
	if slices.Contains([]string{"claude", "codex", "gemini", "vibe"}, vendor) {
		return vendor
	}
	return ""
}

// Move changes where an agent is to be found. The error is CodeAgentNotFound.
func (h *Hub) Move(id string, to Residence) error {
	a := h.agents.get(id)
	if a == nil {
		return h.agentNotFound(id)
	}
	a.mu.Lock()
	a.at = Agent{Definition: a.def, Residence: to}.residence()
	a.mu.Unlock()
	h.cfg.Events.Publish(events.Event{Kind: events.AgentUpdated, Agent: id})
	h.agentsChanged()
	return nil
}

// info returns what the directory says of the agent.
func (a *agent) info() AgentInfo {
	a.mu.Lock()
	def, at, running, waiting, model := a.def, a.at, a.queue.running, a.queue.waiting, a.model
	a.mu.Unlock()
	info := AgentInfo{
		Definition: def, Residence: at, RegisteredAt: a.registered, Health: a.health.current(), Running: running, Queued: waiting,
		State: AgentIdle, Since: a.registered, Model: cmp.Or(model, def.Model),
	}
	open, since := a.hub.index.activity(a.id)
	if since > 0 {
		info.Since = time.Unix(0, since).UTC()
	}
	if open != nil {
		info.State, info.Work = AgentWorking, Work{open.ID, a.hub.titleOf(open.ID)}
		if Interrupted(open.State) {
			info.State = AgentWaiting
		}
	}
	switch {
	case at.Offline || info.Health.Stage == runner.StageMissing:
		info.State = AgentOffline
		if !at.Seen.IsZero() {
			info.Since = at.Seen
		}
	case at.Busy && info.State == AgentIdle:
		info.State = AgentWorking
	}
	return info
}

// titleOf returns the first line of a task that is in memory, "" for any other.
func (h *Hub) titleOf(id a2a.TaskID) string {
	t := h.acquireLive(id)
	if t == nil {
		if rec, ok := h.cache.get(id); ok && len(rec.History) > 0 {
			return promptLine(rec.History[0].Parts)
		}
		return ""
	}
	defer h.release(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.history) == 0 {
		return ""
	}
	return promptLine(t.history[0].Parts)
}

// answered notes the model that has answered.
func (a *agent) answered(model string) {
	if model == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.model = text.Clip(model, maxPromptLine)
}

// activity returns a task that an agent works on, otherwise one for which it waits for a person, otherwise nil; and when
// its tasks changed last, in Unix nanoseconds, 0 without a task. Of several tasks it is the one changed last.
func (x *index) activity(agent string) (open *head, since int64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var found *entry
	for e := range x.open[agent] {
		if found == nil || precedes(e, found) {
			found = e
		}
	}
	if found == nil {
		return nil, x.latest[agent]
	}
	h := found.head()
	return &h, h.Updated
}

// precedes reports whether one of two open tasks says more about what the agent does.
func precedes(e, than *entry) bool {
	if working := e.state == a2a.TaskStateWorking; working != (than.state == a2a.TaskStateWorking) {
		return working
	}
	return e.updated > than.updated
}

// addresses returns the texts by which an agent is addressed, the shortest first. Only its id is always unique.
func (i AgentInfo) addresses() []string {
	at := i.Residence
	names := []string{at.Handle}
	if at.Folder != "" {
		names = append(names, at.Handle+"."+at.Folder)
	}
	if at.Project != "" {
		names = append(names, at.Handle+"."+at.Project)
	}
	if at.Computer != "" {
		for _, name := range slices.Clone(names) {
			names = append(names, name+"@"+at.Computer)
		}
	}
	return names
}

// FindAgent returns the agent that a person or an agent of this hub means by a name: an id, or a handle, alone or with its
// project or its computer, as in reviewer.shop and reviewer@office. A program's id means the program. Of several agents
// with the same handle it is the only one in the project: the id of the caller's project in the agents' network, "" for
// none. The error is CodeAgentNotFound, or CodeInvalid for an ambiguous name.
func (h *Hub) FindAgent(name, project string) (AgentInfo, error) {
	all := h.Agents()
	var named []AgentInfo
	for _, a := range all {
		at := a.Residence
		if a.Definition.ID == name && (at.Kind == KindProgram || at.Handle != name) {
			return a, nil
		}
		if slices.ContainsFunc(a.addresses(), func(address string) bool { return strings.EqualFold(address, name) }) {
			named = append(named, a)
		}
	}
	if one, ok := only(named, func(AgentInfo) bool { return true }); ok {
		return one, nil
	}
	if one, ok := only(named, func(a AgentInfo) bool { return project != "" && a.Residence.Project == project }); ok {
		return one, nil
	}
	if len(named) == 0 {
		return AgentInfo{}, h.agentNotFound(name)
	}
	return AgentInfo{}, ambiguous(name, named, all)
}

// only returns the only agent that matches.
func only(agents []AgentInfo, match func(AgentInfo) bool) (found AgentInfo, ok bool) {
	for _, a := range agents {
		if !match(a) {
			continue
		}
		if ok {
			return AgentInfo{}, false
		}
		found, ok = a, true
	}
	return found, ok
}

// maxCandidates bounds the agents that an error names.
const maxCandidates = 5

func ambiguous(name string, named, all []AgentInfo) *Error {
	n := countAddresses(all)
	var candidates []string
	for _, a := range named[:min(len(named), maxCandidates)] {
		candidates = append(candidates, a.address(n))
	}
	return &Error{Code: CodeInvalid, Subject: "agent",
		Message: fmt.Sprintf("%d agents are called %q: %s", len(named), text.Clip(name, 64), strings.Join(candidates, ", ")),
		Remedy:  "use one of these names"}
}

// Addresses returns for each agent the shortest name that means only it in every project, by its id.
func Addresses(all []AgentInfo) map[string]string {
	n := countAddresses(all)
	byID := make(map[string]string, len(all))
	for _, a := range all {
		byID[a.Definition.ID] = a.address(n)
	}
	return byID
}

// countAddresses returns how many agents have each address.
func countAddresses(all []AgentInfo) map[string]int {
	n := make(map[string]int, 2*len(all))
	for _, a := range all {
		for _, address := range a.addresses() {
			n[strings.ToLower(address)]++
		}
		if id := a.Definition.ID; id != a.Residence.Handle {
			n[id]++
		}
	}
	return n
}

// address returns the shortest of the agent's addresses that no other agent has, otherwise its id.
func (i AgentInfo) address(count map[string]int) string {
	for _, address := range i.addresses() {
		if count[strings.ToLower(address)] == 1 {
			return address
		}
	}
	return i.Definition.ID
}
