package drivers_test

import (
	"fmt"
	"testing"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
	test "github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

func TestHostileAgents(t *testing.T) {
	for driver, speaker := range map[string]test.Speaker{
		runner.DriverACP:            acpSpeaker,
		runner.DriverClaudeStdio:    claudeSpeaker,
		runner.DriverCodexAppServer: codexSpeaker,
	} {
		t.Run(driver, func(t *testing.T) {
			test.Hostile(t, speaker, func(t *testing.T, play func(*test.Agent)) *duplex.Session {
				def := test.Definition(t, driver, nil)
				return test.Session(t, def, drivers.Dialect(def), play, nil)
			})
		})
	}
}

var acpSpeaker = test.Speaker{
	Handshake: func(a *test.Agent) bool {
		for _, result := range []string{`{"protocolVersion":1,"agentCapabilities":{},"authMethods":[]}`, `{"sessionId":"S"}`} {
			m, ok := a.Next()
			if !ok || a.Send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%v,"result":%s}`+"\n", m["id"], result)) != nil {
				return false
			}
		}
		return true
	},
	Prompt: func(a *test.Agent) (string, bool) {
		for {
			m, ok := a.Next()
			if !ok {
				return "", false
			}
			if m["method"] == "session/prompt" {
				return fmt.Sprint(m["id"]), true
			}
		}
	},
	Text: func(s string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"S","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":%q}}}}`, s)
	},
	Done: func(id string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"stopReason":"end_turn"}}`, id)
	},
	Permission: func(id string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"session/request_permission","params":{"sessionId":"S","toolCall":{"toolCallId":"tool-%s","title":"ls"},"options":[{"optionId":"proceed","name":"Go","kind":"allow_once"},{"optionId":"stop","name":"No","kind":"reject_once"}]}}`, id, id)
	},
	Unknown: func(id string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"fs/read_text_file","params":{"sessionId":"S","path":"/etc/passwd"}}`, id)
	},
	Event: `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"S","update":{"sessionUpdate":"dance"}}}`,
	Answered: func(m map[string]any) (string, string) {
		if m["method"] != nil {
			return "", ""
		}
		id := fmt.Sprint(m["id"])
		if m["error"] != nil {
			return id, test.Refused
		}
		r, _ := m["result"].(map[string]any)
		if outcome, _ := r["outcome"].(map[string]any); outcome["optionId"] == "proceed" {
			return id, test.Allowed
		}
		return id, test.Denied
	},
}

var claudeSpeaker = test.Speaker{
	Handshake: func(a *test.Agent) bool {
		m, ok := a.Next()
		return ok && a.Send(fmt.Sprintf(`{"type":"control_response","response":{"subtype":"success","request_id":%q,"response":{}}}`+"\n", m["request_id"])) == nil
	},
	Prompt: func(a *test.Agent) (string, bool) {
		for {
			m, ok := a.Next()
			if !ok {
				return "", false
			}
			if m["type"] == "user" {
				id := fmt.Sprint(m["uuid"])
				return id, a.Send(fmt.Sprintf(`{"type":"user","uuid":%q,"isReplay":true,"message":{"role":"user","content":"x"}}`+"\n", id)) == nil
			}
		}
	},
	Text: func(s string) string {
		return fmt.Sprintf(`{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%q}},"parent_tool_use_id":null}`, s)
	},
	Done: func(id string) string {
		if len(id) != 36 { // results have no id, so a result for an unknown prompt is another kind of line
			return fmt.Sprintf(`{"type":"control_response","response":{"subtype":"success","request_id":%q}}`, id)
		}
		return `{"type":"result","subtype":"success","is_error":false,"result":"whole"}`
	},
	Permission: func(id string) string {
		return fmt.Sprintf(`{"type":"control_request","request_id":%q,"request":{"subtype":"can_use_tool","tool_name":"Bash","tool_use_id":"tool-%s","input":{"command":"ls"}}}`, id, id)
	},
	Unknown: func(id string) string {
		return fmt.Sprintf(`{"type":"control_request","request_id":%q,"request":{"subtype":"make_coffee"}}`, id)
	},
	Event: `{"type":"news","subtype":"unheard","session_id":7}`,
	Answered: func(m map[string]any) (string, string) {
		r, _ := m["response"].(map[string]any)
		if m["type"] != "control_response" {
			return "", ""
		}
		id := fmt.Sprint(r["request_id"])
		if r["subtype"] == "error" {
			return id, test.Refused
		}
		decision, _ := r["response"].(map[string]any)
		if decision["behavior"] == "allow" {
			return id, test.Allowed
		}
		return id, test.Denied
	},
}

var codexSpeaker = test.Speaker{
	Handshake: func(a *test.Agent) bool {
		for _, result := range []string{`{"userAgent":"parley/0.169.0"}`, "", `{"thread":{"id":"T"},"model":"m"}`} {
			m, ok := a.Next()
			if !ok {
				return false
			}
			if result != "" && a.Send(fmt.Sprintf(`{"id":%v,"result":%s}`+"\n", m["id"], result)) != nil {
				return false
			}
		}
		return true
	},
	Prompt: func(a *test.Agent) (string, bool) {
		for {
			m, ok := a.Next()
			if !ok {
				return "", false
			}
			if m["method"] == "turn/start" {
				id := fmt.Sprint("turn-", m["id"])
				return id, a.Send(fmt.Sprintf(`{"id":%v,"result":{"turn":{"id":%q,"status":"inProgress"}}}`+"\n", m["id"], id)+
					fmt.Sprintf(`{"method":"turn/started","params":{"threadId":"T","turn":{"id":%q}}}`+"\n", id)) == nil
			}
		}
	},
	Text: func(s string) string {
		return fmt.Sprintf(`{"method":"item/agentMessage/delta","params":{"threadId":"T","itemId":"message","delta":%q}}`, s)
	},
	Done: func(id string) string {
		return fmt.Sprintf(`{"method":"turn/completed","params":{"threadId":"T","turn":{"id":%q,"status":"completed"}}}`, id)
	},
	Permission: func(id string) string {
		return fmt.Sprintf(`{"id":%s,"method":"item/commandExecution/requestApproval","params":{"threadId":"T","itemId":"item-%s","command":"ls"}}`, id, id)
	},
	Unknown: func(id string) string {
		return fmt.Sprintf(`{"id":%s,"method":"make/coffee","params":{"threadId":"T"}}`, id)
	},
	Event: `{"method":"item/started","params":{"threadId":"T","item":{"type":"dance","id":"x"}}}`,
	Answered: func(m map[string]any) (string, string) {
		if m["method"] != nil {
			return "", ""
		}
		id := fmt.Sprint(m["id"])
		if m["error"] != nil {
			return id, test.Refused
		}
		if r, _ := m["result"].(map[string]any); r["decision"] == "accept" {
			return id, test.Allowed
		}
		return id, test.Denied
	},
}
