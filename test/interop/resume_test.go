//go:build interop && linux

package interop_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/stubmodel"
)

var ownGUID = regexp.MustCompile(`YourGUIDis([0-9a-f-]{36})`)

// Two sessions of Codex in one project are ended, each gets a task, and they are resumed at once, the second first: nobody types anything, each
// is woken, is the agent that it was, and answers its own task.
func TestResumedCodexSessionsAreTheAgentsThatTheyWere(t *testing.T) {
	t.Parallel()
	programs, model := openPrograms(t, &stubmodel.Handler{Script: answersTasks})
	d := newPlainDesktop(t, programs, model, "")
	d.ask(t, "install", "codex", "--yes")(t)
	d.ask(t, "start")(t)
	d.dial(t)
	sessions := []*session{{d, "one", d.shop, []string{"codex"}}, {d, "two", d.shop, []string{"codex"}}}
	opened := make([]dialect.OpenSession, len(sessions))
	for i, s := range sessions {
		s.begin(t)
		s.logFailure(t)
		if i == 0 {
			s.trustHooks(t)
		}
		until(t, s.id+" is ready", func() bool { return strings.Contains(s.screen(t), "›") })
		s.say(t, `USE:register_agent {"agentType":"codex","capabilities":["review"],"scope":"user"}`, func() bool { return ownGUID.MatchString(s.screen(t)) })
		guid := ownGUID.FindStringSubmatch(s.screen(t))[1]
		until(t, "the hub knows the thread of "+s.id, func() bool {
			for _, x := range d.openSessions() {
				if x.GUID == guid && x.Session != "" && x.Agent != "" {
					opened[i] = x
				}
			}
			return opened[i].GUID != ""
		})
	}
	if opened[0].GUID == opened[1].GUID || opened[0].Session == opened[1].Session {
		t.Fatalf("two sessions are one agent: %+v", opened)
	}
	for _, s := range sessions {
		s.tmux(t, "kill-session", "-t", s.id)
	}
	for i, x := range opened { // Codex ends them about a minute after its terminal
		until(t, sessions[i].id+" is offline", func() bool { return d.agent(t, x.Agent).State == "offline" })
	}
	ask := func(x dialect.OpenSession) string { return "is this safe, " + x.Agent + "?" }
	for _, x := range opened {
		d.ask(t, "send", "--detach", x.Agent, ask(x))(t)
	}
	for _, i := range []int{1, 0} {
		s := sessions[i]
		s.cli = []string{"codex", "resume", opened[i].Session}
		s.begin(t)
	}
	read := func(s *session, x dialect.OpenSession) bool {
		return strings.Contains(s.screen(t), strings.ReplaceAll(ask(x), " ", ""))
	}
	for i, s := range sessions {
		x := opened[i]
		until(t, s.id+" answers its task", func() bool {
			return slices.ContainsFunc(d.hubTasks(), func(task dialect.Task) bool {
				return task.Metadata[hub.MetaAgent] == x.Agent && task.Status.State == dialect.StateCompleted
			})
		})
		until(t, s.id+" shows its task", func() bool { return read(s, x) }) // a slow terminal shows it after the answer
		if read(s, opened[1-i]) {
			t.Errorf("%s has read another's task: %s", s.id, s.screen(t))
		}
		until(t, s.id+" is the agent that it was", func() bool {
			return slices.ContainsFunc(d.openSessions(), func(now dialect.OpenSession) bool {
				return now.Session == x.Session && now.GUID == x.GUID && now.Agent == x.Agent
			})
		})
	}
}

// openSessions returns what the hub knows of the open sessions; nothing while it is not there.
func (o *office) openSessions() (all []dialect.OpenSession) {
	_ = o.onHub(func(ctx context.Context, c *client.Client) (err error) {
		all, err = c.OpenSessions(ctx)
		return err
	})
	return all
}
