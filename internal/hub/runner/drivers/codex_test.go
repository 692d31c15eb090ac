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

func codexSession(t *testing.T, change func(*runner.Definition), play func(*test.Agent)) *duplex.Session {
	t.Helper()
	def := test.Definition(t, runner.DriverCodexAppServer, change)
	return test.Session(t, def, drivers.Dialect(def), play, nil)
}

// codexTurn returns a session whose server answers each prompt with lines and the end of
// the turn; %ID% is the turn's id.
func codexTurn(t *testing.T, lines ...string) *duplex.Session {
	t.Helper()
	return codexSession(t, nil, func(a *test.Agent) {
		if !codexSpeaker.Handshake(a) {
			return
		}
		for {
			id, ok := codexSpeaker.Prompt(a)
			if !ok {
				return
			}
			for _, l := range append(lines, codexSpeaker.Done(id)) {
				if a.Send(strings.ReplaceAll(l, "%ID%", id)+"\n") != nil {
					return
				}
			}
		}
	})
}

// handshake simulates a server that answers with results by method, and returns what the
// host sends until the process ends.
func handshake(t *testing.T, change func(*runner.Definition), resume string, results map[string]string) []string {
	t.Helper()
	var said []string
	def := test.Definition(t, runner.DriverCodexAppServer, change)
	s := test.Session(t, def, drivers.Dialect(def), func(a *test.Agent) {
		for {
			m, ok := a.Next()
			if !ok {
				return
			}
			method := fmt.Sprint(m["method"])
			params, _ := m["params"].(map[string]any)
			delete(params, "cwd")
			b, _ := json.Marshal(params)
			said = append(said, method+" "+string(b))
			answer, known := results[method]
			switch {
			case m["id"] == nil:
			case !known:
				a.Exit(0, "")
				return
			default:
				if a.Send(strings.ReplaceAll(answer, "%ID%", fmt.Sprint(m["id"]))+"\n") != nil {
					return
				}
			}
		}
	}, func(o *duplex.Options) { o.Spec.Resume = resume })
	_, _ = s.Turn(t.Context(), test.Prompt("x"), &test.Handler{}) // the turn fails at the end of the process
	return said
}

const (
	codexHello  = `{"id":%ID%,"result":{"userAgent":"parley/0.169.0"}}`
	codexThread = `{"id":%ID%,"result":{"thread":{"id":"T"}}}`
)

