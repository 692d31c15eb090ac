//go:build unix

package client_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/documents"
	hubs "github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/swarm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "parley") // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "hub.sock")
}

// hub starts a server whose socket has the handler, and returns the socket's path.
func hub(t *testing.T, handler jsonrpc.HandlerFunc) string {
	t.Helper()
	socket := socketPath(t)
	s, err := server.New(server.Config{Socket: socket, SocketHandler: handler})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return socket
}

// raw sends lines to each connection and then closes it. It returns the socket's path.
func raw(t *testing.T, lines string) string {
	t.Helper()
	socket := socketPath(t)
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
					_, err = io.WriteString(c, lines)
					_ = err // the client may have disconnected
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close(); serving.Wait() })
	return socket
}

func dial(t *testing.T, socket string) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestConcurrentCallsGetTheirOwnAnswers(t *testing.T) {
	c := dial(t, hub(t, func(_ context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
		return req.Params, nil
	}))
	var calls sync.WaitGroup
	for i := range 200 {
		calls.Go(func() {
			var got struct{ N int }
			if err := c.Call(t.Context(), "echo", map[string]int{"n": i}, &got); err != nil || got.N != i {
				t.Errorf("call %d: got %d, %v", i, got.N, err)
			}
		})
	}
	calls.Wait()
}

