package hub

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// index holds in memory what listings need of every task: its agent, its context, its state and its last change.
// Bodies stay in the store. Safe for concurrent use; no other lock is acquired under its lock.
type index struct {
	mu       sync.RWMutex
	tasks    map[a2a.TaskID]*entry
	contexts map[string]*conversation
	order    order
	states   map[a2a.TaskState]*order
	counts   map[stateKey]int
	open     map[string]map[*entry]struct{} // by agent: tasks that are worked on or wait for a person
	latest   map[string]int64               // by agent: the last change of its tasks, in Unix nanoseconds
	names    map[string]string              // one copy of each agent's id and state
	recent   names                          // those of the task that add has added last, which need no lookup
	last     int64                          // newest stamp
}

// names are the strings that many tasks share.
type names struct {
	agent   string
	state   a2a.TaskState
	project string
}

type stateKey struct {
	agent string
	state a2a.TaskState
}

// entry is one task. The index's lock guards updated, state and spent; the other fields never change.
type entry struct {
	id      a2a.TaskID
	context *conversation
	agent   string
	created int64 // Unix nanoseconds
	updated int64 // Unix nanoseconds, unique in the index
	state   a2a.TaskState
	spent   spent
}

// conversation is one context.
type conversation struct {
	id       string
	created  int64
	lastUsed int64
	order    order
	active   int // tasks that are submitted or working
}

func newIndex() *index {
	return &index{
		tasks:    map[a2a.TaskID]*entry{},
		contexts: map[string]*conversation{},
		states:   map[a2a.TaskState]*order{},
		counts:   map[stateKey]int{},
		open:     map[string]map[*entry]struct{}{},
		latest:   map[string]int64{},
		names:    map[string]string{},
	}
}

// expect makes room for a number of tasks in an empty index.
func (x *index) expect(tasks int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tasks = make(map[a2a.TaskID]*entry, tasks)
	x.order.slots = make([]slot, 0, tasks)
}

// stamp returns the time of a change: now, but later than every earlier stamp, so that a
// stamp identifies one change and cursors are exact.
func (x *index) stamp() time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last = max(x.last+1, time.Now().UnixNano())
	return time.Unix(0, x.last).UTC()
}

// add adds a task, or returns the existing entry.
func (x *index) add(h head) *entry {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.tasks[h.ID]; e != nil {
		return e
	}
	c := x.contexts[h.Context]
	if c == nil {
		c = &conversation{id: h.Context, created: h.Created}
		x.contexts[h.Context] = c
	}
	c.created = min(c.created, h.Created)
	c.lastUsed = max(c.lastUsed, h.Updated)
	n := x.namesOf(h)
	e := &entry{id: h.ID, context: c, agent: n.agent, created: h.Created, updated: h.Updated, state: n.state, spent: h.Spent}
	e.spent.project = n.project
	x.last = max(x.last, h.Updated)
	x.tasks[h.ID] = e
	x.order.insert(e)
	c.order.insert(e)
	x.count(e, 1)
	return e
}

// namesOf returns the shared copies of a head's names. Most heads have the same as the one before.
func (x *index) namesOf(h head) names {
	n := names{h.Agent, h.State, h.Spent.project}
	if n != x.recent {
		x.recent = names{x.name(n.agent), a2a.TaskState(x.name(string(n.state))), x.name(n.project)}
	}
	return x.recent
}

// name returns one shared copy of s.
func (x *index) name(s string) string {
	n, ok := x.names[s]
	if !ok {
		n = strings.Clone(s)
		x.names[n] = n
	}
	return n
}

// update records a change of state at a stamp.
func (x *index) update(e *entry, state a2a.TaskState, at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.tasks[e.id] != e {
		return // removed meanwhile
	}
	x.count(e, -1)
	x.order.remove(e)
	e.context.order.remove(e)
	e.state, e.updated = state, at.UnixNano()
	e.context.lastUsed = max(e.context.lastUsed, e.updated)
	x.order.insert(e)
	e.context.order.insert(e)
	x.count(e, 1)
}

// spend records what the ended turns of a task have taken.
func (x *index) spend(e *entry, s spent) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s.project = x.name(s.project)
	e.spent = s
}

// remove removes a task and returns its context. gone is set if the context had no other task and is removed too.
func (x *index) remove(id a2a.TaskID) (contextID string, gone bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.tasks[id]
	if e == nil {
		return "", false
	}
	delete(x.tasks, id)
	x.count(e, -1)
	x.order.remove(e)
	e.context.order.remove(e)
	if e.context.order.live == 0 {
		delete(x.contexts, e.context.id)
		return e.context.id, true
	}
	return e.context.id, false
}

