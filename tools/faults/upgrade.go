package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// upgrade is a run that replaces the hub by another program under load.
type upgrade struct {
	old, next string // programs; empty to build ./cmd/parley
	tasks     int    // stored before; a tenth as many mails, work items and edits of a document
	clients   int    // of each kind
	length    time.Duration
	later     bool // do the work after the upgrade: an item whose claim was not answered comes again after five minutes
}

// document is what agents edit, list its root.
const (
	document = "plan"
	list     = "done"
)

// runUpgrade runs an upgrade and returns the promises that were broken. It blocks until all processes have ended.
func runUpgrade(ctx context.Context, out io.Writer, u upgrade) (broken []string, err error) {
	dir, err := os.MkdirTemp("", "parley-faults-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	h, err := newHub(ctx, dir, u.old)
	if err != nil {
		return nil, err
	}
	if u.next == "" {
		u.next = h.program
	}
	if err := os.Mkdir(filepath.Join(dir, "project"), 0o700); err != nil {
		return nil, err
	}
	defer h.kill()
	if err := h.start(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.quit()) }()
	w, err := newWorld(ctx, h, u)
	if err != nil {
		return nil, err
	}
	defer w.leave()
	began := time.Now()
	w.seed(ctx, u.tasks)
	acknowledged, _ := w.all.counts()
	fmt.Fprintf(out, "stored %d tasks, mails, work items and edits in %.1f s\n", acknowledged, time.Since(began).Seconds())

	working, cancel := context.WithTimeout(ctx, u.length)
	defer cancel()
	done := w.load(working)
	pause(ctx, u.length/4)
	began = time.Now()
	report, upgradeErr := h.upgrade(ctx, u.next)
	fmt.Fprintf(out, "upgraded under load in %.1f s: %s\n", time.Since(began).Seconds(), bytes.TrimSpace(report))
	if upgradeErr == nil {
		pause(ctx, u.length/4) // the new hub under load
	}
	cancel()
	done()
	if upgradeErr != nil {
		return nil, upgradeErr
	}
	found, err := w.collect(ctx)
	if err != nil {
		return nil, err
	}
	w.report(out, found)
	broken = append(check(w.all.ops, found), invented(w.all.ops, found)...)
	// The order of a queue ends where an item comes again.
	return slices.DeleteFunc(broken, func(b string) bool { return !u.later && strings.HasPrefix(b, `order: "work-`) }), nil
}

// texts are what was found, by sender.
type texts map[string][]string

// kind returns what all senders of a kind have sent.
func (t texts) kind(kind string) (all []string) {
	for i := range len(t) {
		all = append(all, t[name(kind, i)]...)
	}
	return all
}

// world are the clients of a hub, and what they have done.
type world struct {
	h       *hub
	clients int
	later   bool
	all     history
	agents  []*agent
	senders []*agent // of mail, work and edits
	reader  *agent   // of mail
	worker  *agent

	mu      sync.Mutex
	found   texts // what the reader and the worker have got
	seen    map[string]bool
	reasons map[string]int // why outcomes are unknown, and how often
}

// perMinute is less than the hub's limit for the mail of an agent.
const perMinute = 90

func newWorld(ctx context.Context, h *hub, u upgrade) (w *world, err error) {
	w = &world{h: h, clients: u.clients, later: u.later, found: texts{}, seen: map[string]bool{}, reasons: map[string]int{}}
	defer func() {
		if err != nil {
			w.leave()
		}
	}()
	enter := func(handle string) *agent {
		a, joinErr := join(ctx, h, handle)
		if joinErr != nil {
			err = errors.Join(err, joinErr)
			return nil
		}
		w.agents = append(w.agents, a)
		return a
	}
	w.reader, w.worker = enter("reader"), enter("worker")
	for i := range u.clients {
		w.senders = append(w.senders, enter(name("sender", i)))
	}
	return w, err
}

func (w *world) leave() {
	for _, a := range w.agents {
		a.leave()
	}
}

// seed stores tasks, and a tenth as many mails, work items and edits, in one after the other per sender.
func (w *world) seed(ctx context.Context, tasks int) {
	var wait sync.WaitGroup
	for i := range w.clients {
		wait.Go(func() { w.sendTasks(ctx, i, 0, tasks/w.clients) })
		wait.Go(func() { w.sendByAgent(ctx, i, 0, tasks/10/w.clients) })
	}
	wait.Wait()
}

