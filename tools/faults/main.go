// Command faults runs clients against a hub's process that it kills, pauses and restarts, and checks what the hub has
// acknowledged: nothing is lost, nothing is there twice, and what a sender has sent one after the other is in that order.
//
//	go run ./tools/faults -seed 7 -for 10m
//
// Clients send tasks to the echo agent over HTTP and messages to a channel over MCP, one after the other each. Agents, each with an
// MCP server's process, send mail, items of work, edits of a document and messages, work on the items, and claim files. A fault comes
// every second or as often as -pace says: the hub, an agent or all of them are killed, the hub is suspended, restarted or gets no further file
// descriptor. With -disk, on Linux as root, the hub's and the agents' files are on a disk of their own, which is full at
// times, and whose power is cut: then all processes end, and what was not synced is lost.
//
// Besides, the checks are about agents (the same GUID after each crash), receipts (true, monotonic), leases, and whether
// there is an order of the calls about each item and file that explains their answers. -history keeps all calls as JSON lines.
//
// -runs runs several campaigns and sums up what they did. A failure prints the seed, with which the same faults come in the same order; the
// system's scheduling differs. It ends with status 1 if a promise was broken, and 2 if it could not run.
//
//	sudo go run ./tools/faults -mutations -disk -for 20s
//
// builds hubs with an error each, such as a sync that is left out, and expects that a campaign finds it.
//
//	go run ./tools/faults -simulations 1000 -seed 7
//
// simulates agents, their links and a server in virtual time, in one process each: mail, work and claims, with links that are cut
// or hold back what one side sends, wrong clocks, and killed agents and servers. With -mutations it expects that simulations find those errors
// that they can find. With -hubs it simulates two paired hubs instead, which are killed at any change of their stores, and whose links are cut: tasks,
// questions and cancellations between them.
//
//	go run ./tools/faults -soak -for 24h
//
// kills agents only, and watches the hub's memory, descriptors, goroutines, processes, temporary files and data for leaks.
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
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/config"
)

