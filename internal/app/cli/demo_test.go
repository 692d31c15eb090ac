package cli_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/internal/app/cli"
)

func TestTheDemonstrationFinishesAfterAnAgentFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []cli.DemoEvent
		result, err := cli.Demonstrate(t.Context(), time.Second, func(e cli.DemoEvent) { events = append(events, e) })
		if err != nil || result != "5 chapters, 50 words, no complaint" {
			t.Fatalf("%q, %v, %+v", result, err, events)
		}
		var kinds []string
		done := make(map[string]int)
		for _, e := range events {
			if !slices.Contains(kinds, string(e.Kind)) {
				kinds = append(kinds, string(e.Kind))
			}
			if e.Kind == "completed" {
				done[e.SubTask]++
				if e.Agent == "titan" {
					t.Error("titan is dead")
				}
			}
		}
		if len(kinds) != 11 || kinds[0] != "joined" || kinds[10] != "finished" {
			t.Errorf("kinds %q", kinds)
		}
		for part, n := range done {
			if n != 1 {
				t.Errorf("%s was done %d times", part, n)
			}
		}
		if len(done) != 6 {
			t.Errorf("done %v", done)
		}
	})
}

func TestTheDemonstrationCanBeInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := cli.Demonstrate(ctx, time.Hour, func(cli.DemoEvent) {}); err == nil {
			t.Error("the demonstration finished")
		}
	})
}
