package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/app/loop"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/telemetry/audit"
)

func (a *app) loopCommand() *cobra.Command {
	return group("loop", "Work through a task list, item by item",
		"Gives the items of a task list to an agent or a swarm, one at a time. It checks each result\n"+
			"with your command, retries with the output of a check that failed, and ticks completed items.",
		a.loopRunCommand(), a.loopListCommand(), a.loopStatusCommand(), a.loopStopCommand())
}

type loopFlags struct {
	queue  string
	follow bool
	agent  string
	swarm  []string
	rule   string
	dirFlags
	attempts int
	limit    time.Duration
	noStart  bool
	retry    bool
}

func (a *app) loopRunCommand() *cobra.Command {
	var f loopFlags
	cmd := command("run LIST|--queue NAME [-- CHECK...]", "Work through a list until no item is left",
		func(cmd *cobra.Command, args []string) error {
			if f.queue != "" {
				return a.runLoopOnQueue(cmd, f, args)
			}
			return a.runLoopOnFile(cmd.Context(), f, args[0], args[1:])
		})
	cmd.Long = `Work through a list until no item is left: Markdown with check boxes ("- [ ] do this"),
or JSON ([{"task":"do this"}]). The command after -- runs after each attempt, without a
shell, where the agent works: the item is done when it exits with 0. Without a command
every answer is accepted.

Agents work in the project here: the git repository of the current directory, else that
directory, or --dir. --worktree gives the loop one git worktree for all items, which the
next run on the list uses again.

With both --agent and --swarm, an item goes to the swarm if it has two or more points: list
lines without a box below its first line. Each point is then a sub-task, and the agents work
at the same time. Other items go to the agent. An item that begins with [swarm] or [agent]
decides for itself; --swarm-items always or never decides for all. Each choice is shown with
its reason.

With --queue the items come from a work queue of the agents' network (docs/network-use.md), one
at a time: the submitter gets the answer, and items that are given up become dead letters.
The loop extends the lease of its item while it runs. After it has stopped, run it again
within the lease (workQueue.ackTimeout) to continue with the item; later another worker
may have it.

Ctrl-C or "loop stop" stop the loop and what works on its item, and wait for the end; a
second Ctrl-C exits, and the work goes on. At a terminal the agent's questions are put to
you; elsewhere an attempt that asks has failed. Run the loop again to continue where it stopped,
also after it was killed. --retry takes up the items that were given up.`
	cmd.Example = "  " + a.name + ` loop run TODO.md --agent claude-code -- go test ./...
  ` + a.name + ` loop run TODO.json --swarm codex,gemini --attempts 5
  ` + a.name + ` loop run TODO.md --agent claude-code --swarm codex,gemini
  ` + a.name + ` loop run --queue go --follow --agent claude-code`
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if at := cmd.ArgsLenAtDash(); at >= 0 {
			args = args[:at]
		}
		return listOrQueue(f.queue)(cmd, args)
	}
	flags := cmd.Flags()
	flags.StringVar(&f.queue, "queue", "", "work through this queue of the agents' network instead of a file")
	flags.BoolVar(&f.follow, "follow", false, "with --queue: wait for new items when the queue is empty")
	flags.StringVar(&f.agent, "agent", "", "the agent that works on the items")
	flags.StringSliceVar(&f.swarm, "swarm", nil, "the agents that work on the items as a swarm: one that fails is replaced")
	flags.StringVar(&f.rule, "swarm-items", string(loop.RuleAuto), "with --agent and --swarm, the items for the swarm: auto, always or never")
	f.dirFlags.add(cmd, "let each item have a directory of its own")
	flags.IntVar(&f.attempts, "attempts", ralph.DefaultMaxAttempts, "how often an item is tried")
	timeVar(flags, &f.limit, "check-timeout", loop.DefaultCheckTime, time.Second, "how long the check may take")
	flags.BoolVar(&f.retry, "retry", false, "take up the items that were given up")
	a.startFlags(cmd, &f.noStart)
	completeWords(cmd, "swarm-items", string(loop.RuleAuto), string(loop.RuleAlways), string(loop.RuleNever))
	a.complete(cmd, "agent", agentIDs)
	a.complete(cmd, "swarm", agentIDs)
	a.completeLoops(cmd)
	return cmd
}

