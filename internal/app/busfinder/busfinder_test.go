package busfinder_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/handlers"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub/process"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	"github.com/parleyhub/parley/internal/testbed"
)

// beHub is the environment variable that makes the test binary a hub process in the background.
const beHub = "PARLEY_TEST_HUB"

func TestMain(m *testing.M) {
	if os.Getenv(beHub) != "" {
		os.Exit(serve(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// serve does what `parley start --background` does.
func serve(args []string) int {
	var overrides []config.Override
	flags := flag.NewFlagSet("hub", flag.ExitOnError)
	for name, key := range map[string]string{"socket": "socket.path", "data-dir": "dataDir", "http-port": "http.port"} {
		flags.Func(name, key, func(v string) error {
			overrides = append(overrides, config.Override{Key: key, Value: v, Flag: name})
			return nil
		})
	}
	file := flags.String("config", "", "")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	cfg, err := config.Load(config.Options{File: *file, Overrides: overrides})
	if daemon.RunInBackground(context.Background(), cfg, err, os.Stdout, daemon.Options{Version: "test"}) != nil {
		return 1
	}
	return 0
}

// testHub is the directory and configuration file of a hub.
type testHub struct{ dir, yaml string }

func newTestHub(t *testing.T, yaml string) *testHub {
	t.Helper()
	dir, err := os.MkdirTemp("", "parley") // short: a socket's path is limited
	must(t, err)
	p := &testHub{dir: dir, yaml: filepath.Join(dir, "config.yaml")}
	t.Setenv(beHub, "1")
	t.Setenv("GOCOVERDIR", t.TempDir())
	must(t, os.WriteFile(p.yaml, []byte("socket: {path: "+dir+"/hub.sock}\n"+yaml), 0o600))
	t.Cleanup(func() {
		p.stop(t)
		must(t, os.RemoveAll(dir))
	})
	return p
}

const noPort = "http: {enabled: false}\n"

func (p *testHub) load(context.Context) (*config.Loaded, error) {
	return config.Load(config.Options{File: p.yaml, LookupEnv: func(string) (string, bool) { return "", false },
		Overrides: []config.Override{{Key: "dataDir", Value: p.dir, Flag: "--data-dir"}}})
}

// finder returns a Finder for the hub's bus.
func (p *testHub) finder(t *testing.T, change ...func(*busfinder.Config)) *busfinder.Finder {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cfg := busfinder.Config{
		Config:    bus.Config{Logger: slog.New(slog.DiscardHandler)},
		Namespace: "test", Hub: p.load, Autostart: true, Command: []string{exe},
	}
	for _, f := range change {
		f(&cfg)
	}
	return busfinder.New(cfg)
}

func (p *testHub) running(t *testing.T) (daemon.Info, bool) {
	t.Helper()
	info, running, err := daemon.Running(p.dir)
	must(t, err)
	return info, running
}

func (p *testHub) stop(t *testing.T) {
	t.Helper()
	_, _, err := daemon.Stop(context.Background(), p.dir, func(ctx context.Context) error {
		c, err := client.Dial(ctx, p.dir+"/hub.sock")
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Shutdown(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}

func dial(t *testing.T, f *busfinder.Finder) *bus.Bus {
	t.Helper()
	b, err := f.Dial(t.Context())
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError checks the code, and that message and remedy contain the words.
func wantError(t *testing.T, err error, code bus.Code, words ...string) {
	t.Helper()
	e, ok := errors.AsType[*bus.Error](err)
	if !ok || e.Code != code || e.Remedy == "" {
		t.Fatalf("%v (%#v), want %s", err, err, code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// closedPort returns an address where nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testbed.FreePorts(t, 1)[0])
}

// Messages for a configured server must not be stored on another bus, where nobody reads them.
func TestAConfiguredServerIsNeverReplacedByTheHub(t *testing.T) {
	p := newTestHub(t, noPort)
	dial(t, p.finder(t)) // starts a hub
	_, err := p.finder(t, func(c *busfinder.Config) { c.URL = bus.Secret("nats://" + closedPort(t)) }).Dial(t.Context())
	wantError(t, err, bus.CodeNotRunning, "no NATS server is running", "nats-server -js")

	q := newTestHub(t, noPort)
	_, err = q.finder(t, func(c *busfinder.Config) { c.URL = bus.Secret("nats://" + closedPort(t)) }).Dial(t.Context())
	wantError(t, err, bus.CodeNotRunning)
	if _, running := q.running(t); running {
		t.Error("a hub was started for a configured URL")
	}
}

// REQ-PORT-005
func TestTheRunningHubsBusIsJoined(t *testing.T) {
	p := newTestHub(t, noPort)
	first := dial(t, p.finder(t))
	second := dial(t, p.finder(t, func(c *busfinder.Config) { c.Autostart = false }))
	info := second.Info()
	if info.Kind != bus.KindJoined || info.HubPID != first.Info().HubPID || info.Durability != bus.DurabilityCommit ||
		info.StoreDir != filepath.Join(p.dir, "bus") {
		t.Errorf("joined %+v", info)
	}
}

func TestNoHubIsStartedWithoutAutostart(t *testing.T) {
	p := newTestHub(t, noPort)
	_, err := p.finder(t, func(c *busfinder.Config) { c.Autostart = false }).Dial(t.Context())
	wantError(t, err, bus.CodeNotRunning, "no hub is running", "parley start", "NATS_MCP_AUTOSTART", "NATS_URL")
	if _, running := p.running(t); running {
		t.Error("a hub was started")
	}
}

// Concurrent processes start one hub. The marker of an agent's turn is not passed on to the hub,
// which outlives the turn.
func TestManyProcessesAtOnceGetOneHub(t *testing.T) {
	p := newTestHub(t, noPort)
	t.Setenv(process.MarkerEnv, "hub-0123.deadbeef")
	buses := make([]*bus.Bus, 6)
	errs := make([]error, len(buses))
	var all sync.WaitGroup
	for i := range buses {
		f := p.finder(t)
		all.Go(func() { buses[i], errs[i] = f.Dial(t.Context()) })
	}
	all.Wait()
	pids := map[int]bool{}
	for i, b := range buses {
		must(t, errs[i])
		pids[b.Info().HubPID] = true
		must(t, b.Close(t.Context()))
	}
	info, running := p.running(t)
	if len(pids) != 1 || !running || !pids[info.PID] {
		t.Fatalf("hubs %v, the running one is %d", pids, info.PID)
	}
	if runtime.GOOS == "linux" {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", info.PID))
		must(t, err)
		if bytes.Contains(env, []byte(process.MarkerEnv)) {
			t.Error("the hub has the marker of an agent's turn")
		}
	}
}

// Port 8080 is in use on many computers; channels must work anyway.
func TestAHubStartsWithItsPortInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, ln.Close()) })
	p := newTestHub(t, "http: {port: "+strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)+"}\n")
	dial(t, p.finder(t))
	if info, running := p.running(t); !running || info.HTTP == "" {
		t.Errorf("running %t: %+v", running, info)
	}
}

// A joined bus starts a killed hub again and reconnects to it: at rest if another connection notices the loss, or when it
// is used.
func TestAKilledHubIsStartedAgain(t *testing.T) {
	for name, tt := range map[string]struct{ rests, noticed bool }{
		"connected": {}, "at rest": {rests: true, noticed: true}, "at rest, not noticed": {rests: true},
	} {
		t.Run(name, func(t *testing.T) { testKilledHub(t, tt.rests, tt.noticed) })
	}
}

func testKilledHub(t *testing.T, rests, noticed bool) {
	p := newTestHub(t, noPort)
	var present presence
	b := dial(t, p.finder(t, func(c *busfinder.Config) {
		if c.RestAfter = 5 * time.Millisecond; rests {
			c.Presence = &present
		}
	}))
	_, err := b.EnsureStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, MaxBytes: 1 << 20})
	must(t, err)
	_, err = b.Publish(t.Context(), &nats.Msg{Subject: "s", Data: []byte("before")})
	must(t, err)
	changes := b.Conn().StatusChanged(nats.RECONNECTING, nats.CONNECTED)
	if rests {
		wait.Eventually(t, "a rest", b.Resting)
	}
	before, _ := p.running(t)
	hub, err := os.FindProcess(before.PID)
	must(t, err)
	must(t, hub.Kill())
	switch {
	case noticed:
		present.come()
	case rests:
		must(t, b.Conn().Publish("s", nil)) // lost with the connection
	}
	await(t, changes, nats.RECONNECTING)
	await(t, changes, nats.CONNECTED)
	after, running := p.running(t)
	if !running || after.PID == before.PID || b.Info().HubPID != after.PID {
		t.Errorf("hub %d after %d; the bus is joined to %d", after.PID, before.PID, b.Info().HubPID)
	}
	ack, err := b.Publish(t.Context(), &nats.Msg{Subject: "s", Data: []byte("after")})
	if err != nil || ack.Sequence != 2 {
		t.Errorf("stored as %+v, %v", ack, err)
	}
}

// A hub that a user stopped is not started by a joined bus, only by a new process.
func TestAStoppedHubStaysStopped(t *testing.T) {
	p := newTestHub(t, noPort)
	b := dial(t, p.finder(t))
	changes := b.Conn().StatusChanged(nats.RECONNECTING, nats.CONNECTED)
	p.stop(t)
	await(t, changes, nats.RECONNECTING)
	for !strings.Contains(b.Info().LastError, "was stopped") {
		if b.Info().State == bus.StateConnected {
			t.Fatal("the hub was started again")
		}
		runtime.Gosched()
	}
	wait.Eventually(t, "it is known that the hub is not only stopping", func() bool { return errors.Is(b.Connection().Err, bus.ErrStopped) })
	if _, running := p.running(t); running {
		t.Error("the hub is running again")
	}
	other := dial(t, p.finder(t)) // a new process starts it
	await(t, changes, nats.CONNECTED)
	if b.Info().HubPID != other.Info().HubPID {
		t.Error("the bus has joined another hub")
	}
}

func await(t *testing.T, changes <-chan nats.Status, want nats.Status) {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case got := <-changes:
			if got == want {
				return
			}
		case <-timeout:
			t.Fatalf("the connection is not %v", want)
		}
	}
}

func TestErrorsWithoutABus(t *testing.T) {
	tests := []struct {
		name, yaml string
		change     func(*busfinder.Config)
		want       bus.Code
		words      []string
	}{
		{name: "hub without a socket", yaml: noPort, change: func(c *busfinder.Config) {
			load := c.Hub
			c.Hub = func(ctx context.Context) (*config.Loaded, error) {
				cfg, err := load(ctx)
				if err == nil {
					cfg.Socket.Path = "/proc/none/hub.sock"
				}
				return cfg, err
			}
		}, want: bus.CodeNotRunning, words: []string{"could not be started"}},
		{name: "reserved namespace", yaml: noPort, change: func(c *busfinder.Config) { c.Namespace = "global" },
			want: bus.CodeConfig, words: []string{"reserved", "another namespace"}},
		{name: "bad namespace", yaml: noPort, change: func(c *busfinder.Config) { c.Namespace = "a.>" },
			want: bus.CodeConfig, words: []string{"lowercase"}},
		{name: "unknown access", yaml: noPort, change: func(c *busfinder.Config) { c.Access = "all" },
			want: bus.CodeConfig, words: []string{"access"}},
		{name: "wrong configuration", yaml: "nonsense: 1\n", want: bus.CodeConfig, words: []string{"nonsense", "parley config validate"}},
		{name: "no such program", yaml: noPort, change: func(c *busfinder.Config) { c.Command = []string{"/nonexistent"} },
			want: bus.CodeNotRunning, words: []string{"could not be started"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newTestHub(t, tt.yaml)
			change := tt.change
			if change == nil {
				change = func(*busfinder.Config) {}
			}
			_, err := p.finder(t, change).Dial(t.Context())
			wantError(t, err, tt.want, tt.words...)
		})
	}
}

// A failed start is not repeated at once.
func TestAFailedStartIsRemembered(t *testing.T) {
	p := newTestHub(t, noPort)
	marker := filepath.Join(p.dir, "started")
	script := filepath.Join(p.dir, "hub.sh")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\necho x >>"+marker+"\nexit 3\n"), 0o700))
	f := p.finder(t, func(c *busfinder.Config) { c.Command = []string{script} })
	for range 3 {
		_, err := f.Dial(t.Context())
		wantError(t, err, bus.CodeNotRunning, "could not be started")
	}
	if data, err := os.ReadFile(marker); err != nil || len(data) != 2 {
		t.Errorf("started %d times (%v)", len(data)/2, err)
	}
}

// On an external server the hub has no accounts of its own to grant.
func TestAHubOnAnExternalServerReportsWhatToConfigure(t *testing.T) {
	stock := testbed.StartNATS(t)
	p := newTestHub(t, noPort+"bus: {url: \""+stock.URL()+"\"}\n")
	_, err := p.finder(t).Dial(t.Context())
	wantError(t, err, bus.CodeUnsupported, "external", "NATS_URL")
}

// REQ-SEC-001, REQ-SEC-007
func TestForProject(t *testing.T) {
	project := &mcpconfig.Config{Document: mcpconfig.Document{
		Namespace: "project-1", NATSURL: "tls://example.org", Autostart: true,
		Credentials: mcpconfig.Credentials{Username: "u", Password: "p"},
		TLS:         mcpconfig.TLS{Cert: "c", Key: "k", CA: "a"},
	}}
	got := busfinder.ForProject(project)
	want := bus.Credentials{User: "u", Password: "p", CertFile: "c", KeyFile: "k", CAFile: "a"}
	if got.URL != "tls://example.org" || got.Credentials != want || got.Namespace != "project-1" || !got.Autostart ||
		got.Access != bus.AccessProject || !strings.Contains(got.Name, "project-1") {
		t.Errorf("%+v", got)
	}
}

// A configured server can be unusable for four reasons, and each has its own message.
func TestUnusableConfiguredServersHaveDifferentMessages(t *testing.T) {
	start := func(change func(*server.Options)) string { return testbed.StartNATS(t, change).Addr() }
	p := newTestHub(t, noPort)
	messages := map[string]bool{}
	for name, tt := range map[string]struct {
		url   string
		code  bus.Code
		words []string
	}{
		"down":              {closedPort(t), bus.CodeNotRunning, []string{"no NATS server is running", "start it", "correct the URL"}},
		"without JetStream": {start(testbed.WithoutJetStream), bus.CodeNoJetStream, []string{"without JetStream", "-js"}},
		"credentials": {start(func(o *server.Options) { o.Username, o.Password = "u", "p" }),
			bus.CodeAuth, []string{"credentials", "user and password"}},
		"unreachable": {"host.invalid:4222", bus.CodeNetwork, []string{"cannot reach", "host"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.finder(t, func(c *busfinder.Config) {
				c.URL, c.Credentials = bus.Secret("nats://"+tt.url), bus.Credentials{User: "u", Password: "wrong-secret"}
			}).Dial(t.Context())
			wantError(t, err, tt.code, tt.words...)
			if strings.Contains(err.Error(), "wrong-secret") {
				t.Errorf("%v shows the password", err)
			}
			messages[err.Error()] = true
		})
	}
	if len(messages) != 4 {
		t.Errorf("%d messages for four reasons", len(messages))
	}
}

// Without a cluster the agents of this computer use its hub's bus.
func TestForNetwork(t *testing.T) {
	project := &mcpconfig.Config{Document: mcpconfig.Document{Namespace: "project-1", NATSURL: "tls://example.org", Autostart: true}}
	got := busfinder.ForNetwork(project)
	if got.URL != "" || got.Access != bus.AccessNetwork || !got.Autostart || !strings.Contains(got.Name, "project-1") {
		t.Errorf("%+v", got)
	}
	project.CrossComputer.Enabled = true
	project.CrossComputer.NATSClusterURLs = []mcpconfig.URL{"tls://a.example.org", "tls://b.example.org"}
	if got = busfinder.ForNetwork(project); got.Autostart || !strings.Contains(string(got.URL), "b.example.org") {
		t.Errorf("%+v", got)
	}
}

// An agent's connection to this computer's network belongs to the agent: after the hub was killed
// and restarted, only the agent's secret restores its GUID.
func TestDialAgent(t *testing.T) {
	p := newTestHub(t, noPort)
	request := registry.AdmissionRequest{AgentType: "worker", ProjectPath: p.dir}
	admission, b, err := p.finder(t).DialAgent(t.Context(), dialect.NetworkJoinParams{}, request)
	must(t, err)
	defer b.Close(context.Background()) //nolint:errcheck // the test is over
	if admission.GUID == "" || admission.Secret == "" || admission.Control == "" || admission.Reused {
		t.Fatalf("%+v", admission)
	}
	request.GUID, request.Secret = admission.GUID, admission.Secret
	again, same, err := p.finder(t).DialAgent(t.Context(), dialect.NetworkJoinParams{}, request)
	must(t, err)
	must(t, same.Close(context.Background()))
	if again.GUID != admission.GUID {
		t.Errorf("the admission changed from %+v to %+v", admission, again)
	}
	request.Secret = "guessed"
	_, _, err = p.finder(t).DialAgent(t.Context(), dialect.NetworkJoinParams{}, request)
	if _, ok := errors.AsType[*bus.Error](err); !ok {
		t.Errorf("a guessed secret: %v", err)
	}
	_, _, err = p.finder(t).DialAgent(t.Context(), dialect.NetworkJoinParams{}, registry.AdmissionRequest{AgentType: "\x00"})
	wantError(t, err, bus.CodeConfig)
}

// An agent's connection rests, and is there again when it is used.
func TestTheConnectionOfAnAgentRests(t *testing.T) {
	p := newTestHub(t, noPort)
	f := p.finder(t, func(c *busfinder.Config) { c.RestAfter = 5 * time.Millisecond })
	_, b, err := f.DialAgent(t.Context(), dialect.NetworkJoinParams{}, registry.AdmissionRequest{AgentType: "worker", ProjectPath: p.dir, LateInbox: true})
	must(t, err)
	defer b.Close(context.Background()) //nolint:errcheck // the test is over
	for range 5 {
		wait.Eventually(t, "a rest", b.Resting)
		_, err := b.JetStream().AccountInfo(t.Context())
		must(t, err)
	}
}

// presence is whether the hub is there.
type presence struct {
	changes handlers.List[func()]
	absent  atomic.Bool
}

func (p *presence) Present() bool                     { return !p.absent.Load() }
func (p *presence) OnPresence(f func()) (stop func()) { return p.changes.Add(f) }

// come has the hub come or go.
func (p *presence) come() {
	for _, f := range p.changes.All() {
		(*f)()
	}
}

// The connection to a project rests while the hub is present, and is there again, unnoticed, when it is used.
func TestTheConnectionOfAProjectRests(t *testing.T) {
	p := newTestHub(t, noPort)
	var present presence
	b := dial(t, p.finder(t, func(c *busfinder.Config) { c.RestAfter, c.Presence = 5*time.Millisecond, &present }))
	changes := b.Conn().StatusChanged(nats.RECONNECTING, nats.CONNECTED)
	for range 5 {
		wait.Eventually(t, "a rest", b.Resting)
		_, err := b.JetStream().AccountInfo(t.Context())
		must(t, err)
	}
	if len(changes) > 0 {
		t.Errorf("the client noticed %v", <-changes)
	}
	wait.Eventually(t, "a rest", b.Resting)
	present.absent.Store(true)
	present.come()
	await(t, changes, nats.RECONNECTING)
	await(t, changes, nats.CONNECTED)
	<-time.After(100 * time.Millisecond) // ten times as long as a rest needs
	if b.Resting() || len(present.changes.All()) > 0 {
		t.Error("it rests without anybody who notices the end of the hub")
	}
	present.absent.Store(false)
	wait.Eventually(t, "a rest", b.Resting)
}
