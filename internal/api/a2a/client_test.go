package a2a_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	a2agrpc03 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	a2agrpc10 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
	"github.com/parleyhub/parley/internal/base/budget"
	"github.com/parleyhub/parley/internal/base/caller"
)

// serveGRPC serves a rig's gRPC server until the test ends.
func (r *rig) serveGRPC(opts a2aserver.GRPCOptions) *grpc.ClientConn {
	r.t.Helper()
	l := listen(r.t)
	server := r.a2a.NewGRPC(opts)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	return conn
}

// Uses the SDK's client over every binding of both versions.
func TestSDKClientOverEveryBinding(t *testing.T) {
	r := newRig(t, func(o *a2aserver.Options) { o.DefaultAgent = "one" })
	conn := r.serveGRPC(a2aserver.GRPCOptions{})
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)

	factories := []a2aclient.FactoryOption{
		a2aclient.WithJSONRPCTransport(client),
		a2aclient.WithRESTTransport(client),
		a2aclient.WithTransport(a2a.TransportProtocolGRPC, a2aclient.TransportFactoryFn(
			func(context.Context, *a2a.AgentCard, *a2a.AgentInterface) (a2aclient.Transport, error) {
				return a2agrpc10.NewGRPCTransport(conn), nil
			})),
		a2av0.WithJSONRPCTransport(a2av0.JSONRPCTransportConfig{Client: client}),
		a2av0.WithRESTTransport(a2av0.RESTTransportConfig{Client: client}),
		a2aclient.WithCompatTransport(a2av0.Version, a2a.TransportProtocolGRPC, a2aclient.TransportFactoryFn(
			func(context.Context, *a2a.AgentCard, *a2a.AgentInterface) (a2aclient.Transport, error) {
				return a2agrpc03.NewGRPCTransport(conn), nil
			})),
	}
	for _, version := range []a2a.ProtocolVersion{a2a.Version, a2av0.Version} {
		for _, binding := range []a2a.TransportProtocol{a2a.TransportProtocolJSONRPC, a2a.TransportProtocolHTTPJSON, a2a.TransportProtocolGRPC} {
			t.Run(fmt.Sprintf("%s %s", version, binding), func(t *testing.T) {
				url := r.http.URL + one
				if binding == a2a.TransportProtocolGRPC {
					url = conn.Target()
				}
				c, err := a2aclient.NewFromEndpoints(t.Context(), []*a2a.AgentInterface{{URL: url, ProtocolBinding: binding, ProtocolVersion: version}},
					append([]a2aclient.FactoryOption{a2aclient.WithDefaultsDisabled()}, factories...)...)
				if err != nil {
					t.Fatal(err)
				}
				exercise(t, c, version, binding)
			})
		}
	}
}

func exercise(t *testing.T, c *a2aclient.Client, version a2a.ProtocolVersion, binding a2a.TransportProtocol) {
	ctx := t.Context()
	say := func(text string) *a2a.SendMessageRequest {
		return &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))}
	}
	result, err := c.SendMessage(ctx, say("hello"))
	if err != nil {
		t.Fatal(err)
	}
	task, ok := result.(*a2a.Task)
	if !ok || task.Status.State != a2a.TaskStateCompleted {
		t.Fatalf("send: %+v", result)
	}
	if got, err := c.GetTask(ctx, &a2a.GetTaskRequest{ID: task.ID}); err != nil || got.ID != task.ID || len(got.History) != 2 {
		t.Errorf("get: %+v %v", got, err)
	}
	var last a2a.Event
	for event, err := range c.SendStreamingMessage(ctx, say("file")) {
		if err != nil {
			t.Fatal(err)
		}
		if last == nil {
			if _, isTask := event.(*a2a.Task); !isTask {
				t.Errorf("the first event is a %T", event)
			}
		}
		last = event
	}
	if end, ok := last.(*a2a.TaskStatusUpdateEvent); !ok || end.Status.State != a2a.TaskStateCompleted {
		t.Errorf("the last event is %+v", last)
	}
	for _, err := range c.SubscribeToTask(ctx, &a2a.SubscribeToTaskRequest{ID: task.ID}) {
		if !errors.Is(err, a2a.ErrUnsupportedOperation) {
			t.Errorf("subscription to an ended task: %v", err)
		}
	}
	if _, err := c.GetTask(ctx, &a2a.GetTaskRequest{ID: "none"}); !errors.Is(err, a2a.ErrTaskNotFound) {
		t.Errorf("unknown task: %v", err)
	}
	if _, err := c.CancelTask(ctx, &a2a.CancelTaskRequest{ID: task.ID}); !errors.Is(err, a2a.ErrTaskNotCancelable) {
		t.Errorf("cancel of an ended task: %v", err)
	}
	open := say("ask")
	open.Config = &a2a.SendMessageConfig{HistoryLength: new(int)}
	result, err = c.SendMessage(ctx, open)
	if err != nil {
		t.Fatal(err)
	}
	ask := result.(*a2a.Task)
	if ask.Status.State != a2a.TaskStateInputRequired {
		t.Errorf("ask: %+v", ask)
	}
	// The proto of 0.3, which its REST and gRPC use, cannot distinguish 0 from no value.
	if zero := version == a2a.Version || binding == a2a.TransportProtocolJSONRPC; zero && len(ask.History) != 0 {
		t.Errorf("a history of length 0 has %d messages", len(ask.History))
	}
	if got, err := c.CancelTask(ctx, &a2a.CancelTaskRequest{ID: result.TaskInfo().TaskID}); err != nil || got.Status.State != a2a.TaskStateCanceled {
		t.Errorf("cancel: %+v %v", got, err)
	}
	exercisePush(t, c, task.ID)
	// Only 1.0 has a method to list tasks in every binding.
	if version == a2a.Version {
		page, err := c.ListTasks(ctx, &a2a.ListTasksRequest{PageSize: 2})
		if err != nil || len(page.Tasks) != 2 || page.NextPageToken == "" {
			t.Errorf("list: %+v %v", page, err)
		}
	}
}

