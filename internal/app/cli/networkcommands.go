package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

const networkLong = `See and use the agents' network of the current directory's configuration as a person:
the registry, mail, work queues and dead letters that agents of several projects and
computers share. See docs/network-use.md.`

func (a *app) networkCommand() *cobra.Command {
	return a.mayStart(group("network", "See the agents' network: agents, mail, work, dead letters", networkLong,
		a.networkAgentsCommand(), a.networkInboxCommand(), a.networkSendCommand(), a.networkWorkCommand(),
		a.deadLettersCommand(), a.networkAdmitCommand(), a.networkPermissionsCommand()))
}

const (
	networkTimeout = 15 * time.Second // to join or leave the network
	watchInterval  = 2 * time.Second  // between two reads of --watch
)

// withNetwork runs f with a connection to the configured network, and a context that the first signal ends.
func (a *app) withNetwork(cmd *cobra.Command, f func(context.Context, *agentnet.Network) error) error {
	ctx, cancel := a.interruptible(cmd.Context())
	defer cancel()
	cfg, err := mcpconfig.Load(mcpconfig.Sources{})
	if err != nil {
		return err
	}
	cfg.JoinLocalNetwork()
	if !cfg.Networked() {
		return &failure{Exit: exitUsage, Kind: "configuration", Message: "the agents' network is off in " + cfg.ProjectPath,
			Remedy: "set crossComputer.local or crossComputer.enabled in .mcp-config.json, see docs/network-setup.md"}
	}
	log := slog.New(slog.DiscardHandler)
	if a.verbose {
		log = mcpserver.NewLogger(a.stderr, mcpconfig.Logging{Level: "DEBUG", Format: "text"}, string(cfg.Credentials.Password))
	}
	network := mcpserver.NetworkConfig(cfg, a.finder(busfinder.ForNetwork(cfg), log).Dial, log)
	network.StateDir = mcpconfig.AgentsDir()
	network.GUID = "" // the configured one is the agent's
	network.DialLocal = a.dialNear(cfg, log)
	n := agentnet.Open(network)
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), networkTimeout)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			a.debugf("cannot leave the network: %v", err)
		}
	}()
	ready, cancelReady := context.WithTimeout(ctx, networkTimeout)
	defer cancelReady()
	if err := n.Usable(ready); err != nil {
		return networkFailure(err)
	}
	if notice := n.Notice(); notice != "" {
		a.note("%s", notice)
	}
	return networkFailure(f(ctx, n))
}

// onNetwork returns the run function of a command that uses the network, as withNetwork does.
func (a *app) onNetwork(do func(ctx context.Context, n *agentnet.Network, args []string) error) runE {
	return func(cmd *cobra.Command, args []string) error {
		return a.withNetwork(cmd, func(ctx context.Context, n *agentnet.Network) error { return do(ctx, n, args) })
	}
}

// commandsForTools replaces the agents' tools in messages with the commands for people.
var commandsForTools = strings.NewReplacer(
	"list_dead_letter_items", local.Program()+" network dead-letters", "discover_agents", local.Program()+" network agents")

// networkFailure converts the network's errors to failures.
func networkFailure(err error) error {
	e, ok := errors.AsType[*store.Error](err)
	if !ok {
		return err
	}
	f := &failure{Exit: exitFailure, Kind: "network", Message: strings.TrimSuffix(e.Message, "."),
		Remedy: commandsForTools.Replace(strings.TrimSuffix(e.Remedy, "."))}
	if e.Code == store.ValidationError {
		f.Exit, f.Kind = exitUsage, "usage"
	}
	return f
}

// repeat calls show once. With watch it calls show repeatedly and prints the output whenever
// it has changed, until ctx ends.
func (a *app) repeat(ctx context.Context, watch bool, show func(context.Context, io.Writer) error) error {
	last := ""
	for {
		var b strings.Builder
		if err := show(ctx, &b); err != nil {
			if ctx.Err() != nil && watch {
				return nil
			}
			return err
		}
		if text := b.String(); text != last {
			if last != "" && !a.json() {
				fmt.Fprintf(a.stdout, "\n— %s\n", time.Now().Format(time.TimeOnly))
			}
			last = text
			fmt.Fprint(a.stdout, text)
		}
		if !watch {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval):
		}
	}
}

