package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/swarm"
)

func (a *app) swarmCommand() *cobra.Command {
	return group("swarm", "Share one task among several agents",
		"Several agents work on the parts of one task. The hub invites agents, assigns each the\n"+
			"parts that it can do, reassigns the parts of an agent that fails or dies, and combines the\n"+
			"results. A swarm survives the end of this command and restarts of the hub.",
		a.swarmRunCommand(), a.swarmListCommand(), a.swarmShowCommand(), a.swarmStopCommand())
}

type swarmFlags struct {
	agents, capabilities []string
	plan, planner        string
	attempts             int
	dirFlags
	detach, noStart bool
	planOnly        bool
	unattended      bool
}

func (a *app) swarmRunCommand() *cobra.Command {
	var f swarmFlags
	cmd := command("run [TASK]", "Have several agents work on a task and print the result",
		func(cmd *cobra.Command, args []string) error {
			task := ""
			if len(args) == 1 {
				task = args[0]
			}
			return a.runSwarm(cmd.Context(), f, task)
		})
	cmd.Long = `Have several agents work on a task and print the result. The parts come from a plan:
a file in JSON or YAML (--plan, - is standard input), or the answer of an agent that is
asked to split the task (--planner). Without a plan every agent gets the whole task. What is
piped to the command follows the task; "-" as the task is what is piped alone.

If no agent could do a part, the command asks whether to try again, with which agent, or
to give up. Without a terminal it prints the question and how to answer it, and ends with
exit code 6; the swarm waits. With --unattended the swarm fails.

The agents of this computer, also the planner, work in the project here: the git
repository of the current directory, else that directory, or --dir. --worktree gives them
one git worktree together. Agents of other computers cannot see the directory.

The first Ctrl-C stops the swarm and waits until its agents have stopped; a second Ctrl-C
exits, and the swarm keeps running. --detach does not wait at all.`
	cmd.Example = "  " + a.name + ` swarm run --planner claude-code --agents claude-code,codex "review this repository"
  ` + a.name + ` swarm run --plan review.yaml
  ` + a.name + ` swarm run --agents gemini,codex "find the bug in parser.go"`
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usage("unexpected argument %q: put the task in quotes", args[1])
		}
		return nil
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.agents, "agents", nil, "only these agents may participate; default: all that are able")
	flags.StringSliceVar(&f.capabilities, "capabilities", nil, "capabilities that every participant must have")
	flags.StringVar(&f.plan, "plan", "", "a file with the sub-tasks, in JSON or YAML")
	flags.StringVar(&f.planner, "planner", "", "the agent that splits the task")
	flags.IntVar(&f.attempts, "attempts", 0, "how many attempts at a part the agents have before you are asked (default 3)")
	flags.BoolVar(&f.unattended, "unattended", false, "fail when no agent could do a part, instead of asking")
	flags.BoolVar(&f.planOnly, "plan-only", false, "print the plan as JSON and run nothing")
	flags.BoolVar(&f.detach, "detach", false, "return when the swarm is stored, without its result")
	f.dirFlags.add(cmd, "let each part have a directory of its own")
	a.startFlags(cmd, &f.noStart)
	cmd.MarkFlagsMutuallyExclusive("plan", "planner")
	cmd.MarkFlagsMutuallyExclusive("plan-only", "detach")
	a.complete(cmd, "planner", agentIDs)
	a.complete(cmd, "agents", agentIDs)
	return cmd
}

