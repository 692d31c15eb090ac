package peers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/testbed"
)

// person is a session: it answers a turn when the test says so, in whichever hub it is registered then.
type person struct {
	mu      sync.Mutex
	away    bool
	gated   bool            // its user is asked about the senders
	shown   map[string]bool // the prompts that it has got
	says    map[string]runner.Outcome
	reports map[string]string // progress, by prompt
	files   map[string][]byte // by prompt
	changed wait.Signal
	taken   []string // the prompts whose answers it has given
}

func newPerson() *person {
	return &person{shown: map[string]bool{}, says: map[string]runner.Outcome{}, reports: map[string]string{}, files: map[string][]byte{}}
}

func (p *person) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.changed.Send()
}

func (p *person) show(prompt string) { p.change(func() { p.shown[prompt] = true }) }

func (p *person) answer(prompt, text string) {
	p.change(func() {
		p.says[prompt] = runner.Outcome{Status: runner.OutcomeCompleted, Text: text, MessageID: "answer-to-" + prompt}
	})
}

func (p *person) ask(prompt, question string) {
	p.change(func() {
		p.says[prompt] = runner.Outcome{Status: runner.OutcomeInputRequired, Text: question, MessageID: "question-to-" + prompt}
	})
}

func (p *person) refuse(prompt, why string) {
	p.change(func() { p.says[prompt] = runner.Outcome{Status: runner.OutcomeRejected, Text: why} })
}

// give reports the file with the answer to a prompt.
func (p *person) give(prompt string, h runner.Handler) {
	p.mu.Lock()
	content, has := p.files[prompt]
	p.mu.Unlock()
	if !has {
		return
	}
	part := a2a.NewRawPart(content)
	part.Filename, part.MediaType = "notes.bin", "application/x-notes"
	h.Event(runner.Artifact{ID: "file-1", Name: "notes.bin", Parts: []*a2a.Part{part}, Last: true})
	h.Event(runner.Artifact{ID: "data", Parts: []*a2a.Part{a2a.NewDataPart(map[string]any{"lines": 3.0})}, Last: true})
}

// given returns how often a prompt was answered.
func (p *person) given(prompt string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.taken {
		if x == prompt {
			n++
		}
	}
	return n
}

// Probe implements [runner.Agent].
func (p *person) Probe(context.Context) runner.Probe {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return runner.Probe{Stage: runner.StageMissing}
	}
	return runner.Probe{Stage: runner.StageAuthenticated, AuthKnown: true}
}

// Open implements [runner.Agent].
func (p *person) Open(runner.SessionSpec) (runner.Session, error) { return personTurns{p}, nil }

type personTurns struct{ p *person }

func (personTurns) Close(context.Context) error { return nil }

func (s personTurns) Turn(ctx context.Context, t runner.Turn, h runner.Handler) (runner.Outcome, error) {
	p := s.p
	prompt, perr := runner.PromptText(t.Parts, 1<<20)
	if perr != nil {
		return runner.Outcome{Status: runner.OutcomeFailed}, perr
	}
	p.mu.Lock()
	gated := p.gated
	p.mu.Unlock()
	if gated {
		a, err := h.Permission(ctx, runner.PermissionRequest{ID: "sender", Title: "May they?", Sender: true, Options: []runner.PermissionOption{
			{ID: "allow", Kind: runner.AllowOnce}, {ID: "deny", Kind: runner.RejectOnce},
		}})
		switch {
		case err != nil:
			return runner.Outcome{Status: runner.OutcomeCanceled}, nil
		case a.OptionID != "allow":
			return runner.Outcome{Status: runner.OutcomeRejected, Text: "my user does not want it"}, nil
		}
	}
	reported := ""
	for {
		changed := p.changed.Wait()
		p.mu.Lock()
		out, answered := p.says[prompt]
		shown, report := p.shown[prompt], p.reports[prompt]
		if answered {
			p.taken = append(p.taken, prompt)
		}
		p.mu.Unlock()
		if shown || answered && out.Status != runner.OutcomeRejected {
			h.Event(runner.Shown{})
		}
		if report != reported {
			half := 50.0
			h.Event(runner.Progress{Text: report, Percent: &half})
			reported = report
		}
		if answered {
			p.give(prompt, h)
			return out, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return runner.Outcome{Status: runner.OutcomeCanceled}, nil
		}
	}
}