// count adds a task to what is kept of each state and agent, or with -1 removes it.
func (x *index) count(e *entry, n int) {
	x.counts[stateKey{e.agent, e.state}] += n
	o := x.states[e.state]
	if o == nil {
		o = &order{}
		x.states[e.state] = o
	}
	if n > 0 {
		o.insert(e)
	} else {
		o.remove(e)
	}
	if isActive(e.state) {
		e.context.active += n
	}
	x.latest[e.agent] = max(x.latest[e.agent], e.updated)
	if e.state != a2a.TaskStateWorking && !Interrupted(e.state) {
		return
	}
	if n < 0 {
		if delete(x.open[e.agent], e); len(x.open[e.agent]) == 0 {
			delete(x.open, e.agent)
		}
		return
	}
	if x.open[e.agent] == nil {
		x.open[e.agent] = map[*entry]struct{}{}
	}
	x.open[e.agent][e] = struct{}{}
}

func isActive(s a2a.TaskState) bool {
	return s == a2a.TaskStateSubmitted || s == a2a.TaskStateWorking
}

// get returns the current head of a task.
func (x *index) get(id a2a.TaskID) (head, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	e := x.tasks[id]
	if e == nil {
		return head{}, false
	}
	return e.head(), true
}

// entryAt returns a task's entry, nil unless the task's last change was at a stamp.
func (x *index) entryAt(id a2a.TaskID, at int64) *entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e := x.tasks[id]; e != nil && e.updated == at {
		return e
	}
	return nil
}

func (e *entry) head() head {
	return head{ID: e.id, Agent: e.agent, Context: e.context.id, State: e.state, Created: e.created, Updated: e.updated}
}

// totals returns how many tasks are active, and how many there are.
func (x *index) totals() (active, total int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for k, n := range x.counts {
		if isActive(k.state) {
			active += n
		}
	}
	return active, len(x.tasks)
}

// activeOf returns how many tasks of the agents that counts accepts are active.
func (x *index) activeOf(counts func(agent string) bool) (active int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for k, n := range x.counts {
		if n > 0 && isActive(k.state) && counts(k.agent) {
			active += n
		}
	}
	return active
}

// selection is the part of a TaskQuery that the index answers.
type selection struct {
	context, agent string
	state          a2a.TaskState
	after          int64 // Unix nanoseconds, inclusive; 0 is any
	before         int64 // exclusive; 0 is any: the cursor
	offset, limit  int
}

func (s *selection) matches(e *entry) bool {
	return (s.agent == "" || e.agent == s.agent) && (s.state == "" || e.state == s.state)
}

// orderOf returns the smallest order that has all selected tasks, nil if there are none.
func (x *index) orderOf(s selection) *order {
	switch {
	case s.context != "":
		if c := x.contexts[s.context]; c != nil {
			return &c.order
		}
		return nil
	case s.state != "":
		return x.states[s.state]
	}
	return &x.order
}

// find returns the selected page, newest first, the number of all matches, and whether
// more follow. Its time is linear in the tasks that it skips: none for those of a state or a context.
func (x *index) find(s selection) (page []head, total int, more bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	o := x.orderOf(s)
	if o == nil {
		return nil, 0, false
	}
	total = x.total(o, s)
	top := len(o.slots)
	if s.before != 0 {
		top = o.search(s.before)
	}
	page = make([]head, 0, min(s.limit, total))
	for i := top - 1; i >= 0; i-- {
		e := o.slots[i].e
		if e == nil {
			continue
		}
		if e.updated < s.after {
			break
		}
		if !s.matches(e) {
			continue
		}
		if s.offset > 0 {
			s.offset--
			continue
		}
		if len(page) == s.limit {
			return page, total, true
		}
		page = append(page, e.head())
		if s.before == 0 && s.offset == 0 && len(page) == total {
			break // these are all matches
		}
	}
	return page, total, false
}

// total counts the matches, from the counters if they suffice.
func (x *index) total(o *order, s selection) int {
	n := 0
	if s.after == 0 && s.context == "" {
		for k, c := range x.counts {
			if (s.agent == "" || k.agent == s.agent) && (s.state == "" || k.state == s.state) {
				n += c
			}
		}
		return n
	}
	for e := range o.from(s.after) {
		if s.matches(e) {
			n++
		}
	}
	return n
}

// resembling returns up to limit tasks whose ids begin or end with part, the most recently changed first.
func (x *index) resembling(part string, limit int) []a2a.TaskID {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ids := []a2a.TaskID{}
	for i := len(x.order.slots) - 1; i >= 0 && len(ids) < limit; i-- {
		if e := x.order.slots[i].e; e != nil && resembles(string(e.id), part) {
			ids = append(ids, e.id)
		}
	}
	return ids
}

