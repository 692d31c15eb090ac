package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/telemetry/audit"
)

// auditEvents are the events in the audit log.
var auditEvents = []string{string(telemetry.RoutingDecision), string(telemetry.CrossTier), string(telemetry.Security), string(telemetry.ToolInvocation), string(ralph.StepEvent)}

func messageTypes() []string {
	var names []string
	for _, t := range envelope.Types() {
		names = append(names, string(t))
	}
	return names
}

// replayFlags are the flags of replay.
type replayFlags struct {
	event, kind, since, until string
	filter                    auditFilter
	payload, send             bool
	speed                     float64
	timeout                   time.Duration
}

func (a *app) replayCommand() *cobra.Command {
	var f replayFlags
	cmd := command("replay", "Show the audit log of envelopes, and send them again",
		func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(time.Now()); err != nil {
				return err
			}
			cfg, err := a.load(cmd.Context())
			if err != nil {
				return err
			}
			if f.filter.Thread, err = threadID(cmd.Context(), daemon.AuditDir(cfg.DataDir), f.filter.Thread); err != nil {
				return err
			}
			if f.send {
				return a.resend(cmd.Context(), cfg, f)
			}
			return a.listAudit(cfg, f)
		})
	cmd.Long = "Shows the audit log: the envelopes to and from the hub's agents that were routed, that\n" +
		"crossed tiers or were refused, the calls of shared tools, and the steps of loops. With\n" +
		"--send, the selected envelopes are sent to the running hub again, which runs their tasks\n" +
		"again: each in its sender's name, with a new id and in a new thread. The log is not\n" +
		"changed."
	cmd.Example = "  " + a.name + ` replay --failed --since 1h
  ` + a.name + ` replay --agent claude-code --payload
  ` + a.name + ` replay --thread 01a1fce1-a520-7808-8c90-a1ed16c0b05f --send`
	flags := cmd.Flags()
	flags.StringVar(&f.event, "event", "", "only this event: "+strings.Join(auditEvents, ", "))
	flags.StringVar(&f.kind, "type", "", "only envelopes of this type: "+strings.Join(messageTypes(), ", "))
	flags.StringVar(&f.filter.Agent, "agent", "", "only envelopes from or to this agent")
	flags.StringVar(&f.filter.Thread, "thread", "", "only envelopes of this thread (correlation id, or a part of it)")
	flags.StringVar(&f.since, "since", "", "only records since then: 2h, 3d, a number of seconds, or 2026-11-21T06:00:00Z")
	flags.StringVar(&f.until, "until", "", "only records before then")
	flags.BoolVar(&f.filter.Failed, "failed", false, "only failures and refusals")
	flags.IntVar(&f.filter.Latest, "limit", 50, "how many records, the last ones; 0 for all")
	flags.BoolVar(&f.payload, "payload", false, "show the envelopes' payloads, and the arguments and results of tool calls")
	flags.BoolVar(&f.send, "send", false, "send the envelopes to the hub again, and show the answers")
	flags.Float64Var(&f.speed, "speed", 0, "with --send: 1 keeps the intervals between records, 2 halves them, 0 does not wait")
	timeVar(flags, &f.timeout, "timeout", 30*time.Minute, time.Second, "with --send: how long sending and answers may take together")
	completeWords(cmd, "event", auditEvents...)
	completeWords(cmd, "type", messageTypes()...)
	a.complete(cmd, "agent", agentIDs)
	return cmd
}

