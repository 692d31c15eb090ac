//go:build interop && linux

package interop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/stubmodel"
	"github.com/parleyhub/parley/test/interop/rig"
)

// readMail is what a person types so that the stub model reads the session's mail.
const readMail = "USE:read_direct_messages {}"

// People have two claude and one codex open in terminals. Each session gets a name by itself and answers whoever asks: the
// commands, A2A clients of both generations, another session, a swarm, a loop and a paired hub. It keeps the name that
// people gave it when the CLI is closed and opened again.
func TestOpenSessionsAnswerEveryWayOfAsking(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"claude", "codex", "tmux"} {
		need(t, command)
	}
	scripts := rig.Scripts(t, []string{"ask10.mjs", "ask03.mjs"}, "@a2a-js/sdk", "a2a-js-sdk-0.3")
	programs := rig.Programs(t.TempDir())
	if err := programs.Build(rig.Parley[0]); err != nil {
		t.Fatal(err)
	}
	o := newOffice(t, programs, "sessions: {outside: allow}\n")
	away := newOffice(t, programs, "")
	o.pair(t, "away", away)
	away.pair(t, "office", o)
	o.start(t)
	away.start(t)

	d := newDesktop(t, o)
	claude := d.open(t, "claude-shop", d.shop, "claude", "--allowedTools", "mcp__parley")
	second := d.open(t, "claude-shop-2", d.shop, "claude", "--allowedTools", "mcp__parley")
	codex := d.open(t, "codex-blog", d.blog, "codex")

	bySend := o.ask(t, "send", "codex-blog", "who are you?")
	byA2A10 := askA2A(t, o, scripts, "ask10.mjs", claude)
	byA2A03 := askA2A(t, o, scripts, "ask03.mjs", second)
	codex.answer(t, "to-send")
	claude.answer(t, "to-A2A-1.0")
	second.answer(t, "to-A2A-0.3")
	bySend(t, "to-send")
	byA2A10(t, "to-A2A-1.0")
	byA2A03(t, "to-A2A-0.3")

	claude.say(t, `USE:delegate_task {"agent":"codex-blog","task":"what do you think?"}`, func() bool { return codex.open(t) != "" })
	codex.answer(t, "to-a-session")
	until(t, "the answer is in the session that delegated", func() bool { return strings.Contains(claude.screen(t), `"text":"to-a-session"`) })

	write(t, filepath.Join(d.shop, "plan.json"), `{"taskDescription":"two answers","agents":["claude-shop","codex-blog"],"subTasks":[
		{"id":"a","description":"part a","requiredCapabilities":[]},{"id":"b","description":"part b","requiredCapabilities":[]}]}`)
	write(t, filepath.Join(d.shop, "TODO.md"), "- [ ] do one thing\n")
	bySwarm := o.ask(t, "swarm", "run", "--plan", "plan.json")
	byLoop := o.ask(t, "loop", "run", "TODO.md", "--agent", "claude-shop-2")
	claude.answer(t, "first-part")
	codex.answer(t, "second-part")
	second.answer(t, "to-the-loop")
	bySwarm(t, "first-part", "second-part")
	byLoop(t, "to-the-loop", "1 completed")

	second.say(t, `USE:register_agent {"agentType":"claude","capabilities":["go"],"scope":"user","visibility":"public"}`, func() bool {
		return away.agent(t, second.id).Address != ""
	})
	fromAway := away.ask(t, "send", away.agent(t, second.id).Address, "are you there?")
	second.answer(t, "to-another-hub")
	fromAway(t, "to-another-hub")

	o.ask(t, "agents", "rename", "claude-shop", "reviewer")(t)
	claude.close(t)
	claude.reopen(t)
	if got := o.agent(t, "reviewer"); got.ID != claude.id {
		t.Errorf("after a restart, reviewer is %q", got.ID)
	}
	again := o.ask(t, "send", "reviewer", "are you back?")
	claude.answer(t, "after-the-restart")
	again(t, "after-the-restart")
}

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	end := time.After(2 * time.Minute)
	for !holds() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-end:
			t.Fatal("not in time: ", what)
		}
	}
}

