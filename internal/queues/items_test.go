package queues_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/queues"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// newShop is an office whose items are tasks, without workers of the hub.
func newShop(t *testing.T, changes ...func(*office)) *office {
	t.Helper()
	return newOffice(t, append([]func(*office){func(o *office) { o.follow, o.workers = true, nil }}, changes...)...)
}

// hand registers an agent that claims items.
func (o *office) hand() *agentnet.Agent {
	o.t.Helper()
	return nettest.Register(o.t, nettest.Open(o.t, o.config()), nettest.Worker("go"))
}

// queued returns the tasks of the queue, the latest first.
func (o *office) queued() []*a2a.Task {
	o.t.Helper()
	page, err := o.hub.Tasks(o.t.Context(), hub.TaskQuery{AgentID: "queue.go", WithArtifacts: true})
	if err != nil {
		o.t.Fatal(err)
	}
	return page.Tasks
}

// of returns the latest task of an item at its queue, nil if there is none.
func (o *office) of(item string) *a2a.Task {
	o.t.Helper()
	all := o.queued()
	i := slices.IndexFunc(all, func(t *a2a.Task) bool {
		m, _ := t.Metadata[queues.MetaItem].(map[string]any)
		return m["taskId"] == item || string(t.ID) == item
	})
	if i < 0 {
		return nil
	}
	return all[i]
}

func (o *office) awaitOf(item string, state a2a.TaskState) *a2a.Task {
	o.t.Helper()
	wait.Eventually(o.t, "the task of the item "+item+" is "+string(state), func() bool {
		task := o.of(item)
		return task != nil && task.Status.State == state
	})
	return o.of(item)
}

func (o *office) awaitText(item, part string) {
	o.t.Helper()
	wait.Eventually(o.t, "the task of "+item+" says "+part, func() bool {
		task := o.of(item)
		return task != nil && strings.Contains(textOf(task.Status.Message), part)
	})
}

func textOf(m *a2a.Message) string {
	if m == nil || len(m.Parts) == 0 {
		return ""
	}
	return m.Parts[0].Text()
}

func notices(t *a2a.Task) string { return fmt.Sprint(t.Metadata[hub.MetaNotices]) }

func TestAnItemIsATask(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	item := uuid.NewString()
	o.submit(item)
	task := o.awaitOf(item, a2a.TaskStateSubmitted)
	if string(task.ID) != item || textOf(task.History[0]) != "do "+item || len(task.History[0].Parts) != 2 {
		t.Errorf("the task is %+v", task)
	}
	if m := task.Metadata[queues.MetaItem].(map[string]any); m["submitter"] != "boss" || m["capability"] != "go" {
		t.Errorf("it says %v", m)
	}
	info, err := o.hub.Agent("queue.go")
	if err != nil || info.Residence.Kind != hub.KindQueue || info.Own() {
		t.Errorf("the queue is %+v, %v", info, err)
	}
	hand := o.hand()
	c := nettest.Claim(t, hand)
	o.awaitOf(item, a2a.TaskStateWorking)
	o.awaitText(item, "worker-1 works on it: attempt 1 of 3, lease until "+c.LeaseUntil)
	if err := hand.Complete(t.Context(), item, c.Token, work.Outcome{Success: true, Summary: "done", Result: map[string]any{"n": 1}}); err != nil {
		t.Fatal(err)
	}
	task = o.awaitOf(item, a2a.TaskStateCompleted)
	if textOf(task.Status.Message) != "done" || len(task.Artifacts) != 1 || task.Artifacts[0].Parts[0].Data().(map[string]any)["n"] != 1.0 {
		t.Errorf("the task is %+v", task)
	}
	if len(o.queued()) != 1 {
		t.Errorf("there are %d tasks", len(o.queued()))
	}
}

