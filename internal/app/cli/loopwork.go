package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/loop"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/swarm"
)

// loopWork is the hub as a loop uses it. It records which task or swarm works on the present item, so that the command
// can show what the agent does, and stop it. The agent's questions go to the user at a terminal. It is safe for
// concurrent use.
type loopWork struct {
	*client.Client
	app     *app
	notices swarmNotices
	halt    func() // ends the loop, after a Ctrl-C at a question

	mu      sync.Mutex
	task    string // that works now or asks, "" if none does
	noted   bool   // that nobody answers questions
	swarm   string
	doing   string
	spinner *spinner
}

var _ loop.Hub = (*loopWork)(nil)

// Send implements [loop.Hub].
func (w *loopWork) Send(ctx context.Context, p dialect.SendParams) (*dialect.Task, error) {
	task, err := w.Client.Send(ctx, p)
	w.see(task, err)
	return task, err
}

// Task implements [loop.Hub].
func (w *loopWork) Task(ctx context.Context, id string) (*dialect.Task, error) {
	task, err := w.Client.Task(ctx, id)
	w.see(task, err)
	if err != nil || task.Status.State != dialect.StateInputRequired {
		return task, err
	}
	return w.answer(ctx, task)
}

// Cancel implements [loop.Hub].
func (w *loopWork) Cancel(ctx context.Context, id string) (*dialect.Task, error) {
	task, err := w.Client.Cancel(ctx, id)
	w.see(task, err)
	return task, err
}

// answer asks the user a task's question and sends the answer. It returns the task as it is then: unchanged where
// nobody answers.
func (w *loopWork) answer(ctx context.Context, task *dialect.Task) (*dialect.Task, error) {
	w.quiet()
	if !w.app.interactive() {
		w.noteUnanswered(task)
		return task, nil
	}
	part, err := w.app.askUser(ctx, task)
	switch {
	case err != nil && w.app.explain(err).Exit == exitInterrupted:
		w.halt()
		return nil, errInterrupted
	case err != nil || part == nil:
		return task, err
	}
	p := sendFlags{task: task.ID, context: task.ContextID}.params("", *part)
	blocking := false
	p.Configuration.Blocking = &blocking
	return w.Send(ctx, p)
}

// noteUnanswered says once how to let an agent work without questions.
func (w *loopWork) noteUnanswered(task *dialect.Task) {
	w.mu.Lock()
	noted := w.noted
	w.noted = true
	w.mu.Unlock()
	if noted {
		return
	}
	w.app.note("  the agent asks, and nobody answers: run the loop at a terminal, or set agents.%s.permissions in\n  the hub's configuration (%s config path)",
		agentOf(task), w.app.self())
}

func (w *loopWork) see(task *dialect.Task, err error) {
	if err != nil {
		return
	}
	id := task.ID
	if task.Status.State.Ended() {
		id = ""
	}
	doing := agentOf(task) + " " + string(task.Status.State)
	if text := oneLine(task.Status.Message.Text()); text != "" && task.Status.State == dialect.StateWorking {
		doing = agentOf(task) + ": " + text
	}
	w.now(id, "", doing)
}

// CreateSwarm implements [loop.Hub].
func (w *loopWork) CreateSwarm(ctx context.Context, p swarm.Plan) (*swarm.Session, error) {
	s, err := w.Client.CreateSwarm(ctx, p)
	w.seeSwarm(s, err)
	return s, err
}

// AwaitSwarm implements [loop.Hub].
func (w *loopWork) AwaitSwarm(ctx context.Context, id string, after uint64) (*swarm.Session, error) {
	s, err := w.notices.await(ctx, id, after)
	w.seeSwarm(s, err)
	return s, err
}

// seeNotice shows a notice of an agent of the swarm.
func (w *loopWork) seeNotice(agent, words string) {
	w.mu.Lock()
	id := w.swarm
	w.mu.Unlock()
	w.now("", id, oneLine(agent)+": "+oneLine(words))
}

