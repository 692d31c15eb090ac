//go:build interop && linux

// Package interop_test runs the real claude, gemini and codex with the hub's drivers and
// the stub model, each with a home directory of its own:
//
//	npm install -g @anthropic-ai/claude-code @google/gemini-cli @openai/codex \
//	    @agentclientprotocol/claude-agent-acp @agentclientprotocol/codex-acp
//	go test -tags interop ./test/interop
//
// Tests of a program that is not in PATH are skipped, unless PARLEY_INTEROP_REQUIRE
// (claude,gemini,codex,…) names it, as in CI.
package interop_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	"github.com/parleyhub/parley/internal/stubmodel"
)

// agents are the built-in agents with each of their drivers, and two ACP adapters as a
// user would configure them.
var agents = []struct {
	id, driver string
	streams    bool // the answer is streamed in pieces
}{
	{"claude-code", runner.DriverClaudeStdio, true},
	{"claude-code", runner.DriverExec, true},
	{"gemini", runner.DriverACP, true},
	{"gemini", runner.DriverExec, true},
	{"codex", runner.DriverCodexAppServer, true},
	{"codex", runner.DriverExec, false},
	{"claude-agent-acp", runner.DriverACP, true},
	{"codex-acp", runner.DriverACP, true},
}

// definition returns a built-in agent, or an adapter whose command is its id.
func definition(id, driver string) runner.Definition {
	def, ok := runner.Builtin()[id]
	if !ok {
		def = runner.Definition{
			ID: id, Command: id, Limits: runner.Limits{SessionIdle: time.Minute},
			Probe: runner.ProbeSpec{Login: "log in to " + id},
			// As for the built-in claude-code: by default it retries for minutes.
			Env: runner.EnvSpec{Set: map[string]string{"CLAUDE_CODE_MAX_RETRIES": "1"}},
		}
	}
	def.Driver = driver
	return def
}

// each runs a test for every agent whose program is installed.
func each(t *testing.T, test func(t *testing.T, def runner.Definition, streams bool)) {
	eachThat(t, func(string) bool { return true }, test)
}

// eachThat is each for the agents whose ids are selected.
func eachThat(t *testing.T, selected func(id string) bool, test func(t *testing.T, def runner.Definition, streams bool)) {
	for _, a := range agents {
		if !selected(a.id) {
			continue
		}
		t.Run(a.id+"/"+a.driver, func(t *testing.T) {
			t.Parallel()
			def := definition(a.id, a.driver)
			need(t, def.Command)
			test(t, atStub(t, def), a.streams)
		})
	}
}

func need(t *testing.T, command string) {
	t.Helper()
	if _, err := exec.LookPath(command); err == nil {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("PARLEY_INTEROP_REQUIRE"), ","), command) {
		t.Fatalf("%s is required and not in PATH", command)
	}
	t.Skipf("%s is not in PATH", command)
}

// atStub starts a stub model for an agent, and returns the agent's definition with that
// model and a new home directory.
func atStub(t *testing.T, def runner.Definition) runner.Definition {
	t.Helper()
	return atModel(t, def, &stubmodel.Handler{})
}

// atModel is atStub with the given model.
func atModel(t *testing.T, def runner.Definition, model http.Handler) runner.Definition {
	t.Helper()
	server := httptest.NewServer(model)
	t.Cleanup(server.Close)
	home := t.TempDir()
	set, err := stubmodel.Settings(def.ID, server.URL, home)
	if err != nil {
		t.Fatal(err)
	}
	if def.ID == "gemini" {
		def.Model = stubmodel.GeminiModel
	}
	def.Env.Set = merge(def.Env.Set, set)
	return def
}

