package a2a_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
)

// requests are requests of real clients and of the official test kits, and known
// attacks: method and path, then the version, then the body.
var requests = [][4]string{
	{"POST", one, "1.0", `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hello"}]},"configuration":{"acceptedOutputModes":[],"historyLength":1}}}`},
	{"POST", one, "1.0", `{"jsonrpc":"2.0","id":2,"method":"SendStreamingMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"data":{"a":[1]}},{"raw":"eA==","filename":"x"}]}}}`},
	{"POST", one, "", `{"jsonrpc":"2.0","id":"a","method":"message/send","params":{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hello"},{"kind":"file","file":{"bytes":"eA=="}}]},"configuration":{"blocking":true}}}`},
	{"POST", one, "", `{"jsonrpc":"2.0","id":null,"method":"message/stream","params":{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"data","data":{"x":1}}]}}}`},
	{"POST", "/a2a", "1.0", `{"jsonrpc":"2.0","id":1e9,"method":"ListTasks","params":{"page_size":3,"tenant":"two","statusTimestampAfter":"2026-01-01T00:00:00Z"}}`},
	{"POST", "/a2a/", "0.3", `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"../../etc/passwd","historyLength":2}}`},
	{"POST", one, "1.0", `{"jsonrpc":"2.0","id":1,"method":"CreateTaskPushNotificationConfig","params":{"taskId":"t","url":"http://169.254.169.254/","token":"\r\nX: y"}}`},
	{"POST", one, "", `[{"jsonrpc":"2.0","id":1,"method":"tasks/get"}]`},
	{"POST", one, "", `{"jsonrpc":"2.0","jsonrpc":"1.0","id":1,"id":2,"method":"GetTask","METHOD":"x","params":{"id":null}}`},
	{"POST", one, "99.99", `{}`},
	{"POST", one + "/message:send", "1.0", `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hello"}]}}`},
	{"POST", one + "/message:stream", "1.0", `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"url":"file:///etc/passwd"}]}}`},
	{"POST", one + "/v1/message:send", "", `{"message":{"messageId":"m","role":"ROLE_USER","content":[{"text":"hello"}]}}`},
	{"POST", one + "/v1/message:stream", "0.3", `{"message":{"messageId":"m","role":"ROLE_USER","content":[{"file":{"file_with_bytes":"eA=="}}]}}`},
	{"GET", one + "/tasks?pageSize=2&status=TASK_STATE_WORKING&historyLength=1", "1.0", ""},
	{"GET", "/a2a/two/tasks/none:subscribe", "", ""},
	{"POST", "/a2a/two/tasks/none:cancel", "", ""},
	{"GET", one + "/v1/tasks/none/pushNotificationConfigs/x", "", ""},
	{"DELETE", one + "/tasks/none/pushNotificationConfigs/%2e%2e%2f", "", ""},
	{"GET", one + "/../../two/a2a/tasks", "", ""},
	{"GET", "/agents/%00/a2a/tasks", "", ""},
	{"GET", "/.well-known/agent-card.json", "1.0", ""},
	{"PATCH", one + "/extendedAgentCard", "1.0", "null"},
}

// check sends one request and fails if the answer is not a correct one.
func check(t testing.TB, h http.Handler, method, path, version string, body []byte) {
	u, err := url.ParseRequestURI(path)
	if err != nil || !validMethod(method) {
		return // net/http refuses it
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(body))
	req.Method, req.URL, req.RequestURI = method, u, path
	req.Header.Set("Content-Type", "application/json")
	req.Header["A2a-Version"] = []string{version}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	if ctx.Err() != nil {
		t.Fatalf("%s %s %q: the answer does not end", method, path, body)
	}
	answer := w.Body.Bytes()
	ct := w.Header().Get("Content-Type")
	switch {
	case w.Code >= 500 && w.Code != http.StatusServiceUnavailable:
		t.Fatalf("%s %s %q: HTTP %d %s", method, path, body, w.Code, answer)
	case strings.HasPrefix(ct, "application/json") && method != http.MethodHead && len(answer) > 0:
		var envelope struct {
			JSONRPC       string
			Result, Error json.RawMessage
		}
		if err := json.Unmarshal(answer, &envelope); err != nil {
			t.Fatalf("%s %s %q: not JSON: %q", method, path, body, answer)
		}
		if envelope.JSONRPC != "" && (envelope.Error == nil) == (envelope.Result == nil && !bytes.Contains(answer, []byte(`"result":null`))) {
			t.Fatalf("%q: neither result nor error, or both: %s", body, answer)
		}
		if bytes.Contains(answer, []byte(`"code":-32603`)) {
			t.Fatalf("%q: an internal error: %s", body, answer)
		}
	}
}

func validMethod(m string) bool {
	_, err := http.NewRequest(m, "/", nil)
	return err == nil && m != http.MethodConnect
}

// openRig returns the handler of a rig whose agents do not wait.
func openRig(t testing.TB) http.Handler {
	r := newRig(t)
	close(r.gate)
	mux := http.NewServeMux()
	r.a2a.Mount(mux.Handle)
	return mux
}