// load lets all clients work until ctx ends; done waits for their end.
func (w *world) load(ctx context.Context) (done func()) {
	var wait sync.WaitGroup
	for i := range w.clients {
		wait.Go(func() { w.sendTasks(ctx, i, 1<<20, 1<<30) })
		wait.Go(func() { w.sendByAgent(ctx, i, 1<<20, 1<<30) })
	}
	wait.Go(func() { w.read(ctx) })
	if !w.later {
		wait.Go(func() { w.work(ctx) })
	}
	return wait.Wait
}

// mostTries bounds how often a client sends the same thing until its outcome is known, retryPause is between two of them: together longer
// than a hub is away.
const (
	mostTries  = 60
	retryPause = 250 * time.Millisecond
)

// sendTasks sends tasks, numbered from first. A task whose outcome is not known is sent again with its key, which the hub accepts once.
func (w *world) sendTasks(ctx context.Context, i, first, most int) {
	perform(ctx, name("tasks", i), first, most, &w.all, func(call context.Context, text string) error {
		err := sendTask(call, w.h, name("tasks", i), text)
		if errors.Is(err, errNotSent) {
			return err
		}
		always := context.WithoutCancel(ctx)
		for tries := 1; err != nil && tries < mostTries && pause(always, retryPause); tries++ {
			again, cancel := context.WithTimeout(always, callTime)
			err = sendTask(again, w.h, name("tasks", i), text)
			cancel()
		}
		if err != nil {
			err = errors.New(err.Error()) // not errNotSent: the first one may have been sent
		}
		w.failed("tasks", err)
		return err
	})
}

// submit submits a work item until its outcome is known: the same item again is no error.
func (w *world) submit(ctx context.Context, a *agent, id, text string) (err error) {
	for range mostTries {
		if err = a.tool(ctx, "submit_work_item", map[string]any{"capability": capability, "taskId": id, "taskDescription": text}, nil); err == nil || !pause(ctx, retryPause) {
			break
		}
	}
	return err
}

// sendByAgent sends a mail, a work item and an edit in turn. The mail is within the limit of an agent.
func (w *world) sendByAgent(ctx context.Context, i, first, most int) {
	a, mails, since := w.senders[i], 0, time.Now()
	always := context.WithoutCancel(ctx) // the last one ends, too
	for number := first; number-first < most && ctx.Err() == nil; number++ {
		if time.Since(since) > time.Minute {
			mails, since = 0, time.Now()
		}
		if mails++; mails <= perMinute {
			w.try(always, name("mail", i), number, func(text string) error {
				return a.tool(always, "send_direct_message", map[string]any{"recipientGuid": w.reader.guid, "message": text}, nil)
			})
		}
		w.try(always, name("work", i), number, func(text string) error {
			return w.submit(always, a, fmt.Sprintf("work-%d-%d", i, number), text)
		})
		w.try(always, name("edit", i), number, func(text string) error {
			return a.tool(always, "edit_document", map[string]any{"name": document, "edits": []any{map[string]any{"op": "insert", "path": []string{list}, "values": []string{text}}}}, nil)
		})
	}
}

// try performs and records an operation.
func (w *world) try(ctx context.Context, sender string, number int, do func(text string) error) {
	o := operation{sender: sender, number: number}
	err := do(o.text())
	o.acknowledged = err == nil
	w.failed(kindOf(sender), err)
	w.all.add(o)
	if err != nil {
		pause(ctx, retryPause) // the hub is away, perhaps
	}
}

// maxReasons bounds the reasons that a report names.
const maxReasons = 20

// failed counts an operation whose outcome is not known.
func (w *world) failed(kind string, err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reasons[kind+": "+err.Error()]++
}

// kindOf returns what a sender sends.
func kindOf(sender string) string {
	kind, _, _ := strings.Cut(sender, "-")
	return kind
}

// report writes how many operations of each kind were acknowledged and are there, and which of the others are: a call that the upgrade
// has cut off is there once or not at all.
func (w *world) report(out io.Writer, found texts) {
	there := map[string]bool{}
	for _, all := range found {
		for _, text := range all {
			there[text] = true
		}
	}
	for _, kind := range []string{"tasks", "mail", "work", "edit"} {
		var acknowledged, unknown, done int
		for _, o := range w.all.ops {
			switch {
			case kindOf(o.sender) != kind:
			case o.acknowledged:
				acknowledged++
			default:
				unknown++
				if there[o.text()] {
					done++
				}
			}
		}
		fmt.Fprintf(out, "%-5s %6d acknowledged, %6d found; %d with an unknown outcome, %d of them found\n", kind, acknowledged, len(found.kind(kind)), unknown, done)
	}
	reasons := slices.Sorted(maps.Keys(w.reasons))
	for _, reason := range reasons[:min(len(reasons), maxReasons)] {
		fmt.Fprintf(out, "unknown %d times: %.300s\n", w.reasons[reason], reason)
	}
}

