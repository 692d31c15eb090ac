package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/app/demo"
	"github.com/parleyhub/parley/internal/app/terminal"
	"github.com/parleyhub/parley/internal/app/version"
)

// demoFlags are the flags of demo.
type demoFlags struct {
	pace    time.Duration
	screens bool
	page    bool
	noOpen  bool
}

func (a *app) demoCommand() *cobra.Command {
	var f demoFlags
	cmd := command("demo", "Watch agents find each other, negotiate, share a tool and split a job",
		func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.pace < 0 || f.pace > time.Minute:
				return usage("--pace must be between 0s and 1m")
			case f.noOpen && !f.page:
				return usage("--no-open is for --web")
			case f.screens && f.page:
				return usage("--ui and --web exclude each other")
			case f.screens, f.page:
				if !cmd.Flags().Changed("pace") {
					f.pace = 2 * time.Second // so that there is something to watch
				}
				return a.demoHub(cmd.Context(), f)
			}
			ctx, cancel := a.interruptible(cmd.Context())
			defer cancel()
			view := &demoView{a: a, board: a.newBoard(a.stdout), doing: make(map[string]string)}
			_, err := demonstrate(ctx, f.pace, view.show)
			return err
		})
	cmd.Long = "Five agents in this process, without a program or a model, find each other, negotiate,\n" +
		"share a tool, split a job, lose one of them, and finish. The demo needs no hub and leaves\n" +
		"no files. With --format json each event is a line.\n\n" +
		"With --ui, a hub of its own with five agents is shown on the screens of \"" + a.name + " ui\": a swarm\n" +
		"writes a guide, one agent changes a file, one waits for your permission, one fails. They have\n" +
		"no model, but all else is real, and you can answer and write to them. --web shows it in the browser. The hub and all\n" +
		"its files are gone when you leave."
	cmd.Example = "  " + a.name + " demo\n  " + a.name + " demo --ui\n  " + a.name + " demo --web"
	flags := cmd.Flags()
	timeVar(flags, &f.pace, "pace", time.Second/2, time.Second, "how long a part of the job takes")
	flags.BoolVar(&f.screens, "ui", false, "show it on the screens, with a hub of its own")
	flags.BoolVar(&f.page, "web", false, "show it on the page of a hub of its own, in the browser")
	flags.BoolVar(&f.noOpen, "no-open", false, "with --web, print the link only")
	cmd.AddCommand(a.demoAgentCommand())
	return cmd
}

// demoAgentCommand plays an agent for the hub of demo --ui.
func (a *app) demoAgentCommand() *cobra.Command {
	cmd := command("agent NAME PACE", "Play an agent of the demonstration over the Agent Client Protocol", func(cmd *cobra.Command, args []string) error {
		pace, err := time.ParseDuration(args[1])
		if err != nil {
			return usage("PACE must be a duration")
		}
		return demo.Play(cmd.Context(), args[0], pace, a.stdin, a.stdout)
	})
	cmd.Args, cmd.Hidden = cobra.ExactArgs(2), true
	return cmd
}

// demoHub runs the demonstration's hub, and shows it until the user leaves.
func (a *app) demoHub(ctx context.Context, f demoFlags) (err error) {
	if f.screens && (a.json() || !isTerminal(a.stdin) || !isTerminal(a.stdout)) {
		return &failure{Exit: exitUsage, Kind: "usage", Message: "the screens need a terminal", Remedy: "without one there is: " + a.self() + " demo"}
	}
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	a.note("The demonstration's hub starts.")
	h, err := demo.Start(ctx, demo.Options{
		Command: []string{exe, "demo", "agent"}, Pace: f.pace, HTTP: f.page, Version: version.String(), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if err := h.Perform(ctx); err != nil {
		return err
	}
	if f.page {
		return a.demoPage(ctx, h, f.noOpen)
	}
	return a.runScreens(ctx, terminal.Options{Where: "the demonstration", Dial: func(ctx context.Context) (terminal.Hub, error) {
		c, err := h.Dial(ctx)
		if err != nil {
			return nil, err
		}
		return terminal.Of(c), nil
	}})
}

// demoPage opens the page of the demonstration's hub, and waits until the user interrupts it.
func (a *app) demoPage(ctx context.Context, h *demo.Hub, noOpen bool) error {
	c, err := h.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := a.openPage(ctx, c, webFlags{noOpen: noOpen}); err != nil {
		return err
	}
	a.note("Ctrl-C ends the demonstration.")
	<-ctx.Done()
	return nil
}

// demoView shows the events: on a terminal as a board that is redrawn, otherwise as lines.
type demoView struct {
	a      *app
	board  *board
	agents []string          // in the order in which they joined
	doing  map[string]string // by agent
	last   []string          // the latest events
}

// shownEvents is how many events the board shows.
const shownEvents = 8

func (v *demoView) show(e demoEvent) {
	if v.a.json() {
		writeJSON(v.a.stdout, e)
		return
	}
	if v.board == nil {
		fmt.Fprintf(v.a.stdout, "%-10s %s\n", e.Kind, e.Text)
		return
	}
	v.record(e)
	width := v.board.width()
	lines := []string{""}
	for _, id := range v.agents {
		lines = append(lines, v.paint(v.doing[id], fit(fmt.Sprintf("  ● %-8s %s", id, v.doing[id]), width)))
	}
	lines = append(lines, "")
	for _, l := range v.last {
		lines = append(lines, v.a.style.dim(fit("  "+l, width)))
	}
	v.board.draw(lines)
	if e.Kind == demoFinished { // below the board, which may be cut
		fmt.Fprintf(v.a.stdout, "\n  %s\n\n", v.a.style.bold(e.Text))
	}
}

const deadAgent = "dead"

func (v *demoView) record(e demoEvent) {
	switch e.Kind {
	case demoJoined:
		v.agents = append(v.agents, e.Agent)
	case demoWorking:
		v.doing[e.Agent] = "works on " + e.SubTask
	case demoCompleted:
		v.doing[e.Agent] = "has done " + e.SubTask
	case demoLost:
		v.doing[e.Agent] = deadAgent
	case demoFinished:
		return // printed below the board
	}
	if v.last = append(v.last, e.Text); len(v.last) > shownEvents {
		v.last = v.last[1:]
	}
}

func (v *demoView) paint(doing, line string) string {
	switch {
	case doing == deadAgent:
		return v.a.style.red(line)
	case doing == "":
		return line
	}
	return v.a.style.green(line)
}