// listOrQueue requires the argument LIST, or none with --queue.
func listOrQueue(queue string) cobra.PositionalArgs {
	if queue != "" {
		return exactly()
	}
	return exactly("LIST")
}

func (a *app) runLoopOnFile(ctx context.Context, f loopFlags, path string, check []string) error {
	if f.follow {
		return usage("--follow is for --queue")
	}
	if err := errors.Join(f.complete(), findCheck(check)); err != nil {
		return err
	}
	a.warnUnread("loop run")
	list, err := ralph.Open(path)
	if err != nil {
		return unreadable(path, err, "check the path; a list is Markdown with \"- [ ] do this\", or JSON")
	}
	dir, _, err := a.stateDir(ctx, "", path)
	if err != nil {
		return err
	}
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	return a.runLoop(ctx, f, list, dir, path, check)
}

// runLoopOnQueue works through a queue. The person who runs the command holds the items.
func (a *app) runLoopOnQueue(cmd *cobra.Command, f loopFlags, check []string) error {
	if f.retry {
		return &failure{Exit: exitUsage, Kind: "usage", Message: "--retry is for a list: the items of a queue that were given up are dead letters",
			Remedy: "put one back with: " + a.self() + " network dead-letters --retry TASK"}
	}
	if err := errors.Join(f.complete(), findCheck(check)); err != nil {
		return err
	}
	dir, project, err := a.stateDir(cmd.Context(), f.queue, "")
	if err == nil {
		err = makeStateDir(dir)
	}
	if err != nil {
		return err
	}
	return a.withNetwork(cmd, func(ctx context.Context, n *agentnet.Network) error {
		person, err := joinAsPerson(ctx, n)
		if err != nil {
			return err
		}
		list, err := loop.OpenQueue(loop.QueueOptions{
			Worker: person, Name: f.queue, File: filepath.Join(dir, "claim.json"), Follow: f.follow,
			Lease: time.Duration(project.WorkQueue.AckTimeout) * time.Second,
		})
		if err != nil {
			return err
		}
		defer list.Close()
		return a.runLoop(ctx, f, list, dir, "queue "+f.queue, check)
	})
}

// findCheck makes the path of the check absolute, and verifies before the first attempt that it can be run.
func findCheck(check []string) (err error) {
	if len(check) == 0 {
		return nil
	}
	if filepath.Base(check[0]) != check[0] {
		if check[0], err = filepath.Abs(check[0]); err != nil {
			return usage("the check cannot be found: %v", err)
		}
	}
	if _, err := process.LookPath(check[0], os.Environ()); err != nil {
		return usage("the check cannot be run: %v", err)
	}
	return nil
}

// complete checks the flags.
func (f *loopFlags) complete() error {
	switch {
	case f.agent == "" && len(f.swarm) == 0:
		return usage("missing --agent or --swarm: the agents that work on the items")
	case !loop.Rule(f.rule).Valid():
		return usage("--swarm-items %q is not one of auto, always, never", f.rule)
	case f.rule != string(loop.RuleAuto) && (f.agent == "" || len(f.swarm) == 0):
		return usage("--swarm-items chooses between an agent and a swarm: give --agent and --swarm")
	case f.attempts < 1 || f.limit <= 0:
		return usage("--attempts and --check-timeout must be more than 0")
	}
	return nil
}

