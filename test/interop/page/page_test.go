//go:build interop && linux

// Package page_test uses the hub's own page in a real Chromium, with agents behind it: questions are answered, tasks
// canceled, messages written, documents edited and hostile texts looked at.
//
//	go test -tags interop ./test/interop/page
package page_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/stubmodel"
	"github.com/parleyhub/parley/test/interop/rig"
)

var programs rig.Programs

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "parley-interop-")
	if err == nil {
		programs = rig.Programs(dir)
		err = programs.Build("github.com/parleyhub/parley/cmd/parley", "github.com/parleyhub/parley/internal/testbed/asker")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := errors.Join(os.RemoveAll(dir), goleak.Find()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// patience bounds operations of other processes.
const patience = 60 * time.Second

// actor is the program of an agent that does what the prompt says: works until it is canceled, fails, or says hostile texts.
const actor = `#!/bin/sh
[ "$1" = --version ] && { echo 1.0.0; exit; }
prompt=$(cat)
case $prompt in
*STREAM*) while echo "A line of an answer that streams."; do sleep 1; done ;;
*SLOW*) echo "I have begun."; exec sleep 600 ;;
*FAIL*) [ -e "$HOSTILE.mended" ] && { echo "Done at last."; exit; }; echo "the disk is on fire" >&2; exit 3 ;;
*HOSTILE*) cat "$HOSTILE" ;;
*CHANGE*) for f in *.txt; do echo two >> "$f"; done; echo new > new.txt; echo "Changed two files." ;;
*) echo "Done: $prompt" ;;
esac
`

// hub is a hub in its own process with the agents asker, actor and echo.
type hub struct {
	home rig.Home
}

func newHub(t *testing.T, hostile string) *hub {
	t.Helper()
	return newHubWith(t, hostile, nil)
}

// newHubWith is newHub with more agents.
func newHubWith(t *testing.T, hostile string, more map[string]any) *hub {
	t.Helper()
	h := &hub{programs.NewHome(t)}
	data := filepath.Join(h.home.Dir, "hub")
	script, texts := filepath.Join(h.home.Dir, "actor"), filepath.Join(h.home.Dir, "hostile.txt")
	said, asks := "", map[string]any{}
	if hostile != "" {
		said, asks["ASKER_TITLE"] = " "+hostileName, hostileName
	}
	agents := map[string]any{
		"claude-code": map[string]any{"disabled": true}, "codex": map[string]any{"disabled": true}, "gemini": map[string]any{"disabled": true}, "vibe": map[string]any{"disabled": true},
		"asker": map[string]any{"driver": "acp", "command": programs.Path("asker"), "description": "Asks before it cleans." + said, "env": map[string]any{"set": asks}},
		"actor": map[string]any{"driver": "exec", "command": script, "description": "Does as it is told." + said, "limits": map[string]any{"concurrency": 120, "queue": 200}, "env": map[string]any{"set": map[string]any{"HOSTILE": texts}}},
	}
	maps.Copy(agents, more)
	config := map[string]any{"version": 1, "workers": []any{map[string]any{"agent": "actor", "capability": "go"}}, "agents": agents}
	text, err := json.Marshal(config) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(data, 0o700), os.WriteFile(filepath.Join(data, "config.yaml"), text, 0o600),
		os.WriteFile(script, []byte(actor), 0o700), os.WriteFile(texts, []byte(hostile), 0o600)); err != nil {
		t.Fatal(err)
	}
	h.parley(t, "start")
	return h
}

// parley runs a command to its end.
func (h *hub) parley(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, programs.Path("parley"), args...)
	cmd.Env = h.home.Env
	cmd.Dir = h.home.Dir
	var out, rest bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &rest
	if err := cmd.Run(); err != nil {
		t.Fatalf("parley %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), rest.String())
	}
	return out.String()
}

// send gives a task to an agent and returns its id.
func (h *hub) send(t *testing.T, agent, text string) string {
	t.Helper()
	var task struct{ ID string }
	out := h.parley(t, "--format", "json", "send", "--scratch", "--detach", agent, text)
	if err := json.Unmarshal([]byte(out), &task); err != nil || task.ID == "" {
		t.Fatalf("%v: %s", err, out)
	}
	return task.ID
}

// state returns the state of a task.
func (h *hub) state(t *testing.T, task string) string {
	t.Helper()
	var shown struct{ Status struct{ State string } }
	out := h.parley(t, "--format", "json", "task", "show", task)
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return shown.Status.State
}

// open opens the page by a new link.
func (h *hub) open(t *testing.T, b *rig.Browser, flags ...string) *rig.Page {
	t.Helper()
	link := strings.TrimSpace(h.parley(t, append([]string{"ui", "--web", "--no-open"}, flags...)...))
	p := b.Open(t, link)
	p.Until(t, `document.querySelector("#screens button[aria-current]")`)
	return p
}

// fine fails the test if the page had a problem.
func fine(t *testing.T, p *rig.Page, doing string) {
	t.Helper()
	for _, problem := range p.Problems(t) {
		t.Errorf("%s: %.500s", doing, problem)
	}
}

// selectRow selects the row with a text.
func selectRow(t *testing.T, p *rig.Page, text string) {
	t.Helper()
	quoted, _ := json.Marshal(text) // a string
	row := fmt.Sprintf(`[...document.querySelectorAll(".row")].find(r => r.textContent.includes(%s))`, quoted)
	p.Until(t, row)
	p.Press(t, "Home")
	for range 100 {
		var at bool
		if p.Eval(t, fmt.Sprintf(`%s?.getAttribute("aria-selected") === "true"`, row), &at); at {
			return
		}
		p.Press(t, "ArrowDown")
	}
	t.Fatalf("the row %q cannot be selected", text)
}

// TestPage uses one browser for all, since each takes seconds to start.
func TestPage(t *testing.T) {
	b := rig.StartBrowser(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *rig.Browser)
	}{
		{"answers, cancels and writes", answersCancelsAndWrites}, {"two pages edit a document", twoPagesEditADocument}, {"failed work is retried", failedWorkIsRetried},
		{"a loop that failed is dismissed", failedLoopIsDismissed}, {"Claude Code is allowed what it asks for", claudeCodeIsAllowed}, {"the hub comes back", hubComesBack},
		{"another run of the hub needs another link", anotherRunNeedsAnotherLink},
		{"hostile texts are shown as text", hostileTextsAreShownAsText}, {"pictures", fitsEachScreen},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, b) })
	}
}

