package a2a_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/push"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// bareEcho is a minimal agent on the SDK's own engine.
type bareEcho struct{}

func (bareEcho) Execute(_ context.Context, x *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		if yield(a2a.NewSubmittedTask(x, x.Message), nil) && yield(a2a.NewStatusUpdateEvent(x, a2a.TaskStateWorking, nil), nil) {
			yield(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, a2a.NewMessageForTask(a2a.MessageRoleAgent, x, x.Message.Parts...)), nil)
		}
	}
}

func (bareEcho) Cancel(context.Context, *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(func(a2a.Event, error) bool) {}
}

// echoHub returns the server of a hub with the built-in echo agent.
func echoHub(b *testing.B, mode bus.Durability) http.Handler {
	def := runner.Builtin()["echo"]
	def.Limits = runner.Limits{Concurrency: 256, Queue: 1000}
	def, err := def.Complete()
	if err != nil {
		b.Fatal(err)
	}
	agent, err := runner.Open(def, runner.Options{})
	if err != nil {
		b.Fatal(err)
	}
	config := hub.Config{Agents: []hub.Agent{{Definition: def, Runner: agent}}}
	if mode != "" {
		if config.Bus, err = bus.Open(b.Context(), bus.Config{DataDir: b.TempDir(), Durability: mode}); err != nil {
			b.Fatal(err)
		}
	}
	h, err := hub.New(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	p, err := push.Open(b.Context(), push.Options{Tasks: h, Bus: config.Bus})
	if err != nil {
		b.Fatal(err)
	}
	h.OnTurn(p.TurnStarted)
	b.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			b.Error(err)
		}
		p.Close()
		if config.Bus == nil {
			return
		}
		if err := config.Bus.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	mux := http.NewServeMux()
	a2aserver.New(a2aserver.Options{Hub: h, Push: p, DefaultAgent: "echo", Logger: slog.New(slog.DiscardHandler)}).Mount(mux.Handle)
	return mux
}

// BenchmarkSendMessage measures SendMessage to an echo agent over HTTP, with 1 and 16
// clients: on a bare server of the SDK with its in-memory store, and on the hub without
// a store, with the fast bus and with the durable bus.
func BenchmarkSendMessage(b *testing.B) {
	servers := []struct {
		name string
		open func(b *testing.B) http.Handler
	}{
		{"sdk", func(*testing.B) http.Handler { return a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(bareEcho{})) }},
		{"memory", func(b *testing.B) http.Handler { return echoHub(b, "") }},
		{"fast", func(b *testing.B) http.Handler { return echoHub(b, bus.DurabilityFast) }},
		{"commit", func(b *testing.B) http.Handler { return echoHub(b, bus.DurabilityCommit) }},
	}
	for _, s := range servers {
		for _, clients := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/clients=%d", s.name, clients), func(b *testing.B) {
				server := httptest.NewServer(s.open(b))
				transport := &http.Transport{MaxIdleConnsPerHost: clients}
				b.Cleanup(func() { transport.CloseIdleConnections(); server.Close() })
				client := &http.Client{Transport: transport}
				b.ReportAllocs()
				send := func() {
					if err := post(client, server.URL+"/a2a"); err != nil {
						b.Error(err)
					}
				}
				if clients == 1 {
					for b.Loop() {
						send()
					}
					return
				}
				b.SetParallelism(max(1, clients/2)) // times GOMAXPROCS
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						send()
					}
				})
			})
		}
	}
}

func post(client *http.Client, url string) error {
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"` + a2a.NewMessageID() + `","role":"ROLE_USER","parts":[{"text":"hello"}]}}}`)
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("A2A-Version", "1.0")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if !bytes.Contains(answer, []byte("TASK_STATE_COMPLETED")) {
		return fmt.Errorf("not completed: %s", answer)
	}
	return nil
}