func main() {
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "the order of the faults")
	length := flag.Duration("for", 15*time.Second, "how long faults come")
	pace := flag.Duration("pace", defaultPace, "the mean pause between two faults; 0 for a fault as soon as the hub has answered")
	between := flag.Int("between", 0, "operations that the clients have had acknowledged before the next fault comes, if that does not take longer than ten seconds")
	runs := flag.Int("runs", 1, "run so many campaigns, with the seeds from -seed on, until one fails, and sum up what they did")
	clients := flag.Int("clients", 4, "clients of each kind")
	program := flag.String("program", "", "the hub's program; empty to build ./cmd/parley")
	mutate := flag.String("mutate", "", "break the record: lost, twice or order")
	upgrading := flag.Bool("upgrade", false, "replace the hub by another program under load, instead of faults")
	next := flag.String("next", "", "with -upgrade, the program that replaces the hub; empty for the same")
	tasks := flag.Int("tasks", 1000, "with -upgrade, the tasks that are stored before")
	onDisk := flag.Bool("disk", false, "on a disk image of its own, which is full at times and loses its power (Linux, as root)")
	clocks := flag.Bool("clocks", false, "set the clock of the hub's and the agents' computer at times, as their program sees it: one with another time.Now, whose build takes minutes (Linux)")
	record := flag.String("history", "", "write the history to this file, as JSON lines")
	keep := flag.Bool("keep", true, "keep the hub's files, the disk's image and the logs of a run that has failed; not of mutations, which have to fail")
	only := flag.String("only", "", "the kinds of faults, separated by commas, such as \"kills, power cuts\"; empty for all")
	soak := flag.Bool("soak", false, "watch what the hub uses while agents are killed, and find leaks (Linux)")
	mutations := flag.Bool("mutations", false, "build hubs with an error each, and expect that a campaign finds it")
	simulations := flag.Int("simulations", 0, "simulate agents so often in virtual time, instead of faults; with -mutations any number")
	hubs := flag.Bool("hubs", false, "with -simulations, simulate paired hubs instead of agents")
	floods := flag.Int("flood", 0, "send so many large tasks at once, instead of faults, and measure the hub's memory (Linux)")
	startTimes := flag.Int("starts", 0, "end the hub and start it so often, at moments of its start and under load, instead of faults, and measure the starts")
	stored := flag.String("stored", "empty", "with -starts, what the hub has stored: empty, small, or big (100,000 tasks, 1,000,000 messages, 100 documents)")
	storeDir := flag.String("store", "", "with -starts, a directory for the store, which is used again; empty for a temporary one")
	mutation := flag.String("mutation", "", "with -mutations, only those whose description contains this")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c := campaign{seed: *seed, length: *length, pace: *pace, between: *between, clients: *clients, program: *program, mutate: *mutate, disk: *onDisk, history: *record, keep: *keep && !*mutations, only: *only, soak: *soak, clocks: *clocks}
	runIt := func() ([]string, error) { return runSeries(ctx, os.Stdout, &c, *runs) }
	if c.soak { // its hub is watched as one process
		c.only = soakFaults
	}
	if *mutations {
		runIt = func() ([]string, error) { return runMutations(ctx, os.Stdout, c, *mutation) }
	}
	if *simulations > 0 {
		of := simulatedAgents
		if *hubs {
			of = simulatedHubs
		}
		runIt = func() ([]string, error) { return runSimulations(ctx, os.Stdout, c, of, *simulations) }
		if *mutations {
			runIt = func() ([]string, error) { return simulateMutations(ctx, os.Stdout, c, of, *mutation) }
		}
	}
	if *startTimes > 0 {
		runIt = func() ([]string, error) {
			size, ok := storeSizes[*stored]
			if !ok {
				return nil, fmt.Errorf("there is no store %q", *stored)
			}
			return runStarts(ctx, os.Stdout, c, starts{*startTimes, size, *storeDir})
		}
	}
	if *floods > 0 {
		runIt = func() ([]string, error) { return runFloods(ctx, os.Stdout, c, *floods, floodSize, memoryCap) }
	}
	if *upgrading {
		runIt = func() ([]string, error) {
			return runUpgrade(ctx, os.Stdout, upgrade{*program, *next, *tasks, *clients, *length, false})
		}
	}
	broken, err := runIt()
	switch {
	case err != nil:
		fmt.Fprintf(os.Stderr, "faults: seed %d: %v\n", c.seed, err)
		os.Exit(2)
	case len(broken) > 0:
		for _, b := range broken {
			fmt.Fprintf(os.Stderr, "faults: %s\n", b)
		}
		if *simulations == 0 { // a simulation that fails prints its own command
			fmt.Fprintf(os.Stderr, "faults: again with %s\n", c.flags())
		}
		os.Exit(1)
	}
}

// campaign is one run.
type campaign struct {
	seed    uint64
	length  time.Duration
	pace    time.Duration // the mean pause between two faults
	between int           // operations that are acknowledged before the next fault, at least
	clients int
	program string
	mutate  string
	disk    bool   // on a disk of its own, which is full at times and loses its power
	history string // file for the history; "" for none
	keep    bool   // keep the files of a run that has failed
	only    string // the kinds of faults, separated by commas; "" for all
	mutant  int    // the number of the active mutation, 0 for none
	soak    bool   // watch what the hub uses; the hub is not killed
	clocks  bool   // set the clock at times, of a program that buildShifted has built
}

// flags returns the command's flags that repeat the campaign.
func (c campaign) flags() string {
	return fmt.Sprintf("-seed %d -for %v -pace %v -between %d -clients %d -disk=%v -clocks=%v -only %q", c.seed, c.length, c.pace, c.between, c.clients, c.disk, c.clocks, c.only)
}

// result is what a campaign has done and found.
type result struct {
	acknowledged, unknown int // operations
	calls                 int // others
	judged, undecided     int // windows of the histories of items and files
	faults                faultCounts
	broken                []string // promises
}

func (r result) String() string {
	return fmt.Sprintf("%d operations acknowledged, %d with an unknown outcome; %d other calls, %d histories of items and files (%d undecided); %s",
		r.acknowledged, r.unknown, r.calls, r.judged, r.undecided, r.faults)
}

