package hub

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/uuid"

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
	KindQueue   Kind = "queue"   // a queue of the agents' network: whoever claims a task does it
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
	Hub        string // the name that this hub's user gave the other hub, of a peer's agent
	Visibility string // as a session or a connected program says: see package registry
	// Hidden agents are for this hub's own users and agents only: other hubs and clients from outside neither see nor
	// reach them.
	Hidden  bool
	Offline bool
	Busy    bool      // it says that it works, also without a task of the hub
	Quiet   bool      // of a session: nothing wakes it, it sees what is new at its next turn
	Seen    time.Time // the last sign of life of an agent that is offline; else zero
}

// QuietNotice tells a sender why a session that is quiet is not woken.
const QuietNotice = "the session is not to be disturbed: it is told at its next turn"

// OfflineReason is why a task waits for a session that is away: see [WaitingNotice].
const OfflineReason = "the session is offline"

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
	Title string // the first line of the task; "" if it is not known
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
	if slices.Contains([]string{"claude", "codex", "gemini", "opencode", "vibe"}, vendor) {
		return vendor
	}
	return ""
}

// AgentsFor returns the agents that the sender of a context sees, in the order of [Hub.Agents].
func (h *Hub) AgentsFor(ctx context.Context) []AgentInfo {
	all, sender := h.Agents(), SenderFrom(ctx)
	return slices.DeleteFunc(all, func(i AgentInfo) bool { return !i.VisibleTo(sender) })
}

// AgentFor is [Hub.Agent] for the sender of a context: an agent that the sender does not see is not there.
func (h *Hub) AgentFor(ctx context.Context, id string) (AgentInfo, error) {
	info, err := h.Agent(id)
	if err == nil && !info.VisibleTo(SenderFrom(ctx)) {
		return AgentInfo{}, h.agentNotFound(id)
	}
	return info, err
}

// Move changes where an agent is to be found. The error is CodeAgentNotFound.
func (h *Hub) Move(id string, to Residence) error {
	a := h.agents.get(id)
	if a == nil {
		return h.agentNotFound(id)
	}
	a.mu.Lock()
	if to.Offline != a.at.Offline || to.Busy != a.at.Busy {
		a.moved = time.Now().UTC()
	}
	a.at = Agent{Definition: *a.def, Residence: to}.residence()
	a.mu.Unlock()
	h.cfg.Events.Publish(events.Event{Kind: events.AgentUpdated, Agent: id})
	h.agentsChanged()
	return nil
}