// openRow opens the row with a text, as a click does.
func openRow(t *testing.T, p *rig.Page, text string) {
	t.Helper()
	quoted, _ := json.Marshal(text) // a string
	p.Until(t, fmt.Sprintf(`(r => r && (r.click(), true))([...document.querySelectorAll(".row")].find(r => r.textContent.includes(%s)))`, quoted))
	p.Until(t, `!document.querySelector("#detail").hidden`)
}

// A person answers a question with a key, cancels a task after a question, and writes to an agent.
func answersCancelsAndWrites(t *testing.T, b *rig.Browser) {
	h := newHub(t, "")
	question, slow := h.send(t, "asker", "Clean up."), h.send(t, "actor", "SLOW work")
	p := h.open(t, b)
	p.Show(t, 1200, 800, false)

	selectRow(t, p, "Run make clean")
	p.Press(t, "Enter")
	p.Until(t, `document.querySelector("#detail").textContent.includes("make clean")`)
	p.Press(t, "a")
	p.Until(t, `document.querySelector("#none").textContent === "Nothing waits for you."`)
	wait.Eventually(t, "the task goes on", func() bool { return h.state(t, question) == "completed" })
	fine(t, p, "answering")

	p.Press(t, "3")
	selectRow(t, p, "SLOW work")
	p.Press(t, "c")
	p.Until(t, `document.querySelector("#ask").open`)
	p.Press(t, "Enter")
	wait.Eventually(t, "the task is canceled", func() bool { return h.state(t, slow) == "canceled" })
	p.Until(t, `[...document.querySelectorAll(".row")].some(r => r.textContent.includes("SLOW work") && r.textContent.includes("canceled"))`)
	fine(t, p, "canceling")

	p.Press(t, "2")
	selectRow(t, p, "echo")
	p.Press(t, "w")
	p.Until(t, `document.activeElement.id === "answer"`)
	p.Type(t, "Hello from the page.")
	p.Press(t, "Enter", "3")
	selectRow(t, p, "Hello from the page.")
	p.Press(t, "Enter")
	p.Until(t, `document.querySelector("#detail").textContent.includes("completed")`)
	fine(t, p, "writing")
}

