//go:build interop && linux

package interop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"path/filepath"

	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/stubmodel"
	"github.com/parleyhub/parley/test/interop/rig"
)

const (
	askReview = "ask codex to review this change"
	theReview = "Review the change in this directory"
)

var (
	codexID    = regexp.MustCompile(`"id\\*":\s*\\*"((?:there\.)?codex-[a-z0-9-]+)`)
	answerType = regexp.MustCompile(`"messageType\\*":\s*\\*"task-answer`)
	verdict    = regexp.MustCompile(`VERDICT-[A-Za-z0-9-]+`)
)

// secondOpinion is a model that asks codex for a review when its user wants one, reviews what others ask it to, and shows the answer
// to its user.
func secondOpinion(said, result string, used int) string {
	switch m := codexID.FindStringSubmatch(result); {
	case strings.HasPrefix(said, "Generate"): // a title
		return ""
	case !strings.Contains(said, "Parley: ") && !strings.Contains(said, askReview):
		return ""
	case strings.Contains(said, askReview) && used == 0:
		return "USE:list_agents {}"
	case strings.Contains(said, askReview) && used == 1 && m != nil:
		return fmt.Sprintf(`USE:delegate_task {"agent":%q,"task":%q,"wait":false}`, m[1], theReview)
	case strings.Contains(said, askReview):
		return "codex has been asked"
	case used == 1 && answerType.MatchString(result):
		return "codex says: " + verdict.FindString(result)
	}
	return answersTasks(said, result, used)
}

// opinions are a user's Claude Code and Codex, which know of Parley what parley install has entered.
type opinions struct {
	*desktop
	claude, codex *session
}

// openPrograms builds the program and serves the model of sessions. It returns the model's address.
func openPrograms(t *testing.T, h *stubmodel.Handler) (programs rig.Programs, model string) {
	t.Helper()
	for _, command := range []string{"claude", "codex", "tmux"} {
		need(t, command)
	}
	programs = rig.Programs(t.TempDir())
	if err := programs.Build(rig.Parley[0]); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return programs, server.URL
}

// newOpinions opens both sessions in one project, Claude Code with further flags.
func newOpinions(t *testing.T, h *stubmodel.Handler, claudeFlags ...string) *opinions {
	t.Helper()
	programs, model := openPrograms(t, h)
	d := newPlainDesktop(t, programs, model, "")
	d.ask(t, "install", "claude", "codex", "--yes")(t)
	o := &opinions{desktop: d}
	o.claude = &session{d, "claude-shop", d.shop, append([]string{"claude", "--allowedTools", "mcp__parley"}, claudeFlags...)}
	o.codex = &session{d, "codex-shop", d.shop, []string{"codex"}}
	o.claude.begin(t)
	d.dial(t)
	o.claude.logFailure(t)
	o.codex.begin(t)
	o.codex.logFailure(t)
	o.codex.trustHooks(t)
	o.claude.ready(t)
	o.codex.ready(t)
	return o
}

// One sentence to Claude Code, and nobody touches a keyboard again: Codex is woken, reads the change and answers, Claude Code is
// woken and shows the answer. The task says what happened.
func TestASecondOpinionWithOneSentence(t *testing.T) {
	t.Parallel()
	var o *opinions
	o = newOpinions(t, &stubmodel.Handler{Script: func(said, result string, used int) string {
		next := secondOpinion(said, result, used)
		if strings.HasPrefix(next, "USE:answer_task") {
			o.awaitReceipts(t, taskID.FindStringSubmatch(result)[1])
		}
		return next
	}})
	var task dialect.Task
	o.claude.enter(t, askReview, func() bool { return len(o.codex.tasks(t)) > 0 })
	until(t, "the answer is in the session that asked", func() bool {
		task = o.codex.tasks(t)[0]
		return task.Status.State == dialect.StateCompleted && strings.Contains(o.claude.screen(t), "codexsays:VERDICT-"+task.ID)
	})
	if n := len(o.codex.tasks(t)); n != 1 {
		t.Errorf("codex has %d tasks", n)
	}
	if got := task.Status.Message.Text(); got != "VERDICT-"+task.ID {
		t.Errorf("the answer is %q", got)
	}
	if r := o.receipts(t, task.ID); r.WokenAt == "" || r.ShownAt == "" || r.HeldAt+r.RefusedAt != "" {
		t.Errorf("the receipts are %+v", r)
	}
	if n := strings.Count(o.codex.screen(t), strings.Join(strings.Fields(theReview), "")); n != 1 {
		t.Errorf("codex has seen the task %d times", n)
	}
	if n := strings.Count(o.claude.screen(t), "codexsays:"); n != 1 {
		t.Errorf("claude has seen the answer %d times", n)
	}
}