// networkList returns a command that prints a list, with --watch again whenever it changes.
func (a *app) networkList(name, short string, show func(context.Context, *agentnet.Network, io.Writer) error) *cobra.Command {
	var watch bool
	cmd := command(name, short, a.onNetwork(func(ctx context.Context, n *agentnet.Network, _ []string) error {
		return a.repeat(ctx, watch, func(ctx context.Context, w io.Writer) error { return show(ctx, n, w) })
	}))
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print it again whenever it changes, until Ctrl-C")
	return cmd
}

func (a *app) networkAgentsCommand() *cobra.Command {
	var offline, removed bool
	cmd := a.networkList("agents", "List the agents of the network that you may see",
		func(ctx context.Context, n *agentnet.Network, w io.Writer) error {
			if removed {
				return a.showRemovals(ctx, n, w)
			}
			return a.showNetworkAgents(ctx, n, offline, w)
		})
	cmd.Flags().BoolVar(&offline, "offline", false, "also those that are offline")
	cmd.Flags().BoolVar(&removed, "removed", false, "the removed registry entries instead")
	return cmd
}

func (a *app) showNetworkAgents(ctx context.Context, n *agentnet.Network, offline bool, w io.Writer) error {
	d, err := n.Agents(ctx, registry.Filter{IncludeOffline: offline, Limit: registry.MaxDiscoverLimit})
	if err != nil {
		return err
	}
	a.networkListing(d.Agents).print(a, w, d.Agents)
	return nil
}

func (a *app) networkListing(agents []registry.Summary) listing[registry.Summary] {
	shorten := shortIDs(agents, func(x registry.Summary) string { return x.GUID })
	return listing[registry.Summary]{
		none: "There are no agents that you may see.",
		columns: []column{
			{heading: "HANDLE", weight: 2}, {heading: "TYPE", weight: 1}, {heading: "HOST", weight: 1}, {heading: "STATUS"},
			{heading: "TASKS", extra: true}, {heading: "GUID"}, {heading: "CAPABILITIES", weight: 2, least: 12},
		},
		row: func(x registry.Summary) []string {
			status := string(x.Status)
			if x.PossiblyOffline {
				status += "?"
			}
			return []string{x.Handle, x.AgentType, x.Hostname, status, fmt.Sprintf("%g", x.CurrentTaskCount), shorten(x.GUID), strings.Join(x.Capabilities, ", ")}
		},
		paint: a.paintFirst,
	}
}

func (a *app) showRemovals(ctx context.Context, n *agentnet.Network, w io.Writer) error {
	list, err := n.Removals(ctx)
	if err != nil {
		return err
	}
	slices.SortStableFunc(list, func(x, y registry.Removal) int { return cmp.Compare(y.RemovedAt, x.RemovedAt) })
	shorten := shortIDs(list, func(r registry.Removal) string { return r.GUID })
	listing[registry.Removal]{
		columns: []column{
			{heading: "REMOVED"}, {heading: "HANDLE", weight: 2}, {heading: "TYPE", weight: 1}, {heading: "HOST", weight: 1, extra: true},
			{heading: "LAST HEARTBEAT", extra: true}, {heading: "BY", weight: 1, extra: true}, {heading: "GUID"},
		},
		row: func(r registry.Removal) []string {
			return []string{r.RemovedAt, r.Handle, r.AgentType, r.Hostname, r.LastHeartbeat, r.RemovedBy, shorten(r.GUID)}
		},
	}.print(a, w, list)
	return nil
}

// joinAsPerson makes the user an agent of the network, named after the user's login.
func joinAsPerson(ctx context.Context, n *agentnet.Network) (*agentnet.Agent, error) {
	return n.RegisterPerson(ctx, local.PersonHandle())
}

func (a *app) networkInboxCommand() *cobra.Command {
	var watch, all bool
	cmd := command("inbox", "Read your mail: the agents' answers to parley network send",
		a.onNetwork(func(ctx context.Context, n *agentnet.Network, _ []string) error {
			me, err := joinAsPerson(ctx, n)
			if err != nil {
				return err
			}
			return a.inbox(ctx, me, watch, all)
		}))
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "wait for more, until Ctrl-C")
	cmd.Flags().BoolVar(&all, "all", false, "also mail that you have already read")
	return cmd
}

