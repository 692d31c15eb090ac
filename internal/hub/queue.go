package hub

import (
	"fmt"
	"slices"
)

// queue lets an agent's tasks run: one turn at a time in a context, so many at
// once in all, contexts with waiting turns one after another in a round. Its
// fields belong to the agent's lock.
type queue struct {
	concurrency, limit int

	lanes   map[string]*lane // by context; those that run or wait
	ready   []*lane          // wait, and none of their turns runs
	running int
	waiting int // turns, those of running tasks included
}

// lane is one context at one agent.
type lane struct {
	context string
	busy    bool
	tasks   []*task
}

// push adds a task. It returns true where the task shall be started at once, by
// the caller.
func (q *queue) push(t *task) (start bool, err error) {
	l := q.lanes[t.contextID]
	if (l == nil || !l.busy && len(l.tasks) == 0) && q.running < q.concurrency && len(q.ready) == 0 {
		if l == nil {
			l = &lane{context: t.contextID}
			q.lanes[t.contextID] = l
		}
		l.busy = true
		q.running++
		return true, nil
	}
	if err := q.reserve(); err != nil {
		return false, err
	}
	if l == nil {
		l = &lane{context: t.contextID}
		q.lanes[t.contextID] = l
	}
	l.tasks = append(l.tasks, t)
	if !l.busy && len(l.tasks) == 1 {
		q.ready = append(q.ready, l)
	}
	return false, nil
}

// reserve counts one more turn that waits.
func (q *queue) reserve() error {
	if q.waiting >= q.limit {
		return fmt.Errorf("%d turns wait already", q.waiting)
	}
	q.waiting++
	return nil
}

// done ends a turn of a context and returns the tasks to be started now.
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

// next takes out the tasks that may start.
func (q *queue) next() []*task {
	var start []*task
	for q.running < q.concurrency && len(q.ready) > 0 {
		l := q.ready[0]
		q.ready = slices.Delete(q.ready, 0, 1)
		t := l.tasks[0]
		l.tasks = slices.Delete(l.tasks, 0, 1)
		l.busy = true
		q.running++
		q.waiting--
		start = append(start, t)
	}
	return start
}

// remove takes a waiting task out.
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

// drain takes out every waiting task.
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
