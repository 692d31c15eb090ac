package sessions_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/senders"
	"github.com/parleyhub/parley/internal/sessions"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

// office is a hub with its sessions. Its bus stays when it stops, unlike a real hub's.
type office struct {
	t   testing.TB
	dir string
	net *nettest.Server // nil where sessions use the bus of the hub

	policy     senders.Policy // of the next start
	gate       *senders.Gate
	closed     atomic.Pointer[string] // the GUID of a session whose terminal is closed
	durability bus.Durability
	wrap       func(sessions.Assigner) sessions.Assigner // nil for none

	bus      *bus.Bus
	hub      *hub.Hub
	sessions *sessions.Sessions
	assigner *assignment.Assigner
	stop     func()
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{t: t, dir: t.TempDir(), net: nettest.StartServer(t), durability: bus.DurabilityFast}
	o.start()
	return o
}

const hubGUID = "5b1c3a52-7a0e-4c5e-9d1a-0a4a35b0e001"

// start starts the hub, again or for the first time.
func (o *office) start() {
	o.t.Helper()
	b, err := bus.Open(o.t.Context(), bus.Config{DataDir: o.dir, Durability: o.durability})
	if err != nil {
		o.t.Fatal(err)
	}
	o.bus = b
	echo, err := runner.Open(runner.Definition{ID: "codex", Driver: runner.DriverEcho}, runner.Options{})
	if err != nil {
		o.t.Fatal(err)
	}
	o.hub, err = hub.New(o.t.Context(), hub.Config{Bus: b, Agents: []hub.Agent{{Definition: runner.Definition{ID: "codex", Driver: runner.DriverEcho}, Runner: echo}}})
	if err != nil {
		o.t.Fatal(err)
	}
	if o.gate, err = senders.Open(senders.Options{Hub: o.hub, Path: filepath.Join(o.dir, "senders.json"), Policy: o.policy}); err != nil {
		o.t.Fatal(err)
	}
	d := assignment.Open(o.computer().BusConfig, hubGUID, "hub")
	assigner := sessions.Assigner(d)
	if o.wrap != nil {
		assigner = o.wrap(assigner)
	}
	s, err := sessions.Open(sessions.Options{Hub: o.hub, Assigner: assigner, DataDir: o.dir, Gate: o.gate, Closed: func() map[string]time.Time {
		if guid := o.closed.Load(); guid != nil {
			return map[string]time.Time{*guid: {}}
		}
		return nil
	}})
	if err != nil {
		o.t.Fatal(err)
	}
	o.sessions, o.assigner = s, d
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	h := o.hub
	o.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		closing, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(h.Close(closing), d.Close(closing), b.Close(closing)); err != nil {
			o.t.Error(err)
		}
	})
	o.t.Cleanup(o.stop)
}

// computer returns the configuration of the agents' network at the office.
func (o *office) computer() agentnet.Config {
	if o.net != nil {
		return o.net.Host("office", "ann", "shop")
	}
	log := slog.New(slog.DiscardHandler)
	return agentnet.Config{BusConfig: store.Config{Hostname: "office", Username: "ann", ProjectPath: "/home/ann/shop", ProjectID: "0123456789abcdef", Logger: log,
		Dial: func(ctx context.Context) (*bus.Bus, error) {
			return bus.Join(ctx, bus.Config{Name: "office", Logger: log}, func(ctx context.Context) (bus.Grant, error) {
				return o.bus.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
			})
		}}}
}

// session registers a session and waits until it is an agent.
func (o *office) session(r registry.Registration) *agentnet.Agent {
	o.t.Helper()
	network := nettest.Open(o.t, o.computer())
	return o.register(network, r)
}

func (o *office) register(n *agentnet.Network, r registry.Registration) *agentnet.Agent {
	o.t.Helper()
	if r.AgentType == "" {
		r.AgentType = "reviewer"
	}
	r.Scope = registry.ScopeProject
	a := nettest.Register(o.t, n, r)
	o.await(a.GUID(), hub.Healthy)
	return a
}

// await waits until the session with a GUID has a health.
func (o *office) await(guid string, health hub.HealthStatus) {
	o.t.Helper()
	wait.Eventually(o.t, "the session "+guid+" is "+string(health), func() bool {
		info, ok := o.agent(guid)
		return ok && info.Health.Status == health
	})
}

