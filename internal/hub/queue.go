package hub

import (
	"fmt"
	"slices"
)

// queue schedules an agent's tasks: one turn at a time in each context, a bounded number in all, and round-robin
// among the contexts with waiting turns. The agent's lock guards it.
type queue struct {
	agent              string
	concurrency, limit int

	lanes   map[string]*lane // by context; with a running or waiting turn
	ready   []*lane          // with a waiting turn and no running one
	running int
	waiting int  // turns, including those of running tasks
	held    bool // no turn begins, but of delegated tasks, which running ones wait for
}

// lane is one context at one agent.
type lane struct {
	context string
	busy    bool
	tasks   []*task
}

// push adds a task. If start is true, the caller starts the task at once.
func (q *queue) push(t *task) (start bool, err error) {
	if q.startable(t) || q.waiting < q.limit {
		return q.pushBeyond(t), nil
	}
	return false, q.reserve()
}

// pushBeyond is push without the limit.
func (q *queue) pushBeyond(t *task) (start bool) {
	l := q.lanes[t.contextID]
	if q.startable(t) {
		q.add(&lane{context: t.contextID, busy: true})
		q.running++
		return true
	}
	q.waiting++
	if l == nil {
		l = &lane{context: t.contextID}
		q.add(l)
		q.ready = append(q.ready, l)
	}
	l.tasks = append(l.tasks, t)
	return false
}

// add adds a lane. Most agents never have one.
func (q *queue) add(l *lane) {
	if q.lanes == nil {
		q.lanes = make(map[string]*lane)
	}
	q.lanes[l.context] = l
}

// startable reports whether a task that is added begins at once. Then no lane is ready, but such as are held.
func (q *queue) startable(t *task) bool {
	return q.lanes[t.contextID] == nil && q.running < q.concurrency && !q.holds(t)
}

func (q *queue) holds(t *task) bool { return q.held && !t.delegated }

// holding returns the tasks whose turns are held.
func (q *queue) holding() (ts []*task) {
	for _, l := range q.lanes {
		for _, t := range l.tasks {
			if q.holds(t) {
				ts = append(ts, t)
			}
		}
	}
	return ts
}

// reserve counts one more waiting turn.
func (q *queue) reserve() error {
	if q.waiting >= q.limit {
		return &Error{Code: CodeUnavailable, Message: fmt.Sprintf("agent %s is busy: its queue is full", q.agent),
			Remedy: "try again when some of its tasks have ended, or raise the agent's limits.queue",
			Err:    fmt.Errorf("%d turns wait already", q.waiting)}
	}
	q.waiting++
	return nil
}

// done ends the turn of a context and returns the tasks to start now.
func (q *queue) done(context string) []*task {
	q.running--
	l := q.lanes[context]
	l.busy = false
	if len(l.tasks) > 0 {
		q.ready = append(q.ready, l)
	} else {
		delete(q.lanes, context)
	}
	return q.next()
}

// next removes and returns the tasks to start now.
func (q *queue) next() []*task {
	var start []*task
	for q.running < q.concurrency {
		i := slices.IndexFunc(q.ready, func(l *lane) bool { return !q.holds(l.tasks[0]) })
		if i < 0 {
			break
		}
		l := q.ready[i]
		q.ready = slices.Delete(q.ready, i, i+1)
		t := l.tasks[0]
		l.tasks = slices.Delete(l.tasks, 0, 1)
		l.busy = true
		q.running++
		q.waiting--
		start = append(start, t)
	}
	return start
}

// remove removes a waiting task; false if it does not wait.
func (q *queue) remove(t *task) bool {
	l := q.lanes[t.contextID]
	if l == nil {
		return false
	}
	i := slices.Index(l.tasks, t)
	if i < 0 {
		return false
	}
	l.tasks = slices.Delete(l.tasks, i, i+1)
	q.waiting--
	if len(l.tasks) == 0 && !l.busy {
		q.ready = slices.DeleteFunc(q.ready, func(r *lane) bool { return r == l })
		delete(q.lanes, l.context)
	}
	return true
}

// drain removes and returns every waiting task.
func (q *queue) drain() []*task {
	var ts []*task
	for _, l := range q.lanes {
		ts = append(ts, l.tasks...)
	}
	for _, t := range ts {
		q.remove(t)
	}
	return ts
}
