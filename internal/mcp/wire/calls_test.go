package wire_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/mcp/wire"
)

// pair is a connection whose other end the test is.
type pair struct{ to, from chan jsonrpc.Message }

func (p pair) Connect(context.Context) (mcp.Connection, error) { return p, nil }

func (p pair) Read(context.Context) (jsonrpc.Message, error) {
	m, open := <-p.to
	if !open {
		return nil, io.EOF
	}
	return m, nil
}

func (p pair) Write(_ context.Context, m jsonrpc.Message) error {
	p.from <- m
	return nil
}

func (pair) Close() error      { return nil }
func (pair) SessionID() string { return "" }

// called sends what a call returns.
type called struct {
	result json.RawMessage
	err    error
}

func TestCallsBesideASession(t *testing.T) {
	p := pair{make(chan jsonrpc.Message), make(chan jsonrpc.Message, 10)}
	calls := wire.NewCalls(p)
	if _, err := calls.Call(t.Context(), "tools/call", nil); !errors.Is(err, mcp.ErrConnectionClosed) {
		t.Errorf("without a connection: %v", err)
	}
	conn, err := calls.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan any, 10)
	go func() {
		for {
			m, err := conn.Read(context.Background())
			if err != nil {
				seen <- err
				return
			}
			seen <- m
		}
	}()
	begin := func(ctx context.Context) (*jsonrpc.Request, chan called) {
		done := make(chan called, 1)
		go func() {
			result, err := calls.Call(ctx, "tools/call", json.RawMessage(`{"name":"x"}`))
			done <- called{result, err}
		}()
		return (<-p.from).(*jsonrpc.Request), done
	}
	first, answer := begin(t.Context())
	second, failure := begin(t.Context())
	p.to <- &jsonrpc.Response{ID: second.ID, Error: &jsonrpc.Error{Code: -32602, Message: "no"}}
	p.to <- &jsonrpc.Response{ID: first.ID, Result: json.RawMessage(`{"a":1}`)}
	if got := <-answer; got.err != nil || string(got.result) != `{"a":1}` {
		t.Errorf("got %s, %v", got.result, got.err)
	}
	if e, ok := errors.AsType[*jsonrpc.Error]((<-failure).err); !ok || e.Code != -32602 {
		t.Error("the server's error is missing")
	}

	ctx, cancel := context.WithCancel(t.Context())
	third, canceled := begin(ctx)
	cancel()
	if got := <-canceled; !errors.Is(got.err, context.Canceled) {
		t.Error(got.err)
	}
	if note := (<-p.from).(*jsonrpc.Request); note.Method != "notifications/cancelled" || !strings.Contains(string(note.Params), "1073741827") {
		t.Errorf("the server was told %s %s", note.Method, note.Params)
	}
	p.to <- &jsonrpc.Response{ID: third.ID, Result: json.RawMessage(`{}`)} // late: nobody sees it
	id, _ := jsonrpc.MakeID(float64(1))
	p.to <- &jsonrpc.Response{ID: id, Result: json.RawMessage(`{}`)}
	if r, ok := (<-seen).(*jsonrpc.Response); !ok || r.ID != id {
		t.Errorf("the session saw %+v", r)
	}

	_, pending := begin(t.Context())
	close(p.to)
	if got := <-pending; !errors.Is(got.err, mcp.ErrConnectionClosed) || !strings.Contains(got.err.Error(), "EOF") {
		t.Error(got.err)
	}
	if _, err := calls.Call(t.Context(), "tools/call", nil); !errors.Is(err, mcp.ErrConnectionClosed) {
		t.Error(err)
	}
}

func TestMessagesAreEncodedOnOneLine(t *testing.T) {
	number, _ := jsonrpc.MakeID(float64(7))
	text, _ := jsonrpc.MakeID("a \"b\"")
	for want, m := range map[string]jsonrpc.Message{
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":"<\n>","b":1}}`: &jsonrpc.Request{ID: number, Method: "tools/call",
			Params: json.RawMessage("{\"a\":\"<\\n>\",\n\r\"b\": 1}")},
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`:                    &jsonrpc.Request{Method: "notifications/initialized"},
		`{"jsonrpc":"2.0","id":"a \"b\"","result":{}}`:                              &jsonrpc.Response{ID: text, Result: json.RawMessage(`{}`)},
		`{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"no"}}`:           &jsonrpc.Response{ID: number, Error: &jsonrpc.Error{Code: -32602, Message: "no"}},
		`{"jsonrpc":"2.0","id":7,"result":{"content":[ {"type":"text","text":1}]}}`: &jsonrpc.Response{ID: number, Result: json.RawMessage(`{"content":[ {"type":"text","text":1}]}`)},
	} {
		got, err := wire.Encode(m)
		if err != nil || string(got) != want {
			t.Errorf("got %s, %v; want %s", got, err, want)
		}
	}
}

// What is read here is what the SDK reads.
func FuzzToolResultsAreReadAsBySDK(f *testing.F) {
	for _, result := range []string{
		`{"content":[]}`, `{"content":[{"type":"text","text":"a\u0041\n"}],"structuredContent":{"a":1},"isError":false,"_meta":{"x":1},"resultType":"complete"}`,
		`{"content":[{"type":"image","data":"","mimeType":"x"}]}`, `{"content":null}`, `{"content":[null]}`, `{"content":[{"type":"text","text":7}]}`,
		`{"content":[],"isError":true}`, `{"content":[],"content":[]}`, `{"content":[],"_meta":7}`, `{"structuredContent":{}}`, `{"content":[],"x":1}`,
		`{"content":[],"resultType":"input_required","inputRequests":{}}`, `[]`, ``, `{"content":{}}`, `{"content":[{"type":"text","text":"x","annotations":{}}]}`,
	} {
		f.Add([]byte(result))
	}
	f.Fuzz(func(t *testing.T, result []byte) {
		got, ok := wire.ReadToolResult(result)
		if !ok {
			return
		}
		var want mcp.CallToolResult
		if err := json.Unmarshal(result, &want); err != nil {
			t.Fatalf("%q is no result: %v", result, err)
		}
		if want.IsError || len(got.Texts) != len(want.Content) || len(got.Meta) != len(want.Meta) || (got.Structured == nil) != (want.StructuredContent == nil) {
			t.Fatalf("%q: %+v, want %+v", result, got, want)
		}
	})
}

func TestToolCallsAreRead(t *testing.T) {
	got, ok := wire.ReadToolCall([]byte(`{"name":"a.b","arguments":{"n":12345678901234567890},"_meta":{"progressToken":7,"t":"x"}}`))
	if !ok || got.Name != "a.b" || got.Text("t") != "x" || got.Text("progressToken") != "" {
		t.Errorf("%+v, %v", got, ok)
	}
	if diff := cmp.Diff(`{"n":12345678901234567890}`, string(got.Arguments)); diff != "" {
		t.Error(diff)
	}
	for _, params := range []string{`{}`, `{"name":7}`, `{"name":"\u0041"}`, `{"name":"a","name":"b"}`, `{"name":"a","arguments":[]}`, `{"name":"a","arguments":null}`,
		`{"name":"a","x":1}`, `{"name":"a","_meta":7}`, `{"name":"a","_meta":{"x":1,"x":2}}`, `[]`, ``, "{\"name\":\"\xff\"}"} {
		if got, ok := wire.ReadToolCall([]byte(params)); ok {
			t.Errorf("%s is read as %+v", params, got)
		}
	}
}
