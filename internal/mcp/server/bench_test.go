package server_test

import (
	"bufio"
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// BenchmarkCalls measures tool calls of one session over each transport: list_channels
// needs no bus, send_message stores, read_messages reads 50. Callers share the session;
// over lines its calls run in order.
func BenchmarkCalls(b *testing.B) {
	n := startServer(b)
	p := openProject(b, configOf("bench"), n.dial)
	w := startWeb(b, mcpserver.HandlerOptions{})
	ways := []struct {
		name string
		join func(testing.TB) *agent
	}{
		{"lines", func(t testing.TB) *agent { return join(t, p) }},
		{"http-session", func(testing.TB) *agent { return w.join("/p", "2025-11-25") }},
		{"http-sessionless", func(testing.TB) *agent { return w.join("/p", later) }},
	}
	for _, way := range ways {
		a := way.join(b)
		token := a.must("set_handle", map[string]any{"handle": "bench"}).content["session"]
		calls := []struct {
			tool      string
			arguments map[string]any
		}{
			{"list_channels", map[string]any{}},
			{"send_message", map[string]any{"channel": "roadmap", "message": "Claimed B2.T1 - Starting implementation"}},
			{"read_messages", map[string]any{"channel": "roadmap"}},
		}
		for _, c := range calls {
			if token != nil {
				c.arguments["session"] = token
			}
			for _, callers := range []int{1, 16} {
				b.Run(fmt.Sprintf("%s/%s/callers=%d", way.name, c.tool, callers), func(b *testing.B) {
					a := &agent{t: b, session: a.session}
					b.SetParallelism(callers)
					b.ReportAllocs()
					var failed atomic.Bool
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							if r, err := a.try(context.Background(), c.tool, c.arguments); err != nil || r.isError {
								failed.Store(true)
							}
						}
					})
					b.StopTimer()
					if failed.Load() {
						b.Error("a call failed")
					}
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
				})
			}
		}
	}
}

// BenchmarkWire measures the server alone: the client writes and reads prepared lines.
func BenchmarkWire(b *testing.B) {
	p := openProject(b, configOf("wire"), startServer(b).dial)
	w := connect(b, p).initialized()
	line := []byte(callLine(1, "list_channels", `{}`) + "\n")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.in.Write(line); err != nil {
			b.Fatal(err)
		}
		if _, err := w.out.ReadSlice('\n'); err != nil && err != bufio.ErrBufferFull {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	w.end()
}

// BenchmarkWake measures the time from a send in one session to the result of a wait in another.
func BenchmarkWake(b *testing.B) {
	p := openProject(b, configOf("wake"), startServer(b).dial)
	a, s := join(b, p).named("a"), join(b, p).named("s")
	woken := make(chan error)
	for b.Loop() {
		go func() {
			_, err := a.try(context.Background(), "wait_for_messages", nil)
			woken <- err
		}()
		s.send("roadmap", "wake up")
		if err := <-woken; err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNewServer measures the cost of a new session.
func BenchmarkNewServer(b *testing.B) {
	p := openProject(b, configOf("new"), startServer(b).dial)
	p.NewServer(mcpserver.Caller{}).End()
	b.ReportAllocs()
	for b.Loop() {
		p.NewServer(mcpserver.Caller{}).End()
	}
}