// A session has one name in the directory, which the tasks of items use as well: the handle of the agents' network is that of
// every session of its program.
func TestAnItemsTaskNamesSessionsAsTheDirectoryDoes(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	hand := o.hand()
	session := func(id, handle, guid string) {
		t.Helper()
		a := hub.Agent{Definition: runner.Definition{ID: id, Driver: runner.DriverSession, Limits: runner.Limits{}.WithDefaults()}, Runner: o.agent, Durable: true,
			Residence: hub.Residence{Kind: hub.KindSession, Handle: handle, GUID: guid}}
		if err := o.hub.Register(a); err != nil {
			t.Fatal(err)
		}
	}
	session("claude-shop-2", "reviewer", hand.GUID())
	session("claude-shop", "claude-shop", o.boss.GUID())
	o.submit("A")
	nettest.Claim(t, hand)
	o.awaitText("A", "reviewer works on it: attempt 1 of 3")
	if m := o.of("A").Metadata[queues.MetaItem].(map[string]any); m["submitter"] != "claude-shop" {
		t.Errorf("it says %v", m)
	}
}

func TestAnItemThatIsNotDoneIsAFailedTask(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	o.submit("A")
	hand := o.hand()
	c := nettest.Claim(t, hand)
	if err := hand.Complete(t.Context(), "A", c.Token, work.Outcome{Summary: "impossible"}); err != nil {
		t.Fatal(err)
	}
	if task := o.awaitOf("A", a2a.TaskStateFailed); textOf(task.Status.Message) != "impossible" {
		t.Errorf("the task is %+v", task.Status)
	}
}

// Redelivery, dead letter and retry are states of the task, with their reasons.
func TestFailuresOfAnItemAreShown(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	o.submit("A")
	hand := o.hand()
	for attempt := 1; attempt <= 3; attempt++ {
		c := nettest.Claim(t, hand)
		o.awaitText("A", fmt.Sprintf("attempt %d of 3", attempt))
		if _, err := hand.Reject(t.Context(), "A", c.Token, fmt.Sprintf("no %d", attempt), false); err != nil {
			t.Fatal(err)
		}
		if attempt < 3 {
			wait.Eventually(t, "the redelivery is shown", func() bool { return strings.Contains(notices(o.of("A")), fmt.Sprintf("attempt %d has ended", attempt)) })
		}
	}
	first := o.awaitOf("A", a2a.TaskStateFailed)
	if text := textOf(first.Status.Message); !strings.Contains(text, "dead letter after 3 attempts: no 3") || !strings.Contains(text, "dead-letters --retry A") {
		t.Errorf("it says %q", text)
	}
	if got := notices(first); !strings.Contains(got, "attempt 1 has ended, and the item was queued again: no 1") {
		t.Errorf("the notices are %s", got)
	}
	if _, err := o.boss.RetryDeadLetter(t.Context(), "A", true); err != nil {
		t.Fatal(err)
	}
	second := o.awaitOf("A", a2a.TaskStateSubmitted)
	if second.ID == first.ID || second.ContextID != first.ContextID {
		t.Errorf("the retry is %+v", second)
	}
	nettest.Complete(t, hand, nettest.Claim(t, hand))
	o.awaitOf("A", a2a.TaskStateCompleted)
	if n := len(o.queued()); n != 2 {
		t.Errorf("there are %d tasks", n)
	}
}

func TestALeaseThatEndsIsShown(t *testing.T) {
	t.Parallel()
	o := newShop(t, func(o *office) { o.lease = time.Second })
	o.submit("A")
	hand := o.hand()
	nettest.Claim(t, hand)
	wait.Eventually(t, "the end of the lease", func() bool {
		task := o.of("A")
		return task != nil && strings.Contains(notices(task), "the lease of worker-1 ended")
	})
	if s := o.of("A").Status.State; s != a2a.TaskStateWorking {
		t.Errorf("the task is %s", s)
	}
}

// A task that is sent to a queue is an item.
func TestATaskForAQueueIsAnItem(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	o.submit("A") // so that there is a queue
	o.awaitOf("A", a2a.TaskStateSubmitted)
	sent, err := o.hub.Send(t.Context(), hub.SendRequest{AgentID: "queue.go", Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("review it"))})
	if err != nil {
		t.Fatal(err)
	}
	id := string(sent.ID)
	wait.Eventually(t, "the item", func() bool { _, err := o.boss.Item(t.Context(), id, false); return err == nil })
	hand := o.hand()
	for range 2 {
		c := nettest.Claim(t, hand)
		if c.TaskID == id && (c.Description != "review it" || c.SubmitterHandle != "hub") {
			t.Errorf("the item is %+v", c)
		}
		nettest.Complete(t, hand, c)
	}
	o.awaitOf(id, a2a.TaskStateCompleted)
	o.awaitOf("A", a2a.TaskStateCompleted)
	if n := len(o.queued()); n != 2 {
		t.Errorf("there are %d tasks", n)
	}
}

