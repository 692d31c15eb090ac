package push_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/push"
	"github.com/parleyhub/parley/internal/hub/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent runs turns that end with the outcome received from next; before that, a turn
// emits n artifacts.
type agent struct {
	next chan runner.OutcomeStatus
	n    int // artifacts per turn
}

func (agent) Probe(context.Context) runner.Probe {
	return runner.Probe{Stage: runner.StageAuthenticated}
}
func (a agent) Open(runner.SessionSpec) (runner.Session, error) { return a, nil }
func (agent) Close(context.Context) error                       { return nil }

func (a agent) Turn(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
	select {
	case status := <-a.next:
		for i := range a.n {
			h.Event(runner.Artifact{ID: fmt.Sprint(i), Parts: []*a2a.Part{a2a.NewTextPart("artifact")}})
		}
		return runner.Outcome{Status: status, Text: "said"}, nil
	case <-ctx.Done():
		return runner.Outcome{Status: runner.OutcomeCanceled}, nil
	}
}

// call is a request that the webhook has received.
type call struct {
	header http.Header
	body   []byte
}

// webhook answers as the test requests, by default with 200, and sends its calls to a
// channel.
type webhook struct {
	*httptest.Server
	calls chan call

	mu      sync.Mutex
	answers []func(http.ResponseWriter)
}

func newWebhook(t *testing.T, answers ...func(http.ResponseWriter)) *webhook {
	w := &webhook{calls: make(chan call, 1000), answers: answers}
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.mu.Lock()
		answer := status(200)
		if len(w.answers) > 0 {
			answer, w.answers = w.answers[0], w.answers[1:]
		}
		w.mu.Unlock()
		defer func() { w.calls <- call{r.Header, body} }()
		answer(rw)
	}))
	t.Cleanup(w.Close)
	return w
}

func status(code int) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { w.WriteHeader(code) }
}

// state decodes the kind and the state of a notification of protocol 1.0.
func (c call) state(t *testing.T) (kind string, state a2a.TaskState) {
	t.Helper()
	var e a2a.StreamResponse
	if err := json.Unmarshal(c.body, &e); err != nil {
		t.Fatalf("%s: %v", c.body, err)
	}
	switch e := e.Event.(type) {
	case *a2a.Task:
		return "task", e.Status.State
	case *a2a.TaskStatusUpdateEvent:
		return "status", e.Status.State
	case *a2a.TaskArtifactUpdateEvent:
		return "artifact", ""
	}
	return "message", ""
}

// until receives calls until one reports a state, and returns them.
func (w *webhook) until(t *testing.T, want a2a.TaskState) []call {
	t.Helper()
	var calls []call
	for c := range w.calls {
		calls = append(calls, c)
		if _, state := c.state(t); state == want {
			return calls
		}
	}
	return nil
}

type rig struct {
	t    *testing.T
	hub  *hub.Hub
	push *push.Service
	next chan runner.OutcomeStatus
	log  *bytes.Buffer // to be read after shut
	shut func()
}

