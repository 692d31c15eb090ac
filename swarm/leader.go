package swarm

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/telemetry"
)

// Limits of a leader.
const (
	maxInbox  = 1024 // queued inputs; further ones block
	maxBatch  = 256  // inputs that share a record
	MaxKeys   = 10_000
	MaxKey    = 256      // bytes
	MaxValue  = 64 << 10 // bytes
	MaxShared = 32 << 20 // bytes of the shared state's keys and values
	MaxResult = 512 << 10

	maxReason = 16 << 10  // bytes of a failure that are kept
	maxBulk   = 256 << 10 // bytes of changes of the shared state, after which a batch ends
)

// leader leads one swarm. Its goroutine owns it: it receives a batch of inputs, decides, stores the decisions as one
// record, and then sends messages. Inputs are functions in its inbox.
type leader struct {
	c          *Coordinator
	id         string
	writer     string // of the journal's entries
	number     uint64
	inbox      chan func()
	done       chan struct{} // closed when it leads no more
	background sync.WaitGroup

	x        *state
	events   []event                    // of this batch
	effects  []func()                   // after the record is stored
	lastSeen map[string]time.Time       // heartbeats of running sub-tasks
	queues   map[string][]string        // sub-tasks that an agent could begin, by agent
	active   map[string]int             // sub-tasks that run, by agent
	watchers map[string]bool            // participants that follow the shared state
	changed  map[string]json.RawMessage // of the shared state, in this batch
	proposed map[string]string          // agents by pending proposal
	accepted []string                   // agents that accepted in this round
	causes   map[string]Cause           // why agents do not take part, by agent
	asking   map[string]bool            // sub-tasks that are being escalated
	bulk     int                        // bytes of changed
	doc      atomic.Pointer[leaderDoc]  // the shared state; nil while nobody follows it
	docs     int                        // how many documents there were
	admits   map[string]bool            // agents to link to it at the end of this batch
	returns  map[string]*bucket         // rate limits of agents that return
	unplaced map[string]bool            // sub-tasks that need an agent
	sought   map[string]bool            // of them, those for which further agents were asked
	quit     map[string]bool            // participants that left on request and are not invited again
	look     map[string]bool            // agents that may have capacity
	idle     map[string]bool            // agents that found no sub-task
	stored   time.Time                  // when the last record was stored
	closing  bool                       // the results are being aggregated
	end      atomic.Pointer[Session]    // the final session, once it is stored
}

func newLeader(c *Coordinator, id string, x *state) *leader {
	return &leader{
		c: c, id: id, x: x, writer: uuid.NewString(), inbox: make(chan func(), maxInbox), done: make(chan struct{}),
		lastSeen: make(map[string]time.Time), queues: make(map[string][]string), active: make(map[string]int),
		watchers: make(map[string]bool), changed: make(map[string]json.RawMessage), proposed: make(map[string]string), asking: make(map[string]bool),
		unplaced: make(map[string]bool), sought: make(map[string]bool), quit: make(map[string]bool), look: make(map[string]bool), idle: make(map[string]bool),
		admits: make(map[string]bool), returns: make(map[string]*bucket), causes: make(map[string]Cause),
	}
}

// enqueue adds an input. It blocks while the inbox is full.
func (l *leader) enqueue(ctx context.Context, do func()) {
	select {
	case l.inbox <- do:
	case <-l.done:
	case <-ctx.Done():
	}
}

// ask lets the leader call do and waits until its changes are stored.
func (l *leader) ask(ctx context.Context, do func() error) error {
	replies := make(chan error, 1)
	l.enqueue(ctx, func() {
		err := do()
		l.after(func() { replies <- err })
	})
	select {
	case err := <-replies:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-l.done:
	}
	select {
	case err := <-replies:
		return err
	default:
		return notFound(l.id)
	}
}