// resembles reports whether part is a beginning or an end of an id. Case does not count.
func resembles(id, part string) bool {
	if len(part) > len(id) {
		return false
	}
	return strings.EqualFold(id[:len(part)], part) || strings.EqualFold(id[len(id)-len(part):], part)
}

// snapshot yields copies of all entries, in any order. It holds the lock for a part of them at a time, so that a long
// list delays no task.
func (x *index) snapshot() iter.Seq[entry] {
	const part = 4096
	return func(yield func(entry) bool) {
		x.mu.RLock()
		all := slices.Collect(maps.Values(x.tasks))
		x.mu.RUnlock()
		for chunk := range slices.Chunk(all, part) {
			x.mu.RLock()
			copies := make([]entry, len(chunk))
			for i, e := range chunk {
				copies[i] = *e
			}
			x.mu.RUnlock()
			for _, e := range copies {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// oldest calls f with the tasks, the least recently changed first, until f returns false.
func (x *index) oldest(f func(head) bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for e := range x.order.from(0) {
		if !f(e.head()) {
			return
		}
	}
}

// unfinished returns the tasks created between two times, in Unix nanoseconds, that have not ended.
func (x *index) unfinished(after, before int64) []a2a.TaskID {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var ids []a2a.TaskID
	for id, e := range x.tasks {
		if e.created > after && e.created < before && !e.state.Terminal() {
			ids = append(ids, id)
		}
	}
	return ids
}

// recentContexts returns up to limit contexts for which wanted is true, the most recently used first.
func (x *index) recentContexts(limit int, wanted func(id string) bool) []ContextInfo {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var infos []ContextInfo
	for i := len(x.order.slots) - 1; i >= 0 && len(infos) < limit; i-- {
		e := x.order.slots[i].e
		// A context has the position of its most recently changed task.
		if e == nil || e.context.order.newest() != e || !wanted(e.context.id) {
			continue
		}
		infos = append(infos, e.context.info())
	}
	return infos
}

// context returns one context.
func (x *index) context(id string) (ContextInfo, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	c := x.contexts[id]
	if c == nil {
		return ContextInfo{}, false
	}
	return c.info(), true
}

func (x *index) hasContext(id string) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.contexts[id] != nil
}

// idleContexts returns the contexts without active tasks that were last used before a time.
func (x *index) idleContexts(before time.Time) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var ids []string
	for id, c := range x.contexts {
		if c.active == 0 && c.lastUsed < before.UnixNano() {
			ids = append(ids, id)
		}
	}
	return ids
}

func (c *conversation) info() ContextInfo {
	info := ContextInfo{
		ID:         c.id,
		TaskIDs:    make([]a2a.TaskID, 0, c.order.live),
		CreatedAt:  time.Unix(0, c.created).UTC(),
		LastUsedAt: time.Unix(0, c.lastUsed).UTC(),
	}
	byCreation := func(a, b *entry) int { return cmp.Compare(a.created, b.created) }
	for _, e := range slices.SortedFunc(c.order.from(0), byCreation) {
		info.TaskIDs = append(info.TaskIDs, e.id)
		if !slices.Contains(info.AgentIDs, e.agent) {
			info.AgentIDs = append(info.AgentIDs, e.agent)
		}
	}
	return info
}

// order keeps entries sorted by their last change. A change nearly always moves an entry
// to the end; its old slot stays empty until the next compaction.
type order struct {
	slots []slot
	live  int
}

type slot struct {
	at int64
	e  *entry // nil if the slot is empty
}

// search returns the first slot at or after a stamp.
func (o *order) search(at int64) int {
	return sort.Search(len(o.slots), func(i int) bool { return o.slots[i].at >= at })
}

// from yields the entries at or after a stamp, the oldest first.
func (o *order) from(at int64) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, s := range o.slots[o.search(at):] {
			if s.e != nil && !yield(s.e) {
				return
			}
		}
	}
}

func (o *order) insert(e *entry) {
	o.slots = append(o.slots, slot{e.updated, e})
	o.live++
	for i := len(o.slots) - 1; i > 0 && o.slots[i-1].at > o.slots[i].at; i-- {
		o.slots[i-1], o.slots[i] = o.slots[i], o.slots[i-1]
	}
}

func (o *order) remove(e *entry) {
	// Stamps from the store may coincide, if the clock was set back.
	for i := o.search(e.updated); i < len(o.slots) && o.slots[i].at == e.updated; i++ {
		if o.slots[i].e == e {
			o.slots[i].e = nil
			o.live--
			break
		}
	}
	if len(o.slots) > 2*o.live+64 {
		o.slots = slices.DeleteFunc(o.slots, func(s slot) bool { return s.e == nil })
	}
}

func (o *order) newest() *entry {
	for i := len(o.slots) - 1; i >= 0; i-- {
		if o.slots[i].e != nil {
			return o.slots[i].e
		}
	}
	return nil
}
