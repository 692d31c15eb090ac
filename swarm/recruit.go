package swarm

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/negotiation"
)

// recruit invites the agents that have the capabilities and are not participants.
func (l *leader) recruit(ctx context.Context, capabilities []string) {
	input, err := json.Marshal(invitation{Swarm: l.id, Coordinators: append([]string{l.c.id}, l.c.o.Successors...)})
	if err != nil {
		return // strings always marshal
	}
	terms := negotiation.Terms{
		TaskDescription: l.x.s.TaskDescription, RequiredCapabilities: capabilities, EstimatedComplexity: complexity(len(l.x.s.SubTasks)),
		Deadline: l.c.o.Answer, EscalationJustification: l.x.plan.EscalationJustification, CorrelationID: l.id, Input: input,
	}
	for _, id := range l.candidates(capabilities) {
		p, err := l.c.n.Propose(ctx, l.c.contact(id), terms)
		if err != nil {
			l.blameError(id, err)
			continue
		}
		l.proposed[p.ID] = id
	}
}

func complexity(parts int) negotiation.Complexity {
	if parts > 10 {
		return negotiation.Complex
	}
	return negotiation.Medium
}

// candidates lists the agents that may be invited, by id.
func (l *leader) candidates(capabilities []string) []string {
	view, err := l.c.r.Discover(l.c.id)
	if err != nil {
		return nil // the coordinator has no card any more
	}
	var cards []agent.Card
	if len(capabilities) > 0 {
		cards = view.FindByCapability(capabilities[0])
	} else {
		cards = view.All()
	}
	var ids []string
	for _, card := range cards {
		if card.ID = l.c.participant(card.ID); card.ID == "" {
			continue // its stand-in is one of the others
		}
		if card.ID != l.c.id && l.invitable(card.ID) && !l.quit[card.ID] && (!l.x.members[card.ID] || l.x.left[card.ID]) && hasAll(&card, capabilities) && l.useful(&card) {
			ids = append(ids, card.ID)
		}
	}
	slices.Sort(ids)
	return ids[:min(len(ids), max(0, l.c.o.MaxParticipants-len(l.x.s.Participants)))]
}

// invitable reports whether the plan lets an agent take part.
func (l *leader) invitable(id string) bool {
	return len(l.x.plan.Agents) == 0 || slices.Contains(l.x.plan.Agents, id)
}

func hasAll(card *agent.Card, capabilities []string) bool {
	return !slices.ContainsFunc(capabilities, func(c string) bool { return !card.Has(c) })
}

// useful reports whether an agent can do any of the sub-tasks.
func (l *leader) useful(card *agent.Card) bool {
	if len(l.x.s.SubTasks) == 0 {
		return true
	}
	return slices.ContainsFunc(l.x.s.SubTasks, func(t SubTask) bool {
		return t.Status != TaskCompleted && hasAll(card, t.RequiredCapabilities)
	})
}

// workers returns the present participants, and others.
func (l *leader) workers(others ...string) []*worker {
	var all []*worker
	for _, id := range append(slices.Clone(l.x.s.Participants), others...) {
		if l.x.left[id] {
			continue
		}
		card, err := l.c.r.Registry().Get(l.c.contact(id))
		if err != nil {
			continue // it has no card any more
		}
		all = append(all, &worker{id: id, has: card.Has, load: len(l.x.held[id]) + l.c.load(id)})
	}
	return all
}

// activate ends recruiting: agents that accepted get sub-tasks. An agent without one does not take part.
func (l *leader) activate(ctx context.Context) {
	accepted := l.accepted
	l.accepted = nil
	slices.Sort(accepted)
	workers := l.workers(accepted...)
	if len(workers) == 0 {
		l.fail(ctx, string(CodeNoAgents)+": no agent with the required capabilities has accepted")
		return
	}
	to := make(map[string]*worker)
	if len(l.x.s.SubTasks) == 0 {
		l.emit(event{Parts: l.wholeFor(workers)})
		for i, t := range l.x.s.SubTasks { // each its own, which is named after it
			to[t.ID] = workers[i]
		}
	} else {
		to = distribute(l.open(), workers, true)
	}
	busy := make(map[string]bool)
	for _, w := range to {
		busy[w.id] = true
	}
	if len(busy) == 0 {
		l.fail(ctx, string(CodeNoAgents)+": no agent that accepted can do any of the sub-tasks")
		return
	}
	l.emit(event{Joined: sortedKeys(busy)})
	for _, t := range l.x.s.SubTasks {
		if w := to[t.ID]; w != nil {
			l.assign(t.ID, w.id)
		} else {
			l.unplaced[t.ID] = true
		}
	}
	l.emit(event{Status: &status{Status: Active}})
	for _, id := range accepted {
		if !busy[id] {
			l.after(func() { l.send(ctx, id, message{Over: true}) })
		}
	}
}

// wholeFor makes a sub-task of the whole task for each worker.
func (l *leader) wholeFor(workers []*worker) []SubTask {
	parts := make([]SubTask, len(workers))
	for i, w := range workers {
		parts[i] = SubTask{
			ID: "task-" + w.id, Description: l.x.s.TaskDescription, RequiredCapabilities: union(l.x.plan.RequiredCapabilities, nil), Status: TaskPending,
		}
		if len(parts[i].ID) > agent.MaxIDLength {
			parts[i].ID = "task-" + strconv.Itoa(i+1) // the agent's id is too long
		}
	}
	return parts
}