func (o *office) agent(guid string) (hub.AgentInfo, bool) {
	all := o.hub.Agents()
	i := slices.IndexFunc(all, func(a hub.AgentInfo) bool { return a.Residence.GUID == guid })
	if i < 0 {
		return hub.AgentInfo{}, false
	}
	return all[i], true
}

func (o *office) name(a *agentnet.Agent) string {
	o.t.Helper()
	info, ok := o.agent(a.GUID())
	if !ok {
		o.t.Fatalf("the session %s is no agent", a.GUID())
	}
	return info.Definition.ID
}

func message(text string) *a2a.Message {
	return a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))
}

func (o *office) send(agent, text string) a2a.TaskID {
	o.t.Helper()
	task, err := o.hub.Send(o.t.Context(), hub.SendRequest{AgentID: agent, Message: message(text)})
	if err != nil {
		o.t.Fatal(err)
	}
	return task.ID
}

func (o *office) task(id a2a.TaskID) *a2a.Task {
	o.t.Helper()
	task, err := o.hub.Task(o.t.Context(), id, nil)
	if err != nil {
		o.t.Fatal(err)
	}
	return task
}

func (o *office) awaitState(id a2a.TaskID, state a2a.TaskState) *a2a.Task {
	o.t.Helper()
	wait.Eventually(o.t, fmt.Sprintf("the task %s is %s", id, state), func() bool { return o.task(id).Status.State == state })
	return o.task(id)
}

func textOf(m *a2a.Message) string {
	var b strings.Builder
	if m != nil {
		for _, p := range m.Parts {
			b.WriteString(p.Text())
		}
	}
	return b.String()
}

// read waits for one message and reads it.
func (o *office) read(a *agentnet.Agent) mail.Mail {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), 2*time.Minute)
	defer cancel()
	list, _, err := a.Wait(ctx, mail.Selection{Limit: 1})
	if err != nil || len(list) != 1 {
		o.t.Fatalf("read %v, %v", list, err)
	}
	return list[0]
}

func answerTo(id a2a.TaskID, text string) assignment.Answer {
	return assignment.Answer{ID: uuid.NewString(), TaskID: string(id), Outcome: assignment.Completed, Text: text}
}

