//go:build linux

package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	a2agrpc10 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/coder/websocket"
	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/parleyhub/parley/crdt/ysync"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/sessions/presence"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/otheruser"
)

// routes are all ways into the hub over HTTP.
var routes = []string{
	"POST /", "POST /stream", "GET /events", "GET /totals", "GET /tasks/x/trace", "GET /metrics", "GET /nope",
	"GET /.well-known/agent.json", "GET /.well-known/agents", "GET /.well-known/agents/echo.json", "GET /.well-known/agent-card.json",
	"POST /a2a", "GET /a2a/v1/tasks", "GET /agents/echo/.well-known/agent-card.json", "POST /agents/echo/a2a", "POST /agents/echo/a2a/v1/message:send",
	"POST /mcp", "GET /mcp", "DELETE /mcp", "POST /node", "GET /node/cards", "GET /documents/x", "GET /docs/", "GET /docs/sections.js", "GET /ui", "GET /ui/", "POST /ui",
}

// Another user of the computer learns that the hub works, and nothing more; the hub's own user needs no token.
func TestAnotherUserGetsLivenessOnly(t *testing.T) {
	otheruser.Require(t)
	cfg := mustLoad(t, newDir(t), "grpc.port="+strconv.Itoa(testbed.FreePorts(t, 1)[0]))
	hub := run(t, cfg)
	defer hub.end(t)
	token, err := daemon.Token(cfg)
	if err != nil {
		t.Fatal(err)
	}
	own := strings.TrimPrefix(hub.info.HTTP, "http://")
	other := otheruser.Relay(t, "tcp", own)
	web := &http.Client{Transport: &http.Transport{}}
	defer web.CloseIdleConnections()
	do := func(address, route, token string) (int, string) {
		method, path, _ := strings.Cut(route, " ")
		body := ""
		if method == "POST" {
			body = `{"jsonrpc":"2.0","id":1,"method":"hub/agents/list","params":{}}`
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := web.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16)) // of GET /events only the first
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	for _, route := range routes {
		if status, body := do(other, route, ""); status != http.StatusUnauthorized || !strings.Contains(body, "another user") {
			t.Errorf("%s by another user: %d %.200s", route, status, body)
		}
		if status, body := do(other, route, "wrong-"+token); status != http.StatusUnauthorized {
			t.Errorf("%s with a wrong token: %d %.200s", route, status, body)
		}
	}
	if status, body := do(other, "GET /health", ""); status != http.StatusOK || strings.Contains(body, "version") {
		t.Errorf("health by another user: %d %s", status, body)
	}
	for who, address := range map[string]string{"with the token": other, "of the hub's user": own} {
		given := ""
		if address == other {
			given = token
		}
		if status, body := do(address, "POST /", given); status != http.StatusOK || !strings.Contains(body, `"echo"`) {
			t.Errorf("a request %s: %d %.200s", who, status, body)
		}
	}

	for address, want := range map[string]int{other: http.StatusUnauthorized, own: http.StatusSwitchingProtocols} {
		ws, resp, err := websocket.Dial(t.Context(), "ws://"+address+"/documents/x", &websocket.DialOptions{Subprotocols: []string{ysync.Subprotocol}})
		if resp == nil || resp.StatusCode != want {
			t.Errorf("a document by WebSocket at %s: %+v %v, want %d", address, resp, err, want)
		}
		if err == nil {
			_ = ws.CloseNow()
		}
	}

	grpcOther := otheruser.Relay(t, "tcp", hub.info.GRPC)
	for _, c := range []struct {
		address, token string
		want           error
	}{{grpcOther, "", a2a.ErrUnauthenticated}, {grpcOther, "wrong", a2a.ErrUnauthenticated}, {grpcOther, token, a2a.ErrTaskNotFound}, {hub.info.GRPC, "", a2a.ErrTaskNotFound}} {
		conn, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		if c.token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
		}
		if _, err := a2agrpc10.NewGRPCTransport(conn).GetTask(ctx, nil, &a2a.GetTaskRequest{ID: "none"}); !errors.Is(err, c.want) {
			t.Errorf("gRPC at %s with %q: %v", c.address, c.token, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A credential of the bus is of no use to another user, and the socket refuses connections of others whatever its mode is.
func TestAnotherUserCannotJoinTheBusNorUseTheSocket(t *testing.T) {
	otheruser.Require(t)
	dir := newDir(t)
	hub := run(t, mustLoad(t, dir))
	defer hub.end(t)
	c, err := client.Dial(t.Context(), hub.info.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	join := func(through func(address string) string) error {
		grant, err := c.JoinBus(t.Context(), dialect.BusJoinParams{Access: "project", Namespace: "p1"})
		if err != nil {
			t.Fatal(err)
		}
		conn, err := nats.Connect("nats://"+through(grant.Address), nats.UserInfo(grant.User, grant.Password), nats.MaxReconnects(0))
		if err == nil {
			conn.Close()
		}
		return err
	}
	if err := join(func(address string) string { return otheruser.Relay(t, "tcp", address) }); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("another user with a credential: %v", err)
	}
	if err := join(func(address string) string { return address }); err != nil {
		t.Errorf("the hub's user: %v", err)
	}

	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(hub.info.Socket, 0o777)); err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", otheruser.Relay(t, "unix", hub.info.Socket))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, `{"jsonrpc":"2.0","id":1,"method":"hub/status","params":{}}`+"\n") // it may be closed already
	if answer, _ := io.ReadAll(conn); len(answer) > 0 {
		t.Errorf("the socket answers another user: %.200s", answer)
	}
	if _, err := c.Status(context.Background()); err != nil {
		t.Errorf("the hub's user: %v", err)
	}
}

// Another user neither reports events of sessions, nor is told what is new for one, nor writes the files that wake sessions, also where
// the modes of the directory and the socket would let everybody in.
func TestAnotherUserIsNoHook(t *testing.T) {
	otheruser.Require(t)
	dir := newDir(t)
	hub := run(t, mustLoad(t, dir))
	defer hub.end(t)
	c, err := client.Dial(t.Context(), hub.info.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	start := dialect.SessionHookParams{Vendor: "claude", Session: "s1", Kind: "start", Dir: dir, Process: dialect.SessionProcess(presence.Running(os.Getpid()))}
	answer, err := c.SessionHook(t.Context(), start)
	if err != nil || len(answer.Watch) != 1 {
		t.Fatalf("the session watches %+v, %v", answer, err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(hub.info.Socket, 0o777)); err != nil {
		t.Fatal(err)
	}
	bell := answer.Watch[0]
	for _, command := range []string{`echo x > "$1"`, `rm -f "$1"`, `ln -s /etc/passwd "$1-2"`, `ls "$(dirname "$1")"`} {
		cmd := exec.Command("/bin/sh", "-c", command, "sh", bell)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otheruser.UID, Gid: otheruser.UID}}
		if err := cmd.Run(); err == nil {
			t.Errorf("another user did %s", command)
		}
	}
	socket := otheruser.Relay(t, "unix", hub.info.Socket)
	web := otheruser.Relay(t, "tcp", strings.TrimPrefix(hub.info.HTTP, "http://"))
	for method, params := range map[string]string{
		"hub/sessions/hook":  `{"vendor":"claude","session":"evil","kind":"before-turn","dir":"/p","process":{"pid":1,"start":"1"}}`,
		"hub/sessions/event": `{"vendor":"codex","event":"UserPromptSubmit","input":"{\"session_id\":\"evil\",\"cwd\":\"/p\"}"}`,
		"hub/sessions/serve": `{"vendor":"codex","session":"evil","guid":"evil","since":"2026-01-01T00:00:00Z","server":{"pid":1,"start":"1"}}`,
		"hub/sessions/shown": `{"notice":"x"}`, "hub/sessions/list": `{}`,
	} {
		request := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`+"\n", method, params)
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", socket)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, request) // it may be closed already
		if answer, _ := io.ReadAll(conn); len(answer) > 0 {
			t.Errorf("%s by another user: %.200s", method, answer)
		}
		_ = conn.Close()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+web+"/", strings.NewReader(request))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s over HTTP by another user: %d", method, resp.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	open, err := c.OpenSessions(t.Context())
	if data, readErr := os.ReadFile(bell); err != nil || readErr != nil || len(open) != 1 || open[0].Session != "s1" || open[0].State != "idle" || len(data) > 0 {
		t.Errorf("the sessions are %+v (%v), the bell's file is %q (%v)", open, err, data, readErr)
	}
}

func TestTheTokenFileIsPrivateAndStays(t *testing.T) {
	dir := newDir(t)
	cfg := mustLoad(t, dir)
	path := filepath.Join(dir, "http-token")
	token := func() string {
		t.Helper()
		run(t, cfg).end(t)
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Fatalf("the token's file: %v %v", info, err)
		}
		token, err := daemon.Token(cfg)
		if err != nil || len(token) < 32 {
			t.Fatalf("%q, %v", token, err)
		}
		return token
	}
	first := token()
	if token() != first {
		t.Error("a restart changes the token")
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.Token(cfg); err == nil {
		t.Error("a token that others could read is used")
	}
	second := token()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := range raw {
		flipped := bytes.Clone(raw)
		flipped[at] ^= 1 << (at % 7)
		if err := os.WriteFile(path, flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := daemon.Token(cfg); err != nil || got != second {
			t.Fatalf("with a flipped bit of byte %d the token is %q, %v", at, got, err)
		}
	}
	if token() != second {
		t.Error("a flipped bit changes the token")
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, raw) {
		t.Errorf("the file is %q, %v", now, err)
	}
	if second == first {
		t.Error("a token that others could read stays")
	}
	if err := os.WriteFile(path, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := token(); got == second || got == "short" {
		t.Errorf("a damaged file: %q", got)
	}
	configured := mustLoad(t, dir, "http.token=0123456789abcdef")
	if got, err := daemon.Token(configured); err != nil || got != "0123456789abcdef" {
		t.Errorf("%q, %v", got, err)
	}
	raw, err = json.Marshal(cfg)
	if err == nil && strings.Contains(string(raw), second) {
		t.Error("the configuration has the token")
	}
}
