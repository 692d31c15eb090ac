// Scale says what happens to the agents' network when many hubs share it: how much memory, processor time and traffic a hundred hubs
// with a thousand agents each take of the servers between them, and which limit comes first.
//
//	go run ./tools/scale                 # measures, simulates, and prints a table
//	go run ./tools/scale -json           # the same as JSON
//	go run ./tools/scale -hubs 20 -agents 500 -discover 0.1
//
// First it runs real servers, each in a process of its own, and a few real agents, and measures what each kind of call costs the servers: in one hub's server,
// in a cluster of three, and in a super-cluster of two clusters of three. Then it simulates the busiest server of each arrangement
// with the calls of all agents, in virtual time: calls come at random and queue for its processors. The counts of messages and bytes do not depend on this
// computer; the processor time does.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
)

// options are how many agents there are, what they do, and what a server has.
type options struct {
	hubs, agents         int     // agents of each hub
	mail, work, discover float64 // of each agent in a minute
	cores                int
	memory, network      float64 // of a server, in bytes, and in bytes a second
	entries, calls       int     // that are measured
	json                 bool
}

func main() {
	node := flag.Bool("node", false, "be a server; for the command itself")
	o := options{}
	flag.IntVar(&o.hubs, "hubs", 100, "hubs")
	flag.IntVar(&o.agents, "agents", 1000, "agents of each hub")
	flag.Float64Var(&o.mail, "mail", 1, "messages that an agent sends in a minute")
	flag.Float64Var(&o.work, "work", 0.2, "items of work that an agent submits in a minute, and another does")
	flag.Float64Var(&o.discover, "discover", 0.1, "how often an agent looks for others in a minute")
	flag.IntVar(&o.cores, "cores", 8, "processors of a server")
	flag.Float64Var(&o.memory, "memory", 32<<30, "memory of a server, in bytes")
	flag.Float64Var(&o.network, "network", 1.25e9, "what a server's network takes, in bytes a second")
	flag.IntVar(&o.entries, "entries", 2000, "entries of the registry to measure with")
	flag.IntVar(&o.calls, "calls", 300, "calls of each kind to measure")
	flag.BoolVar(&o.json, "json", false, "print JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *node {
		err = serveNode(os.Stdin, os.Stdout)
	} else {
		err = run(ctx, o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "scale: %v\n", err)
		os.Exit(1)
	}
}

// outcome is what was measured and simulated of one arrangement.
type outcome struct {
	Arrangement string     `json:"arrangement"`
	Costs       costs      `json:"costs"`
	Forecasts   []forecast `json:"forecasts"`
}

func run(ctx context.Context, o options, out io.Writer) error {
	if o.hubs < 1 || o.agents < 1 || o.cores < 1 || o.entries < 1 || o.calls < 1 || min(o.mail, o.work, o.discover) < 0 || min(o.memory, o.network) <= 0 {
		return errors.New("a number is out of range; see -help")
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	var all []outcome
	for _, a := range arrangements {
		fmt.Fprintf(os.Stderr, "%s …\n", a.name)
		c, err := measure(ctx, a, o)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		all = append(all, outcome{a.name, c, forecasts(a, c, o)})
	}
	if o.json {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	return report(out, all)
}
