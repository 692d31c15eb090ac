package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/bus/damage"
	"github.com/parleyhub/parley/internal/documents"
)

func (a *app) repairCommand() *cobra.Command {
	var apply bool
	cmd := command("repair", "Show the damage of the hub's store, and mend it", func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := a.interruptible(cmd.Context())
		defer cancel()
		cfg, err := a.load(ctx)
		if err != nil {
			return err
		}
		_, running, err := daemon.Running(cfg.DataDir)
		if err != nil {
			return err
		}
		if cfg.Bus.URL != "" {
			return &bus.Error{Code: bus.CodeUnsupported, Message: "the hub's store is on the NATS server " + plain(cfg.Bus.URL), Remedy: "repair it there"}
		}
		store := daemon.BusConfig(cfg, nil)
		if !apply {
			result, err := bus.Survey(ctx, store, running)
			if err != nil {
				return err
			}
			survey := daemon.Repaired{Repair: result, Documents: []documents.Rebuilt{}}
			return a.print(survey, func() { a.printRepair(survey) })
		}
		if running {
			return &bus.Error{Code: bus.CodeLocked, Message: "the hub has its store open", Remedy: "stop it first: " + a.name + " stop"}
		}
		result, err := daemon.Repair(ctx, cfg)
		if err != nil {
			return err
		}
		return a.print(result, func() { a.printRepair(result) })
	})
	cmd.Long = `Read the whole store of the hub, and list what is damaged: what it was, in which stream,
and what has been done about it. Nothing is changed without --apply, and the hub may run.

With --apply, for which the hub must be stopped, everything that can be is corrected or
made anew: documents whose heads or snapshots are lost are rebuilt from what their logs
and their other snapshots have. The rest is set aside: its bytes are copied to bus/damage/kept in the data
directory, and never overwritten. The damage is settled then: status and doctor no longer
count it.`
	cmd.Example = "  " + a.name + " repair\n  " + a.name + " stop && " + a.name + " repair --apply"
	cmd.Flags().BoolVar(&apply, "apply", false, "mend the store; without it the damage is only listed")
	return cmd
}

func (a *app) printRepair(r daemon.Repaired) {
	for _, d := range r.Documents {
		if d.Reason != "" {
			fmt.Fprintf(a.stdout, "The document %s cannot be rebuilt: %s.\n", plain(d.Document), plain(d.Reason))
			continue
		}
		fmt.Fprintf(a.stdout, "The document %s was rebuilt from %s.\n", plain(d.Document), d.From)
	}
	if len(r.Records) == 0 && len(r.Documents) > 0 {
		return
	}
	if len(r.Records) == 0 {
		fmt.Fprintln(a.stdout, "The store has no damage.")
		return
	}
	listing[damage.Record]{
		columns: []column{{heading: "WHAT", weight: 3}, {heading: "STREAM", weight: 2}, {heading: "SEQUENCE"}, {heading: "DONE"}, {heading: "WHY", weight: 2, extra: true}},
		row: func(d damage.Record) []string {
			sequence := ""
			if d.Sequence > 0 {
				sequence = fmt.Sprint(d.Sequence)
			}
			if d.Last > d.Sequence {
				sequence = fmt.Sprintf("%d-%d", d.Sequence, d.Last)
			}
			return []string{d.What(), d.Stream, sequence, done(d), d.Reason}
		},
	}.table(a, a.stdout, r.Records)
	fmt.Fprintf(a.stdout, "\n%s.\n", r.Counts)
	switch {
	case r.Restored > 0:
		fmt.Fprintf(a.stdout, "%s could be put back.\n", text.Count(r.Restored, "record"))
	case !r.Applied && r.Lost > 0:
		a.note("to mend what can be and settle the rest: %s stop && %s repair --apply", a.name, a.name)
	}
}

// done says what was done about a damage, for people.
func done(d damage.Record) string {
	switch {
	case d.Obsolete:
		return "nothing is missing"
	case d.Kind == damage.KindWrite:
		return "removed"
	case d.Action == damage.ActionQuarantined:
		return "set aside"
	case d.Action == damage.ActionFound && d.Derived():
		return "to be rebuilt"
	case d.Action == damage.ActionFound:
		return "not yet"
	}
	return string(d.Action)
}
