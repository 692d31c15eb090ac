package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) demoCommand() *cobra.Command {
	var pace time.Duration
	cmd := command("demo", "Watch agents find each other, negotiate, share a tool and split a job",
		func(cmd *cobra.Command, _ []string) error {
			if pace < 0 || pace > time.Minute {
				return usage("--pace must be between 0s and 1m")
			}
			ctx, cancel := a.interruptible(cmd.Context())
			defer cancel()
			view := &demoView{a: a, board: a.newBoard(a.stdout), doing: make(map[string]string)}
			_, err := demonstrate(ctx, pace, view.show)
			return err
		})
	cmd.Long = "Five agents in this process, without a program or a model, find each other, negotiate,\n" +
		"share a tool, split a job, lose one of them, and finish. The demo needs no hub and leaves\n" +
		"no files. With --format json each event is a line."
	timeVar(cmd.Flags(), &pace, "pace", time.Second/2, time.Second, "how long a part of the job takes")
	return cmd
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