// parse checks the flags and sets the filter.
func (f *replayFlags) parse(now time.Time) (err error) {
	switch {
	case f.event != "" && !slices.Contains(auditEvents, f.event):
		return usage("--event %q is not one of %s", f.event, strings.Join(auditEvents, ", "))
	case f.kind != "" && !envelope.Type(f.kind).Valid():
		return usage("--type %q is not one of %s", f.kind, strings.Join(messageTypes(), ", "))
	case f.filter.Latest < 0 || f.filter.Latest > 1_000_000:
		return usage("--limit must be between 0 and 1000000")
	case f.speed < 0 || f.speed > 1e6:
		return usage("--speed must be between 0 and 1000000")
	case f.timeout <= 0:
		return usage("--timeout must be more than 0")
	}
	f.filter.Event, f.filter.Type = telemetry.EventType(f.event), envelope.Type(f.kind)
	if f.filter.Since, err = moment("--since", f.since, now); err != nil {
		return err
	}
	f.filter.Until, err = moment("--until", f.until, now)
	return err
}

// moment parses a time, or a duration before now. It returns the zero time for "".
func moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	d, err := config.ParseDuration(text)
	if n, ok := bareNumber(text, time.Second); ok {
		d, err = n, nil
	}
	if err != nil || d < 0 {
		return time.Time{}, usage("%s %q is neither a duration such as 30m, 2h or 3d nor a time such as 2026-11-21T06:00:00Z", flag, text)
	}
	return now.Add(-d), nil
}

func (a *app) listAudit(cfg *config.Loaded, f replayFlags) error {
	n := 0
	damage, err := readAudit(daemon.AuditDir(cfg.DataDir), f.filter, func(rec audit.Record) error {
		n++
		if a.json() {
			writeJSON(a.stdout, rec)
			return nil
		}
		a.printRecord(rec, f.payload)
		return nil
	})
	if err != nil {
		return err
	}
	if n == 0 && !a.json() {
		fmt.Fprintln(a.stdout, "No record of the audit log matches.")
	}
	return damaged(damage)
}

// damaged returns the error for a damaged log, nil without damage.
func damaged(d auditDamage) error {
	if d.Places == 0 {
		return nil
	}
	return &failure{Exit: exitFailure, Kind: "audit-damaged", Message: fmt.Sprintf("the audit log is damaged in %s, the first: %v", text.Count(d.Places, "place"), d.First),
		Remedy: "the records shown are intact; others were lost, or changed by another program"}
}

// printRecord prints a record on one line. Columns are not aligned: the log is printed as it is read.
func (a *app) printRecord(rec audit.Record, payload bool) {
	ev := rec.Event
	at := time.UnixMilli(ev.Timestamp).Local().Format("2006-01-02 15:04:05.000")
	what := string(ev.Type)
	switch {
	case ev.Type == telemetry.Security:
		what = a.style.red("refused")
	case ev.Success == telemetry.Failure:
		what = a.style.red("failed")
	case ev.Type == telemetry.RoutingDecision:
		what = a.style.green("routed")
	}
	to := cmp.Or(ev.Target, ev.Recipient)
	if ev.Recipient != "" && ev.Recipient != to {
		to += " (" + ev.Recipient + ")"
	}
	line := fmt.Sprintf("%s  %s  %s %s", a.style.dim(at), what, string(ev.MessageType), a.style.bold(oneLine(ev.Sender)))
	if to != "" {
		line += " → " + a.style.bold(oneLine(to))
	}
	if ev.SourceTier.Valid() && ev.TargetTier.Valid() {
		line += fmt.Sprintf("  %v → %v", ev.SourceTier, ev.TargetTier)
	}
	if ev.ToolName != "" {
		line += "  " + oneLine(ev.ToolName)
	}
	if rec.Invocation != nil {
		line += "  " + a.style.dim(elapsed(time.Duration(ev.Duration*float64(time.Millisecond))))
	}
	if ev.Code != "" {
		line += "  " + a.style.yellow(ev.Code)
	}
	if rec.Envelope != nil {
		line += "  " + a.style.dim("thread "+oneLine(rec.Envelope.Thread()))
	}
	fmt.Fprintln(a.stdout, line)
	if ev.Detail != "" {
		fmt.Fprintf(a.stdout, "    %s\n", oneLine(ev.Detail))
	}
	if payload && rec.Envelope != nil {
		a.printPayload(rec.Envelope)
	}
	if payload && rec.Invocation != nil {
		a.printInvocation(rec.Invocation)
	}
}

