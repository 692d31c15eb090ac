package jsonrpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// calculator handles the methods of the specification's examples.
func calculator(_ context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	switch req.Method {
	case "subtract":
		var byName struct{ Minuend, Subtrahend int }
		if json.Unmarshal(req.Params, &byName) == nil {
			return byName.Minuend - byName.Subtrahend, nil
		}
		var byPosition [2]int
		if err := json.Unmarshal(req.Params, &byPosition); err != nil {
			return nil, jsonrpc.InvalidParams("", "must be two numbers")
		}
		return byPosition[0] - byPosition[1], nil
	case "sum":
		var list []int
		if err := json.Unmarshal(req.Params, &list); err != nil {
			return nil, jsonrpc.InvalidParams("", "must be numbers")
		}
		sum := 0
		for _, n := range list {
			sum += n
		}
		return sum, nil
	case "get_data":
		return []any{"hello", 5}, nil
	case "update", "notify_hello", "notify_sum":
		return "nobody reads this", nil
	default:
		return nil, jsonrpc.MethodNotFound(req.Method)
	}
}

func serve(t testing.TB, h jsonrpc.HandlerFunc, text string) string {
	t.Helper()
	d := &jsonrpc.Dispatcher{Handler: h, Log: slog.New(slog.DiscardHandler)}
	return string(d.Serve(t.Context(), jsonrpc.Decode([]byte(text), jsonrpc.Limits{}), nil))
}

// brief shortens an answer to "id result" or "id !code". It fails unless the answer is a
// valid response object.
func brief(t testing.TB, answer string) string {
	t.Helper()
	if answer == "" {
		return ""
	}
	if strings.HasPrefix(answer, "[") {
		var list []json.RawMessage
		if err := json.Unmarshal([]byte(answer), &list); err != nil {
			t.Fatalf("%s: %v", answer, err)
		}
		var out []string
		for _, one := range list {
			out = append(out, brief(t, string(one)))
		}
		return "[" + strings.Join(out, ", ") + "]"
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(answer), &members); err != nil {
		t.Fatalf("%s: %v", answer, err)
	}
	if string(members["jsonrpc"]) != `"2.0"` || len(members) != 3 || members["id"] == nil {
		t.Fatalf("not a response object: %s", answer)
	}
	if result, ok := members["result"]; ok {
		return fmt.Sprintf("%s %s", members["id"], result)
	}
	var e jsonrpc.Error
	if err := json.Unmarshal(members["error"], &e); err != nil || e.Message == "" || e.Details().Code == "" {
		t.Fatalf("not an error object: %s: %v", answer, err)
	}
	return fmt.Sprintf("%s !%d", members["id"], e.Code)
}

