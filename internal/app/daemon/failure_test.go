//go:build unix

package daemon_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gofrs/flock"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/testbed"
)

// A start that fails reports the remedy, and unlocks the data directory.
func TestStartReportsABrokenDataDirectory(t *testing.T) {
	t.Parallel()
	shared := "bus.url=" + natsServer(t)
	for name, c := range map[string]struct {
		spoil    func(dir string) error
		settings []string
		code     daemon.Code
		want     string
	}{
		"audit log": {func(dir string) error { return os.WriteFile(daemon.AuditDir(dir), nil, 0o600) }, nil, daemon.CodeDataDir, "node.audit.enabled"},
		"run file":  {func(dir string) error { return os.MkdirAll(dir+"/hub.json/full", 0o700) }, nil, daemon.CodeDataDir, "run file"},
		"hub name":  {func(dir string) error { return os.WriteFile(dir+"/hub-name", []byte("Two Words"), 0o600) }, []string{shared}, daemon.CodeDataDir, "hub-name"},
		"identity": {func(dir string) error {
			path := peers.KeyPath(dir)
			return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("no key"), 0o600))
		}, []string{shared, "peers.enabled=true"}, daemon.CodeStart, "peers.enabled"},
		"lock": {func(dir string) error { return os.Symlink("hub.lock", dir+"/hub.lock") }, nil, daemon.CodeDataDir, "cannot lock"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newDir(t)
			if err := c.spoil(dir); err != nil {
				t.Fatal(err)
			}
			err := daemon.Run(t.Context(), mustLoad(t, dir, c.settings...), daemon.Options{Logger: slog.New(slog.DiscardHandler)})
			var de *daemon.Error
			if !errors.As(err, &de) || de.Code != c.code || !strings.Contains(de.Error(), c.want) {
				t.Fatalf("got %v, want %s with %q", err, c.code, c.want)
			}
			if name == "lock" {
				return
			}
			if _, isRunning, err := daemon.Running(dir); err != nil || isRunning {
				t.Errorf("the directory is still locked: %t, %v", isRunning, err)
			}
		})
	}
}

// An unreadable lock is an error: whether a hub runs is unknown.
func TestUnreadableLock(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if err := os.Symlink("hub.lock", dir+"/hub.lock"); err != nil {
		t.Fatal(err)
	}
	var de *daemon.Error
	if _, err := daemon.Start(t.Context(), dir, []string{"/no/such/program"}); !errors.As(err, &de) || de.Code != daemon.CodeDataDir || !strings.Contains(de.Message, "hub.lock") {
		t.Errorf("start: %v", err)
	}
	ask := func(context.Context) error { t.Error("the stop request was sent"); return nil }
	if _, _, err := daemon.Stop(t.Context(), dir, ask); !errors.As(err, &de) || de.Code != daemon.CodeDataDir || !errors.Is(err, de.Err) {
		t.Errorf("stop: %v", err)
	}
}

