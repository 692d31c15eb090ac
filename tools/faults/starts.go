package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// starts is a run that kills and stops a hub and starts it again.
type starts struct {
	times  int
	stored storeSize
	dir    string // with the store, which is made if it is not there; "" for a temporary one
}

// What a start may take, half of them and all but one of a hundred.
const (
	startP50 = time.Second
	startP99 = 5 * time.Second
)

// runStarts starts a hub after a kill in its start, a kill under load, and a stop under load, in turn, and returns what was broken: a
// start that fails or is too slow. The moments are those of the seed.
func runStarts(ctx context.Context, out io.Writer, c campaign, s starts) (broken []string, err error) {
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "parley-starts-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(s.dir) //nolint:errcheck // temporary
	}
	h, err := newHub(ctx, s.dir, c.program)
	if err != nil {
		return nil, err
	}
	defer h.kill()
	if err := makeStore(ctx, out, h, s.stored); err != nil {
		return nil, err
	}
	moments := rand.New(rand.NewPCG(c.seed, 0))
	first, err := h.timedStart(ctx)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "seed %d: the first start took %v\n", c.seed, first.Round(time.Millisecond))
	ways := []startAfter{
		{name: "a kill in a start", end: func() error { return h.killStarting(ctx, time.Duration(moments.Int64N(int64(first)*5/4))) }},
		{name: "a kill under load", load: true, end: func() error { h.kill(); return nil }},
		{name: "a stop under load", load: true, end: h.stop},
	}
	var all []time.Duration
	for i := 0; i < s.times && ctx.Err() == nil; i++ {
		took, err := ways[i%len(ways)].again(ctx, h, c, time.Duration(moments.Int64N(int64(loadTime))))
		if err != nil {
			return broken, fmt.Errorf("start %d, after %s: %w", i, ways[i%len(ways)].name, err)
		}
		all = append(all, took)
	}
	for i := range ways {
		fmt.Fprintf(out, "after %s: %s\n", ways[i].name, spread(ways[i].took))
	}
	fmt.Fprintf(out, "in all: %s\n", spread(all))
	if p50 := quantile(all, 50); p50 > startP50 {
		broken = append(broken, fmt.Sprintf("start: half of them took more than %v", p50))
	}
	if p99 := quantile(all, 99); p99 > startP99 {
		broken = append(broken, fmt.Sprintf("start: one of a hundred took %v", p99))
	}
	return broken, h.stop()
}

// loadTime bounds how long clients work before the hub ends.
const loadTime = 2 * time.Second

// startAfter is how a hub ends before it is started again.
type startAfter struct {
	name string
	load bool // while clients work
	end  func() error
	took []time.Duration
}

// again ends a hub that runs, at a moment of the load, and starts it again.
func (s *startAfter) again(ctx context.Context, h *hub, c campaign, moment time.Duration) (time.Duration, error) {
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	var wait sync.WaitGroup
	if s.load {
		var all history
		for i := range c.clients {
			wait.Go(func() { sendTasks(working, h, c, name("tasks", i), &all) })
			wait.Go(func() { sendMessages(working, h, name("chat", i), &all) })
		}
		pause(ctx, moment)
	}
	if err := s.end(); err != nil {
		return 0, err
	}
	took, err := h.timedStart(ctx)
	s.took = append(s.took, took)
	cancel()
	wait.Wait()
	return took, err
}

// timedStart starts the hub and returns how long it took until it answered.
func (h *hub) timedStart(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	err := h.start(ctx)
	return time.Since(began), err
}

// killStarting kills a hub that runs, starts it, and kills it at a moment of its start.
func (h *hub) killStarting(ctx context.Context, moment time.Duration) error {
	h.kill()
	starting, cancel := context.WithTimeout(ctx, moment)
	defer cancel()
	_ = h.start(starting) // it ends with the moment, or was faster
	h.kill()
	return ctx.Err()
}

// quantile returns the smallest of the durations that so many percent do not exceed, 0 without any.
func quantile(all []time.Duration, percent int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

// spread describes durations.
func spread(all []time.Duration) string {
	round := func(percent int) time.Duration { return quantile(all, percent).Round(time.Millisecond) }
	return fmt.Sprintf("%d starts, p50 %v, p99 %v, longest %v", len(all), round(50), round(99), round(100))
}

// isMade reports whether a directory has a store of a size.
func isMade(h *hub, size storeSize) bool {
	text, err := os.ReadFile(filepath.Join(h.dir, storeFile))
	return err == nil && string(text) == size.String()
}
