package swarm

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Status is where a swarm stands.
type Status string

// The states of a swarm.
const (
	Recruiting Status = "recruiting"
	Active     Status = "active"
	Completing Status = "completing" // all is done, the results are put together
	Completed  Status = "completed"
	Failed     Status = "failed"
)

// Ended reports whether nothing more will happen.
func (s Status) Ended() bool { return s == Completed || s == Failed }

// SubTaskStatus is where a sub-task stands.
type SubTaskStatus string

// The states of a sub-task.
const (
	TaskPending   SubTaskStatus = "pending"
	TaskRunning   SubTaskStatus = "running"
	TaskCompleted SubTaskStatus = "completed"
	TaskFailed    SubTaskStatus = "failed"
)

// Session is a swarm. It is a snapshot: it does not change any more.
type Session struct {
	ID              string `json:"id"`
	TaskDescription string `json:"taskDescription"`
	// Participants in the order in which they joined.
	Participants []string  `json:"participants"`
	SubTasks     []SubTask `json:"subTasks"`
	Status       Status    `json:"status"`
	// SharedState is what participants and coordinator have put there, results that
	// are large left out.
	SharedState map[string]json.RawMessage `json:"sharedState"`
	CreatedAt   int64                      `json:"createdAt"` // Unix time in milliseconds
	// Coordinator is the agent that leads, Epoch how many have led before it.
	Coordinator string `json:"coordinator"`
	Epoch       int    `json:"epoch"`
	// Outcome is the aggregated result of a completed swarm.
	Outcome json.RawMessage `json:"outcome,omitempty"`
	// Error is why it failed.
	Error string `json:"error,omitempty"`
	// Sequence is the journal's record that led here; it grows with each change.
	Sequence uint64 `json:"sequence"`
}

// SubTask is a part of a swarm's task.
type SubTask struct {
	ID            string `json:"id"`
	Description   string `json:"description"`
	AssignedAgent string `json:"assignedAgent"`
	// RequiredCapabilities are the plan's and the part's own.
	RequiredCapabilities []string        `json:"requiredCapabilities"`
	DependsOn            []string        `json:"dependsOn,omitempty"`
	Input                json.RawMessage `json:"input,omitempty"`
	Status               SubTaskStatus   `json:"status"`
	Result               json.RawMessage `json:"result,omitempty"`
	Error                string          `json:"error,omitempty"` // of the last attempt that failed
	// Attempt counts how often an agent was told to begin it, in all rounds.
	Attempt int `json:"attempt"`
}

// state is a swarm as the journal tells it. Its owner locks.
type state struct {
	s       Session
	plan    Plan
	index   map[string]int      // of sub-tasks by id
	needed  map[string][]string // who waits for a sub-task
	waits   map[string]int      // dependencies that are not done
	members map[string]bool
	held    map[string]map[string]bool // sub-tasks by agent that are assigned and not done
	tried   map[string]map[string]bool // agents by sub-task
	open    int                        // sub-tasks that are not completed
	left    map[string]bool            // participants that are gone
	keys    int                        // of the shared state that participants have put there
	bytes   int                        // of the shared state
	round   map[string]int             // the attempts that a sub-task had when its latest round began
	// written is what the changes of the shared state have cost so far, by participant.
	written      map[string]int
	writtenByAll int
}

// event is one change of a swarm. Exactly one field is set.
type event struct {
	Created  *created  `json:"created,omitempty"`
	Joined   []string  `json:"joined,omitempty"`
	Left     string    `json:"left,omitempty"`
	Parts    []SubTask `json:"parts,omitempty"` // made when participants are known
	Assigned *assigned `json:"assigned,omitempty"`
	Started  string    `json:"started,omitempty"` // sub-task
	Ended    *ended    `json:"ended,omitempty"`
	Set      *set      `json:"set,omitempty"`
	Status   *status   `json:"status,omitempty"`
	Took     *took     `json:"took,omitempty"`
	Again    string    `json:"again,omitempty"` // sub-task that gets another round
}

type created struct {
	ID          string `json:"id"`
	Plan        Plan   `json:"plan"`
	Coordinator string `json:"coordinator"`
	At          int64  `json:"at"`
}

type assigned struct {
	SubTask string `json:"subTask"`
	Agent   string `json:"agent"` // "" takes it away
}

