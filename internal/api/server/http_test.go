package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/base/budget"
	"github.com/parleyhub/parley/internal/base/caller"
	"github.com/parleyhub/parley/internal/hub"
)

// HUB-HTTP-RPC, HUB-RPC-ENVELOPE.
func TestPostAnswersJSONRPC(t *testing.T) {
	r := start(t)
	for _, contentType := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"} {
		got := r.do(t, "POST", "/", rpc(1, "hub/status", `{}`), "Content-Type", contentType)
		if got.status != 200 || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%+v", got)
		}
		want(t, got.body, "1 ok")
	}
	want(t, r.post(t, "/", rpc(2, "message/send", sendParams("hello"))).body, "2 ok")
	want(t, r.post(t, "/", rpc(3, "nope", `{}`)).body, "3 -32601 METHOD_NOT_FOUND")
	want(t, r.post(t, "/", `{"jsonrpc":"2.0","id":`).body, "null -32700 PARSE_ERROR")
	want(t, r.post(t, "/", ``).body, "null -32700 PARSE_ERROR")
	batch := r.post(t, "/", `[`+rpc(1, "hub/status", `{}`)+`,{"jsonrpc":"2.0","method":"hub/status"},`+rpc(2, "tasks/get", `{}`)+`]`)
	var answers []json.RawMessage
	if err := json.Unmarshal([]byte(batch.body), &answers); err != nil || len(answers) != 2 {
		t.Fatalf("%+v", batch)
	}
	want(t, string(answers[0]), "1 ok")
	want(t, string(answers[1]), "2 -32602 INVALID_PARAMS")
}

func TestNotificationsGetNoContent(t *testing.T) {
	r := start(t)
	for _, body := range []string{`{"jsonrpc":"2.0","method":"hub/status"}`, `[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","method":"b"}]`} {
		for _, path := range []string{"/", "/stream"} {
			if got := r.post(t, path, body); got.status != http.StatusNoContent || got.body != "" {
				t.Errorf("%s %s: %+v", path, body, got)
			}
		}
	}
}

// sse returns the data of each event.
func sse(t *testing.T, body string) []string {
	t.Helper()
	var data []string
	for frame := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		if strings.HasPrefix(frame, ":") {
			continue
		}
		text, ok := strings.CutPrefix(frame, "data: ")
		if !ok || strings.Contains(text, "\n") {
			t.Fatalf("no event: %q", frame)
		}
		data = append(data, text)
	}
	return data
}

// HUB-HTTP-STREAM.
func TestStreamsAreServerSentEvents(t *testing.T) {
	r := start(t)
	first := r.post(t, "/stream", rpc(1, "message/stream", sendParams("hello")))
	var task struct{ Result dialect.Task }
	if err := json.Unmarshal([]byte(sse(t, first.body)[0]), &task); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]reply{
		"message/stream at /stream":    first,
		"message/send at /stream":      r.post(t, "/stream", rpc(1, "message/send", sendParams("hello"))),
		"message/stream at /":          r.post(t, "/", rpc(1, "message/stream", sendParams("hello"))),
		"tasks/resubscribe at /stream": r.post(t, "/stream", rpc(1, "tasks/resubscribe", `{"id":"`+task.Result.ID+`"}`)),
	} {
		if got.status != 200 || got.header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%s: %+v", name, got)
		}
		events := sse(t, got.body)
		for i, text := range events {
			var event struct {
				ID     int
				Result dialect.Event
			}
			if err := json.Unmarshal([]byte(text), &event); err != nil || event.ID != 1 {
				t.Fatalf("%s: %s: %v", name, text, err)
			}
			final := event.Result.Status != nil && event.Result.Status.Final
			if final != (i == len(events)-1) || (i == 0) != (event.Result.Task != nil) {
				t.Errorf("%s: event %d of %d: %s", name, i, len(events), text)
			}
		}
	}
}

