package chat_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// REQ-TOOL-022, REQ-ERROR-002, REQ-ERROR-008: only an outage is queued. All other failures are errors of the first send,
// with the reason and a remedy.
func TestOnlyAnOutageIsQueued(t *testing.T) {
	user := func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "p"}}
	}
	mayNot := func(deny string) func(*server.Options) {
		return func(o *server.Options) {
			o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{deny}}}}}
		}
	}
	for name, tt := range map[string]struct {
		change func(*server.Options)
		url    string // instead of the server's
		login  bus.Credentials
		says   string
		reads  bool // although it cannot send
	}{
		"no JetStream":          {change: testbed.WithoutJetStream, says: "runs without JetStream"},
		"no credentials":        {change: user, says: "refused the credentials"},
		"wrong credentials":     {change: user, login: bus.Credentials{User: "u", Password: "x"}, says: "refused the credentials"},
		"wrong token":           {change: func(o *server.Options) { o.Authorization = "t" }, login: bus.Credentials{Token: "x"}, says: "refused the credentials"},
		"unknown host":          {change: user, url: "nats://no-such-host.invalid:4222", says: "cannot be resolved"},
		"may not publish":       {change: mayNot("p.roadmap"), login: bus.Credentials{User: "u", Password: "p"}, says: "does not let this user", reads: true},
		"may not make a stream": {change: mayNot("$JS.API.STREAM.CREATE.>"), login: bus.Credentials{User: "u", Password: "p"}, says: "does not let this user"},
		"may not use JetStream": {change: mayNot("$JS.API.>"), login: bus.Credentials{User: "u", Password: "p"}, says: "does not permit this user"},
	} {
		t.Run(name, func(t *testing.T) {
			n := startServer(t, tt.change)
			cfg := n.config("p")
			at := n.URL()
			if tt.url != "" {
				at = tt.url
			}
			cfg.Dial = func(ctx context.Context) (*bus.Bus, error) {
				return bus.Open(ctx, bus.Config{URL: bus.Secret(at), Credentials: tt.login, NoEcho: true})
			}
			s := open(t, cfg)
			<-s.Tried()
			_, sendErr := s.Send(t.Context(), "pm", "roadmap", "x")
			_, readErr := s.Read(t.Context(), "pm", "roadmap", 1)
			for call, err := range map[string]error{"send": sendErr, "read": readErr} {
				if call == "read" && tt.reads {
					if err != nil {
						t.Errorf("read: %v", err)
					}
					continue
				}
				e, ok := err.(*chat.Error)
				if !ok || e.Code != chat.ConnectionError || !strings.Contains(e.Message, tt.says) || !strings.Contains(e.Message, at) || e.Remedy == "" {
					t.Errorf("%s: got %+v", call, err)
				}
			}
			if got := s.Status().Queued; got != 0 {
				t.Errorf("%d messages are queued", got)
			}
		})
	}
}

// REQ-ERROR-002, REQ-ERROR-008: a wait that the server's permissions keep from finding messages does not say that there are
// none.
func TestAWaitSaysWhatItMayNotRead(t *testing.T) {
	deny := func(subject string) *server.SubjectPermission {
		return &server.SubjectPermission{Deny: []string{subject}}
	}
	for name, tt := range map[string]struct {
		may    server.Permissions
		cursor chat.Cursor
		unread string // the only channel that cannot be read; "" if none can
	}{
		"no notification": {server.Permissions{Subscribe: deny("p.*")}, chat.Cursor{"roadmap": 1, "parallel-work": 0}, ""},
		"no channel":      {server.Permissions{Publish: deny("$JS.API.DIRECT.GET.>")}, chat.Cursor{"roadmap": 0}, ""},
		"one channel":     {server.Permissions{Publish: deny("$JS.API.DIRECT.GET.p_ROADMAP")}, chat.Cursor{"roadmap": 0, "parallel-work": 0}, "roadmap"},
	} {
		t.Run(name, func(t *testing.T) {
			n := startServer(t, func(o *server.Options) {
				o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &tt.may}}
			})
			cfg := n.config("p")
			cfg.Dial = func(ctx context.Context) (*bus.Bus, error) {
				return bus.Open(ctx, bus.Config{URL: bus.Secret(n.URL()), Credentials: bus.Credentials{User: "u", Password: "p"}, NoEcho: true,
					Logger: slog.New(slog.DiscardHandler)})
			}
			s := ready(t, open(t, cfg))
			send(t, s, "pm", "roadmap", "x")
			for range 2 { // the refusal is remembered
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				news, err := s.Wait(ctx, tt.cursor)
				if tt.unread != "" {
					if err != nil || len(news.Unread) != 1 || news.Unread[tt.unread] == nil {
						t.Errorf("got %+v, %v", news, err)
					}
					return
				}
				e, ok := err.(*chat.Error)
				if !ok || ctx.Err() != nil || e.Code != chat.ConnectionError || !strings.Contains(e.Message, "does not let this user") || e.Remedy == "" {
					t.Errorf("got %+v, %+v, %v", news, err, ctx.Err())
				}
			}
		})
	}
}