// site is a hub whose tasks outlive it, with its peers.
type site struct {
	dir  string
	ann  *person // may be nil
	hub  *hub.Hub
	net  *peers.Peers
	stop func()
}

func openSite(t testing.TB, n *testbed.Server, dir string, ann *person) *site {
	t.Helper()
	s := &site{dir: dir, ann: ann}
	s.start(t, n)
	return s
}

// start opens the hub with what it has stored.
func (s *site) start(t testing.TB, n *testbed.Server) {
	t.Helper()
	b, err := bus.Open(context.Background(), bus.Config{DataDir: s.dir, Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(context.Background(), hub.Config{Bus: b, ProbeInterval: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if s.ann != nil {
		tier := 3
		d := runner.Definition{ID: "ann", Name: "ann", Driver: runner.DriverSession, Tier: &tier, Limits: runner.Limits{Run: time.Hour, Concurrency: 10, Queue: 10}}
		at := hub.Residence{Kind: hub.KindSession, Handle: "Ann", Vendor: "claude", Type: "reviewer", Project: "shop", Computer: "laptop"}
		if err := h.Register(hub.Agent{Definition: d, Runner: s.ann, Durable: true, Residence: at}); err != nil {
			t.Fatal(err)
		}
	}
	nc := connect(t, n)
	net, err := peers.Open(context.Background(), peers.Options{Hub: h, DataDir: s.dir, Version: "1", NATS: nc})
	if err != nil {
		t.Fatal(err)
	}
	s.hub, s.net = h, net
	s.stop = sync.OnceFunc(func() {
		if err := errors.Join(h.Close(context.Background()), net.Close(context.Background()), b.Close(context.Background())); err != nil {
			t.Error(err)
		}
		nc.Close()
	})
	t.Cleanup(s.stop)
}

func (s *site) pair(t testing.TB, name string, other *site) {
	t.Helper()
	list, err := identity.OpenAllowList(peers.AllowPath(s.dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := list.Add(identity.Entry{Key: other.net.Key(), Name: name}); err != nil {
		t.Fatal(err)
	}
}

// knows waits until the site has read its list of peers.
func (s *site) knows(t testing.TB, peers int) {
	t.Helper()
	wait.Eventually(t, "the list is read", func() bool { return len(s.net.Status()) == peers })
}

// cut closes all links of the site.
func (s *site) cut() {
	for _, c := range s.net.Node().Channels().Channels() {
		_ = c.Close() // returns nil
	}
}

func (s *site) await(t testing.TB, id string, status hub.HealthStatus) {
	t.Helper()
	wait.Eventually(t, id+" is "+string(status), func() bool {
		info, err := s.hub.Agent(id)
		return err == nil && info.Health.Status == status
	})
}

func (s *site) send(t testing.TB, m *a2a.Message) *a2a.Task {
	t.Helper()
	task, err := s.hub.Send(deadline(t), hub.SendRequest{AgentID: "bob.ann", Message: m})
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func (s *site) awaitState(t testing.TB, id a2a.TaskID, state a2a.TaskState) (task *a2a.Task) {
	t.Helper()
	wait.Eventually(t, "the task is "+string(state), func() bool {
		var err error
		task, err = s.hub.Task(deadline(t), id, nil)
		if err == nil && task.Status.State.Terminal() && task.Status.State != state {
			t.Fatalf("the task is %s: %q", task.Status.State, textOf(task))
		}
		return err == nil && task.Status.State == state
	})
	return task
}

// only returns the only task of the site.
func (s *site) only(t testing.TB) *a2a.Task {
	t.Helper()
	var task *a2a.Task
	wait.Eventually(t, "it has a task", func() bool {
		page, err := s.hub.Tasks(deadline(t), hub.TaskQuery{})
		if err == nil && page.Total > 1 {
			t.Fatalf("%d tasks", page.Total)
		}
		if err != nil || len(page.Tasks) == 0 {
			return false
		}
		task = page.Tasks[0]
		return true
	})
	return task
}

// sites returns two paired hubs, the second with the session ann.
func sites(t testing.TB) (n *testbed.Server, a, b *site, ann *person) {
	t.Helper()
	n, ann = startServer(t), newPerson()
	a, b = openSite(t, n, t.TempDir(), nil), openSite(t, n, t.TempDir(), ann)
	a.pair(t, "bob", b)
	b.pair(t, "alice", a)
	b.knows(t, 1)
	a.await(t, "bob.ann", hub.Healthy)
	return n, a, b, ann
}

// A session of another hub takes a task as one of this hub does: the task is submitted until the session has got it, working
// then, with its progress, and ends with its answer.
func TestASessionOfAnotherHubAnswersATask(t *testing.T) {
	t.Parallel()
	_, a, b, ann := sites(t)
	info, err := a.hub.Agent("bob.ann")
	want := hub.Residence{Kind: hub.KindPeer, Hub: "bob", Handle: "Ann", Type: "reviewer", Vendor: "claude", Project: "shop", Computer: "laptop"}
	if info.Residence != want || err != nil {
		t.Errorf("%+v, %v", info.Residence, err)
	}
	for _, name := range []string{"ann@laptop", "ann@bob", "ann.shop@bob", "bob.ann"} {
		if found, err := a.hub.FindAgent(t.Context(), name, ""); err != nil || found.Definition.ID != "bob.ann" {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
	task := a.send(t, message("look"))
	there := b.only(t)
	if at, err := time.Parse(time.RFC3339, there.Metadata[hub.MetaDeadline].(string)); err != nil || time.Until(at) < 59*time.Minute {
		t.Errorf("the deadline is %v, %v", at, err)
	}
	if now, err := a.hub.Task(deadline(t), task.ID, nil); err != nil || now.Status.State != a2a.TaskStateSubmitted {
		t.Errorf("before the session has got it: %+v, %v", now, err)
	}
	ann.show("look")
	a.awaitState(t, task.ID, a2a.TaskStateWorking)
	ann.change(func() { ann.reports["look"] = "half of it" })
	wait.Eventually(t, "its progress is shown", func() bool {
		now, err := a.hub.Task(deadline(t), task.ID, nil)
		return err == nil && textOf(now) == "half of it" && now.Status.Message.Metadata[hub.MetaProgress] == 50.0
	})
	ann.answer("look", "it is safe")
	if now := a.awaitState(t, task.ID, a2a.TaskStateCompleted); textOf(now) != "it is safe" || now.Status.Message.ID != "answer-to-look" {
		t.Errorf("%q, %+v", textOf(now), now.Status.Message)
	}
	refused := a.send(t, message("no"))
	ann.refuse("no", "I am not allowed to")
	if now := a.awaitState(t, refused.ID, a2a.TaskStateRejected); textOf(now) != "I am not allowed to" {
		t.Errorf("%q", textOf(now))
	}
}

// A task waits at the other hub until its user has permitted the sender, and its answer arrives then.
func TestTheUserOfTheOtherHubIsAskedAboutAPeer(t *testing.T) {
	t.Parallel()
	_, a, b, ann := sites(t)
	ann.change(func() { ann.gated = true })
	for prompt, words := range map[string]string{"look": "allow", "do it": "deny"} {
		task := a.send(t, message(prompt))
		var there *a2a.Task
		wait.Eventually(t, "the other hub asks", func() bool {
			page, err := b.hub.Tasks(deadline(t), hub.TaskQuery{State: a2a.TaskStateAuthRequired})
			if err == nil && len(page.Tasks) == 1 {
				there = page.Tasks[0]
			}
			return there != nil
		})
		if from := hub.SenderOf(there.Metadata); from.Kind != hub.SenderPeer || len(from.ID) != 64 || from.Label != "alice" {
			t.Errorf("the sender is %+v", from)
		}
		wait.Eventually(t, "the sender learns why the task waits", func() bool {
			now, err := a.hub.Task(deadline(t), task.ID, nil)
			if err != nil || now.Status.State != a2a.TaskStateSubmitted {
				t.Errorf("before the answer: %+v, %v", now, err)
			}
			return strings.Contains(fmt.Sprint(now.Metadata[hub.MetaNotices]), "its user is asked")
		})
		a.cut() // and it goes on without the link
		b.cut()
		answer := message(words)
		answer.TaskID = there.ID
		if _, err := b.hub.Send(deadline(t), hub.SendRequest{Message: answer}); err != nil {
			t.Fatal(err)
		}
		if words == "deny" {
			if now := a.awaitState(t, task.ID, a2a.TaskStateRejected); textOf(now) != "my user does not want it" {
				t.Errorf("%q", textOf(now))
			}
			continue
		}
		ann.answer(prompt, "it is safe")
		if now := a.awaitState(t, task.ID, a2a.TaskStateCompleted); textOf(now) != "it is safe" {
			t.Errorf("%q", textOf(now))
		}
	}
}

// A task is answered once, with its own answer, whatever ends while it is in any of its states: the link, this hub or the
// other one.
func TestATaskOfASessionSurvives(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]func(t *testing.T, n *testbed.Server, a, b *site){
		"the link": func(_ *testing.T, _ *testbed.Server, a, b *site) { a.cut(); b.cut() },
		"the asking hub": func(t *testing.T, n *testbed.Server, a, _ *site) {
			a.stop()
			a.start(t, n)
		},
		"the other hub": func(t *testing.T, n *testbed.Server, _, b *site) {
			b.stop()
			b.start(t, n)
		},
		"both hubs": func(t *testing.T, n *testbed.Server, a, b *site) {
			a.stop()
			b.stop()
			a.start(t, n)
			b.start(t, n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, a, b, ann := sites(t)
			task := a.send(t, message("first"))
			there := b.only(t)
			disturb(t, n, a, b)
			ann.show("first")
			a.awaitState(t, task.ID, a2a.TaskStateWorking)
			disturb(t, n, a, b)
			if now, err := a.hub.Task(deadline(t), task.ID, nil); err != nil || now.Status.State != a2a.TaskStateWorking {
				t.Fatalf("a task that was working is %+v, %v", now, err)
			}
			ann.ask("first", "which one?")
			if now := a.awaitState(t, task.ID, a2a.TaskStateInputRequired); textOf(now) != "which one?" {
				t.Errorf("the question is %q", textOf(now))
			}
			disturb(t, n, a, b)
			wait.Eventually(t, "the agent is known", func() bool { _, err := a.hub.Agent("bob.ann"); return err == nil })
			reply := message("second")
			reply.TaskID, reply.ContextID = task.ID, task.ContextID
			a.send(t, reply)
			wait.Eventually(t, "the reply arrives", func() bool {
				now, err := b.hub.Task(deadline(t), there.ID, nil)
				return err == nil && len(now.History) == 3
			})
			disturb(t, n, a, b) // while the question is the state of the task still
			ann.show("second")
			a.awaitState(t, task.ID, a2a.TaskStateWorking)
			disturb(t, n, a, b)
			ann.answer("second", "done")
			disturb(t, n, a, b)
			now := a.awaitState(t, task.ID, a2a.TaskStateCompleted)
			if textOf(now) != "done" || len(now.History) != 4 {
				t.Errorf("%q, with %d messages", textOf(now), len(now.History))
			}
			if b.only(t); ann.given("first") != 1 || ann.given("second") != 1 {
				t.Errorf("it answered %d and %d times", ann.given("first"), ann.given("second"))
			}
		})
	}
}

// A session that is offline is known as such, and a task waits for it and for its hub.
func TestATaskWaitsForASessionThatIsOffline(t *testing.T) {
	t.Parallel()
	n, a, b, ann := sites(t)
	ann.change(func() { ann.away = true })
	a.await(t, "bob.ann", hub.Unhealthy)
	info, err := a.hub.Agent("bob.ann")
	if err != nil || !strings.Contains(info.Health.Message, "offline") {
		t.Errorf("%q, %v", info.Health.Message, err)
	}
	first := a.send(t, message("first"))
	b.only(t)
	b.stop()
	a.stop()
	a.start(t, n) // its tasks wait while the other hub is stopped
	second := a.send(t, message("second"))
	ann.change(func() { ann.away = false })
	b.start(t, n)
	ann.answer("first", "one")
	ann.answer("second", "two")
	for id, want := range map[a2a.TaskID]string{first.ID: "one", second.ID: "two"} {
		if now := a.awaitState(t, id, a2a.TaskStateCompleted); textOf(now) != want {
			t.Errorf("%q, want %q", textOf(now), want)
		}
	}
}

// A session is known as what it is while its hub cannot be reached, also after a restart of this hub, for a day; it is forgotten within minutes
// if its hub can be reached and has it no more.
func TestASessionIsKnownWhileItsHubIsAway(t *testing.T) {
	t.Parallel()
	n, a, b, _ := sites(t)
	want, err := a.hub.Agent("bob.ann")
	if err != nil {
		t.Fatal(err)
	}
	want.Residence.Offline = true
	c := openSite(t, n, t.TempDir(), newPerson())
	a.pair(t, "carol", c)
	c.pair(t, "alice", a)
	a.knows(t, 2)
	a.await(t, "carol.ann", hub.Healthy)
	b.stop()
	path := filepath.Join(a.dir, "peer-sessions.json")
	// restart restarts this hub, which takes the session's hub to have been away for a time.
	restart := func(away time.Duration) {
		t.Helper()
		a.stop()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		since := regexp.MustCompile(`("id":"bob.ann"[^}]*?)(,"since":"[^"]*")?\}`)
		data = since.ReplaceAll(data, fmt.Appendf(nil, `$1,"since":%q}`, time.Now().Add(-away).UTC().Format(time.RFC3339)))
		_, fields, _ := bytes.Cut(data, []byte(`",`)) // without its checksum, as former programs wrote it
		if err := os.WriteFile(path, append([]byte("{"), fields...), 0o600); err != nil {
			t.Fatal(err)
		}
		a.start(t, n)
	}
	kept := func() bool {
		data, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(data), "bob.ann")
	}
	restart(time.Hour)
	a.await(t, "carol.ann", hub.Healthy) // the agents were compared with the cards by then
	info, err := a.hub.Agent("bob.ann")
	if err != nil || info.Residence != want.Residence || info.State != hub.AgentOffline || !kept() {
		t.Errorf("%+v, %v, %v", info.Residence, info.State, err)
	}
	if found, err := a.hub.FindAgent(t.Context(), "ann@bob", ""); err != nil || found.Definition.ID != "bob.ann" {
		t.Errorf("%+v, %v", found, err)
	}
	b.ann = nil
	b.start(t, n)
	wait.Eventually(t, "it is forgotten, since its hub has it no more", func() bool {
		_, err := a.hub.Agent("bob.ann")
		return err != nil && !kept()
	})
}

// The key of a request is the sending hub's: another hub that uses the same one starts a task of its own.
func TestKeysOfOtherHubs(t *testing.T) {
	t.Parallel()
	n, a, b, ann := sites(t)
	c := openSite(t, n, t.TempDir(), nil)
	c.pair(t, "bob", b)
	b.pair(t, "carol", c)
	b.knows(t, 2)
	c.await(t, "bob.ann", hub.Healthy)
	ids := make(map[*site]a2a.TaskID)
	for from, text := range map[*site]string{a: "of a", c: "of c"} {
		m := message(text)
		m.Metadata = map[string]any{hub.MetaOnce: "the same"}
		ids[from] = from.send(t, m).ID
	}
	if ids[a] != ids[c] {
		t.Fatalf("the hubs send other keys: %s, %s", ids[a], ids[c])
	}
	ann.answer("of a", "for a")
	ann.answer("of c", "for c")
	for from, want := range map[*site]string{a: "for a", c: "for c"} {
		if now := from.awaitState(t, ids[from], a2a.TaskStateCompleted); textOf(now) != want {
			t.Errorf("%q, want %q", textOf(now), want)
		}
	}
}

// A task that is canceled while its hub is away is canceled there when it is back, also after a restart of this hub.
func TestACancellationReachesAHubThatWasAway(t *testing.T) {
	t.Parallel()
	n, a, b, ann := sites(t)
	first, second := a.send(t, message("first")), a.send(t, message("second"))
	there := make(map[string]a2a.TaskID)
	wait.Eventually(t, "the tasks are there", func() bool {
		page, err := b.hub.Tasks(deadline(t), hub.TaskQuery{})
		for _, task := range page.Tasks {
			there[task.History[0].Parts[0].Text()] = task.ID
		}
		return err == nil && len(page.Tasks) == 2
	})
	b.stop()
	if _, err := a.hub.Cancel(deadline(t), first.ID); err != nil {
		t.Fatal(err)
	}
	a.awaitState(t, first.ID, a2a.TaskStateCanceled)
	a.stop()
	a.start(t, n)
	b.start(t, n)
	b.awaitState(t, there["first"], a2a.TaskStateCanceled)
	ann.answer("first", "too late")
	ann.answer("second", "in time")
	if now := a.awaitState(t, second.ID, a2a.TaskStateCompleted); textOf(now) != "in time" {
		t.Errorf("%q", textOf(now))
	}
	wait.Eventually(t, "nothing is left to repeat", func() bool {
		data, err := os.ReadFile(filepath.Join(a.dir, "peer-cancellations.json"))
		return err == nil && strings.Contains(string(data), `"entries":[]`)
	})
}

// A list of the hub's that is damaged is noted, with what was lost, and keeps no hub from its peers.
func TestADamagedList(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	for _, name := range []string{"peer-sessions.json", "peer-cancellations.json"} {
		for _, content := range []string{"{", `{"version":9}`} {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			nc := connect(t, n)
			h, err := hub.New(t.Context(), hub.Config{})
			if err != nil {
				t.Fatal(err)
			}
			var noted []statefile.Damage
			p, err := peers.Open(t.Context(), peers.Options{Hub: h, DataDir: dir, NATS: nc, Damaged: func(d statefile.Damage) { noted = append(noted, d) }})
			if err != nil {
				t.Fatal(err)
			}
			if len(noted) != 1 || filepath.Base(noted[0].Path) != name || noted[0].Loss == "" {
				t.Errorf("%s with %s: %+v", name, content, noted)
			}
			if err := errors.Join(h.Close(t.Context()), p.Close(t.Context())); err != nil {
				t.Error(err)
			}
			nc.Close()
		}
	}
}

// A line of the paired hubs that cannot be read, as after a flipped bit, keeps no hub from its other peers.
func TestALineThatIsNoPairedHub(t *testing.T) {
	t.Parallel()
	nc, dir := connect(t, startServer(t)), t.TempDir()
	bob := identity.Generate().Public()
	if err := os.WriteFile(peers.AllowPath(dir), []byte("no key\n"+bob.String()+" bob\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(t.Context(), hub.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	p, err := peers.Open(t.Context(), peers.Options{Hub: h, DataDir: dir, NATS: nc, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if hubs := p.Status(); len(hubs) != 1 || hubs[0].Name != "bob" {
		t.Errorf("paired are %+v", hubs)
	}
	if err := errors.Join(h.Close(t.Context()), p.Close(t.Context())); err != nil {
		t.Error(err)
	}
	nc.Close()
	if !strings.Contains(log.String(), "line 1") {
		t.Errorf("the log says %q", log.String())
	}
}

// Files and data come with the answer, also over a new link, once.
func TestFilesOfASession(t *testing.T) {
	t.Parallel()
	_, a, b, ann := sites(t)
	for prompt, content := range map[string][]byte{
		"small": []byte("x"), "empty": {}, "large": bytes.Repeat([]byte("0123456789"), 60_000), "too large": make([]byte, 17<<20),
	} {
		task := a.send(t, message(prompt))
		wait.Eventually(t, "it arrives", func() bool {
			page, err := b.hub.Tasks(deadline(t), hub.TaskQuery{})
			return err == nil && len(page.Tasks) > 0 && page.Tasks[0].History[0].Parts[0].Text() == prompt
		})
		a.cut()
		ann.change(func() { ann.files[prompt] = content })
		ann.answer(prompt, "here")
		now := a.awaitState(t, task.ID, a2a.TaskStateCompleted)
		var got []*a2a.Part
		for _, artifact := range now.Artifacts {
			got = append(got, artifact.Parts...)
		}
		if prompt == "too large" {
			if notices := fmt.Sprint(now.Metadata[hub.MetaNotices]); len(got) != 1 || !strings.Contains(notices, "notes.bin stays at the other hub") {
				t.Errorf("%d parts, %s", len(got), notices)
			}
			continue
		}
		if len(got) != 2 || got[0].Filename != "notes.bin" || got[0].MediaType != "application/x-notes" || !bytes.Equal(got[0].Raw(), content) {
			t.Errorf("%s: %d parts", prompt, len(got))
		}
	}
}