// run leads until the swarm has ended, another leads it, or ctx ends.
func (l *leader) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer l.background.Wait()
	defer cancel()
	defer func() {
		l.c.remove(l)
		close(l.done)
		if d := l.doc.Load(); d != nil {
			d.close()
		}
	}()
	ticker := time.NewTicker(min(l.c.o.Lease, l.c.o.Takeover) / 4)
	defer ticker.Stop()
	l.begin(ctx)
	for {
		l.proceed(ctx)
		if !l.commit(ctx) {
			return
		}
		if len(l.events)+len(l.effects) > 0 {
			continue // a message could not be sent
		}
		if l.x.s.Status.Ended() {
			return
		}
		select {
		case do := <-l.inbox:
			do()
		case <-ticker.C:
			l.tick(ctx)
		case <-ctx.Done():
			return
		}
		l.drain()
	}
}

// drain adds further queued inputs to the batch.
func (l *leader) drain() {
	for range maxBatch - 1 {
		if l.bulk > maxBulk {
			return // a change must fit into one message
		}
		select {
		case do := <-l.inbox:
			do()
		default:
			return
		}
	}
}

// emit applies an event and adds it to the batch.
func (l *leader) emit(e event) {
	if err := l.x.apply(e); err != nil {
		l.c.o.Logger.Error("swarm: invalid event", "swarm", l.id, "error", err)
		return
	}
	l.events = append(l.events, e)
}

// after calls do once this batch is stored.
func (l *leader) after(do func()) { l.effects = append(l.effects, do) }

// commit stores the batch and then calls its effects. It reports false, without effects, if the leader must stop.
func (l *leader) commit(ctx context.Context) bool {
	if len(l.events) > 0 {
		if err := l.store(ctx, l.events); err != nil {
			if errors.Is(err, ErrFull) {
				return l.failFull(ctx)
			}
			if errors.Is(err, ErrConflict) {
				l.c.o.Logger.Warn("another coordinator leads the swarm now", "swarm", l.id)
			} else if ctx.Err() == nil {
				l.c.o.Logger.Error("a swarm's leader stops", "swarm", l.id, "error", err)
			}
			return false
		}
	}
	l.report(l.events)
	l.share(ctx)
	effects := l.effects
	l.events, l.effects = nil, nil
	for _, do := range effects {
		do()
	}
	return true
}

// report reports stored events to the Coordinator's owner.
func (l *leader) report(events []event) {
	for _, e := range events {
		c := Change{Swarm: l.id, SubTask: e.subTask()}
		switch {
		case e.Created != nil, e.Status != nil:
			c.Status = l.x.s.Status
		case c.SubTask != "":
			if t := l.x.find(c.SubTask); t != nil {
				c.Agent, c.Result = t.AssignedAgent, t.Status
			}
		default:
			continue
		}
		_ = l.c.protect("Options.Changed", func() { l.c.o.Changed(c) })
	}
}

// store appends one record. It retries failures until another coordinator has written or
// ctx ends. Without space it returns ErrFull, unless the record may use the reserve.
func (l *leader) store(ctx context.Context, events []event) error {
	l.number++
	e := entry{Version: entryVersion, Writer: l.writer, Number: l.number, Events: events}
	data, err := json.Marshal(&e)
	if err != nil {
		return &Error{Code: CodeJournal, Subject: l.id, Message: "a record cannot be written", Err: err}
	}
	whatever := final(events)
	if !whatever {
		if err := l.c.ensureSpace(ctx, len(data), 0); err != nil {
			return err
		}
	}
	retry := wait.Backoff{Most: 5 * time.Second, Jitter: 0.5}
	for said := false; ; {
		sequence, err := l.c.o.Journal.Append(ctx, l.id, l.x.s.Sequence, data)
		if errors.Is(err, ErrConflict) {
			sequence, err = l.ownRecord(ctx)
		}
		switch {
		case err == nil:
			l.x.s.Sequence, l.stored = sequence, time.Now()
			return nil
		case errors.Is(err, ErrConflict), errors.Is(err, ErrFull) && !whatever:
			return err
		case errors.Is(err, ErrFull) && l.c.evicted(ctx):
			continue
		case !said && ctx.Err() == nil:
			said = true
			l.c.o.Logger.Warn("a swarm waits for its journal, which cannot be written", "swarm", l.id, "error", err)
		}
		if !retry.Pause(ctx) {
			return &Error{Code: CodeJournal, Subject: l.id, Message: "the journal cannot be written", Err: errors.Join(err, ctx.Err())}
		}
	}
}

