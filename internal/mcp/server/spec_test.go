package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// manual returns the sections of docs/mcp.md by the texts of their headings.
func manual(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.FromSlash("../../../docs/mcp.md"))
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	heading := ""
	for line := range strings.Lines(string(data)) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			heading = strings.TrimSpace(title)
			continue
		}
		sections[heading] += line
	}
	return sections
}

// REQ-USE-005: each tool has a section with an example, its errors and its arguments.
func TestTheManualHasEveryTool(t *testing.T) {
	sections := manual(t)
	a := join(t, openProject(t, configOf("manual", planning()...), startServer(t).dial))
	tools, err := a.session.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) == 0 {
		t.Fatal(tools, err)
	}
	for _, tool := range tools.Tools {
		text, ok := sections["`"+tool.Name+"`"]
		if !ok {
			t.Errorf("%s has no section", tool.Name)
			continue
		}
		if !strings.Contains(text, "```text\n"+tool.Name+" {") || !strings.Contains(text, "Errors:") {
			t.Errorf("%s has no example or no errors", tool.Name)
		}
		schema, _ := tool.InputSchema.(map[string]any)
		arguments, _ := schema["properties"].(map[string]any)
		for name := range arguments {
			if !strings.Contains(text, "`"+name+"`") && !strings.Contains(text, `"`+name+`"`) {
				t.Errorf("the section of %s does not mention the argument %s", tool.Name, name)
			}
		}
	}
	prompts, err := a.session.ListPrompts(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range prompts.Prompts {
		if !strings.Contains(sections["Resources and prompts"], "`"+p.Name+"`") {
			t.Errorf("the manual does not mention the prompt %s", p.Name)
		}
	}
}

// REQ-GUIDE-ENV
func TestTheManualHasEveryVariable(t *testing.T) {
	text := manual(t)["Environment"]
	for _, v := range mcpconfig.Variables() {
		if !regexp.MustCompile("(?m)^\\|.*`" + v.Name + "`.*\\|.*`" + regexp.QuoteMeta(v.Path) + "`").MatchString(text) {
			t.Errorf("the manual does not say that %s sets %s", v.Name, v.Path)
		}
	}
	for _, name := range []string{"MCP_PROJECT_PATH", "MCP_CONFIG_PATH"} {
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("the manual does not mention %s", name)
		}
	}
}

// REQ-USE-006: the cases of section 15.
func TestTheManualHasEveryProblem(t *testing.T) {
	sections := manual(t)
	for heading, words := range map[string][]string{
		"The server does not start, or answers with ConnectionError": {
			"no NATS server is running", "nats-server -js", "without JetStream", "refused the credentials", "another program uses the port"},
		"Messages are sent, but not seen": {"list_channels", "namespace", "queued"},
		"It is slow":                      {"the time to the server", "maxMessages", "agents"},
	} {
		for _, word := range words {
			if !strings.Contains(sections[heading], word) {
				t.Errorf("%q is not in %q", word, heading)
			}
		}
	}
}

// REQ-TOOL-024
func TestFiftyMessagesAreReadByDefault(t *testing.T) {
	a := join(t, openProject(t, configOf("fifty", planning()...), startServer(t).dial)).named("me")
	for i := range 60 {
		a.send("planning", fmt.Sprint("message ", i))
	}
	for limit, want := range map[int]int{0: 50, 1: 1, 55: 55, 1000: 60} {
		arguments := map[string]any{"channel": "planning"}
		if limit > 0 {
			arguments["limit"] = limit
		}
		text := a.must("read_messages", arguments).text
		if got := strings.Count(text, "**me**: message "); got != want || !strings.Contains(text, "message 59") {
			t.Errorf("limit %d: %d messages", limit, got)
		}
	}
}

// REQ-TOOL-022, REQ-ERROR-006: the error of a failed publish has the reason, and the
// server continues.
func TestErrorOfAFailedPublishHasTheReason(t *testing.T) {
	n := startServer(t)
	nc, err := nats.Connect(n.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "taken_PLANNING", Subjects: []string{"elsewhere"}}); err != nil {
		t.Fatal(err)
	}
	a := join(t, openProject(t, configOf("taken", planning()...), n.dial)).named("me")
	got := a.call("send_message", map[string]any{"channel": "planning", "message": "x"})
	if !got.isError || !strings.HasPrefix(got.text, "ConflictError: ") || !strings.Contains(got.text, `"planning"`) || !strings.Contains(got.text, "What to do: ") {
		t.Errorf("got %+v", got)
	}
	a.send("review", "still here")
}
