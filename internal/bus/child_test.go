package bus_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// childEnv makes the test binary a process that publishes until it is killed. Its value is the
// role, the mode and the data directory.
const childEnv = "PARLEY_BUS_TEST_CHILD"

// runChild publishes from several goroutines and prints which messages were acknowledged.
func runChild() int {
	args := strings.SplitN(os.Getenv(childEnv), ",", 3)
	role, mode, dir := args[0], bus.Durability(args[1]), args[2]
	ctx := context.Background()
	var b *bus.Bus
	var err error
	if role == "joined" {
		b, err = bus.Join(ctx, bus.Config{}, askOver(dir))
	} else if b, err = bus.Open(ctx, bus.Config{DataDir: dir, Durability: mode}); err == nil {
		_, err = serveGrants(b, dir)
	}
	if err == nil {
		_, err = b.EnsureStream(ctx, testStream)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	if role == "idle" {
		select {}
	}
	var out sync.Mutex
	for p := range 8 {
		go func() {
			for i := 0; ; i++ {
				text := fmt.Sprintf("%d/%d/%d", os.Getpid(), p, i)
				if _, err := b.Publish(ctx, &nats.Msg{Subject: "s.1", Data: []byte(text)}); err != nil {
					continue // the hub is not running
				}
				out.Lock()
				fmt.Println(text)
				out.Unlock()
			}
		}()
	}
	select {}
}

var testStream = jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, MaxBytes: 64 << 20}

// serveGrants sends Grants of a bus to other processes, as the hub's socket does.
func serveGrants(b *bus.Bus, dir string) (stop func(), err error) {
	path := grantSocket(dir)
	if err := os.RemoveAll(path); err != nil {
		return nil, err
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			g, err := project(b)(context.Background())
			if err == nil {
				// The password is not encoded as part of a Grant.
				_ = json.NewEncoder(conn).Encode([]any{g, string(g.Password)})
			}
			_ = conn.Close() // the peer has the grant, or requests one again
		}
	}()
	return func() { _ = ln.Close(); <-served }, nil
}

func grantSocket(dir string) string {
	sum := sha256.Sum256([]byte(dir)) // short: a socket's path is limited
	return filepath.Join(os.TempDir(), fmt.Sprintf("parley-grants-%x", sum[:6]))
}

// askOver requests a grant from the process that serves grants for dir.
func askOver(dir string) bus.Ask {
	return func(context.Context) (bus.Grant, error) {
		conn, err := net.Dial("unix", grantSocket(dir))
		if err != nil {
			return bus.Grant{}, &bus.Error{Code: bus.CodeNotRunning, Message: "no hub", Err: err}
		}
		defer conn.Close() //nolint:errcheck // only read
		var g bus.Grant
		var password string
		err = json.NewDecoder(conn).Decode(&[]any{&g, &password})
		g.Password = bus.Secret(password)
		return g, err
	}
}

// child is a process that runs runChild.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	acked []string
}

func startChild(t *testing.T, role string, mode bus.Durability, dir string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s,%s,%s", childEnv, role, mode, dir), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd, lines: bufio.NewScanner(stdout)}
	t.Cleanup(func() {
		c.kill()
		must(t, os.RemoveAll(grantSocket(dir)))
	})
	if !c.lines.Scan() || c.lines.Text() != "ready" {
		t.Fatalf("the child said %q", c.lines.Text())
	}
	return c
}

// read reads acknowledgements until there are n, and reports whether there were.
func (c *child) read(n int) bool {
	for len(c.acked) < n {
		if !c.lines.Scan() {
			return false
		}
		c.acked = append(c.acked, c.lines.Text())
	}
	return true
}

// kill kills the process and reads the rest of its output.
func (c *child) kill() {
	if c.cmd.ProcessState != nil {
		return
	}
	_ = c.cmd.Process.Kill() // it may have ended already
	for c.lines.Scan() {
		c.acked = append(c.acked, c.lines.Text())
	}
	_ = c.cmd.Wait() // killed
}

// missing returns the acknowledged messages that are not stored. The last line may be cut off by
// the kill.
func (c *child) missing(found map[string]int) []string {
	var missing []string
	for i, text := range c.acked {
		cut := i == len(c.acked)-1 && strings.Count(text, "/") < 2
		if found[text] == 0 && !cut {
			missing = append(missing, text)
		}
	}
	return missing
}

func TestKilledHubLosesNoAcknowledgedMessage(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.Durability{bus.DurabilityCommit, bus.DurabilityAlways, bus.DurabilityFast} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			cfg := bus.Config{DataDir: t.TempDir(), Durability: mode}
			for round := 1; round <= 3; round++ {
				c := startChild(t, "hub", mode, cfg.DataDir)
				if !c.read(300) {
					t.Fatal("the child ended")
				}
				if _, err := bus.Open(t.Context(), cfg); bus.CodeOf(err) != bus.CodeLocked {
					t.Errorf("Open beside a running hub: %v", err)
				}
				c.kill()
				b := open(t, cfg)
				if missing := c.missing(stored(t, b, "S")); len(missing) > 0 {
					t.Errorf("round %d: %d of %d acknowledged messages are lost: %v", round, len(missing), len(c.acked), missing)
				}
				shut(t, b)
			}
		})
	}
}