// ownRecord returns the sequence of the conflicting record if it is the leader's own: an
// Append that failed may have stored it.
func (l *leader) ownRecord(ctx context.Context) (uint64, error) {
	records, err := l.c.o.Journal.Read(ctx, l.id, l.x.s.Sequence)
	if err != nil {
		return 0, err
	}
	if len(records) != 1 {
		return 0, ErrConflict
	}
	e, err := decodeEntry(l.id, records[0])
	if err != nil || e.Writer != l.writer || e.Number != l.number {
		return 0, ErrConflict
	}
	return records[0].Sequence, nil
}

// begin continues where the journal ends, for a new swarm or a new coordinator.
func (l *leader) begin(ctx context.Context) {
	now := time.Now()
	for _, t := range l.x.s.SubTasks {
		switch {
		case t.Status == TaskRunning:
			l.lastSeen[t.ID] = now // its agent has time for a heartbeat
			l.active[t.AssignedAgent]++
		case t.Status == TaskPending && !l.x.held[t.AssignedAgent][t.ID]:
			l.unplaced[t.ID] = true
		case t.Status == TaskPending && l.x.ready(t.ID):
			l.queue(t.AssignedAgent, t.ID)
		}
	}
	l.removeMissing() // agents that are unknown to this coordinator
	for _, id := range l.x.s.Participants {
		if !l.x.left[id] {
			l.after(func() { l.send(ctx, id, message{Leader: true}) })
		}
	}
	if l.x.s.Status == Recruiting {
		l.recruit(ctx, l.x.plan.RequiredCapabilities)
	}
}

// proceed makes the decisions that follow from the state after each batch.
func (l *leader) proceed(ctx context.Context) {
	if l.x.s.Status == Recruiting && len(l.proposed) == 0 {
		l.activate(ctx)
	}
	if l.x.s.Status == Active {
		l.place(ctx)
		l.dispatch(ctx)
	}
	if l.x.s.Status == Active && l.x.open == 0 {
		l.emit(event{Status: &status{Status: Completing}})
	}
	if l.x.s.Status == Completing && !l.closing {
		l.closing = true
		l.aggregate(ctx)
	}
}

// inBackground calls do, which may block, in another goroutine, and the function that it returns in the leader's.
func (l *leader) inBackground(ctx context.Context, do func() func()) {
	l.after(func() {
		l.background.Go(func() { l.enqueue(ctx, do()) })
	})
}

// aggregate makes the outcome of the results.
func (l *leader) aggregate(ctx context.Context) {
	s := l.x.snapshot()
	l.inBackground(ctx, func() func() {
		var outcome json.RawMessage
		var err error
		if p := l.c.protect("Options.Aggregate", func() { outcome, err = l.c.o.Aggregate(s) }); p != nil {
			err = p
		}
		if err == nil && !json.Valid(outcome) {
			err = errors.New("the outcome is not JSON")
		}
		return func() {
			if err != nil {
				l.fail(ctx, "the results cannot be aggregated: "+err.Error())
				return
			}
			l.conclude(ctx, status{Status: Completed, Outcome: outcome})
		}
	})
}

// conclude ends the swarm.
func (l *leader) conclude(ctx context.Context, how status) {
	if l.x.s.Status.Ended() {
		return
	}
	l.emit(event{Status: &how})
	s := l.x.snapshot()
	recipients := slices.Concat(s.Participants, l.accepted, slices.Collect(maps.Values(l.proposed))) // invited agents may have accepted
	slices.Sort(recipients)
	recipients = slices.Compact(recipients)
	l.after(func() {
		l.end.Store(&s)
		if d := l.doc.Load(); d != nil {
			_ = d.r.Flush(ctx) // fails only when ctx ends
		}
		for _, id := range recipients {
			l.send(ctx, id, message{Over: true})
		}
		if l.c.o.Reporter != nil {
			l.background.Go(func() {
				_ = l.c.protect("the reporter", func() { l.c.o.Reporter.Finished(l.c.ctx, s) })
			})
		}
	})
}