// Messages to a task that runs are further items of the same task.
func TestAFurtherMessageIsAFurtherItem(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	o.submit("A")
	o.awaitOf("A", a2a.TaskStateSubmitted)
	hand := o.hand()
	nettest.Complete(t, hand, nettest.Claim(t, hand))
	o.awaitOf("A", a2a.TaskStateCompleted)
	sent, err := o.hub.Send(t.Context(), hub.SendRequest{AgentID: "queue.go", Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("first"))})
	if err != nil {
		t.Fatal(err)
	}
	c := nettest.Claim(t, hand)
	more := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("second"))
	more.TaskID = sent.ID
	if _, err := o.hub.Send(t.Context(), hub.SendRequest{Message: more}); err != nil {
		t.Fatal(err)
	}
	nettest.Complete(t, hand, c)
	c = nettest.Claim(t, hand)
	if c.Description != "second" || c.TaskID != string(sent.ID)+".2" {
		t.Errorf("the item is %+v", c)
	}
	nettest.Complete(t, hand, c)
	o.awaitOf(string(sent.ID), a2a.TaskStateCompleted)
	if n := len(o.queued()); n != 2 {
		t.Errorf("there are %d tasks", n)
	}
}

// An item that the network refuses is a task that is rejected.
func TestAQueueRefusesATask(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	o.submit("A")
	o.awaitOf("A", a2a.TaskStateSubmitted)
	sent, err := o.hub.Send(t.Context(), hub.SendRequest{AgentID: "queue.go", Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(strings.Repeat("x", 200<<10)))})
	if err != nil {
		t.Fatal(err)
	}
	o.awaitOf(string(sent.ID), a2a.TaskStateRejected)
}

// A task that is canceled withdraws its item, wherever that is.
func TestACanceledTaskWithdrawsItsItem(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	hand := o.hand()
	o.submit("A")
	c := nettest.Claim(t, hand)
	o.submit("B")
	for item, state := range map[string]a2a.TaskState{"A": a2a.TaskStateWorking, "B": a2a.TaskStateSubmitted} {
		task := o.awaitOf(item, state)
		if _, err := o.hub.Cancel(t.Context(), task.ID); err != nil {
			t.Fatal(err)
		}
		if s := nettest.State(t, o.boss, item); s.State != work.Discarded {
			t.Errorf("%s: %+v", item, s)
		}
	}
	err := hand.Complete(t.Context(), "A", c.Token, work.Outcome{Success: true, Summary: "done"})
	if err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("the holder gets %v", err)
	}
	nettest.NoClaim(t, hand)
	if n := len(o.queued()); n != 2 {
		t.Errorf("there are %d tasks", n)
	}
}

// A task that is canceled as soon as it exists, often before its turn begins, withdraws its item too.
func TestATaskThatIsCanceledAtOnceWithdrawsItsItem(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	for i := range 30 {
		item := "item" + strconv.Itoa(i)
		o.submit(item)
		if _, err := o.hub.Cancel(t.Context(), o.awaitOf(item, a2a.TaskStateSubmitted).ID); err != nil {
			t.Fatal(err)
		}
		if s := nettest.State(t, o.boss, item); s.State != work.Discarded {
			t.Errorf("%s: %+v", item, s)
		}
	}
}