// office is a user's home with a hub that has peers on this computer.
type office struct {
	rig.Home
	parley  string
	dir     string // where the commands run
	address string // for peers
	client  *client.Client
}

func newOffice(t *testing.T, programs rig.Programs, settings string) *office {
	t.Helper()
	o := &office{Home: programs.NewHome(t), parley: programs.Path("parley"), address: freeAddress(t)}
	o.dir = o.Project(t, "shop", "")
	write(t, filepath.Join(o.Dir, "hub", "config.yaml"), settings+fmt.Sprintf(`version: 1
peers: {enabled: true, hyperswarm: {listen: %q, public: %[1]q}}
agents: {claude-code: {disabled: true}, codex: {disabled: true}, gemini: {disabled: true}, vibe: {disabled: true}}
`, o.address))
	return o
}

func freeAddress(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.LocalAddr().String()
}

func (o *office) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, o.parley, args...)
	cmd.Dir, cmd.Env = o.dir, o.Env
	return cmd
}

// pair makes the other hub a peer.
func (o *office) pair(t *testing.T, name string, other *office) {
	t.Helper()
	out, err := other.command(t.Context(), "peers", "list", "--format", "json").Output()
	var self struct{ Key string }
	if err == nil {
		err = json.Unmarshal(out, &self)
	}
	if err != nil {
		t.Fatal(err)
	}
	o.ask(t, "peers", "pair", self.Key, "--name", name, "--at", other.address)(t)
}

// start starts the hub, which its home stops.
func (o *office) start(t *testing.T) {
	t.Helper()
	o.ask(t, "start")(t)
	var err error
	if o.client, err = client.Dial(t.Context(), filepath.Join(o.Dir, "hub.sock")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.client.Close() })
}

// ask runs a command. The function that it returns waits until the command has succeeded, with all of want in its output.
func (o *office) ask(t *testing.T, args ...string) func(t *testing.T, want ...string) {
	t.Helper()
	return begin(t, func(ctx context.Context) *exec.Cmd { return o.command(ctx, args...) })
}

func begin(t *testing.T, command func(context.Context) *exec.Cmd) func(t *testing.T, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := command(ctx)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return func(t *testing.T, want ...string) {
		t.Helper()
		if err := <-ended; err != nil {
			t.Fatalf("%q: %v\n%s", cmd.Args, err, out.String())
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%q has no %q: %s", cmd.Args, w, out.String())
			}
		}
	}
}

// askA2A asks a session with a script at its address.
func askA2A(t *testing.T, o *office, scripts, script string, s *session) func(t *testing.T, want ...string) {
	t.Helper()
	address := o.agent(t, s.id).Card.URL
	return begin(t, func(ctx context.Context) *exec.Cmd {
		cmd := rig.Node(ctx, t, script)
		cmd.Dir = scripts
		cmd.Env = append(os.Environ(), "A2A_ADDRESS="+address, "A2A_PROMPT=who are you?")
		return cmd
	})
}