func FuzzRequest(f *testing.F) {
	for _, r := range requests {
		f.Add(r[0], r[1], r[2], []byte(r[3]))
	}
	h := openRig(f)
	f.Fuzz(func(t *testing.T, method, path, version string, body []byte) {
		check(t, h, method, path, version, body)
	})
}

// Sends 10,000 requests, each with a few bytes changed, removed, repeated or inserted.
func TestTenThousandHostileRequestsAreAnswered(t *testing.T) {
	h := openRig(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	n := 10_000
	if testing.Short() {
		n = 1000
	}
	for range n {
		r := requests[rnd.IntN(len(requests))]
		check(t, h, r[0], r[1], r[2], mutate(rnd, []byte(r[3])))
	}
}

func mutate(rnd *rand.Rand, b []byte) []byte {
	tokens := []string{`{`, `}`, `[`, `]`, `"`, `,`, `null`, `-1`, `1e999`, `"\ud800"`, "\xff", "\x00", `\u0000`, `_`, `{"a":`, `true`, `"text"`, `0`}
	for range 1 + rnd.IntN(4) {
		if len(b) == 0 {
			return []byte(tokens[rnd.IntN(len(tokens))])
		}
		i := rnd.IntN(len(b))
		j := min(len(b), i+rnd.IntN(8))
		switch rnd.IntN(4) {
		case 0: // remove
			b = append(bytes.Clone(b[:i]), b[j:]...)
		case 1: // repeat
			b = append(bytes.Clone(b[:j]), b[i:]...)
		case 2: // change
			b = bytes.Clone(b)
			b[i] = byte(rnd.IntN(256))
		case 3: // insert
			b = append(bytes.Clone(b[:i]), append([]byte(tokens[rnd.IntN(len(tokens))]), b[i:]...)...)
		}
	}
	return b
}

func TestUnusualHeadersAreIgnored(t *testing.T) {
	r := newRig(t)
	got := r.do(http.MethodPost, one, `{"jsonrpc":"2.0","id":1,"method":"ListTasks"}`,
		"A2A-Extensions", "urn:a, urn:b,,", "X-A2A-Extensions", strings.Repeat("x,", 1000), "A2A-Version", " 1.0 ")
	if e := got.rpc(t).Error; e != nil {
		t.Errorf("%+v", e)
	}
}

// CamelKeys renames only the protocol's names, and is idempotent.
func TestCamelKeysKeepsTheUsersNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z]{1,5}(_[a-z0-9]{0,5}){0,3}`)
		user := rapid.MapOf(name, rapid.Int()).Draw(t, "metadata")
		in, err := json.Marshal(map[string]any{
			"history_length": 1, "metadata": user,
			"message": map[string]any{"message_id": "m", "parts": []any{map[string]any{"data": user, "media_type": "x"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var out struct {
			HistoryLength int            `json:"historyLength"`
			Metadata      map[string]int `json:"metadata"`
			Message       struct {
				ID    string `json:"messageId"`
				Parts []struct {
					Data      map[string]int `json:"data"`
					MediaType string         `json:"mediaType"`
				} `json:"parts"`
			} `json:"message"`
		}
		renamed := a2aserver.CamelKeys(in)
		if err := json.Unmarshal(renamed, &out); err != nil {
			t.Fatal(err)
		}
		part := out.Message.Parts[0]
		if out.HistoryLength != 1 || out.Message.ID != "m" || part.MediaType != "x" || len(out.Metadata) != len(user) || len(part.Data) != len(user) {
			t.Fatalf("%s became %s", in, renamed)
		}
		for k, v := range user {
			if out.Metadata[k] != v || part.Data[k] != v {
				t.Fatalf("%s was lost in %s", k, renamed)
			}
		}
		if again := a2aserver.CamelKeys(renamed); !bytes.Equal(again, renamed) && len(user) == 0 {
			t.Fatalf("not stable: %s, %s", renamed, again)
		}
	})
}

func FuzzCamelKeys(f *testing.F) {
	for _, r := range requests {
		f.Add([]byte(r[3]))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out := a2aserver.CamelKeys(in)
		if json.Valid(in) && !json.Valid(out) {
			t.Errorf("%q became %q", in, out)
		}
	})
}

func FuzzSplitPath(f *testing.F) {
	for _, r := range requests {
		f.Add(r[1])
	}
	f.Fuzz(func(t *testing.T, path string) {
		agent, below, ok := a2aserver.SplitPath(path)
		if !ok {
			return
		}
		if strings.Contains(agent, "/") || below == "" || below[0] != '/' {
			t.Errorf("%q: agent %q, below %q", path, agent, below)
		}
	})
}

func TestCamelCase(t *testing.T) {
	for in, want := range map[string]string{
		"history_length": "historyLength", "a_b_c": "aBC", "already": "already", "camelCase": "camelCase",
		"_x": "_x", "x_": "x", "x__y": "xY", "x_1": "x1", "": "", "push_notification_config_id": "pushNotificationConfigId",
	} {
		if got := a2aserver.CamelCase(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}