// The examples of section 7 of the JSON-RPC 2.0 specification, in its order.
func TestTheSpecificationsExamples(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"positional", `{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}`, `1 19`},
		{"positional, turned round", `{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}`, `2 -19`},
		{"named", `{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3}`, `3 19`},
		{"named, turned round", `{"jsonrpc": "2.0", "method": "subtract", "params": {"minuend": 42, "subtrahend": 23}, "id": 4}`, `4 19`},
		{"notification", `{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}`, ``},
		{"notification of an unknown method", `{"jsonrpc": "2.0", "method": "foobar"}`, ``},
		{"unknown method", `{"jsonrpc": "2.0", "method": "foobar", "id": "1"}`, `"1" !-32601`},
		{"invalid JSON", `{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]`, `null !-32700`},
		{"invalid request", `{"jsonrpc": "2.0", "method": 1, "params": "bar"}`, `null !-32600`},
		{"batch of invalid JSON", `[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},{"jsonrpc": "2.0", "method"]`, `null !-32700`},
		{"empty batch", `[]`, `null !-32600`},
		{"invalid batch that is not empty", `[1]`, `[null !-32600]`},
		{"invalid batch", `[1,2,3]`, `[null !-32600, null !-32600, null !-32600]`},
		{"mixed batch", `[
			{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},
			{"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},
			{"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"},
			{"foo": "boo"},
			{"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
			{"jsonrpc": "2.0", "method": "get_data", "id": "9"}]`,
			`["1" 7, "2" 19, null !-32600, "5" !-32601, "9" ["hello",5]]`},
		{"batch of notifications", `[{"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]},{"jsonrpc": "2.0", "method": "notify_hello", "params": [7]}]`, ``},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := brief(t, serve(t, calculator, tt.in)); got != tt.want {
				t.Errorf("got %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestUnusualRequests(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"id null is a call", `{"jsonrpc":"2.0","method":"get_data","id":null}`, `null ["hello",5]`},
		{"id empty", `{"jsonrpc":"2.0","method":"get_data","id":""}`, `"" ["hello",5]`},
		{"id fractional", `{"jsonrpc":"2.0","method":"get_data","id":1.50}`, `1.50 ["hello",5]`},
		{"id bigger than any integer", `{"jsonrpc":"2.0","method":"get_data","id":123456789012345678901234567890}`, `123456789012345678901234567890 ["hello",5]`},
		{"id with escapes", `{"jsonrpc":"2.0","method":"get_data","id":"\u00e9\n"}`, `"\u00e9\n" ["hello",5]`},
		{"id an object", `{"jsonrpc":"2.0","method":"get_data","id":{}}`, `null !-32600`},
		{"id an array", `{"jsonrpc":"2.0","method":"get_data","id":[1]}`, `null !-32600`},
		{"id a boolean", `{"jsonrpc":"2.0","method":"get_data","id":true}`, `null !-32600`},
		{"id too long", `{"jsonrpc":"2.0","method":"get_data","id":"` + strings.Repeat("x", 1100) + `"}`, `null !-32600`},
		{"id twice", `{"jsonrpc":"2.0","method":"get_data","id":1,"id":2}`, `null !-32600`},
		{"method twice", `{"jsonrpc":"2.0","method":"get_data","method":"sum","id":1}`, `1 !-32600`},
		{"members in another case are unknown", `{"jsonrpc":"2.0","METHOD":"sum","id":1}`, `1 !-32600`},
		{"unknown members are ignored", `{"jsonrpc":"2.0","method":"get_data","id":1,"Method":"x","trace":{"a":[1]}}`, `1 ["hello",5]`},
		{"no version", `{"method":"get_data","id":1}`, `1 !-32600`},
		{"another version", `{"jsonrpc":"1.0","method":"get_data","id":1}`, `1 !-32600`},
		{"version as number", `{"jsonrpc":2.0,"method":"get_data","id":1}`, `1 !-32600`},
		{"no method", `{"jsonrpc":"2.0","id":"a"}`, `"a" !-32600`},
		{"no method and no id", `{"jsonrpc":"2.0"}`, `null !-32600`},
		{"a response is no request", `{"jsonrpc":"2.0","result":1,"id":1}`, `1 !-32600`},
		{"params null", `{"jsonrpc":"2.0","method":"get_data","params":null,"id":1}`, `1 ["hello",5]`},
		{"params a string", `{"jsonrpc":"2.0","method":"get_data","params":"x","id":1}`, `1 !-32600`},
		{"params wrong", `{"jsonrpc":"2.0","method":"sum","params":{"a":1},"id":1}`, `1 !-32602`},
		{"method empty", `{"jsonrpc":"2.0","method":"","id":1}`, `1 !-32601`},
		{"reserved method", `{"jsonrpc":"2.0","method":"rpc.discover","id":1}`, `1 !-32601`},
		{"a batch in a batch", `[[{"jsonrpc":"2.0","method":"get_data","id":1}]]`, `[null !-32600]`},
		{"nothing", ``, `null !-32700`},
		{"a scalar", `42`, `null !-32600`},
		{"broken UTF-8", "{\"jsonrpc\":\"2.0\",\"method\":\"\xc3\x28\",\"id\":1}", `null !-32700`},
		{"too deep", `{"jsonrpc":"2.0","method":"sum","id":1,"params":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, `null !-32700`},
		{"too deep to parse", strings.Repeat("[", 1_000_000), `null !-32700`},
		{"a batch over the limit", `[` + strings.Repeat(`1,`, 100) + `1]`, `null !-32600`},
		{"the longest batch", `[` + strings.Repeat(`{"jsonrpc":"2.0","method":"update"},`, 99) + `{"jsonrpc":"2.0","method":"sum","params":[1],"id":7}]`, `[7 1]`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := brief(t, serve(t, calculator, tt.in)); got != tt.want {
				t.Errorf("got %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestANotificationIsHandledWithoutAnAnswer(t *testing.T) {
	var calls atomic.Int32
	h := func(_ context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
		if !req.IsNotification() {
			t.Error("a notification has an id")
		}
		calls.Add(1)
		return nil, errors.New("unheard")
	}
	if got := serve(t, h, `{"jsonrpc":"2.0","method":"x"}`); got != "" || calls.Load() != 1 {
		t.Errorf("answer %q after %d calls", got, calls.Load())
	}
}

func TestANotificationIsNotCanceledWithItsConnection(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var seen, bounded []error
	d := &jsonrpc.Dispatcher{Handler: jsonrpc.HandlerFunc(func(ctx context.Context, _ jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
		seen = append(seen, ctx.Err())
		if _, ok := ctx.Deadline(); !ok {
			bounded = append(bounded, errors.New("no deadline"))
		}
		return nil, nil
	})}
	d.Serve(ctx, jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","method":"x"}`), jsonrpc.Limits{}), nil)
	if len(seen) != 1 || seen[0] != nil || bounded != nil {
		t.Errorf("%v %v", seen, bounded)
	}
}

