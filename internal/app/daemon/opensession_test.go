//go:build unix

package daemon_test

import (
	"os"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/sessions/hooks"
)

func TestAHubKnowsTheSessionsOfItsHooksUntilItIsDrained(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	r := run(t, mustLoad(t, dir))
	c, err := client.Dial(t.Context(), r.info.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, kind := range []hooks.Kind{hooks.Start, hooks.BeforeTurn} {
		if _, err := c.SessionHook(t.Context(), dialect.SessionHookParams{Vendor: "claude", Session: "s1", Kind: string(kind), Dir: dir,
			Process: dialect.SessionProcess{PID: os.Getpid()}}); err != nil {
			t.Fatal(err)
		}
	}
	if open, err := c.OpenSessions(t.Context()); err != nil || len(open) != 1 || open[0].Session != "s1" {
		t.Errorf("the open sessions are %+v, %v", open, err)
	}
	if err := c.QuietSession(t.Context(), dialect.SessionQuietParams{AgentID: "echo", Quiet: true}); err == nil || !strings.Contains(err.Error(), "no session") {
		t.Errorf("a program is left alone: %v", err)
	}
	if err := c.QuietSession(t.Context(), dialect.SessionQuietParams{AgentID: "nobody", Quiet: true}); err == nil {
		t.Error("an agent that is not there is left alone")
	}
	if link, err := c.PageLink(t.Context(), dialect.PageLinkParams{}); err != nil || !strings.HasPrefix(link.URL, r.info.HTTP) {
		t.Errorf("the page's link is %+v, %v", link, err)
	}
	if allowed, err := c.Senders(t.Context()); err != nil || len(allowed) != 0 {
		t.Errorf("allowed are %+v, %v", allowed, err)
	}
	if busy, err := c.Drain(t.Context()); err != nil || busy != 0 {
		t.Errorf("%d tasks keep the hub, %v", busy, err)
	}
	if err := <-r.done; err != nil {
		t.Error(err)
	}
}