func TestASessionAnswersATask(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.session(registry.Registration{Handle: "reviewer", Capabilities: []string{"Code review"}})
	info, _ := o.agent(a.GUID())
	if d := info.Definition; d.ID != "reviewer" || d.Name != "reviewer" || len(d.Capabilities) != 1 || d.Capabilities[0].ID != "code-review" {
		t.Errorf("the agent is %+v", d)
	}
	if at := info.Residence; at.Kind != hub.KindSession || at.Computer != "office" || !at.Hidden || info.Own() {
		t.Errorf("it is at %+v", at)
	}
	id := o.send("reviewer", "is this safe?")
	if s := o.task(id).Status.State; s != a2a.TaskStateSubmitted {
		t.Errorf("a task that nobody has got is %s", s)
	}
	sub, err := o.hub.Subscribe(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	m := o.read(a)
	if m.Type != mail.Task || m.Text != "is this safe?" || m.SenderGUID != hubGUID || !strings.Contains(string(m.Metadata), string(id)) ||
		!strings.Contains(string(m.Metadata), "deadline") {
		t.Errorf("the session got %+v", m)
	}
	o.awaitState(id, a2a.TaskStateWorking)
	percent := 40.0
	if err := a.ReportProgress(t.Context(), assignment.Progress{TaskID: string(id), Text: "reading", Percent: &percent}); err != nil {
		t.Fatal(err)
	}
	reported := false
	for !reported {
		ev, err := sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		up, ok := ev.(*a2a.TaskStatusUpdateEvent)
		reported = ok && textOf(up.Status.Message) == "reading" && up.Status.Message.Metadata[hub.MetaProgress] == percent
	}
	answer := answerTo(id, "It is.")
	answer.Files = []assignment.File{{Name: "a.diff", MediaType: "text/x-diff", Text: "+1"}, {Name: "b.bin", Base64: "AAE="}}
	answer.Data = map[string]any{"safe": true}
	if err := a.AnswerTask(t.Context(), answer); err != nil {
		t.Fatal(err)
	}
	end := o.task(id) // at once: the answer was stored
	if end.Status.State != a2a.TaskStateCompleted || textOf(end.Status.Message) != "It is." || len(end.Artifacts) != 3 {
		t.Errorf("the task is %+v", end)
	}
	if part := end.Artifacts[1].Parts[0]; string(part.Raw()) != "\x00\x01" || part.Filename != "b.bin" {
		t.Errorf("the file is %+v", part)
	}
	if err := a.AnswerTask(t.Context(), answer); err != nil {
		t.Errorf("the same answer again: %v", err)
	}
	if err := a.AnswerTask(t.Context(), answerTo(id, "No.")); store.CodeOf(err) != store.ConflictError {
		t.Errorf("another answer: %v", err)
	}
	if err := a.ReportProgress(t.Context(), assignment.Progress{TaskID: string(id), Text: "x"}); !store.IsNotFound(err) {
		t.Errorf("progress of a task that has ended: %v", err)
	}
	if end = o.task(id); textOf(end.Status.Message) != "It is." || len(end.History) != 2 {
		t.Errorf("the task is %+v", end)
	}
}

func TestASessionAsksBack(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.session(registry.Registration{Handle: "reviewer"})
	id := o.send("reviewer", "review it")
	o.read(a)
	question := answerTo(id, "which file?")
	question.Outcome = assignment.InputRequired
	if err := a.AnswerTask(t.Context(), question); err != nil {
		t.Fatal(err)
	}
	if end := o.task(id); end.Status.State != a2a.TaskStateInputRequired || textOf(end.Status.Message) != "which file?" {
		t.Errorf("the task is %+v", end)
	}
	if err := a.AnswerTask(t.Context(), answerTo(id, "I guess")); store.CodeOf(err) != store.ConflictError {
		t.Errorf("an answer to one's own question: %v", err)
	}
	reply := message("main.go")
	reply.TaskID = id
	if _, err := o.hub.Send(t.Context(), hub.SendRequest{Message: reply}); err != nil {
		t.Fatal(err)
	}
	if m := o.read(a); m.Text != "main.go" || !strings.Contains(string(m.Metadata), `"turn":2`) {
		t.Errorf("got %+v", m)
	}
	if err := a.AnswerTask(t.Context(), answerTo(id, "fine")); err != nil {
		t.Fatal(err)
	}
	if end := o.task(id); end.Status.State != a2a.TaskStateCompleted || len(end.History) != 4 {
		t.Errorf("the task is %+v", end)
	}
}

func TestASessionRefuses(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.session(registry.Registration{Handle: "reviewer"})
	for _, outcome := range []assignment.Outcome{assignment.Failed, assignment.Rejected} {
		id := o.send("reviewer", "do it")
		o.read(a)
		no := answerTo(id, "not my job")
		no.Outcome = outcome
		if err := a.AnswerTask(t.Context(), no); err != nil {
			t.Fatal(err)
		}
		// A task that is being worked on cannot be rejected any more.
		if end := o.task(id); end.Status.State != a2a.TaskStateFailed || textOf(end.Status.Message) != "not my job" {
			t.Errorf("%s: the task is %+v", outcome, end.Status)
		}
		if err := a.AnswerTask(t.Context(), no); err != nil {
			t.Errorf("%s: the same answer again: %v", outcome, err)
		}
	}
}

func TestACanceledTaskIsTaken(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.session(registry.Registration{Handle: "reviewer"})
	id := o.send("reviewer", "do it")
	o.read(a)
	if _, err := o.hub.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if m := o.read(a); m.Type != mail.TaskCanceled || !strings.Contains(string(m.Metadata), string(id)) {
		t.Errorf("got %+v", m)
	}
	if err := a.AnswerTask(t.Context(), answerTo(id, "late")); store.CodeOf(err) != store.ConflictError || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("a late answer: %v", err)
	}
	if end := o.task(id); end.Status.State != a2a.TaskStateCanceled {
		t.Errorf("the task is %+v", end.Status)
	}
}

