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
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/base/wait"
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
*SLOW*) echo "I have begun."; exec sleep 600 ;;
*FAIL*) echo "the disk is on fire" >&2; exit 3 ;;
*HOSTILE*) cat "$HOSTILE" ;;
*) echo "Done: $prompt" ;;
esac
`

// hub is a hub in its own process with the agents asker, actor and echo.
type hub struct {
	home rig.Home
}

func newHub(t *testing.T, hostile string) *hub {
	t.Helper()
	h := &hub{programs.NewHome(t)}
	data := filepath.Join(h.home.Dir, "hub")
	script, texts := filepath.Join(h.home.Dir, "actor"), filepath.Join(h.home.Dir, "hostile.txt")
	config := map[string]any{"version": 1, "agents": map[string]any{
		"claude-code": map[string]any{"disabled": true}, "codex": map[string]any{"disabled": true}, "gemini": map[string]any{"disabled": true}, "vibe": map[string]any{"disabled": true},
		"asker": map[string]any{"driver": "acp", "command": programs.Path("asker"), "description": "Asks before it cleans."},
		"actor": map[string]any{"driver": "exec", "command": script, "description": "Does as it is told.", "env": map[string]any{"set": map[string]any{"HOSTILE": texts}}},
	}}
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

// A person answers a question with a key, cancels a task after a question, and writes to an agent.
func TestThePageAnswersCancelsAndWrites(t *testing.T) {
	h := newHub(t, "")
	b := rig.StartBrowser(t)
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