func (a *app) inbox(ctx context.Context, me *agentnet.Agent, watch, all bool) error {
	answer := &mail.Answer{}
	messages, _, err := me.Take(ctx, mail.Selection{IncludeRead: all, Limit: mail.MaxMailLimit}, answer)
	if err != nil {
		return err
	}
	if len(messages) == 0 && !watch && !a.json() {
		fmt.Fprintf(a.stdout, "No mail. Agents can write to you at the GUID %s.\n", me.GUID())
	}
	if err := a.printMail(ctx, me, answer, messages); err != nil || !watch {
		return err
	}
	for {
		answer := &mail.Answer{}
		if messages, _, err = me.WaitAndTake(ctx, mail.Selection{}, answer); ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = a.printMail(ctx, me, answer, messages)
		}
		if err != nil {
			return err
		}
	}
}

// printMail prints the mail of an answer, and marks it as read once it is printed: a command that is killed before prints
// it again the next time.
func (a *app) printMail(ctx context.Context, me *agentnet.Agent, answer *mail.Answer, messages []mail.Mail) error {
	printed := &writeObserver{Writer: a.stdout}
	a.writeMail(printed, messages)
	me.Answered(answer, printed.err == nil)
	if printed.err != nil {
		return printed.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), networkTimeout) // who interrupts the command has got the mail
	defer cancel()
	return networkFailure(me.Acknowledge(ctx, time.Now()))
}

// writeObserver keeps the first error of a Writer.
type writeObserver struct {
	io.Writer
	err error
}

func (w *writeObserver) Write(data []byte) (int, error) {
	n, err := w.Writer.Write(data)
	w.err = cmp.Or(w.err, err)
	return n, err
}

func (a *app) writeMail(out io.Writer, messages []mail.Mail) {
	for _, m := range messages {
		if a.json() {
			writeJSON(out, m)
			continue
		}
		fmt.Fprintf(out, "%s  %s (%s, %s)\n", a.style.dim(m.Timestamp.Local().Format(time.DateTime)), a.style.bold(oneLine(m.SenderHandle)), m.Type, m.SenderGUID)
		if m.Repeated {
			fmt.Fprintln(out, a.style.dim("    (printed before, by a command that was interrupted)"))
		}
		for line := range strings.Lines(m.Text) {
			fmt.Fprintf(out, "    %s\n", oneLine(strings.TrimRight(line, "\r\n")))
		}
	}
}

func (a *app) networkSendCommand() *cobra.Command {
	var wait bool
	cmd := command("send AGENT MESSAGE", "Send a message to an agent, by its GUID or its handle",
		a.onNetwork(func(ctx context.Context, n *agentnet.Network, args []string) error {
			texts, err := a.withPiped(ctx, args[1])
			if err != nil {
				return err
			}
			guid, err := a.findAgent(ctx, n, args[0])
			if err != nil {
				return err
			}
			me, err := joinAsPerson(ctx, n)
			if err != nil {
				return err
			}
			sent, err := me.Send(ctx, mail.Message{Recipient: guid, Text: strings.Join(texts, "\n\n")})
			if err != nil {
				return err
			}
			if a.json() && !wait {
				writeJSON(a.stdout, map[string]string{"messageId": sent.ID, "recipientGuid": guid, "recipientHandle": sent.RecipientHandle, "warning": sent.Warning})
			} else if !a.json() {
				fmt.Fprintln(a.stdout, strings.TrimSpace(fmt.Sprintf("Sent to %s. %s", oneLine(sent.RecipientHandle), oneLine(sent.Warning))))
			}
			if !wait {
				a.note("its answers are in: %s network inbox", a.self())
				return nil
			}
			answer := &mail.Answer{}
			messages, _, err := me.WaitAndTake(ctx, mail.Selection{Sender: guid}, answer)
			if err != nil {
				return err
			}
			return a.printMail(ctx, me, answer, messages)
		}))
	cmd.Flags().BoolVar(&wait, "wait", false, "wait for the answer")
	return cmd
}

// findAgent returns the GUID of the agent that who names: by its GUID, or by a handle. Of several agents with the handle it
// chooses the only one that is not offline, and says so.
func (a *app) findAgent(ctx context.Context, n *agentnet.Network, who string) (string, error) {
	if uuid.Validate(who) == nil {
		return who, nil
	}
	d, err := n.Agents(ctx, registry.Filter{IncludeOffline: true, Limit: registry.MaxDiscoverLimit})
	if err != nil {
		return "", err
	}
	var found, alive, handles []string
	for _, x := range d.Agents {
		if handles = append(handles, x.Handle); x.Handle != who {
			continue
		}
		found = append(found, x.GUID)
		if x.Status != registry.Offline {
			alive = append(alive, x.GUID)
		}
	}
	switch len(found) {
	case 0:
		return agentByPart(ctx, d.Agents, who, text.Nearest(who, handles))
	case 1:
		return found[0], nil
	}
	if len(alive) == 1 {
		fmt.Fprintf(a.stderr, "%d agents have the handle %q; %s is the only one that is not offline.\n", len(found), who, alive[0])
		return alive[0], nil
	}
	return "", usage("%d agents have the handle %q: use a GUID, %s", len(found), who, strings.Join(found, " or "))
}

