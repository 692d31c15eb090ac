package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/mcp/delegation"
	"github.com/parleyhub/parley/internal/sessions/doorbell"
	"github.com/parleyhub/parley/internal/sessions/hooks"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

// hookTime bounds a hook: a session waits for it.
const hookTime = 2 * time.Second

func (a *app) hookCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hook VENDOR [EVENT]",
		Short: "Report an event of an open session to the hub: for the hooks of coding agents",
		Long: `Report an event of an open session to the hub, as the hook of a coding agent's program. The
program gives the event on standard input, and gets on standard output what it honours.

The start of a session registers it, its end removes it. Before a turn the session is told
what is new for it; after a turn it goes on if something has arrived meanwhile, at most ` + strconv.Itoa(hooks.MaxRow) + ` times
in a row. What it is told are counts, ids and names: it reads the messages with a tool. Before
a tool changes a file that another agent has claimed, it is refused, and the model is told who
has the file, why, until when, and how to ask.

Without a running hub nothing is reported and no hub is started; a session of Claude Code that
begins is only told which file wakes it. A hook never
fails a session: the exit code is 0, and problems are on standard error with --verbose. It ends
after ` + hookTime.String() + ` at the latest. The agents that the hub itself runs are not reported,
but their edits of claimed files are refused, too.

VENDOR is ` + strings.Join(hooks.Vendors, ", ") + `; EVENT is the vendor's name of the event, by default that in the input.`,
		Example: "  " + a.name + ` hook claude SessionStart
  ` + a.name + ` hook codex Stop
  ` + a.name + ` hook gemini BeforeAgent`,
		Args:                  cobra.ArbitraryArgs,
		ValidArgsFunction:     completeHook,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if code := a.hook(cmd.Context(), args); code != exitOK {
				return &failure{Exit: code, Kind: "wake", quiet: true}
			}
			return nil
		},
	}
	return cmd
}

// completeHook completes the vendor and its events.
func completeHook(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return hooks.Vendors, cobra.ShellCompDirectiveNoFileComp
	case 1:
		var events []string
		for name := range hooks.Events(args[0]) {
			events = append(events, name)
		}
		return events, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// hook handles one event and returns the exit code, which is not 0 only to wake a session: a hook that fails can stop one.
func (a *app) hook(ctx context.Context, args []string) int {
	ctx, cancel := context.WithTimeout(ctx, hookTime)
	defer cancel()
	type result struct {
		wake string
		err  error
	}
	done := make(chan result, 1)
	go func() { // ends with the process: standard input may never end
		wake, err := a.handleHook(ctx, args)
		done <- result{wake, err}
	}()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		r.err = ctx.Err()
	}
	if r.err != nil {
		a.debugf("the hook did nothing: %v", r.err)
	}
	if r.wake == "" {
		return exitOK
	}
	fmt.Fprintln(a.stderr, r.wake)
	return hooks.WakeExit
}

// handleHook returns the text with which the session is to be woken, if any.
func (a *app) handleHook(ctx context.Context, args []string) (wake string, err error) {
	if len(args) == 0 || len(args) > 2 {
		return "", fmt.Errorf("it takes a vendor and an event, not %d arguments", len(args))
	}
	name := ""
	if len(args) == 2 {
		name = args[1]
	}
	input, err := io.ReadAll(io.LimitReader(a.stdin, hooks.MaxInput+1))
	if err != nil {
		return "", err
	}
	e, err := hooks.Decode(args[0], name, input)
	if err != nil {
		return "", err
	}
	agent := a.getenv(delegation.TokenEnv) != "" // of the hub, which tells it what is new
	if e.Kind == hooks.Other || agent && e.Kind != hooks.BeforeTool {
		return "", nil
	}
	cfg, err := a.load(ctx)
	if err != nil {
		return "", err
	}
	c, err := a.dial(ctx, cfg)
	if err != nil {
		return "", errors.Join(err, a.writeAnswer(e, a.withoutHub(e, cfg)))
	}
	defer c.Close()
	if agent {
		return "", a.guardTool(ctx, c, e)
	}
	answer, notice, err := a.answerHook(ctx, c, e)
	if err != nil {
		return "", errors.Join(err, a.writeAnswer(e, a.withoutHub(e, cfg)))
	}
	if err := a.writeAnswer(e, answer); err != nil {
		return "", err // the session did not get it
	}
	if notice != "" {
		err = c.SessionShown(ctx, notice)
	}
	return answer.Wake, err
}

func (a *app) writeAnswer(e hooks.Event, answer hooks.Answer) error {
	out := answer.Encode(e)
	if out == nil {
		return nil
	}
	_, err := a.stdout.stream.Write(out)
	return err
}

// withoutHub returns the answer to an event where no hub gives one: a session that begins watches its file all the same, so that the
// hub that is started after it can wake it.
func (a *app) withoutHub(e hooks.Event, cfg *config.Loaded) (answer hooks.Answer) {
	if e.Kind != hooks.Start || e.Vendor != presence.Claude || !cfg.Sessions.Wake || a.headless(e.Vendor) {
		return answer
	}
	file, err := doorbell.NewFile(daemon.BellsDir(cfg.DataDir))
	path := ""
	if err == nil {
		path, err = file.Watch(presence.Session{Vendor: e.Vendor, Process: a.sessionProcess(e.Vendor)})
	}
	if err != nil {
		a.debugf("the session cannot be woken by a file: %v", err)
	}
	if path != "" {
		answer.Watch = []string{path}
	}
	return answer
}

// answerHook returns the hub's answer to an event, and the notice in it.
func (a *app) answerHook(ctx context.Context, c *client.Client, e hooks.Event) (answer hooks.Answer, notice string, err error) {
	files := targets(ctx, e.Files())
	r, err := c.SessionHook(ctx, dialect.SessionHookParams{
		Vendor: e.Vendor, Session: e.Session, Kind: string(e.Kind), Dir: e.Dir, Transcript: e.Transcript, Source: e.Source, Reason: e.Reason,
		Notified: e.NotificationType, StopActive: e.StopActive, Bell: e.Bell, Headless: a.headless(e.Vendor),
		Process: dialect.SessionProcess(a.sessionProcess(e.Vendor)), Files: files[:min(len(files), dialect.MaxFiles)],
	})
	if err != nil {
		return answer, "", err
	}
	return hooks.Answer{Context: r.Context, Continue: r.Continue, Deny: r.Deny, Watch: r.Watch, Wake: r.Wake}, r.Notice, nil
}

// guardTool keeps a tool of an agent of the hub from changing files that another agent has claimed.
func (a *app) guardTool(ctx context.Context, c *client.Client, e hooks.Event) error {
	held, err := a.heldByOthers(ctx, c, e.Session, e.Files())
	if err != nil || len(held) == 0 {
		return err
	}
	var reasons []string
	for _, h := range held {
		reasons = append(reasons, h.Held+" "+h.Ask)
	}
	return a.writeAnswer(e, hooks.Denial(reasons))
}

// targets returns files as the hub gets them, several for a file outside a repository. What cannot be a file's path is left out.
func targets(ctx context.Context, files []string) (all []string) {
	for _, t := range claims.LocateAll(ctx, files) {
		all = append(all, t.String())
	}
	return all
}

// sessionProcess returns the process of the session whose hook or MCP server this process is.
func (a *app) sessionProcess(vendor string) presence.Process {
	return presence.ProcessOf(vendor, a.getenv)
}

// headless reports whether a session has never had a terminal.
func (a *app) headless(vendor string) bool { return presence.Headless(vendor, a.getenv) }