// The same sentence reaches a Codex behind another hub: nobody touches a keyboard there, once its user has let other hubs see it.
func TestASecondOpinionFromAnotherHub(t *testing.T) {
	t.Parallel()
	programs, model := openPrograms(t, &stubmodel.Handler{Script: secondOpinion})
	here, there := newPlainDesktop(t, programs, model, ""), newPlainDesktop(t, programs, model, "sessions: {outside: allow}\n")
	here.pair(t, "there", there.office)
	there.pair(t, "here", here.office)
	here.ask(t, "install", "claude", "--yes")(t)
	there.ask(t, "install", "codex", "--yes")(t)
	claude := &session{here, "claude-shop", here.shop, []string{"claude", "--allowedTools", "mcp__parley"}}
	codex := &session{there, "codex-shop", there.shop, []string{"codex"}}
	claude.begin(t)
	codex.begin(t)
	here.dial(t)
	claude.logFailure(t)
	codex.trustHooks(t)
	there.dial(t)
	codex.logFailure(t)
	claude.ready(t)
	codex.ready(t)
	codex.say(t, `USE:register_agent {"agentType":"codex","capabilities":["review"],"scope":"user","visibility":"public"}`, func() bool {
		return here.agent(t, codex.id).Address != ""
	})
	claude.enter(t, askReview, func() bool { return len(codex.tasks(t)) > 0 })
	until(t, "the answer is in the session that asked", func() bool {
		task := codex.tasks(t)[0]
		return task.Status.State == dialect.StateCompleted && strings.Contains(claude.screen(t), "codexsays:VERDICT-"+task.ID)
	})
	if n := len(codex.tasks(t)); n != 1 {
		t.Errorf("codex has %d tasks", n)
	}
}

// awaitReceipts keeps a model busy, as a review does, until what its session has seen is recorded.
func (o *office) awaitReceipts(t *testing.T, id string) {
	for range 300 {
		if r := o.receipts(t, id); r.WokenAt != "" && r.ShownAt != "" {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Error("the receipts are not written")
}

// receipts are what the task says of the session's attention.
func (o *office) receipts(t *testing.T, id string) hub.Receipts {
	t.Helper()
	out, err := o.command(t.Context(), "tasks", "--format", "json").Output()
	var page dialect.TaskPage
	if err == nil {
		err = json.Unmarshal(out, &page)
	}
	if err != nil {
		t.Error(err)
	}
	i := slices.IndexFunc(page.Tasks, func(x dialect.Task) bool { return x.ID == id })
	if i < 0 {
		t.Errorf("no task %s in %s", id, out)
		return hub.Receipts{}
	}
	return hub.ReceiptsOf(page.Tasks[i].Metadata)
}

// newPlainDesktop is the desktop of a user who has only installed the programs.
func newPlainDesktop(t *testing.T, programs rig.Programs, model, settings string) *desktop {
	t.Helper()
	address := freeAddress(t)
	return newPlainDesktopAt(t, programs, model, settings, address, address)
}

// newPlainDesktopAt is newPlainDesktop with the address at which the hub listens, and that at which others reach it.
func newPlainDesktopAt(t *testing.T, programs rig.Programs, model, settings, listen, public string) *desktop {
	t.Helper()
	o := &office{Home: programs.NewHome(t), parley: programs.Path("parley"), address: public}
	o.Env = slices.DeleteFunc(slices.Clone(o.Env), func(variable string) bool { return strings.HasPrefix(variable, "PARLEY_") })
	o.dir = o.Project(t, "shop", "")
	write(t, filepath.Join(o.Dir, ".a2a-hub", "config.yaml"), settings+fmt.Sprintf(`version: 1
http: {port: 0}
peers: {enabled: true, hyperswarm: {listen: %q, public: %q}}
agents: {claude-code: {disabled: true}, codex: {disabled: true}, gemini: {disabled: true}, vibe: {disabled: true}}
`, listen, public))
	t.Cleanup(func() {
		if out, err := o.command(context.Background(), "stop").CombinedOutput(); err != nil && !bytes.Contains(out, []byte("no hub")) {
			t.Errorf("stop the hub: %v\n%s", err, out)
		}
	})
	d := &desktop{office: o, shop: o.dir}
	d.prepare(t, model)
	write(t, filepath.Join(d.Dir, ".claude.json"), fmt.Sprintf(`{"hasCompletedOnboarding": true, "customApiKeyResponses":
{"approved": ["sk-ant-stub"], "rejected": []}, "projects": {%q: {"hasTrustDialogAccepted": true}}}`, d.shop))
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
[projects.%q]
trust_level = "trusted"
`, model, d.shop))
	return d
}

// dial connects to the hub, which a session starts.
func (o *office) dial(t *testing.T) {
	t.Helper()
	until(t, "a session has started the hub", func() bool {
		c, err := client.Dial(t.Context(), filepath.Join(o.Dir, ".a2a-hub", "hub.sock"))
		o.client = c
		return err == nil
	})
	t.Cleanup(func() { o.client.Close() })
}

// trustHooks answers what Codex asks its user once: whether Parley's hooks may run. On a busy computer Codex does not ask before it
// takes input, but at its next start.
func (s *session) trustHooks(t *testing.T) {
	t.Helper()
	asked := func() bool { return strings.Contains(s.screen(t), "Hooksneedreview") }
	var began time.Time
	until(t, s.id+" asks about the hooks", func() bool {
		if strings.Contains(s.screen(t), "AskCodextodoanything") && time.Since(began) > 20*time.Second {
			if !began.IsZero() {
				s.tmux(t, "kill-session", "-t", s.id)
				s.begin(t)
			}
			began = time.Now()
		}
		return asked()
	})
	until(t, s.id+" chooses to trust all", func() bool {
		chosen := strings.Contains(s.screen(t), "›2.Trustall")
		if !chosen {
			s.tmux(t, "send-keys", "-t", s.id, "Down")
		}
		return chosen
	})
	s.tmux(t, "send-keys", "-t", s.id, "Enter")
	until(t, s.id+" trusts the hooks", func() bool { return !asked() })
}
