package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// Settings of all programs of a campaign: work comes back soon, often enough, and only the campaign starts hubs.
const lease = 3 * time.Second

func settings() []string {
	return []string{fmt.Sprintf("WORKQUEUE_ACK_TIMEOUT=%d", lease/time.Second), "WORKQUEUE_MAX_ATTEMPTS=1000", "NATS_MCP_AUTOSTART=0"}
}

// maxEdits bounds the edits of a sender, for the document is read as a whole.
const maxEdits = 2000

// reader reads all mail.
const reader = "reader"

// files are what agents claim.
var files = []string{"a.go", "b.go", "c.go"}

// traffic is the clients of a campaign. Each client has a goroutine.
type traffic struct {
	h       *hub
	c       campaign
	all     *history
	reader  *player
	poster  *player            // of messages to a channel
	always  context.Context    // of calls, which end also when no more are made
	give    context.CancelFunc // gives up all calls: there is no hub
	senders []*player          // of mail, work and edits
	workers []*player
	lockers []*player // claim files
	owed    *owed
	wall    *wallClock // which is set at times; nil for none
}

func newTraffic(ctx context.Context, h *hub, c campaign, all *history) *traffic {
	t := &traffic{h: h, c: c, all: all, owed: newOwed()}
	t.always, t.give = context.WithCancel(ctx)
	enter := func(handle string) *player { return &player{h: h, handle: handle, all: all} }
	t.reader, t.poster = enter(reader), enter("poster")
	for i := range c.clients {
		t.senders, t.workers = append(t.senders, enter(name("sender", i))), append(t.workers, enter(name("worker", i)))
	}
	for i := range c.clients + 1 {
		t.lockers = append(t.lockers, enter(name("locker", i)))
	}
	return t
}

// players returns all agents.
func (t *traffic) players() []*player {
	all := []*player{t.reader, t.poster}
	all = append(all, t.senders...)
	all = append(all, t.workers...)
	return append(all, t.lockers...)
}

// run runs all clients until ctx ends. Each has random numbers of its own.
func (t *traffic) run(ctx context.Context) {
	var wait sync.WaitGroup
	for i := range t.c.clients {
		wait.Go(func() { sendTasks(ctx, t.h, t.c, name("tasks", i), t.all) })
		wait.Go(func() { sendMessages(ctx, t.h, name("chat", i), t.all) })
		wait.Go(func() { t.send(ctx, i) })
		wait.Go(func() { t.work(ctx, t.workers[i], t.random("worker", i)) })
	}
	for i, p := range t.lockers {
		wait.Go(func() { t.lock(ctx, p, t.random("locker", i)) })
	}
	wait.Go(func() { t.read(ctx) })
	wait.Go(func() { t.post(ctx) })
	wait.Wait()
}

func (t *traffic) random(kind string, i int) *rand.Rand {
	return rand.New(rand.NewPCG(t.c.seed, uint64(len(kind))<<32|uint64(i)+1))
}

// enter registers all agents: one that has never been there may get the GUID of another one of its type that is away.
func (t *traffic) enter(ctx context.Context) error {
	entering, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for _, p := range t.players() {
		if err := p.join(entering); err != nil {
			return fmt.Errorf("%s: %w", p.handle, err)
		}
	}
	return nil
}

// leave ends all agents.
func (t *traffic) leave() {
	t.give()
	for _, p := range t.players() {
		p.leave()
	}
}

// send sends a mail, an item of work and an edit in turn, and asks what became of an earlier mail.
func (t *traffic) send(ctx context.Context, i int) {
	p, random, mails, since := t.senders[i], t.random("sender", i), 0, time.Now()
	always := t.always // the last one ends, too
	var sent []string
	for number := 0; ctx.Err() == nil; number++ {
		if p.join(ctx) != nil {
			return
		}
		if time.Since(since) > time.Minute {
			mails, since = 0, time.Now()
		}
		if mails++; mails <= perMinute {
			if id := t.mail(always, p, i, number); id != "" {
				sent = append(sent, id)
			}
		}
		t.attempt(name("work", i), number, func(text string) error {
			err := p.call(always, event{}, "submit_work_item", map[string]any{"capability": capability, "taskId": itemOf(text), "taskDescription": text}, nil, nil)
			if err == nil {
				t.owed.submitted(itemOf(text))
			}
			return err
		})
		if number < maxEdits {
			t.attempt(name("edit", i), number, func(text string) error {
				return p.call(always, event{}, "edit_document", map[string]any{"name": document, "edits": []any{map[string]any{"op": "insert", "path": []string{list}, "values": []string{text}}}}, nil, nil)
			})
		}
		t.c.rest(ctx)
		if len(sent) > 0 {
			t.status(always, p, sent[max(0, len(sent)-1-random.IntN(20))])
		}
	}
}