// Two pages edit a text at once; both see what both have written, and so does the command line.
func twoPagesEditADocument(t *testing.T, b *rig.Browser) {
	h := newHub(t, "")
	h.parley(t, "doc", "edit", "plan", "--set", "plan.status=open", "--text", "notes=middle")
	first, second := h.open(t, b), h.open(t, b)
	for _, p := range []*rig.Page{first, second} {
		p.Press(t, "7")
		selectRow(t, p, "plan")
		p.Press(t, "Enter")
		p.Until(t, `document.querySelector("textarea.text")?.value === "middle"`)
	}
	// Both type before either has heard of the other.
	const typed = `(where => { const f = document.querySelector("textarea.text"); f.value = where ? f.value + " end\u{1F600}" : "start " + f.value; f.dispatchEvent(new Event("input")); })`
	first.Eval(t, typed+"(0)", nil)
	second.Eval(t, typed+"(1)", nil)
	const both = `document.querySelector("textarea.text").value === "start middle end\u{1F600}"`
	first.Until(t, both)
	second.Until(t, both)
	wait.Eventually(t, "the hub has both", func() bool { return strings.Contains(h.parley(t, "doc", "show", "plan"), "start middle end") })
	first.Press(t, "Escape", "e")
	first.Until(t, `document.querySelector("#ask").open`)
	first.Type(t, "plan.status = done")
	first.Press(t, "Enter")
	second.Until(t, `document.querySelector("#detail").textContent.includes("status: done")`)
	fine(t, first, "editing")
	fine(t, second, "seeing edits")
}