func TestOnlyTheSessionThatWasAskedAnswers(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.session(registry.Registration{Handle: "reviewer"})
	stranger := o.session(registry.Registration{Handle: "stranger", AgentType: "writer"})
	id := o.send("reviewer", "do it")
	o.read(a)
	for _, task := range []a2a.TaskID{id, "none"} {
		if err := stranger.AnswerTask(t.Context(), answerTo(task, "mine")); !store.IsNotFound(err) {
			t.Errorf("a stranger's answer: %v", err)
		}
	}
	if err := stranger.ReportProgress(t.Context(), assignment.Progress{TaskID: string(id), Text: "x"}); !store.IsNotFound(err) {
		t.Errorf("a stranger's progress: %v", err)
	}
	results := make(chan error, 8)
	for i := range cap(results) {
		go func() { results <- a.AnswerTask(context.Background(), answerTo(id, fmt.Sprint("answer ", i))) }()
	}
	stored := 0
	for range cap(results) {
		err := <-results
		if err == nil {
			stored++
		} else if store.CodeOf(err) != store.ConflictError {
			t.Error(err)
		}
	}
	if end := o.task(id); stored != 1 || len(end.History) != 2 {
		t.Errorf("%d answers were stored: %+v", stored, end.History)
	}
}

func TestATaskWaitsForASessionThatIsOffline(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	network := nettest.Open(t, o.net.Host("office", "ann", "shop"))
	a := o.register(network, registry.Registration{Handle: "reviewer"})
	id := o.send("reviewer", "first")
	o.read(a)
	o.awaitState(id, a2a.TaskStateWorking)
	if _, err := a.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.await(a.GUID(), hub.Unhealthy)
	second := o.send("reviewer", "second")
	if left := time.Until(o.hub.Deadline(t.Context(), second)); left > sessions.Deadline || left < sessions.Deadline-time.Hour {
		t.Errorf("the task waits for %s", left)
	}
	wait.Eventually(t, "the sender is told that the task waits, and until when", func() bool {
		metadata := o.task(second).Metadata
		until := o.hub.Deadline(t.Context(), second).UTC().Format("2006-01-02 15:04 UTC")
		return strings.Contains(fmt.Sprint(metadata[hub.MetaNotices]), "the session is offline: the task waits for it, at most until "+until)
	})

	again := o.register(network, registry.Registration{Handle: "reviewer"})
	if again.GUID() != a.GUID() || o.name(again) != "reviewer" {
		t.Fatalf("the session came back as %s, %s", again.GUID(), o.name(again))
	}
	// What the earlier conversation got may be lost with it, so it comes again.
	got := []string{o.read(again).Text, o.read(again).Text}
	slices.Sort(got)
	if !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("got %q", got)
	}
	for _, id := range []a2a.TaskID{id, second} {
		if err := again.AnswerTask(t.Context(), answerTo(id, "done")); err != nil {
			t.Error(err)
		}
		o.awaitState(id, a2a.TaskStateCompleted)
	}
}

func TestTasksGoOnAfterTheHub(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.session(registry.Registration{Handle: "reviewer"})
	seen := o.send("reviewer", "seen")
	o.read(a)
	o.awaitState(seen, a2a.TaskStateWorking)
	unseen := o.send("reviewer", "unseen")
	asked := o.send("reviewer", "asked")
	question := answerTo(asked, "what?")
	question.Outcome = assignment.InputRequired
	if err := a.AnswerTask(t.Context(), question); err != nil {
		t.Fatal(err)
	}
	o.stop()

	// An answer that is given meanwhile waits for the hub.
	answered := make(chan error, 1)
	early := answerTo(seen, "done")
	go func() { answered <- a.AnswerTask(context.Background(), early) }()
	o.start()
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if end := o.task(seen); end.Status.State != a2a.TaskStateCompleted || textOf(end.Status.Message) != "done" {
		t.Errorf("the task is %+v", end.Status)
	}
	if s := o.task(unseen).Status.State; s != a2a.TaskStateSubmitted {
		t.Errorf("a task that nobody has got is %s", s)
	}
	next := func() string { // but for the task that was answered at once, perhaps before it was mail
		text := o.read(a).Text
		if text == "asked" {
			text = o.read(a).Text
		}
		return text
	}
	if text := next(); text != "unseen" {
		t.Errorf("got %q", text)
	}
	reply := message("that")
	reply.TaskID = asked
	if _, err := o.hub.Send(t.Context(), hub.SendRequest{Message: reply}); err != nil {
		t.Fatal(err)
	}
	if text := next(); text != "that" {
		t.Errorf("got %q", text)
	}
	for _, id := range []a2a.TaskID{unseen, asked} {
		if err := a.AnswerTask(t.Context(), answerTo(id, "done")); err != nil {
			t.Error(err)
		}
		o.awaitState(id, a2a.TaskStateCompleted)
	}
	for _, id := range []a2a.TaskID{seen, unseen} { // the session was there all the time
		if notices := fmt.Sprint(o.task(id).Metadata[hub.MetaNotices]); strings.Contains(notices, "offline") {
			t.Errorf("the sender was told %s", notices)
		}
	}
	if err := a.AnswerTask(t.Context(), early); err != nil {
		t.Errorf("the same answer again: %v", err)
	}
}

