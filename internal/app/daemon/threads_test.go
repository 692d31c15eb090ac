//go:build unix

package daemon_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
	"github.com/parleyhub/parley/internal/config"
)

// The hub's user reads the channels and the mail of agents, sees who has seen what, and writes.
func TestTheUserReadsAndWritesThreads(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	r := run(t, mustLoad(t, dir, "http.enabled=false"))
	defer r.end(t)
	c := dialHub(t, r.info.Socket)
	if all, err := c.Threads(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("before anybody wrote there are %+v, %v", all, err)
	}
	readsAChannel(t, c, dir)
	readsMail(t, c, dir)
	for _, id := range []string{"nothing", "channel:shop/none", "channel:", "mail:x", "mail:x+y"} {
		if _, err := c.Thread(t.Context(), dialect.ThreadParams{ThreadID: id}); err == nil || !strings.Contains(err.Error(), "no thread") {
			t.Errorf("%s: %v", id, err)
		}
		if _, err := c.WriteThread(t.Context(), dialect.WriteThreadParams{ThreadID: id, Text: "x"}); err == nil || !strings.Contains(err.Error(), "no thread") {
			t.Errorf("writing in %s: %v", id, err)
		}
	}
}

func readsAChannel(t *testing.T, c *client.Client, dir string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	finder := busfinder.New(busfinder.Config{Config: bus.Config{Name: "shop", Logger: log}, Access: bus.AccessProject, Namespace: "shop", Hub: func(context.Context) (*config.Loaded, error) { return load(dir) }})
	space := chat.Open(chat.Config{Namespace: "shop", Channels: []chat.Channel{{Name: "general", MaxMessages: 100, MaxBytes: 1 << 20}}, Dial: finder.Dial, Logger: log})
	defer func() {
		if _, err := space.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	<-space.Tried()
	if _, err := space.Send(t.Context(), "ann", "general", "the lexer is done"); err != nil {
		t.Fatal(err)
	}
	if _, err := space.Read(t.Context(), "bob", "general", 10); err != nil {
		t.Fatal(err)
	}
	all, err := c.Threads(t.Context())
	if err != nil || len(all) != 1 || all[0].Kind != dialect.ThreadChannel || all[0].Project != "shop" || all[0].Channel != "general" || all[0].Messages != 1 || all[0].Newest.IsZero() {
		t.Fatalf("%+v, %v", all, err)
	}
	if _, err := c.WriteThread(t.Context(), dialect.WriteThreadParams{ThreadID: all[0].ID, Text: "thank you"}); err != nil {
		t.Fatal(err)
	}
	got, err := c.Thread(t.Context(), dialect.ThreadParams{ThreadID: all[0].ID})
	if err != nil || len(got.Messages) != 2 || got.Messages[0].From != "ann" || got.Messages[1].From != local.PersonHandle() || got.Messages[1].Text != "thank you" {
		t.Fatalf("%+v, %v", got, err)
	}
	if seen := got.Messages[0].SeenBy; len(seen) != 1 || seen[0].Who != "bob" || len(got.Messages[1].SeenBy) != 0 {
		t.Errorf("seen by %+v", got.Messages)
	}
	if _, err := c.WriteThread(t.Context(), dialect.WriteThreadParams{ThreadID: all[0].ID, Text: ""}); err == nil {
		t.Error("an empty message was written")
	}
}

func readsMail(t *testing.T, c *client.Client, dir string) {
	t.Helper()
	ann, bob := enter(t, membershipsOf(t, dir, "/shop"), "writer"), enter(t, membershipsOf(t, dir, "/blog"), "reader")
	if _, err := ann.Send(t.Context(), mail.Message{Recipient: bob.GUID(), Text: "look at this"}); err != nil {
		t.Fatal(err)
	}
	var thread dialect.Thread
	find := func(is func(dialect.Thread) bool) func() bool {
		return func() bool {
			all, err := c.Threads(t.Context())
			for _, x := range all {
				if err == nil && x.Kind == dialect.ThreadMail && is(x) {
					thread = x
					return true
				}
			}
			return false
		}
	}
	wait.Eventually(t, "the mail is listed", find(func(x dialect.Thread) bool { return x.Unread == 1 && x.Between[0].Handle != "" }))
	if _, err := c.WriteThread(t.Context(), dialect.WriteThreadParams{ThreadID: thread.ID, Text: "x"}); err == nil || !strings.Contains(err.Error(), "neither") {
		t.Errorf("writing as an agent: %v", err)
	}
	if got, _, err := bob.Read(t.Context(), mail.Selection{}); err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	wait.Eventually(t, "the mail is read", func() bool {
		got, err := c.Thread(t.Context(), dialect.ThreadParams{ThreadID: thread.ID, Limit: 1})
		return err == nil && len(got.Messages) == 1 && got.Messages[0].Text == "look at this" && got.Messages[0].From != "" && got.Messages[0].Receipt.ReadAt != ""
	})
	wait.Eventually(t, "the user writes mail", func() bool {
		_, err := c.WriteThread(t.Context(), dialect.WriteThreadParams{ThreadID: "mail:" + bob.GUID(), Text: "from the user"})
		return err == nil
	})
	if got, _, err := bob.Wait(t.Context(), mail.Selection{}); err != nil || len(got) == 0 || got[0].Text != "from the user" || got[0].SenderHandle != local.PersonHandle() {
		t.Errorf("%+v, %v", got, err)
	}
	wait.Eventually(t, "the user's mail is listed", find(func(x dialect.Thread) bool { return x.Between[0].You || x.Between[1].You }))
}