// open returns the sub-tasks that are not done.
func (l *leader) open() []*SubTask {
	var parts []*SubTask
	for i := range l.x.s.SubTasks {
		if t := &l.x.s.SubTasks[i]; t.Status == TaskPending {
			parts = append(parts, t)
		}
	}
	return parts
}

func (l *leader) assign(id, to string) {
	delete(l.unplaced, id)
	l.emit(event{Assigned: &assigned{SubTask: id, Agent: to}})
	if l.x.ready(id) {
		l.queue(to, id)
	}
}

// join adds an agent from the API.
func (l *leader) join(id string) error {
	if _, known := l.c.r.Registry().Identity(l.c.contact(id)); !known {
		return errorf(CodeUnknown, l.id, "agent %q is not known", id)
	}
	if l.x.s.Status.Ended() || l.x.s.Status == Completing {
		return errorf(CodeState, l.id, "the swarm is %s", l.x.s.Status)
	}
	if l.x.members[id] && !l.x.left[id] {
		return nil
	}
	if len(l.x.s.Participants) >= l.c.o.MaxParticipants {
		return errorf(CodeLimit, l.id, "the swarm has %d participants, which is the limit", l.c.o.MaxParticipants)
	}
	l.emit(event{Joined: []string{id}})
	l.look[id] = true
	return nil
}

// place assigns unplaced sub-tasks: to participants, then to newly invited agents; the rest is escalated.
func (l *leader) place(ctx context.Context) {
	if len(l.proposed) > 0 {
		return // an agent may still accept
	}
	if newcomers := l.accepted; len(newcomers) > 0 {
		l.accepted = nil
		l.emit(event{Joined: newcomers})
		for _, id := range newcomers {
			l.look[id] = true
		}
	}
	if len(l.unplaced) == 0 {
		return
	}
	workers := l.workers()
	for _, id := range sortedKeys(l.unplaced) {
		t := l.x.part(id)
		switch {
		case t.Status != TaskPending || l.asking[id]:
			continue
		case l.x.exhausted(t):
			l.escalate(ctx, id)
		default:
			l.placeOne(ctx, t, workers)
		}
	}
}

func (l *leader) placeOne(ctx context.Context, t *SubTask, workers []*worker) {
	w := l.choose(t, workers)
	if (w == nil || l.x.tried[t.ID][w.id]) && !l.sought[t.ID] { // agents that do not take part yet may do it
		l.sought[t.ID] = true
		l.recruit(ctx, t.RequiredCapabilities)
		if w == nil || len(l.proposed) > 0 {
			return
		}
	}
	switch {
	case w != nil:
		w.load++
		l.assign(t.ID, w.id)
	case len(l.proposed) == 0:
		l.escalate(ctx, t.ID)
	}
}

// choose returns the least loaded worker that can do a sub-task, preferably one that has not tried it yet.
func (l *leader) choose(t *SubTask, workers []*worker) *worker {
	var best *worker
	tried := l.x.tried[t.ID]
	for _, w := range workers {
		if !w.can(t.RequiredCapabilities) || !l.mayTry(t.ID, w.id) {
			continue
		}
		if best == nil || tried[best.id] && !tried[w.id] || tried[best.id] == tried[w.id] && w.load < best.load {
			best = w
		}
	}
	return best
}

// mayTry reports whether an agent may do a sub-task: the answer to an escalation may have named another one.
func (l *leader) mayTry(subTask, agent string) bool {
	want := l.x.wanted[subTask]
	return want == "" || want == agent
}

// escalate passes a sub-task to the reporter.
func (l *leader) escalate(ctx context.Context, id string) {
	t := *l.x.part(id)
	if l.c.o.Reporter == nil {
		l.giveUp(ctx, id)
		return
	}
	l.asking[id] = true
	s := l.x.snapshot()
	l.inBackground(ctx, func() func() {
		more, to := false, ""
		_ = l.c.protect("the reporter", func() { // after a panic the sub-task fails
			if r, ok := l.c.o.Reporter.(Redirector); ok {
				more, to = r.Redirect(ctx, s, t)
				return
			}
			more = l.c.o.Reporter.Escalate(ctx, s, t)
		})
		return func() {
			delete(l.asking, id)
			if !more {
				l.giveUp(ctx, id)
				return
			}
			delete(l.sought, id)
			l.emit(event{Again: &again{SubTask: id, To: to}})
		}
	})
}

func (l *leader) giveUp(ctx context.Context, id string) {
	t := l.x.part(id)
	why := t.Error
	if why == "" {
		why = "no agent can do it"
		if len(t.RequiredCapabilities) > 0 {
			why += ": it requires " + strings.Join(t.RequiredCapabilities, ", ")
		}
	}
	delete(l.unplaced, id)
	l.emit(event{Ended: &ended{SubTask: id, Agent: t.AssignedAgent, Error: why, Final: true}})
	l.fail(ctx, "sub-task "+id+" failed: "+why)
}

// load returns an agent's load apart from swarms, 0 if it cannot be known.
func (c *Coordinator) load(agentID string) (load int) {
	_ = c.protect("Options.Load", func() { load = c.o.Load(agentID) })
	return load
}