// send sends a message. A participant to which work cannot be sent is removed.
func (l *leader) send(ctx context.Context, to string, m message) {
	m.Swarm, m.Epoch = l.id, l.x.s.Epoch
	if m.Work != nil {
		l.c.limits.grantWork(to) // before it can answer
	}
	err := m.send(ctx, l.c.r, l.c.id, l.c.contact(to))
	if err == nil {
		return
	}
	l.c.o.Logger.Debug("a message to a participant cannot be sent", "swarm", l.id, "agent", to, "error", err)
	if m.Work != nil {
		// Not through the inbox, which only this goroutine empties.
		l.blameError(to, err)
		l.failAttempt(m.Work.SubTaskID, "it cannot be sent to "+to+": "+err.Error())
		l.remove(to)
	}
}

// receive handles a participant's message.
func (l *leader) receive(from string, m message) {
	if !l.x.members[from] {
		return // not a participant
	}
	ctx := l.c.ctx
	if !m.Leave && !m.Lost && !l.readmit(from) && m.Result == nil { // a result always counts
		l.refuseLimited(from, errorf(CodeFlood, l.id, "%s has left and returned too often; it may return in %s", from, l.c.o.Lease))
		return
	}
	switch {
	case m.Lost:
		l.remove(from) // it does not work on its sub-tasks any more
	case m.Result != nil:
		l.receiveResult(ctx, from, *m.Result)
	case m.Beat != nil:
		l.beat(ctx, from, m.Beat)
	case m.Set != nil:
		m.Set.By = from
		if err := l.set(*m.Set); err != nil {
			l.refuseLimited(from, err)
		}
	case m.Leave:
		l.quit[from] = true
		l.remove(from)
	case m.Watch:
		l.watchers[from] = true
		l.admits[from] = true
	}
}

// refuseLimited reports a refusal at a limited rate.
func (l *leader) refuseLimited(who string, why *Error) {
	if l.c.limits.allowRefusal(who) {
		l.refuse(l.c.ctx, who, why)
	}
}

func (l *leader) refuse(ctx context.Context, who string, why *Error) {
	l.c.o.Logger.Warn("a participant's request is refused", "swarm", l.id, "agent", who, "error", why)
	l.c.r.Telemetry().Emit(telemetry.Event{Type: telemetry.ErrorEvent, Sender: who, Recipient: l.c.id, Code: string(why.Code), Detail: why.Message})
	if !l.x.members[who] {
		return // only participants get messages
	}
	l.after(func() { l.send(ctx, who, message{Refused: &refused{Code: why.Code, Message: why.Message}}) })
}

// readmit makes an agent a participant again after it was removed, at a limited rate,
// since each time adds a record. It reports whether the agent is a participant.
func (l *leader) readmit(id string) bool {
	if !l.x.left[id] {
		return true
	}
	if !takeOne(l.returns, id, returnBurst, 1/l.c.o.Lease.Seconds()) {
		return false
	}
	l.emit(event{Joined: []string{id}})
	if l.watchers[id] {
		l.admits[id] = true
	}
	return true
}

// receiveResult applies a result and, once it is stored, confirms it, also if it is ignored.
func (l *leader) receiveResult(ctx context.Context, from string, r result) {
	if len(r.Value) > MaxResult || len(r.Value) > 0 && !json.Valid(r.Value) {
		r = result{SubTask: r.SubTask, Attempt: r.Attempt, Error: "the result is not JSON, or too large"}
	}
	if len(r.Error) > maxReason {
		r.Error = strings.ToValidUTF8(r.Error[:maxReason], "")
	}
	t := l.x.find(r.SubTask)
	l.after(func() { l.send(ctx, from, message{Stored: []string{r.SubTask}}) })
	switch {
	case t == nil || t.Status == TaskCompleted || !l.x.tried[t.ID][from]:
		return // a duplicate, or of a sub-task that it never had
	case r.Error != "" && t.AssignedAgent != from:
		return // another agent has the sub-task
	}
	if t.AssignedAgent != from && t.Status == TaskRunning {
		l.stop(ctx, t.AssignedAgent, t.ID) // the former agent was faster
	}
	if r.Error != "" {
		l.failAttempt(t.ID, r.Error)
		return
	}
	l.complete(t, from, r.Value)
}

