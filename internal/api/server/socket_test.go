package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
)

func TestSocketIsPrivateToItsUser(t *testing.T) {
	r := start(t)
	info, err := os.Lstat(r.socket)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 || info.Mode()&os.ModeSocket == 0 {
		t.Errorf("mode %v", info.Mode())
	}
}

// HUB-SOCKET-NDJSON.
func TestSocketAnswersAsRequestsComplete(t *testing.T) {
	r := start(t)
	c := r.dial(t)
	c.write(rpc(1, "message/send", sendParams("wait")), rpc(2, "hub/status", `{}`), rpc(3, "message/send", sendParams("hello")))
	for range 2 {
		if line := c.read(); !strings.HasSuffix(line, `"id":2}`) && !strings.HasSuffix(line, `"id":3}`) {
			t.Errorf("request 1 did not wait: %s", line)
		}
	}
	r.agent.free()
	want(t, c.read(), "1 ok")
}

func TestSocketDoesNotAnswerNotifications(t *testing.T) {
	r := start(t)
	c := r.dial(t)
	c.write(
		`{"jsonrpc":"2.0","method":"hub/status"}`, ``, "  \t\r",
		`[{"jsonrpc":"2.0","method":"hub/status"}]`,
		`[`+rpc(1, "hub/status", `{}`)+`,{"jsonrpc":"2.0","method":"x"},`+rpc(2, "nope", `{}`)+`]`)
	var batch []json.RawMessage
	if err := json.Unmarshal([]byte(c.read()), &batch); err != nil || len(batch) != 2 {
		t.Fatalf("%v %s", err, batch)
	}
	want(t, string(batch[0]), "1 ok")
	want(t, string(batch[1]), "2 -32601 METHOD_NOT_FOUND")
}

func TestSocketStreamsNotificationsAndOneResponse(t *testing.T) {
	r := start(t)
	c := r.dial(t)
	c.write(`{"jsonrpc":"2.0","id":"s-1","method":"message/stream","params":` + sendParams("hello") + `}`)
	var events []dialect.Event
	for {
		var line struct {
			Method string
			Params dialect.StreamEvent
			Result *dialect.Task
			ID     json.RawMessage
		}
		text := c.read()
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if line.Method == "" {
			if string(line.ID) != `"s-1"` || line.Result == nil || line.Result.Text() != "hello" || line.Result.Status.State != dialect.StateCompleted {
				t.Errorf("response %s", text)
			}
			break
		}
		if line.Method != "stream/event" || string(line.Params.ID) != `"s-1"` || line.ID != nil {
			t.Errorf("event %s", text)
		}
		events = append(events, line.Params.Event)
	}
	last := events[len(events)-1]
	if events[0].Task == nil || last.Status == nil || !last.Status.Final {
		t.Errorf("%d events, the last %+v", len(events), last)
	}
	c.write(rpc(2, "hub/status", `{}`)) // s-1 must have no further lines
	want(t, c.read(), "2 ok")
}

func TestSocketSkipsALineThatIsTooLong(t *testing.T) {
	r := start(t, limits(server.Limits{Message: 100_000}))
	c := r.dial(t)
	for i := range 3 {
		c.write(`{"jsonrpc":"2.0","id":1,"x":"`+strings.Repeat("y", 100_000*(i+1))+`"}`, rpc(2, "hub/status", `{}`))
		first, second := c.read(), c.read()
		if strings.HasSuffix(first, `"id":2}`) {
			first, second = second, first
		}
		want(t, first, "null -32600 INVALID_REQUEST")
		want(t, second, "2 ok")
	}
	exact := rpc(3, "hub/status", `{}`)
	c.write(exact[:len(exact)-1] + strings.Repeat(" ", 100_000-len(exact)) + "}")
	want(t, c.read(), "3 ok")
}

