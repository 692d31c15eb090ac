package swarm

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Status is the state of a swarm.
type Status string

// The states of a swarm.
const (
	Recruiting Status = "recruiting"
	Active     Status = "active"
	Completing Status = "completing" // all sub-tasks are done, the results are being aggregated
	Completed  Status = "completed"
	Failed     Status = "failed"
)

// Ended reports whether the status is final.
func (s Status) Ended() bool { return s == Completed || s == Failed }

// SubTaskStatus is the state of a sub-task.
type SubTaskStatus string

// The states of a sub-task.
const (
	TaskPending   SubTaskStatus = "pending"
	TaskRunning   SubTaskStatus = "running"
	TaskCompleted SubTaskStatus = "completed"
	TaskFailed    SubTaskStatus = "failed"
)

// Session is a snapshot of a swarm.
type Session struct {
	ID              string    `json:"id"`
	TaskDescription string    `json:"taskDescription"`
	Participants    []string  `json:"participants"` // in the order in which they joined
	SubTasks        []SubTask `json:"subTasks"`
	Status          Status    `json:"status"`
	// SharedState has the values of participants and coordinator, without large results.
	SharedState map[string]json.RawMessage `json:"sharedState"`
	CreatedAt   int64                      `json:"createdAt"`         // Unix time in milliseconds
	Coordinator string                     `json:"coordinator"`       // the agent that leads
	Epoch       int                        `json:"epoch"`             // how many coordinators led before
	Outcome     json.RawMessage            `json:"outcome,omitempty"` // of a completed swarm
	Error       string                     `json:"error,omitempty"`   // of a failed swarm
	Causes      []Cause                    `json:"causes,omitempty"`  // of a failed swarm: agents that do not take part
	// Directory and Unattended are the plan's.
	Directory  *Directory `json:"directory,omitempty"`
	Unattended bool       `json:"unattended,omitempty"`
	Sequence   uint64     `json:"sequence"` // of the last record in the journal
}

// SubTask is a part of a swarm's task.
type SubTask struct {
	ID                   string          `json:"id"`
	Description          string          `json:"description"`
	AssignedAgent        string          `json:"assignedAgent"`
	RequiredCapabilities []string        `json:"requiredCapabilities"` // the plan's and its own
	DependsOn            []string        `json:"dependsOn,omitempty"`
	Input                json.RawMessage `json:"input,omitempty"`
	Status               SubTaskStatus   `json:"status"`
	Result               json.RawMessage `json:"result,omitempty"`
	Error                string          `json:"error,omitempty"` // of the last failed attempt
	Attempt              int             `json:"attempt"`         // how often it was started, in all rounds
}

// state is a swarm's state from the journal. Its owner locks.
type state struct {
	s            Session
	plan         Plan
	index        map[string]int      // of sub-tasks by id
	needed       map[string][]string // sub-tasks that depend on a sub-task
	waits        map[string]int      // dependencies that are not done
	members      map[string]bool
	held         map[string]map[string]bool // sub-tasks by agent that are assigned and not done
	tried        map[string]map[string]bool // agents by sub-task
	open         int                        // sub-tasks that are not completed
	left         map[string]bool            // participants that have left
	keys         int                        // of the shared state, without results
	bytes        int                        // of the shared state
	round        map[string]int             // the attempts that a sub-task had when its latest round began
	wanted       map[string]string          // agents that are to do a sub-task, by sub-task
	written      map[string]int             // bytes of changes of the shared state, by participant
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
	Again    *again    `json:"again,omitempty"`
}

// again is another round of attempts at a sub-task.
type again struct {
	SubTask string `json:"subTask"`
	To      string `json:"to,omitempty"` // the only agent that is to do it; "" for any that is able
}

// UnmarshalJSON also reads the form of former versions, the id of the sub-task alone.
func (a *again) UnmarshalJSON(data []byte) error {
	*a = again{}
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, &a.SubTask)
	}
	type plain again
	return json.Unmarshal(data, (*plain)(a))
}

type created struct {
	ID          string `json:"id"`
	Plan        Plan   `json:"plan"`
	Coordinator string `json:"coordinator"`
	At          int64  `json:"at"`
}