// finish stores a result from the API.
func (l *leader) finish(id string, r result) error {
	t := l.x.find(id)
	switch {
	case t == nil:
		return &Error{Code: CodeNotFound, Subject: l.id + "/" + id, Message: "the swarm has no sub-task " + id}
	case t.Status == TaskCompleted || t.Status == TaskFailed:
		return &Error{Code: CodeState, Subject: l.id + "/" + id, Message: "sub-task " + id + " is " + string(t.Status) + " already"}
	case t.AssignedAgent == "" || !l.x.held[t.AssignedAgent][id]:
		return &Error{Code: CodeState, Subject: l.id + "/" + id, Message: "sub-task " + id + " is not assigned yet"}
	case r.Error != "":
		l.failAttempt(id, r.Error)
	default:
		l.complete(t, t.AssignedAgent, r.Value)
	}
	return nil
}

func (l *leader) complete(t *SubTask, by string, value json.RawMessage) {
	l.ran(t)
	l.emit(event{Ended: &ended{SubTask: t.ID, Agent: by, Result: value}})
	l.change(partKey(t.ID), l.x.s.SharedState[partKey(t.ID)])
	for _, next := range l.x.needed[t.ID] {
		n := l.x.part(next)
		if n.Status == TaskPending && l.x.held[n.AssignedAgent][next] && l.x.ready(next) {
			l.queue(n.AssignedAgent, next)
		}
	}
}

// ran notes that a sub-task does not run any more.
func (l *leader) ran(t *SubTask) {
	if t.Status == TaskRunning {
		l.active[t.AssignedAgent]--
		l.look[t.AssignedAgent] = true
		delete(l.lastSeen, t.ID)
	}
}

// failAttempt removes a sub-task from its agent.
func (l *leader) failAttempt(id, reason string) {
	t := l.x.part(id)
	if t.Status != TaskRunning && t.Status != TaskPending {
		return
	}
	l.ran(t)
	l.emit(event{Ended: &ended{SubTask: id, Agent: t.AssignedAgent, Error: reason}})
	l.unplaced[id] = true
}

// beat handles a heartbeat.
func (l *leader) beat(ctx context.Context, from string, parts []string) {
	now := time.Now()
	var unwanted []string
	for _, id := range parts {
		t := l.x.find(id)
		switch {
		case t == nil:
		case t.Status == TaskRunning && t.AssignedAgent == from:
			l.lastSeen[id] = now
		default:
			unwanted = append(unwanted, id)
		}
	}
	if len(unwanted) > 0 {
		l.stop(ctx, from, unwanted...)
	}
}

func (l *leader) stop(ctx context.Context, who string, ids ...string) {
	l.after(func() { l.send(ctx, who, message{Stop: ids}) })
}

// tick removes silent participants, and writes the coordinator's heartbeat.
func (l *leader) tick(ctx context.Context) {
	now := time.Now()
	for id, at := range l.lastSeen {
		if now.Sub(at) <= l.c.o.Lease {
			continue
		}
		who := l.x.part(id).AssignedAgent
		l.remove(who)
	}
	if now.Sub(l.stored) > l.c.o.Takeover/3 && len(l.events) == 0 {
		l.events = append(l.events, event{Set: &set{Key: beatKey}})
	}
}

// beatKey is the key of the coordinator's heartbeats in the journal, which change nothing.
const beatKey = "\x00"

// removeMissing removes the participants without cards.
func (l *leader) removeMissing() {
	for _, id := range l.x.s.Participants {
		if _, known := l.c.r.Registry().Identity(l.c.contact(id)); !known && !l.x.left[id] {
			l.remove(id)
		}
	}
}

// remove removes a participant and its sub-tasks.
func (l *leader) remove(id string) {
	if l.x.left[id] {
		return
	}
	for _, part := range sortedKeys(l.x.held[id]) {
		l.failAttempt(part, id+" has left or is silent")
	}
	delete(l.queues, id)
	l.emit(event{Left: id})
	l.after(func() {
		if d := l.doc.Load(); d != nil {
			d.leave(id)
		}
	})
}

