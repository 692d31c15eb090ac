package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// New messages are those since the session started, last read or last waited, except its
// own.
func TestWaitReturnsNewMessages(t *testing.T) {
	n := startServer(t)
	p := openProject(t, configOf("news", planning()...), n.dial)
	early := join(t, p).named("early")
	early.send("planning", "before the other came")

	a, b := join(t, p).named("a"), join(t, p).named("b")
	b.send("planning", "one")
	b.send("review", "two\nlines")
	a.send("planning", "my own")
	want := "New messages from #planning:\n\n[TIME] **b**: one\n\nNew messages from #review:\n\n[TIME] **b**: two\n    lines"
	c := a.must("wait_for_messages", nil)
	if got := timeless(c.text); got != want || c.content["timedOut"] != false || c.content["more"] != false {
		t.Errorf("got %s %v", got, c.content)
	}
	if c := a.must("wait_for_messages", map[string]any{"timeout_seconds": 1}); c.text != "No new messages in #planning, #implementation, #review for 1 seconds. Call wait_for_messages again to go on waiting." ||
		c.content["timedOut"] != true {
		t.Error(c.text)
	}
	b.send("planning", "three")
	a.read("planning")
	if c := a.must("wait_for_messages", map[string]any{"timeout_seconds": 1, "channels": []string{"planning"}}); c.content["timedOut"] != true {
		t.Errorf("messages that were read are new again: %s", c.text)
	}
	b.send("review", "four")
	if c := a.must("wait_for_messages", map[string]any{"channels": []string{"review"}}); !strings.Contains(c.text, "four") {
		t.Error(c.text)
	}
	if c := b.must("wait_for_messages", nil); !strings.Contains(c.text, "my own") || strings.Contains(c.text, "three") {
		t.Errorf("b sees %s", c.text)
	}
}

func TestASendEndsAWait(t *testing.T) {
	n := startServer(t)
	p := openProject(t, configOf("woken"), n.dial)
	a := join(t, p).named("a")
	b := join(t, openProject(t, configOf("woken"), n.dial)).named("b") // another process
	for i := range 20 {
		woken := make(chan called)
		go func() { woken <- a.call("wait_for_messages", nil) }()
		text := fmt.Sprintf("message %d", i)
		b.send("errors", text)
		if c := <-woken; c.isError || !strings.Contains(c.text, text) {
			t.Fatal(c.text)
		}
	}
}

// The size of a result is bounded; the next call returns the next messages, and none is
// lost.
func TestManyNewMessagesAreReturnedInParts(t *testing.T) {
	p := openProject(t, configOf("parts"), startServer(t).dial)
	a, b := join(t, p).named("a"), join(t, p).named("b")
	const messages = 150
	for i := range messages {
		b.send("roadmap", fmt.Sprintf("<%d> %s", i, strings.Repeat("x", 10_000)))
	}
	next, parts := 0, 0
	for next < messages {
		c := a.must("wait_for_messages", map[string]any{"timeout_seconds": 5})
		parts++
		for _, m := range c.content["messages"].([]any) {
			if text := m.(map[string]any)["message"].(string); !strings.HasPrefix(text, fmt.Sprintf("<%d> ", next)) {
				t.Fatalf("want message %d, got %.20s", next, text)
			}
			next++
		}
		if len(c.text) > 300_000 {
			t.Errorf("%d bytes in one answer", len(c.text))
		}
	}
	if parts < 5 {
		t.Errorf("the messages were returned in %d results", parts)
	}
}

// REQ-ERROR-002: clients show models either the text or the structured content, so that both name the channels that could
// not be read, each with its own reason.
func TestAWaitNamesTheChannelsThatItCouldNotRead(t *testing.T) {
	n := startServer(t)
	b, err := n.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close(t.Context()) }()
	for _, channel := range []string{"ROADMAP", "ERRORS"} {
		if _, err := b.EnsureStream(t.Context(), jetstream.StreamConfig{Name: "unread_" + channel, Subjects: []string{"unread." + strings.ToLower(channel)}}); err != nil {
			t.Fatal(err)
		}
	}
	c := join(t, openProject(t, configOf("unread"), n.dial)).named("a").must("wait_for_messages", map[string]any{"timeout_seconds": 1})
	found := 0
	for _, u := range c.content["unread"].([]any) {
		channel, problem := u.(map[string]any)["channel"].(string), u.(map[string]any)["problem"].(string)
		found++
		if want := "unread_" + strings.ToUpper(channel); !strings.Contains(problem, want) || !strings.Contains(c.text, "#"+channel+" cannot be read: "+problem) {
			t.Errorf("%s: %s\n%s", channel, problem, c.text)
		}
	}
	if found != 2 || !strings.HasPrefix(c.text, "No new messages in #parallel-work for") {
		t.Errorf("%d channels: %s", found, c.text)
	}
}

