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
	"github.com/parleyhub/parley/internal/hub/process"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/telemetry/audit"
)

func (a *app) loopCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "loop",
		Short: "Work through a task list, item by item",
		Long: "Gives the items of a task list to an agent or a swarm, one after the other, checks each\n" +
			"with a command of yours, tries again with what the check said, and ticks what is done.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return usage("there is no command %q; there are run, status and stop", "loop "+args[0])
		},
		Args: cobra.ArbitraryArgs,
	}
	cmd.AddCommand(a.loopRunCommand(), a.loopStatusCommand(), a.loopStopCommand())
	return cmd
}

type loopFlags struct {
	queue    string
	follow   bool
	agent    string
	swarm    []string
	dir      string
	attempts int
	limit    time.Duration
	noStart  bool
}

func (a *app) loopRunCommand() *cobra.Command {
	var f loopFlags
	cmd := &cobra.Command{
		Use:   "run LIST|--queue NAME [-- CHECK...]",
		Short: "Work through a list until nothing is left to do",
		Long: `Work through a list until nothing is left to do: Markdown with check boxes ("- [ ] do
this"), or JSON ([{"task":"do this"}]). What stands behind -- is run after each attempt,
without a shell, in --dir: the item is done when it exits with 0. Without it every answer
is good.

With --queue the items come from a work queue of the agents' network (docs/network-use.md), one
at a time: the submitter gets the answer, what is given up goes to the dead letters. While
the loop works it keeps the item. Run it again within the lease (workQueue.ackTimeout) to
go on with the item; later, somebody else may have it.

Ctrl-C or "loop stop" stop the loop; run it again and it goes on where it was, also after
it was killed. What an agent works on meanwhile goes on.`,
		Example: "  " + a.name + ` loop run TODO.md --agent claude-code --dir . -- go test ./...
  ` + a.name + ` loop run TODO.json --swarm codex,gemini --attempts 5
  ` + a.name + ` loop run --queue go --follow --agent claude-code`,
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); at >= 0 {
				args = args[:at]
			}
			return listOrQueue(f.queue)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.queue != "" {
				return a.runLoopOnQueue(cmd, f, args)
			}
			return a.runLoopOnFile(cmd.Context(), f, args[0], args[1:])
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.queue, "queue", "", "work through this queue of the agents' network instead of a file")
	flags.BoolVar(&f.follow, "follow", false, "with --queue: wait for items where there are none")
	flags.StringVar(&f.agent, "agent", "", "the agent that does the items")
	flags.StringSliceVar(&f.swarm, "swarm", nil, "the agents that do the items as a swarm: who fails is replaced")
	flags.StringVar(&f.dir, "dir", "", "the directory that the agent and the check work in")
	flags.IntVar(&f.attempts, "attempts", ralph.DefaultMaxAttempts, "how often an item is tried")
	flags.DurationVar(&f.limit, "check-timeout", loop.DefaultCheckTime, "how long the check may take")
	flags.BoolVar(&f.noStart, "no-start", false, "fail where no hub runs instead of starting one")
	cmd.MarkFlagsMutuallyExclusive("agent", "swarm")
	cmd.MarkFlagsMutuallyExclusive("swarm", "dir")
	a.complete(cmd, "agent", agentIDs)
	a.complete(cmd, "swarm", agentIDs)
	return cmd
}

// listOrQueue takes LIST, or nothing with the flag --queue.
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
	list, err := ralph.Open(path)
	if err != nil {
		return usage("%v", err)
	}
	place, err := a.loopPlace(path)
	if err != nil {
		return err
	}
	if err := makePlace(place); err != nil {
		return err
	}
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	return a.runLoop(ctx, f, list, place, path, check)
}

// runLoopOnQueue works as the person who runs it: that is who holds the items.
func (a *app) runLoopOnQueue(cmd *cobra.Command, f loopFlags, check []string) error {
	if err := errors.Join(f.complete(), findCheck(check)); err != nil {
		return err
	}
	cfg, err := mcpconfig.Load(mcpconfig.Sources{})
	if err != nil {
		return err
	}
	place, err := a.queuePlace(cfg, f.queue)
	if err != nil {
		return err
	}
	if err := makePlace(place); err != nil {
		return err
	}
	return a.withNetwork(cmd, func(ctx context.Context, n *agentnet.Network) error {
		person, err := visit(ctx, n)
		if err != nil {
			return err
		}
		list, err := loop.OpenQueue(loop.QueueOptions{
			Worker: person, Name: f.queue, File: filepath.Join(place, "claim.json"), Follow: f.follow,
			Lease: time.Duration(cfg.WorkQueue.AckTimeout) * time.Second,
		})
		if err != nil {
			return err
		}
		defer list.Close()
		return a.runLoop(ctx, f, list, place, "queue "+f.queue, check)
	})
}

