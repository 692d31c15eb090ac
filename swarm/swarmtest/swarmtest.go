// Package swarmtest tests implementations of [swarm.Journal].
package swarmtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhub/parley/swarm"
)

// Journal runs the test suite; open returns an empty journal.
func Journal(t *testing.T, open func(t *testing.T) swarm.Journal) {
	ctx := context.Background()
	t.Run("keeps each swarm's records in order", func(t *testing.T) {
		j := open(t)
		var a, b uint64
		for i := range 20 {
			a = add(t, j, "a", a, fmt.Sprint("a", i))
			b = add(t, j, "b", b, fmt.Sprint("b", i))
		}
		for id, sequence := range map[string]uint64{"a": a, "b": b} {
			all := read(t, j, id, 0)
			if len(all) != 20 || all[19].Sequence != sequence {
				t.Fatalf("%s has %d records", id, len(all))
			}
			for i, r := range all {
				if string(r.Data) != fmt.Sprint(id, i) {
					t.Fatalf("record %d of %s is %s", i, id, r.Data)
				}
			}
			if rest := read(t, j, id, all[16].Sequence); len(rest) != 3 || string(rest[0].Data) != id+"17" {
				t.Fatalf("after record 17 of %s there are %d", id, len(rest))
			}
		}
		last, err := j.Last(ctx)
		if diff := cmp.Diff(map[string]uint64{"a": a, "b": b}, last); err != nil || diff != "" {
			t.Fatalf("%v, last (-want +got):\n%s", err, diff)
		}
	})
	t.Run("refuses a record after an outdated sequence", func(t *testing.T) {
		j := open(t)
		first := add(t, j, "a", 0, "first")
		second := add(t, j, "a", first, "second")
		for _, after := range []uint64{0, first, second + 1} {
			if _, err := j.Append(ctx, "a", after, []byte("x")); !errors.Is(err, swarm.ErrConflict) {
				t.Fatalf("after %d: %v, want a conflict", after, err)
			}
		}
		if n := len(read(t, j, "a", 0)); n != 2 {
			t.Fatalf("there are %d records", n)
		}
	})
	t.Run("lets one of many writers win", func(t *testing.T) {
		j := open(t)
		var sequence uint64
		for range 10 {
			var mu sync.Mutex
			var run sync.WaitGroup
			var won []uint64
			for w := range 8 {
				run.Go(func() {
					s, err := j.Append(ctx, "a", sequence, []byte(fmt.Sprint(w)))
					if err != nil && !errors.Is(err, swarm.ErrConflict) {
						t.Error(err)
					}
					if err == nil {
						mu.Lock()
						defer mu.Unlock()
						won = append(won, s)
					}
				})
			}
			run.Wait()
			if len(won) != 1 {
				t.Fatalf("%d writers succeeded", len(won))
			}
			sequence = won[0]
		}
	})
	t.Run("forgets a swarm", func(t *testing.T) {
		j := open(t)
		add(t, j, "a", 0, "x")
		b := add(t, j, "b", 0, "y")
		if err := errors.Join(j.Forget(ctx, "a"), j.Forget(ctx, "none")); err != nil {
			t.Fatal(err)
		}
		if n := len(read(t, j, "a", 0)); n != 0 {
			t.Fatalf("%d records are left", n)
		}
		last, err := j.Last(ctx)
		if diff := cmp.Diff(map[string]uint64{"b": b}, last); err != nil || diff != "" {
			t.Fatalf("%v, last (-want +got):\n%s", err, diff)
		}
		add(t, j, "a", 0, "again")
	})
	t.Run("returns the last record of a swarm", func(t *testing.T) {
		j := open(t)
		var a uint64
		for want := range uint64(3) {
			if got, err := j.LastOf(ctx, "a"); err != nil || got != a {
				t.Fatalf("%v: the last of %d records is %d, want %d", err, want, got, a)
			}
			a = add(t, j, "a", a, "x")
			add(t, j, "b", 0, "y")
			if err := j.Forget(ctx, "b"); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := j.LastOf(ctx, "b"); err != nil || got != 0 {
			t.Fatalf("%v: the last record of a forgotten swarm is %d", err, got)
		}
	})
	t.Run("reports its free space", func(t *testing.T) {
		j := open(t)
		room := func() int64 {
			t.Helper()
			free, total, err := j.Room(ctx)
			if err != nil || free < 0 || total < free {
				t.Fatalf("%v: %d of %d bytes are free", err, free, total)
			}
			return free
		}
		empty, size := room(), 100<<10
		add(t, j, "a", 0, strings.Repeat("x", size))
		if used := empty - room(); used < int64(size) || used > int64(2*size) {
			t.Fatalf("a record of %d bytes takes %d", size, used)
		}
		if err := j.Forget(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		if used := empty - room(); used > int64(size/10) {
			t.Fatalf("a forgotten swarm takes %d bytes", used)
		}
	})
	t.Run("has no records of an unknown swarm", func(t *testing.T) {
		j := open(t)
		if n := len(read(t, j, "none", 0)); n != 0 {
			t.Fatalf("%d records", n)
		}
	})
}

func add(t *testing.T, j swarm.Journal, id string, after uint64, data string) uint64 {
	t.Helper()
	s, err := j.Append(context.Background(), id, after, []byte(data))
	if err != nil {
		t.Fatal(err)
	}
	if s <= after {
		t.Fatalf("the sequence does not grow: %d after %d", s, after)
	}
	return s
}

func read(t *testing.T, j swarm.Journal, id string, after uint64) []swarm.Record {
	t.Helper()
	all, err := j.Read(context.Background(), id, after)
	if err != nil {
		t.Fatal(err)
	}
	return all
}
