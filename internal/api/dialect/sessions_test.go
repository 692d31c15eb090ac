package dialect_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
)

// fakeSessions records what it is told.
type fakeSessions struct {
	hooked dialect.SessionHookParams
	event  dialect.SessionEventParams
	served dialect.SessionServeParams
	quiet  string
}

func (f *fakeSessions) OpenSessions() []dialect.OpenSession { return nil }

func (f *fakeSessions) Hook(_ context.Context, p dialect.SessionHookParams) dialect.SessionHookAnswer {
	f.hooked = p
	return dialect.SessionHookAnswer{Context: "news", Notice: "n1"}
}

func (f *fakeSessions) Event(_ context.Context, p dialect.SessionEventParams) (dialect.SessionEventAnswer, error) {
	if p.Input == "rubbish" {
		return dialect.SessionEventAnswer{}, &hub.Error{Code: hub.CodeInvalid, Subject: "input", Message: "it cannot be read"}
	}
	f.event = p
	return dialect.SessionEventAnswer{Output: "{}", Wake: "wake", Notice: "n1"}, nil
}

func (f *fakeSessions) Quiet(agentID string, quiet bool) error {
	if agentID == "codex" {
		return &hub.Error{Code: hub.CodeUnsupported, Message: "it is no session"}
	}
	f.quiet = fmt.Sprint(agentID, quiet)
	return nil
}

func (f *fakeSessions) Shown(notice string) bool { return notice == "n1" }

func (f *fakeSessions) Serve(p dialect.SessionServeParams) dialect.OpenSession {
	f.served = p
	return dialect.OpenSession{Vendor: p.Vendor, GUID: p.GUID}
}

func TestSessionsReport(t *testing.T) {
	f := &fakeSessions{}
	s := newService(&fakeHub{}, func(c *dialect.Config) { c.Sessions = f })
	for _, c := range []struct{ method, params, want string }{
		{"hub/sessions/list", `{}`, `"result":[]`},
		{"hub/sessions/hook", `{"vendor":"claude","session":"s1","kind":"after-turn","dir":"/p","stopActive":true,"process":{"pid":7,"start":"1"}}`,
			`"result":{"context":"news","notice":"n1"}`},
		{"hub/sessions/event", `{"vendor":"codex","event":"Stop","input":"{\"a\":1}\n","process":{"pid":9}}`, `"result":{"output":"{}","wake":"wake","notice":"n1"}`},
		{"hub/sessions/event", `{"vendor":"codex","input":"rubbish"}`, `it cannot be read`},
		{"hub/sessions/shown", `{"notice":"n1"}`, `"known":true`},
		{"hub/sessions/shown", `{"notice":"n2"}`, `"known":false`},
		{"hub/sessions/quiet", `{"agentId":"reviewer"}`, `"quiet":true`},
		{"hub/sessions/quiet", `{"agentId":"codex"}`, `it is no session`},
		{"hub/sessions/serve", `{"vendor":"codex","session":"t1","guid":"g1","server":{"pid":8},"since":"2026-11-28T06:00:00.5Z"}`, `"guid":"g1"`},
	} {
		if answer, _ := call(t, s, method(c.method, c.params)); !strings.Contains(answer, c.want) {
			t.Errorf("%s %s: %s", c.method, c.params, answer)
		}
	}
	if f.hooked.Process != (dialect.SessionProcess{PID: 7, Start: "1"}) || !f.hooked.StopActive || f.hooked.Dir != "/p" {
		t.Errorf("the hook's report is %+v", f.hooked)
	}
	if want := (dialect.SessionEventParams{Vendor: "codex", Event: "Stop", Input: "{\"a\":1}\n", Process: dialect.SessionProcess{PID: 9}}); f.event != want {
		t.Errorf("the event is %+v", f.event)
	}
	if f.quiet != "reviewertrue" {
		t.Errorf("quiet is %q", f.quiet)
	}
	if f.served.Server.PID != 8 || f.served.Session != "t1" || !f.served.Since.Equal(time.Date(2026, 11, 28, 6, 0, 0, 5e8, time.UTC)) {
		t.Errorf("the server's report is %+v", f.served)
	}
	long := strings.Repeat("x", 5000)
	for params, field := range map[string]string{
		`{"session":"s","kind":"start"}`:                                        "vendor",
		`{"vendor":"claude","kind":"start"}`:                                    "session",
		`{"vendor":"claude","session":"s","kind":"x"}`:                          "kind",
		`{"vendor":"claude","session":"s","kind":"start","dir":"` + long + `"}`: "dir",
		`{"vendor":"claude","session":"s","kind":"start","process":{"pid":-1}}`: "process.pid",
	} {
		answer, _ := call(t, s, method("hub/sessions/hook", params))
		wantError(t, answer, -32602, "INVALID_PARAMS", field)
	}
	answer, _ := call(t, s, method("hub/sessions/serve", `{"vendor":"codex","server":{"pid":1},"since":"yesterday"}`))
	wantError(t, answer, -32602, "INVALID_PARAMS", "since")
	for _, name := range []string{"hub/sessions/list", "hub/sessions/hook", "hub/sessions/event", "hub/sessions/shown", "hub/sessions/serve", "hub/sessions/quiet"} { // as over HTTP
		answer, _ := call(t, newService(&fakeHub{}), method(name, `{}`))
		wantError(t, answer, -32601, "METHOD_NOT_FOUND", "")
	}
}
