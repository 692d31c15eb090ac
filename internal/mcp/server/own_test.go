package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// probes are tools of Parley's whose calls show what reaches them.
type probes struct {
	started, canceled chan struct{} // a waiting call has begun; it was canceled, nil for nobody who waits for that
	ended             atomic.Bool   // it has ended
}

type probeIn struct {
	Text  string   `json:"text"`
	Count int      `json:"count,omitempty"`
	List  []string `json:"list,omitempty"`
}

type probeOut struct {
	Text  string `json:"text"`
	Trace string `json:"trace"`
}

func (*probes) Instructions() string { return "" }

func (*probes) Register(*mcpserver.Server) {}

func (p *probes) Tools(all *mcpserver.Tools) {
	mcpserver.AddTool(all, mcpserver.Tool[probeIn, probeOut]{
		Name: "probe", Title: "Probe", Description: "answers with its arguments", WrittenBy: mcpserver.ByOthers,
		Handle: func(_ context.Context, c *mcpserver.Call, in probeIn) (string, probeOut, error) {
			switch in.Text {
			case "fail":
				return "", probeOut{}, &mcpserver.Failure{Category: "Busy", Message: "no <disk> & more", Remedy: "wait", RetryAfter: time.Second}
			case "secret":
				return "", probeOut{}, errors.New("a secret")
			case "panic":
				panic("a secret")
			}
			return fmt.Sprint("<", in.Text, "> & ", in.Count, in.List), probeOut{in.Text, c.Meta("traceparent")}, nil
		},
	})
	mcpserver.AddTool(all, mcpserver.Tool[struct{}, probeOut]{
		Name: "hold", Title: "Hold", Description: "waits until it is canceled", Blocks: true,
		Handle: func(ctx context.Context, c *mcpserver.Call, _ struct{}) (string, probeOut, error) {
			stop := c.ReportProgress(ctx, time.Minute, "holding")
			defer stop()
			p.started <- struct{}{}
			<-ctx.Done()
			if p.canceled != nil {
				p.canceled <- struct{}{}
				for range 1000 { // so that others go on first
					runtime.Gosched()
				}
			}
			p.ended.Store(true)
			return "", probeOut{}, ctx.Err()
		},
	})
}

// probeClient writes calls that are answered directly, or leaves them to the SDK by a member that only it knows.
type probeClient struct {
	*lineClient
	probes *probes
	bySDK  bool
	out    *failing
	served chan error
}

func newProbeClient(t testing.TB, bySDK bool) *probeClient {
	t.Helper()
	p := &probes{started: make(chan struct{}, 1)}
	service := mcpserver.NewService(mcpserver.Options{Groups: []mcpserver.Group{p}, Logger: slog.New(slog.DiscardHandler)})
	client, served := net.Pipe()
	c := &probeClient{&lineClient{t: t, conn: client, in: bufio.NewReader(client)}, p, bySDK, &failing{Conn: served}, make(chan error, 1)}
	go func() { c.served <- service.ServeLines(context.Background(), mcpserver.Caller{}, served, c.out) }()
	t.Cleanup(func() {
		client.Close()
		<-c.served
		service.Stop()
	})
	c.write(`{"jsonrpc":"2.0","id":"begin","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
	c.read()
	c.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

// params writes a call with parameters.
func (c *probeClient) params(id int, params string) {
	c.t.Helper()
	if rest, object := strings.CutPrefix(params, "{"); c.bySDK && object {
		params = `{"requestState":"",` + rest
		if strings.TrimSpace(rest) == "}" {
			params = `{"requestState":""}`
		}
	}
	c.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%s}`, id, params))
}

// calls are parameters of calls, most of them hostile.
var calls = []string{
	`{"name":"probe","arguments":{"text":"hello"}}`,
	`{"name":"probe","arguments":{"text":"ä \u2028 \ud83d\ude00 </script> \n","count":-0,"list":["<&>"]}}`,
	`{"name":"probe","arguments":{"text":"fail"}}`, `{"name":"probe","arguments":{"text":"secret"}}`, `{"name":"probe","arguments":{"text":"panic"}}`,
	`{"name":"probe"}`, `{"name":"probe","arguments":{}}`, `{"name":"probe","arguments":null}`, `{"name":"probe","arguments":[]}`, `{"name":"probe","arguments":"x"}`,
	`{"name":"probe","arguments":{"text":7}}`, `{"name":"probe","arguments":{"text":"a","text":"b"}}`, `{"name":"probe","arguments":{"Text":"a"}}`,
	`{"name":"probe","arguments":{"text":"a","count":1e99}}`, `{"name":"probe","arguments":{"text":"a","count":123456789012345678901234567890}}`,
	`{"name":"probe","arguments":{"text":"a","list":[1]}}`, `{"name":"probe","arguments":{"text":"a","list":[null]}}`, `{"name":"probe","arguments":{"text":"a","other":1}}`,
	`{"name":"probe","arguments":{"text":"\ud800"}}`, "{\"name\":\"probe\",\"arguments\":{\"text\":\"\xff\"}}", `{"name":"probe","arguments":{"text":"\u0000"}}`,
	`{"name":"probe","arguments":{"text":"a"},"_meta":{"traceparent":"00-1"}}`, `{"name":"probe","arguments":{"text":"a"},"_meta":{"traceparent":7}}`,
	`{"name":"probe","arguments":{"text":"a"},"_meta":{"traceparent":"\ud800\u003c"}}`, `{"name":"probe","arguments":{"text":"a"},"_meta":{}}`,
	`{"name":"probe","arguments":{"text":"a"},"_meta":null}`, `{"name":"probe","arguments":{"text":"a"},"_meta":[]}`, `{"name":"probe","arguments":{"text":"a"},"_meta":{"a":1,"a":2}}`,
	`{"name":"probe","arguments":{"text":"a"},"_meta":{"n":1e999}}`, `{"name":"probe","arguments":{"text":"a"},"_meta":{"progressToken":{}}}`,
	`{"name":"probe","name":"hold","arguments":{"text":"a"}}`, `{"Name":"probe","arguments":{"text":"a"}}`, `{"name":"pro\u0062e","arguments":{"text":"a"}}`,
	`{"name":"nobody"}`, `{"name":""}`, `{"name":7}`, `{}`, `{"name":"probe","arguments":{"text":"a"},"extra":1}`,
	`{"name":"probe","arguments":{"text":` + strings.Repeat(`[`, 990) + strings.Repeat(`]`, 990) + `}}`,
	`{"name":"probe","arguments":{"text":"` + strings.Repeat("x", 100_000) + `"}}`,
}