func TestKilledJoinerLosesNoAcknowledgedMessage(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.Durability{bus.DurabilityCommit, bus.DurabilityFast} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			cfg := bus.Config{DataDir: t.TempDir(), Durability: mode}
			hub := openServing(t, cfg)
			c := startChild(t, "joined", mode, cfg.DataDir)
			if !c.read(300) {
				t.Fatal("the child ended")
			}
			c.kill()
			if missing := c.missing(stored(t, join(t, hub), "S")); len(missing) > 0 {
				t.Errorf("%d of %d acknowledged messages are lost", len(missing), len(c.acked))
			}
		})
	}
}

// openServing opens a bus that other processes can join.
func openServing(t *testing.T, cfg bus.Config) *bus.Bus {
	t.Helper()
	b := open(t, cfg)
	stop, err := serveGrants(b, cfg.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return b
}

// A joined process continues when the hub is killed and another starts on a new port with a new
// credential.
func TestJoinerSurvivesKilledHub(t *testing.T) {
	t.Parallel()
	cfg := bus.Config{DataDir: t.TempDir()}
	hub := startChild(t, "idle", bus.DurabilityCommit, cfg.DataDir)
	joiner := startChild(t, "joined", bus.DurabilityCommit, cfg.DataDir)
	var b *bus.Bus
	for round := 1; round <= 2; round++ {
		if !joiner.read(len(joiner.acked) + 200) {
			t.Fatal("the joiner ended")
		}
		if b != nil {
			shut(t, b)
		}
		hub.kill()
		b = openServing(t, cfg)
	}
	if !joiner.read(len(joiner.acked) + 200) {
		t.Fatal("the joiner ended")
	}
	joiner.kill()
	if missing := joiner.missing(stored(t, join(t, b), "S")); len(missing) > 0 {
		t.Errorf("%d of %d acknowledged messages are lost", len(missing), len(joiner.acked))
	}
}

func TestJoinedBusReconnectsToARestartedHub(t *testing.T) {
	t.Parallel()
	cfg := bus.Config{DataDir: t.TempDir()}
	ask := askOver(cfg.DataDir)
	if _, err := bus.Join(t.Context(), bus.Config{}, ask); bus.CodeOf(err) != bus.CodeNotRunning {
		t.Fatalf("Join without a hub: %v", err)
	}
	hub := open(t, cfg)
	var current atomic.Pointer[bus.Bus]
	current.Store(hub)
	ask = func(ctx context.Context) (bus.Grant, error) { return project(current.Load())(ctx) }
	var log logBuffer
	joined := joinWith(t, bus.Config{Logger: log.logger()}, ask)
	ensureStream(t, joined, "S", "s.>")
	first := joined.Info()
	if first.Kind != bus.KindJoined || first.HubPID != os.Getpid() || first.Durability != bus.DurabilityCommit ||
		first.URL != hub.Info().URL || first.State != bus.StateConnected {
		t.Errorf("Info = %+v", first)
	}
	if _, err := joined.Publish(t.Context(), &nats.Msg{Subject: "s.1", Data: []byte("1")}); err != nil {
		t.Fatalf("Publish: %v", err)
	}
	sub, err := joined.Conn().SubscribeSync("live")
	if err != nil {
		t.Fatal(err)
	}

	changes := joined.Conn().StatusChanged(nats.RECONNECTING, nats.CONNECTED)
	shut(t, hub)
	awaitStatus(t, changes, nats.RECONNECTING)
	if _, err := joined.Publish(t.Context(), &nats.Msg{Subject: "s.1", Data: []byte("lost")}); bus.CodeOf(err) != bus.CodeNotRunning {
		t.Errorf("Publish without a hub: %v", err)
	}

	cfg.Durability = bus.DurabilityFast
	hub = open(t, cfg)
	current.Store(hub)
	awaitStatus(t, changes, nats.CONNECTED)
	if _, err := joined.Publish(t.Context(), &nats.Msg{Subject: "s.1", Data: []byte("2")}); err != nil {
		t.Fatalf("Publish after the restart: %v", err)
	}
	other := join(t, hub)
	if err := other.Conn().Publish("live", []byte("again")); err != nil {
		t.Fatal(err)
	}
	if msg, err := sub.NextMsg(30 * time.Second); err != nil || string(msg.Data) != "again" {
		t.Errorf("the subscription was not restored: %v, %v", msg, err)
	}
	last := joined.Info()
	if last.URL == first.URL || last.URL != hub.Info().URL || last.Durability != bus.DurabilityFast {
		t.Errorf("Info after the restart = %+v", last)
	}
	got := stored(t, joined, "S")
	if got["1"] != 1 || got["2"] != 1 || got["lost"] != 0 {
		t.Errorf("stored %v", got)
	}
}

func awaitStatus(t *testing.T, changes <-chan nats.Status, want nats.Status) {
	t.Helper()
	for {
		select {
		case got := <-changes:
			if got == want {
				return
			}
		case <-t.Context().Done():
			t.Fatalf("the connection is not %v", want)
		}
	}
}
