package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub"
)

type sendFlags struct {
	context string
	task    string
	dirFlags
	timeout time.Duration
	stream  bool
	detach  bool
	noStart bool
}

func (a *app) sendCommand() *cobra.Command {
	var f sendFlags
	cmd := command("send AGENT MESSAGE", "Send a message to an agent and print its answer",
		func(cmd *cobra.Command, args []string) error {
			return a.send(cmd.Context(), f, args)
		})
	cmd.Long = `Send a message to an agent and print its answer. If no hub is running, one is started in
the background first.

AGENT is a name from "agents": a program such as codex, or a session that a person has open,
as in reviewer, reviewer.shop (its project) and reviewer@office (its computer, or the
hub that it is of).

What is piped to the command is sent with the message, as a second text behind it. "-" as
the message is what is piped alone. A pipe from which nothing has come for a minute is an
error; in a script that inherits one, add </dev/null.

The first Ctrl-C cancels the task and waits until its processes have ended; a
second Ctrl-C exits, and the task keeps running. --detach does not wait at all.

An agent of a new conversation works in the project here: the git repository of the
current directory, else that directory, or --dir. The first time you are asked whether
agents may work there; "trust" allows it without a question. --worktree gives the
conversation a git worktree on a branch of its own, --scratch an empty directory.`
	cmd.Example = "  " + a.name + ` send echo "hello"
  git diff | ` + a.name + ` send claude-code "review this" --context review
  ` + a.name + ` send codex "fix the failing test" --worktree
  ` + a.name + ` send --task TASK "yes"        # answer a question of a task`
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if f.task != "" && len(args) == 1 {
			return nil
		}
		if len(args) > 2 {
			return usage("unexpected argument %q; put the message in quotes", args[2])
		}
		return exactly("AGENT", "MESSAGE")(cmd, args)
	}
	cmd.ValidArgsFunction = a.completeFirst(agentIDs)
	flags := cmd.Flags()
	flags.StringVar(&f.context, "context", "", "the conversation that the message belongs to; a new id starts one")
	flags.StringVar(&f.task, "task", "", "the task that the message answers or continues; AGENT is then optional")
	f.dirFlags.add(cmd, "work in a directory of the conversation's own")
	timeVar(flags, &f.timeout, "timeout", 0, time.Millisecond, "the time limit: 5s, 2m, 1h30m, or a number of milliseconds; 0 means the agent's limit")
	flags.BoolVar(&f.stream, "stream", false, "print the answer as it arrives; with --format json one event per line")
	flags.BoolVar(&f.detach, "detach", false, "return when the task is stored, without its answer")
	a.startFlags(cmd, &f.noStart)
	cmd.MarkFlagsMutuallyExclusive("detach", "stream")
	a.complete(cmd, "context", contextIDs)
	a.complete(cmd, "task", taskIDs)
	return cmd
}

// startFlags adds the flags of a command that starts the hub if it is not running, unless noStart is set.
func (a *app) startFlags(cmd *cobra.Command, noStart *bool) {
	a.mayStart(cmd)
	cmd.Flags().BoolVar(noStart, "no-start", false, "fail if no hub is running, instead of starting one")
}

func (a *app) send(ctx context.Context, f sendFlags, args []string) error {
	agent, text := "", args[len(args)-1]
	if len(args) == 2 {
		agent = args[0]
	}
	fromStdin := text == "-"
	texts, err := a.withPiped(ctx, text)
	if err != nil {
		return err
	}
	var dir workDir
	if f.task == "" { // a task has its directory already
		var err error
		if dir, err = a.chooseDir(ctx, f.dirFlags); err != nil {
			return err
		}
	}
	c, err := a.connectOrStart(ctx, f.noStart)
	if err != nil {
		return err
	}
	defer c.Close()
	if agent, err = a.agentID(ctx, c, agent); err != nil {
		return err
	}
	if f.task, err = taskID(ctx, c, f.task); err != nil {
		return err
	}
	if f.context, err = contextID(ctx, c, f.context, true); err != nil {
		return err
	}
	if dir, err = a.permitDir(ctx, c, dir, []string{agent}, f.context); err != nil {
		return err
	}
	if dir.unused {
		a.note("note: agent %s does not work with files of this computer: --dir and --worktree have no effect", plain(agent))
	}
	run := taskRun{app: a, client: c, live: f.stream, ask: !fromStdin && a.interactive(), noProject: dir.noProject}
	parts := make([]dialect.Part, len(texts))
	for i, t := range texts {
		parts[i] = dialect.TextPart(t)
	}
	params := f.params(agent, parts...)
	dir.metadata(params.Message.Metadata)
	if f.detach {
		return a.endedTask(ctx, c, f.task, run.detach(ctx, params))
	}
	return a.endedTask(ctx, c, f.task, run.send(ctx, params))
}