func exercisePush(t *testing.T, c *a2aclient.Client, task a2a.TaskID) {
	ctx := t.Context()
	config := &a2a.PushConfig{TaskID: task, ID: "hook", URL: "https://example.com/hook", Token: "t"}
	if got, err := c.CreateTaskPushConfig(ctx, config); err != nil || got.ID != "hook" || got.TaskID != task {
		t.Errorf("create config: %+v %v", got, err)
	}
	if got, err := c.GetTaskPushConfig(ctx, &a2a.GetTaskPushConfigRequest{TaskID: task, ID: "hook"}); err != nil || got.URL != config.URL || got.Token != "t" {
		t.Errorf("get config: %+v %v", got, err)
	}
	if got, err := c.ListTaskPushConfigs(ctx, &a2a.ListTaskPushConfigRequest{TaskID: task}); err != nil || len(got) != 1 {
		t.Errorf("list configs: %+v %v", got, err)
	}
	if err := c.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigRequest{TaskID: task, ID: "hook"}); err != nil {
		t.Errorf("delete config: %v", err)
	}
	if _, err := c.GetTaskPushConfig(ctx, &a2a.GetTaskPushConfigRequest{TaskID: task, ID: "hook"}); err == nil {
		t.Error("the configuration still exists")
	}
}

func TestSDKClientFindsTheAgentByItsCard(t *testing.T) {
	r := newRig(t)
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	for name, parser := range map[string]agentcard.Parser{"1.0": agentcard.DefaultCardParser, "0.3": a2av0.NewAgentCardParser()} {
		card, err := (&agentcard.Resolver{Client: client, CardParser: parser}).Resolve(t.Context(), r.http.URL+one)
		if err != nil {
			t.Fatal(err)
		}
		c, err := a2aclient.NewFromCard(t.Context(), card, a2aclient.WithJSONRPCTransport(client), a2av0.WithJSONRPCTransport(a2av0.JSONRPCTransportConfig{Client: client}))
		if err != nil {
			t.Fatal(err)
		}
		if result, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("hello"))}); err != nil {
			t.Errorf("%s: %+v %v", name, result, err)
		}
	}
}

// The SDK's clients of both versions read the cards for both, also if these say that a token is needed.
func TestSDKClientsReadTheUnionCard(t *testing.T) {
	for _, token := range []bool{false, true} {
		r := newRig(t, func(o *a2aserver.Options) { o.TokenRequired = token })
		client := &http.Client{Transport: &http.Transport{}}
		t.Cleanup(client.CloseIdleConnections)
		for name, parser := range map[string]agentcard.Parser{"1.0": agentcard.DefaultCardParser, "0.3": a2av0.NewAgentCardParser()} {
			for _, address := range []string{r.http.URL, r.http.URL + "/agents/one"} {
				card, err := (&agentcard.Resolver{Client: client, CardParser: parser}).Resolve(t.Context(), address)
				if err != nil {
					t.Errorf("%s at %s: %v", name, address, err)
				} else if scheme, ok := card.SecuritySchemes["bearer"].(a2a.HTTPAuthSecurityScheme); ok != token || token && scheme.Scheme != "bearer" {
					t.Errorf("%s at %s: %+v", name, address, card.SecuritySchemes)
				}
			}
		}
	}
}

