// Command faults runs clients against a hub's process that it kills, pauses and restarts, and checks what the hub has
// acknowledged: nothing is lost, nothing is there twice, and what a sender has sent one after the other is in that order.
//
//	go run ./tools/faults -seed 7 -for 10m
//
// Clients send tasks to the echo agent over HTTP and messages to a channel over MCP, one after the other each. Agents, each with an
// MCP server's process, send mail, items of work and edits of a document, work on the items, and claim files. A fault comes
// every few hundred milliseconds: the hub, an agent or all of them are killed, the hub is suspended, restarted or gets no further file
// descriptor. With -disk, on Linux as root, the hub's and the agents' files are on a disk of their own, which is full at
// times, and whose power is cut: then all processes end, and what was not synced is lost.
//
// Besides, the checks are about agents (the same GUID after each crash), receipts (true, monotonic), leases, and whether
// there is an order of the calls about each item and file that explains their answers. -history keeps all calls as JSON lines.
//
// A failure prints the seed, with which the same faults come in the same order; the
// system's scheduling differs. It ends with status 1 if a promise was broken, and 2 if it could not run.
//
//	go run ./tools/faults -upgrade -tasks 10000 -program OLD -next NEW
//
// stores tasks, mail, work items and edits of a document with the program OLD, replaces it by NEW with parley upgrade while all of it goes on,
// and checks the same promises.
//
// Kills end the process, not the computer: what the system has in its page cache survives them. -mutate NAME breaks
// what was recorded, to prove that the checks find it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
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
	onDisk := flag.Bool("disk", false, "on a disk image of its own, which is full at times and loses its power (Linux, as root)")
	record := flag.String("history", "", "write the history to this file, as JSON lines")
	keep := flag.Bool("keep", false, "keep the hub's files and the logs of a run that has failed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	runIt := func() ([]string, error) {
		return run(ctx, os.Stdout, campaign{*seed, *length, *clients, *program, *mutate, *onDisk, *record, *keep})
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
		fmt.Fprintf(os.Stderr, "faults: again with -seed %d -for %v -clients %d -disk=%v\n", *seed, *length, *clients, *onDisk)
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
	disk    bool   // on a disk of its own, which is full at times and loses its power
	history string // file for the history; "" for none
	keep    bool   // keep the files of a run that has failed
}

// run runs a campaign and returns the promises that were broken. It blocks until all processes have ended.
func run(ctx context.Context, out io.Writer, c campaign) (broken []string, err error) {
	dir, err := os.MkdirTemp("", "parley-faults-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if c.keep && (err != nil || len(broken) > 0) {
			fmt.Fprintf(out, "the hub's files and logs are in %s\n", dir)
			return
		}
		_ = os.RemoveAll(dir) // temporary
	}()
	h, err := newHub(ctx, dir, c.program)
	if err != nil {
		return nil, err
	}
	h.env, h.agentLogs = settings(), c.keep
	var d *disk
	if c.disk {
		if d, err = newDisk(ctx, dir); err != nil {
			return nil, fmt.Errorf("a disk for the campaign: %w", err)
		}
		defer func() { err = errors.Join(err, d.close()) }()
		h.home = d.mount
	}
	if err := os.Mkdir(h.project(), 0o700); err != nil {
		return nil, err
	}
	defer h.kill()
	if err := h.start(ctx); err != nil {
		return nil, err
	}
	var all history
	if c.history != "" {
		f, err := os.Create(c.history)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		all.lines = f
	}
	t := newTraffic(h, c, &all)
	defer t.leave()
	faults, err := underFaults(ctx, t, d)
	if err != nil {
		return nil, err
	}
	found, err := t.collect(ctx)
	if err != nil {
		return nil, err
	}
	if c.mutate != "" && !mutate(c.mutate, &all, (*map[string][]string)(&found)) {
		return nil, fmt.Errorf("there is no mutation %q, or nothing to mutate", c.mutate)
	}
	return judge(out, c, &all, found, faults), all.failed
}

// judge returns the promises that were broken, and prints what was judged.
func judge(out io.Writer, c campaign, all *history, found texts, faults faultCounts) (broken []string) {
	acknowledged, unknown := all.counts()
	orders, judged, undecided := checkOrders(all)
	fmt.Fprintf(out, "seed %d: %d operations acknowledged, %d with an unknown outcome; %d other calls, %d histories of items and files (%d undecided); %s\n",
		c.seed, acknowledged, unknown, len(all.events), judged, undecided, faults)
	// The order of a queue ends where an item comes again.
	broken = slices.DeleteFunc(check(all.ops, found), func(b string) bool { return strings.HasPrefix(b, `order: "work-`) })
	return slices.Concat(broken, checkEvents(all), orders)
}

// underFaults runs the clients while faults come, and ends with a running hub.
func underFaults(ctx context.Context, t *traffic, d *disk) (faultCounts, error) {
	working, cancel := context.WithTimeout(ctx, t.c.length)
	defer cancel()
	var wait sync.WaitGroup
	wait.Go(func() { t.run(working) })
	x := injector{t: t, disk: d, random: rand.New(rand.NewPCG(t.c.seed, 0)), counts: faultCounts{}}
	err := x.inject(working)
	cancel()
	wait.Wait()
	return x.counts, err
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