// Work that failed for good waits for the person, who puts it back into its queue.
func failedWorkIsRetried(t *testing.T, b *rig.Browser) {
	h := newHub(t, "")
	h.submit(t, "build", "FAIL: build the release")
	p := h.open(t, b)
	selectRow(t, p, "failed work")
	if err := os.WriteFile(filepath.Join(h.home.Dir, "hostile.txt.mended"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.Press(t, "r")
	p.Until(t, `document.querySelector("#none").textContent === "Nothing waits for you."`)
	p.Press(t, "3")
	p.Until(t, `[...document.querySelectorAll(".row")].some(r => r.textContent.includes("actor") && r.textContent.includes("completed"))`)
	fine(t, p, "failed work")
}

// A loop that gave an item up waits for the person until it is dismissed.
func failedLoopIsDismissed(t *testing.T, b *rig.Browser) {
	h := newHub(t, "")
	h.loop(t, "todo.md", "- [ ] FAIL: build the release\n")
	p := h.open(t, b)
	selectRow(t, p, "gave up 1 item")
	p.Press(t, "Enter")
	p.Until(t, `document.querySelector("#detail").textContent.includes("parley loop status")`)
	fine(t, p, "a loop that failed")
	p.Press(t, "d")
	p.Until(t, `document.querySelector("#none").textContent === "Nothing waits for you."`)
	fine(t, p, "dismissing")
	p.Press(t, "5")
	p.Until(t, `document.querySelector(".row .bad") && document.querySelector(".row").textContent.includes("gave up 1 item")`)
	p.Press(t, "8", "/") // the timeline has words, and a name is found
	p.Type(t, "loop.step given")
	p.Until(t, `document.querySelector(".row")?.textContent.includes("loop") && document.querySelector(".row").textContent.includes("given up")`)
	fine(t, p, "the timeline")
}

// The permission question of a real Claude Code, at a stub model, is answered on the page. What it did is shown.
func claudeCodeIsAllowed(t *testing.T, b *rig.Browser) {
	if _, err := exec.LookPath("claude"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("PARLEY_INTEROP_REQUIRE"), ","), "claude") {
			t.Fatal("claude is not in PATH")
		}
		t.Skip("claude is not in PATH")
	}
	model := httptest.NewServer(&stubmodel.Handler{})
	t.Cleanup(model.Close)
	h := newHubWith(t, "", map[string]any{"claude-code": map[string]any{"permissions": "ask", "env": map[string]any{"set": map[string]any{
		"ANTHROPIC_BASE_URL": model.URL, "ANTHROPIC_API_KEY": "sk-ant-stub", "CLAUDE_CODE_MAX_RETRIES": "1"}}}})
	repository := h.repository(t, "store", "notes.txt")
	p := h.open(t, b)
	h.parley(t, "send", "--detach", "--dir", repository, "claude-code", "TOOL:echo made-by-claude | tee made.txt")
	openRow(t, p, "made-by-claude")
	p.Until(t, `document.querySelector("#detail").textContent.includes("The agent asks for permission")`)
	p.Press(t, "a")
	p.Until(t, `document.querySelector("#none").textContent === "Nothing waits for you."`)
	p.Press(t, "3")
	openRow(t, p, "made-by-claude")
	p.Until(t, `document.querySelector("#detail .state")?.textContent.includes("completed")`)
	for _, shown := range []string{"allowed by", "made.txt", "cost", "changed 1 file", "echo made-by-claude | tee made.txt"} {
		p.Until(t, fmt.Sprintf(`document.querySelector("#detail").textContent.includes(%q)`, shown))
	}
	p.Until(t, `[...document.querySelectorAll("#detail details pre")].some(e => e.textContent.trim() === "made-by-claude")`) // the tool's output
	fine(t, p, "Claude Code")
}

// A page whose hub is gone says so, keeps what it shows, and continues by itself when the hub is back at its address.
func hubComesBack(t *testing.T, b *rig.Browser) {
	h := newHub(t, "")
	h.send(t, "actor", "before the end")
	p := h.open(t, b)
	var port string
	p.Eval(t, `location.port`, &port)
	for _, key := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"} {
		p.Press(t, key)
		p.Until(t, `document.querySelector("#screens button[aria-current]").textContent.startsWith("`+key+`")`)
		if key == "3" {
			p.Until(t, `document.querySelector(".row")?.textContent.includes("before the end")`)
		}
		h.parley(t, "stop")
		p.Until(t, `!document.querySelector("#link").hidden`)
		if key == "3" {
			p.Until(t, `document.querySelector(".row").textContent.includes("before the end")`)
		}
		h.parley(t, "start", "--http-port", port)
		p.Until(t, `document.querySelector("#link").hidden`)
	}
	h.send(t, "actor", "after it is back")
	p.Press(t, "3")
	p.Until(t, `document.querySelector(".row")?.textContent.includes("after it is back")`)
}

