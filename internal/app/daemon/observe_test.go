//go:build unix

package daemon_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/hub/events"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/swarm"
)

func dialHub(t *testing.T, socket string) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// eventsUntil returns the hub's events of some kinds from the last hour on, up to the first that is wanted.
func eventsUntil(t *testing.T, c *client.Client, what string, wanted func(events.Event) bool, kinds ...string) (all []events.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	stream, err := c.Events(ctx, dialect.EventsParams{Since: &dialect.Time{Time: time.Now().Add(-time.Hour)}, Kinds: kinds})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for {
		e, err := stream.Next(ctx)
		if err != nil {
			t.Fatalf("no event that %s: %v in %+v", what, err, all)
		}
		if e.Kind == events.Here {
			continue
		}
		if all = append(all, e); wanted(e) {
			return all
		}
	}
}

// is selects events of a kind about a subject whose data have these values.
func is(kind events.Kind, subject string, data ...string) func(events.Event) bool {
	return func(e events.Event) bool {
		if e.Kind != kind || subject != "" && e.Subject != subject {
			return false
		}
		for i := 0; i < len(data); i += 2 {
			if e.Data[data[i]] != data[i+1] {
				return false
			}
		}
		return true
	}
}

// The hub records mail, work items and dead letters of the agents' network on its bus: who, what and in which state,
// never the content.
func TestMailAndWorkAreEvents(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	r := run(t, mustLoad(t, dir, "http.enabled=false"))
	defer r.end(t)
	shop := membershipsOf(t, dir, "/shop")
	ann, bob := enter(t, shop, "dispatcher"), enter(t, membershipsOf(t, dir, "/blog"), "worker")
	c := dialHub(t, r.info.Socket)
	handle := ""
	wait.Eventually(t, "the hub knows the recipient", func() bool {
		agents, err := c.Agents(t.Context(), false)
		i := slices.IndexFunc(agents, func(a dialect.Agent) bool { return a.GUID == bob.GUID() })
		if err == nil && i >= 0 {
			handle = agents[i].Handle
		}
		return handle != ""
	})
	sent, err := ann.Send(t.Context(), mail.Message{Recipient: bob.GUID(), Text: "a private letter"})
	if err != nil {
		t.Fatal(err)
	}
	letters := eventsUntil(t, c, "is the letter", is(events.MailSent, sent.ID), "mail")
	if e := letters[len(letters)-1]; e.Data["toHandle"] != handle || e.Data["from"] != ann.GUID() || e.Data["to"] != bob.GUID() || e.Data["bytes"] != float64(len("a private letter")) {
		t.Errorf("%+v", e)
	}

	claim := func(task string) *work.Claim {
		t.Helper()
		if _, err := ann.Submit(t.Context(), work.Submission{Capability: "go", Offer: mail.Offer{TaskID: task, Description: "a secret plan"}}); err != nil {
			t.Fatal(err)
		}
		got, err := bob.Claim(t.Context(), nil)
		if err != nil || got == nil {
			t.Fatalf("%+v, %v", got, err)
		}
		return got
	}
	all := letters
	await := func(what string, wanted func(events.Event) bool) { // of an item's states that follow at once the last is sure
		all = append(letters, eventsUntil(t, c, what, wanted, "work", "deadletter")...)
	}
	held := claim("A")
	await("is the claim of A", is(events.WorkState, "A", "state", string(work.Claimed), "queue", "go", "holder", "worker"))
	if err := bob.Complete(t.Context(), "A", held.Token, work.Outcome{Success: true, Summary: "a secret result"}); err != nil {
		t.Fatal(err)
	}
	await("is the end of A", is(events.WorkState, "A", "state", string(work.Completed), "from", "dispatcher"))
	for _, task := range []string{"B", "C"} {
		if _, err := bob.Reject(t.Context(), task, claim(task).Token, "no", true); err != nil {
			t.Fatal(err)
		}
		await("is the dead letter "+task, is(events.DeadLetterAdded, task, "queue", "go"))
	}
	if _, err := ann.RetryDeadLetter(t.Context(), "B", true); err != nil {
		t.Fatal(err)
	}
	await("is the retry of B", is(events.DeadLetterRemoved, "B", "queue", "go"))
	if _, err := ann.DiscardDeadLetter(t.Context(), "C"); err != nil {
		t.Fatal(err)
	}
	await("is the removal of C", is(events.DeadLetterRemoved, "C", "state", string(work.Discarded)))
	noneHas(t, all, "private letter", "secret")
}