// A session whose heartbeats are too old after its hub was down registers again: nobody is told that it is offline.
func TestASessionThatReturnsWithItsHubIsNotCalledOffline(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	network := nettest.Open(t, o.net.Host("office", "ann", "shop"))
	a := o.register(network, registry.Registration{Handle: "reviewer"})
	id := o.send("reviewer", "x")
	o.read(a)
	o.awaitState(id, a2a.TaskStateWorking)
	o.stop()
	if _, err := a.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.start()
	wait.Eventually(t, "the registry is read", func() bool { return o.sessions.Refresh(t.Context()) == nil })
	again := o.register(network, registry.Registration{Handle: "reviewer"})
	o.read(again)
	if err := again.AnswerTask(t.Context(), answerTo(id, "done")); err != nil {
		t.Fatal(err)
	}
	o.awaitState(id, a2a.TaskStateCompleted)
	if notices := fmt.Sprint(o.task(id).Metadata[hub.MetaNotices]); strings.Contains(notices, "offline") {
		t.Errorf("the sender was told %s", notices)
	}
}

// Without its hub a session gets an error that says what to do.
func TestAnAnswerWithoutAHub(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.session(registry.Registration{Handle: "reviewer"})
	id := o.send("reviewer", "x")
	o.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := a.AnswerTask(ctx, answerTo(id, "x")); store.CodeOf(err) != store.ConnectionError || !strings.Contains(err.Error(), "again") {
		t.Errorf("got %v", err)
	}
	if err := a.AnswerTask(t.Context(), assignment.Answer{}); store.CodeOf(err) != store.ValidationError {
		t.Errorf("an empty answer: %v", err)
	}
	if err := a.ReportProgress(t.Context(), assignment.Progress{}); store.CodeOf(err) != store.ValidationError {
		t.Errorf("empty progress: %v", err)
	}
}

func TestNamesOfSessions(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	first := o.session(registry.Registration{Handle: "reviewer"})
	second := o.session(registry.Registration{Handle: "reviewer", AgentType: "second"})
	program := o.session(registry.Registration{Handle: "codex", AgentType: "third"})
	if got := []string{o.name(first), o.name(second), o.name(program)}; !slices.Equal(got, []string{"reviewer", "reviewer-2", "codex-2"}) {
		t.Errorf("the names are %q", got)
	}
	public := o.session(registry.Registration{Handle: "helper", AgentType: "fourth", Visibility: store.Public})
	if info, _ := o.agent(public.GUID()); info.Residence.Hidden || !info.Own() {
		t.Errorf("a public session is at %+v", info.Residence)
	}
	hidden := nettest.Register(t, nettest.Open(t, o.net.Host("office", "ann", "shop")),
		registry.Registration{Handle: "secret", AgentType: "fifth", Scope: registry.ScopeUser, Visibility: store.Private})
	if err := first.SetHandle("critic"); err != nil {
		t.Fatal(err)
	}
	if _, err := first.UpdatePresence(t.Context(), registry.Changes{}); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the handle is shown", func() bool {
		info, _ := o.agent(first.GUID())
		return info.Definition.Name == "critic"
	})
	if _, ok := o.agent(hidden.GUID()); ok {
		t.Error("a private session is an agent")
	}
	o.stop()
	o.start()
	for a, want := range map[*agentnet.Agent]string{first: "reviewer", second: "reviewer-2", program: "codex-2"} {
		if got := o.name(a); got != want { // at once: before the registry was read
			t.Errorf("after a restart the name is %s, not %s", got, want)
		}
	}
}

// Sessions that the hub meets at once, as after a start, get a name each.
func TestSessionsThatComeAtOnceGetANameEach(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.stop()
	var guids []string
	for i := range 5 {
		a := nettest.Register(t, nettest.Open(t, o.net.Host("office", "ann", "shop")),
			registry.Registration{Handle: "worker", AgentType: fmt.Sprint("worker", i), Scope: registry.ScopeProject})
		guids = append(guids, a.GUID())
	}
	o.start()
	var names []string
	for _, guid := range guids {
		wait.Eventually(t, "the session is an agent", func() bool { _, ok := o.agent(guid); return ok })
		info, _ := o.agent(guid)
		names = append(names, info.Definition.ID)
	}
	slices.Sort(names)
	if want := []string{"worker", "worker-2", "worker-3", "worker-4", "worker-5"}; !slices.Equal(names, want) {
		t.Errorf("the names are %q", names)
	}
}