// What happens to items while no hub runs is shown when one runs again, and no item gets a second task.
func TestItemsAreFollowedAfterAStop(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	hand := o.hand()
	for _, item := range []string{"done", "dead", "waits"} {
		o.submit(item)
		o.awaitOf(item, a2a.TaskStateSubmitted)
	}
	sent, err := o.hub.Send(t.Context(), hub.SendRequest{AgentID: "queue.go", Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("sent"))})
	if err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the item", func() bool { _, err := o.boss.Item(t.Context(), string(sent.ID), false); return err == nil })
	o.stop()
	o.submit("new")
	nettest.Complete(t, hand, nettest.Claim(t, hand))
	c := nettest.Claim(t, hand)
	if _, err := hand.Reject(t.Context(), c.TaskID, c.Token, "no", true); err != nil {
		t.Fatal(err)
	}
	o.start()
	o.awaitOf("done", a2a.TaskStateCompleted)
	o.awaitOf("dead", a2a.TaskStateFailed)
	for _, item := range []string{"waits", "new", string(sent.ID)} {
		o.awaitOf(item, a2a.TaskStateSubmitted)
	}
	for range 3 {
		nettest.Complete(t, hand, nettest.Claim(t, hand))
	}
	for _, item := range []string{"waits", "new", string(sent.ID)} {
		o.awaitOf(item, a2a.TaskStateCompleted)
	}
	o.stop()
	o.start()
	o.submit("last")
	o.awaitOf("last", a2a.TaskStateSubmitted)
	if n := len(o.queued()); n != 6 {
		t.Errorf("there are %d tasks", n)
	}
}

// An item that was retried while no hub ran goes on in its open task.
func TestARetryThatTheHubHasNotSeen(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	hand := o.hand()
	o.submit("A")
	o.awaitOf("A", a2a.TaskStateSubmitted)
	o.stop()
	c := nettest.Claim(t, hand)
	if _, err := hand.Reject(t.Context(), "A", c.Token, "no", true); err != nil {
		t.Fatal(err)
	}
	if _, err := o.boss.RetryDeadLetter(t.Context(), "A", true); err != nil {
		t.Fatal(err)
	}
	o.start()
	nettest.Complete(t, hand, nettest.Claim(t, hand))
	o.awaitOf("A", a2a.TaskStateCompleted)
	if n := len(o.queued()); n != 1 {
		t.Errorf("there are %d tasks", n)
	}
}

// An item may have the id of another agent's task, by accident or by intent: neither changes.
func TestAnItemWithTheIDOfATask(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	other, err := o.hub.SendAndWait(t.Context(), hub.SendRequest{AgentID: "codex", Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("x"))})
	if err != nil {
		t.Fatal(err)
	}
	o.submit(string(other.ID))
	task := o.awaitOf(string(other.ID), a2a.TaskStateSubmitted)
	if task.ID == other.ID {
		t.Error("two tasks have one id")
	}
	now, err := o.hub.Task(t.Context(), other.ID, nil)
	if err != nil || now.Status.State != a2a.TaskStateCompleted || len(now.History) != len(other.History) {
		t.Errorf("the other task is %+v, %v", now, err)
	}
	o.stop()
	o.start()
	hand := o.hand()
	nettest.Complete(t, hand, nettest.Claim(t, hand))
	o.awaitOf(string(other.ID), a2a.TaskStateCompleted)
	if n := len(o.queued()); n != 1 {
		t.Errorf("there are %d tasks", n)
	}
}

