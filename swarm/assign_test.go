package swarm

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func team(n int, capabilities func(i int) []string) []*worker {
	workers := make([]*worker, n)
	for i := range workers {
		has := capabilities(i)
		workers[i] = &worker{id: fmt.Sprintf("w%04d", i), has: func(c string) bool { return slices.Contains(has, c) }}
	}
	return workers
}

// Distribution follows capabilities and load (Req 8.2, Property 26).
func TestDistributionFollowsCapabilityAndLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capability := rapid.SampledFrom([]string{"a", "b", "c"})
		workers := team(rapid.IntRange(1, 6).Draw(t, "workers"), func(int) []string {
			return rapid.SliceOfNDistinct(capability, 0, 3, rapid.ID).Draw(t, "has")
		})
		for _, w := range workers {
			w.load = rapid.IntRange(0, 3).Draw(t, "load")
		}
		var parts []*SubTask
		for i := range rapid.IntRange(0, 12).Draw(t, "parts") {
			parts = append(parts, &SubTask{ID: fmt.Sprint(i), RequiredCapabilities: rapid.SliceOfNDistinct(capability, 0, 2, rapid.ID).Draw(t, "required")})
		}
		to := distribute(parts, workers, true)
		got := make(map[*worker]int)
		for _, part := range parts {
			w := to[part.ID]
			able := slices.ContainsFunc(workers, func(w *worker) bool { return w.can(part.RequiredCapabilities) })
			if able != (w != nil) || w != nil && !w.can(part.RequiredCapabilities) {
				t.Fatalf("sub-task %+v was assigned to %+v", part, w)
			}
			if w != nil {
				got[w]++
			}
		}
		if most := matching(parts, workers); len(got) < most {
			t.Fatalf("%d workers have a sub-task, %d could have one", len(got), most)
		}
	})
}

// matching returns how many workers could each have a sub-task of their own, by trying all assignments.
func matching(parts []*SubTask, workers []*worker) int {
	if len(workers) == 0 {
		return 0
	}
	best := matching(parts, workers[1:])
	tried := make(map[string]bool) // parts with equal needs are interchangeable
	for i, part := range parts {
		kind := fmt.Sprint(part.RequiredCapabilities)
		if tried[kind] || !workers[0].can(part.RequiredCapabilities) {
			continue
		}
		tried[kind] = true
		best = max(best, 1+matching(slices.Delete(slices.Clone(parts), i, i+1), workers[1:]))
	}
	return best
}

func TestTheLeastLoadedIsPreferred(t *testing.T) {
	workers := team(3, func(int) []string { return nil })
	workers[0].load, workers[1].load = 2, 1
	to := distribute([]*SubTask{{ID: "a"}, {ID: "b"}, {ID: "c"}}, workers, false)
	got := make(map[string]int)
	for _, w := range to {
		got[w.id]++
	}
	if got["w0002"] != 2 || got["w0001"] != 1 {
		t.Fatalf("the assignment is %v", got)
	}
}

// BenchmarkDistribute assigns 10,000 sub-tasks of ten kinds to 1,000 agents.
func BenchmarkDistribute(b *testing.B) {
	parts := make([]*SubTask, 10_000)
	for i := range parts {
		parts[i] = &SubTask{ID: fmt.Sprint(i), RequiredCapabilities: []string{fmt.Sprint("c", i%10)}}
	}
	for b.Loop() {
		workers := team(1000, func(i int) []string { return []string{fmt.Sprint("c", i%10), fmt.Sprint("c", (i+1)%10)} })
		if to := distribute(parts, workers, true); len(to) != len(parts) {
			b.Fatal(len(to))
		}
	}
	b.ReportMetric(float64(len(parts)*b.N)/b.Elapsed().Seconds(), "subtasks/s")
}