// set changes the shared state.
func (l *leader) set(s set) *Error {
	switch {
	case s.Key == "" || len(s.Key) > MaxKey || s.Key == beatKey || !utf8.ValidString(s.Key):
		return errorf(CodeInvalid, l.id, "a key of the shared state must have 1 to %d bytes of UTF-8", MaxKey)
	case strings.HasPrefix(s.Key, partPrefix):
		return errorf(CodeInvalid, l.id, "keys that begin with %q are the coordinator's", partPrefix)
	case len(s.Value) > MaxValue || len(s.Value) > 0 && !(json.Valid(s.Value) && utf8.Valid(s.Value)):
		return errorf(CodeInvalid, l.id, "a value of the shared state must be JSON of at most %d bytes", MaxValue)
	case len(s.Value) > 0 && !l.x.has(s.Key) && l.x.keys >= MaxKeys:
		return errorf(CodeLimit, l.id, "the shared state has %d keys, which is the limit", MaxKeys)
	case l.x.bytes+len(s.Key)+len(s.Value) > MaxShared:
		return errorf(CodeLimit, l.id, "the shared state has %d bytes, which is the limit", l.x.bytes)
	case len(s.Value) > 0 && l.c.nearlyFull.Load():
		return errorf(CodeNoRoom, l.id, "swarm journal storage is nearly full, so the shared state cannot change")
	case s.By != "" && l.x.written[s.By]+s.cost() > l.c.o.MaxWritten:
		return errorf(CodeFlood, l.id, "%s has changed the shared state by %d bytes in total, which is the limit", s.By, l.x.written[s.By])
	case s.By != "" && l.x.writtenByAll+s.cost() > 2*l.c.o.MaxWritten:
		return errorf(CodeFlood, l.id, "the participants have changed the shared state by %d bytes in total, which is the limit", l.x.writtenByAll)
	}
	l.emit(event{Set: &s})
	l.change(s.Key, s.Value)
	return nil
}

// change adds a change of the shared state to the batch.
func (l *leader) change(key string, value json.RawMessage) {
	l.changed[key] = value
	l.bulk += len(key) + len(value)
}

// share writes the batch's changes of the shared state to the document, in the journal's
// order, and links further agents to it.
func (l *leader) share(ctx context.Context) {
	d := l.doc.Load()
	if d != nil && len(l.changed) > 0 {
		err := d.write(ctx, l.x.s.Sequence, l.changed)
		if err != nil || d.writes > maxWrites {
			l.renew(ctx, err)
		}
	}
	for _, who := range sortedKeys(l.admits) {
		if !l.x.left[who] {
			l.admit(ctx, who)
		}
	}
	clear(l.admits)
	clear(l.changed)
	l.bulk = 0
}

// admit links a participant to the document, which it makes if necessary.
func (l *leader) admit(ctx context.Context, who string) {
	d := l.doc.Load()
	if d == nil {
		l.docs++
		var err error
		d, err = newLeaderDoc(ctx, l.c.r, l.c.id, l.id, documentEpoch(l.x.s.Epoch, l.docs), l.x.s.Sequence, l.x.s.SharedState, l.c.o.Logger)
		if err != nil {
			l.c.o.Logger.Error("a swarm's shared state cannot be followed", "swarm", l.id, "error", err)
			return
		}
		l.doc.Store(d)
	}
	if err := d.follow(l.c.r, l.id, l.c.id, who); err != nil {
		l.c.o.Logger.Warn("a participant cannot follow the shared state", "swarm", l.id, "agent", who, "error", err)
		return
	}
	l.send(ctx, who, message{Document: &document{Epoch: d.epoch}})
}

// renew replaces the document.
func (l *leader) renew(ctx context.Context, why error) {
	if why != nil && ctx.Err() == nil {
		l.c.o.Logger.Warn("the document of a swarm's shared state is replaced", "swarm", l.id, "error", why)
	}
	l.doc.Swap(nil).close()
	for _, who := range sortedKeys(l.watchers) {
		if !l.x.left[who] {
			l.admit(ctx, who)
		}
	}
}

// answered handles a settled proposal.
func (l *leader) answered(p negotiation.Proposal) {
	who, open := l.proposed[p.ID]
	if !open {
		return
	}
	p.Recipient = who // not its stand-in
	delete(l.proposed, p.ID)
	if p.Status != negotiation.Accepted {
		l.blameAnswer(p)
		return
	}
	delete(l.causes, p.Recipient)
	l.accepted = append(l.accepted, p.Recipient)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
