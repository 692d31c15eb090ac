// Package doctor finds out what keeps a hub, its agents or a project's channels
// from working. It needs no hub, starts none, and changes nothing; each finding
// that is not well says what to do.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// Level is how well something is.
type Level string

// The levels. A failure keeps the hub or the channels from working; a warning
// keeps a part from it, such as one agent, or will do so later.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Failure Level = "failure"
)

// Finding is the result of one check.
type Finding struct {
	// Check names it: configuration, data-directory, disk, socket, hub, http,
	// grpc, bus, cluster-link, git, peers, mcp-server, project, channel-bus,
	// channels, network or agent.
	Check   string `json:"check"`
	Agent   string `json:"agent,omitempty"`  // where Check is agent
	Server  string `json:"server,omitempty"` // where Check is mcp-server
	Level   Level  `json:"level"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// Patient is what is examined.
type Patient struct {
	// Config is the configuration; nil where it could not be read, for Err.
	Config *config.Loaded
	Err    error
	// Project is the configuration of the project's MCP server; nil where it
	// could not be read, for ProjectErr. With neither nothing of it is examined.
	Project    *mcpconfig.Config
	ProjectErr error
	// Program is the name that remedies call the command line by.
	Program string
	// Environ is the environment of the agents; nil is this process's.
	Environ []string
	// ServerPatience bounds the examination of one MCP server; 0 means 30 s.
	ServerPatience time.Duration
}

// agentPatience bounds the probe of one agent.
const agentPatience = 30 * time.Second

// Examine runs all checks. It blocks until the slowest agent has answered or
// the probes' limit is over.
func (p Patient) Examine(ctx context.Context) []Finding {
	findings := p.configuration()
	if p.Config == nil {
		return slices.Concat(findings, p.project(ctx), p.network(ctx))
	}
	hub, err := p.hub(ctx)
	findings = append(findings, p.dataDirectory(), p.disk(), p.describeHub(hub, err), p.socket(hub))
	findings = append(findings, p.ports(ctx, hub)...)
	findings = append(findings, p.bus(ctx, hub))
	findings = append(findings, p.link(hub)...)
	findings = append(findings, p.git())
	return slices.Concat(findings, p.peers(hub), p.mcpServers(ctx, hub), p.project(ctx), p.network(ctx), p.agents(ctx))
}

// Worst is the worst level of findings.
func Worst(findings []Finding) Level {
	worst := OK
	for _, f := range findings {
		if f.Level == Failure || f.Level == Warning && worst == OK {
			worst = f.Level
		}
	}
	return worst
}

func good(check, format string, args ...any) Finding {
	return Finding{Check: check, Level: OK, Message: fmt.Sprintf(format, args...)}
}

func (p Patient) configuration() []Finding {
	if p.Err != nil {
		return []Finding{{Check: "configuration", Level: Failure, Message: p.Err.Error(), Remedy: "mend the file, or move it away to use the defaults"}}
	}
	state := "is valid"
	if !p.Config.Found {
		state = "is not there; the defaults are in force"
	}
	findings := []Finding{good("configuration", "%s %s", p.Config.File, state)}
	for _, w := range p.Config.Warnings {
		findings = append(findings, Finding{Check: "configuration", Level: Warning, Message: w})
	}
	return findings
}

// hub returns the status of the hub that listens on the socket; an error that
// is client.ErrNotRunning means that there is none.
func (p Patient) hub(ctx context.Context) (*dialect.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, p.Config.Socket.Path)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Status(ctx)
}

func (p Patient) describeHub(hub *dialect.Status, err error) Finding {
	if hub != nil {
		return good("hub", "runs (process %d, version %s)", hub.PID, hub.Version)
	}
	info, running, runningErr := daemon.Running(p.Config.DataDir)
	switch {
	case runningErr != nil:
		return Finding{Check: "hub", Level: Failure, Message: runningErr.Error(), Remedy: "give your user the rights to the data directory"}
	case running && info.Socket != p.Config.Socket.Path && info.Socket != "":
		return Finding{Check: "hub", Level: Warning, Message: fmt.Sprintf("runs (process %d), but on another socket: %s", info.PID, info.Socket), Remedy: "use --socket " + info.Socket}
	case running:
		return Finding{Check: "hub", Level: Failure, Message: fmt.Sprintf("has the data directory (process %d) but does not answer: %v", info.PID, err), Remedy: fmt.Sprintf("look into %s; if it hangs, run: %s stop", daemon.LogPath(p.Config.DataDir), p.Program)}
	case errors.Is(err, client.ErrNotRunning):
		return good("hub", "does not run; %s start starts it", p.Program)
	}
	return Finding{Check: "hub", Level: Failure, Message: err.Error(), Remedy: "remove what is in the way, or choose another path with --socket"}
}

func (p Patient) dataDirectory() Finding {
	dir := p.Config.DataDir
	remedy := "set dataDir or PARLEY_DATA_DIR to a directory of your own"
	info, err := os.Stat(dir)
	if errors.Is(err, os.ErrNotExist) {
		parent := existingParent(dir)
		if err := writable(parent); err != nil {
			return Finding{Check: "data-directory", Level: Failure, Message: fmt.Sprintf("%s cannot be made: %v", dir, err), Remedy: remedy}
		}
		return good("data-directory", "%s will be made by the first start", dir)
	}
	if err == nil && !info.IsDir() {
		err = errors.New("it is not a directory")
	}
	if err == nil {
		err = writable(dir)
	}
	if err != nil {
		return Finding{Check: "data-directory", Level: Failure, Message: fmt.Sprintf("%s cannot be used: %v", dir, err), Remedy: remedy}
	}
	if info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
		return Finding{Check: "data-directory", Level: Warning, Message: fmt.Sprintf("others may look into %s (mode %04o)", dir, info.Mode().Perm()), Remedy: "run: chmod 700 " + dir}
	}
	return good("data-directory", "%s is yours alone", dir)
}

func existingParent(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// writable finds out by making a file and removing it: rights alone do not tell
// of read-only file systems.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".parley-doctor-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Free space below which the disk is worth a word, and below which nothing
// would work for long.
const (
	littleSpace = 1 << 30
	noSpace     = 64 << 20
)

func (p Patient) disk() Finding {
	dir := existingParent(p.Config.DataDir)
	free, err := freeSpace(dir)
	if err != nil {
		return Finding{Check: "disk", Level: Warning, Message: fmt.Sprintf("the free space of %s cannot be told: %v", dir, err)}
	}
	f := good("disk", "%d MiB are free", free>>20)
	if free < littleSpace {
		f.Level, f.Remedy = Warning, "make room, or set tasks.retention lower"
	}
	if free < noSpace {
		f.Level = Failure
	}
	return f
}

// maxSocketPath is the longest path of a Unix socket that every platform takes.
const maxSocketPath = 103

func (p Patient) socket(hub *dialect.Status) Finding {
	path := p.Config.Socket.Path
	if !p.Config.Socket.Enabled {
		return Finding{Check: "socket", Level: Warning, Message: "is turned off; no command reaches the hub", Remedy: "set socket.enabled: true"}
	}
	if hub != nil {
		return good("socket", "%s answers", path)
	}
	if len(path) > maxSocketPath {
		return Finding{Check: "socket", Level: Failure, Message: fmt.Sprintf("%s is longer than %d bytes, the most of a Unix socket", path, maxSocketPath), Remedy: "choose a shorter path with socket.path or PARLEY_SOCKET"}
	}
	dir := filepath.Dir(path)
	if err := writable(dir); err != nil {
		return Finding{Check: "socket", Level: Failure, Message: fmt.Sprintf("no socket can be made in %s: %v", dir, err), Remedy: "choose another path with socket.path or PARLEY_SOCKET"}
	}
	info, err := os.Lstat(path)
	if err != nil {
		return good("socket", "%s is free", path)
	}
	if info.Mode()&os.ModeSocket == 0 && runtime.GOOS != "windows" {
		return Finding{Check: "socket", Level: Failure, Message: path + " is there and is not a socket", Remedy: "remove it, or choose another path with socket.path or PARLEY_SOCKET"}
	}
	return good("socket", "%s is left from a hub that was killed; the next start cleans it up", path)
}

func (p Patient) ports(ctx context.Context, hub *dialect.Status) []Finding {
	var findings []Finding
	check := func(name, key string, port int) {
		address := net.JoinHostPort(p.Config.HTTP.Host, strconv.Itoa(port))
		if hub != nil {
			findings = append(findings, good(name, "the running hub decides; the configuration says %s", address))
			return
		}
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			findings = append(findings, Finding{Check: name, Level: Failure, Message: fmt.Sprintf("%s cannot be listened on: %v", address, err), Remedy: fmt.Sprintf("stop what listens there, or choose another port with %s", key)})
			return
		}
		if err := ln.Close(); err != nil {
			findings = append(findings, Finding{Check: name, Level: Warning, Message: err.Error()})
			return
		}
		findings = append(findings, good(name, "%s is free", address))
	}
	if p.Config.HTTP.Enabled {
		check("http", "http.port", p.Config.HTTP.Port)
	}
	if p.Config.GRPC.Port != 0 {
		check("grpc", "grpc.port", p.Config.GRPC.Port)
	}
	return findings
}

// link looks at the hub's link to the cluster of the agents' network, where it has one.
func (p Patient) link(hub *dialect.Status) []Finding {
	const check = "cluster-link"
	switch {
	case p.Config.Bus.Leaf.URL == "":
		return nil
	case hub == nil:
		return []Finding{good(check, "the hub links itself to %s when it runs", p.Config.Bus.Leaf.URL)}
	case hub.Bus == nil || hub.Bus.Link == nil:
		return []Finding{{Check: check, Level: Warning, Message: "the hub runs without the link that its configuration has", Remedy: "restart it: " + p.Program + " stop, " + p.Program + " start"}}
	}
	l := hub.Bus.Link
	if !l.Connected {
		return []Finding{{Check: check, Level: Failure, Message: l.Problem, Remedy: l.Remedy}}
	}
	if !p.Config.Bus.Leaf.TLSRequired && !strings.HasPrefix(l.URL, "tls://") {
		return []Finding{{Check: check, Level: Warning, Message: "the hub is linked to " + l.URL + " as a leaf node; without TLS others on the way can read and change everything",
			Remedy: "give the leafnodes block of the servers TLS and set bus.leaf.tlsRequired"}}
	}
	return []Finding{good(check, "the hub is linked to %s as a leaf node", l.URL)}
}

func (p Patient) bus(ctx context.Context, hub *dialect.Status) Finding {
	if hub != nil && hub.Bus != nil {
		if hub.Bus.Error != "" {
			return Finding{Check: "bus", Level: Failure, Message: hub.Bus.Error, Remedy: "look into " + daemon.LogPath(p.Config.DataDir)}
		}
		if hub.Bus.Embedded {
			return durability(hub.Bus.Mode)
		}
		return good("bus", "%s answers", hub.Bus.URL)
	}
	if p.Config.Bus.URL == "" {
		return durability(p.Config.Bus.Durability)
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	b, err := bus.Open(ctx, daemon.BusConfig(p.Config, nil))
	if err != nil {
		f := Finding{Check: "bus", Level: Failure, Message: err.Error(), Remedy: "check bus.url and its credentials"}
		var be *bus.Error
		if errors.As(err, &be) {
			f.Message, f.Remedy = be.Message, be.Remedy
		}
		return f
	}
	defer b.Close(ctx) //nolint:errcheck // nothing was written
	return good("bus", "%s answers, with JetStream", b.Info().URL)
}

func durability(mode string) Finding {
	if mode == string(bus.DurabilityFast) {
		return Finding{Check: "bus", Level: Warning, Message: "embedded, durability fast: a power cut can lose the last seconds", Remedy: "set bus.durability: commit"}
	}
	return good("bus", "embedded, durability %s: what is acknowledged is on disk", mode)
}

func (p Patient) git() Finding {
	if _, err := exec.LookPath("git"); err != nil {
		return Finding{Check: "git", Level: Warning, Message: "is not installed; agents with workdir.policy worktree cannot work, and codex wants repositories", Remedy: "install git"}
	}
	return good("git", "is installed")
}

// agents probes all agents at once.
func (p Patient) agents(ctx context.Context) []Finding {
	ids := slices.Sorted(maps.Keys(p.Config.Agents))
	findings := make([]Finding, len(ids))
	var wait sync.WaitGroup
	for i, id := range ids {
		wait.Go(func() { findings[i] = p.agent(ctx, id, p.Config.Agents[id]) })
	}
	wait.Wait()
	return findings
}

func (p Patient) agent(ctx context.Context, id string, def runner.Definition) Finding {
	f := Finding{Check: "agent", Agent: id, Level: OK}
	if def.Disabled {
		f.Message = "is disabled in the configuration"
		return f
	}
	agent, err := runner.Open(def, runner.Options{Drivers: drivers.All(), Environ: p.Environ})
	if err != nil {
		f.Level, f.Message, f.Remedy = Failure, err.Error(), "mend agents."+id+" in the configuration"
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, agentPatience)
	defer cancel()
	return describe(f, def, agent.Probe(ctx))
}

func describe(f Finding, def runner.Definition, probe runner.Probe) Finding {
	if probe.Err != nil {
		f.Level, f.Message, f.Remedy = Warning, probe.Err.Message, probe.Err.Remedy
		return f
	}
	version := ""
	if probe.Version != "" {
		version = ", version " + probe.Version
	}
	switch {
	case probe.Stage == runner.StageAuthenticated:
		f.Message = "is ready" + version
	case probe.Stage == runner.StageInstalled && probe.AuthKnown:
		f.Level, f.Message, f.Remedy = Warning, "is installed but not logged in"+version, def.Probe.Login
	case probe.Stage == runner.StageInstalled:
		f.Message = "is installed; whether it is logged in shows with the first message" + version
	default:
		f.Level, f.Message, f.Remedy = Warning, "could not be examined", def.Probe.Install
	}
	return f
}
