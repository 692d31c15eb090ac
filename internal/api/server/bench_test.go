package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/base/caller"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// sdkEcho is a minimal agent on the A2A SDK that answers with the prompt.
type sdkEcho struct{}

func (sdkEcho) Execute(_ context.Context, ec *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		if !yield(a2a.NewSubmittedTask(ec, ec.Message), nil) || !yield(a2a.NewStatusUpdateEvent(ec, a2a.TaskStateWorking, nil), nil) {
			return
		}
		answer := a2a.NewMessageForTask(a2a.MessageRoleAgent, ec, ec.Message.Parts...)
		yield(a2a.NewStatusUpdateEvent(ec, a2a.TaskStateCompleted, answer), nil)
	}
}

func (sdkEcho) Cancel(context.Context, *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(func(a2a.Event, error) bool) {}
}

// hubWithEcho serves a hub with the built-in echo agent. With mode "" it has no store.
func hubWithEcho(b testing.TB, mode bus.Durability, args ...string) *rig {
	b.Helper()
	cfg := hub.Config{Version: "1.0.0"}
	if mode != "" {
		opened, err := bus.Open(b.Context(), bus.Config{DataDir: b.TempDir(), Durability: mode})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := opened.Close(context.Background()); err != nil {
				b.Error(err)
			}
		})
		cfg.Bus = opened
		if cfg.Events, err = events.Open(b.Context(), events.Options{Bus: opened, Name: "bench"}); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := cfg.Events.Close(context.Background()); err != nil {
				b.Error(err)
			}
		})
	}
	def, err := runner.Definition{
		ID: "echo", Driver: runner.DriverEcho, Args: args,
		Limits: runner.Limits{Concurrency: 256, Queue: 10_000},
	}.Complete()
	if err != nil {
		b.Fatal(err)
	}
	agent, err := runner.Open(def, runner.Options{})
	if err != nil {
		b.Fatal(err)
	}
	cfg.Agents = []hub.Agent{{Definition: def, Runner: agent}}
	r := &rig{}
	if r.hub, err = hub.New(b.Context(), cfg); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := r.hub.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	cards := &dialect.Directory{Agents: r.hub, BaseURL: func() string { return r.url }}
	service := dialect.New(dialect.Config{Hub: dialect.OnHub(r.hub), Cards: cards, Events: cfg.Events})
	r.serve(b, server.Config{
		Socket: filepath.Join(b.TempDir(), "hub.sock"), SocketHandler: service,
		HTTP: "127.0.0.1:0", HTTPHandler: service, Cards: cards, Log: slog.New(slog.DiscardHandler),
	})
	return r
}

// postMany sends one body repeatedly from parallel clients, 16 for each CPU.
func postMany(b *testing.B, url string, body []byte, header ...string) {
	b.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 1024}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	b.SetParallelism(16)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			req, err := http.NewRequest("POST", url, bytes.NewReader(body))
			if err != nil {
				b.Error(err)
				return
			}
			req.Header.Set("Content-Type", "application/json")
			for i := 0; i < len(header); i += 2 {
				req.Header.Set(header[i], header[i+1])
			}
			resp, err := client.Do(req)
			if err != nil {
				b.Error(err)
				return
			}
			answer, err := io.ReadAll(resp.Body)
			if closeErr := resp.Body.Close(); err == nil {
				err = closeErr
			}
			if err != nil || !bytes.Contains(bytes.ToLower(answer), []byte("completed")) {
				b.Errorf("%s %v", answer, err)
				return
			}
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

// BenchmarkMessageSend measures message/send to the echo agent on a bare server of the
// A2A SDK with its in-memory store, and on the hub over HTTP and the socket for each
// durability. of-sdk is the rate relative to the SDK's in the same run.
func BenchmarkMessageSend(b *testing.B) {
	sdkRate := 0.0
	share := func(b *testing.B) {
		if sdkRate > 0 {
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/sdkRate, "of-sdk")
		}
	}
	b.Run("sdk", func(b *testing.B) {
		s := httptest.NewServer(a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(sdkEcho{})))
		defer s.Close()
		postMany(b, s.URL, []byte(`{"jsonrpc":"2.0","id":"1","method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hello"}]}}}`), "A2A-Version", "1.0")
		sdkRate = float64(b.N) / b.Elapsed().Seconds()
	})
	request := rpc(1, "message/send", sendParams("hello"))
	for _, mode := range []bus.Durability{"", bus.DurabilityFast, bus.DurabilityCommit} {
		name := string(mode)
		if name == "" {
			name = "memory"
		}
		b.Run("http/"+name, func(b *testing.B) {
			r := hubWithEcho(b, mode)
			postMany(b, r.url, []byte(request))
			share(b)
			wantTasks(b, r)
		})
		b.Run("socket/"+name, func(b *testing.B) {
			r := hubWithEcho(b, mode)
			socketMany(b, r, request)
			share(b)
			wantTasks(b, r)
		})
	}
}

// wantTasks fails unless each request created a task.
func wantTasks(b *testing.B, r *rig) {
	b.Helper()
	if n := r.hub.Status().TotalTasks; n != b.N {
		b.Errorf("%d tasks after %d requests", n, b.N)
	}
}