func TestMethodsSendTheirRequests(t *testing.T) {
	var asked []string
	c := dial(t, hub(t, func(_ context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
		asked = append(asked, req.Method+" "+string(req.Params)) // one call at a time
		switch req.Method {
		case dialect.MethodAgentsList, dialect.MethodContextsList, dialect.MethodSwarmList, dialect.MethodDocumentsList, dialect.MethodSessionsList, dialect.MethodSendersList,
			dialect.MethodClaimsList, dialect.MethodClaimsCheck, dialect.MethodThreadsList:
			return []int{}, nil
		}
		return struct{}{}, nil
	}))
	ctx := t.Context()
	for _, call := range []func() error{
		func() error { _, err := c.Status(ctx); return err },
		func() error { _, err := c.Agents(ctx, true); return err },
		func() error { _, err := c.CheckHealth(ctx, "echo"); return err },
		func() error { _, err := c.Tasks(ctx, dialect.TasksListParams{Limit: 3}); return err },
		func() error { _, err := c.Task(ctx, "t1"); return err },
		func() error { _, err := c.Cancel(ctx, "t1"); return err },
		func() error { _, err := c.CancelAlone(ctx, "t1"); return err },
		func() error { _, err := c.Contexts(ctx, 7); return err },
		func() error {
			_, err := c.CreateSwarm(ctx, swarm.Plan{TaskDescription: "x", RequiredCapabilities: []string{}})
			return err
		},
		func() error { _, err := c.Swarm(ctx, "s1"); return err },
		func() error { _, err := c.AwaitSwarm(ctx, "s1", 9); return err },
		func() error { _, err := c.Swarms(ctx); return err },
		func() error { _, err := c.StopSwarm(ctx, "s1", "enough"); return err },
		func() error { _, err := c.Documents(ctx); return err },
		func() error { _, err := c.Document(ctx, "plan"); return err },
		func() error { _, err := c.AwaitDocument(ctx, "plan", "v1"); return err },
		func() error {
			_, err := c.EditDocument(ctx, "plan", []documents.Edit{{Op: "delete", Path: []string{"plan", "x"}}})
			return err
		},
		func() error {
			_, err := c.SyncDocument(ctx, "plan", documents.Copy{Epoch: 2, Vector: []byte{0}})
			return err
		},
		func() error { _, err := c.CompactDocument(ctx, "plan"); return err },
		func() error { _, err := c.JoinBus(ctx, dialect.BusJoinParams{Access: "network"}); return err },
		func() error { return c.LeaveBus(ctx, "u1") },
		func() error {
			_, err := c.CheckDir(ctx, dialect.DirCheckParams{AgentIDs: []string{"echo"}, ContextID: "c1", DirRequest: hubs.DirRequest{Path: "/src", Project: true}})
			return err
		},
		func() error {
			_, err := c.Worktree(ctx, dialect.WorktreeParams{Kind: "loop", Name: "n", Path: "/src"})
			return err
		},
		func() error { _, err := c.FindAgent(ctx, dialect.FindAgentParams{Name: "reviewer"}); return err },
		func() error {
			_, err := c.RenameAgent(ctx, dialect.RenameAgentParams{AgentID: "claude-a", Name: "reviewer"})
			return err
		},
		func() error { _, err := c.Senders(ctx); return err },
		func() error { _, err := c.RevokeSender(ctx, "x"); return err },
		func() error {
			_, err := c.SessionHook(ctx, dialect.SessionHookParams{Vendor: "claude", Session: "s", Kind: "start"})
			return err
		},
		func() error { return c.SessionShown(ctx, "n1") },
		func() error { return c.QuietSession(ctx, dialect.SessionQuietParams{AgentID: "claude-a", Quiet: true}) },
		func() error { _, err := c.OpenSessions(ctx); return err },
		func() error { _, err := c.FileClaims(ctx); return err },
		func() error { _, err := c.Threads(ctx); return err },
		func() error { _, err := c.Thread(ctx, dialect.ThreadParams{ThreadID: "mail:x"}); return err },
		func() error {
			_, err := c.WriteThread(ctx, dialect.WriteThreadParams{ThreadID: "mail:x", Text: "words"})
			return err
		},
		func() error {
			_, err := c.CheckFiles(ctx, dialect.FileCheckParams{Files: []string{"f"}})
			return err
		},
		func() error { _, err := c.BreakFileClaim(ctx, "c1"); return err },
		func() error { _, err := c.Trace(ctx, "t1"); return err },
		func() error { _, err := c.Needs(ctx); return err },
		func() error { _, err := c.Work(ctx); return err },
		func() error { return c.RetryWork(ctx, "w1") },
		func() error { return c.DiscardWork(ctx, "w1") },
		func() error { _, err := c.Drain(ctx); return err },
		func() error { return c.Shutdown(ctx) },
	} {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
	want := `hub/status {}
hub/agents/list {"includeHealth":true,"includeCards":false}
hub/agents/health {"agentId":"echo"}
hub/tasks/page {"limit":3}
tasks/get {"id":"t1"}
tasks/cancel {"id":"t1"}
tasks/cancel {"id":"t1","keepDelegated":true}
hub/contexts/list {"limit":7}
hub/swarms/create {"plan":{"taskDescription":"x","requiredCapabilities":[]}}
hub/swarms/get {"id":"s1"}
hub/swarms/get {"id":"s1","after":9}
hub/swarms/list {}
hub/swarms/stop {"id":"s1","reason":"enough"}
hub/documents/list {}
hub/documents/get {"name":"plan"}
hub/documents/wait {"name":"plan","seen":"v1"}
hub/documents/edit {"name":"plan","edits":[{"op":"delete","path":["plan","x"]}]}
hub/documents/sync {"name":"plan","epoch":2,"vector":"AA=="}
hub/documents/compact {"name":"plan"}
hub/bus/join {"access":"network"}
hub/bus/leave {"user":"u1"}
hub/workdir/check {"agentIds":["echo"],"contextId":"c1","path":"/src","project":true}
hub/workdir/worktree {"kind":"loop","name":"n","path":"/src"}
hub/agents/find {"name":"reviewer"}
hub/agents/rename {"agentId":"claude-a","name":"reviewer"}
hub/senders/list 
hub/senders/revoke {"id":"x"}
hub/sessions/hook {"vendor":"claude","session":"s","kind":"start"}
hub/sessions/shown {"notice":"n1"}
hub/sessions/quiet {"agentId":"claude-a","quiet":true}
hub/sessions/list 
hub/claims/list 
hub/threads/list 
hub/threads/get {"threadId":"mail:x"}
hub/threads/write {"threadId":"mail:x","text":"words"}
hub/claims/check {"files":["f"]}
hub/claims/break {"claimId":"c1"}
hub/tasks/trace {"id":"t1"}
hub/needs 
hub/work/list 
hub/work/retry {"taskId":"w1"}
hub/work/discard {"taskId":"w1"}
hub/drain {}
hub/shutdown {}`
	if got := strings.Join(asked, "\n"); got != want {
		t.Errorf("requests\n%s\nwant\n%s", got, want)
	}
}

func TestMCPTakesOverAConnection(t *testing.T) {
	socket := socketPath(t)
	s, err := server.New(server.Config{
		Socket:        socket,
		SocketHandler: jsonrpc.HandlerFunc(func(context.Context, jsonrpc.Request, jsonrpc.Emit) (any, error) { return struct{}{}, nil }),
		SocketMCP: func(params json.RawMessage) (server.Attached, *jsonrpc.Error) {
			var p dialect.MCPParams
			if err := json.Unmarshal(params, &p); err != nil || p.Token != "right" {
				return nil, jsonrpc.NewError(jsonrpc.CodeInvalidParams, "no such token", jsonrpc.Details{})
			}
			return func(_ context.Context, in io.ReadCloser, out io.Writer) {
				line, err := bufio.NewReader(in).ReadString('\n')
				if err == nil {
					_, err = io.WriteString(out, "heard "+line)
				}
				if err != nil {
					t.Error(err)
				}
			}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	var refused *jsonrpc.Error
	if _, err := client.AttachMCP(t.Context(), socket, "wrong"); !errors.As(err, &refused) || !strings.Contains(refused.Message, "no such token") {
		t.Fatalf("a wrong token gives %v", err)
	}
	c, err := client.AttachMCP(t.Context(), socket, "right")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "{}\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "heard {}\n" {
		t.Fatalf("read %q, %v", line, err)
	}
	for _, lines := range []string{"", "no JSON\n"} {
		if _, err := client.AttachMCP(t.Context(), raw(t, lines), ""); !errors.Is(err, client.ErrLost) {
			t.Fatalf("a hub that answers %q gives %v", lines, err)
		}
	}
}

func TestErrorOfTheHubKeepsItsCode(t *testing.T) {
	c := dial(t, hub(t, func(context.Context, jsonrpc.Request, jsonrpc.Emit) (any, error) {
		return nil, jsonrpc.NewError(dialect.CodeTaskNotFound, "gone", jsonrpc.Details{Remedy: "look elsewhere"})
	}))
	_, err := c.Task(t.Context(), "x")
	var rpc *jsonrpc.Error
	if !errors.As(err, &rpc) || rpc.Code != dialect.CodeTaskNotFound || rpc.Details().Remedy != "look elsewhere" {
		t.Errorf("got %v", err)
	}
}

func TestDialWithoutAHubIsAnError(t *testing.T) {
	socket := socketPath(t)
	if _, err := client.Dial(t.Context(), socket); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Dial(t.Context(), socket); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("a file: %v", err)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false) // as after a killed hub
	ln.Close()
	if _, err := client.Dial(t.Context(), socket); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("a stale socket: %v", err)
	}
}

func TestForeignSocketIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("only root can change the owner of a file")
		return
	}
	socket := raw(t, "")
	if err := os.Chown(socket, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Dial(t.Context(), socket); !errors.Is(err, client.ErrForeignSocket) {
		t.Errorf("got %v", err)
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	release := make(chan struct{})
	c := dial(t, hub(t, func(context.Context, jsonrpc.Request, jsonrpc.Emit) (any, error) {
		<-release
		return 1, nil
	}))
	t.Cleanup(func() { close(release) })
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Call(ctx, "wait", struct{}{}, nil) }()
	cancel(cause)
	if err := <-done; !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	if err := c.Call(ctx, "wait", struct{}{}, nil); !errors.Is(err, cause) {
		t.Errorf("after the end: %v", err)
	}
}