// info returns what the directory says of the agent.
func (a *agent) info() AgentInfo {
	a.mu.Lock()
	def, at, moved, running, waiting, model := a.def, a.at, a.moved, a.queue.running, a.queue.waiting, a.model
	a.mu.Unlock()
	info := AgentInfo{
		Definition: def, Residence: at, RegisteredAt: a.registered, Health: a.health.current(), Running: running, Queued: waiting,
		State: AgentIdle, Since: a.registered, Model: cmp.Or(model, def.Model),
	}
	open, since := a.hub.index.activity(a.id)
	if since > 0 {
		info.Since = time.Unix(0, since).UTC()
	}
	if open == nil && moved.After(info.Since) { // an open task has begun the state, whatever its agent has done since
		info.Since = moved
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

// called reports whether a name addresses the agent by its handle, alone or with its project or its computer.
func (r Residence) called(name string) bool {
	if len(name) < len(r.Handle) || !strings.EqualFold(name[:len(r.Handle)], r.Handle) {
		return false
	}
	rest, computer, at := strings.Cut(name[len(r.Handle):], "@")
	if at && (r.Computer == "" || !strings.EqualFold(computer, r.Computer)) {
		return false
	}
	if rest == "" {
		return true
	}
	place, ok := strings.CutPrefix(rest, ".")
	return ok && place != "" && (strings.EqualFold(place, r.Folder) || strings.EqualFold(place, r.Project))
}

// calledThere reports whether a name addresses a peer's agent by its handle and its hub, as in reviewer@office, and whether it does so
// by the id that the agent has at its hub.
func (r Residence) calledThere(id, name string) (byHandle, byID bool) {
	at := strings.LastIndexByte(name, '@')
	if r.Hub == "" || at < 0 || !strings.EqualFold(name[at+1:], r.Hub) {
		return false, false
	}
	return r.called(name[:at]), strings.EqualFold(id, r.Hub+"."+name[:at])
}

// The ways in which a name means an agent, the strongest first. What the user calls another hub counts more than what that
// hub says of its computer.
const (
	namesOwn       = iota // an agent of this hub
	namesThereAlso        // by its hub's name, which its computer has, too
	namesThere            // by its hub's name
	namesIDThere          // by its hub's name and its id there
	namesElsewhere        // a peer's agent in another way
	namesNothing
)

// named returns how a name means the agent with an id.
func (r Residence) named(id, name string) int {
	called := r.called(name)
	if r.Kind != KindPeer {
		if called {
			return namesOwn
		}
		return namesNothing
	}
	byHandle, byID := r.calledThere(id, name)
	switch {
	case byHandle && called:
		return namesThereAlso
	case byHandle:
		return namesThere
	case byID:
		return namesIDThere
	case called:
		return namesElsewhere
	}
	return namesNothing
}

// address is a name of an agent with its project or computer, in lower case.
type address struct{ handle, place, computer string }

func (a address) String() string {
	name := a.handle
	if a.place != "" {
		name += "." + a.place
	}
	if a.computer != "" {
		name += "@" + a.computer
	}
	return name
}

// maxAddresses is how many longer names an agent has at most.
const maxAddresses = 5

// addresses appends the longer names with which the agent may be addressed, in the order of preference.
func (r *Residence) addresses(names []address) []address {
	handle, folder, project, computer := strings.ToLower(r.Handle), strings.ToLower(r.Folder), strings.ToLower(r.Project), strings.ToLower(r.Computer)
	for _, on := range [...]string{"", computer} {
		for _, place := range [...]string{"", folder, project} {
			if a := (address{handle, place, on}); (place != "" || on != "") && !slices.Contains(names, a) {
				names = append(names, a)
			}
		}
	}
	return names
}

// FindAgent returns the agent that a person or an agent of this hub means by a name: an id, a session's GUID, or a handle, alone or with its
// project, its computer or its hub, as in reviewer.shop, reviewer@laptop and reviewer@office. A program's id means the program. Agents of
// this hub come before those of others, which say themselves what they are called. Of several with the same handle it is
// the only one in the project: the id of the caller's project in the agents' network, "" for none; then the one with this id, if
// no longer name tells it from the others. Agents that the sender of ctx does not see are not meant. The error is CodeAgentNotFound, or CodeInvalid for an ambiguous name.
func (h *Hub) FindAgent(ctx context.Context, name, project string) (AgentInfo, error) {
	sender := SenderFrom(ctx)
	var named, others []*agent // others are meant less than those that are named
	best := namesNothing
	for _, a := range h.agents.all() {
		at := a.residence()
		if at.Hidden && sender.Outside() {
			continue
		}
		if a.id == name && (at.Kind == KindProgram || at.Handle != name) || at.Kind == KindSession && at.GUID == name && name != "" {
			return a.info(), nil
		}
		how := at.named(a.id, name)
		switch {
		case how == namesNothing:
		case how < best:
			best, named, others = how, []*agent{a}, append(others, named...)
		case how == best:
			named = append(named, a)
		default:
			others = append(others, a)
		}
	}
	elsewhere := func(a *agent) bool { return project == "" || a.residence().Project != project }
	if here := slices.DeleteFunc(slices.Clone(named), elsewhere); len(here) == 1 {
		named = here
	}
	switch len(named) {
	case 0:
		return AgentInfo{}, h.agentNotFound(name)
	case 1:
		return named[0].info(), nil
	}
	addresses := Addresses(h.Agents())
	for _, a := range named {
		if a.id == name && addresses[a.id] == a.id {
			return a.info(), nil // no longer name tells it from the others
		}
	}
	return AgentInfo{}, ambiguous(name, append(named, others...), addresses)
}

// Session returns the session with a GUID in the agents' network.
func (h *Hub) Session(guid string) (info AgentInfo, ok bool) {
	for _, a := range h.agents.all() {
		if at := a.residence(); at.Kind == KindSession && at.GUID == guid {
			return a.info(), true
		}
	}
	return AgentInfo{}, false
}

// maxCandidates bounds the agents that an error names.
const maxCandidates = 12

// ambiguous names all agents that a name may mean, also those of other hubs, by what tells them apart.
func ambiguous(name string, named []*agent, addresses map[string]string) *Error {
	var candidates []string
	for _, a := range named[:min(len(named), maxCandidates)] {
		candidates = append(candidates, cmp.Or(addresses[a.id], a.id))
	}
	list, remedy := strings.Join(candidates, ", "), "use one of these names"
	if more := len(named) - maxCandidates; more > 0 {
		list, remedy = fmt.Sprintf("%s and %d more", list, more), "use one of these names, or one that the list of agents has"
	}
	return &Error{Code: CodeInvalid, Subject: "agent", Message: fmt.Sprintf("%d agents are called %q: %s", len(named), text.Clip(name, 64), list), Remedy: remedy}
}

// Addresses returns for each agent the shortest name that means only it in every project, by its id.
func Addresses(all []AgentInfo) map[string]string {
	known := newAddressBook(all, func(Kind) bool { return true })
	own := newAddressBook(all, func(k Kind) bool { return k != KindPeer })
	byID := make(map[string]string, len(all))
	for i := range all {
		book, a := known, &all[i]
		if a.Residence.Kind != KindPeer {
			book = own // a name means an agent of this hub first
		}
		byID[a.Definition.ID] = book.address(a)
	}
	return byID
}

// addressBook counts the agents that each name means.
type addressBook struct {
	short map[string]int  // ids and handles
	long  map[address]int // the longer names of agents that share a handle
	hubs  map[string]bool // the names of other hubs
}

// newAddressBook counts the names of the agents of some kinds.
func newAddressBook(agents []AgentInfo, of func(Kind) bool) addressBook {
	b := addressBook{make(map[string]int, len(agents)), make(map[address]int), make(map[string]bool)}
	for i := range agents {
		a := &agents[i]
		if !of(a.Residence.Kind) {
			continue
		}
		if a.Residence.Hub != "" {
			b.hubs[strings.ToLower(a.Residence.Hub)] = true
		}
		handle := strings.ToLower(a.Residence.Handle)
		b.short[handle]++
		if id := a.Definition.ID; id != handle {
			b.short[id]++
		}
	}
	var names [maxAddresses]address
	for i := range agents {
		at := &agents[i].Residence
		if !of(at.Kind) || b.short[strings.ToLower(at.Handle)] == 1 {
			continue
		}
		for _, name := range at.addresses(names[:0]) {
			b.long[name]++
		}
	}
	return b
}

// address returns the shortest name that means no other agent of the book, otherwise the agent's id.
func (b addressBook) address(a *AgentInfo) string {
	at := &a.Residence
	if at.Kind == KindSession && uuid.Validate(at.Handle) == nil {
		return a.Definition.ID // the handle may be another's GUID
	}
	var names [maxAddresses]address
	if b.short[strings.ToLower(at.Handle)] == 1 || a.Definition.ID == at.Handle && at.Kind == KindProgram {
		return at.Handle
	}
	for _, name := range at.addresses(names[:0]) {
		if b.long[name] != 1 || b.hubs[name.computer] && name.computer != strings.ToLower(at.Hub) {
			continue // the second would mean an agent of the hub that is called like the computer
		}
		if text := name.String(); b.short[text] == 0 {
			return text
		}
	}
	return a.Definition.ID
}
