package assignment_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

const guid = "5b1c3a52-7a0e-4c5e-9d1a-0a4a35b0e001"

// clerk is a handler that remembers what it got.
type clerk struct {
	mu       sync.Mutex
	answers  []assignment.Answer
	receipts []string
	changes  int
	fail     error
}

func (c *clerk) Changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
}

func (c *clerk) Receipt(st mail.MessageStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.receipts = append(c.receipts, st.MessageID)
}

func (c *clerk) Answer(_ context.Context, _ string, a assignment.Answer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers = append(c.answers, a)
	return c.fail
}

func (c *clerk) Progress(string, assignment.Progress) error { return c.fail }

func (c *clerk) got() (answers, receipts int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.answers), len(c.receipts)
}

type rig struct {
	net      *nettest.Server
	assigner *assignment.Assigner
	clerk    *clerk
	agent    *agentnet.Agent
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{net: nettest.StartServer(t), clerk: &clerk{}}
	r.assigner = assignment.Open(r.net.Host("office", "ann", "shop").BusConfig, guid, "hub")
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := r.assigner.Serve(ctx, r.clerk); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		serving.Wait()
		if err := r.assigner.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	wait.Eventually(t, "the assigner serves", func() bool { return r.net.Listeners(store.TaskSubject+"*.answer") == 1 })
	r.agent = nettest.Register(t, nettest.Open(t, r.net.Host("office", "ann", "shop")), nettest.Worker("review"))
	return r
}

func TestNoticesAreStoredOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := assignment.Notice{Recipient: r.agent.GUID(), TaskID: "t", Turn: 1, Text: "hello", Metadata: map[string]any{"taskId": "t"}}
	for range 3 {
		if seen, err := r.assigner.Post(t.Context(), n); err != nil || !seen.IsZero() {
			t.Fatalf("%v, %v", seen, err)
		}
	}
	again := n
	again.Again = "x"
	canceled := assignment.Notice{Recipient: n.Recipient, TaskID: "t", Turn: 1, Canceled: true, Text: "over"}
	for _, n := range []assignment.Notice{again, canceled} {
		if _, err := r.assigner.Post(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	list, _, err := r.agent.Read(t.Context(), mail.Selection{})
	if err != nil || len(list) != 3 || list[0].Type != mail.Task || list[2].Type != mail.TaskCanceled || list[0].ID != n.ID() {
		t.Fatalf("got %+v, %v", list, err)
	}
	wait.Eventually(t, "the receipts come", func() bool {
		_, receipts := r.clerk.got()
		return receipts >= 3
	})
	if seen, err := r.assigner.Post(t.Context(), n); err != nil || seen.IsZero() || time.Since(seen) > time.Hour {
		t.Errorf("a notice that was read: %v, %v", seen, err)
	}
	found, err := r.assigner.Sessions(t.Context())
	if err != nil || len(found) != 1 || found[0].GUID != r.agent.GUID() || found[0].Liveness != registry.Live {
		t.Errorf("the sessions are %+v, %v", found, err)
	}
}

func TestUnreadMailAndItsSignsAreKnown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	arrived := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() {
		if err := r.assigner.Follow(ctx, func(guid string) { arrived <- guid }); err != nil {
			t.Error(err)
		}
	})
	defer following.Wait()
	defer cancel()
	wait.Eventually(t, "the mail is followed", func() bool { return r.net.Listeners(store.InboxSubject+"*") > 0 })
	if list, more, err := r.assigner.Waiting(t.Context(), r.agent.GUID(), 10); err != nil || more || len(list) != 0 {
		t.Errorf("before: %+v, %t, %v", list, more, err)
	}
	n := assignment.Notice{Recipient: r.agent.GUID(), TaskID: "t", Turn: 1, Text: "hello", Metadata: map[string]any{"taskId": "t"}}
	if _, err := r.assigner.Post(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if got := <-arrived; got != r.agent.GUID() {
		t.Errorf("mail arrived for %q", got)
	}
	list, _, err := r.assigner.Waiting(t.Context(), r.agent.GUID(), 10)
	if err != nil || len(list) != 1 || list[0].ID != n.ID() {
		t.Fatalf("unread is %+v, %v", list, err)
	}
	at := time.Date(2026, 11, 28, 8, 0, 0, 0, time.UTC)
	if err := r.assigner.Note(t.Context(), list[0], mail.Woken, at); err != nil {
		t.Fatal(err)
	}
	if err := r.assigner.Note(t.Context(), list[0], mail.Woken, at.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	got, err := r.assigner.AttentionOf(t.Context(), list[0])
	if err != nil || !strings.HasPrefix(got.WokenAt, "2026-11-28T08:00:00") || got.ShownAt != "" {
		t.Errorf("the signs are %+v, %v", got, err)
	}
}

func TestNoticesThatCannotBeStored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := assignment.Notice{Recipient: r.agent.GUID(), TaskID: "t", Metadata: map[string]any{"x": func() {}}}
	if _, err := r.assigner.Post(t.Context(), bad); store.CodeOf(err) != store.InternalError {
		t.Errorf("metadata that is no JSON: %v", err)
	}
	unknown := assignment.Notice{Recipient: "00000000-0000-4000-8000-000000000000", TaskID: "t", Text: "x"}
	if _, err := r.assigner.Post(t.Context(), unknown); err != nil { // its inbox is made: the session may come
		t.Error(err)
	}
	big := strings.Repeat("x", 500<<10)
	var err error
	for i := 0; err == nil && i < 30; i++ {
		_, err = r.assigner.Post(t.Context(), assignment.Notice{Recipient: r.agent.GUID(), TaskID: "t", Turn: i, Text: big})
	}
	if store.CodeOf(err) != store.ConflictError || !strings.Contains(err.Error(), "full") {
		t.Errorf("a full inbox: %v", err)
	}
}

func TestErrorsReachTheSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	answer := assignment.Answer{ID: "1", TaskID: "t", Outcome: assignment.Completed, Text: "x"}
	r.clerk.fail = &store.Error{Code: store.NotFoundError, Message: "No.", Remedy: "Stop."}
	err := r.agent.AnswerTask(t.Context(), answer)
	if e, ok := errors.AsType[*store.Error](err); !ok || e.Code != store.NotFoundError || e.Message != "No." || e.Remedy != "Stop." {
		t.Errorf("got %v", err)
	}
	r.clerk.fail = errors.New("secret detail")
	if err := r.agent.AnswerTask(t.Context(), answer); store.CodeOf(err) != store.InternalError || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
	answer.Text = strings.Repeat("x", 100)
	answer.Files = []assignment.File{{Name: "f", Text: strings.Repeat("x", 2<<20)}}
	if err := r.agent.AnswerTask(t.Context(), answer); store.CodeOf(err) != store.ValidationError || !strings.Contains(err.Error(), "the hub accepts") {
		t.Errorf("an answer that is too large: %v", err)
	}
}

// A request may come from any program of the user.
func TestHostileRequestsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b, err := nettest.Dialer(r.net)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	for _, subject := range []string{".answer", ".progress"} {
		for _, body := range []string{"", "{", "[]", `{"id":"1"}`, `{"taskId":"t","outcome":"completed","text":"x"}`, `{"taskId":"t"}`} {
			ask(t, b, store.TaskSubject+r.agent.GUID()+subject, body)
		}
	}
	if answers, _ := r.clerk.got(); answers > 0 {
		t.Errorf("%d answers were accepted", answers)
	}
}

// ask expects a ValidationError.
func ask(t *testing.T, b *bus.Bus, subject, body string) {
	t.Helper()
	m, err := b.Conn().Request(subject, []byte(body), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var reply struct {
		Error struct{ Code, Message, Remedy string }
	}
	if err := json.Unmarshal(m.Data, &reply); err != nil || reply.Error.Code != string(store.ValidationError) || reply.Error.Remedy == "" {
		t.Errorf("%s %q: %s", subject, body, m.Data)
	}
}

func TestChecksOfAnswers(t *testing.T) {
	t.Parallel()
	percent := func(p float64) *float64 { return &p }
	files := func(f ...assignment.File) assignment.Answer {
		return assignment.Answer{TaskID: "t", Outcome: assignment.Completed, Text: "x", Files: f}
	}
	for want, check := range map[string]func() error{
		"The taskId":             assignment.Answer{Outcome: assignment.Completed, Text: "x"}.Check,
		"no outcome":             assignment.Answer{TaskID: "t", Outcome: "done", Text: "x"}.Check,
		"is empty":               assignment.Answer{TaskID: "t", Outcome: assignment.Completed}.Check,
		"says no reason":         assignment.Answer{TaskID: "t", Outcome: assignment.Failed, Data: map[string]any{"a": 1}}.Check,
		"not valid UTF-8":        assignment.Answer{TaskID: "t", Outcome: assignment.Completed, Text: "\xff"}.Check,
		"bytes long":             assignment.Answer{TaskID: "t", Outcome: assignment.Completed, Text: strings.Repeat("x", assignment.MaxText+1)}.Check,
		"files; at most":         files(make([]assignment.File, assignment.MaxFiles+1)...).Check,
		`name "../x"`:            files(assignment.File{Name: "../x"}).Check,
		`name "\u202egpj.exe"`:   files(assignment.File{Name: "\u202egpj.exe"}).Check,
		`name "a\x1b[2J"`:        files(assignment.File{Name: "a\x1b[2J"}).Check,
		"two contents":           files(assignment.File{Name: "x", Text: "x", Base64: "eA=="}).Check,
		"is not text":            files(assignment.File{Name: "x", Text: "\xff"}).Check,
		"is not base64":          files(assignment.File{Name: "x", Base64: "!"}).Check,
		"The taskId is":          assignment.Progress{Text: "x"}.Check,
		"The message is not":     assignment.Progress{TaskID: "t"}.Check,
		"percent are not possib": assignment.Progress{TaskID: "t", Text: "x", Percent: percent(101)}.Check,
	} {
		if err := check(); store.CodeOf(err) != store.ValidationError || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
	if err := files(assignment.File{Name: "x", Text: "x"}, assignment.File{Name: "y", Base64: "eA=="}).Check(); err != nil {
		t.Error(err)
	}
}

// FuzzRequests: whatever a program sends is answered, and nothing invalid is accepted.
func FuzzRequests(f *testing.F) {
	f.Add([]byte(`{"id":"1","taskId":"t","outcome":"completed","text":"x","files":[{"name":"a","base64":"eA=="}],"data":{}}`))
	f.Add([]byte(`{"taskId":"t","message":"x","percent":3}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if a, err := assignment.DecodeAnswer(data); err == nil && (a.Check() != nil || a.ID == "") {
			t.Errorf("accepted %q", data)
		}
		if p, err := assignment.DecodeProgress(data); err == nil && p.Check() != nil {
			t.Errorf("accepted %q", data)
		}
	})
}