// Start waits for a process that holds the lock without answering, and then names it.
func TestAProcessThatHoldsTheLockWithoutAnswering(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	lock := flock.New(dir + "/hub.lock")
	if ok, err := lock.TryLock(); err != nil || !ok {
		t.Fatal(ok, err)
	}
	defer lock.Unlock()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	silence := errors.New("no answer")
	silent := func(context.Context) error { return silence }
	var de *daemon.Error

	if _, err := daemon.Start(ended, dir, []string{"/no/such/program"}); !errors.As(err, &de) || !strings.Contains(de.Message, "does not answer") || !errors.Is(err, context.Canceled) {
		t.Errorf("start: %v", err)
	}
	if _, was, err := daemon.Stop(t.Context(), dir, silent); !was || !errors.As(err, &de) || de.Code != daemon.CodeStop || !errors.Is(err, silence) {
		t.Errorf("stop of a starting hub: %t, %v", was, err)
	}
	if _, was, err := daemon.Stop(ended, dir, func(context.Context) error { return nil }); !was || !errors.As(err, &de) || !strings.Contains(de.Message, "has not stopped yet") {
		t.Errorf("stop with an ended context: %t, %v", was, err)
	}

	const pid = "1073741824" // greater than any process id
	if err := os.WriteFile(dir+"/hub.json", []byte(`{"pid":`+pid+`}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, was, err := daemon.Stop(t.Context(), dir, silent); !was || !errors.As(err, &de) || !strings.Contains(de.Message, "cannot signal the hub (process "+pid+")") {
		t.Errorf("stop of a process that has ended: %t, %v", was, err)
	}
	// Without a socket it cannot be asked: its lock and its run file are believed.
	if info, err := daemon.Start(t.Context(), dir, []string{"/no/such/program"}); !errors.As(err, &de) || de.Code != daemon.CodeRunning || strconv.Itoa(info.PID) != pid {
		t.Errorf("start beside a hub without a socket: %+v, %v", info, err)
	}
}

// A background hub reports a used port to its starter with a code.
func TestPortInUseIsReported(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, err = start(t, "serve", newDir(t), "http.port="+port)
	var de *daemon.Error
	if !errors.As(err, &de) || de.Code != daemon.CodeInUse || !strings.Contains(de.Message, port) {
		t.Errorf("got %v", err)
	}
	dir := newDir(t)
	t.Chdir(dir)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := daemon.RunInBackground(t.Context(), mustLoad(t, dir, "http.port="+port), nil, w, daemon.Options{}); err == nil {
		t.Error("no error")
	}
	if report, err := io.ReadAll(r); err != nil || !strings.Contains(string(report), string(daemon.CodeInUse)) {
		t.Errorf("the report %s, %v", report, err)
	}
}

// A log that cannot be rotated returns an error instead of growing.
func TestALogThatCannotBeRotated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hub.log")
	if err := os.MkdirAll(path+".1/full", 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := daemon.OpenLogWithLimit(path, 10)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := l.Write([]byte("12345678\n")); n != 9 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := l.Write([]byte("12345678\n")); n != 0 || err == nil {
		t.Errorf("wrote %d bytes beyond the limit, %v", n, err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 9 {
		t.Errorf("%v, %v", info, err)
	}
	if err := l.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("close: %v", err)
	}
	if _, err := daemon.OpenLog(filepath.Join(path + ".1")); err == nil {
		t.Error("a directory was opened as a log")
	}
}

func TestUnknownLogLevelIsInfo(t *testing.T) {
	t.Parallel()
	log := daemon.NewLogger(io.Discard, config.Logging{Level: "loud"}, false)
	if !log.Enabled(t.Context(), slog.LevelInfo) || log.Enabled(t.Context(), slog.LevelDebug) {
		t.Error("the level is not info")
	}
}

func TestErrorsHaveTheirRemedy(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	for want, e := range map[string]*daemon.Error{
		"what": {Message: "what", Err: cause}, "what; mend it": {Message: "what", Remedy: "mend it", Err: cause},
	} {
		if e.Error() != want || !errors.Is(e, cause) {
			t.Errorf("%q, want %q", e, want)
		}
	}
}

// gRPC requires the token of HTTP, if one is configured.
func TestTheTokenIsRequiredByGRPC(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef0123456789abcdef"
	for _, c := range []struct {
		configured, given string
		refused           bool
	}{{token, "", true}, {token, token + "0", true}, {token, token, false}, {"", "", false}} {
		settings := []string{"grpc.port=" + strconv.Itoa(testbed.FreePorts(t, 1)[0])}
		if c.configured != "" {
			settings = append(settings, "http.token="+c.configured)
		}
		r := run(t, mustLoad(t, newDir(t), settings...))
		conn, err := grpc.NewClient(r.info.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+c.given)
		err = conn.Invoke(ctx, "/lf.a2a.v1.A2AService/GetTask", &emptypb.Empty{}, &emptypb.Empty{})
		if code := status.Code(err); (code == codes.Unauthenticated) != c.refused || code == codes.Unavailable || code == codes.Unimplemented {
			t.Errorf("configured %q, given %q: %v", c.configured, c.given, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		r.end(t)
	}
}

// A hub that listens on every address reports a loopback URL.
func TestAHubOnEveryAddressReportsALoopbackURL(t *testing.T) {
	t.Parallel()
	r := run(t, mustLoad(t, newDir(t), "http.host=0.0.0.0", "http.token=0123456789abcdef0123456789abcdef", "bus.maxStore=1073741824"))
	defer r.end(t)
	defer http.DefaultClient.CloseIdleConnections()
	if !strings.HasPrefix(r.info.HTTP, "http://127.0.0.1:") {
		t.Fatalf("the URL is %s", r.info.HTTP)
	}
	resp, err := http.Get(r.info.HTTP + "/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
}

func TestInvalidDocumentNamesAreRefused(t *testing.T) {
	t.Parallel()
	r := run(t, mustLoad(t, newDir(t)))
	defer r.end(t)
	defer http.DefaultClient.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.info.HTTP+"/documents/no.name", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="},
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "name") {
		t.Errorf("%s %s, %v", resp.Status, body, err)
	}
}

// A hub on a shared server reports that, keeps its name, and has an identity.
func TestHubOnASharedServer(t *testing.T) {
	t.Parallel()
	url := natsServer(t)
	dir := newDir(t)
	names := [2]string{}
	for i := range names {
		r := run(t, mustLoad(t, dir, "bus.url="+url, "peers.enabled=true"))
		c, err := client.Dial(t.Context(), r.info.Socket)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := c.Status(t.Context()); err != nil || s.Bus.Embedded || s.Bus.URL != url || s.Bus.Error != "" {
			t.Errorf("status %+v, %v", s, err)
		}
		c.Close()
		name, err := os.ReadFile(dir + "/hub-name")
		if err != nil {
			t.Fatal(err)
		}
		names[i] = string(name)
		r.end(t)
	}
	if names[0] == "" || names[0] != names[1] {
		t.Errorf("the hub's name was %q, and is %q", names[0], names[1])
	}
	if info, err := os.Stat(peers.KeyPath(dir)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the identity: %v, %v", info, err)
	}
}

// The metrics that Prometheus reads.
func TestMetricsHaveTheAgentsAndTheVersion(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(nodeYAML), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, mustLoad(t, dir))
	defer r.end(t)
	defer http.DefaultClient.CloseIdleConnections()
	c, err := client.Dial(t.Context(), r.info.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.CheckHealth(t.Context(), "parrot"); err != nil {
		t.Fatal(err)
	}
	text := fetch(t, r.info.HTTP+"/metrics", "sixteen-chars-or-more")
	for _, want := range []string{
		`parley_tasks 0`, `parley_tasks_active 0`, `parley_build_info{version="test"} 1`, `parley_agent_running{agent="parrot"} 0`,
		`parley_agent_queued{agent="parrot"} 0`, `parley_agent_health{agent="parrot",status="healthy"} 1`, `parley_agent_health{agent="parrot",status="unhealthy"} 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("/metrics has no %s:\n%s", want, text)
		}
	}
	if strings.Contains(text, "claude-code") {
		t.Error("/metrics has an agent that is disabled")
	}
}