// invented returns what was found although nobody has sent it.
func invented(ops []operation, found texts) (broken []string) {
	sent := map[string]bool{}
	for _, o := range ops {
		sent[o.text()] = true
	}
	for _, all := range found {
		for _, text := range all {
			if !sent[text] {
				broken = append(broken, fmt.Sprintf("invented: nobody has sent %q", text))
			}
		}
	}
	return broken
}

// got records what the reader or the worker has got.
func (w *world) got(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found[senderOf(text)] = append(w.found[senderOf(text)], text)
}

// senderOf returns who has sent a text.
func senderOf(text string) string {
	var sender string
	_, _ = fmt.Sscan(text, &sender) // without one it is nobody's
	return sender
}

// read reads mail until ctx ends, and reports whether there was some. Mail that is marked as perhaps known is not counted twice.
func (w *world) read(ctx context.Context) {
	for ctx.Err() == nil {
		if n, err := w.readOnce(ctx); n == 0 || err != nil {
			pause(ctx, 20*time.Millisecond)
		}
	}
}

func (w *world) readOnce(ctx context.Context) (int, error) {
	var got struct {
		Messages []struct {
			MessageID, Message string
			ReadBefore         bool
		}
	}
	if err := w.reader.tool(context.WithoutCancel(ctx), "read_direct_messages", map[string]any{"limit": 50}, &got); err != nil {
		return 0, err
	}
	for _, m := range got.Messages {
		if !m.ReadBefore || !w.seen[m.MessageID] {
			w.got(m.Message)
		}
		w.seen[m.MessageID] = true
	}
	return len(got.Messages), nil
}

// work does the work of the queue until ctx ends.
func (w *world) work(ctx context.Context) {
	for ctx.Err() == nil {
		if _, err := w.workOnce(ctx); err != nil {
			pause(ctx, 20*time.Millisecond)
		}
	}
}

// workOnce does an item of the queue, and reports false if none came.
func (w *world) workOnce(ctx context.Context) (bool, error) {
	always := context.WithoutCancel(ctx)
	var got struct {
		Item *struct {
			TaskID, TaskDescription string
			ClaimToken              int
		}
	}
	if err := w.worker.tool(always, "claim_work_item", map[string]any{"timeout_seconds": 1}, &got); err != nil || got.Item == nil {
		return false, err
	}
	var err error
	for range 20 { // completing is idempotent
		err = w.worker.tool(always, "complete_work_item", map[string]any{"taskId": got.Item.TaskID, "claimToken": got.Item.ClaimToken, "success": true, "resultSummary": got.Item.TaskDescription}, nil)
		if err == nil {
			w.got(got.Item.TaskDescription)
			return true, nil
		}
		pause(always, 50*time.Millisecond)
	}
	return true, err // it comes again when its lease ends
}

// leaseTime is longer than a lease of a work item.
const leaseTime = 10 * time.Minute

// left reports whether something acknowledged of a kind was not got.
func (w *world) left(kind string) bool {
	done := map[string]bool{}
	for _, text := range w.found.kind(kind) {
		done[text] = true
	}
	return slices.ContainsFunc(w.all.ops, func(o operation) bool {
		return o.acknowledged && strings.HasPrefix(o.sender, kind+"-") && !done[o.text()]
	})
}

// collect returns everything that is there in the end, by sender, oldest first.
func (w *world) collect(ctx context.Context) (texts, error) {
	late := time.Now().Add(startTime)
	for {
		n, err := w.readOnce(ctx)
		if err != nil && (time.Now().After(late) || !pause(ctx, 100*time.Millisecond)) { // the link to the new hub may not be back yet
			return nil, err
		}
		if n == 0 && err == nil && (!w.left("mail") || time.Now().After(late)) { // what was accepted without a link comes later
			break
		}
	}
	// An item whose claim was not answered comes again when its lease ends.
	for late := time.Now().Add(leaseTime); w.left("work") && time.Now().Before(late); {
		if _, err := w.workOnce(ctx); err != nil {
			return nil, err
		}
	}
	for i := range w.clients {
		tasks, err := tasksOf(ctx, w.h, name("tasks", i))
		if err != nil {
			return nil, err
		}
		w.found[name("tasks", i)] = tasks
	}
	var read struct{ Content map[string]json.RawMessage }
	if err := w.reader.tool(ctx, "read_document", map[string]any{"name": document}, &read); err != nil {
		return nil, err
	}
	var edits []string
	if err := json.Unmarshal(read.Content[list], &edits); err != nil {
		return nil, err
	}
	for _, text := range edits {
		w.got(text)
	}
	return w.found, nil
}
