package hooks_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/sessions/hooks"
	"github.com/parleyhub/parley/internal/sessions/news"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// captured returns what the programs' hooks got, by vendor and file.
func captured(t testing.TB) map[string]map[string][]byte {
	t.Helper()
	all := map[string]map[string][]byte{}
	for _, vendor := range hooks.Vendors {
		files, err := filepath.Glob(filepath.Join("testdata", vendor, "*.json"))
		if err != nil || len(files) == 0 && vendor != presence.OpenCode { // whose events are those of Parley's own plugin
			t.Fatal(vendor, err)
		}
		all[vendor] = map[string][]byte{}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all[vendor][strings.TrimSuffix(filepath.Base(f), ".json")] = data
		}
	}
	return all
}

func TestTheVendorsEventsAreUnderstood(t *testing.T) {
	t.Parallel()
	want := map[string]hooks.Kind{
		"SessionStart": hooks.Start, "SessionEnd": hooks.End, "UserPromptSubmit": hooks.BeforeTurn, "BeforeAgent": hooks.BeforeTurn,
		"Stop": hooks.AfterTurn, "AfterAgent": hooks.AfterTurn, "PreToolUse": hooks.BeforeTool, "BeforeTool": hooks.BeforeTool,
		"PostToolUse": hooks.AfterTool, "AfterTool": hooks.AfterTool, "Notification": hooks.Notification, "Interrupt": hooks.Interrupt,
		"FileChanged": hooks.Bell,
	}
	for vendor, files := range captured(t) {
		for file, data := range files {
			name, _, _ := strings.Cut(file, "-")
			e, err := hooks.Decode(vendor, name, data)
			if err != nil {
				t.Errorf("%s %s: %v", vendor, file, err)
				continue
			}
			kind, ok := want[name]
			if !ok {
				kind = hooks.Other
			}
			if e.Kind != kind || e.Name != name || e.Session == "" || e.Dir != "/home/ann/project" || e.Transcript == "" {
				t.Errorf("%s %s is %+v", vendor, file, e)
			}
			if e.StopActive != strings.HasSuffix(file, "-active") {
				t.Errorf("%s %s: stop_hook_active is %t", vendor, file, e.StopActive)
			}
			if tool := kind == hooks.BeforeTool || kind == hooks.AfterTool; tool != (e.Tool != "" && len(e.ToolInput) > 0) {
				t.Errorf("%s %s: the tool is %s %s", vendor, file, e.Tool, e.ToolInput)
			}
			same, err := hooks.Decode(vendor, "", data)
			if err != nil || !reflect.DeepEqual(same, e) {
				t.Errorf("%s %s without a name is %+v, %v", vendor, file, same, err)
			}
		}
	}
}

func TestWhatIsNoEventIsRefused(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5000)
	for name, input := range map[string]string{
		"no JSON": "{", "no object": "[1]", "no session": `{"cwd":"/"}`, "no UTF-8": "{\"session_id\":\"\xff\"}", "a number": `{"session_id":1}`,
		"a long id": `{"session_id":"` + long + `"}`, "a long path": `{"session_id":"s","cwd":"` + long + `"}`, "empty": "",
		"too much": `{"session_id":"s","x":"` + strings.Repeat("x", hooks.MaxInput) + `"}`,
	} {
		if e, err := hooks.Decode("claude", "Stop", []byte(input)); err == nil {
			t.Errorf("%s is %+v", name, e)
		}
	}
	if _, err := hooks.Decode("acme", "Stop", []byte(`{"session_id":"s"}`)); err == nil {
		t.Error("an unknown vendor has events")
	}
}

// honoured returns the answers that a vendor honours, with "text" for each text.
func honoured(t *testing.T, vendor string) map[string]map[string]any {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "honoured", vendor+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]map[string]any
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		delete(x, "systemMessage") // Parley shows nothing to the person in this way
	}
	return all
}

