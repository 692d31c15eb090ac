// Command faults runs clients against a hub's process that it kills, pauses and restarts, and checks what the hub has
// acknowledged: nothing is lost, nothing is there twice, and what a sender has sent one after the other is in that order.
//
//	go run ./tools/faults -seed 7 -for 10m
//
// Clients send tasks to the echo agent over HTTP and messages to a channel over MCP, one after the other each. A fault comes
// every few hundred milliseconds. A failure prints the seed, with which the same faults come in the same order; the
// system's scheduling differs. It ends with status 1 if a promise was broken, and 2 if it could not run.
//
//	go run ./tools/faults -upgrade -tasks 10000 -program OLD -next NEW
//
// stores tasks, mail, work items and edits of a document with the program OLD, replaces it by NEW with parley upgrade while all of it goes on,
// and checks the same promises.
//
// The kills end the process, not the computer: what the system has in its page cache survives them. -mutate NAME breaks
// what was recorded, to prove that the checks find it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"time"
)

func main() {
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "the order of the faults")
	length := flag.Duration("for", 15*time.Second, "how long faults come")
	clients := flag.Int("clients", 4, "clients of each kind")
	program := flag.String("program", "", "the hub's program; empty to build ./cmd/parley")
	mutate := flag.String("mutate", "", "break the record: lost, twice or order")
	upgrading := flag.Bool("upgrade", false, "replace the hub by another program under load, instead of faults")
	next := flag.String("next", "", "with -upgrade, the program that replaces the hub; empty for the same")
	tasks := flag.Int("tasks", 1000, "with -upgrade, the tasks that are stored before")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	runIt := func() ([]string, error) {
		return run(ctx, os.Stdout, campaign{*seed, *length, *clients, *program, *mutate})
	}
	if *upgrading {
		runIt = func() ([]string, error) {
			return runUpgrade(ctx, os.Stdout, upgrade{*program, *next, *tasks, *clients, *length, false})
		}
	}
	broken, err := runIt()
	switch {
	case err != nil:
		fmt.Fprintf(os.Stderr, "faults: seed %d: %v\n", *seed, err)
		os.Exit(2)
	case len(broken) > 0:
		for _, b := range broken {
			fmt.Fprintf(os.Stderr, "faults: %s\n", b)
		}
		fmt.Fprintf(os.Stderr, "faults: again with -seed %d -for %v -clients %d\n", *seed, *length, *clients)
		os.Exit(1)
	}
}

// campaign is one run.
type campaign struct {
	seed    uint64
	length  time.Duration
	clients int
	program string
	mutate  string
}

// run runs a campaign and returns the promises that were broken. It blocks until all processes have ended.
func run(ctx context.Context, out io.Writer, c campaign) (broken []string, err error) {
	dir, err := os.MkdirTemp("", "parley-faults-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	h, err := newHub(ctx, dir, c.program)
	if err != nil {
		return nil, err
	}
	defer h.kill()
	if err := h.start(ctx); err != nil {
		return nil, err
	}
	var all history
	faults, err := underFaults(ctx, h, c, &all)
	if err != nil {
		return nil, err
	}
	found, err := collect(ctx, h, c.clients)
	if err != nil {
		return nil, err
	}
	if c.mutate != "" && !mutate(c.mutate, &all, &found) {
		return nil, fmt.Errorf("there is no mutation %q, or nothing to mutate", c.mutate)
	}
	acknowledged, unknown := all.counts()
	fmt.Fprintf(out, "seed %d: %d operations acknowledged, %d with an unknown outcome; %s\n", c.seed, acknowledged, unknown, faults)
	return check(all.ops, found), nil
}

// underFaults runs the clients while faults come, and ends with a running hub.
func underFaults(ctx context.Context, h *hub, c campaign, all *history) (faultCounts, error) {
	working, cancel := context.WithTimeout(ctx, c.length)
	defer cancel()
	var wait sync.WaitGroup
	for i := range c.clients {
		wait.Go(func() { sendTasks(working, h, name("tasks", i), all) })
		wait.Go(func() { sendMessages(working, h, name("chat", i), all) })
	}
	counts, err := inject(working, h, rand.New(rand.NewPCG(c.seed, 0)))
	cancel()
	wait.Wait()
	return counts, err
}

// faultCounts counts the faults by kind.
type faultCounts struct{ kills, pauses, restarts int }

func (f faultCounts) String() string {
	return fmt.Sprintf("%d kills, %d pauses, %d restarts", f.kills, f.pauses, f.restarts)
}

// inject injects faults until ctx ends. The hub runs when it returns without an error.
func inject(ctx context.Context, h *hub, random *rand.Rand) (n faultCounts, err error) {
	always := context.WithoutCancel(ctx)
	for {
		if !pause(ctx, time.Duration(300+random.IntN(1700))*time.Millisecond) {
			return n, nil
		}
		kind, length := random.IntN(4), time.Duration(50+random.IntN(1500))*time.Millisecond
		switch kind {
		case 0, 1:
			n.kills++
			h.kill()
			err = h.start(always)
		case 2:
			n.pauses++
			err = h.suspend(func() { pause(ctx, length) })
		default:
			n.restarts++
			if err = h.stop(); err == nil {
				err = h.start(always)
			}
		}
		if err != nil {
			return n, err
		}
	}
}

// pause waits, and reports false if ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