func (a *app) runSwarm(ctx context.Context, f swarmFlags, task string) error {
	if f.plan != "-" && task != "" {
		texts, err := a.withPiped(ctx, task)
		if err != nil {
			return err
		}
		task = strings.Join(texts, "\n\n")
	}
	plan, err := a.swarmPlan(f, task)
	if err != nil {
		return err
	}
	dir, err := a.swarmDir(ctx, f, plan)
	if err != nil {
		return err
	}
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	c, err := a.connectOrStart(ctx, f.noStart)
	if err != nil {
		return err
	}
	defer c.Close()
	if plan.Agents, err = a.agentIDsOf(ctx, c, plan.Agents); err != nil {
		return err
	}
	if f.planner, err = a.agentID(ctx, c, f.planner); err != nil {
		return err
	}
	if dir, err = a.permitDir(ctx, c, dir, swarmAgents(f, plan), ""); err != nil {
		return err
	}
	if dir.Worktree { // it is named after the swarm
		plan.ID = cmp.Or(plan.ID, uuid.NewString())
	}
	dir, tree, err := a.worktree(ctx, c, dir, "swarm", plan.ID)
	if err != nil {
		return err
	}
	if f.planner != "" {
		if plan.SubTasks, err = a.askPlanner(ctx, c, f.planner, plan, dir); err != nil {
			return err
		}
	}
	if dir.Path != "" {
		plan.Directory = &swarm.Directory{Path: dir.Path}
	}
	if f.planOnly {
		writeJSON(a.stdout, plan)
		return nil
	}
	s, err := c.CreateSwarm(ctx, plan)
	if err != nil {
		return err
	}
	if f.detach {
		return a.print(s, func() {
			fmt.Fprintln(a.stdout, s.ID)
			a.note("The swarm runs. Show it with: %s swarm show %s", a.self(), s.ID)
			a.printWorkDir(tree, "")
		})
	}
	a.noteRemote(ctx, c, plan)
	err = a.followSwarm(ctx, c, s)
	if errors.Is(err, errInterrupted) {
		err = cmp.Or(a.stopStarted(ctx, "swarm "+shortID(s.ID), "swarm stop "+s.ID, func(ctx context.Context) error {
			return a.stopSwarm(ctx, c, s.ID, "by Ctrl-C")
		}), err)
	}
	a.printWorkDir(cmp.Or(tree, swarmWorkDir(s)), dir.noProject)
	return err
}

// stopInterval is the time between two looks at the tasks of a swarm that stops.
const stopInterval = 100 * time.Millisecond

// stopSwarm stops a swarm, and waits until its agents on this hub have stopped: the hub cancels their tasks, which takes
// as long as their programs need to end.
func (a *app) stopSwarm(ctx context.Context, c *client.Client, id, reason string) error {
	if _, err := c.StopSwarm(ctx, id, reason); err != nil {
		return err
	}
	ending := &failure{Exit: exitInterrupted, Kind: "interrupted", Message: "the swarm is stopped, and its agents are still ending",
		Remedy: "see: " + a.self() + " tasks --state working"}
	for {
		page, err := c.Tasks(ctx, dialect.TasksListParams{State: dialect.StateWorking, Limit: maxSwarmTasks})
		switch {
		case ctx.Err() != nil:
			return ending
		case err != nil:
			return err
		case !slices.ContainsFunc(page.Tasks, func(t dialect.Task) bool { return swarmOf(&t) == id }):
			return nil
		}
		if !wait.Pause(ctx, stopInterval) {
			return ending
		}
	}
}

// maxSwarmTasks is how many working tasks are looked at: more than agents run at a time.
const maxSwarmTasks = 1000

// swarmOf returns the id of the swarm for which a task works, "" without one.
func swarmOf(task *dialect.Task) string {
	s, _ := task.Metadata["swarm"].(map[string]any)
	id, _ := s["id"].(string)
	return id
}

// swarmDir returns where the agents of a swarm work: a plan may have a directory, which the flags override.
func (a *app) swarmDir(ctx context.Context, f swarmFlags, plan swarm.Plan) (workDir, error) {
	if plan.Directory != nil && f.dir == "" && !f.scratch {
		f.dir = plan.Directory.Path
	}
	return a.chooseDir(ctx, f.dirFlags)
}

// swarmAgents returns the ids of the agents that may take part, none for all.
func swarmAgents(f swarmFlags, plan swarm.Plan) []string {
	if len(plan.Agents) == 0 || f.planner == "" {
		return plan.Agents
	}
	return append(slices.Clone(plan.Agents), f.planner)
}

// swarmWorkDir returns the directory of a swarm's plan.
func swarmWorkDir(s *swarm.Session) hub.WorkDir {
	if s.Directory == nil {
		return hub.WorkDir{}
	}
	return hub.WorkDir{Path: s.Directory.Path, Policy: runner.WorkDirFixed}
}