// A browser that a hub with a token does not know after its restart is told what to do, and continues with another link.
func anotherRunNeedsAnotherLink(t *testing.T, b *rig.Browser) {
	h := newHub(t, "")
	h.parley(t, "stop")
	file := filepath.Join(h.home.Dir, "hub", "config.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	config["http"] = map[string]any{"token": strings.Repeat("secret-", 8)}
	if text, err = json.Marshal(config); err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.parley(t, "start")
	p := h.open(t, b)
	p.Press(t, "2")
	p.Until(t, `document.querySelector(".row")?.textContent.includes("actor")`)
	var port string
	p.Eval(t, `location.port`, &port)
	h.parley(t, "stop")
	p.Until(t, `document.querySelector("#link").textContent.includes("is away")`)
	h.parley(t, "start", "--http-port", port)
	p.Until(t, `document.querySelector("#link").textContent.includes("parley ui --web")`)
	h.open(t, b)
	p.Until(t, `document.querySelector("#link").hidden`)
	h.send(t, "actor", "with the new link")
	p.Press(t, "3")
	p.Until(t, `document.querySelector(".row")?.textContent.includes("with the new link")`)
}

// loop runs a loop on a list, which gives its item up.
func (h *hub) loop(t *testing.T, name, items string) {
	t.Helper()
	list := filepath.Join(h.home.Dir, name)
	if err := os.WriteFile(list, []byte(items), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, programs.Path("parley"), "loop", "run", list, "--agent", "actor", "--attempts", "1", "--scratch")
	cmd.Env, cmd.Dir = h.home.Env, h.home.Dir
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() <= 0 {
		t.Fatalf("the loop: %v\n%s", err, out)
	}
}

// submit puts work into the queue go, as an agent's tool does.
func (h *hub) submit(t *testing.T, id, text string) {
	t.Helper()
	s := h.session(t, h.home.Dir)
	s.use(t, "register_agent", map[string]any{"agentType": "dispatcher", "capabilities": []string{}, "scope": "user"})
	s.use(t, "submit_work_item", map[string]any{"capability": "go", "taskId": id, "taskDescription": text})
}

// session is a session of an agent that has the tools of parley mcp.
type session struct{ client *mcp.ClientSession }

// session starts the tools in a directory; they end with the test.
func (h *hub) session(t *testing.T, dir string) session {
	t.Helper()
	cmd := exec.Command(programs.Path("parley"), "mcp")
	cmd.Env, cmd.Dir = h.home.Env, dir
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() }) // the program's end does not matter
	return session{client}
}

// use calls a tool and returns its text.
func (s session) use(t *testing.T, tool string, args map[string]any) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	result, err := s.client.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil || result.IsError {
		t.Fatalf("%s: %+v, %v", tool, result, err)
	}
	var text strings.Builder
	for _, c := range result.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			text.WriteString(c.Text)
		}
	}
	return text.String()
}

var guids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// talk has two sessions in a repository that hold files, write in a channel, and write mail. Each text ends with more.
func (h *hub) talk(t *testing.T, dir, more string) {
	t.Helper()
	ann, bob := h.session(t, dir), h.session(t, dir)
	for name, s := range map[string]session{"ann": ann, "bob": bob} {
		s.use(t, "set_handle", map[string]any{"handle": name})
		s.use(t, "register_agent", map[string]any{"agentType": "writer", "capabilities": []string{}, "scope": "project"})
	}
	guid := guids.FindString(bob.use(t, "get_my_registration", nil))
	if guid == "" {
		t.Fatal("a session does not know its GUID")
	}
	ann.use(t, "claim_files", map[string]any{"paths": []string{"notes.txt"}, "why": "I rewrite the notes." + more})
	ann.use(t, "send_message", map[string]any{"channel": "roadmap", "message": "The parser first, then the store." + more})
	bob.use(t, "read_messages", map[string]any{"channel": "roadmap"})
	ann.use(t, "send_direct_message", map[string]any{"recipientGuid": guid, "message": "May I have notes.txt until noon?" + more})
}

// hostileText has HTML, control sequences, marks of direction, characters without a width, and a long line.
var hostileText = "<img src=x onerror=alert(1)><script>alert(2)</script>\x1b]0;mine\x07\x1b[31mred\u202eleft\u2066\u200b\u0000\r\"'`${alert(3)}" + strings.Repeat("A", 1<<20)

// hostileName is what may be in the names of files and directories, and in arguments of programs.
const hostileName = "<b onclick=alert(5)>b<img src=x onerror=alert(6)>\x1b[31m\u202eleft\u2066\u200b\u200d" + "'\"`${alert(7)}"