func (a *app) runLoop(ctx context.Context, f loopFlags, list ralph.List, dir, name string, check []string) (err error) {
	if err := makeStateDir(dir); err != nil {
		return err
	}
	where, err := a.chooseDir(ctx, f.dirFlags)
	if err != nil {
		return err
	}
	c, err := a.connectOrStart(ctx, f.noStart)
	if err != nil {
		return err
	}
	defer c.Close()
	if f.agent, err = a.formerAgentID(ctx, c, f.agent); err != nil {
		return err
	}
	if f.swarm, err = a.agentIDsOf(ctx, c, f.swarm); err != nil {
		return err
	}
	agents := slices.Clone(f.swarm)
	if f.agent != "" {
		agents = append(agents, f.agent)
	}
	if where, err = a.permitDir(ctx, c, where, agents, ""); err != nil {
		return err
	}
	where, tree, err := a.worktree(ctx, c, where, "loop", filepath.Base(dir))
	if err != nil {
		return err
	}
	defer a.printWorkDir(tree, "")
	record := loopRecord{Queue: f.queue}
	if f.queue == "" {
		record.List, _ = filepath.Abs(name) // stateDir has done the same
		name = record.List                  // the hub does not know from where it is looked at
	}
	if err := writeLoopRecord(dir, record); err != nil {
		return err
	}
	ctx, halt := context.WithCancelCause(ctx)
	defer halt(nil)
	work := &loopWork{Client: c, app: a, halt: func() { halt(errInterrupted) }}
	work.notices = swarmNotices{client: c, print: work.seeNotice}
	defer work.quiet()
	log, err := audit.Open(filepath.Join(dir, "audit"), audit.Options{MaxFileSize: 4 << 20, MaxFiles: 8})
	if err != nil {
		return loopFailure(err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	o := ralph.Options{
		List: list, StateFile: filepath.Join(dir, "state.json"), MaxAttempts: f.attempts, Retry: f.retry,
		Record: func(s ralph.Step) error {
			work.quiet()
			a.printStep(s)
			if err := log.Append(s.Event(), nil); err != nil {
				return err
			}
			a.reportStep(ctx, c, name, s)
			return nil
		},
	}
	o.Dispatcher = f.dispatcher(work, where, o.Record)
	if len(check) > 0 {
		o.Validator = &loop.Check{Argv: check, Limit: f.limit}
	}
	l, err := ralph.New(o)
	if err != nil {
		return err
	}
	sum, err := l.Run(ctx)
	if err != nil {
		if ralph.CodeOf(err) == ralph.CodeStopped {
			if err := work.stop(ctx); err != nil {
				return err
			}
		}
		return loopFailure(err)
	}
	if a.json() {
		writeJSON(a.stdout, map[string]any{"kind": "summary", "completed": sum.Completed, "givenUp": append([]string{}, sum.GivenUp...), "open": sum.Open})
	}
	if len(sum.GivenUp) > 0 {
		return &failure{Exit: exitTaskFailed, Kind: "items-given-up", Message: "the loop gave up " + text.Count(len(sum.GivenUp), "item"),
			Remedy: "for the reasons, see: " + a.self() + " loop status " + listArgument(f.queue, name)}
	}
	return nil
}

// dispatcher returns what does the items: the agent, the swarm, or for each item one of them.
func (f *loopFlags) dispatcher(h loop.Hub, where workDir, record func(ralph.Step) error) ralph.Dispatcher {
	var one ralph.Dispatcher
	if f.agent != "" {
		one = loop.Agent(h, f.agent, where.Path, where.Project)
	}
	if len(f.swarm) == 0 {
		return one
	}
	return &loop.Choice{Agent: one, Swarm: loop.Swarm(h, f.swarm, where.Path, one != nil), Rule: loop.Rule(f.rule), Record: record}
}

func listArgument(queue, path string) string {
	if queue != "" {
		return "--queue " + queue
	}
	return path
}

// stepTimeout is how long the hub may take to log a step.
const stepTimeout = 5 * time.Second

// reportStep asks the hub to log a step in its audit log too. The loop's own log is the
// complete one, so an error is ignored.
func (a *app) reportStep(ctx context.Context, c *client.Client, name string, s ralph.Step) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	if err := c.LoopStep(ctx, name, s); err != nil {
		a.debugf("the hub has not logged a step: %v", err)
	}
}

// loopFailure converts a loop's error to a failure.
func loopFailure(err error) error {
	switch code := ralph.CodeOf(err); {
	case errors.Is(err, errInterrupted):
		return &failure{Exit: exitInterrupted, Kind: "interrupted", Message: "the loop was stopped", Remedy: "run the same command again to continue"}
	case code == ralph.CodeStopped:
		return &failure{Exit: exitInterrupted, Kind: "loop-stopped", Message: err.Error(), Remedy: "run the same command again to continue"}
	case code == ralph.CodeUnavailable:
		return &failure{Exit: exitUnavailable, Kind: "agents-away", Message: err.Error(), Remedy: "run the same command again when they are available"}
	case code == ralph.CodeRunning, audit.CodeOf(err) == audit.CodeLocked:
		return &failure{Exit: exitFailure, Kind: "loop-running", Message: "a loop is already running on this list", Remedy: "stop it with loop stop, or wait until it ends"}
	case code == ralph.CodeValidator:
		return &failure{Exit: exitFailure, Kind: "check-not-run", Message: err.Error(), Remedy: "run the loop again with a check that can be run; it continues with the check"}
	}
	return err
}

func (a *app) printStep(s ralph.Step) {
	if a.json() {
		writeJSON(a.stdout, s)
		return
	}
	about := oneLine(s.Text)
	if s.Attempt > 1 {
		about += fmt.Sprintf(" (attempt %d)", s.Attempt)
	}
	if s.Detail != "" {
		about = strings.TrimPrefix(about+": "+oneLine(s.Detail), ": ") // steps of the loop itself have no text
	}
	line := strings.TrimSpace(fmt.Sprintf("%-10s %s", s.Kind, about))
	if width := a.columns(a.stdout); width > 1 {
		line = fit(line, width-1)
	}
	fmt.Fprintln(a.stdout, line)
}

// stateDir returns the directory of the state of a loop: in the data directory, named after the list's path, or after
// the queue and its project, which it also returns.
func (a *app) stateDir(ctx context.Context, queue, path string) (dir string, project *mcpconfig.Config, err error) {
	cfg, err := a.load(ctx)
	if err != nil {
		return "", nil, err
	}
	var name string
	if queue != "" {
		if project, err = mcpconfig.Load(mcpconfig.Sources{}); err != nil {
			return "", nil, err
		}
		name = "queue " + queue + " of " + project.ProjectPath
	} else {
		if name, err = filepath.Abs(path); err != nil {
			return "", nil, usage("%v", err)
		}
		if real, err := filepath.EvalSymlinks(name); err == nil {
			name = real
		}
	}
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(cfg.DataDir, "loops", hex.EncodeToString(sum[:8])), project, nil
}

func makeStateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the loop's state: %w", err)
	}
	return nil
}