func TestAPanicBecomesAnInternalErrorAndIsLogged(t *testing.T) {
	var log bytes.Buffer
	d := &jsonrpc.Dispatcher{
		Handler: jsonrpc.HandlerFunc(func(context.Context, jsonrpc.Request, jsonrpc.Emit) (any, error) { panic("secret boom") }),
		Log:     slog.New(slog.NewTextHandler(&log, nil)),
	}
	answer := string(d.Serve(t.Context(), jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","method":"x","id":1}`), jsonrpc.Limits{}), nil))
	if brief(t, answer) != "1 !-32603" || strings.Contains(answer, "boom") {
		t.Errorf("answer %s", answer)
	}
	if !strings.Contains(log.String(), "boom") || !strings.Contains(log.String(), "jsonrpc_test.go") {
		t.Errorf("log %s", log.String())
	}
}

func TestAnUntypedErrorIsLoggedAndNotSent(t *testing.T) {
	var log bytes.Buffer
	d := &jsonrpc.Dispatcher{
		Handler: jsonrpc.HandlerFunc(func(context.Context, jsonrpc.Request, jsonrpc.Emit) (any, error) {
			return nil, errors.New("disk full at /secret")
		}),
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	answer := string(d.Serve(t.Context(), jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","method":"x","id":1}`), jsonrpc.Limits{}), nil))
	if brief(t, answer) != "1 !-32603" || strings.Contains(answer, "secret") || !strings.Contains(log.String(), "disk full") {
		t.Errorf("answer %s, log %s", answer, log.String())
	}
}

func TestAResultThatCannotBeEncodedIsAnInternalError(t *testing.T) {
	h := func(context.Context, jsonrpc.Request, jsonrpc.Emit) (any, error) { return make(chan int), nil }
	if got := brief(t, serve(t, h, `{"jsonrpc":"2.0","method":"x","id":1}`)); got != "1 !-32603" {
		t.Error(got)
	}
}

func TestErrorsHaveDetails(t *testing.T) {
	h := func(context.Context, jsonrpc.Request, jsonrpc.Emit) (any, error) {
		return nil, fmt.Errorf("wrapped: %w", jsonrpc.InvalidParams("a.b[0]", "must be a string"))
	}
	var response jsonrpc.Response
	if err := json.Unmarshal([]byte(serve(t, h, `{"jsonrpc":"2.0","method":"x","id":1}`)), &response); err != nil {
		t.Fatal(err)
	}
	want := jsonrpc.Details{Code: "INVALID_PARAMS", Field: "a.b[0]"}
	if diff := cmp.Diff(want, response.Error.Details()); diff != "" {
		t.Error(diff)
	}
	if got := response.Error.Error(); got != "Invalid params: a.b[0] must be a string (-32602)" {
		t.Error(got)
	}
	if foreign := (&jsonrpc.Error{Data: json.RawMessage(`"text"`)}).Details(); foreign != (jsonrpc.Details{}) {
		t.Errorf("foreign data became %+v", foreign)
	}
}

func TestEncodedRequestsAndNotificationsAreDecoded(t *testing.T) {
	for _, id := range []jsonrpc.ID{{}, jsonrpc.NullID, jsonrpc.StringID("a\"\n<é"), jsonrpc.NumberID(-7)} {
		text, err := json.Marshal(jsonrpc.Request{ID: id, Method: "m", Params: json.RawMessage(`{"a":1}`)})
		if err != nil {
			t.Fatal(err)
		}
		call := jsonrpc.Decode(text, jsonrpc.Limits{}).Calls[0]
		if call.Err != nil || call.Request.Method != "m" || string(call.Request.Params) != `{"a":1}` {
			t.Errorf("%s became %+v", text, call)
		}
		if call.Request.IsNotification() != id.IsZero() {
			t.Errorf("%s: notification %t", text, call.Request.IsNotification())
		}
	}
	line, err := jsonrpc.AppendNotification(nil, "m", map[string]int{"a": 1})
	if want := `{"jsonrpc":"2.0","method":"m","params":{"a":1}}`; err != nil || string(line) != want {
		t.Errorf("%s, %v", line, err)
	}
	if line, err := jsonrpc.AppendNotification([]byte("x"), "m", make(chan int)); err == nil || string(line) != "x" {
		t.Errorf("%s, %v", line, err)
	}
}

func TestAnIDIsDecodedFromAResponse(t *testing.T) {
	for text, ok := range map[string]bool{`1`: true, `"a"`: true, `null`: true, `{}`: false, `true`: false} {
		var id jsonrpc.ID
		if err := json.Unmarshal([]byte(text), &id); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	zero, err := json.Marshal(jsonrpc.ID{})
	if err != nil || string(zero) != "null" {
		t.Errorf("%s, %v", zero, err)
	}
}

func TestEveryIDIsEchoedByteForByte(t *testing.T) {
	ids := rapid.OneOf(
		rapid.Map(rapid.String(), func(s string) string { return jsonrpc.StringID(s).String() }),
		rapid.Map(rapid.Int64(), func(n int64) string { return fmt.Sprint(n) }),
		rapid.StringMatching(`-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,5})?`),
		rapid.Just("null"),
	)
	rapid.Check(t, func(rt *rapid.T) {
		id := ids.Draw(rt, "id")
		answer := serve(t, calculator, `{"jsonrpc":"2.0","id":`+id+`,"method":"get_data"}`)
		if want := `{"jsonrpc":"2.0","result":["hello",5],"id":` + id + `}`; answer != want {
			rt.Fatalf("got %s\nwant %s", answer, want)
		}
	})
}

// Notifications of a batch have no answer.
func TestABatchKeepsItsOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var in, want []string
		for i, notify := range rapid.SliceOfN(rapid.Bool(), 1, 100).Draw(rt, "notifications") {
			if notify {
				in = append(in, `{"jsonrpc":"2.0","method":"update"}`)
				continue
			}
			in = append(in, fmt.Sprintf(`{"jsonrpc":"2.0","method":"sum","params":[%d],"id":%d}`, i, i))
			want = append(want, fmt.Sprintf(`{"jsonrpc":"2.0","result":%d,"id":%d}`, i, i))
		}
		answer := serve(t, calculator, "["+strings.Join(in, ",")+"]")
		expected := ""
		if len(want) > 0 {
			expected = "[" + strings.Join(want, ",") + "]"
		}
		if answer != expected {
			rt.Fatalf("got %s\nwant %s", answer, expected)
		}
	})
}

// FuzzServe checks that the answer to any text is empty or valid response objects.
func FuzzServe(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","method":"subtract","params":[42,23],"id":1}`,
		`{"jsonrpc":"2.0","method":"update"}`,
		`[{"jsonrpc":"2.0","method":"sum","params":[1,2,4],"id":"1"},{"foo":"boo"},1,[]]`,
		`{"jsonrpc":"2.0","method":"x","id":1.5e3,"id":2}`,
		"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\",\"id\":null}", `[]`, `[[[[`, `{"id":`, `"\ud800"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &jsonrpc.Dispatcher{Handler: jsonrpc.HandlerFunc(calculator), Log: slog.New(slog.DiscardHandler)}
		answer := string(d.Serve(context.Background(), jsonrpc.Decode(data, jsonrpc.Limits{}), nil))
		if strings.ContainsAny(answer, "\n\r") {
			t.Fatalf("an answer of several lines: %q", answer)
		}
		brief(t, answer)
	})
}

func BenchmarkServe(b *testing.B) {
	d := &jsonrpc.Dispatcher{Handler: jsonrpc.HandlerFunc(func(context.Context, jsonrpc.Request, jsonrpc.Emit) (any, error) { return "ok", nil })}
	text := []byte(`{"jsonrpc":"2.0","method":"message/send","params":{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hello"}]}},"id":"7"}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if d.Serve(b.Context(), jsonrpc.Decode(text, jsonrpc.Limits{}), nil) == nil {
			b.Fatal("no answer")
		}
	}
}