// noteRemote says which agents cannot see the directory of a plan. Without a list of the agents it says nothing: the
// swarm runs already.
func (a *app) noteRemote(ctx context.Context, c *client.Client, plan swarm.Plan) {
	if plan.Directory == nil || a.json() {
		return
	}
	agents, err := c.Agents(ctx, false)
	if err != nil {
		a.debugf("which agents are remote is unknown: %v", err)
		return
	}
	var remote []string
	for _, agent := range agents {
		if agent.Driver == runner.DriverPeer && (len(plan.Agents) == 0 || slices.Contains(plan.Agents, agent.ID)) {
			remote = append(remote, agent.ID)
		}
	}
	if len(remote) > 0 {
		a.note("note: agents of other computers cannot see %s: %s", tilde(plan.Directory.Path), strings.Join(remote, ", "))
	}
}

// swarmPlan returns the plan of the flags, without the sub-tasks that a planner adds.
func (a *app) swarmPlan(f swarmFlags, task string) (swarm.Plan, error) {
	var p swarm.Plan
	if f.plan != "" {
		data, err := a.readPlanFile(f.plan)
		if err != nil {
			return p, err
		}
		if p, err = readPlan(data); err != nil {
			return p, usage("%s: %v", f.plan, err)
		}
	}
	if task != "" {
		p.TaskDescription = task
	}
	if strings.TrimSpace(p.TaskDescription) == "" {
		return p, usage("missing TASK: describe the task in quotes, or set taskDescription in the plan")
	}
	p.RequiredCapabilities = append(p.RequiredCapabilities, f.capabilities...)
	if p.RequiredCapabilities == nil {
		p.RequiredCapabilities = []string{}
	}
	if f.agents != nil {
		p.Agents = f.agents
	}
	if f.attempts < 0 {
		return p, usage("--attempts must not be negative")
	}
	p.MaxAttempts = cmp.Or(f.attempts, p.MaxAttempts)
	p.Unattended = p.Unattended || f.unattended
	return p, nil
}

func (a *app) readPlanFile(path string) ([]byte, error) {
	r := a.stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, unreadable(path, err, "check the path after --plan, or use --plan - for standard input")
		}
		defer file.Close()
		r = file
	}
	data, err := io.ReadAll(io.LimitReader(r, maxPlan+1))
	if err != nil {
		return nil, unreadable(path, err, "check the path after --plan, or use --plan - for standard input")
	}
	return data, nil
}

// askPlanner asks an agent to split the task and returns the sub-tasks of its answer.
func (a *app) askPlanner(ctx context.Context, c *client.Client, planner string, p swarm.Plan, dir workDir) ([]swarm.SubTaskPlan, error) {
	agents, err := c.Agents(ctx, false)
	if err != nil {
		return nil, err
	}
	if len(p.Agents) > 0 {
		agents = slices.DeleteFunc(agents, func(agent dialect.Agent) bool { return !slices.Contains(p.Agents, agent.ID) })
	}
	spinner := a.spin(planner + " splits the task")
	defer spinner.end()
	dir.Project = true // the planner may have a directory of its own
	params := sendFlags{}.params(planner, dialect.TextPart(plannerPrompt(p.TaskDescription, agents)))
	dir.metadata(params.Message.Metadata)
	params.Message.Metadata[hub.MetaOnce] = uuid.NewString()
	task, err := c.Send(ctx, params)
	if errors.Is(context.Cause(ctx), errInterrupted) {
		spinner.end()
		return nil, cmp.Or(a.stopPlanner(ctx, c, params), error(errInterrupted))
	}
	if err != nil {
		return nil, err
	}
	refuse := func(reason string) error {
		return &failure{Exit: cmp.Or(stateExit(task.Status.State), exitFailure), Kind: "no-plan",
			Message: planner + " made no plan: " + reason, Remedy: "see: " + a.self() + " task show " + task.ID + "; or write a plan and pass it with --plan"}
	}
	answer := task.Status.Message.Text()
	if task.Status.State != dialect.StateCompleted {
		return nil, refuse("its task is " + string(task.Status.State) + ". " + text.Clip(answer, 500))
	}
	parts, err := subTasksIn(answer)
	if err != nil {
		return nil, refuse(err.Error())
	}
	return parts, nil
}