// stateFileOf returns the state file of the loop that the arguments name. If the loop has
// never run, the file does not exist; that is an error unless the list exists.
func (a *app) stateFileOf(ctx context.Context, queue string, args []string) (string, error) {
	path, name := "", "the queue "+queue
	if queue == "" {
		var err error
		if path, err = a.listLike(ctx, args[0]); err != nil {
			return "", err
		}
		name = path
	}
	dir, _, err := a.stateDir(ctx, queue, path)
	if err != nil {
		return "", err
	}
	_, err = os.Stat(dir)
	if err != nil && queue == "" {
		_, err = ralph.Open(name)
	}
	if err != nil {
		return "", &failure{Exit: exitNotFound, Kind: "loop-not-found", Message: "no loop has run on " + name,
			Remedy: "start one with: " + a.self() + " loop run " + listArgument(queue, name)}
	}
	return filepath.Join(dir, "state.json"), nil
}

// listLike returns the list that given names: a path; or, of the lists that a loop has worked on, the beginning of the
// name or path of only one, or "latest".
func (a *app) listLike(ctx context.Context, given string) (string, error) {
	if _, err := os.Stat(given); err == nil {
		return given, nil
	}
	loops, err := a.loops(ctx)
	if err != nil {
		return "", err
	}
	loops = slices.DeleteFunc(loops, func(l loopInfo) bool { return l.List == "" })
	found, err := idKind{
		noun: "list",
		find: func(_ context.Context, part string, limit int) (found []string, _ error) {
			for _, l := range loops {
				if len(found) < limit && (hasPrefixFold(l.List, part) || hasPrefixFold(filepath.Base(l.List), part)) {
					found = append(found, l.List)
				}
			}
			return found, nil
		},
	}.resolve(ctx, given)
	if near := didYouMean(given, idsOf(loops, func(l loopInfo) string { return filepath.Base(l.List) })); err == nil && found == given && near != "" {
		return "", &failure{Exit: exitNotFound, Kind: "loop-not-found", Message: fmt.Sprintf("no loop has run on %s; %s", given, strings.TrimSpace(near)),
			Remedy: "list them with: " + a.self() + " loop list"}
	}
	return found, err
}

