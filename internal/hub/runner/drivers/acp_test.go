package drivers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
	test "github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

// acpAgent simulates processes that answer each method with the lines in answers; %ID%
// is the request's id. A method without an answer ends the process. acpAgent returns
// what the host sends.
func acpAgent(t *testing.T, resume string, answers map[string][]string) (s *duplex.Session, said *[]string) {
	t.Helper()
	said = new([]string)
	def := test.Definition(t, runner.DriverACP, nil)
	s = test.Session(t, def, drivers.Dialect(def), func(a *test.Agent) {
		for {
			m, ok := a.Next()
			if !ok {
				return
			}
			method := test.Key(m)
			params, _ := m["params"].(map[string]any)
			delete(params, "cwd")
			b, _ := json.Marshal(params)
			*said = append(*said, method+" "+string(b))
			lines, known := answers[method]
			if !known {
				a.Exit(1, "unexpected "+method)
				return
			}
			for _, l := range lines {
				if a.Send(strings.ReplaceAll(l, "%ID%", fmt.Sprint(m["id"]))+"\n") != nil {
					return
				}
			}
		}
	}, func(o *duplex.Options) { o.Spec.Resume = resume })
	return s, said
}

func acpInitialized(capabilities string) []string {
	return []string{`{"jsonrpc":"2.0","id":%ID%,"result":{"protocolVersion":1,"agentCapabilities":` + capabilities + `}}`}
}

func acpUpdate(u string) string {
	return `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"S","update":` + u + `}}`
}

var (
	acpNewSession = []string{`{"jsonrpc":"2.0","id":%ID%,"result":{"sessionId":"S","models":{"currentModelId":"m","availableModels":[]}}}`}
	acpDone       = []string{`{"jsonrpc":"2.0","id":%ID%,"result":{"stopReason":"end_turn"}}`}
	acpHistory    = acpUpdate(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"from long ago"}}`)
)

// The host offers neither files nor terminals: the agent accesses its directory
// itself.
func TestACPHandshakeOffersNoCapabilities(t *testing.T) {
	s, said := acpAgent(t, "", map[string][]string{"initialize": acpInitialized("{}"), "session/new": acpNewSession, "session/prompt": acpDone})
	h := &test.Handler{}
	if _, err := s.Turn(t.Context(), test.Prompt("hello"), h); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`initialize {"clientCapabilities":{"auth":{},"fs":{}},"clientInfo":{"name":"parley","version":"1"},"protocolVersion":1}`,
		`session/new {"mcpServers":[]}`,
		`session/prompt {"prompt":[{"text":"hello","type":"text"}],"sessionId":"S"}`,
	}
	if diff := cmp.Diff(want, *said); diff != "" {
		t.Error(diff)
	}
	if got := h.Events()[0]; got != (runner.SessionStarted{ID: "S", Model: "m"}) {
		t.Errorf("first event %v", got)
	}
}

func TestACPResume(t *testing.T) {
	refused := []string{`{"jsonrpc":"2.0","id":%ID%,"error":{"code":-32603,"message":"Internal error","data":{"details":"no such session"}}}`}
	empty := `{"jsonrpc":"2.0","id":%ID%,"result":{}}`
	tests := map[string]struct {
		capabilities string
		answers      map[string][]string
		methods      string
		notice       string
	}{
		"session/resume": {
			`{"loadSession":true,"sessionCapabilities":{"resume":{}}}`,
			map[string][]string{"session/resume": {empty}}, "initialize session/resume session/prompt", "",
		},
		"session/load, whose history is not part of the answer": {
			`{"loadSession":true}`,
			map[string][]string{"session/load": {acpHistory, acpHistory, empty}}, "initialize session/load session/prompt", "",
		},
		"session/load, whose history follows the response": {
			`{"loadSession":true}`,
			map[string][]string{"session/load": {empty, acpHistory, acpHistory}}, "initialize session/load session/prompt", "",
		},
		"session/load fails": {
			`{"loadSession":true}`,
			map[string][]string{"session/load": append([]string{acpHistory}, refused...), "session/new": acpNewSession},
			"initialize session/load session/new session/prompt",
			"Test Agent could not continue the earlier conversation and begins a new one: Internal error: no such session\n",
		},
		"the agent does not support it": {
			`{}`, map[string][]string{"session/new": acpNewSession}, "initialize session/new session/prompt",
			"Test Agent could not continue the earlier conversation and begins a new one: the agent cannot continue sessions\n",
		},
		"the agent exits": {
			`{"loadSession":true}`,
			map[string][]string{"session/new": acpNewSession},
			"initialize session/load initialize session/new session/prompt",
			"Test Agent could not continue the earlier conversation and begins a new one: Test Agent ended before it was ready (exit code 1): unexpected session/load\n",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.answers["initialize"] = acpInitialized(tt.capabilities)
			tt.answers["session/prompt"] = append([]string{acpUpdate(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"now"}}`)}, acpDone...)
			s, said := acpAgent(t, "S", tt.answers)
			h := &test.Handler{}
			out, err := s.Turn(t.Context(), test.Prompt("x"), h)
			if err != nil || out.Text != "now" {
				t.Fatalf("outcome %+v, %v", out, err)
			}
			var methods []string
			for _, line := range *said {
				method, _, _ := strings.Cut(line, " ")
				methods = append(methods, method)
			}
			if got := strings.Join(methods, " "); got != tt.methods {
				t.Errorf("sent %s", got)
			}
			if h.Notices() != tt.notice {
				t.Errorf("notices %q", h.Notices())
			}
		})
	}
}