// stopPlanner stops the planner's task. The same message with its idempotency key returns the task instead of another.
func (a *app) stopPlanner(ctx context.Context, c *client.Client, p dialect.SendParams) error {
	blocking := false
	p.Configuration = &dialect.SendConfig{Blocking: &blocking}
	task, err := c.Send(context.WithoutCancel(ctx), p)
	if err != nil || task.Status.State.Final() {
		return err
	}
	return a.stopStarted(ctx, "task "+shortID(task.ID), "task cancel "+task.ID, func(ctx context.Context) error {
		_, err := c.Cancel(ctx, task.ID)
		return err
	})
}

// followSwarm shows the progress of a swarm until it ends, and then its result. It retries while the hub is down.
func (a *app) followSwarm(ctx context.Context, c *client.Client, s *swarm.Session) error {
	view := a.swarmView(a.agentNames(ctx, c))
	notices := swarmNotices{client: c, print: view.note}
	retry := hubRetry{app: a, notice: "The hub is down; the swarm continues when it is up again."}
	for {
		view.show(s)
		if s.Status.Ended() {
			break
		}
		next, err := notices.await(ctx, s.ID, s.Sequence)
		switch {
		case err == nil:
			s = next
		case errors.Is(err, errSwarmAsks):
			view.leave()
			if err := a.answerSwarm(ctx, c, s, notices.question); err != nil {
				return err
			}
			continue
		case ctx.Err() != nil && errors.Is(context.Cause(ctx), errInterrupted):
			return errInterrupted
		}
		if err := retry.after(ctx, err); err != nil {
			return err
		}
	}
	_ = a.print(s, func() { a.printResults(s, view.names) }) // returns nil
	if s.Status == swarm.Failed {
		return &failure{Exit: exitTaskFailed, Kind: "swarm-failed", Message: "the swarm failed: " + s.Error, quiet: a.json()}
	}
	return nil
}

// answerSwarm asks the user what a swarm is to do that cannot go on. Without a user it prints how to answer, and ends the
// command: the swarm waits.
func (a *app) answerSwarm(ctx context.Context, c *client.Client, s *swarm.Session, task *dialect.Task) error {
	waits := &failure{Exit: exitInputRequired, Kind: string(dialect.StateInputRequired), Message: "the swarm waits for an answer to the task " + task.ID,
		Remedy: fmt.Sprintf("answer with: %s send --task %s ANSWER; follow the swarm with: %s swarm show --follow %s", a.self(), plain(task.ID), a.self(), s.ID)}
	if a.json() {
		writeJSON(a.stdout, s)
		return waits
	}
	if !a.interactive() {
		a.printQuestion(task)
		return waits
	}
	part, err := a.askUser(ctx, task)
	switch {
	case err != nil:
		return err
	case part == nil:
		return waits
	}
	blocking := false
	p := sendFlags{task: task.ID, context: task.ContextID}.params("", *part)
	p.Configuration = &dialect.SendConfig{Blocking: &blocking}
	_, err = c.Send(ctx, p)
	return err
}

// swarmView shows the progress of a swarm on stderr: on a terminal as a board that is redrawn, otherwise as lines.
type swarmView struct {
	a       *app
	names   agentNames
	board   *board
	printed map[string]string // the last line of each sub-task
	state   swarm.Status
	shown   *swarm.Session
	notes   map[string]string // by agent, its last notice
}

func (a *app) swarmView(names agentNames) *swarmView {
	return &swarmView{a: a, names: names, board: a.newBoard(a.stderr), printed: make(map[string]string), notes: make(map[string]string)}
}

func (v *swarmView) show(s *swarm.Session) {
	v.shown = s
	switch {
	case v.a.json():
	case v.board != nil:
		v.board.draw(v.picture(s))
	default:
		v.lines(s)
	}
}

