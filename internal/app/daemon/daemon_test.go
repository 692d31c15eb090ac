//go:build unix

package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/sessions/presence"
	"github.com/parleyhub/parley/internal/testbed"
)

// With this first argument, and a kind as the second, the test binary runs as a background process.
const beHub = "test-hub"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == beHub {
		os.Exit(background(os.Args[2], os.Args[3:]))
	}
	// Background processes write their coverage to a directory that is removed, and do not wait a second for the
	// race detector at their end. HOME has no configuration.
	coverage, err := os.MkdirTemp("", "parley-coverage")
	if err = errors.Join(err, os.Setenv("GOCOVERDIR", coverage), os.Setenv("HOME", coverage), os.Setenv("GORACE", "atexit_sleep_ms=0")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(coverage); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}))
}

// background runs as a background process of a kind and returns its exit code.
func background(kind string, args []string) int {
	if kind == "leave" && daemon.LeaveParent() {
		return 0
	}
	switch kind {
	case "serve", "leave":
		cfg, err := load(args[0], args[1:]...)
		err = daemon.RunInBackground(context.Background(), cfg, err, os.Stdout, daemon.Options{Version: "test", SwarmTakeover: 2 * time.Second})
		if err != nil {
			return 1
		}
		return 0
	case "die":
		return 3
	case "silent":
		select {}
	}
	return 2
}

// hubCommand returns the command line of a background process.
func hubCommand(t testing.TB, kind, dir string, settings ...string) []string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{exe, beHub, kind, dir}, settings...)
}

func newDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "parley") // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// load loads the configuration of a hub in dir, changed by settings of the form key=value.
func load(dir string, settings ...string) (*config.Loaded, error) {
	overrides := []config.Override{
		{Key: "dataDir", Value: dir}, {Key: "socket.path", Value: dir + "/hub.sock"}, {Key: "http.port", Value: "0"},
	}
	for _, s := range settings {
		key, value, _ := strings.Cut(s, "=")
		overrides = append(overrides, config.Override{Key: key, Value: value, Flag: key})
	}
	return config.Load(config.Options{Overrides: overrides, LookupEnv: func(string) (string, bool) { return "", false }})
}

func mustLoad(t testing.TB, dir string, settings ...string) *config.Loaded {
	t.Helper()
	cfg, err := load(dir, settings...)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// running is a hub that runs in this process.
type running struct {
	info daemon.Info
	stop context.CancelFunc
	done chan error
}

func run(t testing.TB, cfg *config.Loaded) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{stop: cancel, done: make(chan error, 1)}
	ready := make(chan daemon.Info, 1)
	go func() {
		r.done <- daemon.Run(ctx, cfg, daemon.Options{
			Version: "test", Logger: slog.New(slog.DiscardHandler), Ready: func(i daemon.Info) { ready <- i },
		})
	}()
	select {
	case r.info = <-ready:
	case err := <-r.done:
		t.Fatal(err)
	}
	return r
}

func (r *running) end(t testing.TB) {
	t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("the hub: %v", err)
	}
}

