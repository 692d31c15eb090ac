package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// faultCounts counts the faults by kind.
type faultCounts map[string]int

func (f faultCounts) String() string {
	var all []string
	for kind, n := range f {
		all = append(all, fmt.Sprintf("%s %d", kind, n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// injector injects faults.
type injector struct {
	t      *traffic
	disk   *disk // nil without one
	random *rand.Rand
	counts faultCounts

	flips   uint64   // of bits
	enough  int      // operations that are acknowledged before the next fault
	unclean []string // stops that were not in order
}

// fault is a kind of fault. do returns with a running hub.
type fault struct {
	name   string
	weight int
	do     func(ctx context.Context, length time.Duration) error
}

func (x *injector) faults() []fault {
	h := x.t.h
	all := []fault{
		{"kills", 6, func(ctx context.Context, _ time.Duration) error {
			h.kill()
			return h.start(ctx)
		}},
		{"kills of agents", 6, func(context.Context, time.Duration) error {
			players := x.t.players()
			players[x.random.IntN(len(players))].kill()
			return nil
		}},
		{"kills of hub and agents", 1, func(ctx context.Context, _ time.Duration) error {
			h.kill()
			for _, p := range x.t.players() {
				p.kill()
			}
			return h.start(ctx)
		}},
		{"flipped bits", 1, func(ctx context.Context, _ time.Duration) error {
			h.kill()
			if err := x.flip(); err != nil {
				return err
			}
			if err := h.start(ctx); err != nil {
				return err
			}
			x.unclean = append(x.unclean, h.edited.check()...)
			return nil
		}},
		{"pauses", 2, func(ctx context.Context, length time.Duration) error {
			return h.suspend(func() { pause(ctx, length) })
		}},
		{"restarts", 2, func(ctx context.Context, _ time.Duration) error {
			if err := h.stop(); err != nil {
				x.unclean = append(x.unclean, fmt.Sprintf("stop: %v: %s", err, h.lastLog()))
			}
			return h.start(ctx)
		}},
	}
	if canLimit {
		all = append(all, fault{"times without descriptors", 1, func(ctx context.Context, length time.Duration) error {
			return h.limitDescriptors(func() { pause(ctx, length) })
		}}, fault{"times without memory", 1, func(ctx context.Context, length time.Duration) error {
			return h.withoutMemory(ctx, func() { pause(ctx, length) })
		}})
	}
	if x.t.wall != nil {
		all = append(all, fault{jumpsOfTheClock, 4, func(context.Context, time.Duration) error {
			return x.t.wall.set(time.Duration(x.random.Int64N(int64(2*maxShift))) - maxShift)
		}})
	}
	if x.disk != nil {
		all = append(all, fault{"power cuts", 6, x.cut}, fault{"times with a full disk", 1, func(ctx context.Context, length time.Duration) error {
			return x.disk.fill(func() { pause(ctx, length) })
		}}, fault{"times with a slow disk", 1, func(ctx context.Context, length time.Duration) error {
			return x.disk.stall(func(d time.Duration) bool { return pause(ctx, d) }, length)
		}})
	}
	if x.t.c.only != "" {
		all = slices.DeleteFunc(all, func(f fault) bool { return !named(x.t.c.only, f.name) })
	}
	return all
}

// flip flips a bit of the records, one of the hub's and the agents' other files, and one of their lines with checksums. The latter have
// sequences of their own, so that the faults of a seed stay what they were.
func (x *injector) flip() error {
	home := x.t.h.home
	blocks, err := records(filepath.Join(home, "data", "bus"))
	files, ferr := copied(home)
	logs, lerr := signedLines(home)
	x.flips++
	other := func(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(x.t.c.seed, stream)) }
	return errors.Join(err, ferr, lerr, flipBit(blocks, x.random), flipBit(files, other(x.flips)), flipBit(logs, other(x.flips|1<<32)))
}

// named reports whether a list, separated by commas, has a name.
func named(list, name string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(s string) bool { return strings.TrimSpace(s) == name })
}

// inject injects faults until ctx ends. The hub runs when it returns without an error.
func (x *injector) inject(ctx context.Context) error {
	all, weights := x.faults(), 0
	for _, f := range all {
		weights += f.weight
	}
	if weights == 0 {
		return fmt.Errorf("there are no faults %q here", x.t.c.only)
	}
	for {
		if !pause(ctx, x.wait()) || !x.awaitWork(ctx) {
			return nil
		}
		choice, length := x.random.IntN(weights), time.Duration(50+x.random.IntN(1500))*time.Millisecond
		i := 0
		for ; choice >= all[i].weight; i++ {
			choice -= all[i].weight
		}
		x.counts[all[i].name]++
		begin, wrong := x.t.all.now(), x.t.wall.wrong()
		err := all[i].do(context.WithoutCancel(ctx), length)
		x.enough = x.t.all.acknowledged() + x.t.c.between
		x.t.all.note(event{Client: "faults", Op: opFault, Text: all[i].name, Shift: x.t.wall.wrong() - wrong, Begin: begin, End: x.t.all.now()})
		if err != nil {
			return fmt.Errorf("after %s: %w", all[i].name, err)
		}
	}
}

// defaultPace is the mean pause between two faults.
const defaultPace = 1150 * time.Millisecond

// wait returns how long the next fault is away: a quarter of the pace at least, and seven quarters at most.
func (x *injector) wait() time.Duration {
	pace := x.t.c.pace
	return pace/4 + time.Duration(x.random.Int64N(int64(pace*3/2)+1))
}

// maxIdle bounds the wait for operations that are acknowledged.
const maxIdle = 10 * time.Second

// awaitWork waits until the clients have got done what they have to between two faults. It reports false if ctx ends before.
func (x *injector) awaitWork(ctx context.Context) bool {
	for late := time.Now().Add(maxIdle); time.Now().Before(late); {
		if x.t.all.acknowledged() >= x.enough {
			break
		}
		if !pause(ctx, pollTime) {
			return false
		}
	}
	return true
}

// awaitAgents waits until all agents are back that the last cut has killed: a cut loses only what they do between two.
func (x *injector) awaitAgents(ctx context.Context) {
	for late := time.Now().Add(maxIdle); time.Now().Before(late); {
		away := slices.ContainsFunc(x.t.players(), func(p *player) bool { return !p.there.Load() })
		if !away || !pause(ctx, pollTime) {
			return
		}
	}
}

// cut cuts the power: all processes end, and what was not on the disk is lost. Mostly the disk flushes nothing for a time before, so that whatever is
// answered too early is lost.
func (x *injector) cut(ctx context.Context, length time.Duration) error {
	x.awaitAgents(ctx)
	if x.random.IntN(4) > 0 {
		x.disk.hold()
		pause(ctx, length)
	}
	h := x.t.h
	h.disk.Lock() // agents come back afterwards
	err := x.disk.cut(ctx, h, func() {
		for _, p := range x.t.players() {
			p.kill()
		}
	})
	h.disk.Unlock()
	if err != nil {
		return err
	}
	return h.start(ctx)
}
