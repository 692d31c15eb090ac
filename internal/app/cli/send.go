package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub"
)

// maxMessage bounds a message from standard input, in bytes; the hub takes
// requests of 10 MiB.
const maxMessage = 8 << 20

type sendFlags struct {
	context string
	task    string
	dir     string
	timeout int64
	stream  bool
	detach  bool
	noStart bool
}

func (a *app) sendCommand() *cobra.Command {
	var f sendFlags
	cmd := &cobra.Command{
		Use:   "send AGENT MESSAGE",
		Short: "Send a message to an agent and print its answer",
		Long: `Send a message to an agent and print its answer. "-" as the message reads it from
standard input. Where no hub runs, one is started in the background first.

The first Ctrl-C cancels the task and waits until its processes are gone; the
second leaves it to itself. --detach does not wait at all.

An agent works in a directory of the conversation's own, or where the
configuration says. --dir chooses another for a new conversation; it must lie
below workdirs.roots of the configuration.`,
		Example: "  " + a.name + ` send echo "hello"
  git diff | ` + a.name + ` send claude-code - --context review
  ` + a.name + ` send codex "fix the failing test" --dir .
  ` + a.name + ` send --task TASK "yes"        # answer a question of a task`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.task != "" && len(args) == 1 {
				return nil
			}
			if len(args) > 2 {
				return usage("unexpected argument %q; put the message into quotes", args[2])
			}
			return exactly("AGENT", "MESSAGE")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.send(cmd.Context(), f, args)
		},
		ValidArgsFunction: a.completeFirst(agentIDs),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.context, "context", "", "the conversation that the message belongs to; a new id begins one")
	flags.StringVar(&f.task, "task", "", "the task that the message answers or continues; AGENT may then be left out")
	flags.StringVar(&f.dir, "dir", "", "the directory that the agent works in, for a new conversation")
	flags.Int64Var(&f.timeout, "timeout", 0, "the longest run, in milliseconds; 0 is the agent's limit")
	flags.BoolVar(&f.stream, "stream", false, "print the answer as it comes; with --format json one event a line")
	flags.BoolVar(&f.detach, "detach", false, "return when the task is stored, without its answer")
	flags.BoolVar(&f.noStart, "no-start", false, "fail where no hub runs instead of starting one")
	cmd.MarkFlagsMutuallyExclusive("detach", "stream")
	a.complete(cmd, "context", contextIDs)
	a.complete(cmd, "task", taskIDs)
	return cmd
}

func (a *app) send(ctx context.Context, f sendFlags, args []string) error {
	if f.timeout < 0 {
		return usage("--timeout must not be negative")
	}
	agent, text := "", args[len(args)-1]
	if len(args) == 2 {
		agent = args[0]
	}
	if f.dir != "" {
		dir, err := filepath.Abs(f.dir)
		if err != nil {
			return usage("--dir: %v", err)
		}
		f.dir = dir
	}
	fromStdin := text == "-"
	if fromStdin {
		var err error
		if text, err = readMessage(a.stdin); err != nil {
			return err
		}
	}
	if strings.TrimSpace(text) == "" {
		return usage("the message is empty")
	}
	if !utf8.ValidString(text) {
		return usage("the message is not valid UTF-8")
	}
	c, err := a.connectOrStart(ctx, f.noStart)
	if err != nil {
		return err
	}
	defer c.Close()
	run := taskRun{app: a, client: c, live: f.stream, ask: !fromStdin && a.interactive()}
	params := f.params(agent, dialect.TextPart(text))
	if f.detach {
		return run.detach(ctx, params)
	}
	return run.send(ctx, params)
}

// readMessage reads a message and leaves out the newline at its end, which is
// the pipe's, not the message's.
func readMessage(r io.Reader) (string, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxMessage+1))
	if err != nil {
		return "", fmt.Errorf("read the message: %w", err)
	}
	if len(data) > maxMessage {
		return "", usage("the message is longer than %d bytes", maxMessage)
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r"), nil
}

func (f sendFlags) params(agent string, part dialect.Part) dialect.SendParams {
	m := dialect.Message{
		Kind: dialect.KindMessage, MessageID: uuid.NewString(), Role: dialect.RoleUser,
		Parts: []dialect.Part{part}, ContextID: f.context, TaskID: f.task,
	}
	m.Metadata = map[string]any{}
	if agent != "" {
		m.Metadata[hub.MetaTargetAgent] = agent
	}
	if f.dir != "" {
		m.Metadata[hub.MetaWorkDir] = f.dir
	}
	return dialect.SendParams{Message: m, Configuration: &dialect.SendConfig{Timeout: f.timeout}}
}

// connectOrStart connects to the hub and starts one where none runs.
func (a *app) connectOrStart(ctx context.Context, noStart bool) (*client.Client, error) {
	cfg, err := a.load()
	if err != nil {
		return nil, err
	}
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	c, err := a.dial(ctx, cfg)
	if noStart || !errors.Is(err, client.ErrNotRunning) {
		return c, err
	}
	cancel() // startHub takes the signals itself
	return a.startAndConnect(context.WithoutCancel(ctx), cfg)
}