// agent finds a session in the directory by its handle.
func (o *office) agent(t *testing.T, handle string) dialect.Agent {
	t.Helper()
	all, err := o.client.ListAgents(t.Context(), dialect.AgentsListParams{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if a.Handle == handle {
			return a
		}
	}
	return dialect.Agent{}
}

// desktop has the sessions in tmux.
type desktop struct {
	*office
	shop, blog string
	env        []string
}

func newDesktop(t *testing.T, o *office) *desktop {
	t.Helper()
	return newDesktopWith(t, o, &stubmodel.Handler{})
}

func newDesktopWith(t *testing.T, o *office, h *stubmodel.Handler) *desktop {
	t.Helper()
	model := httptest.NewServer(h)
	t.Cleanup(model.Close)
	d := &desktop{office: o, shop: o.dir, blog: o.Project(t, "blog", "")}
	d.prepare(t, model.URL)
	d.settings(t, model.URL)
	return d
}

// prepare makes the environment of the sessions, whose processes end with the test.
func (d *desktop) prepare(t *testing.T, model string) {
	t.Helper()
	processes := &conversation{owner: string(process.NewMarker(""))[1:]}
	d.env = append(d.Env, process.MarkerEnv+"="+string(process.NewMarker(processes.owner)), "TERM=xterm-256color", "SHELL=/bin/sh",
		"ANTHROPIC_BASE_URL="+model, "ANTHROPIC_API_KEY=sk-ant-stub", "ENABLE_TOOL_SEARCH=false", "STUB_KEY=stub",
		"DISABLE_AUTOUPDATER=1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1")
	t.Cleanup(func() {
		// Without a session there is no server.
		_ = d.command("kill-server").Run()
		// codex leaves a server behind, for the next codex.
		if _, err := process.SweepOwner(processes.owner); err != nil {
			t.Error(err)
		}
		until(t, "the sessions' processes end", func() bool { return len(processes.running(t)) == 0 })
	})
}

// settings writes what the CLIs ask about at their first start, and the MCP server.
func (d *desktop) settings(t *testing.T, model string) {
	t.Helper()
	trusted := map[string]bool{"hasTrustDialogAccepted": true}
	claude, err := json.Marshal(map[string]any{
		"hasCompletedOnboarding": true,
		"customApiKeyResponses":  map[string][]string{"approved": {"sk-ant-stub"}, "rejected": {}},
		"projects":               map[string]any{d.shop: trusted, d.blog: trusted},
		"mcpServers":             map[string]any{"parley": map[string]any{"type": "stdio", "command": d.parley, "args": []string{"mcp"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(d.Dir, ".claude.json"), string(claude))
	env := make(map[string]string) // of a variable that is there twice, the last counts
	for _, kv := range d.env {
		if k, v, _ := strings.Cut(kv, "="); k == "HOME" || strings.HasPrefix(k, "PARLEY_") || k == process.MarkerEnv {
			env[k] = fmt.Sprintf("%s = %q", k, v)
		}
	}
	write(t, filepath.Join(d.Dir, ".codex", "config.toml"), fmt.Sprintf(`model = "stub-model"
model_provider = "stub"
approval_policy = "never"
sandbox_mode = "read-only"
check_for_update_on_startup = false
[model_providers.stub]
name = "stub"
base_url = "%s/v1"
env_key = "STUB_KEY"
wire_api = "responses"
[mcp_servers.parley]
command = %q
args = ["mcp"]
env = { %s }
[projects.%q]
trust_level = "trusted"
`, model, d.parley, strings.Join(slices.Sorted(maps.Values(env)), ", "), d.blog))
}

// command is a command of the terminals' tmux.
func (d *desktop) command(args ...string) *exec.Cmd {
	cmd := exec.Command("tmux", append([]string{"-f", "/dev/null", "-S", filepath.Join(d.Dir, "tmux.sock")}, args...)...)
	cmd.Env = d.env
	return cmd
}

func (d *desktop) tmux(t *testing.T, args ...string) string {
	t.Helper()
	out, err := d.command(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("tmux %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// session is a CLI in a terminal, with the id that the hub gives it.
type session struct {
	*desktop
	id, dir string
	cli     []string
}

// open starts a CLI in a project, and waits until it has got the name id by itself.
func (d *desktop) open(t *testing.T, id, dir string, cli ...string) *session {
	t.Helper()
	s := &session{d, id, dir, cli}
	s.logFailure(t)
	s.reopen(t)
	if got := d.agent(t, id); got.ID != id || got.Kind != "session" {
		t.Errorf("%s is called %+v", id, got)
	}
	return s
}

// logFailure shows the terminal if the test fails.
func (s *session) logFailure(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: %s\n%s", s.id, s.state(t), s.tmux(t, "capture-pane", "-p", "-S", "-200", "-t", s.id))
		}
	})
}

// reopen starts the CLI, and waits until its session is in the directory and it takes input.
func (s *session) reopen(t *testing.T) {
	t.Helper()
	s.begin(t)
	s.ready(t)
}

func (s *session) begin(t *testing.T) {
	t.Helper()
	args := append([]string{"new-session", "-d", "-s", s.id, "-x", "180", "-y", "50", "-c", s.dir}, s.cli...)
	until(t, "tmux begins "+s.id, func() bool { // a server ends with its last session, and refuses others meanwhile
		out, err := s.command(args...).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "server exited") {
			t.Fatalf("tmux %q: %v\n%s", args, err, out)
		}
		return err == nil
	})
}

func (s *session) ready(t *testing.T) {
	t.Helper()
	until(t, s.id+" is ready", func() bool {
		return s.state(t) == "idle" && strings.ContainsAny(s.screen(t), "❯›")
	})
}

// close ends the CLI as a closed terminal does.
func (s *session) close(t *testing.T) {
	t.Helper()
	s.tmux(t, "kill-session", "-t", s.id)
	until(t, s.id+" is offline", func() bool { return s.state(t) == "offline" })
}

// state is the session's state in the directory.
func (s *session) state(t *testing.T) string {
	t.Helper()
	all, err := s.client.Agents(context.WithoutCancel(t.Context()), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if a.ID == s.id {
			return a.State
		}
	}
	return ""
}

// screen is what the terminal has shown, without space: the CLIs break lines as they like.
func (s *session) screen(t *testing.T) string {
	t.Helper()
	return strings.Join(strings.Fields(s.tmux(t, "capture-pane", "-p", "-S", "-200", "-t", s.id)), "")
}

// say types a prompt until something has happened: a CLI that has just been started may not have the tools yet.
func (s *session) say(t *testing.T, prompt string, happened func() bool) {
	t.Helper()
	const times = 10
	for range times {
		done, without := false, s.withoutTool(t)
		s.enter(t, prompt, func() bool {
			done = happened()
			return done || s.withoutTool(t) > without
		})
		if done {
			return
		}
	}
	t.Fatalf("%s has no tool for %s", s.id, prompt)
}

// withoutTool counts the answers of the stub model to a CLI that does not offer the tool.
func (s *session) withoutTool(t *testing.T) int {
	t.Helper()
	return strings.Count(s.screen(t), "thereisnotool")
}

// enter types a prompt, and presses Enter until something has happened: a CLI takes an Enter that comes too soon behind
// the text as part of it.
func (s *session) enter(t *testing.T, prompt string, happened func() bool) {
	t.Helper()
	s.tmux(t, "send-keys", "-t", s.id, "-l", prompt)
	typed := strings.Join(strings.Fields(prompt), "")
	until(t, s.id+" shows "+prompt, func() bool { return strings.Contains(s.screen(t), typed) })
	var pressed time.Time
	until(t, s.id+" does "+prompt, func() bool {
		if time.Since(pressed) > time.Second {
			s.tmux(t, "send-keys", "-t", s.id, "Enter")
			pressed = time.Now()
		}
		return happened()
	})
}

// open returns the id of a task that the session has not answered, "" if there is none.
func (s *session) open(t *testing.T) string {
	t.Helper()
	for _, task := range s.tasks(t) {
		if !task.Status.State.Ended() {
			return task.ID
		}
	}
	return ""
}

func (s *session) tasks(t *testing.T) []dialect.Task {
	t.Helper()
	page, err := s.client.Tasks(t.Context(), dialect.TasksListParams{AgentID: s.id, Limit: 20})
	if err != nil {
		t.Fatal(err)
	}
	return page.Tasks
}

// answer reads the session's task and answers it.
func (s *session) answer(t *testing.T, text string) {
	t.Helper()
	var id string
	until(t, s.id+" has a task", func() bool { id = s.open(t); return id != "" })
	s.say(t, readMail, func() bool { return strings.Contains(s.screen(t), id) })
	s.say(t, fmt.Sprintf(`USE:answer_task {"taskId":%q,"text":%q}`, id, text), func() bool { return s.open(t) != id })
}