func TestErrorsBeforeTheFirstEventAreJSON(t *testing.T) {
	r := start(t)
	for body, verdict := range map[string]string{
		rpc(1, "message/stream", `{}`):            "1 -32602 INVALID_PARAMS",
		rpc(2, "tasks/resubscribe", `{"id":"x"}`): "2 -32001 TASK_NOT_FOUND",
		rpc(3, "hub/status", `{}`):                "3 ok",
		rpc(4, "nope", `{}`):                      "4 -32601 METHOD_NOT_FOUND",
		`{`:                                       "null -32700 PARSE_ERROR",
		`{"jsonrpc":"2.0","id":5,"method":5}`:     "5 -32600 INVALID_REQUEST",
		`{"id":6,"method":"message/stream","jsonrpc":"1.0"}`:       "6 -32600 INVALID_REQUEST",
		`{"id":[],"method":"message/stream","jsonrpc":"2.0"}`:      "null -32600 INVALID_REQUEST",
		strings.Replace(rpc(7, "hub/status", `{}`), "7", `"7"`, 1): `"7" ok`,
	} {
		got := r.post(t, "/stream", body)
		if got.status != 200 || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %+v", body, got)
		}
		want(t, got.body, verdict)
	}
	batch := r.post(t, "/stream", `[`+rpc(1, "message/stream", sendParams("x"))+`]`)
	want(t, strings.Trim(batch.body, "[]"), "1 -32005 UNSUPPORTED_OPERATION")
}

func TestErrorsAfterTheFirstEventEndTheStream(t *testing.T) {
	r := start(t, handler(func(_ context.Context, _ jsonrpc.Request, emit jsonrpc.Emit) (any, error) {
		if err := emit("one"); err != nil {
			return nil, err
		}
		if err := emit(make(chan int)); err == nil {
			t.Error("a channel was encoded as JSON")
		}
		return nil, errors.New("secret")
	}))
	events := sse(t, r.post(t, "/stream", rpc(1, "message/stream", `{}`)).body)
	if len(events) != 2 {
		t.Fatal(events)
	}
	want(t, events[0], "1 ok")
	want(t, events[1], "1 -32603 INTERNAL_ERROR")
}

func TestTheTracesOfATaskHaveAPath(t *testing.T) {
	r := start(t)
	task, err := r.hub.SendAndWait(t.Context(), hub.SendRequest{AgentID: "echo", Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("hello"))})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/tasks/" + string(task.ID) + "/trace":         {200, `"prompt":"hello"`},
		"/tasks/" + string(task.ID) + "/trace?turn=1":  {200, `"turns":1`},
		"/tasks/" + string(task.ID) + "/trace?turn=2":  {400, `has 1 turns`},
		"/tasks/" + string(task.ID) + "/trace?turn=x":  {400, `turn`},
		"/tasks/" + string(task.ID) + "/trace?limit=0": {400, `limit`},
		"/tasks/none/trace":                            {404, `none`},
	} {
		res, err := http.Get(r.url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil || res.Body.Close() != nil || res.StatusCode != want.status || !strings.Contains(string(body), want.body) {
			t.Errorf("%s: %d %s, %v", path, res.StatusCode, body, err)
		}
	}
}

func TestAResultWithoutEventsIsJSON(t *testing.T) {
	var result any = "plain"
	r := start(t, handler(func(context.Context, jsonrpc.Request, jsonrpc.Emit) (any, error) { return result, nil }))
	want(t, r.post(t, "/stream", rpc(1, "message/stream", `{}`)).body, "1 ok")
	result = make(chan int)
	want(t, r.post(t, "/stream", rpc(2, "message/stream", `{}`)).body, "2 -32603 INTERNAL_ERROR")
}

