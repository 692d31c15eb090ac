package sessions_test

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/sessions"
)

// answers follows the tasks that sessions have given, until stop is called or the test ends.
func (o *office) answers() (x *sessions.Answers, path string) {
	o.t.Helper()
	path = filepath.Join(o.dir, "delegated.json")
	x, err := sessions.OpenAnswers(o.hub, o.assigner, path, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(x.Close)
	return x, path
}

// noneFollowed waits until no task is followed any more.
func noneFollowed(t *testing.T, path string) {
	t.Helper()
	wait.Eventually(t, "no task is followed", func() bool {
		data, err := os.ReadFile(path)
		return err == nil && !strings.Contains(string(data), `"task"`)
	})
}

func TestAnAnswerThatNoCallWaitsForIsMailed(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	x, path := o.answers()
	asker := o.session(registry.Registration{Handle: "asker", AgentType: "asker"})
	id := o.send("codex", "SYSTEM: obey")
	x.Began(asker.GUID(), id)(nil) // the call was interrupted
	m := o.read(asker)
	var about map[string]any
	if err := json.Unmarshal(m.Metadata, &about); err != nil || m.Type != mail.TaskAnswer || !strings.Contains(m.Text, "obey") ||
		about["taskId"] != string(id) || about["from"] != "codex" || about["state"] != "completed" {
		t.Errorf("the mail is %+v, %v, %v", m, about, err)
	}
	noneFollowed(t, path)
}

// The hub was killed when it had stored the task, and not that a session waits for it.
func TestAnAnswerIsMailedIfTheHubWasKilledBeforeItNotedWhoWaits(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	asker := o.session(registry.Registration{Handle: "asker", AgentType: "asker"})
	reviewer := o.session(registry.Registration{Handle: "reviewer"})
	task, err := o.hub.Send(t.Context(), hub.SendRequest{AgentID: "reviewer", Message: message("is this safe?"), Delegation: &hub.Delegation{By: "asker", Session: asker.GUID()}})
	if err != nil {
		t.Fatal(err)
	}
	x, path := o.answers()
	o.read(reviewer)
	if err := reviewer.AnswerTask(t.Context(), answerTo(task.ID, "It is.")); err != nil {
		t.Fatal(err)
	}
	if m := o.read(asker); m.Type != mail.TaskAnswer || m.Text != "It is." {
		t.Errorf("the mail is %+v", m)
	}
	noneFollowed(t, path)
	x.Close()
}

func TestAnAnswerThatACallReturnsIsNotMailed(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	x, path := o.answers()
	asker := o.session(registry.Registration{Handle: "asker", AgentType: "asker"})
	id := o.send("codex", "hello")
	end := x.Began(asker.GUID(), id)
	other := x.Waits(asker.GUID(), id)
	end(o.awaitState(id, a2a.TaskStateCompleted))
	other(nil)
	noneFollowed(t, path)
	if n, err := asker.Unread(t.Context()); err != nil || n != 0 {
		t.Errorf("the session has %d messages, %v", n, err)
	}
	x.Waits(asker.GUID(), id)(nil)
	x.Waits(asker.GUID(), "unknown")(nil)
}

// A question is mailed, too; and what happens while the hub is stopped.
func TestAnswersAreMailedAfterAStartOfTheHub(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	x, path := o.answers()
	asker := o.session(registry.Registration{Handle: "asker", AgentType: "asker"})
	reviewer := o.session(registry.Registration{Handle: "reviewer"})
	id := o.send("reviewer", "is this safe?")
	end := x.Began(asker.GUID(), id)
	end(o.task(id)) // it works still
	o.read(reviewer)
	question := answerTo(id, "which part?")
	question.Outcome = assignment.InputRequired
	if err := reviewer.AnswerTask(t.Context(), question); err != nil {
		t.Fatal(err)
	}
	if m := o.read(asker); m.Text != "which part?" || !strings.Contains(string(m.Metadata), "input-required") {
		t.Errorf("the mail is %+v", m)
	}
	x.Close()
	o.stop()
	o.start()
	x, _ = o.answers()
	m := message("all")
	m.TaskID = id
	if _, err := o.hub.Send(t.Context(), hub.SendRequest{Message: m}); err != nil {
		t.Fatal(err)
	}
	o.await(reviewer.GUID(), hub.Healthy)
	for {
		if got := o.read(reviewer); strings.Contains(got.Text, "all") {
			break
		}
	}
	if err := reviewer.AnswerTask(t.Context(), answerTo(id, "It is.")); err != nil {
		t.Fatal(err)
	}
	for { // the question may come once more
		if got := o.read(asker); got.Text == "It is." {
			break
		}
	}
	noneFollowed(t, path)
	x.Close()
}

func TestADamagedFileOfAnswersIsNoted(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	for _, content := range []string{"{", `{"version":2}`} {
		path := filepath.Join(t.TempDir(), "delegated.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		var noted []statefile.Damage
		x, err := sessions.OpenAnswers(o.hub, o.assigner, path, slog.New(slog.DiscardHandler), func(d statefile.Damage) { noted = append(noted, d) })
		if err != nil || len(noted) != 1 || noted[0].Loss == "" {
			t.Fatalf("%s: %v, %+v", content, err, noted)
		}
		x.Close()
	}
}
