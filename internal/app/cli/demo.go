package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/app/demo"
)

func (a *app) demoCommand() *cobra.Command {
	var pace time.Duration
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch agents find each other, negotiate, share a tool and split a job",
		Long: "Five agents in this process, which need no program and no model, find each other,\n" +
			"negotiate, share a tool, split a job, lose one of them, and finish. No hub is needed, and\n" +
			"nothing is left behind. With --format json each event is a line.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pace < 0 || pace > time.Minute {
				return usage("--pace must be between 0s and 1m")
			}
			ctx, cancel := a.interruptible(cmd.Context())
			defer cancel()
			show := &demoView{a: a}
			if !a.json() && isTerminal(a.stdout) && a.getenv("TERM") != "dumb" {
				show.board = &board{w: a.stdout}
			}
			_, err := demo.Run(ctx, demo.Options{Pace: pace, Tell: show.tell})
			return err
		},
	}
	cmd.Flags().DurationVar(&pace, "pace", time.Second/2, "how long a part of the job takes")
	return cmd
}

// demoView shows the events: as a picture in a terminal, as lines else.
type demoView struct {
	a      *app
	board  *board
	agents []string          // in the order in which they joined
	doing  map[string]string // by agent
	last   []string          // the latest events
}

// shownEvents is how many events the picture has.
const shownEvents = 8

func (v *demoView) tell(e demo.Event) {
	if v.a.json() {
		writeJSON(v.a.stdout, e)
		return
	}
	if v.board == nil {
		fmt.Fprintf(v.a.stdout, "%-10s %s\n", e.Kind, e.Text)
		return
	}
	v.note(e)
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
	if e.Kind == demo.Finished { // below the picture, which may be cut to the terminal
		fmt.Fprintf(v.a.stdout, "\n  %s\n\n", v.a.style.bold(e.Text))
	}
}

const deadAgent = "dead"

func (v *demoView) note(e demo.Event) {
	if v.doing == nil {
		v.doing = make(map[string]string)
	}
	switch e.Kind {
	case demo.Joined:
		v.agents = append(v.agents, e.Agent)
	case demo.Working:
		v.doing[e.Agent] = "works on " + e.SubTask
	case demo.Completed:
		v.doing[e.Agent] = "has done " + e.SubTask
	case demo.Lost:
		v.doing[e.Agent] = deadAgent
	}
	if e.Kind == demo.Finished {
		return // it is said below
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
