package acp_test

import (
	"fmt"
	"testing"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/acp"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
	test "github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

var speaker = test.Speaker{
	Greet: func(a *test.Agent) bool {
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

func TestHostileAgents(t *testing.T) {
	test.Hostile(t, speaker, func(t *testing.T, play func(*test.Agent)) *duplex.Session {
		def := test.Definition(t, runner.DriverACP, nil)
		return test.Session(t, def, acp.NewDialect(def), play, nil)
	})
}