// The end of a lease is an event when it is due, without any call of an agent.
func TestEndedLeasesAreEvents(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	r := run(t, mustLoad(t, dir, "http.enabled=false"))
	defer r.end(t)
	a := enter(t, membershipsFor(t, dir, "/shop", time.Second), "worker")
	if _, err := a.Submit(t.Context(), work.Submission{Capability: "go", Offer: mail.Offer{TaskID: "T", Description: "d"}}); err != nil {
		t.Fatal(err)
	}
	c := dialHub(t, r.info.Socket)
	for range store.DefaultMaxAttempts {
		if held, err := a.Claim(t.Context(), nil); err != nil || held == nil {
			t.Fatalf("%+v, %v", held, err)
		}
		eventsUntil(t, c, "is the end of the lease", func(e events.Event) bool {
			return e.Kind == events.WorkState && e.Data["state"] != string(work.Claimed) && e.Data["reason"] == string(work.TimedOut)
		}, "work")
	}
	eventsUntil(t, c, "is the dead letter", is(events.DeadLetterAdded, "T", "queue", "go", "reason", string(work.TimedOut)), "deadletter")
}

// noneHas fails if a text is in one of the events.
func noneHas(t *testing.T, all []events.Event, texts ...string) {
	t.Helper()
	for _, e := range all {
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if strings.Contains(string(line), text) {
				t.Errorf("%q is in %s", text, line)
			}
		}
	}
}