func TestCodexHandshake(t *testing.T) {
	initialize := `initialize {"clientInfo":{"name":"parley","title":"Parley","version":"1"}}`
	prompt := `turn/start {"input":[{"text":"x","type":"text"}],"threadId":"T"}`
	tests := map[string]struct {
		change func(*runner.Definition)
		resume string
		answer map[string]string
		want   []string
	}{
		"a new thread requires approvals": {
			answer: map[string]string{"initialize": codexHello, "thread/start": codexThread},
			want:   []string{initialize, "initialized null", `thread/start {"approvalPolicy":"untrusted","sandbox":"workspace-write"}`, prompt},
		},
		"policy allow lets the server decide when to ask": {
			change: func(d *runner.Definition) { d.Permissions, d.Model = "allow", "gpt" },
			answer: map[string]string{"initialize": codexHello, "thread/start": codexThread},
			want:   []string{initialize, "initialized null", `thread/start {"approvalPolicy":"on-request","model":"gpt","sandbox":"workspace-write"}`, prompt},
		},
		"the definition's arguments win": {
			change: func(d *runner.Definition) {
				d.Args = []string{"-c", "approval_policy=never", "-c", "sandbox_mode=read-only"}
			},
			answer: map[string]string{"initialize": codexHello, "thread/start": codexThread},
			want:   []string{initialize, "initialized null", `thread/start {}`, prompt},
		},
		"a thread is resumed": {
			resume: "T",
			answer: map[string]string{"initialize": codexHello, "thread/resume": codexThread},
			want:   []string{initialize, "initialized null", `thread/resume {"approvalPolicy":"untrusted","excludeTurns":true,"sandbox":"workspace-write","threadId":"T"}`, prompt},
		},
		"a lost thread": {
			resume: "L",
			answer: map[string]string{
				"initialize": codexHello, "thread/start": codexThread,
				"thread/resume": `{"id":%ID%,"error":{"code":-32600,"message":"no rollout found"}}`,
			},
			want: []string{
				initialize, "initialized null", `thread/resume {"approvalPolicy":"untrusted","excludeTurns":true,"sandbox":"workspace-write","threadId":"L"}`,
				`thread/start {"approvalPolicy":"untrusted","sandbox":"workspace-write"}`, prompt,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, handshake(t, tt.change, tt.resume, tt.answer)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCodexHandshakeErrors(t *testing.T) {
	tests := map[string]struct {
		answers []string // to initialize, initialized, thread/start
		code    runner.Code
		text    string
	}{
		"no threads":    {[]string{codexHello, "", `{"id":%ID%,"error":{"code":-32600,"message":"unknown variant"}}`}, runner.CodeProtocol, "(parley/0.169.0) does not speak"},
		"no login":      {[]string{codexHello, "", `{"id":%ID%,"error":{"code":-1,"message":"401 Unauthorized"}}`}, runner.CodeAuth, "log in with"},
		"no thread":     {[]string{codexHello, "", `{"id":%ID%,"result":{}}`}, runner.CodeProtocol, "which thread"},
		"not an object": {[]string{codexHello, "", `{"id":%ID%,"result":7}`}, runner.CodeProtocol, "could not be understood"},
		"refused":       {[]string{`{"id":%ID%,"error":{"code":-1,"message":"go away"}}`}, runner.CodeAgent, "go away"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := codexSession(t, nil, func(a *test.Agent) {
				for _, answer := range tt.answers {
					m, ok := a.Next()
					if !ok || answer != "" && a.Send(strings.ReplaceAll(answer, "%ID%", fmt.Sprint(m["id"]))+"\n") != nil {
						return
					}
				}
				a.Wait()
			})
			_, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
			e, ok := errors.AsType[*runner.Error](err)
			if !ok || e.Code != tt.code || !strings.Contains(e.Error(), tt.text) {
				t.Fatalf("error %v", err)
			}
		})
	}
}

func TestCodexItemsBecomeToolCallsAndText(t *testing.T) {
	s := codexTurn(t,
		`{"method":"item/reasoning/textDelta","params":{"threadId":"T","turnId":"%ID%","delta":"hm"}}`,
		`{"method":"item/agentMessage/delta","params":{"threadId":"T","turnId":"%ID%","itemId":"m1","delta":"one"}}`,
		`{"method":"item/completed","params":{"threadId":"T","turnId":"%ID%","item":{"type":"agentMessage","id":"m1","text":"one"}}}`,
		`{"method":"item/completed","params":{"threadId":"T","turnId":"%ID%","item":{"type":"agentMessage","id":"m2","text":"two"}}}`,
		`{"method":"item/started","params":{"threadId":"T","turnId":"%ID%","item":{"type":"fileChange","id":"f","status":"inProgress","changes":[{"path":"/a/b.go"},{"path":"c"},{"path":"d"},{"path":"e"}]}}}`,
		`{"method":"item/completed","params":{"threadId":"T","turnId":"%ID%","item":{"type":"fileChange","id":"f","status":"failed"}}}`,
		`{"method":"item/started","params":{"threadId":"T","turnId":"%ID%","item":{"type":"mcpToolCall","id":"m","server":"docs","tool":"find","arguments":{"q":1},"status":"completed"}}}`,
		`{"method":"item/started","params":{"threadId":"T","turnId":"%ID%","item":{"type":"webSearch","id":"w","query":"go"}}}`,
		`{"method":"item/started","params":{"threadId":"T","turnId":"%ID%","item":{"type":"dynamicToolCall","id":"d","tool":"dyn","status":"declined"}}}`,
		// These belong to a subagent's thread and to another turn.
		`{"method":"item/agentMessage/delta","params":{"threadId":"U","turnId":"u","itemId":"m3","delta":"not mine"}}`,
		`{"method":"item/agentMessage/delta","params":{"threadId":"T","turnId":"old","itemId":"m4","delta":"not now"}}`,
		`{"method":"turn/completed","params":{"threadId":"U","turn":{"id":"u","status":"failed"}}}`,
		`{"method":"warning","params":{"threadId":"T","message":"careful"}}`,
		`{"method":"error","params":{"threadId":"T","turnId":"%ID%","willRetry":true,"error":{"message":"stream lost"}}}`,
	)
	h := &test.Handler{}
	out, err := s.Turn(t.Context(), test.Prompt("x"), h)
	if err != nil || out.Text != "one\n\ntwo" {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	for id, want := range map[string]runner.ToolCall{
		"f": {ID: "f", Name: "apply_patch", Title: "Change b.go, c, d, …", Status: runner.ToolFailed, Input: json.RawMessage(`[{"path":"/a/b.go"},{"path":"c"},{"path":"d"},{"path":"e"}]`)},
		"m": {ID: "m", Name: "docs/find", Title: "find", Status: runner.ToolCompleted, Input: json.RawMessage(`{"q":1}`)},
		"w": {ID: "w", Name: "web_search", Title: "go"},
		"d": {ID: "d", Name: "dyn", Title: "dyn", Status: runner.ToolDenied},
	} {
		if diff := cmp.Diff(want, h.Tool(id)); diff != "" {
			t.Error(id, diff)
		}
	}
	if h.Notices() != "careful\nthe model did not answer: stream lost; try 1\n" {
		t.Errorf("notices %q", h.Notices())
	}
	if len(out.Denials) != 1 || out.Denials[0].ID != "d" {
		t.Errorf("denials %+v", out.Denials)
	}
}

func TestUsageCountsOnlyTheTurn(t *testing.T) {
	usage := func(turn string, total, last int) string {
		return fmt.Sprintf(`{"method":"thread/tokenUsage/updated","params":{"threadId":"T","turnId":%q,"tokenUsage":{"total":{"inputTokens":%d},"last":{"inputTokens":%d}}}}`, turn, total, last)
	}
	// A resumed thread reports the tokens of its earlier turns again.
	s := codexTurn(t, usage("before", 100, 7), usage("%ID%", 110, 10), usage("%ID%", 115, 5))
	out, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
	if err != nil || out.Usage.InputTokens != 15 {
		t.Fatalf("outcome %+v, %v", out, err)
	}
}

func TestCodexApprovals(t *testing.T) {
	item := `{"method":"item/started","params":{"threadId":"T","turnId":"%ID%","item":{"type":"fileChange","id":"f","changes":[{"path":"/a/b.go"}]}}}`
	tests := map[string]struct {
		before  string
		method  string
		params  string
		kind    runner.PermissionKind
		title   string
		answer  string
		denials int
	}{
		"a file change": {
			item, "item/fileChange/requestApproval", `{"threadId":"T","itemId":"f","reason":"wants to","grantRoot":"/a"}`,
			runner.AllowAlways, "Change files: Change b.go below /a (wants to)", `{"decision":"acceptForSession"}`, 0,
		},
		"a file change is denied": {
			item, "item/fileChange/requestApproval", `{"threadId":"T","itemId":"f"}`,
			runner.RejectOnce, "Change files: Change b.go", `{"decision":"decline"}`, 1,
		},
		"more permissions": {
			"", "item/permissions/requestApproval", `{"threadId":"T","itemId":"p","permissions":{"network":{"enabled":true}}}`,
			runner.AllowOnce, "Grant more permissions", `{"permissions":{"network":{"enabled":true}},"scope":"turn"}`, 0,
		},
		"more permissions for the session": {
			"", "item/permissions/requestApproval", `{"threadId":"T","itemId":"p","permissions":{"network":{}}}`,
			runner.AllowAlways, "Grant more permissions", `{"permissions":{"network":{}},"scope":"session"}`, 0,
		},
		"no more permissions": {
			"", "item/permissions/requestApproval", `{"threadId":"T","itemId":"p","permissions":{"network":{}}}`,
			runner.RejectOnce, "Grant more permissions", `{"permissions":{}}`, 1,
		},
		"a command, older protocol": {
			"", "execCommandApproval", `{"conversationId":"T","callId":"c","command":["ls","-l"],"cwd":"/"}`,
			runner.AllowOnce, "Run a command: ls -l", `{"decision":"approved"}`, 0,
		},
		"a patch, older protocol": {
			"", "applyPatchApproval", `{"conversationId":"T","callId":"c","fileChanges":{"/a":{}}}`,
			runner.RejectOnce, "Change files", `{"decision":"denied"}`, 1,
		},
		"a command with its shell": {
			"", "item/commandExecution/requestApproval", `{"threadId":"T","itemId":"c","command":"/bin/bash -lc ls","commandActions":[{"command":"ls"}],"availableDecisions":["accept","acceptForSession",{"x":1}]}`,
			runner.AllowAlways, "Run a command: ls", `{"decision":"acceptForSession"}`, 0,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			answered := make(chan string, 1)
			s := codexSession(t, nil, func(a *test.Agent) {
				if !codexSpeaker.Handshake(a) {
					return
				}
				id, ok := codexSpeaker.Prompt(a)
				if !ok {
					return
				}
				_ = a.Send(strings.ReplaceAll(tt.before, "%ID%", id) + "\n" + // a failure shows in the turn
					fmt.Sprintf(`{"id":"r","method":%q,"params":%s}`+"\n", tt.method, tt.params))
				if m, ok := a.Next(); ok {
					b, _ := json.Marshal(m["result"])
					answered <- string(b)
				}
				_ = a.Send(codexSpeaker.Done(id) + "\n") // a failure shows in the turn
				a.Wait()
			})
			h := &test.Handler{Answer: test.Choose(tt.kind, "")}
			out, err := s.Turn(t.Context(), test.Prompt("x"), h)
			if err != nil || len(out.Denials) != tt.denials {
				t.Fatalf("outcome %+v, %v", out, err)
			}
			if got := <-answered; got != tt.answer {
				t.Errorf("answered %s", got)
			}
			if got := h.Asked()[0].Title; got != tt.title {
				t.Errorf("title %q", got)
			}
		})
	}
}

func TestUnknownRequestsAreRefused(t *testing.T) {
	for _, method := range []string{"mcpServer/elicitation/request", "item/tool/requestUserInput", "item/tool/call", "account/chatgptAuthTokens/refresh"} {
		t.Run(method, func(t *testing.T) {
			answered := make(chan any, 1)
			s := codexSession(t, nil, func(a *test.Agent) {
				if !codexSpeaker.Handshake(a) {
					return
				}
				id, _ := codexSpeaker.Prompt(a)
				_ = a.Send(fmt.Sprintf(`{"id":5,"method":%q,"params":{"threadId":"T"}}`+"\n", method)) // a failure shows in the turn
				if m, ok := a.Next(); ok {
					answered <- m["error"]
				}
				_ = a.Send(codexSpeaker.Done(id) + "\n") // a failure shows in the turn
				a.Wait()
			})
			if _, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{}); err != nil {
				t.Fatal(err)
			}
			if e, _ := (<-answered).(map[string]any); e["code"] != float64(-32601) {
				t.Errorf("answered %v", e)
			}
		})
	}
}

func TestCodexTurnEnds(t *testing.T) {
	retry := `{"method":"error","params":{"threadId":"T","turnId":"%ID%","willRetry":true,"error":{"message":"unexpected status 401 Unauthorized"}}}`
	ended := func(turn string) string {
		return `{"method":"turn/completed","params":{"threadId":"T","turn":{"id":"%ID%",` + turn + `}}}`
	}
	tests := map[string]struct {
		lines  []string
		status runner.OutcomeStatus
		text   string
	}{
		"failed":                         {[]string{ended(`"status":"failed","error":{"message":"{\"error\":{\"message\":\"stub says 400\"}}","codexErrorInfo":"other"}`)}, runner.OutcomeFailed, "Test Agent reported an error: stub says 400"},
		"failed without a message":       {[]string{ended(`"status":"failed","error":{"message":""}`)}, runner.OutcomeFailed, "Test Agent reported an error: it did not say which"},
		"an unknown status":              {[]string{ended(`"status":"exploded"`)}, runner.OutcomeFailed, `Test Agent reported an error: it ended the turn as "exploded" without a reason`},
		"unauthorized":                   {[]string{ended(`"status":"failed","error":{"message":"no","codexErrorInfo":"unauthorized"}`)}, runner.OutcomeAuthRequired, "Test Agent is not logged in: no; log in with: test-agent login"},
		"retries of refused credentials": {[]string{retry, retry, retry}, runner.OutcomeAuthRequired, "Test Agent is not logged in: unexpected status 401 Unauthorized; log in with: test-agent login"},
		"interrupted by its server":      {[]string{ended(`"status":"interrupted"`)}, runner.OutcomeCanceled, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := codexTurn(t, tt.lines...).Turn(t.Context(), test.Prompt("x"), &test.Handler{})
			if out.Status != tt.status || fmt.Sprint(err) != tt.text && (err != nil || tt.text != "") {
				t.Fatalf("outcome %+v, error %v", out, err)
			}
		})
	}
}

func TestARequestWithdrawnByCodexIsDropped(t *testing.T) {
	s := codexTurn(t, codexSpeaker.Permission("3"), `{"method":"serverRequest/resolved","params":{"threadId":"T","requestId":3}}`)
	if _, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{}); err != nil { // would block if the request stayed open
		t.Fatal(err)
	}
}