func newRig(t *testing.T, artifacts int, b *bus.Bus, change ...func(*push.Options)) *rig {
	t.Helper()
	r := &rig{t: t, next: make(chan runner.OutcomeStatus), log: &bytes.Buffer{}}
	var err error
	r.hub, err = hub.New(t.Context(), hub.Config{Bus: b, Agents: []hub.Agent{{
		Definition: runner.Definition{ID: "a", Driver: runner.DriverEcho},
		Runner:     agent{r.next, artifacts},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	opts := push.Options{
		Tasks: r.hub, Bus: b, AllowPrivate: true,
		FirstPause: time.Millisecond, MaxPause: 2 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(&lockedWriter{w: r.log}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&opts)
	}
	if r.push, err = push.Open(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	r.hub.OnTurn(r.push.TurnStarted)
	r.shut = sync.OnceFunc(func() {
		r.push.Close()
		if err := r.hub.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.shut)
	return r
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// start starts a task, or continues the task id if it is not empty.
func (r *rig) start(on a2a.TaskID) a2a.TaskID {
	r.t.Helper()
	m := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("go"))
	m.TaskID = on
	task, err := r.hub.Send(r.t.Context(), hub.SendRequest{AgentID: "a", Message: m})
	if err != nil {
		r.t.Fatal(err)
	}
	return task.ID
}

func (r *rig) create(c push.Config) push.Config {
	r.t.Helper()
	got, err := r.push.Create(r.t.Context(), c)
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

func config(task a2a.TaskID, id, url string) push.Config {
	return push.Config{PushConfig: a2a.PushConfig{TaskID: task, ID: id, URL: url}, Version: "1.0"}
}

func openBus(t *testing.T, dir string) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{DataDir: dir, Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func closeBus(t *testing.T, b *bus.Bus) {
	t.Helper()
	if err := b.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestEventsArriveInOrderWithTokenAndCredentials(t *testing.T) {
	r := newRig(t, 3, nil)
	w := newWebhook(t)
	id := r.start("")
	c := config(id, "c", w.URL+"/hook")
	c.Token, c.Auth = "the-token", &a2a.PushAuthInfo{Scheme: "Bearer", Credentials: "the-secret"}
	r.create(c)
	calls := []call{<-w.calls} // the service now follows the task
	r.next <- runner.OutcomeCompleted
	calls = append(calls, w.until(t, a2a.TaskStateCompleted)...)

	var kinds []string
	for _, c := range calls {
		kind, _ := c.state(t)
		kinds = append(kinds, kind)
		h := c.header
		if h.Get("X-A2A-Notification-Token") != "the-token" || h.Get("Authorization") != "Bearer the-secret" || h.Get("Content-Type") != "application/a2a+json" {
			t.Errorf("headers %v", h)
		}
	}
	if all := strings.Join(kinds, " "); kinds[0] != "task" || strings.Count(all, "artifact") < 3 || !strings.HasSuffix(all, "status") {
		t.Errorf("got %s", all)
	}
	r.shut()
	if log := r.log.String(); strings.Contains(log, "the-token") || strings.Contains(log, "the-secret") {
		t.Errorf("a secret is in the log: %s", log)
	}
}

func TestNotificationOfProtocol03IsTheTask(t *testing.T) {
	r := newRig(t, 3, nil)
	w := newWebhook(t)
	id := r.start("")
	c := config(id, "c", w.URL)
	c.Version, c.Token = "0.3", "tok"
	r.create(c)
	r.next <- runner.OutcomeCompleted
	for c := range w.calls {
		var task struct {
			Kind, ID  string
			Artifacts []any
			Status    struct{ State string }
		}
		if err := json.Unmarshal(c.body, &task); err != nil || task.Kind != "task" || task.ID != string(id) {
			t.Fatalf("%s %v", c.body, err)
		}
		if c.header.Get("X-A2A-Notification-Token") != "tok" || c.header.Get("Content-Type") != "application/json" {
			t.Errorf("headers %v", c.header)
		}
		if task.Status.State == "completed" {
			if len(task.Artifacts) < 3 {
				t.Errorf("the last task has %d artifacts", len(task.Artifacts))
			}
			return
		}
	}
}

func TestFailedCallIsRetriedBeforeTheNext(t *testing.T) {
	r := newRig(t, 0, nil)
	retryLater := func(w http.ResponseWriter) { w.Header().Set("Retry-After", "1"); w.WriteHeader(429) }
	w := newWebhook(t, status(500), status(503), retryLater, func(w http.ResponseWriter) { panic(http.ErrAbortHandler) })
	id := r.start("")
	r.create(config(id, "c", w.URL))
	first := <-w.calls
	r.next <- runner.OutcomeCompleted
	repeated := w.until(t, a2a.TaskStateCompleted)
	if len(repeated) < 4 {
		t.Fatalf("%d calls after the first", len(repeated))
	}
	for i, call := range repeated[:4] {
		if !bytes.Equal(call.body, first.body) {
			t.Errorf("retry %d has another body: %s", i+1, call.body)
		}
	}
}

func TestRefusedNotificationIsNotRetried(t *testing.T) {
	for _, code := range []int{400, 401, 404, 302} {
		r := newRig(t, 0, nil)
		w := newWebhook(t, func(w http.ResponseWriter) { w.Header().Set("Location", "/elsewhere"); w.WriteHeader(code) })
		id := r.start("")
		r.create(config(id, "c", w.URL))
		first := <-w.calls
		r.next <- runner.OutcomeCompleted
		for _, c := range w.until(t, a2a.TaskStateCompleted) {
			if bytes.Equal(c.body, first.body) {
				t.Errorf("%d: the refused notification was sent again", code)
			}
		}
		r.shut()
	}
}

func TestWebhookThatAnswersGoneIsNotCalledAgain(t *testing.T) {
	r := newRig(t, 0, nil)
	gone, other := newWebhook(t, status(http.StatusGone)), newWebhook(t)
	id := r.start("")
	r.create(config(id, "a", gone.URL))
	r.create(config(id, "b", other.URL))
	<-gone.calls
	r.next <- runner.OutcomeCompleted
	other.until(t, a2a.TaskStateCompleted)
	r.shut() // all senders have ended
	if n := len(gone.calls); n != 0 {
		t.Errorf("%d further calls", n)
	}
}

func TestInterruptionAndLaterEventsAreReported(t *testing.T) {
	r := newRig(t, 0, nil)
	w := newWebhook(t)
	id := r.start("")
	r.create(config(id, "c", w.URL))
	r.next <- runner.OutcomeInputRequired
	w.until(t, a2a.TaskStateInputRequired)
	r.start(id)
	r.next <- runner.OutcomeCompleted
	w.until(t, a2a.TaskStateCompleted)
}

func TestConfigurationOfAWaitingTaskDoesNotReportItsState(t *testing.T) {
	r := newRig(t, 0, nil)
	w := newWebhook(t)
	id := r.start("")
	r.next <- runner.OutcomeInputRequired
	wait(t, r.hub, id)
	r.create(config(id, "c", w.URL))
	r.start(id)
	r.next <- runner.OutcomeCompleted
	for _, c := range w.until(t, a2a.TaskStateCompleted) {
		if _, state := c.state(t); state == a2a.TaskStateInputRequired {
			t.Errorf("reported again: %s", c.body)
		}
	}
}

// wait follows a task until it has ended or is interrupted.
func wait(t *testing.T, h *hub.Hub, id a2a.TaskID) {
	t.Helper()
	sub, err := h.Subscribe(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if s := sub.Task().Status.State; s.Terminal() || hub.Interrupted(s) {
		return
	}
	for {
		if _, err := sub.Next(t.Context()); err != nil {
			return
		}
	}
}

func TestEndedTaskIsReportedAtOnce(t *testing.T) {
	r := newRig(t, 0, nil)
	w := newWebhook(t)
	id := r.start("")
	r.next <- runner.OutcomeFailed
	wait(t, r.hub, id)
	r.create(config(id, "c", w.URL))
	w.until(t, a2a.TaskStateFailed)
}

// The hub stops before the webhook has accepted the last notification.
func TestEndIsDeliveredAfterARestart(t *testing.T) {
	dir := t.TempDir()
	b := openBus(t, dir)
	r := newRig(t, 0, b)
	refuse := make([]func(http.ResponseWriter), 1000)
	for i := range refuse {
		refuse[i] = status(500)
	}
	w := newWebhook(t, refuse...)
	id := r.start("")
	r.create(config(id, "c", w.URL))
	r.next <- runner.OutcomeCompleted
	<-w.calls
	wait(t, r.hub, id)
	r.shut()
	closeBus(t, b)
	w.mu.Lock()
	w.answers = nil
	w.mu.Unlock()
	for len(w.calls) > 0 {
		<-w.calls
	}

	b = openBus(t, dir)
	defer closeBus(t, b)
	r = newRig(t, 0, b)
	defer r.shut()
	calls := w.until(t, a2a.TaskStateCompleted)
	if kind, _ := calls[len(calls)-1].state(t); kind != "task" {
		t.Errorf("the end was reported as %s", kind)
	}
	if got, err := r.push.Get(t.Context(), id, "c"); err != nil || got.URL != w.URL {
		t.Errorf("%+v %v", got, err)
	}
}

func TestDeliveredNotificationsAreNotRepeatedAfterARestart(t *testing.T) {
	dir := t.TempDir()
	b := openBus(t, dir)
	r := newRig(t, 0, b)
	w := newWebhook(t)
	done, open := r.start(""), r.start("")
	r.create(config(done, "c", w.URL))
	r.create(config(open, "c", w.URL))
	r.next <- runner.OutcomeCompleted
	r.next <- runner.OutcomeCompleted
	w.until(t, a2a.TaskStateCompleted)
	w.until(t, a2a.TaskStateCompleted)
	r.shut() // deliveries are stored by now; others are repeated: at least once
	closeBus(t, b)
	b = openBus(t, dir)
	defer closeBus(t, b)
	r = newRig(t, 0, b)
	id := r.start("")
	r.create(config(id, "c", w.URL))
	r.next <- runner.OutcomeCompleted
	// Repeated notifications of old tasks are snapshots of ended tasks.
	for c := range w.calls {
		kind, state := c.state(t)
		if strings.Contains(string(c.body), string(id)) && state == a2a.TaskStateCompleted {
			break
		}
		if !strings.Contains(string(c.body), string(id)) && (kind != "task" || state != a2a.TaskStateCompleted) {
			t.Errorf("repeated: %s", c.body)
		}
	}
	r.shut()
}

func TestOverflowingQueueIsReplacedByASnapshot(t *testing.T) {
	r := newRig(t, 50, nil, func(o *push.Options) { o.Queue = 4 })
	release := make(chan struct{})
	w := newWebhook(t, func(http.ResponseWriter) { <-release })
	id := r.start("")
	r.create(config(id, "c", w.URL))
	r.next <- runner.OutcomeCompleted
	wait(t, r.hub, id)
	close(release)
	calls := w.until(t, a2a.TaskStateCompleted)
	if len(calls) > 20 {
		t.Errorf("%d calls for a queue of 4", len(calls))
	}
}

func TestConfigurationsCanBeReadListedReplacedAndDeleted(t *testing.T) {
	r := newRig(t, 0, nil)
	id := r.start("")
	ctx := t.Context()
	for _, name := range []string{"b", "a"} {
		r.create(config(id, name, "https://example.com/"+name))
	}
	r.create(config(id, "b", "https://example.com/new"))
	list, err := r.push.List(ctx, id)
	if err != nil || len(list) != 2 || list[0].ID != "a" || list[1].URL != "https://example.com/new" {
		t.Fatalf("%+v %v", list, err)
	}
	if got, err := r.push.Get(ctx, id, ""); err != nil || got.ID != "a" {
		t.Errorf("%+v %v", got, err)
	}
	for range 2 {
		if err := r.push.Delete(ctx, id, "a"); err != nil {
			t.Error(err)
		}
	}
	var pe *push.Error
	if _, err := r.push.Get(ctx, id, "a"); !errors.As(err, &pe) || pe.Code != push.CodeNotFound {
		t.Errorf("%v", err)
	}
	if anonymous := r.create(config(id, "", "https://example.com")); anonymous.ID == "" {
		t.Error("no id was generated")
	}
	for i := range push.MaxPerTask - 2 {
		r.create(config(id, fmt.Sprint("n", i), "https://example.com"))
	}
	if _, err := r.push.Create(ctx, config(id, "more", "https://example.com")); !errors.As(err, &pe) || pe.Code != push.CodeLimit {
		t.Errorf("beyond the limit: %v", err)
	}
	if _, err := r.push.Create(ctx, config("none", "c", "https://example.com")); err == nil {
		t.Error("a configuration without a task was accepted")
	}
}

func TestDeletedConfigurationIsNotNotified(t *testing.T) {
	r := newRig(t, 0, nil)
	deleted, other := newWebhook(t), newWebhook(t)
	id := r.start("")
	r.create(config(id, "a", deleted.URL))
	r.create(config(id, "b", other.URL))
	<-deleted.calls
	if err := r.push.Delete(t.Context(), id, "a"); err != nil {
		t.Fatal(err)
	}
	r.next <- runner.OutcomeCompleted
	other.until(t, a2a.TaskStateCompleted)
	r.shut()
	for range len(deleted.calls) {
		if _, state := (<-deleted.calls).state(t); state == a2a.TaskStateCompleted {
			t.Error("a deleted configuration was notified of the end")
		}
	}
}

func TestDeadWebhookIsAbandoned(t *testing.T) {
	r := newRig(t, 0, nil, func(o *push.Options) { o.GiveUp = time.Millisecond })
	dead := newWebhook(t)
	dead.Close()
	w := newWebhook(t)
	id := r.start("")
	r.create(config(id, "a", dead.URL+"/secret-path"))
	r.create(config(id, "b", w.URL))
	r.next <- runner.OutcomeCompleted
	w.until(t, a2a.TaskStateCompleted)
	r.shut()
	if strings.Contains(r.log.String(), "secret-path") {
		t.Errorf("the URL is in the log: %s", r.log)
	}
}

func TestInvalidConfigurationsAreRefused(t *testing.T) {
	r := newRig(t, 0, nil, func(o *push.Options) { o.AllowPrivate = false })
	id := r.start("")
	set := func(f func(*push.Config)) push.Config {
		c := config(id, "c", "https://example.com/hook")
		f(&c)
		return c
	}
	url := func(u string) push.Config { return set(func(c *push.Config) { c.URL = u }) }
	bad := map[string]push.Config{
		"no url": url(""), "not a URL": url("http://%zz"), "ftp": url("ftp://example.com"), "file": url("file:///etc/passwd"),
		"no host": url("http://"), "credentials": url("https://u:p@example.com"), "long": url("https://example.com/" + strings.Repeat("x", 3000)),
		"loopback": url("http://127.0.0.1/"), "localhost": url("http://localhost:80/"), "localhost.": url("http://LOCALHOST./"), "sub": url("http://a.localhost/"),
		"IPv6 loopback": url("http://[::1]/"), "mapped": url("http://[::ffff:127.0.0.1]/"), "metadata": url("http://169.254.169.254/latest"),
		"private": url("http://10.1.2.3/"), "ULA": url("http://[fd00::1]/"), "any": url("http://0.0.0.0/"), "NAT64": url("http://[64:ff9b::7f00:1]/"),
		"id":       set(func(c *push.Config) { c.ID = "a/b" }),
		"long id":  set(func(c *push.Config) { c.ID = strings.Repeat("x", 200) }),
		"token":    set(func(c *push.Config) { c.Token = "a\r\nX: y" }),
		"big":      set(func(c *push.Config) { c.Token = strings.Repeat("x", 5000) }),
		"scheme":   set(func(c *push.Config) { c.Auth = &a2a.PushAuthInfo{Scheme: "a b", Credentials: "x"} }),
		"no name":  set(func(c *push.Config) { c.Auth = &a2a.PushAuthInfo{Credentials: "x"} }),
		"creds":    set(func(c *push.Config) { c.Auth = &a2a.PushAuthInfo{Scheme: "Basic", Credentials: "x\n"} }),
		"link v6":  url("http://[fe80::1%25eth0]/"),
		"CGNAT":    url("http://100.64.0.1/"),
		"reserved": url("http://240.0.0.1/"),
	}
	for name, c := range bad {
		var pe *push.Error
		if _, err := r.push.Create(t.Context(), c); !errors.As(err, &pe) || pe.Code != push.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(pe.Message, "private network") != strings.Contains(pe.Error(), "push.allowPrivate") {
			t.Errorf("%s: %v does not name the configuration key", name, err)
		}
		if err := r.push.Check(c.PushConfig); err == nil {
			t.Errorf("%s passes the check", name)
		}
	}
	if log := r.log.String(); !strings.Contains(log, "push.allowPrivate") || strings.Contains(log, "latest") {
		t.Errorf("the log does not name the configuration key, or has a URL's path: %s", log)
	}
	good := set(func(c *push.Config) {
		c.Auth = &a2a.PushAuthInfo{Scheme: "Bearer", Credentials: "x"}
		c.URL = "https://8.8.8.8/"
	})
	if err := r.push.Check(good.PushConfig); err != nil {
		t.Error(err)
	}
}

// A host name that resolves to this machine passes the check of the URL; the connection
// is refused by its address.
func TestConnectionsIntoPrivateNetworksAreBlocked(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	client := push.NewClient(false, time.Second)
	defer client.CloseIdleConnections()
	for _, u := range []string{server.URL, strings.Replace(server.URL, "127.0.0.1", "localhost", 1)} {
		if _, err := client.Get(u); !errors.Is(err, push.ErrBlocked) {
			t.Errorf("%s: %v", u, err)
		}
	}
}

func TestPublicAddresses(t *testing.T) {
	for ip, want := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1111": true, "::ffff:8.8.8.8": true,
		"127.0.0.1": false, "::1": false, "10.0.0.1": false, "172.16.0.1": false, "192.168.1.1": false, "169.254.169.254": false,
		"::ffff:10.0.0.1": false, "fe80::1": false, "fc00::1": false, "0.0.0.0": false, "::": false, "224.0.0.1": false, "255.255.255.255": false,
		"64:ff9b::a00:1": false, "2002:7f00:1::": false, "::7f00:1": false, "100.127.0.1": false, "198.18.0.1": false, "2001:db8::1": false,
	} {
		if got := push.Public(netip.MustParseAddr(ip)); got != want {
			t.Errorf("%s: %v", ip, got)
		}
	}
}

func TestKeysOfAnyIDsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		task, id := rapid.String().Draw(t, "task"), rapid.String().Draw(t, "id")
		gotTask, gotID, ok := push.DecodeKey(push.EncodeKey(task, id))
		if !ok || gotTask != task || gotID != id {
			t.Fatalf("%q %q became %q %q", task, id, gotTask, gotID)
		}
	})
}

func FuzzDecodeKey(f *testing.F) {
	f.Add("dGFzaw.aWQ")
	f.Add("..")
	f.Fuzz(func(_ *testing.T, s string) { push.DecodeKey(s) })
}

func TestNotificationIsBounded(t *testing.T) {
	big := a2a.NewTextPart(strings.Repeat("x", 10_000))
	task := &a2a.Task{ID: "t", ContextID: "c", Status: a2a.TaskStatus{State: a2a.TaskStateCompleted}}
	task.Artifacts = []*a2a.Artifact{{ID: "a", Parts: a2a.ContentParts{big}}}
	loud := &a2a.Task{ID: "t", ContextID: "c", Status: a2a.TaskStatus{State: a2a.TaskStateFailed, Message: a2a.NewMessage(a2a.MessageRoleAgent, big)}}
	statusEvent := &a2a.TaskStatusUpdateEvent{TaskID: "t", ContextID: "c", Status: loud.Status}
	chunk := &a2a.TaskArtifactUpdateEvent{TaskID: "t", ContextID: "c", Artifact: task.Artifacts[0]}
	for _, version := range []a2a.ProtocolVersion{"1.0", "0.3"} {
		for _, event := range []a2a.Event{task, loud, statusEvent, chunk} {
			body, _, err := push.Encode(event, version, 1000)
			if err != nil || len(body) > 1000 || !strings.Contains(string(body), "parley.omitted") {
				t.Errorf("%s %T: %d bytes, %v", version, event, len(body), err)
			}
		}
		if body, _, err := push.Encode(task, version, 100_000); err != nil || strings.Contains(string(body), "omitted") {
			t.Errorf("%s: a notification within the limit was shortened: %v", version, err)
		}
	}
}
