package sessions_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	a2agrpc10 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/senders"
)

// wiresToken lets a client of another computer in.
const wiresToken = "secret"

// wires are the hub's interfaces for clients, as the daemon has them.
type wires struct {
	t       testing.TB
	handler http.Handler
	grpc    a2aclient.Transport
}

func (o *office) wires() *wires {
	o.t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	cards := &dialect.Directory{Agents: o.hub, Version: "1", BaseURL: func() string { return "" }}
	service := dialect.New(dialect.Config{Hub: dialect.OnHub(o.hub), Cards: cards})
	s, err := server.New(server.Config{HTTP: "127.0.0.1:0", HTTPHandler: service, Cards: cards, Health: service.Health, Log: quiet, Token: wiresToken})
	if err != nil {
		o.t.Fatal(err)
	}
	bindings := a2aserver.New(a2aserver.Options{Hub: o.hub, Logger: quiet})
	bindings.Mount(s.Mount)
	listener, err := (&net.ListenConfig{}).Listen(o.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		o.t.Fatal(err)
	}
	g := bindings.NewGRPC(a2aserver.GRPCOptions{})
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() {
		err := conn.Close()
		g.Stop()
		if err := <-served; err != nil {
			o.t.Error(err)
		}
		if err != nil {
			o.t.Error(err)
		}
	})
	return &wires{o.t, s.Handler(), a2agrpc10.NewGRPCTransport(conn)}
}

// post calls a method as a client at 192.0.2.7.
func (w *wires) post(path, version, method string, params any) (result a2aTask, failure string) {
	w.t.Helper()
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		w.t.Fatal(err)
	}
	rec := w.send(http.MethodPost, path, version, body)
	var response struct {
		Result json.RawMessage
		Error  *struct{ Message string }
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &response); err != nil {
		w.t.Fatalf("%v: %s", err, rec.Body)
	}
	if response.Error != nil {
		return a2aTask{}, response.Error.Message
	}
	var wrapped struct{ Task *a2aTask }
	if err := json.Unmarshal(response.Result, &wrapped); err == nil && wrapped.Task != nil {
		return *wrapped.Task, ""
	}
	if err := json.Unmarshal(response.Result, &result); err != nil {
		w.t.Fatal(err)
	}
	return result, ""
}

// send sends a request as a client at 192.0.2.7.
func (w *wires) send(method, path, version string, body []byte) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, "http://127.0.0.1"+path, bytes.NewReader(body))
	req.RemoteAddr = "192.0.2.7:4711"
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("A2a-Version", version)
	req.Header.Set("Authorization", "Bearer "+wiresToken)
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, req)
	return rec
}

func (w *wires) get(path string) string {
	return w.send(http.MethodGet, path, "", nil).Body.String()
}

func (w *wires) call(body string) string {
	return w.send(http.MethodPost, "/", "", []byte(body)).Body.String()
}

type a2aTask struct {
	ID     a2a.TaskID
	Status struct{ State string }
}

func TestEveryWayOfAskingWaitsForTheUser(t *testing.T) {
	t.Parallel()
	o, a := policyOffice(t, asks)
	w := o.wires()
	v10 := func(task a2a.TaskID, words string) (a2aTask, string) {
		m := map[string]any{"messageId": a2a.NewMessageID(), "role": "ROLE_USER", "parts": []any{map[string]any{"text": words}}}
		if task != "" {
			m["taskId"] = task
		}
		return w.post("/agents/reviewer/a2a", "1.0", "SendMessage", map[string]any{"message": m})
	}
	old := func(path string) func(a2a.TaskID, string) (a2aTask, string) {
		return func(task a2a.TaskID, words string) (a2aTask, string) {
			m := map[string]any{"kind": "message", "messageId": a2a.NewMessageID(), "role": "user",
				"parts": []any{map[string]any{"kind": "text", "text": words}}, "metadata": map[string]any{"targetAgent": "reviewer"}}
			if task != "" {
				m["taskId"] = task
			}
			return w.post(path, "", "message/send", map[string]any{"message": m})
		}
	}
	overGRPC := func(task a2a.TaskID, words string) (out a2aTask, failure string) {
		m := message(words)
		m.TaskID, m.Metadata = task, map[string]any{hub.MetaTargetAgent: "reviewer"}
		result, err := w.grpc.SendMessage(metadata.AppendToOutgoingContext(context.Background(), "x-forwarded-for", "192.0.2.7"), nil, &a2a.SendMessageRequest{Message: m})
		if err != nil {
			return out, err.Error()
		}
		got := result.(*a2a.Task)
		out.ID, out.Status.State = got.ID, string(got.Status.State)
		return out, ""
	}
	for name, send := range map[string]func(a2a.TaskID, string) (a2aTask, string){
		"1.0": v10, "0.3": old("/agents/reviewer/a2a"), "gRPC": overGRPC, "dialect": old("/"),
	} {
		task, failure := send("", "from "+name)
		if state := strings.ToLower(strings.NewReplacer("TASK_STATE_", "", "_", "-").Replace(task.Status.State)); failure != "" || state != "auth-required" {
			t.Fatalf("%s: %+v, %s", name, task, failure)
		}
		if s := hub.SenderOf(o.task(task.ID).Metadata); s.Kind != hub.SenderA2A {
			t.Errorf("%s: the sender is %s", name, s)
		}
		for _, words := range []string{"allow", "always", "yes"} {
			if _, failure := send(task.ID, words); !strings.Contains(failure, "nobody else can answer") {
				t.Errorf("%s: the sender answers: %q", name, failure)
			}
		}
		o.answer(task.ID, "allow")
		if m := o.read(a); !strings.HasSuffix(m.Text, "from "+name) {
			t.Errorf("%s: the session reads %q", name, m.Text)
		}
		if err := a.AnswerTask(t.Context(), answerTo(task.ID, "done")); err != nil {
			t.Fatal(err)
		}
		if end := o.task(task.ID); end.Status.State != a2a.TaskStateCompleted {
			t.Errorf("%s: the task is %+v", name, end.Status)
		}
	}
}

