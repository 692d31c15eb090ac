package sessions

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
)

const (
	answersVersion = 1
	maxFollowed    = 1000      // tasks of sessions that are followed; the answers of more come only to those who ask
	maxAnswer      = 256 << 10 // bytes of an answer in the mail
)

// Answers mail to sessions the answers of the tasks that they have given to others, unless a call of theirs waited for it. They
// are safe for concurrent use.
type Answers struct {
	hub  *hub.Hub
	post Poster
	file statefile.File[answersFile]
	log  *slog.Logger

	ctx       context.Context
	stop      context.CancelFunc
	following wait.Group

	mu    sync.Mutex
	tasks map[a2a.TaskID]*delegated
}

// Poster stores notices in inboxes: an [Assigner].
type Poster interface {
	Post(ctx context.Context, n assignment.Notice) (seen time.Time, err error)
}

// delegated is a task that a session has given to another agent.
type delegated struct {
	Task  a2a.TaskID `json:"task"`
	Agent string     `json:"agent"` // the session's GUID

	calls   int         // of the session that wait for the answer
	taken   string      // the status that such a call has returned, see statusOf
	changed wait.Signal // sent when a call has ended
}

type answersFile struct {
	Tasks []*delegated `json:"tasks"`
}

// OpenAnswers follows the tasks of the hub's last run that have not ended, or whose answer nobody has got. It reads a file; damaged, which
// may be nil, is called if that was damaged.
func OpenAnswers(h *hub.Hub, post Poster, path string, log *slog.Logger, damaged func(statefile.Damage)) (*Answers, error) {
	file := statefile.File[answersFile]{Path: path, Version: answersVersion, Damaged: damaged,
		Loss: "the answers of tasks that sessions have given and that have ended are not mailed"}
	f, err := file.Read()
	if err != nil {
		return nil, err
	}
	x := &Answers{hub: h, post: post, file: file, log: log.With("component", "sessions"), tasks: make(map[a2a.TaskID]*delegated)}
	x.ctx, x.stop = context.WithCancel(context.Background())
	for _, d := range f.Tasks {
		if d != nil && d.Task != "" {
			x.tasks[d.Task] = d
		}
	}
	if err := x.findOpen(); err != nil {
		x.log.Warn("the answers of some tasks that sessions have given may come only to those who ask", "error", err)
	}
	for _, d := range slices.Collect(maps.Values(x.tasks)) { // each removes itself at its end
		x.following.Go(func() { x.follow(d) })
	}
	return x, nil
}

// findOpen adds open tasks that a session has given and the file does not have: the hub was killed between the two.
func (x *Answers) findOpen() error {
	for _, state := range []a2a.TaskState{a2a.TaskStateSubmitted, a2a.TaskStateWorking, a2a.TaskStateInputRequired, a2a.TaskStateAuthRequired} {
		page, err := x.hub.Tasks(x.ctx, hub.TaskQuery{State: state, Limit: maxFollowed, HistoryLength: new(0)})
		if err != nil {
			return err
		}
		for _, t := range page.Tasks {
			from := hub.DelegationOf(t)
			if from != nil && from.Session != "" && x.tasks[t.ID] == nil && len(x.tasks) < maxFollowed {
				x.tasks[t.ID] = &delegated{Task: t.ID, Agent: from.Session}
			}
		}
	}
	return nil
}

// Close stops following. It blocks until nothing is posted any more.
func (x *Answers) Close() {
	x.following.Stop()
	x.stop()
	x.following.Wait()
}

// Began notes that a session has given a task to another agent, and waits for its answer until end is called.
func (x *Answers) Began(guid string, id a2a.TaskID) (end func(*a2a.Task)) {
	d := &delegated{Task: id, Agent: guid}
	x.mu.Lock()
	if x.tasks[id] != nil || len(x.tasks) >= maxFollowed {
		x.mu.Unlock()
		return x.Waits(guid, id)
	}
	d.calls++
	x.tasks[id] = d
	x.store()
	x.mu.Unlock()
	x.following.Go(func() { x.follow(d) })
	return func(t *a2a.Task) { x.waited(d, t) }
}

// Waits notes that a call of a session waits for a task, until end is called with what the call returns, nil for an error.
func (x *Answers) Waits(guid string, id a2a.TaskID) (end func(*a2a.Task)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	d := x.tasks[id]
	if d == nil || d.Agent != guid {
		return func(*a2a.Task) {}
	}
	d.calls++
	return func(t *a2a.Task) { x.waited(d, t) }
}