// socketMany is postMany over the socket: each client has its own connection and one
// request in flight.
func socketMany(b *testing.B, r *rig, request string) {
	b.Helper()
	line := []byte(request + "\n")
	b.SetParallelism(16)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		c := r.dial(b)
		defer c.close()
		for pb.Next() {
			if _, err := c.conn.Write(line); err != nil {
				b.Error(err)
				return
			}
			answer, err := c.r.ReadSlice('\n')
			if err != nil || !bytes.Contains(answer, []byte(`"completed"`)) {
				b.Errorf("%s %v", answer, err)
				return
			}
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

// BenchmarkStatus measures the server's overhead with a request that costs the hub
// almost nothing.
func BenchmarkStatus(b *testing.B) {
	r := hubWithEcho(b, "")
	b.Run("socket", func(b *testing.B) {
		c := r.dial(b)
		defer c.close()
		line := []byte(rpc(1, "hub/agents/list", `{}`) + "\n")
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.conn.Write(line); err != nil {
				b.Fatal(err)
			}
			if _, err := c.r.ReadSlice('\n'); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("handler", func(b *testing.B) {
		h := r.CalledBy(caller.Caller{Kind: caller.Own})
		body := rpc(1, "hub/agents/list", `{}`)
		b.ReportAllocs()
		for b.Loop() {
			req := httptest.NewRequest("POST", "/", strings.NewReader(body))
			req.Host = "localhost"
			req.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			if w.Code != 200 {
				b.Fatal(w.Body)
			}
		}
	})
}

// BenchmarkThousandStreams opens 1,000 streams that end at the same time. One operation
// is all of them, from the first request to the last final event.
func BenchmarkThousandStreams(b *testing.B) {
	const streams = 1000
	for _, transport := range []string{"http", "socket"} {
		b.Run(transport, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				r := startIdle(b)
				b.StartTimer()
				var opened, ended sync.WaitGroup
				opened.Add(streams)
				follow := followHTTP
				if transport == "socket" {
					follow = followSocket
				}
				for range streams {
					ended.Go(func() {
						if err := follow(r.rig, sync.OnceFunc(opened.Done)); err != nil {
							b.Error(err)
						}
					})
				}
				opened.Wait()
				r.agent.free()
				ended.Wait()
				b.StopTimer()
				r.stop()
				b.StartTimer()
			}
			b.ReportMetric(streams, "streams")
		})
	}
}

// startIdle starts a hub whose agent runs 1,000 turns at once.
func startIdle(b *testing.B) *stoppable {
	r := &rig{agent: newTestAgent()}
	var err error
	r.hub, err = hub.New(b.Context(), hub.Config{Agents: []hub.Agent{{
		Definition: runner.Definition{ID: "echo", Driver: runner.DriverEcho, Limits: runner.Limits{Concurrency: 1000, Queue: 1000}},
		Runner:     r.agent,
	}}})
	if err != nil {
		b.Fatal(err)
	}
	cards := &dialect.Directory{Agents: r.hub, BaseURL: func() string { return r.url }}
	service := dialect.New(dialect.Config{Hub: dialect.OnHub(r.hub), Cards: cards})
	r.socket = filepath.Join(b.TempDir(), "hub.sock")
	s, err := server.New(server.Config{
		Socket: r.socket, SocketHandler: service,
		HTTP: "127.0.0.1:0", HTTPHandler: service, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	r.Server, r.url = s, "http://"+s.Addr().String()
	return &stoppable{rig: r, b: b}
}

type stoppable struct {
	*rig
	b *testing.B
}

func (s *stoppable) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.hub.Close(ctx); err != nil {
		s.b.Error(err)
	}
	if err := s.Shutdown(ctx); err != nil {
		s.b.Error(err)
	}
}

func followHTTP(r *rig, opened func()) error {
	defer opened()
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Post(r.url+"/stream", "application/json", strings.NewReader(rpc(1, "message/stream", sendParams("wait"))))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return followFrom(resp.Body, opened)
}

func followSocket(r *rig, opened func()) error {
	defer opened()
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, rpc(1, "message/stream", sendParams("wait"))+"\n"); err != nil {
		return err
	}
	return followFrom(conn, opened)
}

// followFrom reads a stream to its final event and calls opened at the first one.
func followFrom(stream io.Reader, opened func()) error {
	var text []byte
	buf := make([]byte, 4096)
	for {
		n, err := stream.Read(buf)
		if n > 0 {
			opened()
			text = append(text, buf[:n]...)
		}
		if bytes.Contains(text, []byte(`"final":true`)) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("after %d bytes: %w", len(text), err)
		}
	}
}

// BenchmarkChunks streams answers of 500, 1,000 and 2,000 chunks: the time per chunk must
// not grow with their number.
func BenchmarkChunks(b *testing.B) {
	r := hubWithEcho(b, bus.DurabilityFast, "words")
	for _, n := range []int{500, 1000, 2000} {
		request := rpc(1, "message/stream", sendParams(strings.TrimSpace(strings.Repeat("word ", n)))) + "\n"
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := r.dial(b)
			defer c.close()
			for b.Loop() {
				if _, err := io.WriteString(c.conn, request); err != nil {
					b.Fatal(err)
				}
				for {
					line, err := c.r.ReadSlice('\n')
					if err != nil {
						b.Fatal(err)
					}
					if !bytes.Contains(line[:min(len(line), 60)], []byte(`"stream/event"`)) {
						var answer struct{ Error json.RawMessage }
						if err := json.Unmarshal(line, &answer); err != nil || answer.Error != nil {
							b.Fatalf("%.200s %v", line, err)
						}
						break
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/chunk")
		})
	}
}