// gemini empties the session's own file if it is asked for the session by the same spelling of its id in the minute in which it began.
func TestACPLoadsSessionsOfGeminiByAnotherSpelling(t *testing.T) {
	accepted := `{"jsonrpc":"2.0","id":%ID%,"result":{}}`
	refused := `{"jsonrpc":"2.0","id":%ID%,"error":{"code":-32603,"message":"Internal error"}}`
	for name, tt := range map[string]struct {
		load string
		want []string
	}{
		"accepted": {accepted, []string{`session/load " S"`, `session/prompt " S"`}},
		"refused":  {refused, []string{`session/load " S"`, `session/load "S"`, `session/new <nil>`, `session/prompt "S"`}},
	} {
		t.Run(name, func(t *testing.T) {
			s, said := acpAgent(t, "S", map[string][]string{
				"initialize":   {`{"jsonrpc":"2.0","id":%ID%,"result":{"protocolVersion":1,"agentInfo":{"name":"gemini-cli","version":"0.61.0"},"agentCapabilities":{"loadSession":true}}}`},
				"session/load": {tt.load}, "session/new": acpNewSession, "session/prompt": acpDone,
			})
			h := &test.Handler{}
			if _, err := s.Turn(t.Context(), test.Prompt("x"), h); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, line := range (*said)[1:] {
				method, params, _ := strings.Cut(line, " ")
				var p map[string]any
				if err := json.Unmarshal([]byte(params), &p); err != nil {
					t.Fatal(err)
				}
				got = append(got, fmt.Sprintf("%s %#v", method, p["sessionId"]))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if started := h.Events()[0]; tt.load == accepted && started != (runner.SessionStarted{ID: "S"}) {
				t.Errorf("first event %v", started)
			}
		})
	}
}

func TestAVersionWithoutACPIsNamed(t *testing.T) {
	def := test.Definition(t, runner.DriverACP, nil)
	s := test.Session(t, def, drivers.Dialect(def), func(a *test.Agent) {
		a.Exit(1, "Unknown argument: acp\nUsage: gemini [options] [command]")
	}, nil)
	_, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
	if err == nil || !strings.Contains(err.Error(), "does not know the flags of driver acp") || !strings.Contains(err.Error(), "driver: exec") {
		t.Errorf("error %v", err)
	}
}

func TestACPHandshakeErrors(t *testing.T) {
	tests := map[string]struct {
		answers map[string][]string
		resume  string
		code    runner.Code
		text    string
	}{
		"another version": {map[string][]string{"initialize": {`{"jsonrpc":"2.0","id":%ID%,"result":{"protocolVersion":2}}`}}, "", runner.CodeProtocol, "speaks version 2"},
		"refused":         {map[string][]string{"initialize": {`{"jsonrpc":"2.0","id":%ID%,"error":{"code":-32603,"message":""}}`}}, "", runner.CodeAgent, "code -32603"},
		"no session":      {map[string][]string{"initialize": acpInitialized("{}"), "session/new": {`{"jsonrpc":"2.0","id":%ID%,"result":{}}`}}, "", runner.CodeProtocol, "did not name"},
		"no login to resume": {map[string][]string{
			"initialize":   acpInitialized(`{"loadSession":true}`),
			"session/load": {`{"jsonrpc":"2.0","id":%ID%,"error":{"code":-32000,"message":"Authentication required"}}`},
		}, "S", runner.CodeAuth, "log in with"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, _ := acpAgent(t, tt.resume, tt.answers)
			_, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
			e, ok := errors.AsType[*runner.Error](err)
			if !ok || e.Code != tt.code || !strings.Contains(e.Error(), tt.text) {
				t.Fatalf("error %v", err)
			}
		})
	}
}