func TestCodexRefusesAPrompt(t *testing.T) {
	s := codexSession(t, nil, func(a *test.Agent) {
		if !codexSpeaker.Handshake(a) {
			return
		}
		m, _ := a.Next()
		_ = a.Send(fmt.Sprintf(`{"id":%v,"error":{"code":-32600,"message":"too long"}}`+"\n", m["id"])) // a failure shows in the turn
		a.Wait()
	})
	_, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
	if e, ok := errors.AsType[*runner.Error](err); !ok || e.Code != runner.CodeAgent {
		t.Fatalf("error %v", err)
	}
}

func TestCodexOpenUsesTheDefinition(t *testing.T) {
	agent, err := drivers.All()[runner.DriverCodexAppServer](test.Definition(t, runner.DriverCodexAppServer, nil), runner.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if p := agent.Probe(t.Context()); p.Stage != runner.StageMissing {
		t.Errorf("probe %+v", p)
	}
	args := drivers.Dialect(runner.Definition{Driver: runner.DriverCodexAppServer, Args: []string{"-c", "x=y"}}).Args("T")
	if diff := cmp.Diff([]string{"app-server", "-c", "x=y"}, args); diff != "" {
		t.Error(diff)
	}
}

// FuzzCodexLines feeds random output of the server to a turn, which must end.
func FuzzCodexLines(f *testing.F) {
	for _, l := range test.Load(f, "testdata/codex-appserver.jsonl") {
		if !l.FromHost && len(l.Text) < 4096 {
			text := strings.ReplaceAll(l.Text, "01a1fbcc-73b0-76f3-87f4-7feb7a99dab8", "T")
			f.Add(strings.ReplaceAll(text, "01a1fbcc-73d2-7ae3-9487-f778d9931e52", "turn-3"))
		}
	}
	f.Add(codexSpeaker.Permission("1") + "\n" + codexSpeaker.Unknown("2") + "\n" + codexSpeaker.Event)
	f.Fuzz(func(t *testing.T, lines string) {
		def := test.Definition(t, runner.DriverCodexAppServer, nil)
		test.Fuzz(t, def, drivers.Dialect(def), codexSpeaker, lines)
	})
}
