package swarm

import (
	"context"
	"encoding/json"
	"time"
)

// queue adds a sub-task to an agent's queue.
func (l *leader) queue(who, id string) {
	l.queues[who] = append(l.queues[who], id)
	l.look[who] = true
	for other := range l.idle { // an idle agent may steal it
		if other != who {
			delete(l.idle, other)
			l.look[other] = true
			return
		}
	}
}

// dispatch starts sub-tasks on agents with capacity: their own, or stolen ones.
func (l *leader) dispatch(ctx context.Context) {
	for len(l.look) > 0 {
		agents := sortedKeys(l.look)
		clear(l.look)
		for _, who := range agents {
			l.feed(ctx, who)
		}
	}
}

func (l *leader) feed(ctx context.Context, who string) {
	delete(l.idle, who)
	for l.active[who] < l.c.o.PerAgent {
		if l.x.left[who] || !l.x.members[who] {
			return
		}
		t := l.next(who)
		if t == nil {
			t = l.steal(who)
		}
		if t == nil {
			l.idle[who] = true
			return
		}
		l.start(ctx, who, t)
	}
}

// next removes the first pending sub-task from an agent's queue.
func (l *leader) next(who string) *SubTask {
	q := l.queues[who]
	for len(q) > 0 {
		t := l.x.part(q[0])
		q = q[1:]
		if l.waitsFor(t, who) {
			l.queues[who] = q
			return t
		}
	}
	delete(l.queues, who)
	return nil
}

func (l *leader) waitsFor(t *SubTask, who string) bool {
	return t.Status == TaskPending && t.AssignedAgent == who && l.x.held[who][t.ID] && l.x.ready(t.ID)
}

// steal assigns a sub-task of the busy agent with the longest queue.
func (l *leader) steal(who string) *SubTask {
	card, err := l.c.r.Registry().Get(l.c.contact(who))
	if err != nil {
		return nil
	}
	victim := ""
	for other, q := range l.queues {
		if other != who && l.active[other] >= l.c.o.PerAgent && (victim == "" || len(q) > len(l.queues[victim])) {
			victim = other
		}
	}
	q := l.queues[victim]
	for i := len(q) - 1; i >= 0; i-- {
		t := l.x.part(q[i])
		if !l.waitsFor(t, victim) || !hasAll(&card, t.RequiredCapabilities) || l.x.tried[t.ID][who] || !l.mayTry(t.ID, who) {
			continue
		}
		l.queues[victim] = append(q[:i:i], q[i+1:]...)
		l.emit(event{Assigned: &assigned{SubTask: t.ID, Agent: who}})
		return t
	}
	return nil
}

// start makes an agent begin a sub-task.
func (l *leader) start(ctx context.Context, who string, t *SubTask) {
	l.emit(event{Started: t.ID})
	l.active[who]++
	l.lastSeen[t.ID] = time.Now()
	j := Job{SubTaskID: t.ID, Attempt: t.Attempt, Task: l.x.s.TaskDescription, Description: t.Description, Input: t.Input}
	if len(t.DependsOn) > 0 {
		j.Results = make(map[string]json.RawMessage, len(t.DependsOn))
		for _, on := range t.DependsOn {
			j.Results[on] = l.x.part(on).Result
		}
	}
	l.after(func() { l.send(ctx, who, message{Work: &work{j, l.c.o.Lease.Milliseconds()}}) })
}
