// Package doctor finds the problems that prevent a hub, its agents or a project's channels from
// working. It needs no hub, starts none, and changes nothing. Each problem has a remedy.
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
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/app/install"
	"github.com/parleyhub/parley/internal/app/version"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/bus/damage"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// Level is the severity of a Finding.
type Level string

// The levels. A failure prevents the hub or the channels from working; a warning affects a
// part, such as one agent, or will become a failure.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Failure Level = "failure"
)

// Finding is the result of one check.
type Finding struct {
	// Check is configuration, data-directory, disk, socket, hub, http, grpc, bus, store, cluster-link, git, peers,
	// mcp-server, project, channel-bus, channels, network, network link, agent or install.
	Check   string `json:"check"`
	Agent   string `json:"agent,omitempty"`  // if Check is agent
	Server  string `json:"server,omitempty"` // if Check is mcp-server
	Level   Level  `json:"level"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// Patient is a hub and a project to be checked.
type Patient struct {
	// Config is the hub's configuration; nil if it could not be read, because of Err.
	Config *config.Loaded
	Err    error
	// Project is the configuration of the project's MCP server; nil if it could not be read,
	// because of ProjectErr. Without both the project is not checked.
	Project    *mcpconfig.Config
	ProjectErr error
	// Program is the command line of this program in remedies.
	Program string
	// Environ is the environment of the agents; nil is this process's.
	Environ []string
	// Install is where the programs have their configuration; nil leaves it unchecked.
	Install *install.Place
	// ServerTimeout bounds the check of one MCP server; 0 means 30 s.
	ServerTimeout time.Duration
}

// agentTimeout bounds the probe of one agent.
const agentTimeout = 30 * time.Second

// Examine runs all checks. It blocks until every agent and MCP server has answered or its time limit has passed.
func (p Patient) Examine(ctx context.Context) []Finding {
	findings := p.configuration()
	findings = append(findings, p.installed()...)
	if p.Config == nil {
		return slices.Concat(findings, p.project(ctx), p.network(ctx))
	}
	hub, err := p.hub(ctx)
	findings = append(findings, p.dataDirectory(), p.disk(), p.describeHub(hub, err), p.socket(hub))
	findings = slices.Concat(findings, p.ports(ctx, hub), []Finding{p.bus(ctx, hub)}, p.damage(hub), p.link(hub), []Finding{p.git()})
	return slices.Concat(findings, p.peers(hub), p.mcpServers(ctx, hub), p.project(ctx), p.network(ctx), p.agents(ctx))
}

// Worst returns the worst level of findings.
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

func warning(check, message, remedy string) Finding {
	return Finding{Check: check, Level: Warning, Message: message, Remedy: remedy}
}

func failure(check, message, remedy string) Finding {
	return Finding{Check: check, Level: Failure, Message: message, Remedy: remedy}
}

func (p Patient) configuration() []Finding {
	if p.Err != nil {
		if unread, ok := errors.AsType[*config.Error](p.Err); ok {
			return []Finding{failure("configuration", unread.Message, unread.Remedy)}
		}
		return []Finding{failure("configuration", p.Err.Error(), "correct the file, or move it away to use the defaults")}
	}
	state := "is valid"
	if !p.Config.Found {
		state = "does not exist; the defaults are in force"
	}
	findings := []Finding{good("configuration", "%s %s", p.Config.File, state)}
	for _, w := range p.Config.Warnings {
		findings = append(findings, warning("configuration", w, ""))
	}
	return findings
}

// hub returns the status of the hub that listens on the socket; the error without a hub is client.ErrNotRunning.
func (p Patient) hub(ctx context.Context) (*dialect.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := daemon.Dial(ctx, p.Config)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Status(ctx)
}

func (p Patient) describeHub(hub *dialect.Status, err error) Finding {
	const check = "hub"
	if hub != nil {
		return good(check, "is running (process %d, version %s)", hub.PID, hub.Version)
	}
	info, running, runningErr := daemon.Running(p.Config.DataDir)
	switch {
	case runningErr != nil:
		return failure(check, runningErr.Error(), "give your user access to the data directory")
	case daemon.CodeOf(err) == daemon.CodeOtherHub:
		var other *daemon.Error
		errors.As(err, &other)
		return failure(check, other.Message, other.Remedy)
	case errors.Is(err, client.ErrForeignSocket):
		return failure(check, err.Error(), "name a socket of your own with --socket, or leave it out")
	case running && p.Config.Names("socket.path") && !daemon.SamePath(info.Socket, p.Config.Socket.Path):
		return failure(check, fmt.Sprintf("no hub listens on %s, and the one of the data directory %s (process %d) listens on %s", p.Config.Socket.Path, p.Config.DataDir, info.PID, info.Socket),
			"use --socket "+info.Socket+", or name another data directory with --data-dir")
	case running:
		return failure(check, fmt.Sprintf("has locked the data directory (process %d) but does not answer: %v", info.PID, err),
			fmt.Sprintf("see %s; if the hub hangs, run: %s stop", daemon.LogPath(p.Config.DataDir), p.Program))
	case errors.Is(err, client.ErrNotRunning):
		return good(check, "is not running; start it with: %s start", p.Program)
	}
	return failure(check, err.Error(), "remove the file, or choose another path with --socket")
}

func (p Patient) dataDirectory() Finding {
	const check = "data-directory"
	dir := p.Config.DataDir
	remedy := "set dataDir or PARLEY_DATA_DIR to a directory that you own"
	info, err := os.Stat(dir)
	if errors.Is(err, os.ErrNotExist) {
		if err := writable(existingParent(dir)); err != nil {
			return failure(check, fmt.Sprintf("%s cannot be created: %v", dir, err), remedy)
		}
		return good(check, "%s will be created by the first start", dir)
	}
	if err == nil && !info.IsDir() {
		err = errors.New("it is not a directory")
	}
	if err == nil {
		err = writable(dir)
	}
	if err != nil {
		return failure(check, fmt.Sprintf("%s cannot be used: %v", dir, err), remedy)
	}
	var unreadable *daemon.Error
	if err := daemon.CheckFormat(dir, version.String()); errors.As(err, &unreadable) {
		return failure(check, unreadable.Message, unreadable.Remedy)
	}
	if info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
		return warning(check, fmt.Sprintf("other users have access to %s (mode %04o)", dir, info.Mode().Perm()), "run: chmod 700 "+dir)
	}
	return good(check, "%s is private", dir)
}

func existingParent(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// writable creates and removes a file: permissions alone do not show a read-only file system.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".parley-doctor-*")
	if err != nil { // the name of the temporary file says nothing to users
		return errors.New(local.Reason(err))
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Free space, in bytes.
const (
	littleSpace = 1 << 30  // less is a warning
	noSpace     = 64 << 20 // less is a failure
)

func (p Patient) disk() Finding {
	dir := existingParent(p.Config.DataDir)
	free, err := local.FreeSpace(dir)
	if err != nil {
		return warning("disk", fmt.Sprintf("cannot determine the free space of %s: %v", dir, err), "")
	}
	f := good("disk", "%d MiB are free", free>>20)
	if free < littleSpace {
		f.Level, f.Remedy = Warning, "free space, or set tasks.retention lower"
	}
	if free < noSpace {
		f.Level = Failure
	}
	return f
}

// maxSocketPath is the longest path of a Unix socket that every platform supports.
const maxSocketPath = config.MaxSocketPath

func (p Patient) socket(hub *dialect.Status) Finding {
	const check, choose = "socket", "choose another path with socket.path or PARLEY_SOCKET"
	path := p.Config.Socket.Path
	if !p.Config.Socket.Enabled {
		return warning(check, "is turned off; commands cannot reach the hub", "set socket.enabled: true")
	}
	if hub != nil {
		if hub.Socket != "" {
			path = hub.Socket
		}
		return good(check, "%s answers", path)
	}
	if len(path) > maxSocketPath {
		return failure(check, fmt.Sprintf("%s is longer than %d bytes, the limit for a Unix socket", path, maxSocketPath), "choose a shorter path with socket.path or PARLEY_SOCKET")
	}
	dir := filepath.Dir(path)
	parent := dir
	if dir == filepath.Clean(p.Config.DataDir) { // the first start creates it
		parent = existingParent(dir)
	}
	if err := writable(parent); err != nil {
		return failure(check, fmt.Sprintf("no socket can be created in %s: %v", dir, err), choose)
	}
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return good(check, "%s is free", path)
	}
	if err != nil || !local.OwnedByUser(info) {
		return failure(check, path+" belongs to another user", choose)
	}
	if !local.IsSocket(info) {
		return failure(check, path+" exists and is not a socket", "remove it, or "+choose)
	}
	return good(check, "%s was left by a killed hub; the next start removes it", path)
}

func (p Patient) ports(ctx context.Context, hub *dialect.Status) []Finding {
	var findings []Finding
	if hub != nil {
		for _, notice := range hub.Notices {
			findings = append(findings, warning("ports", notice, "stop the other program and restart the hub, or set http.port or grpc.port to a free port"))
		}
	}
	if p.Config.HTTP.Enabled {
		findings = append(findings, p.port(ctx, "http", p.Config.HTTP.Port, hub))
	}
	if p.Config.GRPC.Port != 0 {
		findings = append(findings, p.port(ctx, "grpc", p.Config.GRPC.Port, hub))
	}
	return findings
}

// port reports where the hub listens, or whether it can listen on a configured port.
func (p Patient) port(ctx context.Context, check string, port int, hub *dialect.Status) Finding {
	address := net.JoinHostPort(p.Config.HTTP.Host, strconv.Itoa(port))
	if hub != nil {
		if at := map[string]string{"http": hub.HTTP, "grpc": hub.GRPC}[check]; at != "" {
			return good(check, "the hub listens on %s", at)
		}
		return good(check, "the running hub does not listen; the configured address is %s", address)
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if server.IsAddressInUse(err) {
		return warning(check, fmt.Sprintf("%s is in use by another program; the hub will listen on another port", address), "stop that program, or choose a free port with "+check+".port")
	}
	if err != nil {
		return failure(check, fmt.Sprintf("cannot listen on %s: %v", address, err), "choose another address with http.host or "+check+".port")
	}
	if err := ln.Close(); err != nil {
		return warning(check, err.Error(), "")
	}
	return good(check, "%s is free", address)
}

// link checks the hub's link to the cluster of the agents' network.
func (p Patient) link(hub *dialect.Status) []Finding {
	const check = "cluster-link"
	switch {
	case p.Config.Bus.Leaf.URL == "":
		return nil
	case hub == nil:
		return []Finding{good(check, "the hub will connect to %s when it runs", p.Config.Bus.Leaf.URL)}
	case hub.Bus == nil || hub.Bus.Link == nil:
		return []Finding{warning(check, "the running hub was started without the configured link", "restart it: "+p.Program+" stop, "+p.Program+" start")}
	}
	l := hub.Bus.Link
	if !l.Connected {
		return []Finding{failure(check, l.Problem, l.Remedy)}
	}
	if !p.Config.Bus.Leaf.TLSRequired && !strings.HasPrefix(l.URL, "tls://") {
		return []Finding{warning(check, "the hub is linked to "+l.URL+" as a leaf node; without TLS anyone on the network path can read and change everything",
			"enable TLS in the leafnodes block of the servers and set bus.leaf.tlsRequired")}
	}
	return []Finding{good(check, "the hub is linked to %s as a leaf node", l.URL)}
}

func (p Patient) bus(ctx context.Context, hub *dialect.Status) Finding {
	if hub != nil && hub.Bus != nil {
		if hub.Bus.Error != "" {
			return failure("bus", hub.Bus.Error, "see "+daemon.LogPath(p.Config.DataDir))
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
		if be, ok := errors.AsType[*bus.Error](err); ok {
			return failure("bus", be.Message, be.Remedy)
		}
		return failure("bus", err.Error(), "check bus.url and its credentials")
	}
	defer b.Close(ctx) //nolint:errcheck // nothing was written
	return good("bus", "%s answers, with JetStream", b.Info().URL)
}

// damage reports what is damaged in the embedded store. Lost records are a failure, everything else is a warning: it was
// mended, but a disk that flips bits will do so again.
func (p Patient) damage(hub *dialect.Status) []Finding {
	if p.Config.Bus.URL != "" {
		return nil
	}
	var counts damage.Counts
	if hub != nil && hub.Bus != nil {
		if hub.Bus.Damage != nil {
			counts = hub.Bus.Damage.Counts
		}
	} else {
		counts = bus.KnownDamage(p.Config.DataDir)
	}
	if counts == (damage.Counts{}) {
		return []Finding{good("store", "has no known damage")}
	}
	f := warning("store", "had damage that was mended: "+counts.String(), fmt.Sprintf("check the disk's health; `%s repair` lists the damage", p.Program))
	if counts.Lost > 0 {
		f.Level, f.Message = Failure, "has damage: "+counts.String()
	}
	if counts.Lost+counts.Corrected+counts.Rebuilt+counts.Obsolete == 0 {
		f = good("store", "has no damage; a crash has cut off %s, which nobody was told of", text.Count(counts.CutOff, "write"))
	}
	return []Finding{f}
}

func durability(mode string) Finding {
	if mode == string(bus.DurabilityFast) {
		return warning("bus", "embedded, durability fast: a power cut can lose the last seconds", "set bus.durability: commit")
	}
	return good("bus", "embedded, durability %s: acknowledged writes are on disk", mode)
}

func (p Patient) git() Finding {
	if _, err := exec.LookPath("git"); err != nil {
		return warning("git", "is not installed; agents with workdir.policy worktree cannot work, and codex needs repositories", "install git")
	}
	return good("git", "is installed")
}

// agents probes all agents concurrently.
func (p Patient) agents(ctx context.Context) []Finding {
	return concurrently(p.Config.Agents, -1, func(id string, def runner.Definition) Finding { return p.agent(ctx, id, def) })
}

// concurrently checks items, at most limit at once unless it is negative. The findings are in the
// order of the items' names.
func concurrently[T any](items map[string]T, limit int, check func(name string, item T) Finding) []Finding {
	findings := make([]Finding, len(items))
	var group errgroup.Group
	group.SetLimit(limit)
	for i, name := range slices.Sorted(maps.Keys(items)) {
		group.Go(func() error {
			findings[i] = check(name, items[name])
			return nil
		})
	}
	_ = group.Wait() // the checks return findings, and no errors
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
		f.Level, f.Message, f.Remedy = Failure, err.Error(), "correct agents."+id+" in the configuration"
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
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
		f.Message = "is installed; the first message will show whether it is logged in" + version
	default:
		f.Level, f.Message, f.Remedy = Warning, "could not be checked", def.Probe.Install
	}
	return f
}