// printInvocation prints the arguments and the result of a tool call.
func (a *app) printInvocation(i *telemetry.Invocation) {
	for _, part := range []struct {
		name string
		json []byte
	}{{"arguments", i.Arguments}, {"result", i.Result}} {
		if len(part.json) > 0 {
			fmt.Fprintf(a.stdout, "    %s %s\n", a.style.dim(part.name), oneLine(plain(string(part.json))))
		}
	}
}

// printPayload prints an envelope's payload; if it is a text or has one, only the text.
func (a *app) printPayload(e *envelope.Envelope) {
	text := string(e.Payload)
	var s string
	var fields struct{ Text, Message, TaskDescription string }
	if e.Unmarshal(&s) == nil {
		text = s
	} else if e.Unmarshal(&fields) == nil {
		text = cmp.Or(fields.Text, fields.Message, fields.TaskDescription, text)
	}
	for line := range strings.Lines(plain(text)) {
		fmt.Fprintf(a.stdout, "    %s\n", strings.TrimRight(line, "\n"))
	}
}

// resend sends the selected envelopes to the running hub.
func (a *app) resend(ctx context.Context, cfg *config.Loaded, f replayFlags) error {
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	ctx, done := context.WithTimeout(ctx, f.timeout)
	defer done()
	info, running, err := daemon.Running(cfg.DataDir)
	switch {
	case err != nil:
		return err
	case !running:
		return client.ErrNotRunning
	case info.HTTP == "" || !cfg.Node.Enabled:
		return &failure{Exit: exitFailure, Kind: "no-node", Message: "this hub does not accept envelopes",
			Remedy: "set http.enabled and node.enabled in config.yaml, then restart the hub"}
	}
	token, err := daemon.Token(cfg)
	if err != nil {
		return err
	}
	sent, failed := 0, 0
	damage, err := resend(ctx, daemon.AuditDir(cfg.DataDir), f.filter, replayOptions{
		URL: info.HTTP, Token: token, Speed: f.speed,
		Report: func(o replayOutcome) {
			switch {
			case o.Kind == replaySent:
				sent++
			case o.Kind == replayFailed, o.Kind == replayAnswer && o.Envelope.Type == envelope.ErrorMessage:
				failed++
			}
			a.printReplayed(o)
		},
	})
	if err != nil {
		return err
	}
	if sent+failed == 0 {
		a.note("No selected record can be sent again.")
	}
	if failed > 0 {
		return errors.Join(damaged(damage), &failure{Exit: exitTaskFailed, Kind: "replay-failed", Message: fmt.Sprintf("%d of the envelopes failed", failed), quiet: a.json()})
	}
	return damaged(damage)
}

func (a *app) printReplayed(o replayOutcome) {
	if a.json() {
		writeJSON(a.stdout, o)
		return
	}
	envelopeTo := func(kind, to string) {
		fmt.Fprintf(a.stdout, "%s %s %s → %s  %s\n", kind, o.Envelope.Type, a.style.bold(oneLine(o.Envelope.Sender)),
			a.style.bold(oneLine(to)), a.style.dim("thread "+oneLine(o.Envelope.Thread())))
	}
	switch o.Kind {
	case replaySkipped:
		a.note("record %d is not sent: %s", o.Seq, oneLine(o.Reason))
		return
	case replayFailed:
		fmt.Fprintf(a.stdout, "%s %s %s: %s\n", a.style.red("failed"), o.Envelope.Type, a.style.yellow(o.Code), oneLine(o.Reason))
	case replaySent:
		envelopeTo(a.style.green("sent"), o.Target)
	case replayAnswer:
		envelopeTo(a.style.dim("answer"), o.Envelope.Recipient)
	}
	a.printPayload(o.Envelope)
}