func (x *Answers) waited(d *delegated, t *a2a.Task) {
	x.mu.Lock()
	defer x.mu.Unlock()
	d.calls--
	if t != nil && settled(t) {
		d.taken = statusOf(t)
	}
	d.changed.Send()
}

// settled reports whether a task has an answer, or a question.
func settled(t *a2a.Task) bool { return t.Status.State.Terminal() || hub.Interrupted(t.Status.State) }

// statusOf tells a status of a task from its others.
func statusOf(t *a2a.Task) string {
	if t.Status.Message != nil {
		return string(t.Status.State) + "/" + t.Status.Message.ID
	}
	return string(t.Status.State)
}

// follow posts the answer of a task, and each question before it.
func (x *Answers) follow(d *delegated) {
	posted := ""
	retry := wait.Backoff{First: 200 * time.Millisecond, Most: 10 * time.Second}
	for x.ctx.Err() == nil {
		t, err := x.next(d, posted)
		if hub.CodeOf(err) == hub.CodeTaskNotFound {
			break
		}
		if err == nil && !settled(t) {
			continue // it goes on already
		}
		if err == nil && x.isTaken(d, t) {
			posted = statusOf(t)
		}
		if err == nil && posted != statusOf(t) {
			if _, err = x.post.Post(x.ctx, answerNotice(d.Agent, t)); err == nil {
				posted = statusOf(t)
			}
		}
		switch {
		case err == nil && t.Status.State.Terminal():
			x.forget(d)
			return
		case err != nil && x.ctx.Err() == nil:
			x.log.Warn("the answer of a task waits to be put into the inbox of the session that gave it", "task", d.Task, "error", err)
			retry.Pause(x.ctx)
		default:
			retry.Reset()
		}
	}
	if x.ctx.Err() == nil {
		x.forget(d)
	}
}

// next blocks until a task has an answer or a question other than the one that was posted, and returns it.
func (x *Answers) next(d *delegated, posted string) (*a2a.Task, error) {
	sub, err := x.hub.Subscribe(x.ctx, d.Task)
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	if t := sub.Task(); !settled(t) || statusOf(t) == posted {
		for err == nil {
			_, err = sub.Next(x.ctx)
		}
		if !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
	return x.hub.Task(x.ctx, d.Task, nil)
}

// isTaken reports whether a call of the session has returned a task's status. It waits for those that are about to.
func (x *Answers) isTaken(d *delegated, t *a2a.Task) bool {
	status := statusOf(t)
	taken := false
	d.changed.Until(x.ctx, nil, func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		taken = d.taken == status
		return taken || d.calls == 0
	})
	return taken
}

func (x *Answers) forget(d *delegated) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.tasks, d.Task)
	x.store()
}

// store writes the file. mu is held: the order of the writes is that of the changes.
func (x *Answers) store() {
	var f answersFile
	for _, d := range x.tasks {
		f.Tasks = append(f.Tasks, d)
	}
	slices.SortFunc(f.Tasks, func(a, b *delegated) int { return strings.Compare(string(a.Task), string(b.Task)) })
	if err := x.file.Write(f); err != nil {
		x.log.Warn("the tasks that sessions have given could not be stored: after a start of the hub their answers come only to those who ask", "error", err)
	}
}

// answerNotice returns the mail with a task's answer.
func answerNotice(guid string, t *a2a.Task) assignment.Notice {
	agent, _ := t.Metadata[hub.MetaAgent].(string)
	words := answerText(t)
	metadata := map[string]any{"taskId": string(t.ID), "from": agent, "state": hub.StateName(t.Status.State)}
	if len(words) > maxAnswer {
		words = text.Valid(words, maxAnswer)
		metadata["truncated"] = true
	}
	return assignment.Notice{Recipient: guid, TaskID: string(t.ID), Again: statusOf(t), Type: mail.TaskAnswer, Text: words, Metadata: metadata}
}

// answerText returns the words of an answer, or where there are none the artifacts'.
func answerText(t *a2a.Task) string {
	var b strings.Builder
	if t.Status.Message != nil {
		for _, p := range t.Status.Message.Parts {
			b.WriteString(p.Text())
		}
	}
	if b.Len() == 0 && t.Status.State.Terminal() {
		for _, a := range t.Artifacts {
			for _, p := range a.Parts {
				b.WriteString(p.Text())
			}
		}
	}
	return b.String()
}