func TestGRPCChecksTokenAndVersion(t *testing.T) {
	r := newRig(t, func(o *a2aserver.Options) { o.TokenRequired = true; o.GRPCAddress = "127.0.0.1:9" })
	conn := r.serveGRPC(a2aserver.GRPCOptions{Authorize: func(_ caller.Caller, token string) bool { return token == "secret" }})
	get := func(path string, md ...string) error {
		ctx := metadata.AppendToOutgoingContext(t.Context(), md...)
		transport := a2agrpc10.NewGRPCTransport(conn)
		_, err := transport.GetTask(ctx, nil, &a2a.GetTaskRequest{ID: "none"})
		for _, e := range transport.SubscribeToTask(ctx, nil, &a2a.SubscribeToTaskRequest{ID: "none"}) {
			if (e == nil) != (err == nil) || !errors.Is(e, errors.Unwrap(err)) {
				t.Errorf("%s: unary call: %v, stream: %v", path, err, e)
			}
		}
		return err
	}
	for _, md := range [][]string{nil, {"authorization", "secret"}, {"authorization", "Bearer wrong"}, {"authorization", "Basic secret"}, {"authorization", "Bearer secret", "authorization", "Bearer secret"}} {
		if err := get("token", md...); !errors.Is(err, a2a.ErrUnauthenticated) {
			t.Errorf("%v: %v", md, err)
		}
	}
	if err := get("token", "authorization", "bearer secret"); !errors.Is(err, a2a.ErrTaskNotFound) {
		t.Errorf("right token: %v", err)
	}
	for version, want := range map[string]error{"1.0": a2a.ErrTaskNotFound, "9.0": a2a.ErrVersionNotSupported, "0.3": a2a.ErrVersionNotSupported} {
		if err := get("version", "authorization", "Bearer secret", "a2a-version", version); !errors.Is(err, want) {
			t.Errorf("version %s: %v", version, err)
		}
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer secret")
	card, err := a2agrpc10.NewGRPCTransport(conn).GetExtendedAgentCard(ctx, nil, &a2a.GetExtendedAgentCardRequest{Tenant: "one"})
	if err != nil || card.Name != "Agent one" {
		t.Errorf("extended card: %+v %v", card, err)
	}
}

func TestGRPCSurvivesAPanic(t *testing.T) {
	r := newRig(t, func(o *a2aserver.Options) { o.Wrap = panicking })
	conn := r.serveGRPC(a2aserver.GRPCOptions{})
	transport := a2agrpc10.NewGRPCTransport(conn)
	if _, err := transport.GetTask(t.Context(), nil, &a2a.GetTaskRequest{ID: "x"}); !errors.Is(err, a2a.ErrInternalError) || status.Code(err) == codes.Unavailable {
		t.Errorf("got %v", err)
	}
}

// Large calls of gRPC share memory with the other interfaces.
func TestLargeCallsOfGRPCShareMemory(t *testing.T) {
	r := newRig(t)
	memory := budget.New(1<<20, time.Millisecond)
	all, err := memory.Acquire(t.Context(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	transport := a2agrpc10.NewGRPCTransport(r.serveGRPC(a2aserver.GRPCOptions{Memory: memory}))
	send := func(size int) error {
		message := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(strings.Repeat("x", size)))
		_, err := transport.SendMessage(t.Context(), nil, &a2a.SendMessageRequest{Tenant: "one", Message: message})
		return err
	}
	stream := func(size int) (err error) {
		message := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(strings.Repeat("x", size)))
		for _, err = range transport.SendStreamingMessage(t.Context(), nil, &a2a.SendMessageRequest{Tenant: "one", Message: message}) {
			if err != nil {
				return err
			}
		}
		return nil
	}
	for name, call := range map[string]func(int) error{"unary": send, "stream": stream} {
		if err := call(100); err != nil {
			t.Errorf("%s, small: %v", name, err)
		}
		if err := call(100_000); err == nil || !strings.Contains(err.Error(), "too many large requests") {
			t.Errorf("%s, large, without memory: %v", name, err)
		}
	}
	all.Release()
	for name, call := range map[string]func(int) error{"unary": send, "stream": stream} {
		if err := call(100_000); err != nil {
			t.Errorf("%s, large: %v", name, err)
		}
	}
	if all, err = memory.Acquire(t.Context(), 1<<20); err != nil {
		t.Errorf("calls keep memory: %v", err)
	}
	all.Release()
}