// itemOf returns the id of an item of work.
func itemOf(text string) string { return strings.ReplaceAll(text, " ", "-") }

// attempt performs and records an operation, unless it was not made.
func (t *traffic) attempt(sender string, number int, do func(text string) error) {
	o := operation{sender: sender, number: number}
	err := do(o.text())
	if errors.Is(err, errNotSent) {
		return
	}
	if o.acknowledged = err == nil; !o.acknowledged {
		pause(t.always, 50*time.Millisecond) // the hub may be away
	}
	t.all.add(o)
}

// mail sends a mail and returns its id; "" if it was not acknowledged.
func (t *traffic) mail(ctx context.Context, p *player, i, number int) (id string) {
	t.attempt(name("mail", i), number, func(text string) error {
		if t.reader.known() == "" {
			return errNotSent
		}
		var sent struct{ MessageID string }
		err := p.call(ctx, event{}, "send_direct_message", map[string]any{"recipientGuid": t.reader.known(), "message": text}, &sent, nil)
		if err == nil {
			id = sent.MessageID
			t.owed.mailed(text, id)
		}
		return err
	})
	return id
}

// post sends messages to a channel until ctx ends: the hub syncs for the agent's process, unlike for a session over HTTP, which is in the hub.
func (t *traffic) post(ctx context.Context) {
	for number := 0; number < maxMessages && t.poster.join(ctx) == nil && ctx.Err() == nil; number++ {
		t.attempt(name("post", 0), number, func(text string) error {
			var sent struct{ Queued bool }
			err := t.poster.call(t.always, event{}, "send_message", map[string]any{"channel": channel, "message": text}, &sent, nil)
			if err == nil && sent.Queued {
				err = errQueued
			}
			return err
		})
		pause(ctx, postPace)
		t.c.rest(ctx)
	}
}

// postPace is the pause between two messages, of which a channel has not many.
const postPace = 50 * time.Millisecond

// status asks what became of a mail.
func (t *traffic) status(ctx context.Context, p *player, id string) {
	var got struct{ Status, StoredAt, DeliveredAt, ReadAt string }
	_ = p.call(ctx, event{Op: opStatus, Key: id}, "get_message_status", map[string]any{"messageId": id}, &got, func(e *event) {
		e.Value, e.Times = got.Status, []string{got.StoredAt, got.DeliveredAt, got.ReadAt}
	}) // it is recorded
}

// read reads mail until ctx ends.
func (t *traffic) read(ctx context.Context) {
	for ctx.Err() == nil {
		if n, err := t.readOnce(ctx); n == 0 || err != nil {
			pause(ctx, 20*time.Millisecond)
		}
	}
}

// readOnce reads what is there and returns how much it was.
func (t *traffic) readOnce(ctx context.Context) (int, error) {
	if err := t.reader.join(ctx); err != nil {
		return 0, err
	}
	var got struct {
		Messages []struct {
			MessageID, Message string
			ReadBefore         bool
		}
	}
	begin := t.all.now()
	err := t.reader.call(t.always, event{Op: opRead}, "read_direct_messages", map[string]any{"limit": 20}, &got, nil)
	if err != nil {
		return 0, err
	}
	end := t.all.now()
	for _, m := range got.Messages {
		t.all.note(event{Client: t.reader.handle, Op: opGot, Key: m.MessageID, Text: m.Message, Again: m.ReadBefore, Begin: begin, End: end, Outcome: done})
	}
	return len(got.Messages), nil
}

// work does the work of the queue until ctx ends.
func (t *traffic) work(ctx context.Context, p *player, random *rand.Rand) {
	for ctx.Err() == nil {
		if err := t.workOnce(ctx, p, random); err != nil {
			pause(ctx, 20*time.Millisecond)
		}
	}
}

// claimed is an item of work that a worker has.
type claimed struct {
	TaskID, TaskDescription string
	ClaimToken              int
	LeaseUntil              time.Time
}