func merge(a, b map[string]string) map[string]string {
	all := make(map[string]string)
	for _, m := range []map[string]string{a, b} {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// conversation is a session of an agent in a fixed directory.
type conversation struct {
	def   runner.Definition
	dir   string
	owner string
	s     runner.Session
}

func converse(t *testing.T, def runner.Definition, dir, resume string) *conversation {
	t.Helper()
	owner := string(process.NewMarker(""))[1:]
	agent, err := runner.Open(def, runner.Options{Owner: owner, Drivers: drivers.All()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := agent.Open(runner.SessionSpec{ContextID: "context", WorkDir: dir, Resume: resume})
	if err != nil {
		t.Fatal(err)
	}
	c := &conversation{def: def, dir: dir, owner: owner, s: s}
	t.Cleanup(func() { c.close(t) })
	return c
}

// close ends the conversation and checks that none of its processes remain.
func (c *conversation) close(t *testing.T) {
	t.Helper()
	if err := c.s.Close(context.Background()); err != nil {
		t.Error(err)
	}
	c.nothingLeft(t)
}

func (c *conversation) nothingLeft(t *testing.T) {
	t.Helper()
	if n, err := process.SweepOwner(c.owner); n != 0 || err != nil {
		t.Errorf("%d processes were left behind (%v)", n, err)
	}
}

func (c *conversation) say(t *testing.T, ctx context.Context, text string, h runner.Handler) (runner.Outcome, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return c.s.Turn(ctx, runner.Turn{TaskID: "task", Parts: []*a2a.Part{a2a.NewTextPart(text)}}, h)
}

// ok is say for a turn that must complete.
func (c *conversation) ok(t *testing.T, text string) (runner.Outcome, *record) {
	t.Helper()
	h := &record{}
	out, err := c.say(t, t.Context(), text, h)
	if err != nil || out.Status != runner.OutcomeCompleted {
		t.Fatalf("%s: %v\n%+v", out.Status, err, h.events)
	}
	return out, h
}

// record is a Handler that records events and chooses the option of the given kind in
// permission requests.
type record struct {
	kind runner.PermissionKind
	seen func(runner.Event)

	mu     sync.Mutex
	events []runner.Event
	asked  []runner.PermissionRequest
}

func (r *record) Event(e runner.Event) {
	r.mu.Lock()
	r.events = append(r.events, e)
	r.mu.Unlock()
	if r.seen != nil {
		r.seen(e)
	}
}

func (r *record) Permission(ctx context.Context, req runner.PermissionRequest) (runner.PermissionAnswer, error) {
	r.mu.Lock()
	r.asked = append(r.asked, req)
	r.mu.Unlock()
	for _, o := range req.Options {
		if o.Kind == r.kind {
			return runner.PermissionAnswer{OptionID: o.ID}, nil
		}
	}
	<-ctx.Done()
	return runner.PermissionAnswer{}, ctx.Err()
}

func eventsOf[E runner.Event](r *record) []E {
	r.mu.Lock()
	defer r.mu.Unlock()
	var es []E
	for _, e := range r.events {
		if e, ok := e.(E); ok {
			es = append(es, e)
		}
	}
	return es
}

func TestAgentsAnswer(t *testing.T) {
	each(t, func(t *testing.T, def runner.Definition, streams bool) {
		// With short pauses, the deltas may be merged into one event.
		def = atModel(t, def, &stubmodel.Handler{Pause: 100 * time.Millisecond})
		c := converse(t, def, t.TempDir(), "")
		out, h := c.ok(t, "--write hello") // the leading dash must not make it a flag
		if strings.TrimSpace(out.Text) != strings.TrimSpace(stubmodel.Hello) {
			t.Errorf("answer %q", out.Text)
		}
		if n := len(eventsOf[runner.TextDelta](h)); streams && n < 2 {
			t.Errorf("the answer came in %d pieces", n)
		}
		if out.Usage.OutputTokens == 0 {
			t.Errorf("usage %+v", out.Usage)
		}
		c.nothingLeftOfTurn(t)
	})
}

// nothingLeftOfTurn checks that a program that runs once per turn has ended.
func (c *conversation) nothingLeftOfTurn(t *testing.T) {
	t.Helper()
	if c.def.Driver == runner.DriverExec {
		c.nothingLeft(t)
	}
}

func TestConversationsSurviveARestart(t *testing.T) {
	each(t, func(t *testing.T, def runner.Definition, _ bool) {
		dir := t.TempDir()
		c := converse(t, def, dir, "")
		_, h := c.ok(t, "REMEMBER one")
		if out, _ := c.ok(t, "REMEMBER two"); out.Text != "user turns seen: 2" {
			t.Errorf("second turn: %q", out.Text)
		}
		started := eventsOf[runner.SessionStarted](h)
		if len(started) != 1 {
			t.Fatalf("%d session ids", len(started))
		}
		c.close(t)
		c = converse(t, def, dir, started[0].ID)
		out, h := c.ok(t, "REMEMBER three")
		if def.ID == "gemini" && def.Driver == runner.DriverACP && out.Text == "user turns seen: 1" {
			// Its ACP mode mostly cannot load a conversation of another process: see
			// runner.Builtin. The user must get a notice.
			if len(eventsOf[runner.Notice](h)) == 0 {
				t.Errorf("after a restart: %q, %+v", out.Text, h.events)
			}
			return
		}
		if out.Text != "user turns seen: 3" {
			t.Errorf("after a restart: %q", out.Text)
		}
	})
}

func TestALostSessionRestartsWithANotice(t *testing.T) {
	each(t, func(t *testing.T, def runner.Definition, _ bool) {
		c := converse(t, def, t.TempDir(), "5669d031-1378-4b72-901e-f93ec44dde03")
		out, h := c.ok(t, "REMEMBER one")
		if out.Text != "user turns seen: 1" || len(eventsOf[runner.Notice](h)) == 0 {
			t.Errorf("%q, %+v", out.Text, h.events)
		}
	})
}

func TestCancelLeavesNoProcesses(t *testing.T) {
	each(t, func(t *testing.T, def runner.Definition, streams bool) {
		c := converse(t, def, t.TempDir(), "")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out, err := c.say(t, ctx, "SLOW", &record{seen: func(e runner.Event) {
			_, text := e.(runner.TextDelta)
			_, begun := e.(runner.SessionStarted)
			if text || begun && !streams {
				cancel()
			}
		}})
		if out.Status != runner.OutcomeCanceled || err != nil {
			t.Errorf("%s, %v", out.Status, err)
		}
		c.nothingLeftOfTurn(t)
	})
}

// A process in a session of its own survives the program and its process group, unless
// the hub ends it.
func TestABackgroundProcessOfAToolIsSwept(t *testing.T) {
	each(t, func(t *testing.T, def runner.Definition, _ bool) {
		def.Permissions = runner.PermissionsAllow
		c := converse(t, def, t.TempDir(), "")
		_, h := c.ok(t, "TOOL:setsid sleep 3600 >/dev/null 2>&1 </dev/null & echo started")
		if tools := eventsOf[runner.ToolCall](h); len(tools) == 0 {
			t.Errorf("no tool was used: %+v", h.events)
		}
		c.nothingLeftOfTurn(t)
	})
}

func TestPermissionAnswersAreObeyed(t *testing.T) {
	each(t, func(t *testing.T, def runner.Definition, _ bool) {
		if def.Driver == runner.DriverExec {
			return // a program that runs once per turn cannot ask
		}
		if decidesItself(def) {
			return
		}
		directive := "TOOL:"
		if def.ID == "codex" {
			directive = "ESC:" // it asks if a command needs access outside its sandbox
		}
		dir := t.TempDir()
		c := converse(t, def, dir, "")
		for kind, made := range map[runner.PermissionKind]bool{runner.AllowOnce: true, runner.RejectOnce: false} {
			file := filepath.Join(dir, string(kind))
			h := &record{kind: kind}
			out, err := c.say(t, t.Context(), directive+"touch "+file, h)
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			if len(h.asked) != 1 || !strings.Contains(h.asked[0].Title, "touch") {
				t.Errorf("%s: asked %+v", kind, h.asked)
			}
			if _, err := os.Stat(file); (err == nil) != made {
				t.Errorf("%s: command run: %v", kind, err == nil)
			}
			if !made && len(out.Denials) == 0 {
				t.Errorf("%s: no denial in %+v", kind, out)
			}
		}
	})
}

func TestRefusedCredentialsAreRecognised(t *testing.T) {
	each(t, func(t *testing.T, def runner.Definition, _ bool) {
		c := converse(t, def, t.TempDir(), "")
		h := &record{}
		out, err := c.say(t, t.Context(), "HTTP401", h)
		var re *runner.Error
		if out.Status != runner.OutcomeAuthRequired || !errors.As(err, &re) || re.Code != runner.CodeAuth || re.Remedy == "" {
			t.Errorf("%s, %v, %+v", out.Status, err, h.events)
		}
	})
}

func TestMissingCredentialsAreRecognised(t *testing.T) {
	each(t, func(t *testing.T, def runner.Definition, _ bool) {
		if strings.HasPrefix(def.ID, "codex") {
			return // codex needs the network for its login
		}
		for _, name := range []string{"ANTHROPIC_API_KEY", "GEMINI_API_KEY"} {
			delete(def.Env.Set, name)
		}
		c := converse(t, def, t.TempDir(), "")
		out, err := c.say(t, t.Context(), "hello", &record{})
		if out.Status != runner.OutcomeAuthRequired {
			t.Errorf("%s, %v", out.Status, err)
		}
		agent, err := runner.Open(def, runner.Options{Drivers: drivers.All()})
		if err != nil {
			t.Fatal(err)
		}
		known := len(def.Probe.AuthEnv) > 0 // unknown for the adapters, whose login cannot be checked
		if p := agent.Probe(t.Context()); p.Stage != runner.StageInstalled || p.AuthKnown != known || p.Version == "" {
			t.Errorf("probe %+v", p)
		}
	})
}

func TestTheModelsErrorsAreReported(t *testing.T) {
	each(t, func(t *testing.T, def runner.Definition, _ bool) {
		c := converse(t, def, t.TempDir(), "")
		out, err := c.say(t, t.Context(), "HTTP400", &record{})
		var re *runner.Error
		if out.Status != runner.OutcomeFailed || !errors.As(err, &re) || re.Code != runner.CodeAgent {
			t.Errorf("%s, %v", out.Status, err)
		}
	})
}

// reportsRetries selects the agents that say when they repeat requests: the ACP adapters do so neither in events nor on
// standard error.
func reportsRetries(id string) bool { return !strings.HasSuffix(id, "-acp") }

func TestRetriesAreReportedWhileTheyHappen(t *testing.T) {
	eachThat(t, reportsRetries, func(t *testing.T, def runner.Definition, _ bool) {
		for _, status := range []int{429, 500, 529} {
			c := converse(t, def, t.TempDir(), "")
			ask := fmt.Sprintf("HTTP%dx1 hi", status)
			if status == 429 && strings.HasPrefix(def.ID, "codex") {
				if out, err := c.say(t, t.Context(), ask, &record{}); out.Status != runner.OutcomeFailed || !strings.Contains(fmt.Sprint(err), "429") {
					t.Errorf("codex gives up at once: %s, %v", out.Status, err)
				}
				continue
			}
			_, h := c.ok(t, ask)
			retries := eventsOf[runner.Retry](h)
			if len(retries) != 1 || retries[0].Status != status || retries[0].Attempt != 1 {
				t.Errorf("%d: %+v", status, h.events)
			}
			first := func(is func(runner.Event) bool) int { return slices.IndexFunc(h.events, is) }
			if first(func(e runner.Event) bool { _, ok := e.(runner.Retry); return ok }) >
				first(func(e runner.Event) bool { _, ok := e.(runner.TextDelta); return ok }) {
				t.Errorf("%d: reported after the answer: %+v", status, h.events)
			}
		}
	})
}

func TestRetriesAreLimited(t *testing.T) {
	eachThat(t, reportsRetries, func(t *testing.T, def runner.Definition, _ bool) {
		def.Limits.Retries = 1
		c := converse(t, def, t.TempDir(), "")
		out, err := c.say(t, t.Context(), "HTTP529", &record{})
		e, ok := errors.AsType[*runner.Error](err)
		if !ok || out.Status != runner.OutcomeFailed || e.Code != runner.CodeUnavailable ||
			!strings.Contains(e.Message, "(529)") || !strings.Contains(e.Remedy, "limits.retries") {
			t.Errorf("%s, %v", out.Status, err)
		}
	})
}

func TestProbesFindVersionAndCredentials(t *testing.T) {
	each(t, func(t *testing.T, def runner.Definition, _ bool) {
		agent, err := runner.Open(def, runner.Options{Drivers: drivers.All()})
		if err != nil {
			t.Fatal(err)
		}
		p := agent.Probe(t.Context())
		t.Logf("%+v", p)
		want, known := runner.StageAuthenticated, len(def.Probe.AuthEnv) > 0
		if def.ID == "codex" || !known { // the stub's key is not codex's login
			want = runner.StageInstalled
		}
		if p.Stage != want || p.Version == "" || p.AuthKnown != known {
			t.Errorf("%+v", p)
		}
	})
}