func (w *loopWork) seeSwarm(s *swarm.Session, err error) {
	if err != nil {
		return
	}
	id, doing := s.ID, "swarm "+string(s.Status)
	if s.Status.Ended() {
		id = ""
	}
	for _, t := range s.SubTasks {
		if t.Status == swarm.TaskRunning {
			doing = "swarm: " + oneLine(t.AssignedAgent) + " works on it"
		}
	}
	w.now("", id, doing)
}

// now records what works. The spinner shows it at a terminal; elsewhere each change is a line.
func (w *loopWork) now(task, swarm, doing string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := doing != w.doing
	w.task, w.swarm, w.doing = task, swarm, doing
	switch {
	case !changed:
	case isTerminal(w.app.stderr):
		if w.spinner == nil {
			w.spinner = w.app.spin(doing)
		}
		w.spinner.say(doing)
	default:
		w.app.note("  %s", fit(doing, 100))
	}
}

// quiet removes the spinner, so that a line can be printed.
func (w *loopWork) quiet() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spinner.end()
	w.spinner, w.doing = nil, ""
}

// stop stops what works on the present item, and waits for its end. A second signal leaves it running. It does nothing
// if nothing works.
func (w *loopWork) stop(ctx context.Context) error {
	w.quiet()
	w.mu.Lock()
	task, swarm := w.task, w.swarm
	w.mu.Unlock()
	switch {
	case task != "":
		return w.app.stopStarted(ctx, "task "+shortID(task), "task cancel "+task, func(ctx context.Context) error {
			_, err := w.Cancel(ctx, task)
			return err
		})
	case swarm != "":
		return w.app.stopStarted(ctx, "swarm "+shortID(swarm), "swarm stop "+swarm, func(ctx context.Context) error {
			return w.app.stopSwarm(ctx, w.Client, swarm, "with the loop")
		})
	}
	return nil
}

// stopStarted stops what this command has started, after the first Ctrl-C, and waits for the end. The second one
// leaves it running; the error says so, and how to stop it.
func (a *app) stopStarted(ctx context.Context, what, command string, stop func(context.Context) error) error {
	a.note("stopping %s; a second Ctrl-C exits, and it keeps running", what)
	ctx, cancel := a.interruptible(context.WithoutCancel(ctx))
	defer cancel()
	err := stop(ctx)
	if err == nil {
		a.note("%s is stopped", what)
		return nil
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if context.Cause(ctx) == errInterrupted { //nolint:errorlint // the cause itself
		return &failure{Exit: exitInterrupted, Kind: "interrupted", Message: what + " keeps running", Remedy: "stop it with: " + a.self() + " " + command}
	}
	if f := a.explain(err); f.Kind == "task-not-cancelable" || f.Kind == "swarm-state" {
		return nil // it has ended meanwhile
	}
	return &failure{Exit: exitInterrupted, Kind: "interrupted", Message: what + " could not be stopped: " + err.Error(), Remedy: "stop it with: " + a.self() + " " + command}
}

// loopRecord says which list a directory of a loop's state belongs to.
type loopRecord struct {
	List  string `json:"list,omitempty"`  // the file's path
	Queue string `json:"queue,omitempty"` // of the agents' network
}

const loopRecordFile = "loop.json"

func writeLoopRecord(dir string, r loopRecord) error {
	f := statefile.Edited(filepath.Join(dir, loopRecordFile))
	_, _ = f.Read() // mends it
	data, err := json.Marshal(r)
	if err == nil {
		err = f.Write(data)
	}
	if err != nil {
		return fmt.Errorf("write the state of the loop: %w", err)
	}
	return nil
}

// loopInfo is a loop in `loop list`. docs/json.md specifies its JSON.
type loopInfo struct {
	loopRecord
	Running   bool      `json:"running"`
	Completed int       `json:"completed"`
	GivenUp   int       `json:"givenUp"`
	Open      int       `json:"open"`
	Current   string    `json:"current,omitempty"` // the text of the present item
	Updated   time.Time `json:"updated"`
	State     string    `json:"state"` // the state file
}

func (a *app) loopListCommand() *cobra.Command {
	return command("list", "List the loops, running and stopped, and their progress", func(cmd *cobra.Command, _ []string) error {
		loops, err := a.loops(cmd.Context())
		if err != nil {
			return err
		}
		a.loopsListing(time.Now()).print(a, a.stdout, loops)
		return nil
	})
}

// loops returns the loops that have run, the one that changed last first.
func (a *app) loops(ctx context.Context) ([]loopInfo, error) {
	cfg, err := a.load(ctx)
	if err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(cfg.DataDir, "loops", "*", loopRecordFile))
	if err != nil {
		return nil, err
	}
	loops := []loopInfo{}
	for _, file := range found {
		info, err := readLoop(ctx, file)
		if err != nil {
			a.note("%s: %v", filepath.Dir(file), err)
			continue
		}
		loops = append(loops, info)
	}
	slices.SortStableFunc(loops, func(x, y loopInfo) int { return y.Updated.Compare(x.Updated) })
	return loops, nil
}