// leave leaves what is shown where it is: other output follows.
func (v *swarmView) leave() {
	if v.board != nil {
		v.board.lines = 0
	}
}

// note shows a notice of an agent: on the board below its sub-task while that runs, otherwise as a line.
func (v *swarmView) note(agent, words string) {
	if v.board == nil {
		v.a.note("    %s: %s", oneLine(v.names.of(agent)), oneLine(words))
		return
	}
	v.notes[agent] = words
	v.show(v.shown)
}

func (v *swarmView) picture(s *swarm.Session) []string {
	done := 0
	for _, t := range s.SubTasks {
		if t.Status == swarm.TaskCompleted {
			done++
		}
	}
	st := v.a.errStyle
	width := v.board.width()
	lines := []string{st.bold(fit(fmt.Sprintf("swarm %s  %s  %d of %d done, %s", shortID(s.ID), s.Status, done, len(s.SubTasks), text.Count(len(s.Participants), "agent")), width))}
	for _, t := range s.SubTasks {
		lines = append(lines, v.paint(t.Status, fit(subTaskLine(t, v.names), width)))
		if words := v.notes[t.AssignedAgent]; words != "" && t.Status == swarm.TaskRunning {
			lines = append(lines, st.dim(fit("    "+oneLine(words), width)))
		}
	}
	return lines
}

func subTaskLine(t swarm.SubTask, names agentNames) string {
	sign := map[swarm.SubTaskStatus]string{swarm.TaskPending: "○", swarm.TaskRunning: "◐", swarm.TaskCompleted: "●", swarm.TaskFailed: "✗"}[t.Status]
	line := fmt.Sprintf("  %s %-16s %-14s %s", sign, oneLine(t.ID), oneLine(names.of(t.AssignedAgent)), oneLine(string(t.Status)))
	if t.Attempt > 1 {
		line += fmt.Sprintf(" (attempt %d)", t.Attempt)
	}
	if t.Error != "" && t.Status != swarm.TaskCompleted {
		line += ": " + oneLine(t.Error)
	}
	return line
}

func (v *swarmView) paint(s swarm.SubTaskStatus, line string) string {
	switch s {
	case swarm.TaskCompleted:
		return v.a.errStyle.green(line)
	case swarm.TaskRunning:
		return v.a.errStyle.cyan(line)
	case swarm.TaskFailed:
		return v.a.errStyle.red(line)
	}
	return v.a.errStyle.dim(line)
}

// lines prints what has changed since the last call.
func (v *swarmView) lines(s *swarm.Session) {
	if v.state != s.Status {
		v.state = s.Status
		fmt.Fprintf(v.a.stderr, "swarm %s: %s\n", oneLine(s.ID), oneLine(string(s.Status)))
	}
	for _, t := range s.SubTasks {
		if t.Status == swarm.TaskPending && t.Error == "" {
			continue
		}
		if now := subTaskLine(t, v.names); v.printed[t.ID] != now {
			v.printed[t.ID] = now
			fmt.Fprintln(v.a.stderr, now)
		}
	}
}

// printResults prints the results of the sub-tasks, in the order of the plan.
func (a *app) printResults(s *swarm.Session, names agentNames) {
	for _, t := range s.SubTasks {
		if t.Status != swarm.TaskCompleted {
			continue
		}
		fmt.Fprintf(a.stdout, "%s\n%s\n\n", a.style.bold(fmt.Sprintf("## %s (%s)", oneLine(t.ID), oneLine(names.of(t.AssignedAgent)))), strings.TrimSpace(plain(resultText(t.Result))))
	}
}

// resultText returns the text of a result as the hub's agents make it, and the JSON of any other.
func resultText(raw json.RawMessage) string {
	var r struct {
		Text *string `json:"text"`
	}
	if json.Unmarshal(raw, &r) == nil && r.Text != nil {
		return *r.Text
	}
	return string(raw)
}

func (a *app) swarmListCommand() *cobra.Command {
	return command("list", "List the swarms: the running ones, and those of the last day",
		hubCall(a, func(ctx context.Context, c *client.Client, _ []string) ([]dialect.SwarmSummary, error) {
			return newestSwarms(ctx, c)
		}, a.printSwarms))
}

