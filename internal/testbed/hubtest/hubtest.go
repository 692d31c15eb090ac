// Package hubtest is a hub for tests in a process of its own, which is the test's
// binary again: it can be killed, and whoever uses it starts it again.
package hubtest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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
	allowed  = "PARLEY_HUBTEST" // set where a process of the test may be a hub
	dataDir  = "--data-dir="    // that of a process that is to be one
	withHTTP = "parley-http"    // begins the name of its directory where the hub serves HTTP
)

// Main is for the beginning of TestMain: in a process that was started as a hub it
// is that, until its end.
func Main() {
	if os.Getenv(allowed) == "" {
		return
	}
	for _, arg := range os.Args[1:] {
		if dir, ok := strings.CutPrefix(arg, dataDir); ok {
			os.Exit(serve(dir))
		}
	}
}

// serve is what `parley start --background` does.
func serve(dir string) int {
	cfg, err := load(dir)
	if daemon.RunInBackground(context.Background(), cfg, err, os.Stdout, daemon.Options{Version: "test"}) != nil {
		return 1
	}
	return 0
}

// load is the configuration of the hub of a directory.
func load(dir string) (*config.Loaded, error) {
	return config.Load(config.Options{LookupEnv: func(string) (string, bool) { return "", false }, Overrides: []config.Override{
		{Key: "dataDir", Value: dir}, {Key: "socket.path", Value: socket(dir)},
		{Key: "http.enabled", Value: strconv.FormatBool(strings.HasPrefix(filepath.Base(dir), withHTTP))}, {Key: "http.port", Value: "0"},
	}})
}

func socket(dir string) string { return dir + "/hub.sock" }

// Hub is where a hub is, whether it runs or not.
type Hub struct{ Dir string }

// New is a place for a hub, which runs from its first use until the test ends.
// Processes that the test starts may use it too.
func New(t testing.TB) Hub {
	t.Helper()
	return newHub(t, "parley")
}

// NewHTTP is New for a hub that serves HTTP as well, see URL.
func NewHTTP(t testing.TB) Hub {
	t.Helper()
	return newHub(t, withHTTP)
}

func newHub(t testing.TB, name string) Hub {
	t.Helper()
	dir, err := os.MkdirTemp("", name) // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	if err := allow(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(stop(dir), os.RemoveAll(dir), disallow()); err != nil {
			t.Error(err)
		}
	})
	return Hub{dir}
}

// environment is what processes of the test inherit while there are hubs. Tests
// that run in parallel share it, which they could not with [testing.T.Setenv].
var environment struct {
	sync.Mutex
	hubs     int
	coverage string // a directory for what nobody reads
}

// allow lets processes of the test be hubs, until [disallow].
func allow() error {
	environment.Lock()
	defer environment.Unlock()
	if environment.hubs == 0 {
		coverage, err := os.MkdirTemp("", "parley-hubs-coverage")
		if err != nil {
			return err
		}
		environment.coverage = coverage
		if err := errors.Join(os.Setenv(allowed, "1"), os.Setenv("GOCOVERDIR", coverage)); err != nil {
			return err
		}
	}
	environment.hubs++
	return nil
}

// disallow takes back one [allow].
func disallow() error {
	environment.Lock()
	defer environment.Unlock()
	if environment.hubs--; environment.hubs > 0 {
		return nil
	}
	return errors.Join(os.Unsetenv(allowed), os.Unsetenv("GOCOVERDIR"), os.RemoveAll(environment.coverage))
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

// PID is the hub's process; 0 while it is not there.
func (h Hub) PID() int {
	info, running, err := daemon.Running(h.Dir)
	if err != nil || !running {
		return 0 // it is just coming back
	}
	return info.PID
}

// URL is where the hub serves HTTP; empty while it does not.
func (h Hub) URL() string {
	info, running, err := daemon.Running(h.Dir)
	if err != nil || !running {
		return ""
	}
	return info.HTTP
}

// Kill kills the hub's process, and says whether there was one.
func (h Hub) Kill() bool {
	pid := h.PID()
	p, err := os.FindProcess(pid)
	return err == nil && pid > 0 && p.Kill() == nil
}

// Start starts the hub where it does not run.
func (h Hub) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dial := h.Dial(bus.AccessProject, "start")
	for {
		b, err := dial(ctx)
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

// Client is a client of the hub's socket, while it runs.
func (h Hub) Client(ctx context.Context) (*client.Client, error) {
	return client.Dial(ctx, socket(h.Dir))
}

// Dial joins the hub's bus, and starts the hub where it does not run.
func (h Hub) Dial(access bus.Access, namespace string) func(context.Context) (*bus.Bus, error) {
	return func(ctx context.Context) (*bus.Bus, error) {
		f, err := h.finder(access, namespace)
		if err != nil {
			return nil, err
		}
		return f.Dial(ctx)
	}
}

// Enter lets agents into the agents' network on the hub's bus, as the MCP processes of a
// project do; see agentnet.NewMemberships.
func (h Hub) Enter(settings dialect.NetworkJoinParams) func(context.Context, registry.AdmissionRequest) (agentnet.Admission, *bus.Bus, error) {
	return func(ctx context.Context, a registry.AdmissionRequest) (agentnet.Admission, *bus.Bus, error) {
		f, err := h.finder(bus.AccessNetwork, "")
		if err != nil {
			return agentnet.Admission{}, nil, err
		}
		return f.DialAgent(ctx, settings, a)
	}
}

func (h Hub) finder(access bus.Access, namespace string) (*busfinder.Finder, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return busfinder.New(busfinder.Config{Access: access, Namespace: namespace, Hub: func() (*config.Loaded, error) { return load(h.Dir) },
		Autostart: true, Command: []string{exe}, Logger: slog.New(slog.DiscardHandler)}), nil
}