func TestAWaitSendsProgress(t *testing.T) {
	mcpserver.ReportEvery(t, 10*time.Millisecond)
	p := openProject(t, configOf("progress"), startServer(t).dial)
	w := connect(t, p).initialized()
	w.write(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait_for_messages","arguments":{"timeout_seconds":1},"_meta":{"progressToken":"p"}}}`)
	if line := string(w.readLine()); !strings.Contains(line, "notifications/progress") || !strings.Contains(line, `"total":1`) {
		t.Error(line)
	}
	for {
		a := w.readAnswer()
		if string(a.ID) == "1" {
			break
		}
		if a.Method != "notifications/progress" {
			t.Fatalf("got %+v", a)
		}
	}
	w.end()
}

var down = &bus.Error{Code: bus.CodeNotRunning, Message: "no NATS server is running at nats://localhost:4222", Remedy: "start it (nats-server -js) or correct the URL"}

// REQ-ERROR-002, REQ-ERROR-007, REQ-ERROR-008, REQ-TOOL-022, REQ-REL-003,
// REQ-TEST-008, UC-001: without the bus the server answers calls that
// do not need it, returns errors with a remedy for others, and queues messages, which it
// sends when the bus is available.
func TestTheServerWorksBeforeTheBusIsAvailable(t *testing.T) {
	n := startServer(t)
	up := make(chan struct{})
	p := openProject(t, configOf("before", planning()...), func(ctx context.Context) (*bus.Bus, error) {
		select {
		case <-up:
			return n.dial(ctx)
		default:
			return nil, down
		}
	})
	a := subscriber(t, p)
	if tools, err := a.session.ListTools(t.Context(), nil); err != nil || len(tools.Tools) != 6 {
		t.Fatal(tools, err)
	}
	a.named("early")
	if got := a.must("list_channels", nil).text; !strings.Contains(got, "planning") {
		t.Error(got)
	}
	c := a.must("send_message", map[string]any{"channel": "planning", "message": "queued one"})
	if problem, _ := c.content["problem"].(string); !strings.Contains(c.text, "is queued") || c.content["queued"] != true ||
		!strings.Contains(problem, "nats://localhost:4222") || !strings.Contains(problem, "nats-server -js") {
		t.Error(c.text)
	}
	for _, tool := range []string{"read_messages", "wait_for_messages"} {
		arguments := map[string]any{"channel": "planning"}
		if tool == "wait_for_messages" {
			arguments = map[string]any{"timeout_seconds": 1}
		}
		if c := a.call(tool, arguments); !c.isError || !strings.HasPrefix(c.text, "ConnectionError: No NATS server is running at nats://localhost:4222.") ||
			!strings.Contains(c.text, "nats-server -js") {
			t.Errorf("%s: %s", tool, c.text)
		}
	}
	if _, err := a.session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "parley://channels/planning"}); err == nil || !strings.Contains(err.Error(), "nats-server -js") {
		t.Errorf("a resource: %v", err)
	}
	if err := a.session.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "parley://channels/planning"}); err != nil {
		t.Fatal(err)
	}
	close(up)
	if got := <-a.updated; got != "parley://channels/planning" {
		t.Error(got)
	}
	if c := a.must("wait_for_messages", map[string]any{"timeout_seconds": 1}); c.content["timedOut"] != true {
		t.Errorf("the agent's own message is new: %s", c.text)
	}
	if got := timeless(a.read("planning")); got != "Messages from #planning:\n\n[TIME] **early**: queued one" {
		t.Error(got)
	}
}