// Texts of agents, and the names of what they work with, are shown as text on each screen, whatever they contain. They make no
// element and no request, and nothing wider than a phone.
func hostileTextsAreShownAsText(t *testing.T, b *rig.Browser) {
	h := newHub(t, hostileText)
	short := strings.ReplaceAll(hostileText[:400], "\x00", "")
	repository := h.repository(t, "store "+strings.ReplaceAll(hostileName, "/", ""), hostileName+".txt")
	h.send(t, "asker", short)
	h.send(t, "actor", "HOSTILE")
	h.sendIn(t, repository, "actor", "CHANGE "+short)
	h.talk(t, h.repository(t, "<b onclick=alert(8)> notes", "notes.txt"), hostileText[:60]) // claims refuse control characters in paths; a claim's reason has up to 200 bytes
	h.submit(t, "build", "FAIL: "+short)
	h.plan(t, "port "+short)
	h.loop(t, "todo "+strings.ReplaceAll(hostileName, "/", "")+".md", "- [ ] FAIL: "+strings.ReplaceAll(short, "\r", "")+"\n")
	h.parley(t, "doc", "edit", "hostile", "--text", "notes="+short, "--set", "map.<b>bold</b>=<img src=x onerror=alert(4)>")
	p := h.open(t, b, "--view-only")
	for i, screen := range []string{"needs", "agents", "tasks", "conversations", "swarms", "network", "documents", "timeline", "costs"} {
		p.Show(t, 390, 780, false)
		p.Press(t, "Escape", fmt.Sprint(i+1))
		p.Until(t, `document.querySelector("#screens button[aria-current]").id === "go-`+screen+`" && document.querySelector(".row")`)
		p.Until(t, `[...document.querySelectorAll(".row, #picture")].some(r => /onerror|onclick/.test(r.textContent)) || ["documents", "costs"].includes("`+screen+`")`) // the names of documents are plain; costs are by day at first
		if screen == "costs" {
			p.Press(t, "g", "g")
			p.Until(t, `[...document.querySelectorAll(".row")].some(r => /onclick/.test(r.textContent))`) // the costs of projects
		}
		var rows int
		p.Eval(t, `document.querySelectorAll(".row").length`, &rows)
		for row := range min(rows, 8) {
			// A list that is loaded again may have fewer rows than before.
			p.Until(t, fmt.Sprintf(`!document.querySelector("#detail").hidden || (r => !r || (r.click(), false))(document.getElementById("row%d"))`, row))
			h.harmless(t, p, fmt.Sprintf("%s, row %d", screen, row))
			p.Press(t, "Escape")
		}
		h.harmless(t, p, screen)
		fine(t, p, screen)
	}
}

// harmless fails the test if a text has become more than text.
func (h *hub) harmless(t *testing.T, p *rig.Page, where string) {
	t.Helper()
	var found struct {
		Made, Wide int
		Raw        bool
		Foreign    []string
	}
	p.Eval(t, `({
		made: document.querySelectorAll("img, script:not([src]), iframe, i, b[onclick], object, embed, a, form:not([method=dialog]), [onerror], [onclick]").length,
		wide: Math.max(document.documentElement.scrollWidth - innerWidth, ...["main", "#detail", "#list"].map(s => document.querySelector(s)).map(e => e.scrollWidth - e.clientWidth)),
		raw: /[\u0000-\u0008\u001b\u200b-\u200f\u202a-\u202e\u2060-\u2069]/.test(document.body.textContent + [...document.querySelectorAll("[title],[aria-label]")].map(e => e.title + e.getAttribute("aria-label")).join()),
		foreign: performance.getEntriesByType("resource").map(r => r.name).filter(n => !n.startsWith(location.origin + "/")),
	})`, &found)
	if found.Made != 0 || found.Wide > 0 || found.Raw || len(found.Foreign) > 0 {
		t.Errorf("%s: %+v", where, found)
	}
}

var pictures = flag.String("pictures", "", "a directory for pictures of the page")

