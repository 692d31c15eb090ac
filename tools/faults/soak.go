package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// sample is what a hub uses at a moment.
type sample struct {
	at                                      time.Duration
	memory                                  int64 // resident bytes
	descriptors, goroutines, processes, tmp int   // processes that it has started; files in the directory for temporary ones
	disk                                    int64 // bytes of the data directory
	operations                              int   // acknowledged so far
}

func (s sample) String() string {
	return fmt.Sprintf("%7s  %4d MiB  %4d descriptors  %4d goroutines  %3d processes  %4d temporary files  %6.1f MiB of data  %8d operations",
		s.at.Round(time.Second), s.memory>>20, s.descriptors, s.goroutines, s.processes, s.tmp, float64(s.disk)/(1<<20), s.operations)
}

// watch takes a sample every period until ctx ends, and prints it.
func watch(ctx context.Context, out io.Writer, h *hub, all *history, every time.Duration) (samples []sample, err error) {
	for pause(ctx, every) {
		s, failed := take(h)
		if failed != nil {
			err = failed // the hub may be suspended
			continue
		}
		s.at = all.now()
		s.operations = all.acknowledged()
		samples = append(samples, s)
		fmt.Fprintln(out, s)
	}
	if len(samples) > 0 {
		err = nil
	}
	return samples, err
}

var goroutines = regexp.MustCompile(`(?m)^go_goroutines (\d+)`)

// take takes a sample of the hub.
func take(h *hub) (s sample, err error) {
	if s.memory, s.descriptors, s.processes, err = processUse(h.process.Process.Pid); err != nil {
		return s, err
	}
	resp, err := h.web.Get(h.url() + "metrics")
	if err != nil {
		return s, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return s, err
	}
	if m := goroutines.FindSubmatch(data); m != nil {
		s.goroutines, _ = strconv.Atoi(string(m[1])) // digits
	}
	s.tmp, _, err = sizeOf(h.tmp())
	if err == nil {
		_, s.disk, err = sizeOf(filepath.Join(h.home, "data"))
	}
	return s, err
}

// sizeOf counts the files below a directory and their bytes. Files may come and go meanwhile.
func sizeOf(dir string) (files int, bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		files++
		if info, err := d.Info(); err == nil {
			bytes += info.Size()
		}
		return nil
	})
	return files, bytes, err
}

// tmp returns the directory for temporary files of the programs.
func (h *hub) tmp() string { return filepath.Join(h.home, "tmp") }

// What may grow from the first quarter of a soak to its last, besides a quarter.
const (
	moreMemory      = 48 << 20
	memoryPerOp     = 4 << 10
	diskPerOp       = 8 << 10
	moreDisk        = 16 << 20
	moreDescriptors = 24
	moreGoroutines  = 64
	moreProcesses   = 2
	moreTmp         = 4
	samplesForLeaks = 8
	sampleEvery     = 10 * time.Second
	longSampleEvery = 5 * time.Minute
	longSoak        = 2 * time.Hour
	soakPace        = 100 * time.Millisecond
	soakFaults      = "kills of agents, pauses"
)

// leaks returns what has grown. It compares the least use of the first and the last quarter, so that peaks do not count.
func leaks(samples []sample) (broken []string) {
	if len(samples) < samplesForLeaks {
		return nil
	}
	quarter := len(samples) / 4
	first, last := least(samples[:quarter]), least(samples[len(samples)-quarter:])
	ops := int64(last.operations - first.operations)
	grown := func(what string, before, after, more int64) {
		if after > before+before/4+more {
			broken = append(broken, fmt.Sprintf("leak: %s have grown from %d to %d, with %d operations", what, before, after, ops))
		}
	}
	grown("bytes of memory", first.memory, last.memory, moreMemory+ops*memoryPerOp)
	grown("bytes of data", first.disk, last.disk, moreDisk+ops*diskPerOp)
	grown("descriptors", int64(first.descriptors), int64(last.descriptors), moreDescriptors)
	grown("goroutines", int64(first.goroutines), int64(last.goroutines), moreGoroutines)
	grown("processes", int64(first.processes), int64(last.processes), moreProcesses)
	grown("temporary files", int64(first.tmp), int64(last.tmp), moreTmp)
	return broken
}

// least returns the least of each number.
func least(samples []sample) sample {
	s := samples[0]
	for _, o := range samples[1:] {
		s.memory, s.disk = min(s.memory, o.memory), min(s.disk, o.disk)
		s.descriptors, s.goroutines = min(s.descriptors, o.descriptors), min(s.goroutines, o.goroutines)
		s.processes, s.tmp = min(s.processes, o.processes), min(s.tmp, o.tmp)
	}
	return s
}
