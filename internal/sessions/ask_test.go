package sessions_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/senders"
)

var asks = senders.Policy{Outside: senders.Ask, Clients: senders.Ask}

// answerAs answers the question about a task's sender.
func (o *office) answerAs(from hub.Sender, id a2a.TaskID, words string) error {
	m := message(words)
	m.TaskID = id
	_, err := o.hub.Send(o.t.Context(), hub.SendRequest{Message: m, Sender: from})
	return err
}

func (o *office) answer(id a2a.TaskID, words string) {
	o.t.Helper()
	if err := o.answerAs(hub.Sender{}, id, words); err != nil {
		o.t.Fatal(err)
	}
}

// hasNoMail sends a task of the user and checks that it is all that a session has got.
func (o *office) hasNoMail(a *agentnet.Agent) {
	o.t.Helper()
	id := o.sendAs(hub.Sender{}, "mine").ID
	if m := o.read(a); m.Text != "mine" || !strings.Contains(string(m.Metadata), string(id)) {
		o.t.Errorf("the session has got %+v", m)
	}
	if err := a.AnswerTask(o.t.Context(), answerTo(id, "ok")); err != nil {
		o.t.Error(err)
	}
}

func TestTheUserIsAskedAboutASender(t *testing.T) {
	t.Parallel()
	o, a := policyOffice(t, asks)
	task, err := o.hub.SendAndWait(t.Context(), hub.SendRequest{AgentID: "reviewer", Message: message("do it"), Sender: outsider})
	if err != nil || task.Status.State != a2a.TaskStateAuthRequired {
		t.Fatalf("%+v, %v", task, err)
	}
	if text := textOf(task.Status.Message); text != "May a2a 192.0.2.7 (curl) give reviewer this task?" {
		t.Errorf("the question is %q", text)
	}
	data := fmt.Sprint(task.Status.Message.Parts[1].Data())
	for _, part := range []string{"sender-1", "allow", "always", "deny", "do it", "192.0.2.7"} {
		if !strings.Contains(data, part) {
			t.Errorf("%s is not in %s", part, data)
		}
	}
	o.hasNoMail(a)
	sub, err := o.hub.Subscribe(t.Context(), task.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()

	o.answer(task.ID, "allow")
	now := o.task(task.ID)
	if now.Status.State != a2a.TaskStateWorking || !hub.Permitted(now.Metadata) || len(now.History) != 1 {
		t.Errorf("the task is %+v", now)
	}
	if m := o.read(a); !strings.HasSuffix(m.Text, "\n\ndo it") {
		t.Errorf("the session reads %q", m.Text)
	}
	question := answerTo(task.ID, "which?")
	question.Outcome = "input-required"
	if err := a.AnswerTask(t.Context(), question); err != nil {
		t.Fatal(err)
	}
	// Once is for all messages of the task.
	if err := o.answerAs(outsider, task.ID, "that one"); err != nil {
		t.Fatal(err)
	}
	if m := o.read(a); !strings.HasSuffix(m.Text, "\n\nthat one") {
		t.Errorf("the session reads %q", m.Text)
	}
	if err := a.AnswerTask(t.Context(), answerTo(task.ID, "done")); err != nil {
		t.Fatal(err)
	}
	if end := o.task(task.ID); end.Status.State != a2a.TaskStateCompleted || len(end.History) != 4 {
		t.Errorf("the task is %+v", end)
	}
	o.awaitState(o.sendAs(outsider, "another").ID, a2a.TaskStateAuthRequired)
}

func TestTheUserDeniesASender(t *testing.T) {
	t.Parallel()
	o, a := policyOffice(t, asks)
	for words, reason := range map[string]string{"deny": "its user denied it", "no": "its user denied it", "not on Mondays": "not on Mondays"} {
		id := o.sendAs(outsider, "do it").ID
		o.awaitState(id, a2a.TaskStateAuthRequired)
		o.answer(id, words)
		end := o.awaitState(id, a2a.TaskStateRejected)
		if text := textOf(end.Status.Message); !strings.Contains(text, ": "+reason+";") {
			t.Errorf("%s: the reason is %q", words, text)
		}
	}
	o.hasNoMail(a)
	if list := o.gate.Allowed(); len(list) != 0 {
		t.Errorf("allowed are %+v", list)
	}
}

func TestASenderIsAlwaysAllowed(t *testing.T) {
	t.Parallel()
	o, a := policyOffice(t, asks)
	first, second := o.sendAs(outsider, "one").ID, o.sendAs(outsider, "two").ID
	other := o.sendAs(hub.Sender{Kind: hub.SenderPeer, ID: outsider.ID}, "three").ID
	for _, id := range []a2a.TaskID{first, second, other} {
		o.awaitState(id, a2a.TaskStateAuthRequired)
	}
	o.answer(second, "always")
	read := map[string]bool{}
	for range 2 { // also the one that waited
		_, text, _ := strings.Cut(o.read(a).Text, "\n\n")
		read[text] = true
	}
	if !read["one"] || !read["two"] {
		t.Errorf("the session has read %v", read)
	}
	if now := o.task(first); now.Status.State != a2a.TaskStateWorking || !hub.Permitted(now.Metadata) {
		t.Errorf("the other task is %+v", now.Status)
	}
	o.sendAs(outsider, "four")
	if m := o.read(a); !strings.HasSuffix(m.Text, "four") {
		t.Errorf("the session reads %q", m.Text)
	}
	if s := o.task(other).Status.State; s != a2a.TaskStateAuthRequired {
		t.Errorf("a task of another sender is %s", s)
	}

	o.stop()
	o.start() // it is stored
	list := o.gate.Allowed()
	if len(list) != 1 || list[0].Sender != outsider || len(list[0].ID) != 12 || list[0].Since.IsZero() {
		t.Fatalf("allowed are %+v", list)
	}
	o.await(a.GUID(), hub.Healthy)
	o.sendAs(outsider, "five")
	for m := o.read(a); !strings.HasSuffix(m.Text, "five"); m = o.read(a) { // the others may be given again
		if strings.HasSuffix(m.Text, "three") {
			t.Error("the session has got a task that nobody allowed")
		}
	}
	for _, bad := range []string{"", "x", list[0].ID + "0"} {
		if _, err := o.gate.Revoke(bad); hub.CodeOf(err) != hub.CodeInvalid {
			t.Errorf("revoke %q: %v", bad, err)
		}
	}
	if x, err := o.gate.Revoke(list[0].ID[:4]); err != nil || x.ID != list[0].ID || len(o.gate.Allowed()) != 0 {
		t.Errorf("revoke: %+v, %v", x, err)
	}
	o.awaitState(o.sendAs(outsider, "six").ID, a2a.TaskStateAuthRequired)
}

func TestOnlyTheUserAnswersForASender(t *testing.T) {
	t.Parallel()
	o, a := policyOffice(t, asks)
	id := o.sendAs(outsider, "do it").ID
	o.awaitState(id, a2a.TaskStateAuthRequired)
	for _, from := range []hub.Sender{outsider, local, {Kind: hub.SenderPeer, ID: "k"}, {Kind: hub.SenderProgram, ID: "p"}} {
		if err := o.answerAs(from, id, "always"); hub.CodeOf(err) != hub.CodeUnsupported || !strings.Contains(err.Error(), "nobody else can answer") {
			t.Errorf("%s answers: %v", from, err)
		}
	}
	m := message("always")
	m.TaskID = id
	if _, err := o.hub.Send(t.Context(), hub.SendRequest{Message: m, Delegation: &hub.Delegation{By: "codex"}}); hub.CodeOf(err) != hub.CodeUnsupported {
		t.Errorf("an agent answers: %v", err)
	}
	forged := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewDataPart(map[string]any{"optionId": "maybe", "requestId": "sender-1"}))
	forged.TaskID = id
	if _, err := o.hub.Send(t.Context(), hub.SendRequest{Message: forged}); hub.CodeOf(err) != hub.CodeInvalid {
		t.Errorf("an unknown option: %v", err)
	}
	// The session itself has not got the task: it cannot answer it either.
	if err := a.AnswerTask(t.Context(), answerTo(id, "done")); store.CodeOf(err) != store.ConflictError {
		t.Errorf("the session answers: %v", err)
	}
	if now := o.task(id); now.Status.State != a2a.TaskStateAuthRequired || hub.Permitted(now.Metadata) || len(now.History) != 1 {
		t.Errorf("the task is %+v", now)
	}
	o.hasNoMail(a)
	if _, err := o.hub.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if s := o.task(id).Status.State; s != a2a.TaskStateCanceled {
		t.Errorf("the task is %s", s)
	}
}