// The page can be read in a window and on a phone: nothing is wider than the screen, and nothing is reported by the browser.
//
//	go test -tags interop ./test/interop/page -run TestPage/pictures -args -pictures DIR
func fitsEachScreen(t *testing.T, b *rig.Browser) {
	h := newHub(t, "")
	repository := h.repository(t, "store", "notes.txt")
	h.send(t, "asker", "Remove what the last build has left behind.")
	h.send(t, "actor", "SLOW: port the parser to the new lexer")
	h.send(t, "actor", "FAIL: write the release notes")
	h.sendIn(t, repository, "actor", "CHANGE the notes of the store.")
	h.parley(t, "doc", "edit", "plan", "--set", "plan.status=open", "--text", "notes=The parser first, then the store.")
	h.plan(t, "port the parser in parts")
	h.talk(t, repository, "")
	p, viewer := h.open(t, b), h.open(t, b, "--view-only")
	for _, s := range []struct{ name, key, row, press string }{
		{"needs", "1", "Run make clean", ""}, {"agents", "2", "asker", ""}, {"tasks", "3", "CHANGE the notes", ""}, {"failed", "3", "FAIL: write", ""},
		{"conversations", "4", "SLOW", ""}, {"channel", "4", "# roadmap", ""}, {"mail", "4", "bob", ""}, {"swarms", "5", "port the parser in parts", ""},
		{"claims", "5", "notes.txt", ""}, {"network", "6", "", ""}, {"documents", "7", "plan", ""}, {"timeline", "8", "", ""}, {"replay", "8", "", "p"}, {"costs", "9", "", ""},
		{"view", "1", "Run make clean", ""},
	} {
		p := p
		if s.name == "view" {
			p = viewer
		}
		p.Show(t, 1200, 760, false)
		p.Press(t, "Escape", s.key)
		p.Until(t, `document.querySelector(".row")`)
		if s.row != "" {
			openRow(t, p, s.row)
		}
		if s.press != "" {
			p.Press(t, s.press)
		}
		for _, look := range []struct {
			name          string
			width, height int
			dark          bool
		}{{"light", 1200, 760, false}, {"dark", 1200, 760, true}, {"phone", 390, 780, false}} {
			p.Show(t, look.width, look.height, look.dark)
			p.Until(t, `![...document.querySelectorAll("#detail svg")].some(s => /^(Turn|Attempts)/.test(s.getAttribute("aria-label")) && s.getBoundingClientRect().width > innerWidth)`)
			var wide bool
			if p.Eval(t, `document.documentElement.scrollWidth > innerWidth`, &wide); wide {
				t.Errorf("%s, %s: the page is wider than the window", s.name, look.name)
			}
			if *pictures == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(*pictures, s.name+"-"+look.name+".png"), p.Picture(t), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		fine(t, p, s.name)
	}
}

// repository makes a git repository with a file, in which agents may work.
func (h *hub) repository(t *testing.T, name, file string) string {
	t.Helper()
	dir := filepath.Join(h.home.Dir, name)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, file), []byte("one\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "-A"}, {"-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-qm", "one"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
	}
	h.parley(t, "trust", dir)
	return dir
}

// sendIn gives a task to an agent in a directory and waits for its end.
func (h *hub) sendIn(t *testing.T, dir, agent, text string) {
	t.Helper()
	h.parley(t, "send", "--dir", dir, agent, text)
}

// plan runs a swarm to its end. Its parts are described by what.
func (h *hub) plan(t *testing.T, what string) {
	t.Helper()
	file := filepath.Join(h.home.Dir, "plan.json")
	quoted, _ := json.Marshal(what) // a string
	text := `{"taskDescription":` + string(quoted) + `,"agents":["actor","echo"],"subTasks":[{"id":"lexer","description":` + string(quoted) + `},` +
		`{"id":"grammar","description":"port the grammar"},{"id":"tests","description":"port the tests","dependsOn":["lexer","grammar"]}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.parley(t, "swarm", "run", "--scratch", "--plan", file)
}