// A session that is not public is in no list and on no card that a client of another computer reads.
func TestClientsOfOtherComputersSeePublicSessionsOnly(t *testing.T) {
	t.Parallel()
	o, _ := policyOffice(t, asks)
	o.session(registry.Registration{Handle: "secret", AgentType: "second", Visibility: store.UserOnly})
	w := o.wires()
	list := `{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}`
	for name, got := range map[string]string{
		"hub's card": w.get("/.well-known/agent-card.json"), "cards": w.get("/.well-known/agents"),
		"list": w.call(fmt.Sprintf(list, "hub/agents/list", "{}")),
	} {
		if !strings.Contains(got, "reviewer") || strings.Contains(got, "secret") {
			t.Errorf("%s: %s", name, got)
		}
	}
	for name, got := range map[string]string{
		"card": w.get("/agents/secret/a2a/.well-known/agent-card.json"), "document": w.get("/.well-known/agents/secret.json"),
		"get":    w.call(fmt.Sprintf(list, "hub/agents/get", `{"agentId":"secret"}`)),
		"health": w.call(fmt.Sprintf(list, "hub/agents/health", `{"agentId":"secret"}`)),
	} {
		if !strings.Contains(got, "there is no agent") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if all := o.hub.AgentsFor(t.Context()); len(all) < 2 {
		t.Errorf("the user sees %d agents", len(all))
	}
}

// What a session reports arrives at streaming clients of both versions in its order, each report once, before the end.
func TestProgressStreamsToClientsOfBothVersions(t *testing.T) {
	t.Parallel()
	o, a := policyOffice(t, senders.Policy{Outside: senders.Allow})
	w := o.wires()
	const reports = 40
	for _, c := range []struct {
		version, method, role string
		part                  map[string]any
	}{
		{"1.0", "SendStreamingMessage", "ROLE_USER", map[string]any{"text": "count"}},
		{"", "message/stream", "user", map[string]any{"kind": "text", "text": "count"}},
	} {
		body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": c.method, "params": map[string]any{
			"message": map[string]any{"kind": "message", "messageId": a2a.NewMessageID(), "role": c.role, "parts": []any{c.part}}}})
		if err != nil {
			t.Fatal(err)
		}
		if c.version != "" {
			body = bytes.Replace(body, []byte(`"kind":"message",`), nil, 1)
		}
		streamed := make(chan string, 1)
		go func() { streamed <- w.send(http.MethodPost, "/agents/reviewer/a2a", c.version, body).Body.String() }()
		m := o.read(a)
		var about struct{ TaskID string }
		if err := json.Unmarshal(m.Metadata, &about); err != nil {
			t.Fatal(err)
		}
		id := a2a.TaskID(about.TaskID)
		for n := range reports {
			if err := a.ReportProgress(t.Context(), assignment.Progress{TaskID: string(id), Text: fmt.Sprintf("step %d.", n)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.AnswerTask(t.Context(), answerTo(id, "the answer")); err != nil {
			t.Fatal(err)
		}
		rest := <-streamed
		for n := range reports {
			before, after, found := strings.Cut(rest, fmt.Sprintf("step %d.", n))
			if !found || strings.Contains(after, fmt.Sprintf("step %d.", n)) || strings.Contains(before, "the answer") {
				t.Fatalf("%s: report %d is missing, comes twice, late or out of order: %s", c.method, n, rest)
			}
			rest = after
		}
		if _, end, found := strings.Cut(rest, "the answer"); !found || !strings.Contains(strings.ToLower(end), "completed") {
			t.Errorf("%s: it ends with %s", c.method, rest)
		}
	}
}