func TestRunServesSocketHTTPAndGRPC(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	r := run(t, mustLoad(t, dir, "grpc.port="+strconv.Itoa(testbed.FreePorts(t, 1)[0])))
	defer r.end(t)

	c, err := client.Dial(t.Context(), r.info.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	status, err := c.Status(t.Context())
	if err != nil || status.PID != os.Getpid() || !status.Bus.Embedded || status.Bus.Mode != "commit" {
		t.Errorf("status %+v, %v", status, err)
	}
	for path, want := range map[string]string{
		"/health": `"status":"healthy"`, "/.well-known/agent.json": r.info.HTTP, "/.well-known/agent-card.json": `"supportedInterfaces"`,
	} {
		resp, err := http.Get(r.info.HTTP + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 || !bytes.Contains(body, []byte(want)) {
			t.Errorf("%s: %d %.300s, want %s in it", path, resp.StatusCode, body, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	nc, err := net.Dial("tcp", r.info.GRPC)
	if err != nil {
		t.Error(err)
	} else {
		nc.Close()
	}
}

func TestRunFileIsPrivateAndRemovedAtTheEnd(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r := run(t, mustLoad(t, dir, "http.enabled=false"))
	for path, mode := range map[string]os.FileMode{dir: 0o700, dir + "/hub.json": 0o600, dir + "/hub.sock": 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: mode %v, %v, want %v", path, info.Mode().Perm(), err, mode)
		}
	}
	info, isRunning, err := daemon.Running(dir)
	if err != nil || !isRunning || info.PID != os.Getpid() || info.HTTP != "" {
		t.Errorf("Running: %+v, %t, %v", info, isRunning, err)
	}
	r.end(t)
	if _, isRunning, err := daemon.Running(dir); err != nil || isRunning {
		t.Errorf("after the end: running %t, %v", isRunning, err)
	}
	for _, name := range []string{"hub.json", "hub.sock"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}

func TestSecondHubIsRefused(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	r := run(t, mustLoad(t, dir))
	defer r.end(t)
	err := daemon.Run(t.Context(), mustLoad(t, dir, "socket.path="+dir+"/other.sock"), daemon.Options{Logger: slog.New(slog.DiscardHandler)})
	var de *daemon.Error
	if !errors.As(err, &de) || de.Code != daemon.CodeRunning {
		t.Errorf("got %v", err)
	}
	// A second hub on the same socket is refused, even with another data directory.
	other := newDir(t)
	err = daemon.Run(t.Context(), mustLoad(t, other, "socket.path="+dir+"/hub.sock"), daemon.Options{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		t.Error("two hubs on one socket")
	}
	if _, isRunning, err := daemon.Running(other); err != nil || isRunning {
		t.Errorf("the refused hub still locks its directory: %t, %v", isRunning, err)
	}
}

func TestClientStopsTheHub(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	r := run(t, mustLoad(t, dir))
	c, err := client.Dial(t.Context(), r.info.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-r.done; err != nil {
		t.Errorf("the hub: %v", err)
	}
}

// Stopping the hub and opening the bus are allowed on the socket only.
func TestHTTPNeitherStopsTheHubNorOpensTheBus(t *testing.T) {
	t.Parallel()
	r := run(t, mustLoad(t, newDir(t)))
	defer r.end(t)
	defer http.DefaultClient.CloseIdleConnections()
	for _, call := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"hub/shutdown"}`,
		`{"jsonrpc":"2.0","id":1,"method":"hub/bus/join","params":{"namespace":"a"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"hub/bus/leave","params":{"user":"hub"}}`,
	} {
		resp, err := http.Post(r.info.HTTP+"/", "application/json", strings.NewReader(call))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil || !bytes.Contains(body, []byte("-32601")) {
			t.Errorf("%s: got %s, %v", call, body, err)
		}
	}
}

func TestUnusableDataDirectory(t *testing.T) {
	t.Parallel()
	err := daemon.Run(t.Context(), mustLoad(t, "/proc/parley"), daemon.Options{Logger: slog.New(slog.DiscardHandler)})
	var de *daemon.Error
	if !errors.As(err, &de) || de.Code != daemon.CodeDataDir || de.Remedy == "" {
		t.Errorf("got %v", err)
	}
	if os.Geteuid() != 0 {
		return // only root can change a directory's owner
	}
	foreign := newDir(t)
	if err := os.Chown(foreign, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	err = daemon.Run(t.Context(), mustLoad(t, foreign), daemon.Options{Logger: slog.New(slog.DiscardHandler)})
	if !errors.As(err, &de) || !strings.Contains(de.Message, "belongs to another user") {
		t.Errorf("got %v", err)
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	err = daemon.Run(t.Context(), mustLoad(t, newDir(t), "http.port="+port), daemon.Options{Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), port) {
		t.Errorf("a port that the command line names: got %v", err)
	}
	hub := run(t, mustLoad(t, newDir(t), "grpc.port="+port))
	defer hub.end(t)
	if info := hub.info; info.GRPC == "" || strings.HasSuffix(info.GRPC, ":"+port) || len(info.Notices) != 1 || !strings.Contains(info.Notices[0], port) {
		t.Errorf("another port for gRPC: got %+v", info)
	}
}

func TestInterruptedStartEndsCleanly(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("changed my mind")
	cancel(cause)
	if err := daemon.Run(ctx, mustLoad(t, newDir(t)), daemon.Options{Logger: slog.New(slog.DiscardHandler)}); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

func TestBrokenRunFileIsNoHub(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if _, err := daemon.Read(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(dir+"/hub.json", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.Read(dir); err == nil {
		t.Error("a truncated file was accepted")
	}
	if _, isRunning, err := daemon.Running(dir); err != nil || isRunning {
		t.Errorf("running %t, %v", isRunning, err)
	}
}

// start starts the test binary as a background process.
func start(t *testing.T, kind, dir string, settings ...string) (daemon.Info, error) {
	t.Helper()
	return daemon.Start(t.Context(), dir, hubCommand(t, kind, dir, settings...))
}

func shutdown(socket string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := client.Dial(ctx, socket)
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Shutdown(ctx)
	}
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	info, err := start(t, "serve", dir)
	if err != nil {
		t.Fatal(err)
	}
	if info.PID == os.Getpid() || info.Log != daemon.LogPath(dir) {
		t.Errorf("info %+v", info)
	}
	again, err := start(t, "serve", dir)
	var de *daemon.Error
	if !errors.As(err, &de) || de.Code != daemon.CodeRunning || again.PID != info.PID {
		t.Errorf("the second start: %+v, %v", again, err)
	}
	stopped, was, err := daemon.Stop(t.Context(), dir, shutdown(info.Socket))
	if err != nil || !was || stopped.PID != info.PID {
		t.Errorf("stop: %+v, %t, %v", stopped, was, err)
	}
	if _, was, err := daemon.Stop(t.Context(), dir, shutdown(info.Socket)); err != nil || was {
		t.Errorf("the second stop: %t, %v", was, err)
	}
	log, err := os.ReadFile(daemon.LogPath(dir))
	if err != nil || !bytes.Contains(log, []byte(`"msg":"the hub stops"`)) {
		t.Errorf("the log: %s, %v", log, err)
	}
}

// A background hub does not inherit the pipes of the process that started it, so a reader of that process's output
// gets EOF. The test is not parallel: processes that other tests start would inherit its pipe.
func TestABackgroundHubInheritsNoPipe(t *testing.T) {
	dir := newDir(t)
	var pipe [2]int
	if err := syscall.Pipe(pipe[:]); err != nil { // inherited, as a shell's
		t.Fatal(err)
	}
	reader := os.NewFile(uintptr(pipe[0]), "pipe")
	defer reader.Close()
	info, err := start(t, "serve", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, _, err := daemon.Stop(context.Background(), dir, shutdown(info.Socket)); err != nil {
			t.Error(err)
		}
	}()
	if err := syscall.Close(pipe[1]); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(reader)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second): // only if the test fails
		t.Error("the hub has inherited the pipe")
	}
}

// A hub that does not answer on its socket gets a signal.
func TestStopBySignal(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	info, err := start(t, "serve", dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, was, err := daemon.Stop(t.Context(), dir, func(context.Context) error { return errors.New("no answer") }); err != nil || !was {
		t.Errorf("stop: %t, %v", was, err)
	}
	if err := shutdown(info.Socket)(t.Context()); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("the hub still answers: %v", err)
	}
}

func TestKilledHubIsReplaced(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	first, err := start(t, "serve", dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second, err := start(t, "serve", dir)
	if err != nil || second.PID == first.PID {
		t.Fatalf("%+v, %v", second, err)
	}
	if _, _, err := daemon.Stop(t.Context(), dir, shutdown(second.Socket)); err != nil {
		t.Error(err)
	}
}

func TestStartReportsWhyItFailed(t *testing.T) {
	t.Parallel()
	var de *daemon.Error
	if _, err := start(t, "serve", newDir(t), "logging.level=loud"); !errors.As(err, &de) || !strings.Contains(de.Message, "debug, info, warn, error") {
		t.Errorf("an invalid configuration: %v", err)
	}
	dir := newDir(t)
	if err := os.Mkdir(dir+"/hub.sock", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := start(t, "serve", dir); !errors.As(err, &de) || !strings.Contains(de.Message, "hub.sock") {
		t.Errorf("no socket: %v", err)
	}
	if _, err := start(t, "die", newDir(t)); !errors.As(err, &de) || !strings.Contains(de.Message, "exit status 3") {
		t.Errorf("an exit without a report: %v", err)
	}
	if _, err := daemon.Start(t.Context(), newDir(t), []string{"/no/such/program"}); !errors.As(err, &de) || de.Code != daemon.CodeStart {
		t.Errorf("no program: %v", err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var de *daemon.Error
	dir := newDir(t)
	if _, err := daemon.Start(ctx, dir, hubCommand(t, "silent", dir)); !errors.As(err, &de) || de.Code != daemon.CodeStart {
		t.Errorf("got %v", err)
	}
}

// An open session that has started the hub is no ancestor of it: Claude Code takes what its descendants send for the session's own.
func TestAHubThatLeavesItsParent(t *testing.T) {
	dir := newDir(t)
	for _, name := range []string{"CLAUDE_CODE_MESSAGING_TOKEN", "CLAUDE_CODE_SESSION_ID", "PARLEY_TEST_KEPT"} {
		t.Setenv(name, "x")
	}
	info, err := start(t, "leave", dir)
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "linux" {
		if presence.Running(os.Getpid()).IsAncestorOf(info.PID) {
			t.Error("this process is an ancestor of the hub")
		}
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", info.PID))
		if err != nil || bytes.Contains(env, []byte("CLAUDE_CODE_")) || bytes.Contains(env, []byte("PARLEY_LEAVE")) || !bytes.Contains(env, []byte("PARLEY_TEST_KEPT=x")) {
			t.Errorf("the hub's environment is %q, %v", env, err)
		}
	}
	if _, err := start(t, "leave", dir); daemon.CodeOf(err) != daemon.CodeRunning {
		t.Errorf("the second start: %v", err)
	}
	if _, _, err := daemon.Stop(t.Context(), dir, shutdown(info.Socket)); err != nil {
		t.Error(err)
	}
	var de *daemon.Error
	if _, err := start(t, "leave", newDir(t), "logging.level=loud"); !errors.As(err, &de) || !strings.Contains(de.Message, "debug, info, warn, error") {
		t.Errorf("an invalid configuration: %v", err)
	}
}

func TestManyStartsMakeOneHub(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	var starts sync.WaitGroup
	infos := make([]daemon.Info, 4)
	for i := range infos {
		starts.Go(func() {
			var err error
			infos[i], err = daemon.Start(t.Context(), dir, hubCommand(t, "serve", dir))
			var de *daemon.Error
			if err != nil && (!errors.As(err, &de) || de.Code != daemon.CodeRunning) {
				t.Errorf("start %d: %v", i, err)
			}
		})
	}
	starts.Wait()
	for _, info := range infos {
		if info.PID == 0 || info.PID != infos[0].PID {
			t.Errorf("process %d, want %d", info.PID, infos[0].PID)
		}
	}
	if log, err := os.ReadFile(daemon.LogPath(dir)); err != nil || bytes.Contains(log, []byte("another hub")) {
		t.Errorf("several hubs were launched: %s, %v", log, err)
	}
	if _, _, err := daemon.Stop(t.Context(), dir, shutdown(infos[0].Socket)); err != nil {
		t.Error(err)
	}
}

// RunInBackground runs in this process, unlike in TestStartAndStop.
func TestRunInBackgroundReportsAndLogs(t *testing.T) {
	dir := newDir(t)
	t.Chdir(dir) // RunInBackground changes the directory; t.Chdir restores it
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	cfg := mustLoad(t, dir)
	go func() { done <- daemon.RunInBackground(ctx, cfg, nil, w, daemon.Options{Version: "test"}) }()
	var report struct{ Ready *daemon.Info }
	if err := json.NewDecoder(r).Decode(&report); err != nil || report.Ready == nil || report.Ready.PID != os.Getpid() {
		t.Errorf("the report: %+v, %v", report, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if log, err := os.ReadFile(daemon.LogPath(dir)); err != nil || !bytes.Contains(log, []byte("the hub is ready")) {
		t.Errorf("the log: %s, %v", log, err)
	}
}

func TestRunInBackgroundReportsFailures(t *testing.T) {
	dir := newDir(t)
	t.Chdir(dir)
	blocked := newDir(t)
	if err := os.WriteFile(blocked+"/logs", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	busy := run(t, mustLoad(t, dir))
	defer busy.end(t)
	for name, tt := range map[string]struct {
		cfg     *config.Loaded
		loadErr error
		want    string
	}{
		"configuration":  {nil, errors.New("line 3 is wrong"), "line 3 is wrong"},
		"data directory": {mustLoad(t, "/proc/parley"), nil, "/proc/parley"},
		"log":            {mustLoad(t, blocked), nil, "logs"},
		"another hub":    {mustLoad(t, dir), nil, string(daemon.CodeRunning)},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := daemon.RunInBackground(t.Context(), tt.cfg, tt.loadErr, w, daemon.Options{}); err == nil {
			t.Errorf("%s: no error", name)
		}
		report, err := io.ReadAll(r)
		if err != nil || !strings.Contains(string(report), tt.want) || strings.Count(string(report), "\n") != 1 {
			t.Errorf("%s: the report %q, %v, want %q in one line", name, report, err, tt.want)
		}
		r.Close()
	}
}

func TestLogIsRotated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "logs", "hub.log")
	l, err := daemon.OpenLogWithLimit(path, 100)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := l.Write([]byte(strings.Repeat("x", 39) + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int64{path: 40, path + ".1": 80} {
		info, err := os.Stat(name)
		if err != nil || info.Size() != size || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if _, err := daemon.OpenLog(path + "/below/a/file"); err == nil {
		t.Error("a log below a file is opened")
	}
}

func TestLogFormats(t *testing.T) {
	t.Parallel()
	yes := true
	for _, tt := range []struct {
		cfg      config.Logging
		terminal bool
		want     string
	}{
		{config.Logging{Level: "info"}, false, `"msg":"hello"`},
		{config.Logging{Level: "info"}, true, `msg=hello`},
		{config.Logging{Level: "info", Pretty: &yes}, false, `msg=hello`},
		{config.Logging{Level: "warn"}, true, ``},
	} {
		var b bytes.Buffer
		daemon.NewLogger(&b, tt.cfg, tt.terminal).Info("hello")
		if got := b.String(); !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%+v at a terminal %t: %q", tt.cfg, tt.terminal, got)
		}
	}
}

// gRPC requires the token as HTTP does; health does not, and the cards declare the token.
func TestTheTokenIsRequired(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	r := run(t, mustLoad(t, dir, "http.token=0123456789abcdef0123456789abcdef"))
	defer r.end(t)
	call := func(token string) []byte {
		req, err := http.NewRequestWithContext(t.Context(), "POST", r.info.HTTP+"/", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+dialect.MethodStatus+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	if body := call("wrong"); bytes.Contains(body, []byte("totalTasks")) {
		t.Errorf("a wrong token: %s", body)
	}
	var answer struct{ Result dialect.Status }
	if body := call("0123456789abcdef0123456789abcdef"); json.Unmarshal(body, &answer) != nil || answer.Result.Version != "test" {
		t.Errorf("the right token: %s", body)
	}
	http.DefaultClient.CloseIdleConnections()
}

// Without the token, a client reads the short health report and the public cards, which say that a token is needed.
func TestOnlyHealthAndCardsAreReadableWithoutTheToken(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef0123456789abcdef"
	r := run(t, mustLoad(t, newDir(t), "http.token="+token))
	defer r.end(t)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	status := func(method, path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, r.info.HTTP+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	methods := []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"}
	for _, path := range []string{
		"/health",
		"/.well-known/agent.json", "/.well-known/agent-card.json", "/.well-known/agents/echo.json",
		"/a2a/.well-known/agent-card.json", "/a2a/.well-known/agent.json",
		"/agents/echo/.well-known/agent-card.json", "/agents/echo/.well-known/agent.json",
		"/agents/echo/a2a/.well-known/agent-card.json", "/agents/echo/a2a/.well-known/agent.json",
	} {
		for _, method := range methods {
			want := http.StatusUnauthorized
			if method == "GET" || method == "HEAD" {
				want = http.StatusOK
			}
			got, body := status(method, path)
			if got != want {
				t.Errorf("%s %s: HTTP %d %s, want %d", method, path, got, body, want)
			}
			if method == "GET" && path != "/health" && !strings.Contains(body, `"bearer"`) {
				t.Errorf("%s does not say that a token is needed: %s", path, body)
			}
		}
	}
	for _, path := range []string{
		"/", "/stream", "/events", "/metrics", "/node", "/node/cards", "/documents/x", "/mcp", "/.well-known/agents", "/nope",
		"/a2a", "/a2a/", "/a2a/tasks", "/a2a/v1/tasks", "/a2a/v1/card", "/a2a/extendedAgentCard", "/a2a/echo/tasks",
		"/agents/echo/a2a", "/agents/echo/a2a/tasks", "/agents/echo/a2a/extendedAgentCard", "/agents/echo/a2a/v1/card", "/agents/echo",
		"/.well-known/agents/none.json", "/agents/none/.well-known/agent-card.json", "/agents/none/a2a/.well-known/agent.json",
		"/.well-known/agents/echo", "/.well-known/agents/", "/health/", "//health", "/.well-known/../metrics", "/agents/echo/.well-known/agent-card.json/",
		"/agents/echo%2F.well-known/agent-card.json", "/agents/echo/a2a/%2Ewell-known/agent.json", "/.well-known/agents/..%2Fagents.json",
	} {
		for _, method := range methods {
			if got, body := status(method, path); got != http.StatusUnauthorized {
				t.Errorf("%s %s: HTTP %d %s", method, path, got, body)
			}
		}
	}
}

func BenchmarkStartToServing(b *testing.B) {
	dir := newDir(b)
	for b.Loop() {
		info, err := daemon.Start(b.Context(), dir, hubCommand(b, "serve", dir))
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if _, _, err := daemon.Stop(b.Context(), dir, shutdown(info.Socket)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// probeAll probes every agent, as the hub does after its start.
func probeAll(b *testing.B, socket string) {
	b.Helper()
	c, err := client.Dial(b.Context(), socket)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	agents, err := c.Agents(b.Context(), false)
	if err != nil {
		b.Fatal(err)
	}
	for _, a := range agents {
		if _, err := c.CheckHealth(b.Context(), a.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkIdleMemory reports the resident memory, in MB, of an idle hub that has probed its agents.
func BenchmarkIdleMemory(b *testing.B) {
	dir := newDir(b)
	for b.Loop() {
		info, err := daemon.Start(b.Context(), dir, hubCommand(b, "serve", dir))
		if err != nil {
			b.Fatal(err)
		}
		probeAll(b, info.Socket)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", info.PID))
		if err != nil {
			b.Skipf("resident memory is read from /proc: %v", err)
		}
		for line := range strings.Lines(string(status)) {
			if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmRSS:" {
				kib, err := strconv.ParseFloat(fields[1], 64)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(kib*1024/1e6, "MB-RSS")
			}
		}
		if _, _, err := daemon.Stop(b.Context(), dir, shutdown(info.Socket)); err != nil {
			b.Fatal(err)
		}
	}
}