// agentByPart returns the GUID that has part as its beginning or end. near is a handle that the user may have meant.
func agentByPart(ctx context.Context, agents []registry.Summary, part, near string) (string, error) {
	guids := func(context.Context) ([]string, error) {
		return idsOf(agents, func(x registry.Summary) string { return x.GUID }), nil
	}
	guid, err := idKind{noun: "agent", find: inList(guids)}.resolve(ctx, part)
	if err != nil || guid != part {
		return guid, err
	}
	hint := ""
	if near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	return "", &failure{Exit: exitUsage, Kind: "usage", Message: fmt.Sprintf("there is no agent %q that you may see%s", part, hint),
		Remedy: "list them with: " + local.Program() + " network agents --offline"}
}

func (a *app) networkWorkCommand() *cobra.Command {
	var state string
	cmd := a.networkList("work", "List the work items, their holders and results",
		func(ctx context.Context, n *agentnet.Network, w io.Writer) error {
			return a.showWork(ctx, n, work.ItemState(state), w)
		})
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if state != "" && !slices.Contains(itemStates, state) {
			return usage("--state %q is not one of %s", state, strings.Join(itemStates, ", "))
		}
		return nil
	}
	cmd.Flags().StringVar(&state, "state", "", "only items in this state: "+strings.Join(itemStates, ", "))
	completeWords(cmd, "state", itemStates...)
	return cmd
}

var itemStates = []string{string(work.Queued), string(work.Claimed), string(work.Completed), string(work.Dead), string(work.Discarded)}

func (a *app) showWork(ctx context.Context, n *agentnet.Network, state work.ItemState, w io.Writer) error {
	items, err := n.Items(ctx, state)
	if err != nil {
		return err
	}
	shorten := shortIDs(items, func(x work.ItemStatus) string { return x.TaskID })
	listing[work.ItemStatus]{
		none: "There is no work.",
		columns: []column{
			{heading: "TASK", weight: 2, least: 12}, {heading: "QUEUE", weight: 1}, {heading: "STATE"}, {heading: "TRY", extra: true},
			{heading: "HOLDER", weight: 1}, {heading: "FROM", weight: 1, extra: true}, {heading: "DESCRIPTION", weight: 3, least: 16},
		},
		row: func(x work.ItemStatus) []string {
			return []string{shorten(x.TaskID), x.Capability, string(x.State), fmt.Sprint(x.Attempts), x.HolderHandle, x.SubmitterHandle, cmp.Or(x.ResultSummary, x.Description)}
		},
		paint: a.paintFirst,
	}.print(a, w, items)
	return nil
}

func (a *app) deadLettersCommand() *cobra.Command {
	var keep bool
	var queue, retry, discard string
	cmd := a.networkList("dead-letters", "List failed work, retry it, or discard it",
		func(ctx context.Context, n *agentnet.Network, w io.Writer) error {
			switch {
			case retry != "":
				id, err := deadLetterID(ctx, n, retry)
				if err != nil {
					return err
				}
				return a.deadLetterDone(n.RetryDeadLetter(ctx, id, !keep))
			case discard != "":
				id, err := deadLetterID(ctx, n, discard)
				if err != nil {
					return err
				}
				return a.deadLetterDone(n.DiscardDeadLetter(ctx, id))
			}
			return a.showDeadLetters(ctx, n, queue, w)
		})
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if keep && retry == "" {
			return usage("--keep-attempts needs --retry TASK")
		}
		return nil
	}
	cmd.Flags().StringVar(&queue, "queue", "", "only work of this queue (a capability)")
	cmd.Flags().StringVar(&retry, "retry", "", "put the item with this task id back into its queue")
	cmd.Flags().BoolVar(&keep, "keep-attempts", false, "with --retry: keep the count of attempts")
	cmd.Flags().StringVar(&discard, "discard", "", "remove the item with this task id permanently")
	cmd.MarkFlagsMutuallyExclusive("retry", "discard", "watch")
	return cmd
}