func TestSocketRefusesInvalidRequests(t *testing.T) {
	r := start(t)
	c := r.dial(t)
	for line, verdict := range map[string]string{
		"\xff\xfe":                                  "null -32700 PARSE_ERROR",
		`{"jsonrpc":"2.0","id":1,"method":"a`:       "null -32700 PARSE_ERROR",
		`GET / HTTP/1.1`:                            "null -32700 PARSE_ERROR",
		`null`:                                      "null -32600 INVALID_REQUEST",
		`[]`:                                        "null -32600 INVALID_REQUEST",
		`{"jsonrpc":"2.0","id":{},"method":"a"}`:    "null -32600 INVALID_REQUEST",
		`{"jsonrpc":"2.0","id":1}`:                  "1 -32600 INVALID_REQUEST",
		rpc(4, "message/send", `{}`):                "4 -32602 INVALID_PARAMS",
		rpc(5, "hub/shutdown", `{}`):                "5 -32601 METHOD_NOT_FOUND",
		rpc(6, "tasks/get", `{"id":"not-there"}`):   "6 -32001 TASK_NOT_FOUND",
		strings.Repeat("[", 5000):                   "null -32700 PARSE_ERROR",
		rpc(7, "hub/agents/get", `{"agentId":"x"}`): "7 -32003 AGENT_NOT_FOUND",
	} {
		c.write(line)
		want(t, c.read(), verdict)
	}
}