// An explicit zero differs from a missing argument, and text that is not UTF-8 is refused.
func TestZeroAndInvalidUTF8ArgumentsAreRefused(t *testing.T) {
	n := startServer(t)
	p := openProject(t, configOf("zero"), n.dial)
	w := connect(t, p).initialized()
	id := 0
	for arguments, want := range map[string]string{
		`"read_messages","arguments":{"channel":"roadmap","limit":0}`:                    `The argument \"limit\" must be at least 1.`,
		`"read_messages","arguments":{"channel":"roadmap","limit":-0}`:                   `The argument \"limit\" must be at least 1.`,
		`"wait_for_messages","arguments":{"timeout_seconds":0}`:                          `The argument \"timeout_seconds\" must be at least 1.`,
		`"send_message","arguments":{"channel":"roadmap","message":"caf` + "\xe9" + `"}`: `The arguments are not valid UTF-8.`,
	} {
		id++
		w.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%s}}`, id, arguments))
		if got := string(w.readResult(fmt.Sprint(id))); !strings.Contains(got, "ValidationError: ") || !strings.Contains(got, want) {
			t.Errorf("%q: %s", arguments, got)
		}
	}
	w.end()
}

func TestAChannelNamedTwiceCountsOnce(t *testing.T) {
	n := startServer(t)
	a := join(t, openProject(t, configOf("twice"), n.dial))
	c := a.must("wait_for_messages", map[string]any{"timeout_seconds": 1, "channels": []string{"roadmap", "errors", "roadmap"}})
	if want := "No new messages in #roadmap, #errors for 1 seconds."; !strings.HasPrefix(c.text, want) {
		t.Error(c.text)
	}
}

// The first calls of a session wait for the first attempt to connect to the bus, which
// may start the hub.
func TestTheFirstCallWaitsForTheBus(t *testing.T) {
	n := startServer(t)
	asked, dial := make(chan struct{}), make(chan struct{})
	p := openProject(t, configOf("first"), func(ctx context.Context) (*bus.Bus, error) {
		close(asked)
		<-dial
		return n.dial(ctx)
	})
	a := join(t, p)
	<-asked
	done := make(chan called)
	go func() {
		a.call("set_handle", map[string]any{"handle": "a"})
		done <- a.call("send_message", map[string]any{"channel": "roadmap", "message": "x"})
	}()
	close(dial)
	if c := <-done; c.text != "Message sent to #roadmap by a" {
		t.Error(c.text)
	}
}

// REQ-REL-001, REQ-REL-003: an outage in the middle.
func TestMessagesSentDuringAnOutageAreStoredOnceInOrder(t *testing.T) {
	n := startServer(t)
	p := openProject(t, configOf("outage"), n.dial)
	a, b := join(t, p).named("a"), join(t, p).named("b")
	a.send("roadmap", "0")
	n.Stop()
	for i := 1; i < 10; i++ {
		a.send("roadmap", fmt.Sprint(i))
	}
	n.Start()
	next := 0
	for next < 10 {
		c := b.must("wait_for_messages", map[string]any{"channels": []string{"roadmap"}})
		for _, m := range c.content["messages"].([]any) {
			if got := m.(map[string]any)["message"]; got != fmt.Sprint(next) {
				t.Fatalf("want %d, got %v", next, got)
			}
			next++
		}
	}
}

// REQ-REL-009
func TestShutdownStoresQueuedMessages(t *testing.T) {
	n := startServer(t)
	reached := make(chan struct{})
	p := openProject(t, configOf("flush"), func(ctx context.Context) (*bus.Bus, error) {
		select {
		case <-reached:
			return n.dial(ctx)
		default:
			return nil, &bus.Error{Code: bus.CodeNotRunning, Message: "not yet"}
		}
	})
	a := subscriber(t, p).named("a")
	for i := range 100 {
		a.send("roadmap", fmt.Sprint(i))
	}
	close(reached)
	if err := a.session.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "parley://channels/roadmap"}); err != nil {
		t.Fatal(err)
	}
	<-a.updated // the attempt has started
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if lost, err := p.Close(ctx); lost != 0 || err != nil {
		t.Errorf("%d are lost, %v", lost, err)
	}
	other := join(t, openProject(t, configOf("flush"), n.dial))
	if got := strings.Count(other.must("read_messages", map[string]any{"channel": "roadmap", "limit": 1000}).text, "**a**"); got != 100 {
		t.Errorf("%d of 100 are stored", got)
	}
}