// findCheck makes a path to the check absolute, from where the user is, and makes sure
// that it is there: an agent should not have worked in vain.
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
func (f *loopFlags) complete() (err error) {
	switch {
	case f.agent == "" && len(f.swarm) == 0:
		return usage("say who does the items, with --agent or --swarm")
	case f.attempts < 1 || f.limit <= 0:
		return usage("--attempts and --check-timeout must be more than 0")
	case f.dir == "":
		return nil
	}
	if f.dir, err = filepath.Abs(f.dir); err != nil {
		return usage("--dir: %v", err)
	}
	return nil
}

func (a *app) runLoop(ctx context.Context, f loopFlags, list ralph.List, place, name string, check []string) (err error) {
	c, err := a.connectOrStart(ctx, f.noStart)
	if err != nil {
		return err
	}
	defer c.Close()
	log, err := audit.Open(filepath.Join(place, "audit"), audit.Options{MaxFileSize: 4 << 20, MaxFiles: 8})
	if err != nil {
		return loopFailure(err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	o := ralph.Options{
		List: list, StateFile: filepath.Join(place, "state.json"), MaxAttempts: f.attempts, Dispatcher: &loop.Swarm{Hub: c, Agents: f.swarm},
		Record: func(s ralph.Step) error {
			a.printStep(s)
			if err := log.Append(s.Event(), nil); err != nil {
				return err
			}
			a.tellHub(ctx, c, name, s)
			return nil
		},
	}
	if f.agent != "" {
		o.Dispatcher = &loop.Agent{Hub: c, ID: f.agent, Dir: f.dir}
	}
	if len(check) > 0 {
		o.Validator = &loop.Check{Argv: check, Dir: f.dir, Limit: f.limit}
	}
	l, err := ralph.New(o)
	if err != nil {
		return err
	}
	sum, err := l.Run(ctx)
	if err != nil {
		return loopFailure(err)
	}
	if a.json() {
		writeJSON(a.stdout, map[string]any{"kind": "summary", "completed": sum.Completed, "givenUp": append([]string{}, sum.GivenUp...), "open": sum.Open})
	}
	if len(sum.GivenUp) > 0 {
		return &failure{Exit: exitTaskFailed, Kind: "items-given-up", Message: fmt.Sprintf("%d items were given up", len(sum.GivenUp)),
			Remedy: "see why with: " + a.self() + " loop status " + flagged(f.queue, name)}
	}
	return nil
}

func flagged(queue, path string) string {
	if queue != "" {
		return "--queue " + queue
	}
	return path
}

// stepPatience is how long the hub may take to log a step.
const stepPatience = 5 * time.Second

// tellHub has the hub log a step, too. The loop's own log is what counts: a hub that is
// away, or keeps none, misses it.
func (a *app) tellHub(ctx context.Context, c *client.Client, name string, s ralph.Step) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepPatience)
	defer cancel()
	if err := c.LoopStep(ctx, name, s); err != nil {
		a.debugf("the hub has not logged a step: %v", err)
	}
}

// loopFailure is what the user is told of a loop's error.
func loopFailure(err error) error {
	var ae *audit.Error
	switch code := ralph.CodeOf(err); {
	case errors.Is(err, errInterrupted):
		return errInterrupted
	case code == ralph.CodeStopped:
		return &failure{Exit: exitInterrupted, Kind: "loop-stopped", Message: err.Error(), Remedy: "run the same command again to go on"}
	case code == ralph.CodeUnavailable:
		return &failure{Exit: exitUnavailable, Kind: "agents-away", Message: err.Error(), Remedy: "run the same command again when they are there"}
	case code == ralph.CodeRunning, errors.As(err, &ae) && ae.Code == audit.CodeLocked:
		return &failure{Exit: exitFailure, Kind: "loop-running", Message: "a loop works through this list already", Remedy: "stop it with loop stop, or wait for its end"}
	case code == ralph.CodeValidator:
		return &failure{Exit: exitFailure, Kind: "check-not-run", Message: err.Error(), Remedy: "run the loop again with a check that can be run; it goes on with the check"}
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
		about = strings.TrimPrefix(about+": "+oneLine(s.Detail), ": ") // of the loop itself there is no text
	}
	line := strings.TrimSpace(fmt.Sprintf("%-10s %s", s.Kind, about))
	if width := columns(a.stdout); width > 1 {
		line = fit(line, width-1)
	}
	fmt.Fprintln(a.stdout, line)
}

// loopPlace is where the state of a list's loop is: in the data directory, named
// after where the list is.
func (a *app) loopPlace(path string) (string, error) {
	cfg, err := a.load()
	if err != nil {
		return "", err
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", usage("%v", err)
	}
	if real, err := filepath.EvalSymlinks(absolute); err == nil {
		absolute = real
	}
	return placeIn(cfg.DataDir, absolute), nil
}

