package demo_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/app/demo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheDemonstrationLosesOneAndFinishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []demo.Event
		result, err := demo.Run(t.Context(), demo.Options{Pace: time.Second, Report: func(e demo.Event) { events = append(events, e) }})
		if err != nil || result != "5 chapters, 50 words, no complaint" {
			t.Fatalf("%q, %v, %+v", result, err, events)
		}
		var kinds []demo.Kind
		done := make(map[string]int)
		for _, e := range events {
			if !slices.Contains(kinds, e.Kind) {
				kinds = append(kinds, e.Kind)
			}
			if e.Kind == demo.Completed {
				done[e.SubTask]++
				if e.Agent == "titan" {
					t.Error("titan is dead")
				}
			}
		}
		if len(kinds) != 11 || kinds[0] != demo.Joined || kinds[10] != demo.Finished {
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
		if _, err := demo.Run(ctx, demo.Options{Pace: time.Hour}); err == nil {
			t.Error("it has finished")
		}
	})
}