// A client may close its write side and keep reading, as nc -N does. Its last line needs
// no newline.
func TestSocketAnswersAfterAHalfClose(t *testing.T) {
	r := start(t)
	c := r.dial(t)
	c.write(rpc(1, "message/send", sendParams("wait")), rpc(2, "hub/status", `{}`)[:20])
	c2 := r.dial(t)
	if _, err := c2.conn.Write([]byte(rpc(2, "hub/status", `{}`))); err != nil {
		t.Fatal(err)
	}
	for _, client := range []*lineClient{c, c2} {
		if err := client.conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	want(t, c2.ended(), "2 ok")
	want(t, c.read(), "null -32700 PARSE_ERROR")
	r.agent.free()
	want(t, c.ended(), "1 ok")
}

func TestATaskRunsOnAfterItsClientDisconnects(t *testing.T) {
	r := start(t)
	c := r.dial(t)
	c.write(rpc(1, "message/stream", sendParams("wait")))
	var first struct{ Params dialect.StreamEvent }
	if err := json.Unmarshal([]byte(c.read()), &first); err != nil || first.Params.Event.Task == nil {
		t.Fatal(err, first)
	}
	c.close()
	id := a2a.TaskID(first.Params.Event.Task.ID)
	sub, err := r.hub.Subscribe(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	r.agent.free()
	for {
		if _, err := sub.Next(t.Context()); err != nil {
			break
		}
	}
	task, err := r.hub.Task(t.Context(), id, nil)
	if err != nil || task.Status.State != a2a.TaskStateCompleted {
		t.Errorf("%v %+v", err, task)
	}
}

func TestRequestsAreHandledAfterTheirClientDisconnects(t *testing.T) {
	r := start(t)
	const clients = 50
	for i := range clients {
		c := r.dial(t)
		if i%2 == 0 {
			c.write(rpc(1, "message/send", sendParams("hello")))
		} else {
			c.write(`{"jsonrpc":"2.0","method":"message/send","params":` + sendParams("hello") + `}`)
		}
		c.close()
	}
	wait.Eventually(t, "every client's task has ended", func() bool {
		status := r.hub.Status()
		return status.TotalTasks >= clients && status.ActiveTasks == 0
	})
}

// blocking is a handler that blocks until its request is canceled, and reports each
// start and end.
type blocking struct{ began, ended chan jsonrpc.ID }

func newBlocking() blocking {
	return blocking{make(chan jsonrpc.ID, 64), make(chan jsonrpc.ID, 64)}
}

func (b blocking) handle(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	if req.Method == "now" {
		return "now", nil
	}
	b.began <- req.ID
	<-ctx.Done()
	b.ended <- req.ID
	return nil, ctx.Err()
}

func TestRequestsAreCanceledWhenTheirClientDisconnects(t *testing.T) {
	b := newBlocking()
	r := start(t, handler(b.handle))
	c := r.dial(t)
	c.write(rpc(1, "block", `{}`))
	<-b.began
	c.close()
	<-b.ended
}

func TestSocketBoundsRequestsInFlight(t *testing.T) {
	b := newBlocking()
	r := start(t, handler(b.handle), limits(server.Limits{InFlight: 2}))
	c := r.dial(t)
	c.write(rpc(1, "block", `{}`), rpc(2, "block", `{}`), rpc(3, "block", `{}`))
	<-b.began
	<-b.began
	other := r.dial(t)
	other.write(rpc(4, "now", `{}`)) // another connection has its own limit
	want(t, other.read(), "4 ok")
	if n := len(b.began); n != 0 {
		t.Errorf("%d more began", n)
	}
}

func TestSocketBoundsTheMemoryOfLines(t *testing.T) {
	b := newBlocking()
	r := start(t, handler(b.handle), limits(server.Limits{Message: 1000, LineMemory: 1500}))
	c := r.dial(t)
	big := `{"x":"` + strings.Repeat("y", 600) + `"}`
	c.write(rpc(1, "block", big), rpc(2, "block", big), rpc(3, "block", big))
	<-b.began
	<-b.began
	other := r.dial(t)
	other.write(rpc(4, "now", big))
	want(t, other.read(), "4 ok")
	if n := len(b.began); n != 0 {
		t.Errorf("%d more began", n)
	}
}

func TestSocketConnectionsAreBounded(t *testing.T) {
	r := start(t, limits(server.Limits{Conns: 2}))
	first := r.dial(t)
	first.write(rpc(1, "hub/status", `{}`))
	want(t, first.read(), "1 ok")
	second := r.dial(t)
	second.write(rpc(2, "hub/status", `{}`))
	want(t, second.read(), "2 ok")
	third := r.dial(t)
	want(t, third.ended(), "null -32000 SERVER_BUSY")
	second.close()
	for { // the connection counts until the server has seen its end
		c := r.dial(t)
		if _, err := c.conn.Write([]byte(rpc(4, "hub/status", `{}`) + "\n")); err != nil && !errors.Is(err, syscall.EPIPE) {
			t.Fatal(err)
		}
		if text := c.read(); verdict(t, text) == "4 ok" {
			break
		}
	}
}

func TestASlowLineIsRefused(t *testing.T) {
	r := start(t, limits(server.Limits{ReadTimeout: 20 * time.Millisecond}))
	c := r.dial(t)
	if _, err := c.conn.Write([]byte(`{"jsonrpc":`)); err != nil {
		t.Fatal(err)
	}
	want(t, c.ended(), "null -32600 INVALID_REQUEST")
}

func TestAnIdleConnectionIsClosedUnlessARequestRuns(t *testing.T) {
	b := newBlocking()
	r := start(t, handler(b.handle), limits(server.Limits{Idle: time.Second}))
	idle := r.dial(t)
	if rest := idle.ended(); rest != "" {
		t.Errorf("got %q", rest)
	}
	busy := r.dial(t)
	busy.write(rpc(1, "block", `{}`))
	<-b.began
	if rest := r.dial(t).ended(); rest != "" { // at least one more idle time passes
		t.Errorf("got %q", rest)
	}
	if len(b.ended) != 0 {
		t.Error("a running request was canceled")
	}
	busy.write(rpc(2, "now", `{}`))
	want(t, busy.read(), "2 ok")
}

// Other clients are served meanwhile.
func TestAClientThatReadsNothingIsDisconnected(t *testing.T) {
	var emitted atomic.Int64
	ended := make(chan error, 1)
	flood := func(ctx context.Context, req jsonrpc.Request, emit jsonrpc.Emit) (any, error) {
		if req.Method == "now" {
			return "now", nil
		}
		for {
			if err := emit(strings.Repeat("x", 10_000)); err != nil {
				ended <- err
				return nil, err
			}
			emitted.Add(1)
		}
	}
	r := start(t, handler(flood), limits(server.Limits{WriteTimeout: time.Second}))
	c := r.dial(t)
	c.write(rpc(1, "flood", `{}`))
	other := r.dial(t)
	other.write(rpc(2, "now", `{}`))
	want(t, other.read(), "2 ok")
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := emitted.Load(); n > 5000 {
		t.Errorf("%d events were queued for a client that reads nothing", n)
	}
}

func TestShutdownWaitsForRunningRequests(t *testing.T) {
	release := make(chan struct{})
	began := make(chan struct{})
	r := start(t, handler(func(context.Context, jsonrpc.Request, jsonrpc.Emit) (any, error) {
		close(began)
		<-release
		return "done", nil
	}))
	c := r.dial(t)
	c.write(rpc(1, "slow", `{}`))
	<-began
	stopped := make(chan error)
	go func() { stopped <- r.Shutdown(context.Background()) }()
	waitGone(t, r.socket)
	close(release)
	want(t, c.ended(), "1 ok")
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// waitGone waits until a file does not exist.
func waitGone(t *testing.T, path string) {
	t.Helper()
	wait.Eventually(t, path+" does not exist", func() bool {
		_, err := os.Lstat(path)
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestShutdownEndsRequestsWhenItsContextEnds(t *testing.T) {
	r := start(t)
	sock := r.dial(t)
	sock.write(rpc(1, "message/send", sendParams("wait")), rpc(2, "message/stream", sendParams("wait")))
	sock.read() // the stream's first event: both requests are being handled
	web := make(chan reply, 1)
	ready := make(chan struct{})
	go func() {
		close(ready)
		web <- r.post(t, "/", rpc(3, "message/send", sendParams("wait")))
	}()
	<-ready
	wait.Eventually(t, "all three tasks exist", func() bool { return len(tasks(t, r.hub)) >= 3 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	rest := sock.ended()
	for _, id := range []string{`"id":1}`, `"id":2}`} {
		if !strings.Contains(rest, id) {
			t.Errorf("%s is not answered: %s", id, rest)
		}
	}
	if got := <-web; !strings.Contains(got.body, `"error"`) || !strings.Contains(got.body, `"id":3}`) {
		t.Errorf("%+v", got)
	}
	for _, task := range tasks(t, r.hub) {
		if task.Status.State.Terminal() {
			t.Errorf("the task has ended: %+v", task.Status)
		}
	}
	if _, err := os.Lstat(r.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket still exists: %v", err)
	}
	if err := r.Shutdown(ctx); err != nil {
		t.Errorf("a second shutdown: %v", err)
	}
}

func tasks(t *testing.T, h *hub.Hub) []*a2a.Task {
	t.Helper()
	page, err := h.Tasks(t.Context(), hub.TaskQuery{})
	if err != nil {
		t.Fatal(err)
	}
	return page.Tasks
}

func TestStartReplacesOnlyItsOwnStaleSocket(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	stale := func(name string) string {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path(name), Net: "unix"})
		must(err)
		ln.SetUnlinkOnClose(false)
		must(ln.Close())
		return path(name)
	}
	must(os.WriteFile(path("file"), []byte("precious"), 0o600))
	must(os.Mkdir(path("directory"), 0o700))
	must(os.Symlink(stale("target"), path("link")))
	must(os.Symlink(path("nowhere"), path("dangling")))
	live := start(t)

	tests := []struct {
		name, path string
		code       server.Code // "" means that the server starts
	}{
		{"nothing", path("new"), ""},
		{"our stale socket", stale("stale"), ""},
		{"a live socket", live.socket, server.CodeInUse},
		{"a file", path("file"), server.CodeForbidden},
		{"a directory", path("directory"), server.CodeForbidden},
		{"a symbolic link to a stale socket", path("link"), server.CodeForbidden},
		{"a dangling symbolic link", path("dangling"), server.CodeForbidden},
		{"a missing directory", path("no/where.sock"), server.CodeConfig},
		{"too long a path", path(strings.Repeat("x", 110)), server.CodeConfig},
	}
	if os.Geteuid() == 0 {
		foreign := stale("foreign")
		must(os.Chown(foreign, 12345, 12345))
		tests = append(tests, struct {
			name, path string
			code       server.Code
		}{"another user's stale socket", foreign, server.CodeForbidden})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := server.New(server.Config{Socket: tt.path, SocketHandler: jsonrpc.HandlerFunc(nil)})
			if err != nil {
				t.Fatal(err)
			}
			before, beforeErr := os.Lstat(tt.path)
			err = s.Start(t.Context())
			if tt.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
				waitGone(t, tt.path)
				return
			}
			var se *server.Error
			if !errors.As(err, &se) || se.Code != tt.code || se.Remedy == "" {
				t.Errorf("got %v, want %s", err, tt.code)
			}
			after, afterErr := os.Lstat(tt.path)
			if (beforeErr == nil) != (afterErr == nil) || beforeErr == nil && !os.SameFile(before, after) {
				t.Error("the file was changed")
			}
		})
	}
	c := live.dial(t)
	c.write(rpc(1, "hub/status", `{}`))
	want(t, c.read(), "1 ok")
}

func TestShutdownKeepsTheSocketOfASuccessor(t *testing.T) {
	r := start(t)
	if err := os.Remove(r.socket); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.socket, []byte("the successor's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(r.socket); err != nil {
		t.Error(err)
	}
}

func TestConnectionsLeakNoDescriptors(t *testing.T) {
	r := start(t)
	before := openFiles(t)
	for i := range 200 {
		c := r.dial(t)
		switch i % 4 {
		case 0:
			c.write(rpc(1, "hub/status", `{}`))
			want(t, c.read(), "1 ok")
		case 1:
			c.write(rpc(1, "message/stream", sendParams("chunks 50")))
		case 2:
			c.write(rpc(1, "message/send", sendParams("wait")))
		default:
			if _, err := c.conn.Write([]byte(`{"half`)); err != nil {
				t.Fatal(err)
			}
		}
		c.close()
	}
	r.agent.free()
	settle(t, before)
}

// settle waits until at most before descriptors are open.
func settle(t *testing.T, before int) {
	t.Helper()
	wait.Eventually(t, fmt.Sprintf("at most %d descriptors are open", before), func() bool { return openFiles(t) <= before })
}

func TestErrorTextEndsWithTheRemedy(t *testing.T) {
	err := &server.Error{Code: server.CodeInUse, Message: "taken", Remedy: "choose another", Err: syscall.EADDRINUSE}
	if got := fmt.Sprint(err); got != "taken; choose another" || !errors.Is(err, syscall.EADDRINUSE) {
		t.Error(got)
	}
	err.Remedy = ""
	if err.Error() != "taken" {
		t.Error(err)
	}
}

// A connection whose first request is a rest is served by its function alone, until the client disconnects or the server stops.
func TestSocketDetachesARest(t *testing.T) {
	served := make(chan string, 4)
	r := start(t, func(c *server.Config) {
		c.SocketRest = func(id jsonrpc.ID, params json.RawMessage) (server.Detached, *jsonrpc.Error) {
			if string(params) != `{"guid":"g"}` {
				return nil, jsonrpc.InvalidParams("guid", "unknown")
			}
			return func(conn net.Conn) {
				answer, _ := jsonrpc.AppendResult(nil, id, "rests")
				_, _ = conn.Write(append(answer, '\n'))
				for buf := make([]byte, 10); ; {
					n, err := conn.Read(buf)
					if err != nil {
						served <- "the end"
						return
					}
					served <- string(buf[:n])
				}
			}, nil
		}
	})
	rest := rpc(1, dialect.MethodNetworkRest, `{"guid":"g"}`)

	c := r.dial(t)
	c.write(rpc(1, dialect.MethodNetworkRest, `{}`))
	want(t, c.read(), "1 -32602 INVALID_PARAMS")

	c = r.dial(t)
	c.write(rpc(2, "hub/status", `{}`), rest)
	for _, line := range []string{c.read(), c.read()} {
		if strings.Contains(line, "rests") {
			t.Errorf("a rest that is not the first request: %s", line)
		}
	}

	c = r.dial(t)
	c.write(rest)
	if line := c.read(); !strings.Contains(line, `"result":"rests"`) {
		t.Errorf("the answer is %s", line)
	}
	c.write("beat")
	if got := <-served; got != "beat\n" {
		t.Errorf("received %q", got)
	}
	c.close()
	if got := <-served; got != "the end" {
		t.Errorf("received %q", got)
	}

	c = r.dial(t)
	c.write(rest)
	c.read()
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if got := <-served; got != "the end" {
		t.Errorf("received %q", got)
	}
}

// An MCP client need not wait for the answer to its first request: what it sends with that is not lost, nor what it sends later.
func TestSocketAttachesMCPWithWhatWasSentAhead(t *testing.T) {
	received := make(chan []byte, 1)
	r := start(t, func(c *server.Config) {
		c.SocketMCP = func(json.RawMessage) (server.Attached, *jsonrpc.Error) {
			return func(_ context.Context, in io.ReadCloser, out io.Writer) {
				if _, err := io.WriteString(out, "attached\n"); err != nil {
					t.Error(err)
				}
				all, err := io.ReadAll(in)
				if err != nil {
					t.Error(err)
				}
				received <- all
			}, nil
		}
	})
	c := r.dial(t)
	ahead := strings.Repeat("ahead ", 1000)
	c.write(rpc(1, dialect.MethodMCP, `{}`), ahead)
	if line := c.read(); !strings.Contains(line, `"result":{}`) {
		t.Errorf("the answer is %s", line)
	}
	if line := c.read(); line != "attached" {
		t.Errorf("received %q", line)
	}
	c.write("later")
	if err := c.conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := string(<-received); got != ahead+"\nlater\n" {
		t.Errorf("received %d bytes: %.40q … %q", len(got), got, got[max(len(got)-20, 0):])
	}
}