func TestACPUpdatesBecomeEvents(t *testing.T) {
	s, _ := acpAgent(t, "", map[string][]string{
		"initialize": acpInitialized("{}"), "session/new": acpNewSession,
		"session/prompt": append([]string{
			acpUpdate(`{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"hm"}}`),
			acpUpdate(`{"sessionUpdate":"agent_message_chunk","messageId":"1","content":{"type":"text","text":"one"}}`),
			acpUpdate(`{"sessionUpdate":"agent_message_chunk","messageId":"2","content":{"type":"resource_link","name":"doc","uri":"file:///x"}}`),
			acpUpdate(`{"sessionUpdate":"agent_message_chunk","messageId":"2","content":{"type":"image","data":"","mimeType":"image/png"}}`),
			acpUpdate(`{"sessionUpdate":"agent_message_chunk","messageId":"2","content":{"type":"audio","data":"","mimeType":"audio/wav"}}`),
			acpUpdate(`{"sessionUpdate":"agent_message_chunk","messageId":"2","content":{"type":"resource","resource":{"uri":"x","text":"inner"}}}`),
			acpUpdate(`{"sessionUpdate":"user_message_chunk","content":{"type":"text","text":"mine"}}`),
			acpUpdate(`{"sessionUpdate":"tool_call","toolCallId":"t","title":"Edit","kind":"edit","status":"in_progress","rawInput":{"path":"/a"},"content":[{"type":"content","content":{"type":"text","text":"about to"}}]}`),
			acpUpdate(`{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"completed","content":[{"type":"diff","path":"/a","newText":"x"},{"type":"content","content":{"type":"text","text":"done"}}]}`),
			acpUpdate(`{"sessionUpdate":"tool_call_update","toolCallId":"u","status":"failed","rawOutput":{"code":1}}`),
			acpUpdate(`{"sessionUpdate":"plan","entries":[]}`),
			`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"other","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"not mine"}}}}`,
			`{"jsonrpc":"2.0","method":"_vendor/news","params":{}}`,
		}, acpDone...),
	})
	h := &test.Handler{}
	out, err := s.Turn(t.Context(), test.Prompt("x"), h)
	if err != nil || out.Text != "one\n\n[doc: file:///x][an image, image/png][a sound, audio/wav]inner" {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	for id, want := range map[string]runner.ToolCall{
		"t": {ID: "t", Name: "edit", Title: "Edit", Status: runner.ToolCompleted, Input: json.RawMessage(`{"path":"/a"}`), Output: "[changes /a]\ndone", Files: []string{"/a"}},
		"u": {ID: "u", Status: runner.ToolFailed, Output: `{"code":1}`},
	} {
		if diff := cmp.Diff(want, h.Tool(id)); diff != "" {
			t.Error(id, diff)
		}
	}
}

func TestACPStopReasons(t *testing.T) {
	tests := map[string]struct {
		reason string
		status runner.OutcomeStatus
		notice string
	}{
		"end_turn":          {"end_turn", runner.OutcomeCompleted, ""},
		"max_tokens":        {"max_tokens", runner.OutcomeCompleted, "the answer is cut off: the agent reached its limit of tokens\n"},
		"max_turn_requests": {"max_turn_requests", runner.OutcomeCompleted, "the agent stopped before it was done: it reached its limit of steps\n"},
		"refusal":           {"refusal", runner.OutcomeRejected, ""},
		"cancelled":         {"cancelled", runner.OutcomeCanceled, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, _ := acpAgent(t, "", map[string][]string{
				"initialize": acpInitialized("{}"), "session/new": acpNewSession,
				"session/prompt": {fmt.Sprintf(`{"jsonrpc":"2.0","id":%%ID%%,"result":{"stopReason":%q}}`, tt.reason)},
			})
			h := &test.Handler{}
			out, err := s.Turn(t.Context(), test.Prompt("x"), h)
			if err != nil || out.Status != tt.status || h.Notices() != tt.notice {
				t.Fatalf("outcome %+v, %v, notices %q", out, err, h.Notices())
			}
		})
	}
}

