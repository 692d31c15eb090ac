package chat_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
	"github.com/parleyhub/parley/internal/third_party/jsonschema"
)

// REQ-TOOL-030, REQ-MESSAGE-005, REQ-I18N-003, REQ-ACCESS-001
func TestMessagesAreShownAsSpecified(t *testing.T) {
	at := time.Date(2025, 1, 15, 15, 30, 0, 0, time.FixedZone("", 3600))
	m := chat.Message{Handle: "project-manager", Text: "Starting Sprint 5 planning.\nFocus: API endpoints.", Timestamp: at}
	want := "[2025-01-15T14:30:00.000Z] **project-manager**: Starting Sprint 5 planning.\n    Focus: API endpoints."
	if got := m.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// REQ-TOOL-033, REQ-STORAGE-005, REQ-STORAGE-006, REQ-API-003
func TestReadsAcknowledgeToADurableConsumer(t *testing.T) {
	n := startServer(t)
	s := ready(t, open(t, n.config("p")))
	for i := range 30 {
		send(t, s, "pm", "roadmap", fmt.Sprint(i))
	}
	stream, err := n.Foreign().Stream(t.Context(), "p_ROADMAP")
	if err != nil {
		t.Fatal(err)
	}
	for _, reader := range []string{"ann", "bob", "ann"} {
		if _, err := s.Read(t.Context(), reader, "roadmap", 20); err != nil {
			t.Fatal(err)
		}
	}
	await(t, s, func() bool { // acknowledgements are asynchronous
		readers := 0
		for info := range stream.ListConsumers(t.Context()).Info() {
			readers++
			if info.Config.Durable == "" || info.Config.AckPolicy != jetstream.AckExplicitPolicy {
				t.Fatalf("the consumer is %+v", info.Config)
			}
			if info.NumAckPending > 0 || info.AckFloor.Stream != 30 {
				return false
			}
		}
		return readers == 2
	})
}

// REQ-MESSAGE-007
func TestLargeMessagesAreStoredWhole(t *testing.T) {
	dir := t.TempDir()
	embedded, err := bus.Open(t.Context(), bus.Config{DataDir: dir, Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	cfg := chat.Config{Namespace: "p", Channels: channels(), Logger: slog.New(slog.DiscardHandler),
		Dial: func(context.Context) (*bus.Bus, error) { return embedded, nil }}
	s := ready(t, open(t, cfg))
	// In JSON each of these bytes takes six.
	for _, text := range []string{strings.Repeat("x", chat.MaxMessage), strings.Repeat("\x01", chat.MaxMessage)} {
		send(t, s, "pm", "roadmap", text)
		if got := texts(t, s, "roadmap", 1); len(got) != 1 || got[0] != text {
			t.Errorf("read %d messages, want the one that was sent", len(got))
		}
	}
}

// REQ-SCALE-004, REQ-DATA-006, REQ-LEGAL-005: each of the three limits drops the oldest messages.
func TestTheLimitsOfAChannelBoundWhatIsStored(t *testing.T) {
	n := startServer(t)
	cfg := n.config("p")
	cfg.Channels = []chat.Channel{
		{Name: "few", Description: "d", MaxMessages: 3, MaxBytes: 1 << 20, MaxAge: time.Hour},
		{Name: "small", Description: "d", MaxMessages: 1000, MaxBytes: 4096, MaxAge: time.Hour},
		{Name: "short", Description: "d", MaxMessages: 1000, MaxBytes: 1 << 20, MaxAge: 200 * time.Millisecond},
	}
	s := ready(t, open(t, cfg))
	for i := range 20 {
		for _, c := range cfg.Channels {
			send(t, s, "pm", c.Name, fmt.Sprint(i, strings.Repeat("x", 500)))
		}
	}
	if got := texts(t, s, "few", 100); len(got) != 3 || !strings.HasPrefix(got[2], "19x") {
		t.Errorf("channel few has %d messages", len(got))
	}
	if got := texts(t, s, "small", 100); len(got) == 0 || len(got) > 8 || !strings.HasPrefix(got[len(got)-1], "19x") {
		t.Errorf("channel small has %d messages", len(got))
	}
	await(t, s, func() bool { return len(texts(t, s, "short", 100)) == 0 })
}

// REQ-SCALE-005, REQ-PERF-006, REQ-PERF-008: 10 projects of 50 channels, each with one connection.
func TestManyProjectsOfManyChannels(t *testing.T) {
	n := startServer(t)
	var spaces []*chat.Space
	var all []chat.Channel
	for i := range 50 {
		all = append(all, chat.Channel{Name: fmt.Sprint("c-", i), Description: "d", MaxMessages: 100, MaxBytes: 1 << 20, MaxAge: time.Hour})
	}
	before := n.NATS().NumClients()
	for i := range 10 {
		cfg := n.config(fmt.Sprint("project-", i))
		cfg.Channels = all
		spaces = append(spaces, open(t, cfg))
	}
	var wg sync.WaitGroup
	for p, s := range spaces {
		ready(t, s)
		wg.Go(func() {
			for i := range 50 {
				if _, err := s.Send(t.Context(), "pm", fmt.Sprint("c-", i), fmt.Sprint(p, "/", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for p, s := range spaces {
		stored(t, s)
		for _, i := range []int{0, 25, 49} {
			if got := texts(t, s, fmt.Sprint("c-", i), 10); !slices.Equal(got, []string{fmt.Sprint(p, "/", i)}) {
				t.Errorf("project %d, channel %d: %q", p, i, got)
			}
		}
	}
	if got := n.NATS().NumClients() - before; got != 10 {
		t.Errorf("%d connections, want 10", got)
	}
}

// REQ-PERF-005: 100 agents of one project send at the same time. On a busy machine some messages
// are queued for a moment; none is lost, and each agent's are in order.
func TestAHundredAgentsOfOneProject(t *testing.T) {
	n := startServer(t)
	var spaces []*chat.Space
	for range 100 {
		spaces = append(spaces, open(t, n.config("p")))
	}
	var wg sync.WaitGroup
	for i, s := range spaces {
		ready(t, s)
		wg.Go(func() {
			for round := range 3 {
				if _, err := s.Send(t.Context(), fmt.Sprint("agent-", i), "roadmap", fmt.Sprint(round)); err != nil {
					t.Errorf("agent %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	for _, s := range spaces {
		stored(t, s)
	}
	h, err := spaces[99].Read(t.Context(), "reader", "roadmap", 1000)
	if err != nil || len(h.Messages) != 300 {
		t.Fatalf("%d messages, %v", len(h.Messages), err)
	}
	next := map[string]int{}
	for _, m := range h.Messages {
		if m.Text != fmt.Sprint(next[m.Handle]) {
			t.Errorf("%s comes from %s, want %d", m.Text, m.Handle, next[m.Handle])
		}
		next[m.Handle]++
	}
}

// REQ-REL-006, REQ-REL-002, REQ-ERROR-005: the log has every attempt, why it failed, when the next
// one is, and the success.
func TestAttemptsToConnectAreLogged(t *testing.T) {
	n := startServer(t)
	var log syncBuffer
	cfg := n.config("p")
	cfg.Logger = slog.New(slog.NewJSONHandler(&log, nil))
	dial, attempts := cfg.Dial, 0
	cfg.Dial = func(ctx context.Context) (*bus.Bus, error) {
		if attempts++; attempts < 3 {
			return nil, &bus.Error{Code: bus.CodeNotRunning, Message: "no NATS server is running at nats://x", Remedy: "start it"}
		}
		return dial(ctx)
	}
	s := ready(t, open(t, cfg))
	n.Stop()
	await(t, s, func() bool { return !s.Status().Connected })
	n.Start()
	ready(t, s)
	await(t, s, func() bool { return strings.Contains(log.String(), `"status":"CONNECTED"`) })
	for _, want := range []string{
		`"level":"WARN","msg":"the bus cannot be reached","component":"nats-connection","attempt":1,"retryIn":"`,
		`"attempt":2,"retryIn":"`, `no NATS server is running at nats://x`,
		`"level":"INFO","msg":"connected to the bus","component":"nats-connection","attempt":3`,
		`"msg":"connection to the bus","component":"nats-connection","status":"RECONNECTING"`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in\n%s", want, log.String())
		}
	}
}

// REQ-ERROR-002, REQ-ERROR-008, REQ-USE-002: each kind of failure has a message of its own with
// the server's address and a remedy.
func TestFailuresToConnectHaveDifferentMessages(t *testing.T) {
	seen := map[string]bool{}
	for _, cause := range []*bus.Error{
		{Code: bus.CodeNotRunning, Message: "no NATS server is running at nats://h:1", Remedy: "start it (nats-server -js) or correct the URL"},
		{Code: bus.CodeNoJetStream, Message: "the NATS server at nats://h:1 runs without JetStream", Remedy: "start it with -js"},
		{Code: bus.CodeNetwork, Message: "cannot reach nats://h:1: the host name cannot be resolved", Remedy: "check the URL's host and the DNS"},
		{Code: bus.CodeAuth, Message: "nats://h:1 refused the credentials", Remedy: "check user and password"},
	} {
		cfg := chat.Config{Namespace: "p", Channels: channels(), Logger: slog.New(slog.DiscardHandler),
			Dial: func(context.Context) (*bus.Bus, error) { return nil, cause }}
		s := open(t, cfg)
		var e *chat.Error
		await(t, s, func() bool {
			_, err := s.Read(t.Context(), "r", "roadmap", 1)
			return errors.As(err, &e) && strings.Contains(e.Message, "nats://h:1")
		})
		if e.Code != chat.ConnectionError || e.Remedy == "" || !errors.Is(e, error(cause)) || seen[e.Error()] {
			t.Errorf("%s: %+v", cause.Code, e)
		}
		seen[e.Error()] = true
	}
}

// REQ-ERROR-002: an interrupted connection is reported with the server and how to start it.
func TestAnInterruptionNamesTheServer(t *testing.T) {
	n := startServer(t)
	s := ready(t, open(t, n.config("p")))
	url := n.URL()
	n.Stop()
	await(t, s, func() bool { return !s.Status().Connected })
	_, err := s.Read(t.Context(), "r", "roadmap", 1)
	e, ok := err.(*chat.Error)
	if !ok || e.Code != chat.ConnectionError || !strings.Contains(e.Message, "The connection to the NATS server at "+url+" is interrupted.") ||
		!strings.Contains(e.Remedy, "nats-server -js") {
		t.Errorf("got %+v", err)
	}
}

// REQ-ERROR-002, REQ-USE-002: a server that hangs is named too.
func TestAServerThatHangsIsNamed(t *testing.T) {
	n := startServer(t)
	way := startWay(t, n.URL())
	cfg := n.config("p")
	cfg.Dial = func(ctx context.Context) (*bus.Bus, error) {
		return bus.Open(ctx, bus.Config{URL: bus.Secret(way.url), Logger: slog.New(slog.DiscardHandler)})
	}
	s := ready(t, open(t, cfg))
	way.blocked.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.Read(ctx, "r", "roadmap", 1)
	if e, ok := err.(*chat.Error); !ok || e.Code != chat.ConnectionError || e.Message != "The NATS server at "+way.url+" does not answer." || e.Remedy == "" {
		t.Errorf("got %+v", err)
	}
}

// If a slow server delivers only some of the waiting messages in time, Wait returns these instead
// of starting again.
func TestWaitReturnsWhatASlowServerDelivers(t *testing.T) {
	n := startServer(t)
	other := ready(t, open(t, n.config("p")))
	for range 50 {
		send(t, other, "other", "roadmap", strings.Repeat("x", 1000))
	}
	way := startWay(t, n.URL())
	cfg := n.config("p")
	cfg.Dial = func(ctx context.Context) (*bus.Bus, error) {
		return bus.Open(ctx, bus.Config{URL: bus.Secret(way.url), Logger: slog.New(slog.DiscardHandler)})
	}
	s := ready(t, open(t, cfg))
	look(t, s)
	way.left.Store(20_000)
	cursor := chat.Cursor{"roadmap": 0, "parallel-work": 0}
	news, err := s.Wait(t.Context(), cursor)
	if got := len(news.Messages["roadmap"]); err != nil || got == 0 || got == 50 || news.Cursor["roadmap"] != uint64(got) || len(news.Cursor) != 2 {
		t.Errorf("%d messages, %v, %v", got, news.Cursor, err)
	}
}

// way is a proxy to a server. When it is blocked, it drops what the server sends.
type way struct {
	url     string
	blocked atomic.Bool
	left    atomic.Int64 // bytes until it blocks; 0 is unlimited
}

func startWay(t *testing.T, server string) *way {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &way{url: "nats://" + l.Addr().String()}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", strings.TrimPrefix(server, "nats://"))
			if err != nil {
				in.Close()
				continue
			}
			running.Go(func() { io.Copy(out, in); out.Close() }) // either end may close the connection
			running.Go(func() {
				defer in.Close()
				buffer := make([]byte, 4096)
				for {
					n, err := out.Read(buffer)
					if err != nil {
						return
					}
					if w.left.Load() > 0 && w.left.Add(int64(-n)) <= 0 {
						w.blocked.Store(true)
					}
					if w.blocked.Load() {
						continue
					}
					if _, err := in.Write(buffer[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); running.Wait() })
	return w
}

// REQ-DESIGN-MSG-003: stored messages match the published schema, and messages that match it are
// read.
func TestMessagesMatchThePublishedSchema(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile(filepath.FromSlash("../../schema/channel-message.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	valid := func(data []byte) error {
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		return schema.Validate(value)
	}
	n := startServer(t)
	s := ready(t, open(t, n.config("p")))
	send(t, s, "pm", "roadmap", "text\n\x00é")
	stream, err := n.Foreign().Stream(t.Context(), "p_ROADMAP")
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := valid(m.Data); err != nil {
		t.Errorf("%s: %v", m.Data, err)
	}
	for text, want := range map[string]bool{
		`{"handle": "a", "message": "m", "timestamp": "2025-01-15T14:30:00.000Z"}`:                           true,
		`{"handle": "a", "message": "", "timestamp": "2025-01-15T14:30:00+01:00", "version": 2, "new": [1]}`: true,
		`{"handle": "", "message": "m", "timestamp": "2025-01-15T14:30:00Z"}`:                                false,
		`{"message": "m", "timestamp": "2025-01-15T14:30:00Z"}`:                                              false,
		`{"handle": 1, "message": "m", "timestamp": "2025-01-15T14:30:00Z"}`:                                 false,
		`{"handle": "a", "message": "m"}`:                                                                    false,
		`{"handle": "a", "timestamp": "2025-01-15T14:30:00Z"}`:                                               false,
		`[]`: false,
	} {
		_, err := chat.Decode([]byte(text))
		if schemaErr := valid([]byte(text)); (schemaErr == nil) != want || (err == nil) != want {
			t.Errorf("%s: the schema says %v, the program %v", text, schemaErr, err)
		}
	}
}

// REQ-DATA-001, REQ-DATA-002, REQ-STACK-006, REQ-STORAGE-001: with an external server nothing is
// written on this computer.
func TestNothingIsStoredOutsideOfJetStream(t *testing.T) {
	n := startServer(t)
	home := t.TempDir()
	t.Chdir(home)
	for _, name := range []string{"HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"} {
		t.Setenv(name, home)
	}
	s := chat.Open(n.config("p"))
	send(t, ready(t, s), "pm", "roadmap", "x")
	n.Stop()
	await(t, s, func() bool { return !s.Status().Connected })
	send(t, s, "pm", "roadmap", "queued")
	n.Start()
	await(t, s, func() bool { return s.Status().Connected && s.Status().Queued == 0 })
	if _, err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(home)
	if err != nil || len(entries) > 0 {
		t.Errorf("%v was written, %v", entries, err)
	}
}