type ended struct {
	SubTask string          `json:"subTask"`
	Agent   string          `json:"agent"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   string          `json:"error,omitempty"` // of a failed attempt
	Final   bool            `json:"final,omitempty"` // it is given up
}

type set struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value,omitempty"` // empty removes the key
	// By is the participant that asked for it, as the coordinator knows it.
	By string `json:"by,omitempty"`
}

// cost is what the change takes of CoordinatorOptions.MaxWritten.
func (s *set) cost() int { return len(s.Key) + len(s.Value) + changeCost }

type status struct {
	Status  Status          `json:"status"`
	Outcome json.RawMessage `json:"outcome,omitempty"`
	Error   string          `json:"error,omitempty"`
}

type took struct {
	Coordinator string `json:"coordinator"`
}

// apply makes a change. It fails only for events that no coordinator writes.
func (x *state) apply(e event) error {
	if (x.s.ID == "") != (e.Created != nil) {
		return errorf(CodeJournal, x.s.ID, "a swarm's journal begins with its creation, and has one")
	}
	if id := e.subTask(); id != "" && x.find(id) == nil {
		return errorf(CodeJournal, x.s.ID, "the journal speaks of sub-task %q, which there is not", id)
	}
	x.change(e)
	return nil
}

// size is how many bytes the event takes in a record, about.
func (e *event) size() (int, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return 0, &Error{Code: CodeInvalid, Message: "the plan cannot be written", Err: err}
	}
	return len(data), nil
}

// subTask returns which sub-task it is about, "" for none.
func (e *event) subTask() string {
	switch {
	case e.Assigned != nil:
		return e.Assigned.SubTask
	case e.Ended != nil:
		return e.Ended.SubTask
	case e.Started != "":
		return e.Started
	}
	return e.Again
}

func (x *state) change(e event) {
	switch {
	case e.Created != nil:
		x.create(e.Created)
	case e.Joined != nil:
		for _, id := range e.Joined {
			if !x.members[id] {
				x.members[id] = true
				x.s.Participants = append(x.s.Participants, id)
			}
			delete(x.left, id)
		}
	case e.Left != "":
		x.left[e.Left] = true
	case e.Parts != nil:
		x.setParts(e.Parts)
	case e.Assigned != nil:
		x.assign(e.Assigned.SubTask, e.Assigned.Agent)
	case e.Started != "":
		t := x.part(e.Started)
		t.Status = TaskRunning
		t.Attempt++
		mark(x.tried, t.ID, t.AssignedAgent)
	case e.Ended != nil:
		x.end(e.Ended)
	case e.Set != nil:
		x.put(e.Set.Key, e.Set.Value)
		if by := e.Set.By; by != "" {
			x.written[by] += e.Set.cost()
			x.writtenByAll += e.Set.cost()
		}
	case e.Status != nil:
		x.s.Status, x.s.Outcome, x.s.Error = e.Status.Status, e.Status.Outcome, e.Status.Error
		if x.s.Status == Failed {
			x.cutOff()
		}
	case e.Took != nil:
		x.s.Coordinator = e.Took.Coordinator
		x.s.Epoch++
	case e.Again != "":
		t := x.part(e.Again)
		t.Status = TaskPending
		x.round[e.Again] = t.Attempt
		delete(x.tried, e.Again)
	}
}

// cutOff ends what runs when its swarm fails: nobody waits for it any more.
func (x *state) cutOff() {
	for i := range x.s.SubTasks {
		if t := &x.s.SubTasks[i]; t.Status == TaskRunning {
			t.Status, t.Error = TaskFailed, "the swarm ended before it was done"
		}
	}
}

func (x *state) create(c *created) {
	x.plan = c.Plan
	x.s = Session{
		ID: c.ID, TaskDescription: c.Plan.TaskDescription, Participants: []string{}, SubTasks: []SubTask{}, Status: Recruiting,
		SharedState: make(map[string]json.RawMessage), CreatedAt: c.At, Coordinator: c.Coordinator,
	}
	x.members, x.left, x.round = make(map[string]bool), make(map[string]bool), make(map[string]int)
	x.held, x.tried = make(map[string]map[string]bool), make(map[string]map[string]bool)
	x.written = make(map[string]int)
	var parts []SubTask
	for _, t := range c.Plan.SubTasks {
		parts = append(parts, SubTask{
			ID: t.ID, Description: t.Description, RequiredCapabilities: union(c.Plan.RequiredCapabilities, t.RequiredCapabilities),
			DependsOn: t.DependsOn, Input: t.Input, Status: TaskPending,
		})
	}
	x.setParts(parts)
}