func TestAPermissionRequestMayPrecedeItsToolCall(t *testing.T) {
	s, _ := acpAgent(t, "", map[string][]string{
		"initialize": acpInitialized("{}"), "session/new": acpNewSession,
		"session/prompt": {
			acpSpeaker.Permission("5"),
			acpUpdate(`{"sessionUpdate":"tool_call","toolCallId":"tool-5","title":"ls","kind":"execute","status":"pending"}`),
			acpUpdate(`{"sessionUpdate":"tool_call_update","toolCallId":"tool-5","status":"completed"}`),
			`{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}`,
		},
		"answer": nil,
	})
	h := &test.Handler{Answer: test.Choose(runner.AllowOnce, "")}
	out, err := s.Turn(t.Context(), test.Prompt("x"), h)
	if err != nil || out.Status != runner.OutcomeCompleted {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	if tool := h.Tool("tool-5"); tool.Name != "execute" || tool.Status != runner.ToolCompleted {
		t.Errorf("tool %+v", tool)
	}
}

// No request of a burst is answered as cancelled, which would stop the agent, while its turn runs.
func TestEachPermissionRequestOfABurstGetsItsDecision(t *testing.T) {
	const n = 500
	var burst strings.Builder
	for i := range n {
		burst.WriteString(acpSpeaker.Permission(fmt.Sprint(1000+i)) + "\n")
	}
	answers := make(map[string]int)
	def := test.Definition(t, runner.DriverACP, func(d *runner.Definition) { d.Permissions = runner.PermissionsAllow })
	s := test.Session(t, def, drivers.Dialect(def), func(a *test.Agent) {
		if !acpSpeaker.Handshake(a) {
			return
		}
		id, _ := acpSpeaker.Prompt(a)
		go func() { _ = a.Send(burst.String()) }()
		for range n {
			m, ok := a.Next()
			if !ok {
				return
			}
			_, answer := acpSpeaker.Answered(m)
			answers[answer]++
		}
		_ = a.Send(acpSpeaker.Done(id) + "\n")
	}, nil)
	out, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
	if err != nil || out.Status != runner.OutcomeCompleted || answers[test.Allowed] != n {
		t.Fatalf("outcome %+v, %v, answers %v", out, err, answers)
	}
}

// Updates sent as requests are answered with an error; they do not count against the
// limit of requests.
func TestUpdatesAsRequestsAreRefused(t *testing.T) {
	const n = 2000
	var lines []string
	for i := range n {
		lines = append(lines, fmt.Sprintf(`{"jsonrpc":"2.0","id":"u%d","method":"session/update","params":{}}`, i), acpSpeaker.Text("x"))
	}
	def := test.Definition(t, runner.DriverACP, nil)
	s := test.Session(t, def, drivers.Dialect(def), func(a *test.Agent) {
		if !acpSpeaker.Handshake(a) {
			return
		}
		id, ok := acpSpeaker.Prompt(a)
		if !ok {
			return
		}
		go func() {
			for _, l := range lines {
				_ = a.Send(l + "\n") // a failure shows in the turn
			}
		}()
		for range n {
			m, ok := a.Next()
			if _, answer := acpSpeaker.Answered(m); !ok || answer != test.Refused {
				t.Errorf("answered %v", m)
				return
			}
		}
		_ = a.Send(acpSpeaker.Done(id) + "\n") // a failure shows in the turn
		a.Wait()
	}, nil)
	out, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
	if err != nil || out.Text != strings.Repeat("x", n) {
		t.Fatalf("outcome %s with %d bytes, %v", out.Status, len(out.Text), err)
	}
}

func TestACPOpenUsesTheDefinition(t *testing.T) {
	def := test.Definition(t, runner.DriverACP, func(d *runner.Definition) {
		d.Args, d.Model, d.ModelArgs = []string{"--acp"}, "pro", []string{"-m", "{model}"}
	})
	a, err := drivers.All()[def.Driver](def, runner.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if p := a.Probe(t.Context()); p.Stage != runner.StageMissing {
		t.Errorf("probe %+v", p)
	}
	if diff := cmp.Diff([]string{"--acp", "-m", "pro"}, drivers.Dialect(def).Args("S")); diff != "" {
		t.Error(diff)
	}
}

// FuzzACPLines feeds random output of an agent to a turn, which must end.
func FuzzACPLines(f *testing.F) {
	for _, file := range []string{"claude", "codex", "codex-esc", "gemini", "nocred-claude"} {
		for _, l := range test.Load(f, "testdata/acp/"+file+".jsonl") {
			if l.FromHost || len(l.Text) > 4096 {
				continue
			}
			if params, ok := l.JSON["params"].(map[string]any); ok && params["sessionId"] != nil {
				l.Text = strings.ReplaceAll(l.Text, fmt.Sprint(params["sessionId"]), "S")
			}
			f.Add(l.Text)
		}
	}
	f.Add(acpSpeaker.Permission("1") + "\n" + acpSpeaker.Unknown("2") + "\n" + acpSpeaker.Event)
	f.Fuzz(func(t *testing.T, lines string) {
		def := test.Definition(t, runner.DriverACP, nil)
		test.Fuzz(t, def, drivers.Dialect(def), acpSpeaker, lines)
	})
}