// deadLetterID returns the task id of the dead letter that given names.
func deadLetterID(ctx context.Context, n *agentnet.Network, given string) (string, error) {
	return idKind{
		noun: "dead letter",
		find: inList(func(ctx context.Context) ([]string, error) {
			list, _, err := n.DeadLetters(ctx, work.MaxDeadLimit, "")
			return idsOf(list, func(l work.DeadLetter) string { return l.TaskID }), err
		}),
	}.resolve(ctx, given)
}

func (a *app) deadLetterDone(l work.DeadLetter, err error) error {
	if err != nil {
		return err
	}
	return a.print(l, func() { fmt.Fprintf(a.stdout, "%s is removed from the dead letters.\n", oneLine(l.TaskID)) })
}

func (a *app) showDeadLetters(ctx context.Context, n *agentnet.Network, queue string, w io.Writer) error {
	list, more, err := n.DeadLetters(ctx, work.MaxDeadLimit, queue)
	if err != nil {
		return err
	}
	shorten := shortIDs(list, func(l work.DeadLetter) string { return l.TaskID })
	listing[work.DeadLetter]{
		none: "There are no dead letters.",
		columns: []column{
			{heading: "TASK", weight: 2, least: 12}, {heading: "QUEUE", weight: 1}, {heading: "REASON", weight: 1}, {heading: "TRIES", extra: true},
			{heading: "LAST", extra: true}, {heading: "DETAIL", weight: 3, least: 16},
		},
		row: func(l work.DeadLetter) []string {
			return []string{shorten(l.TaskID), l.Subject[strings.LastIndexByte(l.Subject, '.')+1:], string(l.Reason), fmt.Sprint(l.Attempts), l.LastAttemptAt, l.Detail}
		},
		paint: a.paintFirst,
	}.print(a, w, list)
	if more && len(list) > 0 && !a.json() {
		fmt.Fprintln(w, "There are more.")
	}
	return nil
}

func (a *app) networkAdmitCommand() *cobra.Command {
	var guid string
	var capabilities []string
	cmd := command("admit", "Create the inbox and the queues of a restricted agent",
		a.onNetwork(func(ctx context.Context, n *agentnet.Network, _ []string) error {
			if err := n.MakeInbox(ctx, guid); err != nil {
				return err
			}
			for _, c := range capabilities {
				if err := n.MakeQueue(ctx, c); err != nil {
					return err
				}
			}
			a.note("Created the inbox of %s, and %s.", guid, text.Count(len(capabilities), "queue"))
			return nil
		}))
	cmd.Long = "Create the inbox and the queues of an agent whose NATS user is not permitted to create\n" +
		"them. The operator runs this once, with a NATS user that is. See docs/network-operate.md."
	cmd.PreRunE = func(*cobra.Command, []string) error {
		_, err := agentnet.Confined{GUID: guid, Capabilities: capabilities}.Check()
		return networkFailure(err)
	}
	confinedFlags(cmd, &guid, &capabilities)
	return cmd
}

func confinedFlags(cmd *cobra.Command, guid *string, capabilities *[]string) {
	cmd.Flags().StringVar(guid, "guid", "", "the agent's GUID")
	cmd.Flags().StringSliceVar(capabilities, "capabilities", nil, "the queues that it takes work from or submits to, separated by commas")
}

func (a *app) networkPermissionsCommand() *cobra.Command {
	var guid, bucket string
	var capabilities []string
	cmd := command("permissions", "Print the NATS permissions that restrict an agent to its own data",
		func(*cobra.Command, []string) error {
			if guid == "" {
				guid = uuid.NewString()
				a.note("Created a GUID; set it as crossComputer.agentGuid (NATS_MCP_AGENT_GUID).")
			}
			c, err := agentnet.Confined{GUID: guid, Bucket: bucket, Capabilities: capabilities}.Check()
			if err != nil {
				return networkFailure(err)
			}
			p := c.Permissions()
			return a.print(map[string]any{"guid": c.GUID, "publish": p.Publish, "subscribe": p.Subscribe}, func() {
				fmt.Fprintf(a.stdout, "# agent %s\n%s", c.GUID, p)
			})
		})
	confinedFlags(cmd, &guid, &capabilities)
	cmd.Flags().StringVar(&bucket, "bucket", os.Getenv("REGISTRY_BUCKET"), "the registry's bucket, agent-registry by default")
	return cmd
}
