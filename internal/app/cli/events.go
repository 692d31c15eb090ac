package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub/events"
)

const eventsLong = `Print what has changed in the hub, one line for each event: agents, tasks, turns,
permission questions, mail, channels, work, swarms, loops, peers and documents.

Without -f it prints the events of the last hour, or those since --since, which is a
duration or the position of an event. With -f it continues with each new event, also
after a restart of the hub. Events say what has changed, never the content of messages.`

func (a *app) eventsCommand() *cobra.Command {
	var p dialect.EventsParams
	var follow bool
	var since string
	cmd := command("events", "Print what changes in the hub", a.onHub(func(ctx context.Context, c *client.Client, _ []string) (err error) {
		if p.Task, err = taskID(ctx, c, p.Task); err != nil {
			return err
		}
		return a.printEvents(ctx, c, p)
	}))
	cmd.Long = eventsLong
	cmd.Example = "  " + a.name + " events -f --kind task --agent codex\n  " + a.name + " events --since 24h --kind task.state --format json"
	cmd.PreRunE = func(*cobra.Command, []string) error {
		p.Follow = &follow
		if strings.ContainsAny(p.Project, `./\`) { // else it is the namespace of channels
			p.Project = projectDir(p.Project)
		}
		return setSince(&p, since, time.Now())
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "wait for further events until Ctrl-C")
	flags.StringVar(&since, "since", "", "begin a duration ago, such as 30m or 2d, or after the event with this position")
	flags.StringSliceVar(&p.Kinds, "kind", nil, "only these kinds, or those that begin with them: "+strings.Join(eventKinds(), ", "))
	flags.StringVar(&p.Agent, "agent", "", "only events of this agent")
	flags.StringVar(&p.Task, "task", "", "only events of this task")
	flags.StringVar(&p.Project, "project", "", "only events of this project: its directory, or the namespace of its channels")
	flags.StringVar(&p.Channel, "channel", "", "only events of this channel")
	a.complete(cmd, "agent", agentIDs)
	a.complete(cmd, "task", taskIDs)
	a.complete(cmd, "kind", func(context.Context, *client.Client) []string { return eventKinds() })
	return cmd
}

// projectDir returns a directory as the hub names it as a project: absolute and without symbolic links. It may no longer
// exist.
func projectDir(dir string) string {
	path, err := filepath.Abs(dir)
	if err != nil {
		return dir // the current directory no longer exists
	}
	return cmp.Or(evalSymlinks(path), path)
}

// eventKinds returns the words with which kinds begin.
func eventKinds() []string {
	return slices.Collect(func(yield func(string) bool) {
		last := ""
		for _, k := range events.Kinds() {
			word, _, _ := strings.Cut(string(k), ".")
			if word != last && !yield(word) {
				return
			}
			last = word
		}
	})
}

// setSince reads the flag --since. Without it, a command that does not follow begins an hour ago.
func setSince(p *dialect.EventsParams, since string, now time.Time) error {
	if since == "" && *p.Follow {
		return nil
	}
	ago, err := config.ParseDuration(cmp.Or(since, "1h"))
	if err == nil && ago >= 0 {
		p.Since = &dialect.Time{Time: now.Add(-ago)}
		return nil
	}
	if _, err := events.ParsePosition(since); err != nil {
		return usage("--since %q is neither a duration such as 30m or 2d nor the position of an event", since)
	}
	p.After = since
	return nil
}

// printEvents prints the events of a query. While it follows, it continues after a restart of the hub with the event
// after the last one.
func (a *app) printEvents(ctx context.Context, c *client.Client, p dialect.EventsParams) error {
	retry := hubRetry{app: a, notice: "The hub is down; the events continue when it is up again."}
	for {
		err := a.readEvents(ctx, c, &p)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF) && !*p.Follow:
			return nil
		case errors.Is(err, io.EOF):
			err = client.ErrLost // the hub stops
		case err == nil:
			retry.down = time.Time{}
			continue
		}
		if err := retry.after(ctx, err); err != nil {
			return err
		}
	}
}

// readEvents prints the events of one stream. It returns nil if the stream was lost after an event.
func (a *app) readEvents(ctx context.Context, c *client.Client, p *dialect.EventsParams) error {
	stream, err := c.Events(ctx, *p)
	if err != nil {
		return err
	}
	defer stream.Close()
	for n := 0; ; n++ {
		e, err := stream.Next(ctx)
		if err != nil {
			if n > 1 && errors.Is(err, client.ErrLost) {
				return nil
			}
			return err
		}
		p.After, p.Since = e.Position.String(), nil
		a.printEvent(e)
	}
}

func (a *app) printEvent(e events.Event) {
	switch {
	case a.json():
		writeJSON(a.stdout, e)
	case e.Kind == events.Here: // for programs
	default:
		line := fmt.Sprintf("%s  %s %s", e.Time.Local().Format(time.TimeOnly), pad(string(e.Kind), 19), oneLine(describeEvent(&e)))
		if w := a.columns(a.stdout); w > 0 {
			line = fit(line, w)
		}
		stamp, rest := line[:len(time.TimeOnly)], line[len(time.TimeOnly):]
		fmt.Fprintln(a.stdout, a.style.dim(stamp)+rest)
	}
}

func pad(s string, n int) string { return s + strings.Repeat(" ", max(1, n-cells(s))) }

// describeEvent returns who is concerned and the details: first those that are a state, then the rest by name.
func describeEvent(e *events.Event) string {
	data := maps.Clone(e.Data)
	var parts []string
	for _, key := range []string{"state", "status", "outcome", "reason", "tool"} {
		if v, ok := data[key]; ok && v != "" {
			parts = append(parts, fmt.Sprint(v))
		}
		delete(data, key)
	}
	for _, s := range []string{e.Agent, shortID(e.Task), e.Channel, shortID(e.Subject)} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if v := fmt.Sprint(data[key]); v != "" && v != "0" {
			parts = append(parts, key+"="+v)
		}
	}
	return strings.Join(parts, "  ")
}
