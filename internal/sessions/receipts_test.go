package sessions_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
)

func TestATaskShowsTheSignsOfItsReceipt(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.session(registry.Registration{Handle: "reviewer"})
	id := o.send("reviewer", "is this safe?")
	var notice mail.Mail
	wait.Eventually(t, "the task is in the inbox", func() bool {
		list, _, err := o.assigner.Waiting(t.Context(), a.GUID(), 10)
		if err == nil && len(list) == 1 {
			notice = list[0]
		}
		return notice.ID != ""
	})
	if r := hub.ReceiptsOf(o.task(id).Metadata); r != (hub.Receipts{}) {
		t.Errorf("the receipts are %+v", r)
	}
	at := time.Date(2026, 11, 28, 7, 0, 0, 0, time.UTC)
	for _, sign := range []mail.Sign{mail.Woken, mail.Shown, mail.Woken} {
		if err := o.assigner.Note(t.Context(), notice, sign, at); err != nil {
			t.Fatal(err)
		}
		at = at.Add(time.Minute)
	}
	want := hub.Receipts{WokenAt: "2026-11-28T07:00:00Z", ShownAt: "2026-11-28T07:01:00Z"}
	wait.Eventually(t, "the task shows the signs", func() bool { return hub.ReceiptsOf(o.task(id).Metadata) == want })
	if s := o.task(id).Status.State; s != a2a.TaskStateSubmitted {
		t.Errorf("a task that nobody has got is %s", s)
	}
	if got, err := o.assigner.AttentionOf(t.Context(), notice); err != nil || got.ShownAt == "" || got.HeldAt != "" {
		t.Errorf("the signs are %+v, %v", got, err)
	}
	o.read(a)
	o.awaitState(id, a2a.TaskStateWorking)
	if r := hub.ReceiptsOf(o.task(id).Metadata); r != want {
		t.Errorf("after it was read the receipts are %+v", r)
	}
	o.stop()
	o.start()
	if r := hub.ReceiptsOf(o.task(id).Metadata); r != want {
		t.Errorf("after a start of the hub the receipts are %+v", r)
	}
}

// A hub that was killed before it stored a sign has it again from the message's receipt, also if the answer is there at its start.
func TestASignThatTheHubHasNotStoredIsThereAfterItsStart(t *testing.T) {
	t.Parallel()
	for _, answered := range []bool{false, true} {
		t.Run(fmt.Sprintf("answered %t", answered), func(t *testing.T) {
			t.Parallel()
			o := newOffice(t)
			a := o.session(registry.Registration{Handle: "reviewer"})
			id := o.send("reviewer", "is this safe?")
			var notice mail.Mail
			wait.Eventually(t, "the task is in the inbox", func() bool {
				list, _, err := o.assigner.Waiting(t.Context(), a.GUID(), 10)
				if err == nil && len(list) == 1 {
					notice = list[0]
				}
				return notice.ID != ""
			})
			o.stop()
			d := assignment.Open(o.computer().BusConfig, hubGUID, "hub")
			at := time.Date(2026, 11, 28, 7, 0, 0, 0, time.UTC)
			wait.Eventually(t, "the sign is noted", func() bool { return d.Note(t.Context(), notice, mail.Shown, at) == nil })
			if err := d.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			if answered { // it waits for the hub
				go func() { done <- a.AnswerTask(t.Context(), answerTo(id, "yes")) }()
			} else {
				done <- nil
			}
			o.start()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if answered {
				o.awaitState(id, a2a.TaskStateCompleted)
			}
			want := hub.Receipts{ShownAt: "2026-11-28T07:00:00Z"}
			wait.Eventually(t, "the task shows the sign", func() bool { return hub.ReceiptsOf(o.task(id).Metadata) == want })
		})
	}
}

// The sender is told, and the task stays one that nobody has got.
func TestATaskSaysThatItsSessionIsNotWoken(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.session(registry.Registration{Handle: "reviewer"})
	id := o.send("reviewer", "is this safe?")
	wait.Eventually(t, "the task has the notice", func() bool {
		list, _, err := o.assigner.Waiting(t.Context(), a.GUID(), 10)
		if err != nil || len(list) != 1 {
			return false
		}
		o.sessions.Unwoken(list[0].ID, "the session cannot be woken")
		return strings.Contains(fmt.Sprint(o.task(id).Metadata[hub.MetaNotices]), "cannot be woken")
	})
	o.sessions.Unwoken("unknown", "x")
	task := o.task(id)
	if n := len(task.Metadata[hub.MetaNotices].([]any)); n != 1 || task.Status.State != a2a.TaskStateSubmitted || task.Status.Message.Metadata[hub.MetaNotice] != true {
		t.Errorf("%d notices, %s, %+v", n, task.Status.State, task.Status.Message)
	}
	o.read(a)
	o.awaitState(id, a2a.TaskStateWorking)
}

func TestASessionWhoseTerminalIsClosedIsOffline(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.session(registry.Registration{Handle: "reviewer"})
	guid := a.GUID()
	offline := func(want bool) {
		t.Helper()
		o.sessions.Changed()
		wait.Eventually(t, "the session is offline or not", func() bool {
			info, ok := o.agent(guid)
			return ok && info.Residence.Offline == want
		})
	}
	offline(false)
	o.closed.Store(&guid)
	offline(true)
	o.closed.Store(nil)
	offline(false)
}
