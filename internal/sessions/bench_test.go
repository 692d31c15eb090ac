package sessions_test

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
)

// BenchmarkSend measures a message to a session that answers each task at once, from the call until its sender has the
// answer: the task is stored, put into the inbox, read, answered, and stored with the answer.
func BenchmarkSend(b *testing.B) {
	for _, mode := range []bus.Durability{bus.DurabilityCommit, bus.DurabilityFast} {
		b.Run(string(mode), func(b *testing.B) {
			o := &office{t: b, dir: b.TempDir(), durability: mode}
			o.start()
			a := o.session(registry.Registration{Handle: "reviewer"})
			ctx, stop := context.WithCancel(b.Context())
			var answering sync.WaitGroup
			answering.Go(func() { answerAll(ctx, b, a) })
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				task, err := o.hub.SendAndWait(b.Context(), hub.SendRequest{AgentID: "reviewer", Message: message("is this safe?")})
				if err != nil || task.Status.State != a2a.TaskStateCompleted {
					b.Fatalf("%v, %v", task, err)
				}
				took = append(took, time.Since(start))
			}
			b.StopTimer()
			stop()
			answering.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*95/100].Microseconds()), "p95-µs")
			b.ReportMetric(float64(took[len(took)-1].Microseconds()), "most-µs")
		})
	}
}

// answerAll answers the tasks of a session until ctx ends.
func answerAll(ctx context.Context, b *testing.B, a *agentnet.Agent) {
	for ctx.Err() == nil {
		tasks, _, err := a.Wait(ctx, mail.Selection{})
		for _, m := range tasks {
			var of struct{ TaskID a2a.TaskID }
			if err = json.Unmarshal(m.Metadata, &of); err == nil {
				err = a.AnswerTask(ctx, answerTo(of.TaskID, "It is."))
			}
		}
		if err != nil && ctx.Err() == nil {
			b.Error(err)
			return
		}
	}
}