// workOnce claims an item and treats it: most are completed at once, some are extended, returned, or kept too long.
func (t *traffic) workOnce(ctx context.Context, p *player, random *rand.Rand) error {
	if err := p.join(ctx); err != nil {
		return err
	}
	always := t.always
	var got struct{ Item *claimed }
	// It is recorded with its item, which is not known before.
	begin := t.all.now()
	if err := p.call(always, event{}, "claim_work_item", map[string]any{"timeout_seconds": 1}, &got, nil); err != nil || got.Item == nil {
		return err
	}
	x := got.Item
	t.all.note(event{Client: p.handle, Op: opClaim, Key: x.TaskID, Text: x.TaskDescription, Token: x.ClaimToken, Until: x.LeaseUntil, Begin: begin, End: t.all.now(), Outcome: done})
	held := map[string]any{"taskId": x.TaskID, "claimToken": x.ClaimToken}
	e := event{Key: x.TaskID, Token: x.ClaimToken}
	choice := 99
	if random != nil {
		choice = random.IntN(100)
	}
	switch {
	case choice < 1: // longer than the lease
		pause(ctx, lease+lease/2)
	case choice < 3: // while the hub is killed
		pause(ctx, lease/2)
	case choice < 8:
		var extended struct{ LeaseUntil time.Time }
		e.Op = opExtend
		if err := p.call(always, e, "extend_work_item", held, &extended, func(e *event) { e.Until = extended.LeaseUntil }); err != nil {
			return err
		}
	case choice < 12:
		e.Op, held["reason"] = opReject, "for somebody else"
		return p.call(always, e, "reject_work_item", held, nil, nil)
	}
	e.Op, held["success"], held["resultSummary"] = opComplete, true, x.TaskDescription
	err := p.call(always, e, "complete_work_item", held, nil, nil)
	if err == nil {
		t.owed.completed(x.TaskID)
	}
	return err
}

// rest pauses in a soak, in which it matters how long it takes and not how much is sent.
func (c campaign) rest(ctx context.Context) {
	if c.soak {
		pause(ctx, soakPace)
	}
}

// maxAway is how long an agent that claims files stays away at most when it was killed.
const maxAway = 3 * time.Second

// lock claims files and releases them again until ctx ends.
func (t *traffic) lock(ctx context.Context, p *player, random *rand.Rand) {
	always := t.always
	for {
		if p.agent == nil && random.IntN(2) == 0 { // others meet what it has left
			pause(ctx, time.Duration(random.Int64N(int64(maxAway))))
		}
		if p.join(ctx) != nil || ctx.Err() != nil {
			return
		}
		file := files[random.IntN(len(files))]
		e := event{Op: opLock, Key: file}
		err := p.call(always, e, "claim_files", map[string]any{"paths": []string{file}, "why": "a campaign", "until": "12h"}, nil, nil)
		if random.IntN(4) == 0 {
			t.list(always, p)
		}
		pause(ctx, time.Duration(random.IntN(60))*time.Millisecond)
		t.c.rest(ctx)
		if outcomeOf(err) == refused {
			continue
		}
		// All claims of the agent end, also those whose answer was lost.
		for ctx.Err() == nil {
			if p.call(always, event{Op: opUnlock}, "release_files", map[string]any{}, nil, nil) == nil {
				break
			}
			pause(ctx, 50*time.Millisecond)
		}
	}
}

// list reads who holds which file.
func (t *traffic) list(ctx context.Context, p *player) {
	var got struct {
		Claims []struct {
			HolderHandle string
			Paths        []string
		}
	}
	_ = p.call(ctx, event{Op: opList}, "list_claims", map[string]any{}, &got, func(e *event) {
		holders := map[string]string{}
		for _, c := range got.Claims {
			for _, path := range c.Paths {
				holders[path] += c.HolderHandle
			}
		}
		value, _ := json.Marshal(holders) // of texts
		e.Value = string(value)
	}) // it is recorded
}

// drainTime is how long work and mail may take after the last fault.
const drainTime = 90 * time.Second

// collect returns everything that is there in the end, by sender, oldest first. No fault comes any more.
func (t *traffic) collect(ctx context.Context) (texts, error) {
	found := texts{}
	s, err := collect(ctx, t.h, t.c.clients)
	if err != nil {
		return nil, err
	}
	for sender, sent := range s {
		found[sender] = sent
	}
	return found, t.collectOfAgents(ctx, found)
}