// REQ-TOOL-022: a server that returns from an outage with other credentials, and refuses this user's, is no outage.
func TestCredentialsThatAreRefusedLaterAreNoOutage(t *testing.T) {
	n := startServer(t)
	s := ready(t, open(t, n.config("p")))
	n.Stop()
	await(t, s, func() bool { return !s.Status().Connected })
	r, err := s.Send(t.Context(), "pm", "roadmap", "x")
	if err != nil || !r.Queued || !strings.Contains(r.Problem.Message, n.URL()) {
		t.Errorf("got %+v, %v", r, err)
	}
	n.Start(func(o *server.Options) { o.Users = []*server.User{{Username: "u", Password: "p"}} })
	await(t, s, func() bool {
		_, err := s.Send(t.Context(), "pm", "roadmap", "y")
		return err != nil && strings.Contains(err.Error(), "refused the credentials")
	})
}

// REQ-REL-003, REQ-REL-009: what cannot be stored before the end is stored by the project's next process, once and in order,
// and by no other project or server.
func TestWhatCannotBeStoredIsKept(t *testing.T) {
	n := startServer(t)
	cfg := n.config("p")
	cfg.KeepDir, cfg.Server = filepath.Join(t.TempDir(), "unsent"), "here"
	s := ready(t, chat.Open(cfg))
	send(t, s, "pm", "roadmap", "0")
	n.Stop()
	await(t, s, func() bool { return !s.Status().Connected })
	send(t, s, "pm", "roadmap", "1")
	if lost, err := s.Close(t.Context()); lost != 0 || err != nil {
		t.Fatalf("lost %d, %v", lost, err)
	}
	// The next process cannot store it either, and adds one of its own.
	s = chat.Open(cfg)
	<-s.Tried()
	send(t, s, "pm", "roadmap", "2")
	if lost, err := s.Close(t.Context()); lost != 0 || err != nil {
		t.Fatalf("lost %d, %v", lost, err)
	}
	files, err := filepath.Glob(filepath.Join(cfg.KeepDir, "*.json"))
	if err != nil || len(files) != 2 {
		t.Fatalf("files %q, %v", files, err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
			t.Errorf("the file is %v, %v", info, err)
		}
	}
	n.Start()
	for _, change := range []func(*chat.Config){func(c *chat.Config) { c.Namespace = "q" }, func(c *chat.Config) { c.Server = "there" }} {
		other := cfg
		change(&other)
		if o := ready(t, open(t, other)); o.Status().Queued != 0 {
			t.Error("another project or server gets the messages")
		}
	}
	s = ready(t, open(t, cfg))
	stored(t, s)
	if got := texts(t, s, "roadmap", 10); strings.Join(got, " ") != "0 1 2" {
		t.Errorf("stored %q", got)
	}
	awaitNoFiles(t, cfg.KeepDir)
}

// keptFile returns the name and the content of a directory's only file of queued messages.
func keptFile(t *testing.T, dir string) (name string, data []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %q, %v", files, err)
	}
	if data, err = os.ReadFile(files[0]); err != nil {
		t.Fatal(err)
	}
	return filepath.Base(files[0]), data
}