// endedTask adds to the error of a message to a task that has ended how its conversation goes on.
func (a *app) endedTask(ctx context.Context, c *client.Client, id string, err error) error {
	refused, ok := errors.AsType[*jsonrpc.Error](err)
	if id == "" || !ok || refused.Code != dialect.CodeUnsupportedOperation {
		return err
	}
	task, taskErr := c.Task(ctx, id)
	if taskErr != nil || !task.Status.State.Ended() {
		return err
	}
	f := a.explainRPC(refused)
	agent, _ := task.Metadata[hub.MetaAgent].(string)
	f.Remedy = "continue its conversation with: " + a.self() + " send " + plain(agent) + " MESSAGE --context " + plain(task.ContextID)
	return f
}

func (f sendFlags) params(agent string, parts ...dialect.Part) dialect.SendParams {
	m := dialect.Message{
		Kind: dialect.KindMessage, MessageID: uuid.NewString(), Role: dialect.RoleUser,
		Parts: parts, ContextID: f.context, TaskID: f.task, Metadata: map[string]any{},
	}
	if agent != "" {
		m.Metadata[hub.MetaTargetAgent] = agent
	}
	return dialect.SendParams{Message: m, Configuration: &dialect.SendConfig{Timeout: milliseconds(f.timeout)}}
}