// loopSubcommand returns a command on the loop that its arguments name: run gets the loop's state file.
func (a *app) loopSubcommand(name, short string, run func(file string, running bool) error) *cobra.Command {
	queue := ""
	cmd := command(name+" LIST|--queue NAME", short, func(cmd *cobra.Command, args []string) error {
		file, err := a.stateFileOf(cmd.Context(), queue, args)
		if err != nil {
			return err
		}
		running, err := ralph.Running(file)
		if err != nil {
			return err
		}
		return run(file, running)
	})
	cmd.Args = func(cmd *cobra.Command, args []string) error { return listOrQueue(queue)(cmd, args) }
	cmd.Flags().StringVar(&queue, "queue", "", "the loop of this queue of the agents' network")
	a.completeLoops(cmd)
	return cmd
}

func (a *app) loopStatusCommand() *cobra.Command {
	return a.loopSubcommand("status", "Show the progress of a list's loop, and why items failed", func(file string, running bool) error {
		state, err := ralph.ReadState(file)
		if err != nil {
			return err
		}
		return a.print(map[string]any{
			"running": running, "current": state.Current, "items": state.Items, "state": file, "audit": filepath.Join(filepath.Dir(file), "audit"),
		}, func() { a.printLoop(state, running) })
	})
}

const noLoop = "No loop is running on this list."

func (a *app) printLoop(state *ralph.State, running bool) {
	status := noLoop
	if running {
		status = "A loop is running on this list."
	}
	fmt.Fprintln(a.stdout, status)
	if len(state.Items) == 0 {
		return
	}
	listing[string]{
		columns: []column{{heading: "STATUS"}, {heading: "ATTEMPT"}, {heading: "SINCE"}, {heading: "ITEM", weight: 1, least: 12}, {heading: "FAILURE", weight: 1, least: 12}},
		row: func(id string) []string {
			p := state.Items[id]
			return []string{string(p.Status), fmt.Sprint(p.Attempt), ago(time.Now(), p.Since), p.Text, p.Failure}
		},
		paint: a.paintFirst,
	}.table(a, a.stdout, sortedItems(state))
}

// sortedItems returns the ids of a state's items, the longest unchanged first.
func sortedItems(s *ralph.State) []string {
	return slices.SortedFunc(maps.Keys(s.Items), func(x, y string) int {
		return cmp.Or(s.Items[x].Since.Compare(s.Items[y].Since), cmp.Compare(x, y))
	})
}

func (a *app) loopStopCommand() *cobra.Command {
	return a.loopSubcommand("stop", "Stop the loop of a list; loop run continues it", func(file string, running bool) error {
		if err := ralph.Stop(file); err != nil {
			return err
		}
		return a.print(map[string]bool{"stopping": running}, func() {
			if running {
				fmt.Fprintln(a.stdout, "The loop is stopping.")
			} else {
				fmt.Fprintln(a.stdout, noLoop)
			}
		})
	})
}