func union(a, b []string) []string {
	all := append(slices.Clone(a), b...)
	slices.Sort(all)
	return slices.Compact(all)
}

func (x *state) setParts(parts []SubTask) {
	x.s.SubTasks = append([]SubTask{}, parts...)
	x.index, x.needed, x.waits = make(map[string]int, len(parts)), make(map[string][]string), make(map[string]int)
	x.open = len(parts)
	for i, t := range parts {
		x.index[t.ID] = i
		x.waits[t.ID] = len(t.DependsOn)
		for _, on := range t.DependsOn {
			x.needed[on] = append(x.needed[on], t.ID)
		}
	}
}

func (x *state) part(id string) *SubTask { return &x.s.SubTasks[x.index[id]] }

// find returns a sub-task, nil if there is none of this id.
func (x *state) find(id string) *SubTask {
	i, ok := x.index[id]
	if !ok {
		return nil
	}
	return &x.s.SubTasks[i]
}

func (x *state) assign(id, to string) {
	t := x.part(id)
	x.release(t)
	t.Status, t.AssignedAgent = TaskPending, to
	if to == "" {
		return
	}
	mark(x.held, to, id)
}

func mark(m map[string]map[string]bool, key, member string) {
	if m[key] == nil {
		m[key] = make(map[string]bool)
	}
	m[key][member] = true
}

// release takes a sub-task off its agent's load.
func (x *state) release(t *SubTask) {
	if held := x.held[t.AssignedAgent]; held != nil {
		if delete(held, t.ID); len(held) == 0 {
			delete(x.held, t.AssignedAgent)
		}
	}
}

func (x *state) end(e *ended) {
	t := x.part(e.SubTask)
	x.release(t)
	if e.Error != "" {
		t.Error, t.Status = e.Error, TaskPending
		if e.Final {
			t.Status = TaskFailed
		}
		return
	}
	t.Status, t.Result, t.AssignedAgent, t.Error = TaskCompleted, e.Result, e.Agent, ""
	x.put(partKey(t.ID), x.partValue(t))
	x.open--
	for _, next := range x.needed[t.ID] {
		x.waits[next]--
	}
}

// partPrefix begins the keys of the shared state that report finished sub-tasks.
// Participants cannot write them.
const partPrefix = "subTask/"

func partKey(id string) string { return partPrefix + id }

// Bounds of what the shared state has of results. Those who depend on one that is
// left out get it with their work.
const (
	maxSharedResult  = 16 << 10
	maxSharedResults = 16 << 20
)

func (x *state) partValue(t *SubTask) json.RawMessage {
	part := map[string]any{"status": t.Status, "agent": t.AssignedAgent, "result": t.Result}
	switch {
	case len(t.Result) == 0:
		part["result"] = nil
	case len(t.Result) > maxSharedResult || x.bytes > maxSharedResults:
		delete(part, "result")
		part["resultBytes"] = len(t.Result)
	}
	data, err := json.Marshal(part)
	if err != nil {
		return json.RawMessage("null") // a result is JSON: it was checked when it came
	}
	return data
}

// put changes the shared state; an empty value removes the key.
func (x *state) put(key string, value json.RawMessage) {
	old, had := x.s.SharedState[key]
	own := strings.HasPrefix(key, partPrefix)
	if had {
		x.bytes -= len(key) + len(old)
		if !own {
			x.keys--
		}
		delete(x.s.SharedState, key)
	}
	if len(value) == 0 {
		return
	}
	x.bytes += len(key) + len(value)
	if !own {
		x.keys++
	}
	x.s.SharedState[key] = value
}

func (x *state) has(key string) bool {
	_, ok := x.s.SharedState[key]
	return ok
}

// exhausted reports whether a sub-task has had all attempts of its round.
func (x *state) exhausted(t *SubTask) bool { return t.Attempt-x.round[t.ID] >= x.plan.MaxAttempts }

// ready reports whether a sub-task's dependencies are done.
func (x *state) ready(id string) bool { return x.waits[id] == 0 }

// snapshot returns the session as it stands, sharing only what never changes.
func (x *state) snapshot() Session {
	s := x.s
	s.Participants = slices.Clone(s.Participants)
	s.SubTasks = slices.Clone(s.SubTasks)
	s.SharedState = maps.Clone(s.SharedState)
	return s
}
