//go:build interop && linux

package interop_test

import (
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/stubmodel"
)

// task sends a session a task without waiting for its answer.
func (s *session) task(t *testing.T, text string) (id string) {
	t.Helper()
	before := len(s.tasks(t))
	s.ask(t, "send", "--detach", s.id, text)(t)
	until(t, s.id+" has the task", func() bool { return len(s.tasks(t)) > before })
	return s.open(t)
}

// done waits until a task is answered with its verdict.
func (s *session) done(t *testing.T, id string) {
	t.Helper()
	until(t, s.id+" answers "+id, func() bool {
		return s.hubTask(id).Status.State == dialect.StateCompleted
	})
	if got := s.hubTask(id).Status.Message.Text(); got != "VERDICT-"+id {
		t.Errorf("the answer is %q", got)
	}
}

// A Claude Code session whose user clears the conversation is the same agent under another id of its own: it is woken for what was sent to it
// before, and after it.
func TestAClearedSessionIsTheAgentThatItWas(t *testing.T) {
	t.Parallel()
	programs, model := openPrograms(t, &stubmodel.Handler{Script: answersTasks})
	d := newPlainDesktop(t, programs, model, "")
	d.ask(t, "install", "claude", "--yes")(t)
	d.ask(t, "start")(t)
	d.dial(t)
	s := d.open(t, "claude-shop", d.shop, "claude", "--allowedTools", "mcp__parley")
	s.done(t, s.task(t, "is this safe?"))
	before := d.openSessions()[0]
	s.ask(t, "agents", "quiet", s.id)(t)
	waiting := s.task(t, "and this?")
	s.enter(t, "/clear", func() bool {
		now := d.openSessions()
		return len(now) == 1 && now[0].Session != before.Session
	})
	after := d.openSessions()[0]
	if after.GUID != before.GUID || after.Agent != before.Agent || after.PID != before.PID {
		t.Errorf("%+v is %+v now", before, after)
	}
	s.ask(t, "agents", "quiet", s.id, "--off")(t)
	s.done(t, waiting)
	s.done(t, s.task(t, "and that?"))
}
