package runner_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// The lines are of claude 2.1, codex 0.169, gemini 0.61 and codex-acp, recorded while a model server answered with 529.
func TestRetriesAreReadFromStandardError(t *testing.T) {
	const codex = "2026-11-23T00:32:20.938846Z \x1b[34mDEBUG\x1b[0m responses.stream_request{transport=\"responses_http\"}:endpoint_session: " +
		"codex_http_client::client: Request completed method=POST url=http://127.0.0.1:18899/v1/responses status="
	for name, tc := range map[string]struct {
		line    string
		want    string // "" if the line reports no retry
		omitted bool
	}{
		"gemini":          {`Attempt 1 failed with status 529. Retrying with backoff... _ApiError: {"error":{"code":529}}`, "the model answered with overloaded (529); try 1", false},
		"gemini, wait":    {"Attempt 2 failed: quota exceeded. Retrying after 5250ms...", "the model did not answer: Attempt 2 failed: quota exceeded. Retrying after 5250ms...; try 2, in 5.3s", false},
		"gemini, headers": {"Attempt 3 failed with 429 error (no Retry-After header). Retrying with backoff...", "the model answered with too many requests (429); try 3", false},
		"codex":           {codex + `529 <unknown status code> headers={"content-type": "application/json"}`, "the model answered with overloaded (529); the agent tries again", true},
		"codex, success":  {codex + `200 OK headers={}`, "", true},
		"codex, final":    {codex + `429 Too Many Requests headers={}`, "", true},
		"codex, another":  {"DEBUG codex_http_client::custom_ca: building HTTP client", "", true},
		"httpx":           {"HTTP 503 Service Unavailable, retrying in 2.5 seconds (attempt 2/4)", "the model answered with service unavailable (503); try 2 of 4, in 2.5s", false},
		"gemini's log":    {`[2026-11-23T01:44:18.028Z] [WARN] Attempt 1 failed with status 529. Retrying with backoff... _ApiError: {`, "the model answered with overloaded (529); try 1", true},
		"gemini's tools":  {"[2026-11-23T01:44:18.028Z] [DEBUG] output: Attempt 1 failed with status 529. Retrying", "", true},
		"a stack":         {"    at async retry (file:///usr/lib/chunk.js:503:23)", "", false},
		"a warning":       {"Warning: 256-color support not detected.", "", false},
		"the end":         {"exceeded retry limit, last status: 429 Too Many Requests", "", false},
		"a number":        {"listening on port 5001, retry policy loaded", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			kept := runner.Stderr(func(r runner.Retry) { got = r.String() })(tc.line)
			if got != tc.want || kept == tc.omitted {
				t.Errorf("got %q, kept %t", got, kept)
			}
		})
	}
}

func TestFurtherLinesOfALogAreOmitted(t *testing.T) {
	retries := 0
	keeps := runner.Stderr(func(runner.Retry) { retries++ })
	for _, tc := range []struct {
		line string
		want bool
	}{
		{"  indented", true}, {"[2026-11-23T01:42:01.743Z] [DEBUG] Experiments loaded {", false}, {"  flags: []", false}, {"}", false}, {"", false},
		{"    at retry (x.js:503:1)", false}, {"Error: the key is wrong", true}, {"    at open (x.js:503:1)", true},
	} {
		if got := keeps(tc.line); got != tc.want {
			t.Errorf("%q: kept %t", tc.line, got)
		}
	}
	if retries != 0 {
		t.Errorf("%d retries", retries)
	}
}

func TestRetriesAreReadFromEvents(t *testing.T) {
	for parser, tc := range map[string]struct {
		line string
		want runner.Retry
	}{
		runner.ParserClaudeStream: {
			`{"type":"system","subtype":"api_retry","attempt":2,"max_retries":10,"retry_delay_ms":1033,"error_status":529,"error":"overloaded"}`,
			runner.Retry{Attempt: 2, Of: 10, Status: 529, Reason: "overloaded", Wait: 1033 * time.Millisecond},
		},
		runner.ParserCodexJSONL: {
			`{"type":"error","message":"Reconnecting... 3/5 (unexpected status 529 <unknown status code>: the stub model says, url: http://127.0.0.1:18899/v1/responses)"}`,
			runner.Retry{Attempt: 3, Of: 5, Status: 529},
		},
	} {
		t.Run(parser, func(t *testing.T) {
			h := &record{}
			def := runner.Definition{ID: "x", Driver: runner.DriverExec, Command: "x", Parser: parser}
			_, _ = runner.Parse(def, []byte(tc.line+"\n"), "", 0, h) // the turn has no end
			if got := eventsOf[runner.Retry](h); len(got) != 1 || got[0] != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestRetriesWithoutProgressEndTheTurn(t *testing.T) {
	count := fakeAgent("retry", map[string]string{"FAKE_FIRST": `{"type":"error","message":"Reconnecting... N (status 529)"}`})
	count.Parser, count.Limits.Retries = runner.ParserCodexJSONL, 3
	duration := count
	duration.Limits.Retries, duration.Limits.Retrying = 1<<30, 50*time.Millisecond
	for key, def := range map[string]runner.Definition{"limits.retries": count, "limits.retrying": duration} {
		t.Run(key, func(t *testing.T) {
			h := &record{}
			out, err := openSession(t, def, "").Turn(t.Context(), prompt("x"), h)
			checkError(t, err, runner.CodeUnavailable, "overloaded (529)")
			if e, ok := errors.AsType[*runner.Error](err); ok && (!strings.Contains(e.Message, "("+key+")") || !strings.HasSuffix(e.Remedy, key+" in the configuration")) {
				t.Errorf("%q, %q", e.Message, e.Remedy)
			}
			if out.Status != runner.OutcomeFailed || len(eventsOf[runner.Retry](h)) == 0 {
				t.Errorf("%+v", out)
			}
		})
	}
}

func FuzzParseRetry(f *testing.F) {
	f.Add("Reconnecting... 1/5 (unexpected status 529)")
	f.Add("Attempt 1 failed with status 429. Retrying after 99999999999999ms")
	f.Fuzz(func(t *testing.T, line string) {
		r, ok := runner.ParseRetry(line)
		if !ok {
			return
		}
		if r.Attempt < 0 || r.Of < 0 || r.Wait < 0 || r.Status != 0 && (r.Status < 400 || r.Status > 599) {
			t.Errorf("%+v", r)
		}
		if strings.ContainsAny(r.String(), "\n\r\x1b") {
			t.Errorf("%q is not one line", r)
		}
	})
}