// newestSwarms lists the swarms, the newest first.
func newestSwarms(ctx context.Context, c *client.Client) ([]dialect.SwarmSummary, error) {
	swarms, err := c.Swarms(ctx)
	slices.SortStableFunc(swarms, func(x, y dialect.SwarmSummary) int { return y.CreatedAt.Compare(x.CreatedAt.Time) })
	return swarms, err
}

func (a *app) printSwarms(swarms []dialect.SwarmSummary) {
	a.swarmsListing(swarms, time.Now()).table(a, a.stdout, swarms)
}

func (a *app) swarmsListing(swarms []dialect.SwarmSummary, now time.Time) listing[dialect.SwarmSummary] {
	shorten := shortIDs(swarms, func(s dialect.SwarmSummary) string { return s.ID })
	return listing[dialect.SwarmSummary]{
		none: "There are no swarms.",
		columns: []column{
			{heading: "SWARM"}, {heading: "STATUS"}, {heading: "DONE"}, {heading: "AGENTS"}, {heading: "CREATED"},
			{heading: "PROJECT", weight: 1, extra: true}, {heading: "TASK", weight: 4},
		},
		row: func(s dialect.SwarmSummary) []string {
			return []string{shorten(s.ID), string(s.Status), fmt.Sprintf("%d/%d", s.Completed, s.SubTasks), fmt.Sprint(len(s.Participants)), ago(now, s.CreatedAt.Time), tilde(s.Directory), s.TaskDescription}
		},
		paint: a.paintFirst,
	}
}

func (a *app) swarmShowCommand() *cobra.Command {
	var follow bool
	cmd := a.commandOn("show SWARM", swarmIDs, "Show a swarm: its sub-tasks, agents and results",
		a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := swarmID(ctx, c, args[0])
			if err != nil {
				return err
			}
			s, err := c.Swarm(ctx, id)
			if err != nil {
				return err
			}
			if follow {
				err := a.followSwarm(ctx, c, s)
				if errors.Is(err, errInterrupted) {
					a.note("The swarm continues. Show it with: %s swarm show %s; stop it with: %s swarm stop %s", a.self(), s.ID, a.self(), s.ID)
				}
				return err
			}
			names := a.agentNames(ctx, c)
			return a.print(s, func() { a.printSwarm(s, names) })
		}))
	cmd.Flags().BoolVar(&follow, "follow", false, "follow the swarm to its end, as swarm run does")
	return cmd
}

func (a *app) printSwarm(s *swarm.Session, names agentNames) {
	fmt.Fprintf(a.stdout, "%s  %s\n%s\n", a.style.bold(oneLine(s.ID)), oneLine(string(s.Status)), body(s.TaskDescription))
	if s.Error != "" {
		fmt.Fprintln(a.stdout, a.style.red(oneLine(s.Error)))
	}
	fmt.Fprintf(a.stdout, "led by %s, agents: %s\n", oneLine(s.Coordinator), oneLine(strings.Join(names.all(s.Participants), ", ")))
	if s.Directory != nil {
		fmt.Fprintf(a.stdout, "works in %s\n", oneLine(tilde(s.Directory.Path)))
	}
	fmt.Fprintln(a.stdout)
	for _, t := range s.SubTasks {
		fmt.Fprintln(a.stdout, subTaskLine(t, names))
	}
	fmt.Fprintln(a.stdout)
	a.printResults(s, names)
}

func (a *app) swarmStopCommand() *cobra.Command {
	return a.commandOn("stop SWARM", swarmIDs, "Stop a swarm and cancel the tasks of its agents",
		hubCall(a, func(ctx context.Context, c *client.Client, args []string) (*swarm.Session, error) {
			id, err := swarmID(ctx, c, args[0])
			if err != nil {
				return nil, err
			}
			return c.StopSwarm(ctx, id, "")
		}, func(s *swarm.Session) { fmt.Fprintf(a.stdout, "%s is %s.\n", oneLine(s.ID), oneLine(string(s.Status))) }))
}