// completeLoops completes the list and --queue with those of loops that have run. A list may be any file, too.
func (a *app) completeLoops(cmd *cobra.Command) {
	known := func(name func(loopInfo) string) (words []string) {
		loops, _ := a.loops(cmd.Context()) // no completion is better than an error
		for _, l := range loops {
			if name(l) != "" {
				words = append(words, described(name(l), fmt.Sprintf("%d done, %d open, %d given up", l.Completed, l.Open, l.GivenUp)))
			}
		}
		return words
	}
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return known(func(l loopInfo) string { return l.List }), cobra.ShellCompDirectiveDefault
	}
	complete := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return known(func(l loopInfo) string { return l.Queue }), cobra.ShellCompDirectiveNoFileComp
	}
	if err := cmd.RegisterFlagCompletionFunc("queue", complete); err != nil {
		panic(err) // the caller has defined the flag
	}
}

func (a *app) loopsListing(now time.Time) listing[loopInfo] {
	return listing[loopInfo]{
		none: "No loop has run yet.",
		columns: []column{
			{heading: "LIST", weight: 1, least: 16}, {heading: "STATUS"}, {heading: "DONE"}, {heading: "OPEN"}, {heading: "GIVEN UP"},
			{heading: "CHANGED", extra: true}, {heading: "ITEM", weight: 1, least: 12},
		},
		row: func(l loopInfo) []string {
			status := "stopped"
			switch {
			case l.Running:
				status = "running"
			case l.Open == 0 && l.Current == "":
				status = "finished"
			}
			name := cmp.Or(l.List, "queue "+l.Queue)
			return []string{name, status, fmt.Sprint(l.Completed), fmt.Sprint(l.Open), fmt.Sprint(l.GivenUp), ago(now, l.Updated), l.Current}
		},
		paint: a.paintFirst,
	}
}

// readLoop returns what is known of the loop with a record. Items of a file that the loop has not reached count as
// open; those of a queue are not known.
func readLoop(ctx context.Context, file string) (info loopInfo, err error) {
	data, _, err := statefile.Edited(file).Peek()
	if err == nil {
		err = json.Unmarshal(data, &info.loopRecord)
	}
	if err != nil {
		return info, err
	}
	info.State = filepath.Join(filepath.Dir(file), "state.json")
	state, err := ralph.ReadState(info.State)
	if err != nil {
		return info, err
	}
	if info.Running, err = ralph.Running(info.State); err != nil {
		return info, err
	}
	info.Updated = state.Updated
	if p := state.Items[state.Current]; p != nil {
		info.Current = p.Text
	}
	for _, p := range state.Items {
		switch p.Status {
		case ralph.Completed:
			info.Completed++
		case ralph.GivenUp:
			info.GivenUp++
		default:
			info.Open++
		}
	}
	if list, err := ralph.Open(info.List); info.List != "" && err == nil {
		if items, err := list.Items(ctx); err == nil {
			info.countItems(items)
		}
	}
	return info, nil
}

// countItems counts the items of the list itself, of which some may be done by others.
func (l *loopInfo) countItems(items []ralph.Item) {
	l.Completed = 0
	for _, item := range items {
		if item.Done {
			l.Completed++
		}
	}
	l.Open = max(len(items)-l.Completed-l.GivenUp, 0)
}