// run runs a campaign and returns what it has found. It blocks until all processes have ended.
func run(ctx context.Context, out io.Writer, c campaign) (r result, err error) {
	dir, err := os.MkdirTemp("", "parley-faults-")
	if err != nil {
		return r, err
	}
	defer func() {
		if c.keep && (err != nil || len(r.broken) > 0) {
			fmt.Fprintf(out, "the hub's files and logs are in %s\n", dir)
			return
		}
		_ = os.RemoveAll(dir) // temporary
	}()
	if c.clocks && c.program == "" {
		return r, errors.New("a program with a clock of its own is needed")
	}
	h, err := newHub(ctx, dir, c.program)
	if err != nil {
		return r, err
	}
	h.env, h.agentLogs = settings(), c.keep
	var d *disk
	if c.disk {
		if d, err = newDisk(ctx, dir, rand.New(rand.NewPCG(c.seed, 1))); err != nil {
			return r, fmt.Errorf("a disk for the campaign: %w", err)
		}
		defer func() { err = errors.Join(err, d.close()) }()
		h.home = d.mount
	}
	if err := errors.Join(os.Mkdir(h.project(), 0o700), os.Mkdir(h.tmp(), 0o700)); err != nil {
		return r, err
	}
	settingsFile := filepath.Join(dir, "config.yaml") // which no power cut takes
	if err := os.WriteFile(settingsFile, []byte(withoutPrograms), 0o600); err != nil {
		return r, err
	}
	h.env = append(h.env, config.FileVariable+"="+settingsFile, "TMPDIR="+h.tmp(), fmt.Sprintf("%s=%d", mutantVariable, c.mutant))
	var all history
	var wall *wallClock
	if c.clocks {
		if wall, err = newWallClock(dir); err != nil {
			return r, err
		}
		all.clock, h.env = wall.now, append(h.env, clockVariable+"="+wall.path)
	}
	defer h.kill()
	if err := h.start(ctx); err != nil {
		return r, err
	}
	if err := h.edit(); err != nil {
		return r, fmt.Errorf("files that people edit: %w", err)
	}
	if c.history != "" {
		f, err := os.Create(c.history)
		if err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		all.lines = f
	}
	t := newTraffic(ctx, h, c, &all)
	t.wall = wall
	defer t.leave()
	if err := t.enter(ctx); err != nil {
		return r, err
	}
	faults, unclean, err := underFaults(ctx, out, t, d)
	if err != nil {
		return r, err
	}
	found, err := t.collect(ctx)
	if err != nil {
		return r, err
	}
	if c.mutate != "" && !mutate(c.mutate, &all, (*map[string][]string)(&found)) {
		return r, fmt.Errorf("there is no mutation %q, or nothing to mutate", c.mutate)
	}
	r = judge(&all, found)
	r.faults, r.broken = faults, append(r.broken, unclean...)
	return r, all.failed
}

// withoutPrograms is the configuration of a hub that does not look for the vendors' CLIs: a look at one costs more than a start of the hub, and
// outlives a killed hub, with the disk in use.
const withoutPrograms = `version: 1
agents:
  claude-code: {disabled: true}
  gemini: {disabled: true}
  codex: {disabled: true}
  vibe: {disabled: true}
`

// judge returns what the clients have done, and the promises that were broken.
func judge(all *history, found texts) (r result) {
	r.acknowledged, r.unknown = all.counts()
	r.calls = len(all.events)
	var orders []string
	orders, r.judged, r.undecided = checkOrders(all)
	r.broken = slices.Concat(check(all.ops, found), checkEvents(all), orders)
	return r
}

// underFaults runs the clients while faults come, and ends with a running hub.
func underFaults(ctx context.Context, out io.Writer, t *traffic, d *disk) (counts faultCounts, unclean []string, err error) {
	working, cancel := context.WithTimeout(ctx, t.c.length)
	defer cancel()
	var wait sync.WaitGroup
	wait.Go(func() { t.run(working) })
	var samples []sample
	var watched error
	if t.c.soak {
		every := sampleEvery
		if t.c.length > longSoak {
			every = longSampleEvery
		}
		wait.Go(func() { samples, watched = watch(working, out, t.h, t.all, every) })
	}
	x := injector{t: t, disk: d, random: rand.New(rand.NewPCG(t.c.seed, 0)), counts: faultCounts{}}
	err = x.inject(working)
	if cancel(); err != nil {
		t.give()
	}
	wait.Wait()
	return x.counts, append(x.unclean, leaks(samples)...), errors.Join(err, watched)
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
