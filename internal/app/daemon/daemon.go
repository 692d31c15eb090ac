// Package daemon is the hub as one process: it puts the bus, the agents, the
// hub and the servers together in the order in which they need each other, and
// takes them apart in the order in which nothing is lost. It also starts and
// stops that process in the background.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/grpc"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/crdt/ysync"
	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/base/memory"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/push"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
	"github.com/parleyhub/parley/internal/tools/delegation"
	"github.com/parleyhub/parley/internal/tools/mounts"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/swarm"
	"github.com/parleyhub/parley/swarm/busjournal"
	"github.com/parleyhub/parley/telemetry/audit"
)

// Options are what Run needs besides the configuration.
type Options struct {
	Version string
	Logger  *slog.Logger
	// Log is where Logger writes, for the run file; "" for a terminal.
	Log string
	// KeepLock leaves the lock of the data directory to the end of the process:
	// who waits for it then waits for the process too.
	KeepLock bool
	// SwarmTakeover is how long a swarm's coordinator may be silent before another hub
	// on the same NATS server takes its place; 0 means the default. All hubs on the
	// server have the same.
	SwarmTakeover time.Duration
	// Ready is called once the hub serves; nil for nothing. It must not block.
	Ready func(Info)
}

// How long the parts may take to end. Agents get the most: a turn is asked to
// stop, then told, then killed.
const (
	hubPatience    = 20 * time.Second
	nodePatience   = 5 * time.Second
	serverPatience = 5 * time.Second
	mcpPatience    = 5 * time.Second
	busPatience    = 20 * time.Second

	documentsPatience = 10 * time.Second
)

// giveBackEvery is how often a hub without work gives memory back.
const giveBackEvery = 15 * time.Second

// Run runs a hub until ctx ends, a listener breaks, or a client asks it to stop.
// It returns nil after a stop that was asked for. Where another hub has the data
// directory it returns an *Error of CodeRunning.
func Run(ctx context.Context, cfg *config.Loaded, opts Options) (err error) {
	keepDescriptors()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	d := &daemon{cfg: cfg, opts: opts, log: opts.Logger, stop: func() { stop(errStopRequested) }}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.open(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(context.Cause(ctx), errStopRequested) {
			return nil
		}
		return err
	}
	var background sync.WaitGroup
	defer background.Wait()
	defer stop(nil)
	background.Go(func() {
		memory.Keep(ctx, giveBackEvery, func() bool { return d.hub.Status().ActiveTasks > 0 }, d.log)
	})
	d.log.Info("the hub serves", "version", opts.Version, "pid", d.info.PID, "data", cfg.DataDir, "durability", d.info.Durability)
	if opts.Ready != nil {
		opts.Ready(d.info)
	}
	select {
	case <-ctx.Done():
		d.log.Info("the hub stops", "reason", context.Cause(ctx))
		return nil
	case err := <-d.server.Failed():
		d.log.Error("a listener broke; the hub stops", "error", err)
		return fmt.Errorf("a listener broke: %w", err)
	}
}

var errStopRequested = errors.New("a client asked for it")

// daemon is a hub that runs. Its parts are set as they start; what follows
// is on the stack of ends.
type daemon struct {
	cfg  *config.Loaded
	opts Options
	log  *slog.Logger
	stop func()

	held      *flock.Flock // of the data directory
	bus       *bus.Bus
	name      string // on the bus
	hub       *hub.Hub
	push      *push.Service
	audit     *audit.Log // nil without one
	node      *node.Node
	peers     *peers.Network // nil without peers
	documents *documents.Library
	rooms     *ysync.Server // nil without HTTP
	tools     *mounts.Tools
	badges    *delegation.Badges
	work      *delegation.Service // that agents hand each other
	server    *server.Server
	mcp       *mcpserver.Handler // nil without HTTP
	info      Info
	ends      []func() error // in the order of the starts; run backwards
}

// atEnd adds what ends a part that has just started.
func (d *daemon) atEnd(end func() error) { d.ends = append(d.ends, end) }