// The answers are those of which the captures say that the vendor honours them.
func TestTheAnswersAreThoseThatTheVendorsHonour(t *testing.T) {
	t.Parallel()
	say := hooks.Answer{Context: "text", Continue: "text", Watch: []string{"/abs/path"}}
	deny := hooks.Answer{Context: "text", Deny: "text"}
	for _, c := range []struct {
		vendor, event, entry string
		answer               hooks.Answer
	}{
		{"claude", "SessionStart", "SessionStart", say},
		{"claude", "UserPromptSubmit", "UserPromptSubmit", say},
		{"claude", "PreToolUse", "PreToolUse deny", deny},
		{"claude", "PreToolUse", "PreToolUse context", say},
		{"claude", "PostToolUse", "PostToolUse", say},
		{"claude", "Stop", "Stop block", say},
		{"codex", "SessionStart", "SessionStart | UserPromptSubmit | PreToolUse | PostToolUse context", say},
		{"codex", "UserPromptSubmit", "SessionStart | UserPromptSubmit | PreToolUse | PostToolUse context", say},
		{"codex", "PreToolUse", "PreToolUse deny", deny},
		{"codex", "PreToolUse", "SessionStart | UserPromptSubmit | PreToolUse | PostToolUse context", say},
		{"codex", "PostToolUse", "SessionStart | UserPromptSubmit | PreToolUse | PostToolUse context", say},
		{"codex", "Stop", "PreToolUse | PostToolUse | UserPromptSubmit | Stop block", say},
		{"gemini", "SessionStart", "SessionStart | BeforeAgent | AfterTool context", say},
		{"gemini", "BeforeAgent", "SessionStart | BeforeAgent | AfterTool context", say},
		{"gemini", "AfterTool", "SessionStart | BeforeAgent | AfterTool context", say},
		{"gemini", "BeforeTool", "BeforeTool deny", deny},
		{"gemini", "AfterAgent", "AfterAgent deny (retry)", say},
	} {
		want := honoured(t, c.vendor)[c.entry]
		if want == nil {
			t.Fatalf("there is no capture of %s %s", c.vendor, c.entry)
		}
		if added, ok := want["hookSpecificOutput"].(map[string]any); ok {
			added["hookEventName"] = c.event // one capture stands for several events
		}
		out := c.answer.Encode(hooks.Event{Vendor: c.vendor, Name: c.event, Kind: hooks.KindOf(c.vendor, c.event)})
		var got map[string]any
		if err := json.Unmarshal(out, &got); err != nil || !reflect.DeepEqual(got, want) || !bytes.HasSuffix(out, []byte("}\n")) {
			t.Errorf("%s %s answers %s, not %v (%v)", c.vendor, c.event, out, want, err)
		}
	}
}

func TestNothingIsSaidWhereItIsNotHonoured(t *testing.T) {
	t.Parallel()
	say := hooks.Answer{Context: "text", Watch: []string{"/x"}}
	for _, e := range [][2]string{{"claude", "SessionEnd"}, {"claude", "Notification"}, {"claude", "Stop"}, {"gemini", "BeforeTool"}, {"gemini", "PreCompress"}, {"codex", "Interrupt"}} {
		if out := say.Encode(hooks.Event{Vendor: e[0], Name: e[1], Kind: hooks.KindOf(e[0], e[1])}); out != nil {
			t.Errorf("%s %s says %s", e[0], e[1], out)
		}
	}
	for vendor, start := range map[string]string{"claude": "SessionStart", "codex": "SessionStart", "gemini": "SessionStart"} {
		if out := (hooks.Answer{}).Encode(hooks.Event{Vendor: vendor, Name: start, Kind: hooks.Start}); out != nil {
			t.Errorf("%s says %s", vendor, out)
		}
	}
}