// milliseconds rounds up: 0 would mean the agent's limit.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// connectOrStart connects to the hub. If none is running it starts one, unless noStart is set.
func (a *app) connectOrStart(ctx context.Context, noStart bool) (*client.Client, error) {
	cfg, err := a.load(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	c, err := a.dial(ctx, cfg)
	if noStart || !errors.Is(err, client.ErrNotRunning) {
		return c, err
	}
	cancel() // startHub handles the signals itself
	return a.startAndConnect(context.WithoutCancel(ctx), cfg)
}

func (a *app) startAndConnect(ctx context.Context, cfg *config.Loaded) (*client.Client, error) {
	a.warn(cfg)
	info, already, err := a.startHub(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if !already && !a.json() {
		a.printNotices(info.Notices)
	}
	if !already {
		a.note("started the hub in the background (process %d); stop it with: %s stop", info.PID, a.self())
	}
	return a.dial(ctx, cfg)
}

// interactive reports whether the command can ask the user questions.
func (a *app) interactive() bool {
	return !a.json() && isTerminal(a.stdin) && isTerminal(a.stderr)
}

// taskRun follows one task to its end.
type taskRun struct {
	app    *app
	client *client.Client
	live   bool     // --stream
	noted  []string // the task's notices that are printed
	ask    bool     // forward the agent's questions to the user
	keep   bool     // an interrupt does not cancel the task, as with task follow

	noProject string // why the agent works in a directory of the conversation's own

	began time.Time
}

// detach sends without waiting.
func (r *taskRun) detach(ctx context.Context, p dialect.SendParams) error {
	ctx, cancel := r.app.interruptible(ctx)
	defer cancel()
	blocking := false
	p.Configuration.Blocking = &blocking
	task, err := r.client.Send(ctx, p)
	if err != nil {
		return err
	}
	return r.app.print(task, func() {
		fmt.Fprintln(r.app.stdout, plain(task.ID))
		if why := r.delay(ctx, task); why != "" {
			r.app.notice(why)
		}
		r.app.note("follow it with: %s task follow %s", r.app.self(), plain(task.ID))
	})
}

// delay returns why a new task waits for its session, as far as is known; "" if it does not.
func (r *taskRun) delay(ctx context.Context, task *dialect.Task) string {
	id, _ := task.Metadata[hub.MetaAgent].(string)
	agent, err := r.client.FindAgent(ctx, dialect.FindAgentParams{Name: id})
	switch {
	case err != nil || agent.Kind != string(hub.KindSession):
		return ""
	case agent.State == string(hub.AgentOffline):
		return hub.WaitingNotice(hub.OfflineReason, hub.DeadlineOf(task.Metadata)).Text
	case agent.Quiet:
		return hub.QuietNotice
	}
	return ""
}

// send sends a message, prints the answer, and forwards the agent's questions to the user until the task ends.
func (r *taskRun) send(ctx context.Context, p dialect.SendParams) error {
	r.began = time.Now()
	if p.Message.TaskID == "" { // repeated, it is the same task
		p.Message.Metadata[hub.MetaOnce] = uuid.NewString()
	}
	for {
		once := p.Message.TaskID == ""
		task, err := r.watch(ctx, once, func(ctx context.Context) (*client.Stream, error) { return r.client.Stream(ctx, p) })
		if err != nil {
			return err
		}
		if !r.ask || task.Status.State != dialect.StateInputRequired {
			return r.finish(task)
		}
		part, err := r.app.askUser(ctx, task)
		if err != nil {
			return err
		}
		if part == nil {
			return r.finish(task)
		}
		p = sendFlags{task: task.ID, context: task.ContextID}.params("", *part)
	}
}

// watch prints a stream until it ends, and handles interrupts meanwhile. When the hub is lost, it follows the task as soon as there is a
// hub again; a task whose id is not known yet only if once says that open may be repeated.
func (r *taskRun) watch(ctx context.Context, once bool, open func(context.Context) (*client.Stream, error)) (*dialect.Task, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { stream.Close() }()
	view := newView(r.app, r.live)
	defer view.close()
	defer func() { r.noted = append(r.noted, view.notes...) }()
	ids := make(chan string, 1)
	watching := make(chan struct{})
	defer func() { cancel(nil); <-watching }()
	go func() {
		defer close(watching)
		r.interrupted(ctx, cancel, ids, view)
	}()
	var id string
	for {
		event, err := stream.Next(ctx)
		if errors.Is(err, io.EOF) {
			view.end(stream.Task())
			return stream.Task(), nil
		}
		if err != nil {
			if id != "" {
				open = func(ctx context.Context) (*client.Stream, error) { return r.client.Follow(ctx, id) }
				err = stopping(err)
			}
			if id == "" && !once {
				return nil, err
			}
			again, err := r.reopen(ctx, open, err)
			if err != nil {
				return nil, err
			}
			stream.Close()
			stream = again
			continue
		}
		if event.Task != nil {
			id = event.Task.ID
			select {
			case ids <- id:
			default: // already known
			}
		}
		view.show(event)
	}
}

// reopen opens a stream that has ended with an error again, as soon as there is a hub. It returns other errors than the loss of the hub.
func (r *taskRun) reopen(ctx context.Context, open func(context.Context) (*client.Stream, error), err error) (*client.Stream, error) {
	retry := hubRetry{app: r.app, notice: "The hub is down; the answer comes when it is up again."}
	for {
		if err := retry.after(ctx, err); err != nil {
			return nil, err
		}
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		var stream *client.Stream
		if stream, err = open(ctx); err == nil {
			return stream, nil
		}
		err = stopping(err)
	}
}

// stopping returns a loss of the hub for what a hub that stops answers about a task that it has.
func stopping(err error) error {
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok && e.Code == dialect.CodeAgentUnavailable {
		return fmt.Errorf("%w: %w", client.ErrLost, err)
	}
	return err
}

// taskIDTimeout is how long an interrupted command waits for the id of its task.
const taskIDTimeout = 5 * time.Second

// interrupted handles the user's interrupts: the first cancels the task, which ends the
// stream; the second ends the command.
func (r *taskRun) interrupted(ctx context.Context, stop context.CancelCauseFunc, ids <-chan string, view *view) {
	if !signaled(ctx, r.app.interrupts) {
		return
	}
	var id string
	select {
	case id = <-ids:
	case <-r.app.interrupts: // the task continues
		stop(errInterrupted)
		return
	case <-time.After(taskIDTimeout):
		stop(errInterrupted)
		return
	case <-ctx.Done():
		return
	}
	exit := func(message, remedy string) {
		stop(&failure{Exit: exitInterrupted, Kind: "interrupted", Message: message, Remedy: remedy + plain(id)})
	}
	if r.keep {
		exit("no longer following; the task keeps running", "follow it again with: "+r.app.self()+" task follow ")
		return
	}
	view.spinner.Load().say("canceling; after another Ctrl-C the task keeps running")
	r.app.note("\ncanceling task %s; a second Ctrl-C exits, and the task keeps running", plain(id))
	canceled := make(chan error, 1)
	go func() { // ends with the answer or with ctx
		_, err := r.client.Cancel(ctx, id)
		canceled <- err
	}()
	if signaled(ctx, r.app.interrupts) {
		exit("exited while task "+plain(id)+" was being canceled", "see: "+r.app.self()+" task show ")
	}
	<-canceled // the stream has the task's result
}

// signaled blocks until a signal, and reports false if ctx ends first.
func signaled(ctx context.Context, signals <-chan os.Signal) bool {
	select {
	case <-signals:
		return true
	case <-ctx.Done():
		return false
	}
}

// finish prints the outcome and turns the task's state into the exit code.
func (r *taskRun) finish(task *dialect.Task) error {
	a := r.app
	switch {
	case a.json() && !r.live:
		writeJSON(a.stdout, task)
	case !a.json():
		a.printOutcome(task, r.began, r.noted)
		a.printWorkDir(hub.WorkDirIn(task.Metadata), r.noProject)
	}
	code := stateExit(task.Status.State)
	if code == exitOK {
		return nil
	}
	if code == exitTaskFailed && taskError(task, "code") == string(hub.CodeTimeout) {
		code = exitTimeout
	}
	return &failure{Exit: code, Kind: string(task.Status.State), Message: plain(task.Status.Message.Text()), quiet: true}
}

// taskError returns a field of the error that the hub has put into the status of a failed task, "" without one.
func taskError(task *dialect.Task, field string) string {
	if task.Status.Message == nil {
		return ""
	}
	info, _ := task.Status.Message.Metadata[hub.MetaError].(map[string]any)
	text, _ := info[field].(string)
	return text
}
