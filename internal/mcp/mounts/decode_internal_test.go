package mounts

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const callAnswer = `{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"a \"quoted\" answer"}],"isError":false}}`

// What is decoded here is what the SDK decodes.
func FuzzAnswersAreDecodedAsBySDK(f *testing.F) {
	for _, line := range []string{
		callAnswer, `{"id":0,"result":null,"jsonrpc":"2.0"}`, `{ "jsonrpc" : "2.0" , "id" : 12 , "result" : [ 1, "ä" ] }`,
		`{"jsonrpc":"2.0","id":9007199254740993,"result":{}}`, `{"jsonrpc":"2.0","id":-1,"result":{}}`, `{"jsonrpc":"2.0","id":1e2,"result":{}}`,
		`{"jsonrpc":"2.0","id":"7","result":{}}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"no"}}`,
		`{"jsonrpc":"2.0","id":7,"result":{},"extra":1}`, `{"jsonrpc":"2.0","id":7,"id":8,"result":{}}`, `{"jsonrpc":"1.0","id":7,"result":{}}`,
		`{"jsonrpc":"2.0","id":7,"method":"ping"}`, `{"jsonrpc":"2.0","method":"notifications/x","params":{}}`, `{"jsonrpc":"2.0","id":7}`,
		"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"\xff\"}", `[]`, `{`, "",
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		got := answer(line)
		if got == nil {
			return
		}
		want, err := jsonrpc.DecodeMessage(line)
		if err != nil {
			t.Fatalf("%q is no message: %v", line, err)
		}
		response, ok := want.(*jsonrpc.Response)
		if !ok || got.ID != response.ID || response.Error != nil || !bytes.Equal(got.Result, response.Result) {
			t.Fatalf("%q is decoded as %+v, not as %+v", line, got, want)
		}
	})
}

func TestAnswersToCallsAreDecodedWithoutTheSDK(t *testing.T) {
	line := []byte(callAnswer)
	got := answer(line)
	if got == nil {
		t.Fatal("it is left to the SDK")
	}
	clear(line) // the next line is read into it
	if diff := cmp.Diff(`{"content":[{"type":"text","text":"a \"quoted\" answer"}],"isError":false}`, string(got.Result)); diff != "" {
		t.Error(diff)
	}
	if m, err := decode([]byte(`{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"no"}}`)); err != nil || m.(*jsonrpc.Response).Error == nil {
		t.Errorf("an error is decoded as %+v, %v", m, err)
	}
}

// BenchmarkDecode decodes the answer to a call, as it is done here and as the SDK does it.
func BenchmarkDecode(b *testing.B) {
	for name, decode := range map[string]func([]byte) (jsonrpc.Message, error){"own": decode, "sdk": jsonrpc.DecodeMessage} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := decode([]byte(callAnswer)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
