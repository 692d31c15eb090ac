package nettest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/config"
)

const (
	allowed  = "PARLEY_HUBTEST" // set for the processes of the test, which may be hubs
	dataDir  = "--data-dir="    // that of a process that is to be one
	withHTTP = "parley-http"    // begins the name of its directory where the hub serves HTTP
)

// HubMain belongs at the beginning of TestMain: in a process that was started as a hub it runs
// the hub and then exits.
func HubMain() {
	if os.Getenv(allowed) == "" { // the test itself
		os.Setenv(allowed, "1")
		return
	}
	for _, arg := range os.Args[1:] {
		if dir, ok := strings.CutPrefix(arg, dataDir); ok {
			os.Exit(serve(dir))
		}
	}
}

// serve does what `parley start --background` does.
func serve(dir string) int {
	cfg, err := load(dir)
	if daemon.RunInBackground(context.Background(), cfg, err, os.Stdout, daemon.Options{Version: "test", LimitMemory: true}) != nil {
		return 1
	}
	return 0
}

// load returns the configuration of the hub of a directory.
func load(dir string) (*config.Loaded, error) {
	return config.Load(config.Options{LookupEnv: func(string) (string, bool) { return "", false }, Overrides: []config.Override{
		{Key: "dataDir", Value: dir}, {Key: "socket.path", Value: socket(dir)},
		{Key: "http.enabled", Value: strconv.FormatBool(strings.HasPrefix(filepath.Base(dir), withHTTP))}, {Key: "http.port", Value: "0"},
	}})
}

func socket(dir string) string { return dir + "/hub.sock" }

// HubProcess is a hub in a process of its own, which is the test's binary, running or not: tests kill
// it, and its users start it again.
type HubProcess struct {
	Dir string
	// RestAfter is that of the agents that Enter admits, see busfinder.Config.
	RestAfter time.Duration
}

// NewProcess returns a hub that is started by its first use and stopped at the end of the test.
// Processes that the test starts may use it too.
func NewProcess(t testing.TB) HubProcess {
	t.Helper()
	return newProcess(t, "parley")
}

// NewHTTPProcess is NewProcess for a hub that serves HTTP as well, see URL.
func NewHTTPProcess(t testing.TB) HubProcess {
	t.Helper()
	return newProcess(t, withHTTP)
}

func newProcess(t testing.TB, name string) HubProcess {
	t.Helper()
	dir, err := os.MkdirTemp("", name) // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(stop(dir), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return HubProcess{Dir: dir, RestAfter: restAfter()}
}

func stop(dir string) error {
	_, _, err := daemon.Stop(context.Background(), dir, func(ctx context.Context) error {
		c, err := client.Dial(ctx, socket(dir))
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Shutdown(ctx)
	})
	return err
}

// info describes the hub; it is the zero value while the hub is not running or just starting.
func (h HubProcess) info() daemon.Info {
	info, _, _ := daemon.Running(h.Dir)
	return info
}

// PID returns the process id of the hub, or 0 while it is not running.
func (h HubProcess) PID() int { return h.info().PID }

// URL returns the address at which the hub serves HTTP, or "" while it does not.
func (h HubProcess) URL() string { return h.info().HTTP }

// Kill kills the hub's process, and reports whether there was one.
func (h HubProcess) Kill() bool {
	pid := h.PID()
	p, err := os.FindProcess(pid)
	return err == nil && pid > 0 && p.Kill() == nil
}

// Start starts the hub unless it is running.
func (h HubProcess) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		b, err := h.Dial(bus.AccessProject, "start")(ctx)
		if err == nil {
			_ = b.Close(context.Background()) // the hub may have been killed again
			return
		}
		select {
		case <-time.After(10 * time.Millisecond): // a hub that was killed is just going
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

// patience bounds how long a hub may take to start.
const patience = time.Minute

// Client connects to the socket of the running hub.
func (h HubProcess) Client(ctx context.Context) (*client.Client, error) {
	return client.Dial(ctx, socket(h.Dir))
}

// Dial returns a function that joins the hub's bus, and starts the hub if it is not running.
func (h HubProcess) Dial(access bus.Access, namespace string) func(context.Context) (*bus.Bus, error) {
	return func(ctx context.Context) (*bus.Bus, error) { return h.finder(access, namespace).Dial(ctx) }
}

// restEnv is the default of HubProcess.RestAfter: with some milliseconds agents rest as often as possible.
const restEnv = "PARLEY_HUBTEST_REST"

func restAfter() time.Duration {
	after, _ := time.ParseDuration(os.Getenv(restEnv)) // 0 without
	return after
}

// Enter returns a function that admits agents to the agents' network on the hub's bus, as the
// MCP processes of a project do; see agentnet.NewMemberships.
func (h HubProcess) Enter(settings dialect.NetworkJoinParams) func(context.Context, registry.AdmissionRequest) (agentnet.Admission, *bus.Bus, error) {
	return func(ctx context.Context, a registry.AdmissionRequest) (agentnet.Admission, *bus.Bus, error) {
		return h.finder(bus.AccessNetwork, "").DialAgent(ctx, settings, a)
	}
}

// finder starts the test's binary with the arguments of parley; [HubMain] makes it a hub.
func (h HubProcess) finder(access bus.Access, namespace string) *busfinder.Finder {
	return busfinder.New(busfinder.Config{
		Config: bus.Config{Logger: slog.New(slog.DiscardHandler)}, Access: access, Namespace: namespace,
		Hub: func(context.Context) (*config.Loaded, error) { return load(h.Dir) }, Autostart: true, RestAfter: h.RestAfter,
	})
}