func TestASilentStreamIsKeptAlive(t *testing.T) {
	release := make(chan struct{})
	r := start(t, handler(func(_ context.Context, _ jsonrpc.Request, emit jsonrpc.Emit) (any, error) {
		if err := emit("one"); err != nil {
			return nil, err
		}
		<-release
		return nil, emit("two")
	}), limits(server.Limits{KeepAlive: time.Millisecond}))
	resp, err := http.Post(r.url+"/stream", "application/json", strings.NewReader(rpc(1, "message/stream", `{}`)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body := bufio.NewReader(resp.Body)
	for comments := 0; comments < 3; {
		line, err := body.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == ": keep-alive\n" {
			comments++
		}
	}
	close(release)
	rest, err := io.ReadAll(body)
	if err != nil || !strings.HasSuffix(string(rest), "data: {\"jsonrpc\":\"2.0\",\"result\":\"two\",\"id\":1}\n\n") {
		t.Errorf("%q %v", rest, err)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestRequestIsCanceledWhenItsHTTPClientDisconnects(t *testing.T) {
	b := newBlocking()
	r := start(t, handler(b.handle))
	for _, method := range []string{"message/send", "message/stream"} {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, "POST", r.url, strings.NewReader(rpc(1, method, `{}`)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		failed := make(chan error)
		go func() {
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				err = resp.Body.Close()
			}
			failed <- err
		}()
		<-b.began
		cancel()
		<-b.ended
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestAnHTTPClientThatReadsNothingIsDisconnected(t *testing.T) {
	ended := make(chan error, 1)
	r := start(t, handler(func(_ context.Context, _ jsonrpc.Request, emit jsonrpc.Emit) (any, error) {
		for {
			if err := emit(strings.Repeat("x", 10_000)); err != nil {
				ended <- err
				return nil, err
			}
		}
	}), limits(server.Limits{WriteTimeout: 50 * time.Millisecond}))
	body := rpc(1, "message/stream", `{}`)
	conn := r.raw(t, fmt.Sprintf("POST /stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	defer conn.Close()
	if err := <-ended; err == nil {
		t.Error("no error")
	}
}

// raw sends text over a TCP connection.
func (r *rig) raw(t *testing.T, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

func status(t *testing.T, conn net.Conn) (int, string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestHTTPRefusesInvalidRequests(t *testing.T) {
	r := start(t, limits(server.Limits{Message: 70_000}))
	big := strings.Repeat(" ", 70_001)
	ok := rpc(1, "hub/status", `{}`)
	tests := []struct {
		name                   string
		got                    reply
		status                 int
		verdict, header, value string
	}{
		{"text", r.do(t, "POST", "/", ok, "Content-Type", "text/plain"), 415, "1 -32600 UNSUPPORTED_MEDIA_TYPE", "", ""},
		{"no type", r.do(t, "POST", "/stream", ok), 415, "1 -32600 UNSUPPORTED_MEDIA_TYPE", "", ""},
		{"another charset", r.do(t, "POST", "/", ok, "Content-Type", "application/json; charset=utf-16"), 415, "1 -32600 UNSUPPORTED_MEDIA_TYPE", "", ""},
		{"compressed", r.post(t, "/", ok, "Content-Encoding", "gzip"), 415, "1 -32600 UNSUPPORTED_MEDIA_TYPE", "", ""},
		{"GET on /", r.do(t, "GET", "/", ""), 405, "null -32600 METHOD_NOT_ALLOWED", "Allow", "POST"},
		{"PUT on /stream", r.do(t, "PUT", "/stream", ok), 405, "1 -32600 METHOD_NOT_ALLOWED", "Allow", "POST"},
		{"POST on /health", r.post(t, "/health", ok), 405, "1 -32600 METHOD_NOT_ALLOWED", "Allow", "GET, HEAD"},
		{"OPTIONS", r.do(t, "OPTIONS", "/", ""), 405, "null -32600 METHOD_NOT_ALLOWED", "Allow", "POST"},
		{"unknown path", r.do(t, "GET", "/nope", ""), 404, "null -32600 NOT_FOUND", "", ""},
		{"too large", r.post(t, "/", big), 413, "null -32600 REQUEST_TOO_LARGE", "", ""},
		{"just not too large", r.post(t, "/", ok+big[:70_000-len(ok)]), 200, "1 ok", "", ""},
		{"another host", r.post(t, "/", ok, "Host", "evil.example"), 403, "null -32600 FORBIDDEN", "", ""},
	}
	for _, tt := range tests {
		if tt.got.status != tt.status || tt.header != "" && tt.got.header.Get(tt.header) != tt.value {
			t.Errorf("%s: %+v", tt.name, tt.got)
		}
		want(t, tt.got.body, tt.verdict)
		if tt.got.header.Get("X-Content-Type-Options") != "nosniff" || tt.got.header.Get("Content-Security-Policy") == "" {
			t.Errorf("%s: no security headers: %v", tt.name, tt.got.header)
		}
	}
}

func TestChunkedBodiesAreBoundedToo(t *testing.T) {
	for _, limit := range []int{1000, 200_000} {
		r := start(t, limits(server.Limits{Message: limit}))
		for size, expected := range map[int]string{limit: "1 ok", limit + 1: "null -32600 REQUEST_TOO_LARGE"} {
			body := rpc(1, "hub/status", `{}`)
			req, err := http.NewRequestWithContext(t.Context(), "POST", r.url, io.MultiReader(strings.NewReader(body), strings.NewReader(strings.Repeat(" ", size-len(body)))))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			want(t, fetch(t, req).body, expected)
		}
	}
}

// A client that writes all of a body before it reads gets the answer.
func TestAClientThatSendsATooLargeBodyGetsTheAnswer(t *testing.T) {
	r := start(t, limits(server.Limits{Message: 8 << 20}))
	body := strings.Repeat(" ", 12<<20) // more than the system keeps for a reader
	conn := r.raw(t, fmt.Sprintf("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:8<<20]))
	defer conn.Close()
	code, answer := status(t, conn)
	if code != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", code)
	}
	want(t, answer, "null -32600 REQUEST_TOO_LARGE")
}

func TestASlowBodyIsRefused(t *testing.T) {
	r := start(t, limits(server.Limits{ReadTimeout: time.Second}))
	conn := r.raw(t, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
	defer conn.Close()
	code, body := status(t, conn)
	if code != http.StatusRequestTimeout {
		t.Errorf("status %d", code)
	}
	want(t, body, "null -32600 REQUEST_TIMEOUT")
}

func TestATruncatedBodyIsRefused(t *testing.T) {
	r := start(t)
	conn := r.raw(t, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	defer conn.Close()
	code, body := status(t, conn)
	if code != http.StatusBadRequest {
		t.Errorf("status %d", code)
	}
	want(t, body, "null -32600 INVALID_REQUEST")
}

func TestAConnectionWithSlowHeadersIsClosed(t *testing.T) {
	r := start(t, limits(server.Limits{ReadTimeout: 50 * time.Millisecond}))
	conn := r.raw(t, "POST / HTTP/1.1\r\nHost: local")
	defer conn.Close()
	if _, err := io.ReadAll(conn); err != nil {
		t.Error(err)
	}
}

// Large bodies share bounded memory: while one is being read, the next waits, and is
// refused after a timeout.
func TestMemoryForBodiesIsBounded(t *testing.T) {
	r := start(t, limits(server.Limits{Message: 200_000, BodyMemory: 800_000, ReadTimeout: 2 * time.Second, BodyWait: time.Second}))
	head := "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 150000\r\n\r\n"
	first := r.raw(t, head+strings.Repeat(" ", 100_000))
	defer first.Close()
	second := r.raw(t, head+strings.Repeat(" ", 100_000))
	defer second.Close()
	small := r.post(t, "/", rpc(1, "hub/status", `{}`)) // small bodies do not wait
	want(t, small.body, "1 ok")
	got := map[int]bool{}
	for _, conn := range []net.Conn{first, second} {
		code, body := status(t, conn)
		got[code] = true
		if verdict(t, body) != "null -32000 SERVER_BUSY" && verdict(t, body) != "null -32600 REQUEST_TIMEOUT" {
			t.Error(body)
		}
	}
	if !got[http.StatusRequestTimeout] {
		t.Error(got)
	}
}

// Bodies that arrive slowly hold no memory that others need: neither before their reservation, nor after it.
func TestSlowBodiesHoldNoMemory(t *testing.T) {
	r := start(t, limits(server.Limits{Message: 200_000, BodyMemory: 800_000, BodyWait: 30 * time.Second, BodyStep: time.Second}))
	head := "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 190000\r\n\r\n"
	for range 50 {
		conn := r.raw(t, head+strings.Repeat(" ", 10_000))
		defer conn.Close()
	}
	stalled := r.raw(t, head+strings.Repeat(" ", 100_000)) // has the whole memory
	defer stalled.Close()
	body := rpc(1, "hub/status", `{}`)
	large := r.post(t, "/", body+strings.Repeat(" ", 190_000-len(body)))
	want(t, large.body, "1 ok")
	code, text := status(t, stalled)
	if code != http.StatusRequestTimeout {
		t.Errorf("status %d", code)
	}
	want(t, text, "null -32600 REQUEST_TIMEOUT")
}

// A client that is refused for lack of memory gets the answer also if it sends everything before it reads, with the time
// after which to try again.
func TestARequestWithoutMemoryIsAnswered(t *testing.T) {
	memory := budget.New(1000, time.Millisecond)
	r := start(t, func(c *server.Config) { c.Memory = memory })
	all, err := memory.Acquire(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	body := rpc(1, "hub/status", `{}`) + strings.Repeat(" ", 8<<20)
	busy := r.post(t, "/", body)
	want(t, busy.body, "null -32000 SERVER_BUSY")
	if busy.status != http.StatusServiceUnavailable || busy.header.Get("Retry-After") == "" {
		t.Errorf("%d %v", busy.status, busy.header)
	}
	all.Release()
	want(t, r.post(t, "/", body).body, "1 ok")
}

func TestHostAndOriginAreChecked(t *testing.T) {
	allow := func(c *server.Config) {
		c.Hosts = []string{"hub.example"}
		c.Origins = []string{"https://app.example"}
	}
	r := start(t, allow)
	own := r.url
	port := own[strings.LastIndex(own, ":"):]
	tests := []struct {
		name   string
		header []string
		status int
	}{
		{"plain", nil, 200},
		{"localhost", []string{"Host", "localhost" + port}, 200},
		{"localhost in capitals with a dot", []string{"Host", "LOCALHOST."}, 200},
		{"IPv6", []string{"Host", "[::1]:8080"}, 200},
		{"another loopback address", []string{"Host", "127.9.9.9"}, 200},
		{"configured host", []string{"Host", "Hub.Example:1234"}, 200},
		{"rebound host", []string{"Host", "evil.example" + port}, 403},
		{"a name that begins well", []string{"Host", "localhost.evil.example"}, 403},
		{"a name that begins with an address", []string{"Host", "127.0.0.1.evil.example"}, 403},
		{"another address", []string{"Host", "192.168.1.1"}, 403},
		{"own origin", []string{"Origin", own}, 200},
		{"allowed origin", []string{"Origin", "https://app.example"}, 200},
		{"foreign origin", []string{"Origin", "https://evil.example"}, 403},
		{"another port of this machine", []string{"Origin", "http://127.0.0.1:1"}, 403},
		{"opaque origin", []string{"Origin", "null"}, 403},
		{"empty origin", []string{"Origin", ""}, 403},
		{"two origins", []string{"Origin", own, "Origin", "https://evil.example"}, 403},
		{"own host, other scheme", []string{"Origin", "file://127.0.0.1" + port}, 403},
	}
	for _, tt := range tests {
		got := r.post(t, "/", rpc(1, "hub/status", `{}`), tt.header...)
		if got.status != tt.status {
			t.Errorf("%s: %+v", tt.name, got)
		}
		cors := got.header.Get("Access-Control-Allow-Origin")
		if (cors != "") != (tt.name == "allowed origin") {
			t.Errorf("%s: CORS for %q", tt.name, cors)
		}
	}
	conn := r.raw(t, "POST / HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
	defer conn.Close()
	if code, _ := status(t, conn); code != 403 {
		t.Errorf("no host: %d", code)
	}
	preflight := r.do(t, "OPTIONS", "/", "", "Origin", "https://app.example", "Access-Control-Request-Method", "POST")
	if preflight.status != 204 || !strings.Contains(preflight.header.Get("Access-Control-Allow-Headers"), "Authorization") {
		t.Errorf("%+v", preflight)
	}
}

// A refused page's developer learns the configuration key from the answer, the hub's owner from the log.
func TestRefusedHostsAndOriginsNameTheConfigurationKey(t *testing.T) {
	for key, header := range map[string][2]string{
		"http.allowedOrigins": {"Origin", "https://evil.example"},
		"http.allowedHosts":   {"Host", "evil.example"},
	} {
		var log bytes.Buffer
		r := start(t, func(c *server.Config) { c.Log = slog.New(slog.NewJSONHandler(&log, nil)) })
		got := r.post(t, "/", rpc(1, "hub/status", `{}`), header[0], header[1])
		if got.status != 403 || !strings.Contains(got.body, key) || !strings.Contains(got.body, "evil.example") {
			t.Errorf("%+v", got)
		}
		for range 100 {
			r.post(t, "/", rpc(1, "hub/status", `{}`), header[0], header[1])
		}
		if err := r.Shutdown(t.Context()); err != nil { // then nothing writes to the log
			t.Fatal(err)
		}
		lines := strings.Count(log.String(), key)
		if lines == 0 || lines > 50 || !strings.Contains(log.String(), "evil.example") {
			t.Errorf("%d lines of the log name %s: %.2000s", lines, key, log.String())
		}
	}
}

// An error has the id of the request wherever the request was read.
func TestRefusedCallsKeepTheirID(t *testing.T) {
	r := start(t)
	call := `{"jsonrpc":"2.0","id":"abc","method":"hub/status"}`
	for _, tt := range []struct {
		name, method, path, body, mediaType string
		status                              int
		want                                string
	}{
		{"media type", "POST", "/", call, "text/plain", 415, `"abc" -32600 UNSUPPORTED_MEDIA_TYPE`},
		{"no such path", "POST", "/nope", call, "application/json", 404, `"abc" -32600 NOT_FOUND`},
		{"no such method", "PUT", "/", call, "application/json", 405, `"abc" -32600 METHOD_NOT_ALLOWED`},
		{"a batch", "POST", "/nope", "[" + call + "]", "application/json", 404, "null -32600 NOT_FOUND"},
		{"no request", "POST", "/nope", "hello", "application/json", 404, "null -32600 NOT_FOUND"},
		{"a notification", "POST", "/nope", `{"jsonrpc":"2.0","method":"x"}`, "application/json", 404, "null -32600 NOT_FOUND"},
		{"no body", "GET", "/nope", "", "", 404, "null -32600 NOT_FOUND"},
		{"an unknown JSON-RPC method", "POST", "/", `{"jsonrpc":"2.0","id":7,"method":"nope"}`, "application/json", 200, "7 -32601 METHOD_NOT_FOUND"},
	} {
		got := r.do(t, tt.method, tt.path, tt.body, "Content-Type", tt.mediaType)
		if got.status != tt.status || verdict(t, got.body) != tt.want {
			t.Errorf("%s: HTTP %d %s, want %d %s", tt.name, got.status, got.body, tt.status, tt.want)
		}
	}
}

func TestAllRoutesButLivenessAndCardsNeedTheToken(t *testing.T) {
	const token = "s3cret-token-of-the-test"
	r := start(t, func(c *server.Config) { c.Token = token })
	r.Mount("GET /mounted", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	ok := rpc(1, "hub/status", `{}`)
	for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Bearer " + token + "x", "Bearer " + token[1:], "Basic " + token, token} {
		var header []string
		if authorization != "" {
			header = []string{"Authorization", authorization}
		}
		for _, got := range []reply{
			r.post(t, "/", ok, header...), r.post(t, "/stream", ok, header...), r.do(t, "GET", "/.well-known/agents", "", header...),
			r.do(t, "GET", "/mounted", "", header...), r.do(t, "GET", "/nope", "", header...), r.do(t, "POST", "/health", "", header...),
		} {
			if got.status != 401 || !strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Bearer") || strings.Contains(got.body, token) {
				t.Errorf("%q: %+v", authorization, got)
			}
			want(t, got.body, "null -32006 AUTHENTICATION_ERROR")
			if !strings.Contains(got.body, "http.token") {
				t.Errorf("the key is not named: %s", got.body)
			}
		}
		if got := r.do(t, "GET", "/health", "", header...); got.status != 200 || got.body != `{"status":"healthy"}` {
			t.Errorf("%+v", got)
		}
	}
	for _, path := range []string{"/.well-known/agent.json", "/.well-known/agents/echo.json"} {
		if got := r.do(t, "GET", path, ""); got.status != 200 || got.header.Get("ETag") == "" {
			t.Errorf("GET %s: %+v", path, got)
		}
		if got := r.do(t, "HEAD", path, ""); got.status != 200 || got.body != "" {
			t.Errorf("HEAD %s: %+v", path, got)
		}
		if got := r.do(t, "GET", path, "", "Origin", "https://evil.example"); got.status != 403 {
			t.Errorf("%s from another origin: %+v", path, got)
		}
	}
	small := start(t, limits(server.Limits{Message: 1000}), func(c *server.Config) { c.Token = token })
	if got := small.do(t, "GET", "/.well-known/agent.json", strings.Repeat("x", 2000)); got.status != 200 {
		t.Errorf("the body of a public request is read: %+v", got)
	}
	for _, scheme := range []string{"Bearer ", "bearer ", "Bearer  "} {
		want(t, r.post(t, "/", ok, "Authorization", scheme+token).body, "1 ok")
	}
	if got := r.do(t, "GET", "/mounted", "", "Authorization", "Bearer "+token); got.status != http.StatusTeapot {
		t.Errorf("%+v", got)
	}
	if got := r.do(t, "GET", "/health", "", "Authorization", "Bearer "+token); !strings.Contains(got.body, `"version":"1.0.0"`) {
		t.Errorf("%+v", got)
	}
	card := r.do(t, "GET", "/.well-known/agent.json", "", "Authorization", "Bearer "+token)
	if !strings.HasPrefix(card.header.Get("Cache-Control"), "private") {
		t.Errorf("%+v", card)
	}
}

// HUB-HTTP-HEALTH.
func TestHealth(t *testing.T) {
	r := start(t)
	got := r.do(t, "GET", "/health", "")
	var report dialect.HealthReport
	if err := json.Unmarshal([]byte(got.body), &report); err != nil || got.status != 200 || report.Status != "healthy" || report.Version != "1.0.0" || report.Agents.Total != 1 {
		t.Errorf("%+v %v", got, err)
	}
	if head := r.do(t, "HEAD", "/health", ""); head.status != 200 || head.body != "" {
		t.Errorf("%+v", head)
	}
	sick := start(t, func(c *server.Config) {
		c.Health = func() dialect.HealthReport {
			return dialect.HealthReport{Status: dialect.HubUnhealthy, Reason: "disk full"}
		}
	})
	if got := sick.do(t, "GET", "/health", ""); got.status != 503 || !strings.Contains(got.body, "disk full") {
		t.Errorf("%+v", got)
	}
}

func TestHealthReportsThatTheHubStops(t *testing.T) {
	b := newBlocking()
	r := start(t, handler(b.handle))
	web := make(chan reply)
	go func() { web <- r.post(t, "/", rpc(1, "block", `{}`)) }()
	<-b.began
	probe := httptest.NewRecorder()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- r.Shutdown(ctx) }()
	waitGone(t, r.socket)
	r.CalledBy(caller.Caller{Kind: caller.Own}).ServeHTTP(probe, localRequest("/health"))
	if probe.Code != 503 || !strings.Contains(probe.Body.String(), "stopping") {
		t.Errorf("%d %s", probe.Code, probe.Body)
	}
	cancel()
	<-b.ended
	want(t, (<-web).body, "1 -32603 INTERNAL_ERROR")
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func localRequest(path string) *http.Request {
	req := httptest.NewRequest("GET", path, nil)
	req.Host = "localhost"
	return req
}

// HUB-HTTP-CARD, HUB-HTTP-CARDS, HUB-HTTP-AGENT-CARD.
func TestCardsAreCacheable(t *testing.T) {
	r := start(t)
	for _, path := range []string{"/.well-known/agent.json", "/.well-known/agents", "/.well-known/agents/echo.json"} {
		got := r.do(t, "GET", path, "")
		etag := got.header.Get("ETag")
		if got.status != 200 || etag == "" || !strings.Contains(got.header.Get("Cache-Control"), "max-age") || !strings.Contains(got.body, `"protocolVersion":"1.0"`) {
			t.Errorf("%s: %+v", path, got)
		}
		for header, status := range map[string]int{etag: 304, "W/" + etag: 304, `"x", ` + etag: 304, "*": 304, `"x"`: 200, "": 200} {
			if again := r.do(t, "GET", path, "", "If-None-Match", header); again.status != status || (status == 304) != (again.body == "") {
				t.Errorf("%s with %q: %+v", path, header, again)
			}
		}
	}
	if card := r.do(t, "GET", "/.well-known/agents/echo.json", ""); !strings.Contains(card.body, r.url+"/agents/echo/a2a") {
		t.Error(card.body)
	}
	for _, path := range []string{"/.well-known/agents/nobody.json", "/.well-known/agents/echo", "/.well-known/agents/..%2fecho.json"} {
		got := r.do(t, "GET", path, "")
		if got.status != 404 {
			t.Errorf("%s: %+v", path, got)
		}
		want(t, got.body, "null -32003 AGENT_NOT_FOUND")
	}
}

func TestMountedHandlersGetBodiesAndStreams(t *testing.T) {
	r := start(t)
	r.Mount("POST /mounted/", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		flusher, ok := w.(http.Flusher)
		if !ok {
			t.Error("the response writer cannot flush")
		}
		flusher.Flush()
		if n, err := io.Copy(w, req.Body); err != nil || n != req.ContentLength {
			t.Error(n, err)
		}
	}))
	if got := r.do(t, "POST", "/mounted/x", "hello"); got.body != "hello" {
		t.Errorf("%+v", got)
	}
	if got := r.do(t, "POST", "/mounted/x", "hello", "Host", "evil.example"); got.status != 403 {
		t.Errorf("%+v", got)
	}
}

func TestUnsafeConfigurationsAreRefused(t *testing.T) {
	tests := []struct {
		name string
		cfg  server.Config
		ok   bool
	}{
		{"loopback", server.Config{HTTP: "127.0.0.1:0"}, true},
		{"localhost", server.Config{HTTP: "localhost:0"}, true},
		{"IPv6 loopback", server.Config{HTTP: "[::1]:0"}, true},
		{"short token on loopback", server.Config{HTTP: "127.0.0.1:0", Token: "x7Q"}, true},
		{"all addresses with a token", server.Config{HTTP: ":0", Token: "0123456789abcdef"}, true},
		{"no port", server.Config{HTTP: "127.0.0.1"}, false},
		{"all addresses", server.Config{HTTP: ":0"}, false},
		{"all IPv4", server.Config{HTTP: "0.0.0.0:0"}, false},
		{"a name", server.Config{HTTP: "hub.example:0"}, false},
		{"another address", server.Config{HTTP: "192.168.1.1:0"}, false},
		{"short token on all addresses", server.Config{HTTP: ":0", Token: "x7Q"}, false},
		{"token with a line break", server.Config{HTTP: "127.0.0.1:0", Token: "a\nb"}, false},
		{"origin with a path", server.Config{HTTP: "127.0.0.1:0", Origins: []string{"https://a.example/x"}}, false},
		{"origin that is a star", server.Config{HTTP: "127.0.0.1:0", Origins: []string{"*"}}, false},
	}
	for _, tt := range tests {
		_, err := server.New(tt.cfg)
		var se *server.Error
		if tt.ok != (err == nil) || err != nil && (!errors.As(err, &se) || se.Code != server.CodeConfig) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if se != nil && tt.cfg.Token != "" && strings.Contains(se.Error(), tt.cfg.Token) {
			t.Errorf("%s: the token is in the error", tt.name)
		}
	}
}

func TestAServerOnAllAddressesAcceptsAnyIPAsHost(t *testing.T) {
	const token = "0123456789abcdef"
	r := start(t, func(c *server.Config) { c.HTTP, c.Token = "0.0.0.0:0", token })
	r.url = strings.Replace(r.url, "[::]", "127.0.0.1", 1)
	r.url = strings.Replace(r.url, "0.0.0.0", "127.0.0.1", 1)
	for host, status := range map[string]int{"192.168.7.7:80": 200, "evil.example": 403} {
		if got := r.post(t, "/", rpc(1, "hub/status", `{}`), "Host", host, "Authorization", "Bearer "+token); got.status != status {
			t.Errorf("%s: %+v", host, got)
		}
	}
}

func TestAnAddressInUseIsReported(t *testing.T) {
	r := start(t)
	s, err := server.New(server.Config{HTTP: r.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	var se *server.Error
	if err := s.Start(t.Context()); !errors.As(err, &se) || se.Code != server.CodeInUse || !strings.Contains(se.Remedy, "--http-port") {
		t.Error(err)
	}
	// Start closes the HTTP listener if the socket is in use.
	s, err = server.New(server.Config{HTTP: "127.0.0.1:0", Socket: r.socket})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); !errors.As(err, &se) || se.Code != server.CodeInUse {
		t.Error(err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAPanicOfAMountedHandlerEndsOnlyItsRequest(t *testing.T) {
	r := start(t)
	r.Mount("GET /panic", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") }))
	if resp, err := http.Get(r.url + "/panic"); err == nil {
		t.Error(resp.Status)
		resp.Body.Close()
	}
	want(t, r.post(t, "/", rpc(1, "hub/status", `{}`)).body, "1 ok")
}
