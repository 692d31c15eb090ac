package conformance_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/parleyhub/parley/internal/api/conformance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newSuite(t *testing.T) (*conformance.Suite, *a2aclient.Client) {
	t.Helper()
	s, err := conformance.New(t.Context(), conformance.Options{DataDir: t.TempDir(), StreamingTimeout: time.Millisecond, Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Handler())
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	c, err := a2aclient.NewFromEndpoints(t.Context(), []*a2a.AgentInterface{a2a.NewAgentInterface(server.URL+"/a2a", a2a.TransportProtocolJSONRPC)},
		a2aclient.WithJSONRPCTransport(&http.Client{Transport: transport}))
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

func request(id string) *a2a.SendMessageRequest {
	m := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("TCK"))
	m.ID = id
	return &a2a.SendMessageRequest{Message: m}
}

// Each case is one of the kit's scenarios/*.feature.
func TestScenariosOfTheA2AKit(t *testing.T) {
	_, c := newSuite(t)
	tests := []struct {
		id       string
		state    a2a.TaskState
		contains string // in the JSON of the task
	}{
		{"tck-complete-task-1", a2a.TaskStateCompleted, `"text":"Hello from TCK"`},
		{"tck-artifact-text-1", a2a.TaskStateCompleted, `"text":"Generated text content"`},
		{"tck-artifact-file-1", a2a.TaskStateCompleted, `"filename":"output.txt","mediaType":"text/plain"`},
		{"tck-artifact-file-url-1", a2a.TaskStateCompleted, `"url":"https://example.com/output.txt"`},
		{"tck-artifact-data-1", a2a.TaskStateCompleted, `"data":{"count":42,"key":"value"}`},
		{"tck-input-required-1", a2a.TaskStateInputRequired, ``},
		{"tck-reject-task-1", a2a.TaskStateRejected, `rejected`},
		{"tck-stream-001-1", a2a.TaskStateCompleted, `Stream hello from TCK`},
		{"tck-stream-002-1", a2a.TaskStateCompleted, ``},
		{"tck-stream-003-1", a2a.TaskStateCompleted, `Stream task lifecycle`},
		{"tck-stream-ordering-001-1", a2a.TaskStateCompleted, `Ordered output`},
		{"tck-stream-artifact-text-1", a2a.TaskStateCompleted, `Streamed text content`},
		{"tck-stream-artifact-file-1", a2a.TaskStateCompleted, `output.txt`},
		{"tck-stream-artifact-chunked-1", a2a.TaskStateCompleted, `{"text":"chunk-1 "},{"text":"chunk-2"}`},
		{"test-resubscribe-message-id-1", a2a.TaskStateCompleted, ``},
		{"any-other", a2a.TaskStateInputRequired, ``},
	}
	for _, tt := range tests {
		t.Run(tt.id, func(t *testing.T) {
			result, err := c.SendMessage(t.Context(), request(tt.id))
			if err != nil {
				t.Fatal(err)
			}
			task, err := c.GetTask(t.Context(), &a2a.GetTaskRequest{ID: result.TaskInfo().TaskID})
			if err != nil || task.Status.State != tt.state {
				t.Fatalf("%+v %v", task, err)
			}
			if body, err := json.Marshal(task); err != nil || !strings.Contains(string(body), tt.contains) {
				t.Errorf("%s is not in %s", tt.contains, body)
			}
		})
	}
}

func TestChunksAreStreamedOneByOne(t *testing.T) {
	_, c := newSuite(t)
	var chunks []*a2a.TaskArtifactUpdateEvent
	for event, err := range c.SendStreamingMessage(t.Context(), request("tck-stream-artifact-chunked-1")) {
		if err != nil {
			t.Fatal(err)
		}
		if chunk, ok := event.(*a2a.TaskArtifactUpdateEvent); ok {
			chunks = append(chunks, chunk)
		}
	}
	if len(chunks) != 2 || chunks[0].Append || !chunks[1].Append || !chunks[1].LastChunk {
		t.Errorf("chunks %+v", chunks)
	}
}

func TestMessageIsAnsweredWithAMessage(t *testing.T) {
	_, c := newSuite(t)
	result, err := c.SendMessage(t.Context(), request("tck-message-response-1"))
	if m, ok := result.(*a2a.Message); !ok || err != nil || m.Parts[0].Text() != "Direct message response" {
		t.Fatalf("%+v %v", result, err)
	}
	n := 0
	for event, err := range c.SendStreamingMessage(t.Context(), request("tck-message-response-1")) {
		if _, ok := event.(*a2a.Message); !ok || err != nil {
			t.Errorf("%+v %v", event, err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d events", n)
	}
}

func TestHeldTaskCanBeCanceled(t *testing.T) {
	s, err := conformance.New(t.Context(), conformance.Options{DataDir: t.TempDir(), StreamingTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := s.GRPC()
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	transport := a2agrpc.NewGRPCTransport(conn)
	req := request("test-resubscribe-message-id-1")
	req.Config = &a2a.SendMessageConfig{ReturnImmediately: true}
	result, err := transport.SendMessage(t.Context(), nil, req)
	if err != nil {
		t.Fatal(err)
	}
	task, err := transport.CancelTask(t.Context(), nil, &a2a.CancelTaskRequest{ID: result.TaskInfo().TaskID})
	if err != nil || task.Status.State != a2a.TaskStateCanceled {
		t.Errorf("%+v %v", task, err)
	}
}

func TestNewNeedsADirectory(t *testing.T) {
	if _, err := conformance.New(t.Context(), conformance.Options{}); err == nil {
		t.Error("New accepted a suite without a directory")
	}
}
