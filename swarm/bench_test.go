package swarm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/parleyhub/parley/swarm"
)

// BenchmarkAssign measures the time from the creation of a swarm of 10,000 sub-tasks until all are assigned to its
// 1,000 agents, which were invited by envelopes and have accepted, and each agent has its first. The journal is in
// memory.
func BenchmarkAssign(b *testing.B) {
	const agents, parts = 1000, 10_000
	b.StopTimer()
	for range b.N {
		h := newHive(b)
		c := h.coordinator("sun", swarm.CoordinatorOptions{})
		begun := make(chan struct{}, agents)
		for i := range agents {
			h.participant(fmt.Sprintf("agent-%04d", i), swarm.ParticipantOptions{}, func(ctx context.Context, _ swarm.Job) (json.RawMessage, error) {
				begun <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			}, "a")
		}
		p := plan(parts, "a")
		b.StartTimer()
		s, err := c.Create(ctx, p)
		must(b, err)
		for range agents {
			<-begun
		}
		b.StopTimer()
		s, err = c.Session(ctx, s.ID)
		must(b, err)
		for _, t := range s.SubTasks {
			if t.AssignedAgent == "" {
				b.Fatalf("%s has no agent", t.ID)
			}
		}
		must(b, c.Stop(ctx, s.ID, "enough"))
	}
	b.ReportMetric(float64(parts)*float64(b.N)/max(b.Elapsed(), time.Nanosecond).Seconds(), "subtasks/s")
}
