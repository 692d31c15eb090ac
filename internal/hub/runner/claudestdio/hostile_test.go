package claudestdio_test

import (
	"fmt"
	"testing"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/claudestdio"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
	test "github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

var speaker = test.Speaker{
	Greet: func(a *test.Agent) bool {
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
		if len(id) != 36 { // results carry no id: one for nobody is another kind of line
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

func TestHostileAgents(t *testing.T) {
	test.Hostile(t, speaker, func(t *testing.T, play func(*test.Agent)) *duplex.Session {
		def := test.Definition(t, runner.DriverClaudeStdio, nil)
		return test.Session(t, def, claudestdio.NewDialect(def), play, nil)
	})
}