// The hub records messages of channels, changes of documents, swarms and loops, and its agents.
func TestChannelsDocumentsSwarmsAndLoopsAreEvents(t *testing.T) {
	t.Setenv("HOME", t.TempDir()) // the user has no configuration
	project := newDir(t)
	if err := os.WriteFile(filepath.Join(project, mcpconfig.ProjectFile), []byte(`{"namespace":"shop"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, mustLoad(t, newDir(t)))
	defer r.end(t)
	c := dialHub(t, r.info.Socket)
	for _, text := range []string{"the first message", "the second message"} {
		if got := web(t, r.info.HTTP, project, "send_message", map[string]any{"channel": "roadmap", "message": text}); !strings.HasPrefix(got, "Message sent") {
			t.Fatal(got)
		}
	}
	n := 0
	messages := eventsUntil(t, c, "is the second message", func(e events.Event) bool { n++; return n == 2 }, "channel")
	for _, e := range messages {
		if e.Project != "shop" || e.Channel != "roadmap" || e.Data["from"] != "writer" || e.Data["id"] == "" {
			t.Errorf("%+v", e)
		}
	}
	noneHas(t, messages, "first message", "second message")

	// A document that changes often has an event at once and one for what follows.
	for range 3 {
		if _, err := c.EditDocument(t.Context(), "plan", []documents.Edit{{Op: documents.OpText, Path: []string{"t"}, Text: "a draft"}}); err != nil {
			t.Fatal(err)
		}
	}
	n = 0
	changes := eventsUntil(t, c, "is a later change", func(e events.Event) bool { n++; return n == 2 }, "document")
	if changes[0].Subject != "plan" || changes[1].Subject != "plan" {
		t.Errorf("%+v", changes)
	}
	noneHas(t, changes, "draft")

	step := ralph.Step{Time: time.Now(), Kind: ralph.Dispatched, Item: "1"}
	if err := c.LoopStep(t.Context(), "/shop/todo.md", step); err != nil {
		t.Fatal(err)
	}
	eventsUntil(t, c, "is the step", is(events.LoopStep, "/shop/todo.md", "step", string(ralph.Dispatched), "item", "1"), "loop")
	if err := c.LoopStep(t.Context(), "/shop/todo.md", ralph.Step{Time: time.Now(), Kind: ralph.Finished, GivenUp: 2}); err != nil {
		t.Fatal(err)
	}
	eventsUntil(t, c, "says that the loop has failed", is(events.LoopStep, "/shop/todo.md", "step", string(ralph.Finished), "reason", "gave up 2 items"), "loop")

	s, err := c.CreateSwarm(t.Context(), swarm.Plan{TaskDescription: "say it", Agents: []string{"echo"}, SubTasks: []swarm.SubTaskPlan{{ID: "one", Description: "a part"}}})
	if err != nil {
		t.Fatal(err)
	}
	all := eventsUntil(t, c, "is the swarm's end", is(events.SwarmState, s.ID, "state", string(swarm.Completed)), "swarm")
	if !slices.ContainsFunc(all, is(events.SwarmSubTask, s.ID, "subTask", "one", "state", "completed")) {
		t.Errorf("%+v", all)
	}
	eventsUntil(t, c, "is the hub's agent", func(e events.Event) bool { return e.Kind == events.AgentAdded && e.Agent == "echo" }, "agent")
}

// sse is one frame of Server-Sent Events.
type sse struct {
	id    string
	event events.Event
}

// readSSE returns the next frames of GET /events, all up to its end if most is 0.
func readSSE(t *testing.T, url, lastID string, most int) (frames []sse) {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "text/event-stream") {
		body, _ := io.ReadAll(resp.Body) // for the message
		t.Fatalf("HTTP %d, %s: %s", resp.StatusCode, kind, body)
	}
	id := ""
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			id = rest
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		f := sse{id: id}
		if err := json.Unmarshal([]byte(data), &f.event); err != nil || f.event.Position.String() != id {
			t.Fatalf("the id %q of %s, %v", id, data, err)
		}
		if frames = append(frames, f); len(frames) == most {
			break
		}
	}
	return frames
}

// A browser's EventSource that connects again continues after the last event that it has, also at a hub that has
// started again; what it had asked for with after does not count any more.
func TestAnEventSourceContinuesAfterItsLastEvent(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	r := run(t, mustLoad(t, dir))
	defer func() { r.end(t) }()
	const past = "/events?follow=false&since=2026-01-01T00:00:00Z"
	send := func() string {
		c := dialHub(t, r.info.Socket)
		task, err := c.Send(t.Context(), askFor("echo", "hello"))
		if err != nil {
			t.Fatal(err)
		}
		eventsUntil(t, c, "is the task's end", func(e events.Event) bool { return e.Task == task.ID && e.Data["state"] == "completed" }, "task")
		return task.ID
	}
	send()
	all := readSSE(t, r.info.HTTP+past, "", 0)
	if len(all) < 5 || all[0].event.Kind != events.Here {
		t.Fatalf("%+v", all)
	}
	first, middle := all[1].id, all[3].id
	got := readSSE(t, r.info.HTTP+"/events?follow=false&after="+first, middle, 0)
	if diff := cmp.Diff(all[4:], got[1:], cmp.AllowUnexported(sse{}), cmpopts.IgnoreUnexported(events.Event{})); diff != "" || got[0].id != middle || got[0].event.Kind != events.Here {
		t.Errorf("after %s it begins with %+v; (-want, +got):\n%s", middle, got[0], diff)
	}

	seen := readSSE(t, r.info.HTTP+past, "", 3) // the connection is lost
	r.end(t)
	r = run(t, mustLoad(t, dir))
	task := send()
	rest := readSSE(t, r.info.HTTP+past, seen[2].id, 0)
	stored := readSSE(t, r.info.HTTP+past, "", 0)
	stored = stored[:len(rest)+2] // what has happened between the two requests is in the second alone
	if diff := cmp.Diff(stored[1:], append(seen[1:3:3], rest[1:]...), cmp.AllowUnexported(sse{}), cmpopts.IgnoreUnexported(events.Event{})); diff != "" {
		t.Errorf("two connections together (-want, +got):\n%s", diff)
	}
	if !slices.ContainsFunc(rest, func(f sse) bool { return f.event.Task == task }) {
		t.Errorf("the task after the restart is not in %+v", rest)
	}
}

// Whoever may not list the hub's tasks may not read its events and totals either, whatever credential he has.
func TestEventsAreReadByThoseWhoMayListTasks(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef0123456789abcdef"
	r := run(t, mustLoad(t, newDir(t), "http.token="+token))
	defer r.end(t)
	ask := func(method, path, body string, header http.Header) int {
		t.Helper()
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), method, r.info.HTTP+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header.Clone()
		req.Header.Set("Content-Type", "application/json")
		req.Host = header.Get("Host")
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Error(err)
		}
		return resp.StatusCode
	}
	right := "Bearer " + token
	for name, tt := range map[string]struct {
		header http.Header
		want   int
	}{
		"the token":               {http.Header{"Authorization": {right}}, http.StatusOK},
		"no token":                {http.Header{}, http.StatusUnauthorized},
		"a wrong token":           {http.Header{"Authorization": {right + "0"}}, http.StatusUnauthorized},
		"a foreign page":          {http.Header{"Authorization": {right}, "Origin": {"http://evil.example"}}, http.StatusForbidden},
		"a name that leads here":  {http.Header{"Authorization": {right}, "Host": {"evil.example"}}, http.StatusForbidden},
		"a token in another form": {http.Header{"Authorization": {"Basic " + token}}, http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			list := ask("POST", "/", `{"jsonrpc":"2.0","id":1,"method":"`+dialect.MethodTasksList+`"}`, tt.header)
			stream := ask("POST", "/stream", `{"jsonrpc":"2.0","id":1,"method":"`+dialect.MethodEvents+`","params":{"follow":false}}`, tt.header)
			sse := ask("GET", "/events?follow=false", "", tt.header)
			totals := ask("GET", "/totals", "", tt.header)
			if got := []int{list, stream, sse, totals}; !slices.Equal(got, []int{tt.want, tt.want, tt.want, tt.want}) {
				t.Errorf("tasks, hub/events, /events, /totals: HTTP %v, want %d", got, tt.want)
			}
		})
	}
}