// The programs put a bell's text into frames of their own, as the captures have them.
func TestATurnSaysWithWhichBellItBegins(t *testing.T) {
	t.Parallel()
	bell := news.BellText("1a2b-7")
	for name, c := range map[string]struct{ vendor, prompt, want string }{
		"claude's hook":   {"claude", "<task-notification>\n<summary>Parley</summary>\n</task-notification>\n<system-reminder>\nParley: " + bell + "\n</system-reminder>", "1a2b-7"},
		"claude's socket": {"claude", "<cross-session-message from-name=\"parley\">\n" + bell + "\n</cross-session-message>", "1a2b-7"},
		"codex":           {"codex", bell, "1a2b-7"},
		"its user":        {"claude", "review this", ""},
		"a part":          {"claude", strings.TrimSuffix(bell, "user."), ""},
		"another id":      {"claude", news.BellText("a b"), ""},
		"a long id":       {"claude", news.BellText(strings.Repeat("a", 40)), ""},
		"no end":          {"claude", "Parley: something is waiting for you (bell 1", ""},
	} {
		input, err := json.Marshal(map[string]any{"session_id": "s", "prompt": c.prompt})
		if err != nil {
			t.Fatal(err)
		}
		if e, err := hooks.Decode(c.vendor, "UserPromptSubmit", input); err != nil || e.Bell != c.want {
			t.Errorf("%s: the bell is %q, %v", name, e.Bell, err)
		}
		if e, err := hooks.Decode(c.vendor, "Stop", input); err != nil || e.Bell != "" {
			t.Errorf("%s: after a turn the bell is %q, %v", name, e.Bell, err)
		}
	}
	if e, err := hooks.Decode("claude", "UserPromptSubmit", []byte(`{"session_id":"s","prompt":[{"text":"x"}]}`)); err != nil || e.Bell != "" {
		t.Errorf("a prompt that is no text: %+v, %v", e, err)
	}
}

// Parley's plugin for OpenCode reads these.
func TestThePluginOfOpenCodeIsAnswered(t *testing.T) {
	t.Parallel()
	e, err := hooks.Decode("opencode", "tool.execute.before", []byte(`{"session_id":"s","cwd":"/p","tool_name":"write","tool_input":{"filePath":"a.go"}}`))
	if err != nil || e.Kind != hooks.BeforeTool || len(e.Files()) != 1 || filepath.ToSlash(e.Files()[0]) != "/p/a.go" {
		t.Fatalf("%+v, %q, %v", e, e.Files(), err)
	}
	if out := (hooks.Answer{Deny: "no"}).Encode(e); string(out) != `{"decision":"deny","reason":"no"}`+"\n" {
		t.Errorf("a denial is %s", out)
	}
	if out := (hooks.Answer{Context: "x"}).Encode(e); out != nil {
		t.Errorf("a notice before a tool is %s", out)
	}
	if e, err = hooks.Decode("opencode", "chat.message", []byte(`{"session_id":"s","cwd":"/p"}`)); err != nil || e.Kind != hooks.BeforeTurn {
		t.Fatalf("%+v, %v", e, err)
	}
	if out := (hooks.Answer{Context: "x"}).Encode(e); string(out) != `{"hookSpecificOutput":{"hookEventName":"chat.message","additionalContext":"x"}}`+"\n" {
		t.Errorf("a notice is %s", out)
	}
	if out := (hooks.Answer{Watch: []string{"/bell"}}).Encode(e); string(out) != `{"hookSpecificOutput":{"hookEventName":"chat.message","watchPaths":["/bell"]}}`+"\n" {
		t.Errorf("a bell's file is %s", out)
	}
	if e, err = hooks.Decode("opencode", "parley.bell", []byte(`{"session_id":"s","cwd":"/p"}`)); err != nil || e.Kind != hooks.Bell {
		t.Fatalf("%+v, %v", e, err)
	}
	if out := (hooks.Answer{Wake: "up"}).Encode(e); string(out) != `{"decision":"wake","reason":"up"}`+"\n" {
		t.Errorf("a bell is %s", out)
	}
	if out := (hooks.Answer{}).Encode(e); out != nil {
		t.Errorf("no bell is %s", out)
	}
}

func FuzzDecode(f *testing.F) {
	for vendor, files := range captured(f) {
		for _, data := range files {
			f.Add(vendor, data)
		}
	}
	f.Add("claude", []byte(`{"session_id":"s","hook_event_name":"Stop"}`))
	f.Fuzz(func(t *testing.T, vendor string, data []byte) {
		e, err := hooks.Decode(vendor, "", data)
		if err != nil {
			return
		}
		if e.Session == "" || len(e.Session) > 256 || len(e.Dir) > 4096 || len(e.Transcript) > 4096 || len(e.Tool) > 256 {
			t.Errorf("%+v", e)
		}
		if out := (hooks.Answer{Context: "x", Continue: "x", Deny: "x"}).Encode(e); out != nil && !json.Valid(out) {
			t.Errorf("it answers %s", out)
		}
	})
}