func awaitNoFiles(t *testing.T, dir string) {
	t.Helper()
	wait.Eventually(t, "the files are deleted", func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "*.json"))
		return err == nil && len(files) == 0
	})
}

// REQ-REL-003, REQ-REL-009: a message is on disk before its sender is told that it is queued, so that it survives a kill. A
// process that runs keeps its messages to itself.
func TestQueuedMessagesSurviveAKill(t *testing.T) {
	n := startServer(t)
	cfg := n.config("p")
	cfg.KeepDir, cfg.Server = filepath.Join(t.TempDir(), "unsent"), "here"
	s := ready(t, open(t, cfg))
	n.Stop()
	await(t, s, func() bool { return !s.Status().Connected })
	for i := range 5 {
		send(t, s, "pm", "roadmap", fmt.Sprint(i))
	}
	second := open(t, cfg)
	if got := second.Status().Queued; got != 0 {
		t.Errorf("another process took %d messages of one that runs", got)
	}
	// What a kill leaves is the files and no locks; the last message was being written.
	killed := cfg
	killed.KeepDir = t.TempDir()
	name, data := keptFile(t, cfg.KeepDir)
	data = append(data, data[:len(data)/7]...)
	if err := os.WriteFile(filepath.Join(killed.KeepDir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
	n.Start()
	next := ready(t, open(t, killed))
	stored(t, next)
	stored(t, s) // the first one's ids are the same
	if got := texts(t, next, "roadmap", 20); strings.Join(got, " ") != "0 1 2 3 4" {
		t.Errorf("stored %q", got)
	}
	awaitNoFiles(t, killed.KeepDir)
	awaitNoFiles(t, cfg.KeepDir)
}

// A message that was stored, and whose sender does not know it, is stored once, also if the clock was set since.
func TestAQueuedMessageIsStoredOnceWhenTheClockWasSet(t *testing.T) {
	n := startServer(t)
	first := ready(t, open(t, n.config("p")))
	sent := send(t, first, "pm", "roadmap", "x")
	stream, err := n.Foreign().Stream(t.Context(), "p_ROADMAP")
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.Duplicates = 100 * time.Millisecond
	if stream, err = n.Foreign().UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the server forgets ids", func() bool { // the probe's is newer than that of the message
		ack, err := n.Foreign().Publish(t.Context(), "p.roadmap", nil, jetstream.WithMsgID("probe"))
		return err == nil && !ack.Duplicate && ack.Sequence > sent.Sequence+1
	})
	stored1, err := stream.GetMsg(t.Context(), sent.Sequence)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(stored1.Data)
	if err != nil {
		t.Fatal(err)
	}
	again := n.config("p")
	again.KeepDir, again.Server = filepath.Join(t.TempDir(), "unsent"), "here"
	kept := ready(t, open(t, again))
	n.Stop()
	await(t, kept, func() bool { return !kept.Status().Connected })
	send(t, kept, "pm", "roadmap", "y")
	name, _ := keptFile(t, again.KeepDir)
	// As if an earlier process had tried the first message by a clock that was an hour ahead.
	later := time.Now().Add(time.Hour).Format(time.RFC3339Nano)
	line := fmt.Sprintf(`{"version":1,"messages":[{"channel":"roadmap","id":%q,"data":%s,"sent":%q,"tried":%q}]}`+"\n", sent.ID, data, later, later)
	again.KeepDir = t.TempDir()
	if err := os.WriteFile(filepath.Join(again.KeepDir, name), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	var looks atomic.Int64
	again.ClockSet = func() time.Duration { return -time.Duration(min(looks.Add(1), 2)) * time.Hour }
	n.Start()
	next := ready(t, open(t, again))
	stored(t, next)
	if got := texts(t, next, "roadmap", 20); strings.Count(strings.Join(got, " "), "x") != 1 {
		t.Errorf("stored %q", got)
	}
}

// A message that cannot be written to disk is queued all the same, and its sender knows.
func TestTheSenderKnowsThatAMessageIsInMemoryOnly(t *testing.T) {
	n := startServer(t)
	cfg := n.config("p")
	cfg.KeepDir = filepath.Join(t.TempDir(), "file", "unsent")
	if err := os.WriteFile(filepath.Dir(cfg.KeepDir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := ready(t, open(t, cfg))
	n.Stop()
	await(t, s, func() bool { return !s.Status().Connected })
	r, err := s.Send(t.Context(), "pm", "roadmap", "x")
	if err != nil || !r.Queued || !strings.Contains(r.Problem.Message, "in memory only: not a directory") {
		t.Fatalf("got %+v, %v", r, err)
	}
	n.Start()
	stored(t, s)
}

// However long one channel's outage lasts, the file of queued messages has bounds, and so have those that are read.
func TestTheFileOfQueuedMessagesIsBounded(t *testing.T) {
	n := startServer(t)
	cfg := n.config("p")
	cfg.KeepDir = filepath.Join(t.TempDir(), "unsent")
	s := ready(t, open(t, cfg))
	n.Stop()
	await(t, s, func() bool { return !s.Status().Connected })
	for i := range 2*chat.MaxQueued + 10 {
		send(t, s, "pm", "roadmap", fmt.Sprint(i))
	}
	_, data := keptFile(t, cfg.KeepDir)
	if lines := strings.Count(string(data), "\n"); lines < chat.MaxQueued || lines > chat.MaxQueued+11 {
		t.Errorf("%d lines", lines)
	}
	if ids, _, _, err := chat.DecodeKept(data); err != nil || len(ids) < chat.MaxQueued {
		t.Errorf("decoded %d, %v", len(ids), err)
	}
}

// A flipped bit in a message that waits for the bus costs that message, which is named, and no other one.
func TestADamagedKeptMessageIsNamedAndTheOthersAreStored(t *testing.T) {
	n := startServer(t)
	cfg := n.config("p")
	cfg.KeepDir, cfg.Server = filepath.Join(t.TempDir(), "unsent"), "here"
	s := ready(t, open(t, cfg))
	n.Stop()
	await(t, s, func() bool { return !s.Status().Connected })
	for _, text := range []string{"one", "two", "three"} {
		send(t, s, "pm", "roadmap", text)
	}
	name, data := keptFile(t, cfg.KeepDir)
	ids, bodies, damage, err := chat.DecodeKept(data)
	if len(ids) != 3 || damage != nil || err != nil {
		t.Fatalf("%q, %v, %v", ids, damage, err)
	}
	for i := range data {
		for bit := range 8 {
			changed := bytes.Clone(data)
			changed[i] ^= 1 << bit
			id, text, damage, err := chat.DecodeKept(changed)
			if damage == nil && err == nil && (!slices.Equal(id, ids) || !slices.Equal(text, bodies)) {
				t.Fatalf("bit %d of byte %d is not noticed: %q", bit, i, changed)
			}
			if err != nil || len(id) < len(ids)-1 || data[i] == '\n' && len(id) < len(ids) {
				t.Fatalf("bit %d of byte %d: of %q remain %q, %v", bit, i, ids, id, err)
			}
		}
	}
	line := bytes.Index(data, []byte("\n"))
	data[line+line/2] ^= 1 // in the second message's text
	killed := cfg
	killed.KeepDir = t.TempDir()
	file := filepath.Join(killed.KeepDir, name)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	n.Start()
	next := ready(t, open(t, killed))
	stored(t, next)
	if got := texts(t, next, "roadmap", 20); strings.Join(got, " ") != "one three" {
		t.Errorf("stored %q", got)
	}
	awaitNoFiles(t, killed.KeepDir)
	kept, err := filepath.Glob(file + ".damaged-*")
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept %q, %v", kept, err)
	}
	if d, ok := statefile.SetAside(kept[0]); !ok || d.Path != file || d.Restored {
		t.Errorf("%+v", d)
	}
}

// FuzzKeptMessages: what was kept is checked before it is published.
func FuzzKeptMessages(f *testing.F) {
	f.Add([]byte(`{"version":1,"messages":[{"channel":"roadmap","id":"A-1","data":"e30=","sent":"2026-01-01T00:00:00Z"}]}`))
	f.Add([]byte(`{"version":1,"messages":[]}` + "\n" + `{"version":1,"mess`))
	f.Add([]byte(`{"version":1,"messages":[],"sum":"0123456789abcdef"}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ids, _, _, err := chat.DecodeKept(data)
		if err == nil && (len(ids) > 2*chat.MaxQueued || strings.ContainsAny(strings.Join(ids, ""), "\r\n")) {
			t.Errorf("accepted %q", data)
		}
	})
}

// chatCluster is three nodes.
type chatCluster struct {
	ports [3]int
	nodes [3]*server.Server
}

func startChatCluster(t *testing.T) *chatCluster {
	c := &chatCluster{}
	free := testbed.FreePorts(t, 6)
	copy(c.ports[:], free[:3])
	var routes []*url.URL
	for _, port := range free[3:] {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	for i := range c.nodes {
		srv, err := server.NewServer(&server.Options{ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: c.ports[i], JetStream: true,
			StoreDir: t.TempDir(), NoSigs: true, NoLog: true, Routes: routes, Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: free[3+i]}})
		if err != nil {
			t.Fatal(err)
		}
		srv.Start()
		t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
		c.nodes[i] = srv
	}
	wait.Eventually(t, "a leader and three peers", func() bool {
		for _, n := range c.nodes {
			if n.JetStreamIsLeader() {
				return len(n.JetStreamClusterPeers()) == 3
			}
		}
		return false
	})
	return c
}

func (c *chatCluster) config(node int) chat.Config {
	return chat.Config{Namespace: "p", Channels: channels(), Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (*bus.Bus, error) {
			return bus.Open(ctx, bus.Config{URL: bus.Secret(fmt.Sprintf("nats://127.0.0.1:%d", c.ports[node])), NoEcho: true})
		}}
}

// REQ-SCALE-001, REQ-REL-003: on a cluster a channel has three copies by default. A stream that has lost its node stops its
// own channel only, and the error names it.
func TestOneDeadChannelStopsOneChannel(t *testing.T) {
	c := startChatCluster(t)
	first := ready(t, open(t, c.config(0)))
	js := first.JetStream()
	marked := jetstream.StreamConfig{Name: "p_ROADMAP", Subjects: []string{"p.roadmap"}, MaxMsgs: 10000, MaxBytes: 10 << 20, MaxAge: 24 * time.Hour,
		Metadata: map[string]string{"parley.namespace": "p", "parley.channel": "roadmap"}}
	wait.Eventually(t, "the stream has copies", func() bool {
		_, err := first.Read(t.Context(), "r", "parallel-work", 1)
		return err == nil
	})
	work, err := js.Stream(t.Context(), "p_PARALLEL_WORK")
	if err != nil || work.CachedInfo().Config.Replicas != 3 {
		t.Fatalf("%+v, %v", work.CachedInfo(), err)
	}
	_ = js.DeleteStream(t.Context(), "p_ROADMAP") // it may not exist yet
	single, err := js.CreateOrUpdateStream(t.Context(), marked)
	if err != nil {
		t.Fatal(err)
	}
	var dead, alive int
	for i, n := range c.nodes {
		if n.Name() == single.CachedInfo().Cluster.Leader {
			dead, alive = i, (i+1)%3
		}
	}
	s := ready(t, open(t, c.config(alive)))
	send(t, s, "pm", "roadmap", "before")
	c.nodes[dead].Shutdown()
	c.nodes[dead].WaitForShutdown()
	wait.Eventually(t, "a leader of the healthy stream", func() bool {
		_, err := s.Read(t.Context(), "r", "parallel-work", 1)
		return err == nil
	})
	r, err := s.Send(t.Context(), "pm", "roadmap", "waits")
	if err != nil || !r.Queued || !strings.Contains(r.Problem.Message, "p_ROADMAP") || strings.Contains(r.Problem.Message, "cannot be reached") {
		t.Errorf("got %+v %+v, %v", r, r.Problem, err)
	}
	for range 20 {
		if r, err := s.Send(t.Context(), "pm", "parallel-work", "goes"); err != nil || r.Queued {
			t.Errorf("the healthy channel: %+v, %v", r, err)
		}
	}
	if _, err := s.Read(t.Context(), "r", "roadmap", 1); err == nil || !strings.Contains(err.Error(), "p_ROADMAP") {
		t.Errorf("a read: %v", err)
	}
	news, err := s.Wait(t.Context(), chat.Cursor{"roadmap": 0, "parallel-work": 0})
	if err != nil || len(news.Messages["parallel-work"]) != 20 {
		t.Errorf("a wait: %d messages, %v", len(news.Messages["parallel-work"]), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	news, err = s.Wait(ctx, chat.Cursor{"roadmap": 0, "parallel-work": 20})
	if err != nil || len(news.Unread) != 1 || !strings.Contains(fmt.Sprint(news.Unread["roadmap"]), "p_ROADMAP") {
		t.Errorf("a wait that cannot read everything: %+v, %v", news, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if news, err = s.Wait(ctx, chat.Cursor{"roadmap": 0}); err == nil || !strings.Contains(err.Error(), "p_ROADMAP") {
		t.Errorf("a wait that can read nothing: %+v, %v", news, err)
	}
	tips, err := s.Tips(t.Context(), []string{"roadmap", "parallel-work"})
	failed, ok := err.(chat.TipsError)
	if !ok || len(failed) != 1 || !strings.Contains(failed["roadmap"].Error(), "p_ROADMAP") || tips["parallel-work"] != 20 {
		t.Errorf("tips %v, %v", tips, err)
	}
	if got := s.Ailing(); len(got) != 1 || !got["roadmap"] {
		t.Errorf("ailing: %v", got)
	}
}

// A request that was lost with its connection says nothing of the channel, which is read at once over the next connection.
func TestALostConnectionIsNoFaultOfTheChannel(t *testing.T) {
	n := startServer(t)
	p := nettest.StartProxy(t, strings.TrimPrefix(n.URL(), "nats://"))
	cfg := n.config("p")
	cfg.Dial = func(ctx context.Context) (*bus.Bus, error) {
		return bus.Open(ctx, bus.Config{URL: bus.Secret(p.URL()), Logger: slog.New(slog.DiscardHandler)})
	}
	s := ready(t, open(t, cfg))
	send(t, s, "pm", "roadmap", "hello")
	asked := make(chan struct{}, 1)
	p.SetTap(func(toServer bool, data []byte) bool {
		request := toServer && bytes.Contains(data, []byte("$JS.API."))
		if request && bytes.Contains(data, []byte("INFO.p_ROADMAP")) { // others are those of the connection's beginning
			select {
			case asked <- struct{}{}:
			default:
			}
		}
		return !request
	})
	failed := make(chan error, 1)
	go func() {
		_, err := s.Tips(t.Context(), []string{"roadmap"})
		failed <- err
	}()
	<-asked
	p.SetTap(nil)
	p.Cut()
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("a request that was lost: %v", err)
	}
	if got := s.Ailing(); len(got) != 0 {
		t.Errorf("%v do not answer", got)
	}
}

// A cluster does not answer for a reader's consumer that is gone, after an hour without a read or with its stream: the
// read creates another.
func TestAReaderWhoseConsumerIsGoneReadsOnACluster(t *testing.T) {
	c := startChatCluster(t)
	s := ready(t, open(t, c.config(0)))
	js := s.JetStream()
	reads := func(want string) { // a busy cluster may need several attempts for a new stream or consumer
		t.Helper()
		wait.Eventually(t, "the message "+want+" is read", func() bool {
			h, err := s.Read(t.Context(), "reader", "roadmap", 10)
			return err == nil && len(h.Messages) > 0 && h.Messages[len(h.Messages)-1].Text == want
		})
	}
	wait.Eventually(t, "a stored message", func() bool {
		r, err := s.Send(t.Context(), "pm", "roadmap", "1")
		return err == nil && !r.Queued
	})
	reads("1")
	stream, err := js.Stream(t.Context(), "p_ROADMAP")
	if err != nil {
		t.Fatal(err)
	}
	acknowledged := func() {
		t.Helper()
		wait.Eventually(t, "the reader's consumer has all messages", func() bool {
			// A message that had to wait for the cluster may be there twice, and the second one unread.
			if _, err := s.Read(t.Context(), "reader", "roadmap", 10); err != nil {
				return false
			}
			state, err := stream.Info(t.Context())
			if err != nil {
				return false
			}
			for info := range stream.ListConsumers(t.Context()).Info() {
				if info.AckFloor.Stream == state.State.LastSeq { // another may be left of an attempt
					return true
				}
			}
			return false
		})
	}
	acknowledged()
	for name := range stream.ConsumerNames(t.Context()).Name() {
		if err := stream.DeleteConsumer(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	wait.Eventually(t, "a stored message", func() bool {
		r, err := s.Send(t.Context(), "pm", "roadmap", "more")
		return err == nil && !r.Queued
	})
	reads("more")
	acknowledged()
	if err := js.DeleteStream(t.Context(), "p_ROADMAP"); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "a stored message", func() bool {
		r, err := s.Send(t.Context(), "pm", "roadmap", "2")
		return err == nil && !r.Queued
	})
	reads("2")
}

// REQ-CONFIG-010: a channel whose subject another stream has is refused with the name of that stream, also in the list of
// channels, and stops no other.
func TestAStreamThatHasAChannelsSubjectIsNamed(t *testing.T) {
	n := startServer(t)
	if _, err := n.Foreign().CreateStream(t.Context(), jetstream.StreamConfig{Name: "theirs", Subjects: []string{"p.roadmap", "x"}}); err != nil {
		t.Fatal(err)
	}
	cfg := n.config("p")
	for _, state := range inspect(t, cfg) {
		if state.Channel.Name != "roadmap" {
			if state.Err != nil {
				t.Errorf("%s: %v", state.Channel.Name, state.Err)
			}
			continue
		}
		wantCategory(t, state.Err, chat.ConflictError, "p.roadmap", "the stream theirs")
	}
	s := ready(t, open(t, cfg))
	_, err := s.Send(t.Context(), "pm", "roadmap", "x")
	wantCategory(t, err, chat.ConflictError, "p.roadmap", "the stream theirs", "namespace")
	if r, err := s.Send(t.Context(), "pm", "parallel-work", "x"); err != nil || r.Queued {
		t.Errorf("the other channel: %+v, %v", r, err)
	}
}

// A stream that somebody deletes is created again by the send: nothing is queued.
func TestADeletedStreamQueuesNothing(t *testing.T) {
	n := startServer(t)
	s := ready(t, open(t, n.config("p")))
	send(t, s, "pm", "roadmap", "x")
	s.Changed() // subscribes, which hides that there is no stream
	if err := n.Foreign().DeleteStream(t.Context(), "p_ROADMAP"); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Send(t.Context(), "pm", "roadmap", "y"); err != nil || r.Queued {
		t.Errorf("got %+v, %v", r, err)
	}
}

// A Sender recognizes its own messages, however many, and no others.
func TestASenderRecognizesItsMessages(t *testing.T) {
	n := startServer(t)
	s := ready(t, open(t, n.config("p")))
	a, b := s.NewSender(), s.NewSender()
	for i := range 1100 {
		from := a
		if i%100 == 0 {
			from = b
		}
		if _, err := from.Send(t.Context(), "same", "roadmap", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	stored(t, s)
	for cursor, seen := (chat.Cursor{"roadmap": 0}), 0; seen < 1100; {
		news, err := s.Wait(t.Context(), cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range news.Messages["roadmap"] {
			if a.Sent(m) != (m.Text[max(len(m.Text)-2, 0):] != "00" && m.Text != "0") || a.Sent(m) == b.Sent(m) {
				t.Errorf("%s: %t, %t", m.Text, a.Sent(m), b.Sent(m))
			}
			seen++
		}
		cursor = news.Cursor
	}
}