func TestCallsFailWhenTheConnectionIsLost(t *testing.T) {
	for name, lines := range map[string]string{
		"closed": "", "half an answer": `{"jsonrpc":"2.0","resu`, "no JSON": "hello\n", "no JSON-RPC": `{"id":[]}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, raw(t, lines))
			if _, err := c.Status(t.Context()); !errors.Is(err, client.ErrLost) {
				t.Errorf("got %v", err)
			}
			if err := c.Wait(t.Context()); err != nil {
				t.Errorf("wait: %v", err)
			}
			if _, err := c.Status(t.Context()); !errors.Is(err, client.ErrLost) {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// The hub closes idle connections; later calls must still succeed.
func TestCallReconnectsAfterTheHubClosedAnIdleConnection(t *testing.T) {
	answer := `{"jsonrpc":"2.0","id":1,"result":{"version":"x"}}` + "\n"
	c := dial(t, raw(t, answer)) // closes each connection after its answer
	for range 3 {
		if status, err := c.Status(t.Context()); err != nil || status.Version != "x" {
			t.Fatalf("got %+v, %v", status, err)
		}
		if err := c.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Status(t.Context()); !errors.Is(err, client.ErrLost) {
		t.Errorf("after Close: %v", err)
	}
}

func TestUndecodableResultAndUnencodableParametersAreErrors(t *testing.T) {
	c := dial(t, raw(t, `{"jsonrpc":"2.0","id":1,"result":"text"}`+"\n"))
	if _, err := c.Status(t.Context()); err == nil || errors.Is(err, client.ErrLost) {
		t.Errorf("got %v", err)
	}
	if err := c.Call(t.Context(), "x", func() {}, nil); err == nil {
		t.Error("a function was encoded")
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	c := dial(t, hub(t, nil))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestStreamDeliversEventsThenTheTask(t *testing.T) {
	const chunks = 40
	long := strings.Repeat("é", 100_000) // longer than the client's buffer
	c := dial(t, hub(t, func(_ context.Context, req jsonrpc.Request, emit jsonrpc.Emit) (any, error) {
		task := dialect.Task{Kind: dialect.KindTask, ID: "t1"}
		if err := emit(dialect.Event{Task: &task}); err != nil {
			return nil, err
		}
		for i := range chunks {
			up := dialect.ArtifactUpdate{Kind: dialect.KindArtifactUpdate, Artifact: dialect.Artifact{Parts: []dialect.Part{dialect.TextPart(fmt.Sprint(i, long[:i%2*len(long)]))}}}
			if err := emit(dialect.Event{Artifact: &up}); err != nil {
				return nil, err
			}
		}
		task.Status.State = dialect.StateCompleted
		return task, nil
	}))
	for name, open := range map[string]func() (*client.Stream, error){
		"send":   func() (*client.Stream, error) { return c.Stream(t.Context(), dialect.SendParams{}) },
		"follow": func() (*client.Stream, error) { return c.Follow(t.Context(), "t1") },
	} {
		t.Run(name, func(t *testing.T) {
			s, err := open()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			events := 0
			for {
				e, err := s.Next(t.Context())
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if events == 0 != (e.Task != nil) || events > 0 && !strings.HasPrefix(*e.Artifact.Artifact.Parts[0].Text, fmt.Sprint(events-1)) {
					t.Fatalf("event %d is %.100v", events, e)
				}
				events++
			}
			if events != chunks+1 || s.Task() == nil || s.Task().Status.State != dialect.StateCompleted {
				t.Errorf("%d events, then %+v", events, s.Task())
			}
			if _, err := s.Next(t.Context()); !errors.Is(err, io.EOF) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

func TestStreamErrors(t *testing.T) {
	notification, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": dialect.NotifyEvent, "params": map[string]any{"id": 1, "event": map[string]any{"kind": "surprise"}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ lines, want string }{
		"an error":       {`{"jsonrpc":"2.0","id":1,"error":{"code":-32003,"message":"nobody"}}` + "\n", "nobody"},
		"cut off":        {``, client.ErrLost.Error()},
		"half an event":  {string(notification)[:20], client.ErrLost.Error()},
		"unknown event":  {string(notification) + "\n", "surprise"},
		"a wrong result": {`{"jsonrpc":"2.0","id":1,"result":5}` + "\n", "read the end of the stream"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := dial(t, raw(t, tt.lines)).Follow(t.Context(), "t")
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, err := s.Next(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestStreamEndsWithItsContext(t *testing.T) {
	c := dial(t, hub(t, func(ctx context.Context, _ jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
		<-ctx.Done() // the stream's connection closes
		return nil, ctx.Err()
	}))
	ctx, cancel := context.WithCancelCause(t.Context())
	s, err := c.Follow(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("enough")
	done := make(chan error, 1)
	go func() { _, err := s.Next(ctx); done <- err }()
	cancel(cause)
	if err := <-done; !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

func TestRest(t *testing.T) {
	const resting = `{"jsonrpc":"2.0","method":"hub/network/resting","params":{}}` + "\n"
	params := dialect.NetworkRestParams{GUID: "g", User: "u"}
	for name, c := range map[string]struct {
		lines   string
		refused bool // at once
		user    string
	}{
		"granted and ended": {resting + `{"jsonrpc":"2.0","id":1,"result":{"user":"u","reason":"mail"}}` + "\n", false, "u"},
		"lost":              {resting, false, ""},
		"unreadable":        {resting + `{"jsonrpc":"2.0","id":1,"result":7}` + "\n", false, ""},
		"ended with error":  {resting + `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no"}}` + "\n", false, ""},
		"refused":           {`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}` + "\n", true, ""},
		"something else":    {`{"jsonrpc":"2.0","id":1,"result":{}}` + "\n", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := client.Rest(t.Context(), raw(t, c.lines), params)
			if (err != nil) != c.refused {
				t.Fatal(err)
			}
			if err != nil {
				return
			}
			defer r.Close()
			rested, err := r.Wait()
			if rested.User != c.user || (err == nil) != (c.user != "") {
				t.Errorf("%+v, %v", rested, err)
			}
		})
	}
	if _, err := client.Rest(t.Context(), socketPath(t), params); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("without a hub: %v", err)
	}
}

func TestRestSendsHeartbeatsAndWakes(t *testing.T) {
	socket := socketPath(t)
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	received := make(chan string, 3)
	go func() {
		defer close(received)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, `{"jsonrpc":"2.0","method":"hub/network/resting","params":{}}`+"\n")
		for lines := bufio.NewScanner(c); lines.Scan(); {
			received <- lines.Text()
		}
	}()
	r, err := client.Rest(t.Context(), socket, dialect.NetworkRestParams{GUID: "g", User: "u"})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Beat(), r.Wake(), r.Close()); err != nil {
		t.Error(err)
	}
	for _, want := range []string{`{"jsonrpc":"2.0","method":"hub/network/rest","params":{"guid":"g","user":"u"},"id":1}`,
		`{"jsonrpc":"2.0","method":"hub/network/beat","params":{}}`, `{"jsonrpc":"2.0","method":"hub/network/wake","params":{}}`} {
		if got := <-received; got != want {
			t.Errorf("received %s, want %s", got, want)
		}
	}
	for range received {
	}
	if r.Beat() == nil {
		t.Error("a heartbeat after the end")
	}
}