func TestTheQuestionAboutASenderOutlivesTheHub(t *testing.T) {
	t.Parallel()
	o, a := policyOffice(t, asks)
	ids := map[string]a2a.TaskID{}
	for _, words := range []string{"allow", "deny", "always", "cancel"} {
		ids[words] = o.sendAs(hub.Sender{Kind: hub.SenderA2A, ID: "192.0.2.7-" + words}, words).ID
		o.awaitState(ids[words], a2a.TaskStateAuthRequired)
	}
	before := o.task(ids["allow"]).Status
	for range 2 {
		o.stop()
		o.start()
	}
	now := o.task(ids["allow"]).Status
	if now.State != a2a.TaskStateAuthRequired || now.Message.ID != before.Message.ID || !now.Timestamp.Equal(*before.Timestamp) {
		t.Errorf("the question is %+v, not %+v", now, before)
	}
	if err := o.answerAs(outsider, ids["allow"], "always"); hub.CodeOf(err) != hub.CodeUnsupported {
		t.Errorf("the sender answers: %v", err)
	}
	for _, words := range []string{"allow", "deny", "always"} {
		o.answer(ids[words], words) // at once, perhaps before it is asked again
	}
	o.awaitState(ids["deny"], a2a.TaskStateRejected)
	if _, err := o.hub.Cancel(t.Context(), ids["cancel"]); err != nil {
		t.Fatal(err)
	}
	read := map[string]bool{}
	for range 2 {
		_, text, _ := strings.Cut(o.read(a).Text, "\n\n")
		read[text] = true
	}
	if !read["allow"] || !read["always"] {
		t.Errorf("the session has read %v", read)
	}
	o.stop()
	o.start() // what was answered is not asked again
	if err := a.AnswerTask(t.Context(), answerTo(ids["allow"], "done")); err != nil {
		t.Fatal(err)
	}
	if end := o.task(ids["allow"]); end.Status.State != a2a.TaskStateCompleted || textOf(end.History[0]) != "allow" {
		t.Errorf("the task is %+v", end)
	}
	if s := o.task(ids["cancel"]).Status.State; s != a2a.TaskStateCanceled {
		t.Errorf("the canceled task is %s", s)
	}
}

// What the configuration says when the hub starts again holds for the questions that are open.
func TestAPolicyThatChangesAnswersTheQuestions(t *testing.T) {
	t.Parallel()
	o, a := policyOffice(t, asks)
	out, in := o.sendAs(outsider, "out").ID, o.sendAs(local, "in").ID
	o.awaitState(out, a2a.TaskStateAuthRequired)
	o.awaitState(in, a2a.TaskStateAuthRequired)
	o.stop()
	o.policy = senders.Policy{Outside: senders.Deny, Clients: senders.Allow}
	o.start()
	o.awaitState(out, a2a.TaskStateRejected)
	if m := o.read(a); m.Text != "in" {
		t.Errorf("the session reads %q", m.Text)
	}
	o.awaitState(in, a2a.TaskStateWorking)
}

func TestQuestionsAboutSendersAreBounded(t *testing.T) {
	t.Parallel()
	o, a := policyOffice(t, asks)
	for range 20 {
		o.awaitState(o.sendAs(outsider, "x").ID, a2a.TaskStateAuthRequired)
	}
	o.awaitState(o.sendAs(outsider, "x").ID, a2a.TaskStateRejected)
	o.hasNoMail(a)
}