func TestOwnToolsAnswerDirectlyAsBySDK(t *testing.T) {
	direct, sdk := newProbeClient(t, false), newProbeClient(t, true)
	for i, params := range calls {
		direct.params(i, params)
		sdk.params(i, params)
		if got, want := direct.read(), withoutMark(sdk.read()); got != want {
			t.Errorf("%.200s:\n%.400s\nwant\n%.400s", params, got, want)
		}
	}
}

// withoutMark returns an answer that quotes the parameters as they were.
func withoutMark(answer string) string {
	return strings.NewReplacer(`\"requestState\":\"\",`, "", `\\\"requestState\\\":\\\"\\\",`, "", `\"requestState\":\"\"`, "").Replace(answer)
}

func FuzzOwnToolsAnswerDirectlyAsBySDK(f *testing.F) {
	for _, params := range calls {
		f.Add(params)
	}
	direct, sdk := newProbeClient(f, false), newProbeClient(f, true)
	f.Fuzz(func(t *testing.T, params string) {
		if !json.Valid([]byte(params)) || strings.ContainsAny(params, "\n\r") || strings.Contains(params, "hold") || strings.Contains(params, "requestState") || strings.Contains(params, "_meta") {
			return // no line, or one with an answer that is not the only one: other tests have those
		}
		direct.t, sdk.t = t, t
		direct.params(1, params)
		sdk.params(1, params)
		if got, want := direct.read(), withoutMark(sdk.read()); got != want {
			t.Errorf("%q:\n%s\nwant\n%s", params, got, want)
		}
	})
}

// What a call sends before its answer is the same, too: progress, log messages, and the answer to a cancellation.
func TestOwnToolsNotifyDirectlyAsBySDK(t *testing.T) {
	mcpserver.ReportEvery(t, time.Millisecond)
	varying := regexp.MustCompile(`"progress":[0-9.e-]+|"took":"[^"]*"`)
	var said [2][]string
	for i, bySDK := range []bool{false, true} {
		c := newProbeClient(t, bySDK)
		for _, token := range []string{`"a<b"`, `7`, `12345678901234567890`, `null`, `{}`} {
			c.params(1, `{"name":"hold","_meta":{"progressToken":`+token+`}}`)
			<-c.probes.started
			line := ""
			if strings.HasPrefix(token, `"`) || token == "7" {
				line = c.read()
			}
			c.write(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
			answer := c.read()
			for strings.Contains(answer, "notifications/progress") {
				answer = c.read()
			}
			said[i] = append(said[i], line, answer)
		}
		c.write(`{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"debug"}}`)
		c.read()
		c.params(3, `{"name":"probe","arguments":{"text":"a"}}`)
		said[i] = append(said[i], c.read(), c.read())
		c.params(4, `{"name":"probe","arguments":{"text":"fail"}}`)
		said[i] = append(said[i], c.read(), c.read())
	}
	for n := range said[0] {
		if got, want := varying.ReplaceAllString(said[0][n], ""), varying.ReplaceAllString(said[1][n], ""); got != want {
			t.Errorf("%d:\n%s\nwant\n%s", n, got, want)
		}
	}
	if !strings.Contains(said[0][0], `"progressToken":"a`) || !strings.Contains(said[0][1], "InterruptedError") {
		t.Errorf("%q", said[0])
	}
}

// The server ends after the calls that run, also when the client is gone: the answer to the ping cannot be written.
func TestServeLinesWaitsForOwnTools(t *testing.T) {
	for _, bySDK := range []bool{false, true} {
		c := newProbeClient(t, bySDK)
		c.probes.canceled = make(chan struct{})
		c.params(1, `{"name":"hold"}`)
		<-c.probes.started
		c.out.fail.Store(true)
		c.write(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
		<-c.probes.canceled
		err := <-c.served
		if !c.probes.ended.Load() {
			t.Errorf("by the SDK: %v: the call still runs: %v", bySDK, err)
		}
		c.served <- nil // for the cleanup
	}
}

// failing is an output that fails when it is told to.
type failing struct {
	net.Conn
	fail atomic.Bool
}

func (f *failing) Write(data []byte) (int, error) {
	if f.fail.Load() {
		return 0, io.ErrClosedPipe
	}
	return f.Conn.Write(data)
}