// collectOfAgents adds what the agents have sent, and is there in the end.
func (t *traffic) collectOfAgents(ctx context.Context, found texts) error {
	if err := t.readAll(ctx); err != nil {
		return err
	}
	for _, e := range firstOfEach(t.all.of(opGot)) {
		found[senderOf(e.Text)] = append(found[senderOf(e.Text)], e.Text)
	}
	if err := t.workAll(ctx); err != nil {
		return err
	}
	maps.Copy(found, t.owed.completedOf(t.all.ops)) // nobody sends any more
	var posts messages
	if err := callOnceMore(ctx, t.poster, "read_messages", posts.query(channel), &posts); err != nil {
		return fmt.Errorf("read the channel: %w", err)
	}
	if err := posts.addTo(found); err != nil {
		return err
	}
	var read struct{ Content map[string]json.RawMessage }
	// Without an edit there is no document.
	if err := callOnceMore(ctx, t.senders[0], "read_document", map[string]any{"name": document}, &read); err != nil && outcomeOf(err) != refused {
		return fmt.Errorf("read the document: %w", err)
	}
	var edits []string
	if data := read.Content[list]; data != nil {
		if err := json.Unmarshal(data, &edits); err != nil {
			return err
		}
	}
	for _, text := range edits {
		found[senderOf(text)] = append(found[senderOf(text)], text)
	}
	t.statusOfAll(ctx)
	return nil
}

// callOnceMore calls a tool again if it fails: the agent may have been killed after its last call, which only the next one notices.
func callOnceMore(ctx context.Context, p *player, tool string, arguments, result any) error {
	err := p.call(ctx, event{}, tool, arguments, result, nil)
	if err != nil && outcomeOf(err) != refused {
		err = p.call(ctx, event{}, tool, arguments, result, nil)
	}
	return err
}

// firstOfEach returns the first event of each key.
func firstOfEach(events []event) (first []event) {
	seen := map[string]bool{}
	for _, e := range events {
		if !seen[e.Key] {
			first = append(first, e)
		}
		seen[e.Key] = true
	}
	return first
}

// readAll reads mail until all acknowledged mail was read, or the time is over.
func (t *traffic) readAll(ctx context.Context) error {
	for late := time.Now().Add(drainTime); ; {
		n, err := t.readOnce(ctx)
		switch {
		case time.Now().After(late):
			return err
		case err == nil && n == 0 && !t.owed.unread(t.all.of(opGot)):
			return nil
		case n == 0 && !pause(ctx, 50*time.Millisecond):
			return ctx.Err()
		}
	}
}

// workAll works until all acknowledged items are completed, or none was for a while: on a quick computer more may be left than is done in
// that time.
func (t *traffic) workAll(ctx context.Context) error {
	var wait sync.WaitGroup
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(drainTime, cancel)
	defer late.Stop()
	for i, p := range t.workers {
		wait.Go(func() {
			for before := len(t.owed.undone()); working.Err() == nil && before > 0; {
				if t.workOnce(working, p, nil) != nil {
					pause(working, 20*time.Millisecond)
				}
				left := t.owed.undone()
				if i == 0 && len(left) < 20 {
					t.settle(working, p, left)
				}
				if len(left) < before {
					late.Reset(drainTime)
				}
				before = len(left)
			}
		})
	}
	wait.Wait()
	t.settle(ctx, t.workers[0], t.owed.undone())
	return ctx.Err()
}

// settle asks the hub for items that no worker knows to be completed: the answer of the one who did it was lost.
func (t *traffic) settle(ctx context.Context, p *player, items []string) {
	for _, item := range items {
		var got struct{ State string }
		if p.call(ctx, event{}, "get_work_item", map[string]any{"taskId": item}, &got, nil) == nil && got.State == "completed" {
			t.owed.completed(item)
		}
	}
}

// statusOfAll asks what became of mail, of each sender at most the last hundred.
func (t *traffic) statusOfAll(ctx context.Context) {
	for i, p := range t.senders {
		asked, ops := 0, t.all.ops // nobody sends any more
		for k := len(ops) - 1; k >= 0 && asked < 100; k-- {
			if id := t.owed.mailOf(ops[k].text()); id != "" && ops[k].sender == name("mail", i) {
				asked++
				t.status(ctx, p, id)
			}
		}
	}
}
