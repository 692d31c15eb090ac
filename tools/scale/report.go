package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// report prints tables: what calls cost, and what all agents take.
func report(out io.Writer, all []outcome) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "of the busiest server\tmessages\tbytes\tprocessor\tmessages of all servers")
	for _, r := range all {
		c := r.Costs
		for _, k := range []struct {
			name string
			cost
		}{{"heartbeat", c.Heartbeat}, {"look, nothing changed", c.Discover}, {"look, each changed entry", c.Changed}, {"mail", c.Mail}, {"item of work", c.Item}} {
			fmt.Fprintf(w, "%s: %s\t%.1f\t%.0f\t%v\t%.1f\n", r.Arrangement, k.name, k.Messages, k.Bytes, k.Processor.Round(time.Microsecond), k.Of)
		}
	}
	fmt.Fprintln(w, "\nmemory\tan entry\tan inbox\ta connection\tan entry in a process that looks\t")
	for _, r := range all {
		c := r.Costs
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", r.Arrangement, size(c.Entry), size(c.Inbox), size(c.Connection), size(c.View))
	}
	fmt.Fprintln(w, "\nforecast\tagents\tmessages\tprocessor\tnetwork\tmemory\ta hub's computer\ta heartbeat waits, 50 and 99 %\tfirst limit\tat agents")
	for _, r := range all {
		for _, f := range r.Forecasts {
			fmt.Fprintf(w, "%s, looks: %s\t%d\t%.0f /s\t%.0f %%\t%.0f %%\t%.0f %%\t%s\t%v, %v\t%s\t%d\n", r.Arrangement, f.Views, f.Agents, f.Messages,
				100*f.Processor, 100*f.Network, 100*f.Memory, size(f.Computer), f.Median.Round(10*time.Microsecond), f.Late.Round(10*time.Microsecond), f.First, f.At)
		}
	}
	return w.Flush()
}

func size(bytes float64) string {
	switch {
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", bytes/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MiB", bytes/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", bytes/(1<<10))
}