func (d *daemon) open(ctx context.Context) error {
	for _, start := range []func(context.Context) error{
		d.lock, d.openBus, d.openHub, d.openPush, d.openNode, d.openTools, d.openPeers, d.openDocuments, d.openSharing, d.openServer, d.openGRPC, d.announce,
	} {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// close ends the parts, the last one first, but for the hub: it ends before the
// servers, so that those who wait hear how their tasks ended.
func (d *daemon) close() error {
	var errs []error
	if d.node != nil {
		d.node.CloseSwarms() // the end of the agents is no failure of theirs
	}
	if d.hub != nil {
		errs = append(errs, within(hubPatience, d.hub.Close))
	}
	for _, end := range slices.Backward(d.ends) {
		errs = append(errs, end())
	}
	err := errors.Join(errs...)
	if err != nil {
		d.log.Error("the hub did not stop cleanly", "error", err)
	}
	return err
}

func within(patience time.Duration, end func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return end(ctx)
}

func (d *daemon) lock(ctx context.Context) error {
	lock, err := prepare(ctx, d.cfg.DataDir)
	if err != nil {
		return err
	}
	d.held = lock
	if !d.opts.KeepLock {
		d.atEnd(lock.Unlock)
	}
	return nil
}

// BusConfig is the bus that the configuration asks for; log may be nil.
func BusConfig(cfg *config.Loaded, log *slog.Logger) bus.Config {
	c := cfg.Bus
	dir := cfg.DataDir
	if c.URL != "" { // the store is elsewhere
		dir = ""
	}
	leaf := bus.LeafConfig{URL: bus.Secret(c.Leaf.URL), Domain: c.Leaf.Domain, Credentials: credentials(c.Leaf.NATSLogin)}
	leaf.Credentials.TLS = c.Leaf.TLSRequired
	return bus.Config{
		DataDir: dir, Durability: bus.Durability(c.Durability), MaxStore: c.MaxStore,
		URL: bus.Secret(c.URL), Name: "parley-hub", Logger: log, Credentials: credentials(c.NATSLogin), Leaf: leaf,
	}
}

// credentials are those of a configured NATS server.
func credentials(n config.NATSLogin) bus.Credentials {
	return bus.Credentials{User: n.User, Password: bus.Secret(n.Password), File: n.CredentialsFile, NKeyFile: n.NKeyFile,
		CAFile: n.TLS.CAFile, CertFile: n.TLS.CertFile, KeyFile: n.TLS.KeyFile}
}

func (d *daemon) openBus(ctx context.Context) error {
	b, err := bus.Open(ctx, BusConfig(d.cfg, d.log))
	if err != nil {
		return err
	}
	d.bus = b
	d.atEnd(func() error { return within(busPatience, b.Close) })
	info := b.Info()
	if info.DurabilityReason != "" {
		d.log.Warn("the bus runs in another durability mode than asked for", "mode", info.Durability, "asked", info.DurabilityAsked, "reason", info.DurabilityReason)
	}
	d.log.Info("the bus is open", "kind", info.Kind, "durability", info.Durability, "url", info.URL)
	return nil
}

func (d *daemon) openHub(ctx context.Context) error {
	owner := ownerOf(d.cfg.DataDir)
	if n, err := process.SweepOwner(owner); err != nil {
		d.log.Warn("cannot look for processes of an earlier run", "error", err)
	} else if n > 0 {
		d.log.Warn("ended processes that an earlier run left behind", "processes", n)
	}
	agents, err := openAgents(d.cfg.Agents, owner)
	if err != nil {
		return err
	}
	if d.name, err = hubName(d.cfg.DataDir, d.bus.Info().Kind == bus.KindEmbedded); err != nil {
		return err
	}
	d.badges = delegation.NewBadges()
	h, err := hub.New(ctx, hub.Config{
		SessionEnv: d.badges.Env,
		Bus:        d.bus, Name: d.name, Version: d.opts.Version, DataDir: d.cfg.DataDir, WorkRoots: d.cfg.WorkDirs.Roots, Agents: agents, Logger: d.log,
		ContextTTL: d.cfg.Contexts.Expiry, TaskTTL: d.cfg.Tasks.Retention,
	})
	if err != nil {
		return err
	}
	d.hub = h
	return nil
}

// openAgents makes the agents that are not disabled, in the order of their ids.
func openAgents(defs map[string]runner.Definition, owner string) ([]hub.Agent, error) {
	var agents []hub.Agent
	for _, id := range slices.Sorted(maps.Keys(defs)) {
		def := defs[id]
		if def.Disabled {
			continue
		}
		agent, err := runner.Open(def, runner.Options{Drivers: drivers.All(), Owner: owner})
		if err != nil {
			return nil, fmt.Errorf("agent %s: %w", id, err)
		}
		agents = append(agents, hub.Agent{Definition: def, Runner: agent})
	}
	return agents, nil
}

func (d *daemon) openPush(ctx context.Context) error {
	p, err := push.Open(ctx, push.Options{Tasks: d.hub, Bus: d.bus, Name: d.name, AllowPrivate: d.cfg.Push.AllowPrivate, Logger: d.log})
	if err != nil {
		return err
	}
	d.push = p
	d.atEnd(func() error { p.Close(); return nil })
	d.hub.OnTurn(p.TurnStarted)
	return nil
}

// AuditDir is where the hub of a data directory keeps its audit log.
func AuditDir(dataDir string) string { return filepath.Join(dataDir, "audit") }

// openNode makes the agents cards. The audit log is another process's business
// only while a hub holds the lock of the data directory, which this one does.
func (d *daemon) openNode(ctx context.Context) error {
	cfg := d.cfg.Node
	opts := node.Options{
		Hub: d.hub, Version: d.opts.Version, PeerTier: agent.TierOf(cfg.PeerTier), CrossSandbox: cfg.CrossSandbox, Logger: d.log,
	}
	if cfg.Audit.Enabled {
		log, err := audit.Open(AuditDir(d.cfg.DataDir), audit.Options{MaxFileSize: cfg.Audit.MaxFileSize, MaxFiles: cfg.Audit.MaxFiles})
		if err != nil {
			return &Error{Code: CodeDataDir, Message: err.Error(), Remedy: "mend the directory audit in the data directory, or set node.audit.enabled to false", Err: err}
		}
		d.atEnd(log.Close)
		opts.Audit, d.audit = log, log
	}
	journal, err := d.swarmJournal(ctx)
	if err != nil {
		return err
	}
	opts.Swarms = &node.SwarmOptions{Journal: journal, Hub: d.name, Takeover: d.opts.SwarmTakeover}
	n, err := node.Open(opts)
	if err != nil {
		return err
	}
	d.node = n
	d.atEnd(func() error { return within(nodePatience, n.Close) })
	return nil
}

// maxJournals bounds the journals of swarms, in bytes; a smaller store gives them an
// eighth.
const maxJournals = 256 << 20

// swarmJournal keeps swarms on the bus, as durable as tasks are.
func (d *daemon) swarmJournal(ctx context.Context) (swarm.Journal, error) {
	size := int64(maxJournals)
	if most := d.cfg.Bus.MaxStore; most > 0 {
		size = min(size, most/8)
	}
	j, err := busjournal.Open(ctx, d.bus.JetStream(), busjournal.Options{MaxBytes: size, Publisher: durable{d.bus}})
	if err != nil {
		return nil, err
	}
	return j, d.bus.Commit(ctx) // the new stream, too
}

// durable publishes with the bus's promise instead of JetStream's.
type durable struct{ bus *bus.Bus }

func (p durable) PublishMsg(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	return p.bus.Publish(ctx, msg, opts...)
}

// openTools begins to connect the MCP servers whose tools the agents share.
func (d *daemon) openTools(context.Context) error {
	d.tools = mounts.Open(mounts.Options{
		Node: d.node.Parley(), Servers: d.cfg.MCPServers, Shared: d.cfg.Peers.Tools, Dir: d.cfg.DataDir, Owner: ownerOf(d.cfg.DataDir), Logger: d.log,
	})
	d.atEnd(func() error { d.tools.Close(); return nil })
	d.work = delegation.New(delegation.Options{
		Hub: d.hub, Badges: d.badges, Permit: d.node.Parley().Router().Permit, Telemetry: d.node.Telemetry(),
	})
	return nil
}

// openPeers meets other hubs.
func (d *daemon) openPeers(ctx context.Context) error {
	cfg := d.cfg.Peers
	if !cfg.Enabled {
		return nil
	}
	opts := peers.Options{
		Hub: d.hub, DataDir: d.cfg.DataDir, Version: d.opts.Version, Prefix: cfg.Prefix, Tools: d.tools,
		Hyperswarm: hyperswarm(cfg.Hyperswarm),
		PeerTier:   agent.TierOf(cfg.PeerTier), CrossSandbox: d.cfg.Node.CrossSandbox, Logger: d.log,
	}
	switch {
	case cfg.NATS.URL != "":
		shared, err := bus.Dial(peersBus(cfg.NATS, d.log))
		if err != nil {
			return err
		}
		d.atEnd(func() error { shared.Close(); return nil })
		opts.NATS = shared
	case d.cfg.Bus.URL != "": // the embedded server is the hub's own
		opts.NATS = d.bus.Conn()
	}
	if d.audit != nil {
		opts.Audit = d.audit
	}
	n, err := peers.Open(ctx, opts)
	if err != nil {
		return &Error{Code: CodeStart, Message: "cannot join other hubs: " + err.Error(), Remedy: "mend it, or set peers.enabled to false", Err: err}
	}
	d.peers = n
	d.atEnd(func() error { return within(nodePatience, n.Close) })
	d.log.Info("hubs that have paired with this one can reach it", "key", n.Key(), "nats", opts.NATS != nil, "hyperswarm", opts.Hyperswarm != nil, "public", n.Public())
	return nil
}

// peersBus is the NATS server on which hubs meet that have their stores elsewhere.
func peersBus(c config.PeersNATS, log *slog.Logger) bus.Config {
	return bus.Config{URL: bus.Secret(c.URL), Name: "parley-hub peers", Logger: log.With("for", "peers"), Credentials: credentials(c.NATSLogin)}
}

// peersStatus is how other hubs are; nil for a hub that meets none.
func (d *daemon) peersStatus() *dialect.PeersStatus {
	if d.peers == nil {
		return nil
	}
	status := &dialect.PeersStatus{Key: d.peers.Key().String(), Hubs: []dialect.PeerStatus{}}
	if public := d.peers.Public(); public.IsValid() {
		status.Public = public.String()
	}
	for _, p := range d.peers.Status() {
		s := dialect.PeerStatus{Name: p.Name, Key: p.Key.String(), Connected: len(p.Via) > 0, Via: []string{}, Agents: append([]string{}, p.Agents...)}
		for _, way := range p.Via {
			s.Via = append(s.Via, string(way))
		}
		if !p.Heard.IsZero() {
			s.LastHeard = &dialect.Time{Time: p.Heard}
		}
		if p.Problem != nil {
			s.Problem = p.Problem.Error()
		}
		status.Hubs = append(status.Hubs, s)
	}
	return status
}

// hyperswarm is what the configuration says of it; nil if it is off. It was checked
// when it was read.
func hyperswarm(h config.Hyperswarm) *peers.Hyperswarm {
	if !h.Enabled {
		return nil
	}
	listen, _ := h.ListenAddr()
	public, _ := h.PublicAddr()
	relays, _ := h.RelayKeys()
	return &peers.Hyperswarm{
		Listen: listen, Public: public, Bootstrap: h.Bootstrap, Network: h.Network, Capabilities: h.Capabilities, Relay: h.Relay, Relays: relays,
	}
}

func (d *daemon) openServer(ctx context.Context) error {
	cards := &dialect.Directory{Agents: d.hub, Version: d.opts.Version, BaseURL: d.baseURL, Token: d.cfg.HTTP.Token != ""}
	rpc := dialect.Config{Hub: dialect.OnHub(d.hub), Cards: cards, Bus: d.busStatus, Documents: d.documents, Swarms: d.node.Swarms(), MCPServers: d.mcpStatus}
	overHTTP := dialect.New(rpc)
	rpc.Shutdown = d.stop // only who may open the socket may stop the hub
	rpc.Gate = d.bus      // or come near the bus
	rpc.Peers = d.peersStatus
	rpc.Shares = d.documents
	if d.audit != nil {
		rpc.LoopStep = d.loopStep // or write to the log
	}
	if d.bus.Info().Kind == bus.KindEmbedded {
		agents := newReception(d.bus, func(ctx context.Context) (*bus.Bus, error) { return d.ownNetwork(ctx, "parley-hub network") },
			func(ctx context.Context) (*bus.Bus, error) { return d.linkedCluster(ctx, "parley-hub network") }, d.log)
		if d.bus.Info().Leaf != nil {
			agents.forward(ctx)
		}
		d.atEnd(agents.close)
		rpc.Admission = agents
	}
	overSocket := dialect.New(rpc)

	sc := server.Config{
		SocketHandler: overSocket, SocketMCP: d.socketMCP, HTTPHandler: overHTTP, Cards: cards, Health: overHTTP.Health,
		Token: d.cfg.HTTP.Token, Hosts: d.cfg.HTTP.AllowedHosts, Origins: d.cfg.HTTP.AllowedOrigins, Log: d.log,
	}
	if d.cfg.Socket.Enabled {
		sc.Socket = d.cfg.Socket.Path
	}
	if d.cfg.HTTP.Enabled {
		sc.HTTP = net.JoinHostPort(d.cfg.HTTP.Host, strconv.Itoa(d.cfg.HTTP.Port))
	}
	s, err := server.New(sc)
	if err != nil {
		return err
	}
	if d.cfg.HTTP.Enabled {
		d.a2a().Mount(s.Mount)
		s.Mount(metricsPath, metrics(d.hub, d.node.Telemetry()))
		if d.cfg.Node.Enabled {
			d.node.Mount(s.Mount)
		}
		d.rooms = d.documentRooms()
		s.Mount(documentsPath+"{name}", d.rooms)
		d.mcp = d.mcpHandler()
		s.Mount(mcpserver.Path, d.mcp)
	}
	if err := s.Start(ctx); err != nil {
		if d.rooms != nil {
			d.rooms.Close()
		}
		return err
	}
	d.server = s
	d.atEnd(func() error { return within(serverPatience, s.Shutdown) })
	if d.rooms != nil {
		d.atEnd(func() error { d.rooms.Close(); return nil })
	}
	if d.mcp != nil { // before the server, which waits for the requests
		d.atEnd(func() error { return within(mcpPatience, d.mcp.Close) })
	}
	if url := d.baseURL(); url != "" && d.cfg.Node.Enabled {
		return d.node.Announce(url)
	}
	return nil
}

// loopStep logs a step of one of the user's loops, which is a process of its own.
func (d *daemon) loopStep(list string, s ralph.Step) error {
	event := s.Event()
	event.Sender = "loop " + list
	return d.audit.Append(event, nil)
}

// a2a makes the A2A bindings over the hub. They keep nothing: HTTP and gRPC may
// each have their own.
func (d *daemon) a2a() *a2aserver.Server {
	opts := a2aserver.Options{
		Hub: d.hub, Push: d.push, Version: d.opts.Version, TokenRequired: d.cfg.HTTP.Token != "", Logger: d.log,
	}
	if d.cfg.GRPC.Port != 0 {
		opts.GRPCAddress = d.grpcAddress()
	}
	return a2aserver.New(opts)
}

func (d *daemon) grpcAddress() string {
	return net.JoinHostPort(d.cfg.HTTP.Host, strconv.Itoa(d.cfg.GRPC.Port))
}

func (d *daemon) openGRPC(ctx context.Context) error {
	if d.cfg.GRPC.Port == 0 {
		return nil
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", d.grpcAddress())
	if err != nil {
		return &Error{Code: CodeStart, Message: "cannot listen for gRPC: " + err.Error(), Remedy: "choose another grpc.port", Err: err}
	}
	s := d.a2a().NewGRPC(a2aserver.GRPCOptions{Authorize: d.authorize})
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	d.atEnd(func() error {
		stopGRPC(s)
		return <-served
	})
	d.log.Info("listening for gRPC", "address", ln.Addr().String())
	return nil
}

// stopGRPC lets calls finish for a while, then cuts them off.
func stopGRPC(s *grpc.Server) {
	timer := time.AfterFunc(serverPatience, s.Stop)
	defer timer.Stop()
	s.GracefulStop()
}

func (d *daemon) authorize(token string) bool { return sameToken(token, d.cfg.HTTP.Token) }

// announce writes the run file, the last thing before the hub is ready.
func (d *daemon) announce(context.Context) error {
	d.info = Info{
		PID: os.Getpid(), Version: d.opts.Version, StartedAt: time.Now().Truncate(time.Millisecond), DataDir: d.cfg.DataDir,
		HTTP: d.baseURL(), Durability: string(d.bus.Info().Durability), Log: d.opts.Log,
	}
	if d.cfg.Socket.Enabled {
		d.info.Socket = d.cfg.Socket.Path
	}
	if d.cfg.GRPC.Port != 0 {
		d.info.GRPC = d.grpcAddress()
	}
	if err := d.info.write(); err != nil {
		return &Error{Code: CodeDataDir, Message: "cannot write the run file: " + err.Error(), Err: err}
	}
	path := filepath.Join(d.cfg.DataDir, infoName)
	d.atEnd(func() error { return os.Remove(path) })
	return nil
}

// baseURL is where the HTTP server is reached, "" without one.
func (d *daemon) baseURL() string {
	if d.server == nil || d.server.Addr() == nil {
		return ""
	}
	addr, ok := d.server.Addr().(*net.TCPAddr)
	if !ok || !addr.IP.IsUnspecified() {
		return "http://" + d.server.Addr().String()
	}
	return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(addr.Port)) // listens on every address, this one too
}

func (d *daemon) busStatus() dialect.BusStatus {
	info := d.bus.Info()
	status := dialect.BusStatus{Mode: string(info.Durability), Embedded: info.Kind == bus.KindEmbedded}
	if !status.Embedded {
		status.URL = info.URL
	}
	if l := info.Leaf; l != nil {
		status.Link = &dialect.LinkStatus{Connected: l.State == bus.StateConnected, URL: l.URL, Server: l.Server, Since: dialect.Time{Time: l.Since},
			Problem: l.LastError, Remedy: l.Remedy}
	}
	switch {
	case info.StorageError != "":
		status.Error = info.StorageError
	case info.State != bus.StateConnected:
		status.Error = info.LastError
		if status.Error == "" {
			status.Error = "the connection is " + string(info.State)
		}
	}
	return status
}

// RunInBackground is Run in the process that Start has made: the log goes to
// the data directory, and report gets the one line that Start waits for.
// loadErr is the error of reading the configuration, for the report.
func RunInBackground(ctx context.Context, cfg *config.Loaded, loadErr error, reportTo io.WriteCloser, opts Options) error {
	surviveParent()
	fail := func(err error) error {
		e := &Error{Code: CodeStart, Message: err.Error(), Err: err}
		var de *Error
		var se *server.Error
		switch {
		case errors.As(err, &de):
			e = de
		case errors.As(err, &se) && se.Code == server.CodeInUse:
			e = &Error{Code: CodeInUse, Message: se.Message, Remedy: se.Remedy, Err: err}
		}
		return errors.Join(err, report{Error: e}.send(reportTo))
	}
	if loadErr != nil {
		return fail(loadErr)
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return fail(err)
	}
	if err := os.Chdir(cfg.DataDir); err != nil { // hold no other directory
		return fail(err)
	}
	opts.Log, opts.KeepLock = LogPath(cfg.DataDir), true
	logFile, err := OpenLog(opts.Log)
	if err != nil {
		return fail(err)
	}
	opts.Logger = NewLogger(logFile, cfg.Logging, false)
	ready := false
	opts.Ready = func(info Info) {
		ready = true
		if err := (report{Ready: &info}).send(reportTo); err != nil {
			opts.Logger.Warn("the process that started the hub has gone", "error", err)
		}
	}
	err = Run(ctx, cfg, opts)
	if err != nil {
		opts.Logger.Error("the hub ended", "error", err)
	}
	err = errors.Join(err, logFile.Close())
	if err != nil && !ready {
		return fail(err)
	}
	return err
}
