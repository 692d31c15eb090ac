package drivers_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	test "github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

// claimed refuses each tool, and keeps the files that its protocol has named.
func claimed(files *[]string) *test.Handler {
	return &test.Handler{Answer: test.Choose(runner.AllowOnce, ""), Refuse: func(call runner.ToolCall) runner.Refusal {
		*files = append(slices.Clone(call.Files), string(call.Input))
		return runner.Refusal{Text: "claimed, because \"words of bob\"", Plain: "claimed"}
	}}
}

// Claude's model reads a refusal as the result of its tool: it has the holder's reason, too.
func TestClaudesModelReadsWhoHoldsAFile(t *testing.T) {
	answered := make(chan string, 1)
	def := test.Definition(t, runner.DriverClaudeStdio, nil)
	s := test.Session(t, def, drivers.Dialect(def), func(a *test.Agent) {
		if !claudeSpeaker.Handshake(a) {
			return
		}
		id, ok := claudeSpeaker.Prompt(a)
		if !ok {
			return
		}
		err := a.SendLine(map[string]any{"type": "control_request", "request_id": "p", "request": map[string]any{
			"subtype": "can_use_tool", "tool_name": "Edit", "tool_use_id": "t", "input": map[string]any{"file_path": "/x/a.go"}}})
		if m, ok := a.Next(); ok && err == nil {
			b, _ := json.Marshal(m["response"])
			answered <- string(b)
		}
		_ = a.Send(claudeSpeaker.Done(id) + "\n") // a failure shows in the turn
		a.Wait()
	}, nil)
	var files []string
	out, err := s.Turn(t.Context(), test.Prompt("x"), claimed(&files))
	if err != nil || len(out.Denials) != 1 {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	if got := <-answered; got != `{"request_id":"p","response":{"behavior":"deny","message":"claimed, because \"words of bob\""},"subtype":"success"}` {
		t.Errorf("answered %s", got)
	}
	if !slices.Equal(files, []string{`{"file_path":"/x/a.go"}`}) {
		t.Errorf("files %q", files)
	}
}

// Codex has no room for a reason in its answers, so that its model gets it as a message in the running turn: as its user's, and therefore
// without a word of the holder.
func TestCodexsModelIsNotifiedWhoHoldsAFile(t *testing.T) {
	said := make(chan string, 2)
	s := codexSession(t, nil, func(a *test.Agent) {
		if !codexSpeaker.Handshake(a) {
			return
		}
		id, ok := codexSpeaker.Prompt(a)
		if !ok {
			return
		}
		item := `{"method":"item/started","params":{"threadId":"T","turnId":"%ID%","item":{"type":"fileChange","id":"f","changes":[{"path":"/x/a.go"}]}}}`
		_ = a.Send(strings.ReplaceAll(item, "%ID%", id) + "\n" + // a failure shows in the turn
			`{"id":"r","method":"item/fileChange/requestApproval","params":{"threadId":"T","itemId":"f"}}` + "\n")
		for range 2 {
			m, ok := a.Next()
			if !ok {
				return
			}
			b, _ := json.Marshal([]any{m["method"], m["result"], m["params"]})
			said <- strings.ReplaceAll(string(b), id, "%ID%")
		}
		_ = a.Send(codexSpeaker.Done(id) + "\n") // a failure shows in the turn
		a.Wait()
	})
	var files []string
	out, err := s.Turn(t.Context(), test.Prompt("x"), claimed(&files))
	if err != nil || len(out.Denials) != 1 {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	if got := <-said; got != `[null,{"decision":"decline"},null]` {
		t.Errorf("answered %s", got)
	}
	if got := <-said; got != `["turn/steer",null,{"expectedTurnId":"%ID%","input":[{"text":"claimed","type":"text"}],"threadId":"T"}]` {
		t.Errorf("told %s", got)
	}
	if !slices.Equal(files, []string{`[{"path":"/x/a.go"}]`}) {
		t.Errorf("files %q", files)
	}
}

// The Agent Client Protocol has options only: a client may read the reason in _meta.
func TestACPHasTheReasonOfARefusalInItsMeta(t *testing.T) {
	answered := make(chan string, 1)
	def := test.Definition(t, runner.DriverACP, nil)
	s := test.Session(t, def, drivers.Dialect(def), func(a *test.Agent) {
		if !acpSpeaker.Handshake(a) {
			return
		}
		id, ok := acpSpeaker.Prompt(a)
		if !ok {
			return
		}
		const tool = `{"toolCallId":"t","kind":"edit","title":"Edit a.go","content":[{"type":"diff","path":"/x/a.go","newText":"y"}],"locations":[{"path":"/x/b.go"}]}`
		_ = a.Send(fmt.Sprintf(`{"jsonrpc":"2.0","id":9,"method":"session/request_permission","params":{"sessionId":%q,"toolCall":%s,"options":[`+
			`{"optionId":"yes","name":"Yes","kind":"allow_once"},{"optionId":"no","name":"No","kind":"reject_once"}]}}`+"\n", "S", tool)) // a failure shows in the turn
		if m, ok := a.Next(); ok {
			b, _ := json.Marshal(m["result"])
			answered <- string(b)
		}
		_ = a.Send(acpSpeaker.Done(id) + "\n") // a failure shows in the turn
		a.Wait()
	}, nil)
	var files []string
	out, err := s.Turn(t.Context(), test.Prompt("x"), claimed(&files))
	if err != nil || len(out.Denials) != 1 {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	if got := <-answered; got != `{"_meta":{"parley":{"claimed":"claimed"}},"outcome":{"optionId":"no","outcome":"selected"}}` {
		t.Errorf("answered %s", got)
	}
	if !slices.Equal(files, []string{"/x/a.go", "/x/b.go", ""}) {
		t.Errorf("files %q", files)
	}
}
