package hooks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/sessions/hooks"
	"github.com/parleyhub/parley/internal/sessions/news"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

// paper is news that the test makes.
type paper struct {
	notices []news.Notice
	err     error
	asked   []string
	forgot  []string
	shown   []string
}

func (p *paper) Latest(_ context.Context, guid string) (news.Notice, error) {
	p.asked = append(p.asked, guid)
	if p.err != nil || len(p.notices) == 0 {
		return news.Notice{}, p.err
	}
	n := p.notices[0]
	p.notices = p.notices[1:]
	return n, nil
}

func (p *paper) Forget(guid string) { p.forgot = append(p.forgot, guid) }

func (p *paper) Shown(id string) bool {
	p.shown = append(p.shown, id)
	return true
}

func (p *paper) arrive(n int) {
	for i := range n {
		p.notices = append(p.notices, news.Notice{ID: fmt.Sprint("n", i), Unread: 1,
			Items: []news.Item{{Mail: mail.Mail{ID: fmt.Sprint("m", i)}, Kind: "a message", From: "bob"}}})
	}
}

type handler struct {
	*hooks.Service
	records *presence.Records
	news    *paper
	screens []presence.Process
}

func newHandler(t *testing.T) *handler {
	t.Helper()
	records, err := presence.Open(presence.Options{Alive: func(presence.Process) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	d := &handler{records: records, news: &paper{}}
	d.Service = hooks.New(hooks.Options{Records: records, News: d.news, Screens: func(string) []presence.Process { return d.screens },
		Watch: func(s presence.Session) []string { return []string{"/watch/" + s.ID} }})
	return d
}

var claude = presence.Process{PID: 7, Start: "1"}

func (d *handler) event(t *testing.T, kind hooks.Kind, changes ...func(*hooks.Report)) hooks.Reply {
	t.Helper()
	r := hooks.Report{Vendor: "claude", Session: "s1", Dir: "/p", Transcript: "/t", Kind: kind, Process: claude}
	for _, change := range changes {
		change(&r)
	}
	return d.Handle(t.Context(), r)
}

func active(r *hooks.Report) { r.StopActive = true }

func (d *handler) state(t *testing.T) presence.State {
	t.Helper()
	s, ok := d.records.Session("claude", "s1")
	if !ok {
		t.Fatal("there is no session")
	}
	return s.State
}

func TestHooksKeepTheRecordOfASession(t *testing.T) {
	t.Parallel()
	d := newHandler(t)
	for _, c := range []struct {
		kind     hooks.Kind
		notified string
		want     presence.State
	}{
		{hooks.Start, "", presence.Idle}, {hooks.BeforeTurn, "", presence.InTurn}, {hooks.Notification, "permission_prompt", presence.Waiting},
		{hooks.BeforeTool, "", presence.InTurn}, {hooks.AfterTool, "", presence.InTurn}, {hooks.AfterTurn, "", presence.Idle},
		{hooks.BeforeTurn, "", presence.InTurn}, {hooks.Interrupt, "", presence.Idle}, {hooks.Notification, "other", presence.Idle},
		{hooks.Notification, "elicitation_dialog", presence.Waiting}, {hooks.Notification, "idle_prompt", presence.Idle},
	} {
		d.event(t, c.kind, func(r *hooks.Report) { r.NotificationType = c.notified })
		if got := d.state(t); got != c.want {
			t.Errorf("after %s %s it is %s", c.kind, c.notified, got)
		}
	}
	s, _ := d.records.Session("claude", "s1")
	if s.Dir != "/p" || s.Transcript != "/t" || s.Process != claude || s.Terminal != presence.TerminalOpen {
		t.Errorf("the session is %+v", s)
	}
	d.event(t, hooks.End, func(r *hooks.Report) { r.Reason = "clear" })
	if len(d.records.All()) != 1 {
		t.Error("a cleared conversation ended the session")
	}
	d.event(t, hooks.End, func(r *hooks.Report) { r.Reason = "prompt_input_exit" })
	if len(d.records.All()) != 0 || len(d.news.asked) != 0 {
		t.Error("the session has not ended, or was told something without an agent")
	}
}

func TestCodexSessionsAreShownByPrograms(t *testing.T) {
	t.Parallel()
	d := newHandler(t)
	d.screens = []presence.Process{{PID: 9}}
	codex := func(r *hooks.Report) { r.Vendor, r.Process = "codex", presence.Process{} }
	d.event(t, hooks.BeforeTurn, codex)
	if s, _ := d.records.Session("codex", "s1"); len(s.Screens) != 1 || s.Terminal != presence.TerminalOpen {
		t.Errorf("the session is %+v", s)
	}
}

// joined gives the session an agent.
func (d *handler) joined(t *testing.T) {
	t.Helper()
	d.event(t, hooks.Start)
	d.records.Serve(presence.Served{Vendor: "claude", Process: claude, GUID: "g1", Server: presence.Process{PID: 8}})
}

func TestWhatIsNewIsSaidBeforeATurn(t *testing.T) {
	t.Parallel()
	d := newHandler(t)
	d.joined(t)
	d.news.arrive(1)
	r := d.event(t, hooks.BeforeTurn)
	const want = "Parley: 1 new message for you: a message from bob (message m0). Read them with the tool read_direct_messages of parley. " +
		"They were written by other agents or programs, not by your user."
	if r.Context != want || r.Continue != "" || r.Notice != "n0" {
		t.Errorf("the reply is %+v", r)
	}
	if !d.Shown(r.Notice) || !slices.Equal(d.news.shown, []string{"n0"}) {
		t.Errorf("shown are %v", d.news.shown)
	}
	if r = d.event(t, hooks.BeforeTurn); r.Context != "" || r.Notice != "" {
		t.Errorf("the reply is %+v", r)
	}
	d.news.err = errors.New("no bus")
	if r = d.event(t, hooks.BeforeTurn); r.Context != "" {
		t.Errorf("the reply is %+v", r)
	}
	d.news.err = nil
	d.news.arrive(1)
	r = d.event(t, hooks.Start) // with which no turn begins
	if r.Context != "" || r.Notice != "" || !slices.Equal(r.Watch, []string{"/watch/s1"}) || !slices.Contains(d.news.forgot, "g1") {
		t.Errorf("the reply is %+v; forgotten is %v", r, d.news.forgot)
	}
	if r = d.event(t, hooks.BeforeTurn); r.Context != want || r.Notice == "" {
		t.Errorf("the reply is %+v", r)
	}
}

// OpenCode reports no start of a conversation that goes on, so that it gets the file before a turn.
func TestOpenCodeGetsItsBellBeforeATurn(t *testing.T) {
	t.Parallel()
	d := newHandler(t)
	if r := d.event(t, hooks.BeforeTurn, func(r *hooks.Report) { r.Vendor = presence.OpenCode }); !slices.Equal(r.Watch, []string{"/watch/s1"}) {
		t.Errorf("the reply is %+v", r)
	}
	if r := d.event(t, hooks.BeforeTurn); len(r.Watch) != 0 {
		t.Errorf("the reply is %+v", r)
	}
}

func TestASessionGoesOnThreeTimesInARow(t *testing.T) {
	t.Parallel()
	d := newHandler(t)
	d.joined(t)
	d.news.arrive(9)
	for i, want := range []bool{true, true, true, false, false} {
		var r hooks.Reply
		if i == 0 {
			r = d.event(t, hooks.AfterTurn)
		} else {
			r = d.event(t, hooks.AfterTurn, active)
		}
		if (r.Continue != "") != want || r.Context != "" {
			t.Errorf("%d: the reply is %+v", i, r)
		}
		if state := d.state(t); (state == presence.InTurn) != want {
			t.Errorf("%d: the session is %s", i, state)
		}
	}
	if r := d.event(t, hooks.AfterTurn); r.Continue == "" {
		t.Error("it does not go on after a turn of its user")
	}
}

func TestASessionIsNotMadeToGoOn(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(d *handler, r *hooks.Report){
		"another hook did it":       func(_ *handler, r *hooks.Report) { r.StopActive = true },
		"nothing is new":            func(d *handler, _ *hooks.Report) { d.news.notices = nil },
		"it is not to be disturbed": func(d *handler, _ *hooks.Report) { _ = d.records.SetQuiet("g1", true) },
		"nobody sees it":            func(_ *handler, r *hooks.Report) { r.Headless = true },
	} {
		d := newHandler(t)
		d.joined(t)
		d.news.arrive(1)
		r := d.event(t, hooks.AfterTurn, func(r *hooks.Report) { prepare(d, r) })
		if r.Continue != "" || r.Notice != "" {
			t.Errorf("%s: the reply is %+v", name, r)
		}
	}
}

func TestTheRowsAreBounded(t *testing.T) {
	t.Parallel()
	d := newHandler(t)
	for i := range 1100 {
		p := presence.Process{PID: 10 + i}
		d.records.Serve(presence.Served{Vendor: "claude", Process: p, GUID: fmt.Sprint(i), Server: presence.Process{PID: 5000 + i}})
		d.news.arrive(1)
		d.event(t, hooks.AfterTurn, func(r *hooks.Report) { r.Session, r.Process = fmt.Sprint(i), p })
	}
}

func TestABellIsAnsweredByTheDoorbell(t *testing.T) {
	t.Parallel()
	d := newHandler(t)
	if r := d.event(t, hooks.Bell); r.Wake != "" {
		t.Errorf("without a doorbell it says %q", r.Wake)
	}
	d.Service = hooks.New(hooks.Options{Records: d.records, News: d.news, Bell: func(s presence.Session) string { return "wake " + s.ID }})
	if r := d.event(t, hooks.Bell); r.Wake != "wake s1" || r.Notice != "" {
		t.Errorf("it says %+v", r)
	}
}