// queuePlace is where the state of a queue's loop is.
func (a *app) queuePlace(project *mcpconfig.Config, queue string) (string, error) {
	cfg, err := a.load()
	if err != nil {
		return "", err
	}
	return placeIn(cfg.DataDir, "queue "+queue+" of "+project.ProjectPath), nil
}

// placeOf is where the state is of the loop that the arguments name. One that has
// never run has none, which is an error unless there is such a list.
func (a *app) placeOf(queue string, args []string) (place string, err error) {
	name := "the queue " + queue
	if queue == "" {
		name = args[0]
		place, err = a.loopPlace(args[0])
	} else {
		var cfg *mcpconfig.Config
		if cfg, err = mcpconfig.Load(mcpconfig.Sources{}); err == nil {
			place, err = a.queuePlace(cfg, queue)
		}
	}
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(place); err == nil {
		return place, nil
	}
	if queue == "" {
		if _, err := ralph.Open(args[0]); err == nil {
			return place, nil
		}
	}
	return "", &failure{Exit: exitNotFound, Kind: "loop-not-found", Message: "no loop has worked through " + name,
		Remedy: "begin with: " + a.self() + " loop run " + flagged(queue, name)}
}

func placeIn(dataDir, name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(dataDir, "loops", hex.EncodeToString(sum[:8]))
}

func makePlace(place string) error {
	if err := os.MkdirAll(place, 0o700); err != nil {
		return fmt.Errorf("the loop's state has no directory: %w", err)
	}
	return nil
}

func (a *app) loopStatusCommand() *cobra.Command {
	queue := ""
	cmd := &cobra.Command{
		Use:   "status LIST|--queue NAME",
		Short: "Show how far the loop of a list is, and why items failed",
		Args:  func(cmd *cobra.Command, args []string) error { return listOrQueue(queue)(cmd, args) },
		RunE: func(_ *cobra.Command, args []string) error {
			place, err := a.placeOf(queue, args)
			if err != nil {
				return err
			}
			file := filepath.Join(place, "state.json")
			state, err := ralph.ReadState(file)
			if err != nil {
				return err
			}
			running, err := ralph.Running(file)
			if err != nil {
				return err
			}
			if a.json() {
				writeJSON(a.stdout, map[string]any{"running": running, "current": state.Current, "items": state.Items, "state": file, "audit": filepath.Join(place, "audit")})
				return nil
			}
			a.printLoop(state, running)
			return nil
		},
	}
	cmd.Flags().StringVar(&queue, "queue", "", "of this queue of the agents' network")
	return cmd
}

func (a *app) printLoop(state *ralph.State, running bool) {
	word := "No loop works through this list now."
	if running {
		word = "A loop works through this list."
	}
	fmt.Fprintln(a.stdout, word)
	if len(state.Items) == 0 {
		return
	}
	t := table{headings: []string{"STATUS", "ATTEMPT", "SINCE", "ITEM", "FAILURE"}, paint: a.paintFirst}
	for _, id := range sortedItems(state) {
		p := state.Items[id]
		t.add(string(p.Status), fmt.Sprint(p.Attempt), ago(time.Now(), p.Since), fit(oneLine(p.Text), 50), p.Failure)
	}
	t.write(a.stdout, a.style)
}

// sortedItems are the ids of a state's items, the longest unchanged first.
func sortedItems(s *ralph.State) []string {
	return slices.SortedFunc(maps.Keys(s.Items), func(x, y string) int {
		return cmp.Or(s.Items[x].Since.Compare(s.Items[y].Since), cmp.Compare(x, y))
	})
}

func (a *app) loopStopCommand() *cobra.Command {
	queue := ""
	cmd := &cobra.Command{
		Use:   "stop LIST|--queue NAME",
		Short: "Stop the loop of a list; run goes on where it was",
		Args:  func(cmd *cobra.Command, args []string) error { return listOrQueue(queue)(cmd, args) },
		RunE: func(_ *cobra.Command, args []string) error {
			place, err := a.placeOf(queue, args)
			if err != nil {
				return err
			}
			file := filepath.Join(place, "state.json")
			running, err := ralph.Running(file)
			if err == nil {
				err = ralph.Stop(file)
			}
			if err != nil {
				return err
			}
			switch {
			case a.json():
				writeJSON(a.stdout, map[string]bool{"stopping": running})
			case running:
				fmt.Fprintln(a.stdout, "The loop stops.")
			default:
				fmt.Fprintln(a.stdout, "No loop works through this list.")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&queue, "queue", "", "of this queue of the agents' network")
	return cmd
}