func TestPeopleRenameASession(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.session(registry.Registration{Handle: "max", Vendor: "claude"})
	info, _ := o.agent(a.GUID())
	if at := info.Residence; info.Definition.ID != "max" || at.Handle != "max" || at.Folder != "shop" || at.Vendor != "claude" {
		t.Fatalf("the session is %s at %+v", info.Definition.ID, at)
	}
	if err := o.sessions.Rename("max", "anna"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		info, err := o.hub.FindAgent(t.Context(), "anna", "")
		if err != nil || info.Definition.ID != "max" || info.Definition.Name != "anna" {
			t.Fatalf("anna is %s (%s), %v", info.Definition.ID, info.Definition.Name, err)
		}
		o.stop() // it is renamed after a restart, too
		o.start()
	}
	if err := o.sessions.Rename("max", ""); err != nil {
		t.Fatal(err)
	}
	if info, err := o.hub.FindAgent(t.Context(), "max", ""); err != nil || info.Residence.Handle != "max" {
		t.Errorf("after the reset it is called %s, %v", info.Residence.Handle, err)
	}
	if err := o.sessions.Rename("codex", "anna"); hub.CodeOf(err) != hub.CodeUnsupported {
		t.Errorf("a program was renamed: %v", err)
	}
	for _, name := range []string{"Anna", "a b", "-a", "a.b", "a@b", strings.Repeat("a", 65)} {
		if err := o.sessions.Rename("max", name); hub.CodeOf(err) != hub.CodeInvalid {
			t.Errorf("renamed to %q: %v", name, err)
		}
	}
}

func TestASessionThatHasNotNamedItselfIsNamedAfterItsProject(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	n := nettest.Open(t, o.net.Host("office", "ann", "shop"))
	for _, want := range []string{"claude-shop", "claude-shop-2"} {
		a := o.register(n, registry.Registration{AgentType: "claude", Handle: "claude", Vendor: "claude"})
		if info, _ := o.agent(a.GUID()); info.Definition.ID != want || info.Residence.Handle != want {
			t.Errorf("it is %s, called %s; want %s", info.Definition.ID, info.Residence.Handle, want)
		}
	}
}

// A role is a handle, also where it is the type: each project's reviewer is the one that is meant there.
func TestSessionsOfOneRoleAreKeptApartByTheirProjects(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	ids := map[string]string{}
	for _, project := range []string{"shop", "web"} {
		cfg := o.net.Host("office", "ann", project)
		a := o.register(nettest.Open(t, cfg), registry.Registration{AgentType: "reviewer", Handle: "reviewer", Vendor: "claude"})
		ids[project] = o.name(a)
		info, err := o.hub.FindAgent(t.Context(), "reviewer", cfg.ProjectID)
		if err != nil || info.Residence.GUID != a.GUID() {
			t.Errorf("in %s the reviewer is %s, %v", project, info.Definition.ID, err)
		}
	}
	for project, id := range ids {
		if info, err := o.hub.FindAgent(t.Context(), "reviewer."+project, ""); err != nil || info.Definition.ID != id {
			t.Errorf("reviewer.%s is %s, %v; want %s", project, info.Definition.ID, err, id)
		}
	}
	if _, err := o.hub.FindAgent(t.Context(), "reviewer", ""); err == nil || !strings.Contains(err.Error(), "reviewer.shop, reviewer.web") {
		t.Errorf("the reviewer of no project: %v", err)
	}
}

// A hub starts without the names of its sessions, and tells that they are lost.
func TestADamagedFileOfNamesIsNoted(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	for _, text := range []string{"{", `{"version":2}`, `{"version":1,"sessions":[{"guid":"g","name":"../x"}]}`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "sessions.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var noted []statefile.Damage
		_, err := sessions.Open(sessions.Options{Hub: o.hub, DataDir: dir, Damaged: func(d statefile.Damage) { noted = append(noted, d) }})
		if err != nil || len(noted) != 1 || noted[0].Loss == "" {
			t.Errorf("%s: %v, %+v", text, err, noted)
		}
	}
}