type assigned struct {
	SubTask string `json:"subTask"`
	Agent   string `json:"agent"` // "" withdraws the sub-task
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
	// By is the participant that requested it, set by the coordinator.
	By string `json:"by,omitempty"`
}

// cost is what counts for CoordinatorOptions.MaxWritten.
func (s *set) cost() int { return len(s.Key) + len(s.Value) + changeCost }

type status struct {
	Status  Status          `json:"status"`
	Outcome json.RawMessage `json:"outcome,omitempty"`
	Error   string          `json:"error,omitempty"`
	Causes  []Cause         `json:"causes,omitempty"`
}

type took struct {
	Coordinator string `json:"coordinator"`
}

// apply applies an event. It fails only for an invalid one.
func (x *state) apply(e event) error {
	if (x.s.ID == "") != (e.Created != nil) {
		return errorf(CodeJournal, x.s.ID, "a swarm's journal must begin with its creation, and have only one")
	}
	if id := e.subTask(); id != "" && x.find(id) == nil {
		return errorf(CodeJournal, x.s.ID, "the journal names sub-task %q, which does not exist", id)
	}
	x.change(e)
	return nil
}

// size is the event's approximate size in a record, in bytes.
func (e *event) size() (int, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return 0, &Error{Code: CodeInvalid, Message: "the plan cannot be written", Err: err}
	}
	return len(data), nil
}

// subTask returns the id of the event's sub-task, or "".
func (e *event) subTask() string {
	switch {
	case e.Assigned != nil:
		return e.Assigned.SubTask
	case e.Ended != nil:
		return e.Ended.SubTask
	case e.Started != "":
		return e.Started
	}
	if e.Again != nil {
		return e.Again.SubTask
	}
	return ""
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
		x.s.Status, x.s.Outcome, x.s.Error, x.s.Causes = e.Status.Status, e.Status.Outcome, e.Status.Error, e.Status.Causes
		if x.s.Status == Failed {
			x.cutOff()
		}
	case e.Took != nil:
		x.s.Coordinator = e.Took.Coordinator
		x.s.Epoch++
	case e.Again != nil:
		t := x.part(e.Again.SubTask)
		t.Status = TaskPending
		x.round[t.ID] = t.Attempt
		delete(x.tried, t.ID)
		x.direct(t.ID, e.Again.To)
	}
}

// direct notes which agent is to do a sub-task, which may be one that the plan does not name.
func (x *state) direct(id, agent string) {
	delete(x.wanted, id)
	if agent == "" {
		return
	}
	if x.wanted == nil {
		x.wanted = make(map[string]string)
	}
	x.wanted[id] = agent
	if len(x.plan.Agents) > 0 && !slices.Contains(x.plan.Agents, agent) {
		x.plan.Agents = append(slices.Clip(x.plan.Agents), agent)
	}
}

// cutOff fails the running sub-tasks of a failed swarm.
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
		ID: c.ID, TaskDescription: c.Plan.TaskDescription, Directory: c.Plan.Directory, Unattended: c.Plan.Unattended, Participants: []string{}, SubTasks: []SubTask{}, Status: Recruiting,
		SharedState: make(map[string]json.RawMessage), CreatedAt: c.At, Coordinator: c.Coordinator,
	}
	x.members, x.left, x.round = make(map[string]bool), make(map[string]bool), make(map[string]int)
	x.held, x.tried = make(map[string]map[string]bool), make(map[string]map[string]bool)
	x.written = make(map[string]int)
	x.setParts(c.Plan.parts())
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

// find returns the sub-task with this id, or nil.
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

// release removes a sub-task from its agent's load.
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

// partPrefix begins the keys of the shared state that report finished sub-tasks. Participants cannot write them.
const partPrefix = "subTask/"

func partKey(id string) string { return partPrefix + id }

// Bounds of the results in the shared state. A dependent sub-task gets an omitted result with its work.
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
		return json.RawMessage("null") // a result was checked to be JSON
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

// snapshot returns the present session, which shares only immutable data.
func (x *state) snapshot() Session {
	s := x.s
	s.Participants = slices.Clone(s.Participants)
	s.SubTasks = slices.Clone(s.SubTasks)
	s.SharedState = maps.Clone(s.SharedState)
	return s
}