// The metadata of a message gives nobody another item.
func TestASenderCannotNameAnItem(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	hand := o.hand()
	o.submit("secret")
	c := nettest.Claim(t, hand)
	o.awaitOf("secret", a2a.TaskStateWorking)
	sent, err := o.hub.Send(t.Context(), hub.SendRequest{AgentID: "queue.go", Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("x")),
		Metadata: map[string]any{queues.MetaItem: map[string]any{"taskId": "secret", "generation": 1}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := hand.Complete(t.Context(), "secret", c.Token, work.Outcome{Success: true, Summary: "the secret"}); err != nil {
		t.Fatal(err)
	}
	own := nettest.Claim(t, hand)
	if own.TaskID != string(sent.ID) {
		t.Errorf("the item is %+v", own)
	}
	now, err := o.hub.Task(t.Context(), sent.ID, nil)
	if err != nil || strings.Contains(textOf(now.Status.Message), "secret") {
		t.Errorf("the task is %+v, %v", now, err)
	}
}

// The task of a worker belongs to the item's: who cancels one cancels both.
func TestAWorkersTaskBelongsToItsItem(t *testing.T) {
	t.Parallel()
	o := newOffice(t, func(o *office) { o.follow = true })
	o.agent.hang()
	o.submit("A")
	run := o.awaitTask("A", a2a.TaskStateWorking)
	task := o.awaitOf("A", a2a.TaskStateWorking)
	if from := hub.DelegationOf(run); from == nil || from.Task != task.ID || from.By != "queue.go" {
		t.Errorf("the task is delegated by %+v", from)
	}
	if _, err := o.hub.Cancel(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	o.awaitTask("A", a2a.TaskStateCanceled)
	if s := nettest.State(t, o.boss, "A"); s.State != work.Discarded {
		t.Errorf("%+v", s)
	}
	o.agent.answer("done")
	o.submit("B")
	o.awaitItem("B", work.Completed)
	done := o.awaitOf("B", a2a.TaskStateCompleted)
	var result struct{ Agent, Answer string }
	data, err := json.Marshal(done.Artifacts[0].Parts[0].Data())
	if err != nil || json.Unmarshal(data, &result) != nil || result.Agent != "codex" || result.Answer != "done" {
		t.Errorf("%s, %v", data, err)
	}
}

// A queue with a worker is an agent before anybody has submitted an item.
func TestTheQueueOfAWorkerIsAnAgent(t *testing.T) {
	t.Parallel()
	o := newOffice(t, func(o *office) { o.follow = true })
	wait.Eventually(t, "the queue is an agent", func() bool { return o.hub.HasAgent("queue.go") })
	sent, err := o.hub.Send(t.Context(), hub.SendRequest{AgentID: "queue.go", Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("review it"))})
	if err != nil {
		t.Fatal(err)
	}
	o.awaitOf(string(sent.ID), a2a.TaskStateCompleted)
	long := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(strings.Repeat("x", 300<<10)))
	var refused *hub.Error
	if _, err := o.hub.Send(t.Context(), hub.SendRequest{AgentID: "queue.go", Message: long}); !errors.As(err, &refused) || strings.Contains(refused.Remedy, "maxPrompt") {
		t.Errorf("a text that no configuration allows: %v", err)
	}
}

// A hub that ends at any step of an item runs it in one task, and its own task follows it to the end, never back.
func TestStepsOfAnItemWithItsTask(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"after the claim": true, "after the task, before the item": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &step{ended: make(chan struct{}), before: before}
			o := newOffice(t, func(o *office) {
				o.follow, o.workers[0].Count = true, 1
				o.member = func(m queues.Member) queues.Member { s.Member = m; return s }
			})
			o.submit("A")
			<-s.ended
			o.awaitOf("A", a2a.TaskStateWorking)
			o.stop()
			o.member = nil
			o.start()
			if task := o.of("A"); task == nil || task.Status.State != a2a.TaskStateWorking && task.Status.State != a2a.TaskStateCompleted {
				t.Errorf("after the start the task is %+v", task)
			}
			o.awaitOf("A", a2a.TaskStateCompleted)
			if len(o.tasks("A")) != 1 || len(o.queued()) != 1 || o.agent.count() != 1 {
				t.Errorf("%d runs in %d tasks, %d of the queue", o.agent.count(), len(o.tasks("A")), len(o.queued()))
			}
		})
	}
}

// Queues with long names are agents, too.
func TestLongNamesOfQueues(t *testing.T) {
	t.Parallel()
	o := newShop(t)
	for _, end := range []string{"a", "b"} {
		item := work.Submission{Capability: strings.Repeat("x", 63) + end}
		item.TaskID, item.Description = "in-"+end, "x"
		if _, err := o.boss.Submit(t.Context(), item); err != nil {
			t.Fatal(err)
		}
	}
	wait.Eventually(t, "both queues are agents", func() bool {
		n := 0
		for _, a := range o.hub.Agents() {
			if a.Residence.Kind == hub.KindQueue && a.Queued+a.Running == 1 {
				n++
			}
		}
		return n == 2
	})
}
