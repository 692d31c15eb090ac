package wire_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/parleyhub/parley/internal/mcp/wire"
)

const (
	call   = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"files.read_file","arguments":{"path":"a \"quoted\" name"}}}`
	answer = `{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"a \"quoted\" answer"}],"isError":false}}`
)

// parts returns a message in parts that can be compared.
func parts(m jsonrpc.Message) []any {
	switch m := m.(type) {
	case *jsonrpc.Request:
		return []any{"request", m.ID.Raw(), m.Method, string(m.Params)}
	case *jsonrpc.Response:
		return []any{"response", m.ID.Raw(), string(m.Result), m.Error}
	}
	return nil
}

// What is decoded here is what the SDK decodes.
func FuzzMessagesAreDecodedAsBySDK(f *testing.F) {
	for _, line := range []string{
		call, answer, `{"id":0,"result":null,"jsonrpc":"2.0"}`, `{ "jsonrpc" : "2.0" , "id" : 12 , "result" : [ 1, "ä" ] }`,
		`{"jsonrpc":"2.0","id":9007199254740993,"result":{}}`, `{"jsonrpc":"2.0","id":-1,"result":{}}`, `{"jsonrpc":"2.0","id":1e2,"result":{}}`,
		`{"jsonrpc":"2.0","id":"7","result":{}}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"no"}}`,
		`{"jsonrpc":"2.0","id":7,"result":{},"extra":1}`, `{"jsonrpc":"2.0","id":7,"id":8,"result":{}}`, `{"jsonrpc":"1.0","id":7,"result":{}}`,
		`{"jsonrpc":"2.0","id":7,"method":"ping"}`, `{"jsonrpc":"2.0","method":"notifications/x","params":{}}`, `{"jsonrpc":"2.0","id":7}`,
		`{"jsonrpc":"2.0","id":"é","method":"ping","params":null}`, `{"jsonrpc":"2.0","id":"\u0041","method":"p\u0069ng"}`, `{"jsonrpc":"2.0","id":"","method":""}`,
		`{"jsonrpc":"2.0","id":null,"method":"ping"}`, `{"jsonrpc":"2.0","id":7,"method":null}`, `{"jsonrpc":"2.0","id":7,"method":"ping","result":1}`,
		`{"jsonrpc":"2.0","id":7,"params":{},"result":{}}`, `{"jsonrpc":"2.0","id":07,"method":"ping"}`, `{"jsonrpc":"2.0","method":"ping","params":[1,2]}`,
		"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"ping\"}", "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"\xff\"}", `[]`, `{`, "",
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		got := wire.Plain(line)
		if got == nil {
			return
		}
		want, err := jsonrpc.DecodeMessage(line)
		if err != nil {
			t.Fatalf("%q is no message: %v", line, err)
		}
		if diff := cmp.Diff(parts(want), parts(got)); diff != "" {
			t.Fatalf("%q: %s", line, diff)
		}
	})
}

func TestCallsAndTheirAnswersAreDecodedWithoutTheSDK(t *testing.T) {
	for text, want := range map[string][]any{
		call:   {"request", int64(7), "tools/call", `{"name":"files.read_file","arguments":{"path":"a \"quoted\" name"}}`},
		answer: {"response", int64(7), `{"content":[{"type":"text","text":"a \"quoted\" answer"}],"isError":false}`, error(nil)},
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`: {"request", nil, "notifications/initialized", ""},
	} {
		line := []byte(text)
		got := wire.Plain(line)
		clear(line) // the next line is read into it
		if diff := cmp.Diff(want, parts(got)); diff != "" {
			t.Error(diff)
		}
	}
	m, err := wire.Decode([]byte(`{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"no"}}`))
	if response, ok := m.(*jsonrpc.Response); err != nil || !ok || response.Error == nil {
		t.Errorf("an error is decoded as %+v, %v", m, err)
	}
}

// BenchmarkDecode decodes a call and its answer, as it is done here and as the SDK does it.
func BenchmarkDecode(b *testing.B) {
	for name, decode := range map[string]func([]byte) (jsonrpc.Message, error){"own": wire.Decode, "sdk": jsonrpc.DecodeMessage} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, line := range []string{call, answer} {
					if _, err := decode([]byte(line)); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
