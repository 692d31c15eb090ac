//go:build unix

package doctor_test

import (
	"context"

	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/app/doctor"
	"github.com/parleyhub/parley/internal/bus/damage"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/testbed"
)

// The test binary acts as an agent of the kind that the variable names.
const beAgent = "PARLEY_TEST_AGENT"

func TestMain(m *testing.M) {
	switch kind := os.Getenv(beAgent); {
	case kind == "":
		goleak.VerifyTestMain(m)
	case len(os.Args) > 1 && os.Args[1] == "--version":
		if kind == "broken" {
			fmt.Fprintln(os.Stderr, "cannot load library")
			os.Exit(1)
		}
		fmt.Println("agent 1.2.3")
	case len(os.Args) > 1 && os.Args[1] == "auth":
		if kind == "logged-out" {
			os.Exit(1)
		}
	}
}

const onlyEcho = "bus: {durability: fast}\nhttp: {port: 0}\nagents:\n  claude-code: {disabled: true}\n  gemini: {disabled: true}\n  codex: {disabled: true}\n  vibe: {disabled: true}\n"

// place creates a data directory with a configuration.
func place(t *testing.T, yaml string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "parley")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(dir+"/config.yaml", []byte(onlyEcho+yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func load(dir string, settings ...string) (*config.Loaded, error) {
	overrides := []config.Override{{Key: "dataDir", Value: dir}, {Key: "socket.path", Value: dir + "/hub.sock"}}
	for _, s := range settings {
		key, value, _ := strings.Cut(s, "=")
		overrides = append(overrides, config.Override{Key: key, Value: value})
	}
	return config.Load(config.Options{Overrides: overrides, LookupEnv: func(string) (string, bool) { return "", false }})
}

func examine(t *testing.T, dir string, settings ...string) []doctor.Finding {
	t.Helper()
	cfg, err := load(dir, settings...)
	return doctor.Patient{Config: cfg, Err: err, Program: "parley"}.Examine(t.Context())
}

// find returns the finding of a check or an agent.
func find(t *testing.T, findings []doctor.Finding, name string) doctor.Finding {
	t.Helper()
	for _, f := range findings {
		if f.Agent == name || f.Agent == "" && f.Check == name {
			return f
		}
	}
	t.Fatalf("no finding about %s in %+v", name, findings)
	return doctor.Finding{}
}

func expect(t *testing.T, findings []doctor.Finding, name string, level doctor.Level, text string) {
	t.Helper()
	f := find(t, findings, name)
	if f.Level != level || !strings.Contains(f.Message+" → "+f.Remedy, text) {
		t.Errorf("%s: %+v, want %s with %q", name, f, level, text)
	}
	if f.Level == doctor.Failure && f.Remedy == "" {
		t.Errorf("%s: a failure without a remedy", name)
	}
}

func TestHealthyMachine(t *testing.T) {
	findings := examine(t, place(t, ""), "bus.durability=commit")
	if worst := doctor.Worst(findings); worst != doctor.OK {
		t.Errorf("worst is %s: %+v", worst, findings)
	}
	expect(t, findings, "hub", doctor.OK, "parley start")
	expect(t, findings, "echo", doctor.OK, "is ready")
	expect(t, findings, "vibe", doctor.OK, "is disabled")
}

func TestConfigurationThatCannotBeRead(t *testing.T) {
	findings := examine(t, place(t, "htpp: {}\n"))
	if len(findings) != 1 {
		t.Errorf("got %+v", findings)
	}
	expect(t, findings, "configuration", doctor.Failure, "did you mean http?")
}

func TestConfigurationWarnings(t *testing.T) {
	dir := place(t, "")
	if err := os.WriteFile(dir+"/token", []byte("0123456789abcdef\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	findings := examine(t, dir, "http.tokenFile="+dir+"/token")
	if doctor.Worst(findings) != doctor.Warning || !strings.Contains(findings[1].Message, "chmod 600") {
		t.Errorf("got %+v", findings)
	}
}

func TestAgentsThatLackSomething(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	agent := func(kind string) string {
		return fmt.Sprintf("  %s: {driver: exec, command: %q, env: {set: {GOCOVERDIR: /tmp, GORACE: atexit_sleep_ms=0, %s: %s}}, probe: {auth: [auth], login: \"log in with: magic\"}}\n", kind, exe, beAgent, kind)
	}
	findings := examine(t, place(t, agent("ready")+agent("logged-out")+agent("broken")+
		"  missing: {driver: exec, command: parley-no-such-program, probe: {install: \"install it with: magic\"}}\n"))
	expect(t, findings, "ready", doctor.OK, "version 1.2.3")
	expect(t, findings, "logged-out", doctor.Warning, "magic")
	expect(t, findings, "broken", doctor.Warning, "")
	expect(t, findings, "missing", doctor.Warning, "magic")
}

func TestDataDirectory(t *testing.T) {
	expect(t, examine(t, "/proc/parley"), "data-directory", doctor.Failure, "PARLEY_DATA_DIR")
	expect(t, examine(t, filepath.Join(place(t, ""), "new", "data")), "data-directory", doctor.OK, "first start")
	dir := place(t, "")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, dir), "data-directory", doctor.Warning, "chmod 700")
	if err := os.WriteFile(filepath.Join(dir, "format.json"), []byte(`{"format":99,"program":"9.0.0"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, dir), "data-directory", doctor.Failure, "install that version again")
}

func TestSocket(t *testing.T) {
	dir := place(t, "")
	expect(t, examine(t, dir, "socket.enabled=false"), "socket", doctor.Warning, "turned off")
	expect(t, examine(t, dir, "socket.path="+dir+"/"+strings.Repeat("x", 100)), "socket", doctor.Failure, "longer than")
	expect(t, examine(t, dir, "socket.path=/proc/hub.sock"), "socket", doctor.Failure, "no socket can be created")
	if err := os.WriteFile(dir+"/hub.sock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, dir), "socket", doctor.Failure, "is not a socket")
	if err := os.Remove(dir + "/hub.sock"); err != nil {
		t.Fatal(err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/hub.sock"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false) // as a killed hub leaves it
	ln.Close()
	expect(t, examine(t, dir), "socket", doctor.OK, "killed")
}

func TestPortsAndExternalBus(t *testing.T) {
	port := strconv.Itoa(testbed.FreePorts(t, 1)[0])
	ln, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	dir := place(t, "")
	expect(t, examine(t, dir, "http.port="+port), "http", doctor.Warning, "http.port")
	expect(t, examine(t, dir, "grpc.port="+port), "grpc", doctor.Warning, "grpc.port")
	ln.Close()
	expect(t, examine(t, dir, "grpc.port="+port), "grpc", doctor.OK, "is free")
	expect(t, examine(t, dir, "bus.url=nats://127.0.0.1:"+port), "bus", doctor.Failure, "")
	expect(t, examine(t, dir, "bus.durability=fast"), "bus", doctor.Warning, "power cut")
}

// hub runs a hub with a data directory.
func hub(t *testing.T, dir string) {
	t.Helper()
	cfg, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- daemon.Run(ctx, cfg, daemon.Options{Version: "test", Logger: daemon.NewLogger(io.Discard, cfg.Logging, false), Ready: func(daemon.Info) { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the hub: %v", err)
		}
	})
}

func TestRunningHub(t *testing.T) {
	dir := place(t, "")
	hub(t, dir)
	findings := examine(t, dir)
	expect(t, findings, "hub", doctor.OK, fmt.Sprintf("process %d", os.Getpid()))
	expect(t, findings, "socket", doctor.OK, "answers")
	expect(t, findings, "http", doctor.OK, "the hub listens on http://127.0.0.1:")
	expect(t, findings, "bus", doctor.Warning, "durability fast")
	expect(t, examine(t, dir, "socket.path="+dir+"/other.sock"), "hub", doctor.Failure, "--socket "+dir+"/hub.sock")
	if err := os.Rename(dir+"/hub.sock", dir+"/gone.sock"); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, dir), "hub", doctor.Failure, "does not answer")
	if err := os.Rename(dir+"/gone.sock", dir+"/hub.sock"); err != nil {
		t.Fatal(err)
	}
}

// The hub's link to a cluster, from the configuration and from a running hub.
func TestTheLinkToACluster(t *testing.T) {
	leaf := []string{"bus.leaf.url=nats://127.0.0.1:1", "bus.leaf.domain=team"}
	dir := place(t, "")
	for _, f := range examine(t, dir) {
		if f.Check == "cluster-link" {
			t.Errorf("no link is configured, but got %+v", f)
		}
	}
	expect(t, examine(t, dir, leaf...), "cluster-link", doctor.OK, "when it runs")
	hub(t, dir)
	expect(t, examine(t, dir, leaf...), "cluster-link", doctor.Warning, "restart it")
	for name, tt := range map[string]struct {
		link  dialect.LinkStatus
		level doctor.Level
		text  string
	}{
		"up":          {dialect.LinkStatus{Connected: true, URL: "tls://nats:7422"}, doctor.OK, "tls://nats:7422"},
		"without TLS": {dialect.LinkStatus{Connected: true, URL: "nats://nats:7422"}, doctor.Warning, "without TLS"},
		"down":        {dialect.LinkStatus{Problem: "no NATS server is running", Remedy: "start it"}, doctor.Failure, "start it"},
	} {
		cfg, err := load(dir, append(leaf, "bus.leaf.tlsRequired=false")...)
		if err != nil {
			t.Fatal(err)
		}
		found := doctor.Patient{Config: cfg, Program: "parley"}.Link(&dialect.Status{Bus: &dialect.BusStatus{Link: &tt.link}})
		t.Run(name, func(t *testing.T) { expect(t, found, "cluster-link", tt.level, tt.text) })
	}
}

func TestWorst(t *testing.T) {
	for want, levels := range map[doctor.Level][]doctor.Level{
		doctor.OK: {}, doctor.Warning: {doctor.OK, doctor.Warning, doctor.OK}, doctor.Failure: {doctor.Failure, doctor.Warning},
	} {
		var findings []doctor.Finding
		for _, l := range levels {
			findings = append(findings, doctor.Finding{Level: l})
		}
		if got := doctor.Worst(findings); got != want {
			t.Errorf("Worst(%v) = %s, want %s", levels, got, want)
		}
	}
}

// What is damaged in the store is a failure if something is lost, and a warning if it was mended.
func TestDamageOfTheStore(t *testing.T) {
	for want, counts := range map[doctor.Level][]damage.Counts{
		doctor.OK:      {{}, {CutOff: 2}},
		doctor.Warning: {{Corrected: 1}, {Rebuilt: 2}, {Obsolete: 1}},
		doctor.Failure: {{Lost: 1, Corrected: 3}},
	} {
		for _, c := range counts {
			found := doctor.Patient{Config: &config.Loaded{Config: &config.Config{}}, Program: "parley"}.Damage(&dialect.Status{Bus: &dialect.BusStatus{Damage: &dialect.DamageStatus{Counts: c}}})
			if len(found) != 1 || found[0].Check != "store" || found[0].Level != want {
				t.Errorf("%+v: %+v", c, found)
			}
		}
	}
}
