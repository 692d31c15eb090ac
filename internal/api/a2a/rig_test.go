package a2a_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"go.uber.org/goleak"

	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/push"
	"github.com/parleyhub/parley/internal/hub/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted is an agent in this process whose behavior is the prompt's first word. It
// answers any other prompt with the prompt.
type scripted struct{ gate chan struct{} }

func (scripted) Probe(context.Context) runner.Probe {
	return runner.Probe{Stage: runner.StageAuthenticated, Version: "1.2.3"}
}

func (s scripted) Open(runner.SessionSpec) (runner.Session, error) { return s, nil }

func (scripted) Close(context.Context) error { return nil }

func (s scripted) Turn(ctx context.Context, t runner.Turn, h runner.Handler) (runner.Outcome, error) {
	text := t.Parts[0].Text()
	word, _, _ := strings.Cut(text, " ")
	switch word {
	case "ask":
		return runner.Outcome{Status: runner.OutcomeInputRequired, Text: "Which one?"}, nil
	case "login":
		return runner.Outcome{Status: runner.OutcomeAuthRequired}, &runner.Error{Code: runner.CodeAuth, Message: "no credentials", Remedy: "log in"}
	case "fail":
		return runner.Outcome{Status: runner.OutcomeFailed}, &runner.Error{Code: runner.CodeAgent, Message: "it broke"}
	case "file":
		part := a2a.NewRawPart([]byte("content"))
		part.Filename, part.MediaType = "a.txt", "text/plain"
		h.Event(runner.Artifact{ID: "f", Name: "file", Parts: []*a2a.Part{part}, Last: true})
		return runner.Outcome{Status: runner.OutcomeCompleted}, nil
	case "wait": // until the test sends to gate
		select {
		case <-ctx.Done():
			return runner.Outcome{Status: runner.OutcomeCanceled}, nil
		case <-s.gate:
		}
	}
	h.Event(runner.TextDelta{Text: text})
	return runner.Outcome{Status: runner.OutcomeCompleted, Text: text}, nil
}

// rig is a hub with the agents "one" and "two", and its server.
type rig struct {
	t    testing.TB
	hub  *hub.Hub
	push *push.Service
	a2a  *a2aserver.Server
	http *httptest.Server
	gate chan struct{} // each value lets one "wait" continue
}

func newRig(t testing.TB, change ...func(*a2aserver.Options)) *rig {
	t.Helper()
	r := &rig{t: t, gate: make(chan struct{})}
	quiet := slog.New(slog.DiscardHandler)
	agent := func(id string, skills ...runner.Skill) hub.Agent {
		return hub.Agent{
			Definition: runner.Definition{ID: id, Name: "Agent " + id, Description: "For tests.", Driver: runner.DriverEcho, Skills: skills, Limits: runner.Limits{Concurrency: 8, Queue: 8}},
			Runner:     scripted{r.gate},
		}
	}
	var err error
	r.hub, err = hub.New(t.Context(), hub.Config{Version: "9.9.9", Agents: []hub.Agent{
		agent("one", runner.Skill{ID: "go", Name: "Go", Description: "Writes Go.", Tags: []string{"code"}}), agent("two"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	r.push, err = push.Open(t.Context(), push.Options{Tasks: r.hub, AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	r.hub.OnTurn(r.push.TurnStarted)
	opts := a2aserver.Options{Hub: r.hub, Push: r.push, Version: "9.9.9", Logger: quiet}
	for _, f := range change {
		f(&opts)
	}
	r.a2a = a2aserver.New(opts)
	mux := http.NewServeMux()
	r.a2a.Mount(mux.Handle)
	r.http = httptest.NewServer(mux)
	t.Cleanup(func() {
		r.http.Close()
		if err := r.hub.Close(context.Background()); err != nil {
			t.Error(err)
		}
		r.push.Close()
	})
	return r
}

// answer is an HTTP response with its body.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (r *rig) do(method, path, body string, header ...string) answer {
	r.t.Helper()
	req, err := http.NewRequest(method, r.http.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, raw}
}

// rpc is a JSON-RPC response.
type rpc struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    []struct {
			Type            string `json:"@type"`
			Reason          string `json:"reason"`
			Domain          string `json:"domain"`
			FieldViolations []struct{ Field string }
		} `json:"data"`
	} `json:"error"`
}

func (a answer) rpc(t testing.TB) rpc {
	t.Helper()
	var out rpc
	if err := json.Unmarshal(a.body, &out); err != nil {
		t.Fatalf("not JSON-RPC (HTTP %d): %q", a.status, a.body)
	}
	return out
}

func (r *rig) call(path, method string, params any, header ...string) rpc {
	r.t.Helper()
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.do(http.MethodPost, path, string(body), header...).rpc(r.t)
}

// events returns the data of the events of an SSE response.
func (a answer) events(t testing.TB) [][]byte {
	t.Helper()
	if ct := a.header.Get("Content-Type"); ct != "text/event-stream" {
		t.Fatalf("Content-Type %q, body %s", ct, a.body)
	}
	var out [][]byte
	for line := range bytes.Lines(a.body) {
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			out = append(out, bytes.TrimSpace(data))
		}
	}
	return out
}

// message10 returns the params of SendMessage.
func message10(text string, more ...func(m map[string]any)) map[string]any {
	m := map[string]any{"messageId": a2a.NewMessageID(), "role": "ROLE_USER", "parts": []any{map[string]any{"text": text}}}
	for _, f := range more {
		f(m)
	}
	return map[string]any{"message": m}
}

func onTask(id a2a.TaskID) func(map[string]any) { return func(m map[string]any) { m["taskId"] = id } }

// message03 returns the params of message/send.
func message03(text string) map[string]any {
	return map[string]any{"message": map[string]any{
		"kind": "message", "messageId": a2a.NewMessageID(), "role": "user",
		"parts": []any{map[string]any{"kind": "text", "text": text}},
	}}
}

// task sends a message to agent one and returns the task.
func (r *rig) task(text string) *a2a.Task {
	r.t.Helper()
	return r.taskOf("one", text)
}

func (r *rig) taskOf(agent, text string) *a2a.Task {
	r.t.Helper()
	req := hub.SendRequest{AgentID: agent, Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))}
	send := r.hub.SendAndWait
	if strings.HasPrefix(text, "wait") {
		send = r.hub.Send
	}
	task, err := send(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return task
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}
