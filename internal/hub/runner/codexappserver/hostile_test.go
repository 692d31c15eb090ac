package codexappserver_test

import (
	"fmt"
	"testing"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/codexappserver"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
	test "github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

var speaker = test.Speaker{
	Greet: func(a *test.Agent) bool {
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

func TestHostileAgents(t *testing.T) {
	test.Hostile(t, speaker, func(t *testing.T, play func(*test.Agent)) *duplex.Session {
		def := test.Definition(t, runner.DriverCodexAppServer, nil)
		return test.Session(t, def, codexappserver.NewDialect(def), play, nil)
	})
}