func (a *app) startAndConnect(ctx context.Context, cfg *config.Loaded) (*client.Client, error) {
	a.warn(cfg)
	info, already, err := a.startHub(ctx, cfg, nil)
	if err != nil {
		return nil, err
	}
	if already && info.Socket != cfg.Socket.Path {
		return nil, &failure{
			Exit: exitNotRunning, Kind: "hub-not-running",
			Message: fmt.Sprintf("the hub (process %d) does not listen on %s", info.PID, cfg.Socket.Path),
			Remedy:  "use --socket " + info.Socket,
		}
	}
	if !already {
		a.note("started the hub in the background (process %d); stop it with: %s stop", info.PID, a.self())
	}
	return a.dial(ctx, cfg)
}

// interactive tells whether the user can be asked.
func (a *app) interactive() bool {
	return !a.json() && isTerminal(a.stdin) && isTerminal(a.stderr)
}

// taskRun follows one task to its end for the user.
type taskRun struct {
	app    *app
	client *client.Client
	live   bool // --stream
	ask    bool // questions may be put to the user
	// leave makes an interrupt leave the task to itself, as with task follow.
	leave bool

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
	if r.app.json() {
		writeJSON(r.app.stdout, task)
		return nil
	}
	fmt.Fprintln(r.app.stdout, plain(task.ID))
	r.app.note("follow it with: %s task follow %s", r.app.self(), plain(task.ID))
	return nil
}

// send sends a message, shows what comes back, and puts questions of the agent
// to the user until the task is done.
func (r *taskRun) send(ctx context.Context, p dialect.SendParams) error {
	r.began = time.Now()
	for {
		task, err := r.watch(ctx, func(ctx context.Context) (*client.Stream, error) { return r.client.Stream(ctx, p) })
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

// watch shows a stream until it ends. Interrupts act while it waits: see
// interrupted.
func (r *taskRun) watch(ctx context.Context, open func(context.Context) (*client.Stream, error)) (*dialect.Task, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	view := newView(r.app, r.live)
	defer view.close()
	ids := make(chan string, 1)
	watching := make(chan struct{})
	defer func() { cancel(nil); <-watching }()
	go func() {
		defer close(watching)
		r.interrupted(ctx, cancel, ids, view)
	}()
	for {
		event, err := stream.Next(ctx)
		if errors.Is(err, io.EOF) {
			view.end(stream.Task())
			return stream.Task(), nil
		}
		if err != nil {
			return nil, err
		}
		if event.Task != nil {
			select {
			case ids <- event.Task.ID:
			default: // it is known already
			}
		}
		view.show(event)
	}
}

// firstWord is how long the hub may take to say which task it has made of a message
// before whoever interrupts leaves without knowing.
const firstWord = 5 * time.Second

// interrupted acts on the user's signals: the first cancels the task, after
// which the stream ends by itself, the second leaves.
func (r *taskRun) interrupted(ctx context.Context, stop context.CancelCauseFunc, ids <-chan string, view *view) {
	if !wait(ctx, r.app.interrupts) {
		return
	}
	var id string
	select {
	case id = <-ids:
	case <-r.app.interrupts: // the hub has not said yet: it goes on without us
		stop(errInterrupted)
		return
	case <-time.After(firstWord):
		stop(errInterrupted)
		return
	case <-ctx.Done():
		return
	}
	if r.leave {
		stop(&failure{Exit: exitInterrupted, Kind: "interrupted", Message: "left the task to itself", Remedy: "follow it again with: " + r.app.self() + " task follow " + plain(id)})
		return
	}
	view.say("canceling; Ctrl-C again leaves the task running")
	r.app.note("\ncanceling task %s; press Ctrl-C again to leave it to itself", plain(id))
	canceled := make(chan error, 1)
	go func() { // ends with the answer or with ctx
		_, err := r.client.Cancel(ctx, id)
		canceled <- err
	}()
	if wait(ctx, r.app.interrupts) {
		stop(&failure{Exit: exitInterrupted, Kind: "interrupted", Message: "left task " + plain(id) + " while it was being canceled", Remedy: "look with: " + r.app.self() + " task show " + plain(id)})
	}
	<-canceled // the stream tells how the task ended
}

// wait waits for a signal; it returns false when ctx ended first.
func wait(ctx context.Context, signals <-chan os.Signal) bool {
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
		a.printOutcome(task, r.began)
	}
	code := stateExit(task.Status.State)
	if code == exitOK {
		return nil
	}
	if code == exitTaskFailed && errorCode(task) == string(hub.CodeTimeout) {
		code = exitTimeout
	}
	return &failure{Exit: code, Kind: string(task.Status.State), Message: plain(task.Status.Message.Text()), quiet: true}
}

// errorCode is why a task failed, as the hub has put it into the status.
func errorCode(task *dialect.Task) string {
	code, _ := taskError(task)["code"].(string) // "" where it is not there
	return code
}

func taskError(task *dialect.Task) map[string]any {
	if task.Status.Message == nil {
		return nil
	}
	info, _ := task.Status.Message.Metadata[hub.MetaError].(map[string]any) // nil where it is not there
	return info
}
