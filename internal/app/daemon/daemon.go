// Package daemon runs the hub as one process: it starts the bus, the agents, the hub and the
// servers in the order of their dependencies, and stops them in an order that loses no data.
// It also starts and stops that process in the background.
package daemon

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"

	"github.com/parleyhub/parley/agent"
	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/api/site"
	"github.com/parleyhub/parley/internal/api/ui"
	"github.com/parleyhub/parley/internal/base/budget"
	"github.com/parleyhub/parley/internal/base/caller"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/federation/programs"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/push"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
	"github.com/parleyhub/parley/internal/mcp/delegation"
	"github.com/parleyhub/parley/internal/mcp/mounts"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
	"github.com/parleyhub/parley/internal/queues"
	"github.com/parleyhub/parley/internal/senders"
	"github.com/parleyhub/parley/internal/sessions"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/swarm"
	"github.com/parleyhub/parley/swarm/busjournal"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/telemetry/audit"
)

// Options are the options of [Run] besides the configuration.
type Options struct {
	Version string
	Logger  *slog.Logger
	// Log is the path of the log file, for the run file; "" for a terminal.
	Log string
	// KeepLock keeps the lock of the data directory until the process ends, so that a
	// process that waits for the lock also waits for the end of this one.
	KeepLock bool
	// LimitMemory sets the soft memory limit of the process, unless its environment does, and keeps it up to date.
	LimitMemory bool
	// SwarmTakeover is how long a swarm's coordinator may be silent before another hub on the same NATS server takes
	// over; 0 means the default. It must be the same for all hubs on the server.
	SwarmTakeover time.Duration
	// SuspendAfter is that of mcpserver.HandlerOptions.
	SuspendAfter time.Duration
	// Ready is called when the hub is ready, unless it is nil. It must not block.
	Ready func(Info)
}

// How long the parts may take to stop. The hub gets the longest: it interrupts the agents'
// turns, and kills those that do not end.
const (
	hubTimeout       = 20 * time.Second
	nodeTimeout      = 5 * time.Second
	serverTimeout    = 5 * time.Second
	mcpTimeout       = 5 * time.Second
	busTimeout       = 20 * time.Second
	documentsTimeout = 10 * time.Second
	eventsTimeout    = 5 * time.Second
)

// memoryInterval is how often an idle hub returns memory to the system, and programInterval how often the pages of the program's file.
const (
	memoryInterval  = 15 * time.Second
	programInterval = 2 * time.Second
)

// Run runs a hub until ctx ends, a listener fails, or a client requests a stop. It returns nil after a requested
// stop. If another hub has the data directory, it returns an *Error with CodeRunning.
func Run(ctx context.Context, cfg *config.Loaded, opts Options) (err error) {
	closeDescriptorsOnExec()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	d := &daemon{cfg: cfg, opts: opts, log: opts.Logger, observed: observed{joined: make(chan struct{})}, memory: server.NewMemory(), locating: make(locator, maxLocating), stop: func() { stop(errStopRequested) }}
	defer func() { err = errors.Join(err, d.close()) }()
	usually := func() {}
	if opts.LimitMemory {
		usually = collectRarely()
	}
	err = d.open(ctx)
	usually()
	if err != nil {
		if ctx.Err() != nil && errors.Is(context.Cause(ctx), errStopRequested) {
			return nil
		}
		return fullError(cfg.DataDir, err)
	}
	var background sync.WaitGroup
	defer background.Wait()
	defer stop(nil)
	background.Go(func() {
		releaseMemoryEvery(ctx, memoryInterval, d.hub.Busy, d.log)
	})
	background.Go(func() { releaseProgramEvery(ctx, programInterval, d.hub.Busy, d.log) })
	if opts.LimitMemory {
		limitMemory(d.log)
		background.Go(func() { limitMemoryEvery(ctx, memoryInterval, d.log) })
		background.Go(func() { adaptPercent(ctx, time.Now) })
	}
	background.Go(func() { d.watchWork(ctx) })
	background.Go(func() { d.watchFiles(ctx) })
	background.Go(func() { d.resumeWork(ctx) })
	background.Go(func() { d.followSessions(ctx) })
	background.Go(func() { d.keepPresence(ctx) })
	background.Go(func() { d.wakeSessions(ctx) })
	background.Go(func() { d.runQueues(ctx) })
	if d.peers != nil {
		background.Go(func() { d.watchPeers(ctx) })
	}
	d.log.Info("the hub is ready", "version", opts.Version, "pid", d.info.PID, "data", cfg.DataDir, "durability", d.info.Durability)
	if opts.Ready != nil {
		opts.Ready(d.info)
	}
	select {
	case <-ctx.Done():
		d.log.Info("the hub stops", "reason", context.Cause(ctx))
		return nil
	case err := <-d.server.Failed():
		d.log.Error("a listener failed; the hub stops", "error", err)
		return fmt.Errorf("a listener failed: %w", err)
	}
}

var errStopRequested = errors.New("requested by a client")

// daemon is a running hub. Its fields are set as the parts start.
type daemon struct {
	cfg  *config.Loaded
	opts Options
	log  *slog.Logger
	stop func()

	locked    *flock.Flock // of the data directory
	httpToken string       // of callers over HTTP and gRPC that are not the user's own
	bus       *bus.Bus
	name      string     // on the bus
	heads     *hub.Heads // until the hub is open
	events    *events.Log
	observed  observed
	hub       *hub.Hub
	push      *push.Service
	audit     *audit.Log         // nil without one
	grpc      net.Listener       // nil without gRPC
	notices   []string           // where an address is not the configured one
	damaged   []statefile.Damage // what was found before the bus was open
	announced atomic.Pointer[dialect.Addresses]
	node      *node.Node
	gate      *senders.Gate
	sessions  *sessions.Sessions // nil without an own bus
	presence  *openSessions      // nil without an own bus
	admission *admission         // nil without an own bus
	loops     *failedLoops
	files     *lazyAssigner     // the claims of files; nil without an own bus
	answers   *sessions.Answers // nil without an own bus
	items     *queues.Items     // nil without an own bus
	queues    workQueues
	peers     *peers.Peers // nil without peers
	programs  *programs.Programs
	documents *documents.Library
	rooms     *documents.Rooms // nil without HTTP
	tools     *mounts.Tools
	memory    *budget.Budget // of large requests over HTTP and gRPC
	tokens    *delegation.TokenSigner
	members   members
	locating  locator
	work      *delegation.Service // tasks that agents delegate to each other
	server    *server.Server
	mcp       *mcpserver.Handler // nil without HTTP
	info      Info
	closers   []func() error // in the order of the starts; called in reverse order
}

// onClose registers the function that stops a part that has just started.
func (d *daemon) onClose(stop func() error) { d.closers = append(d.closers, stop) }

// onCloseWithin is onClose for a function that takes a context, which ends after limit.
func (d *daemon) onCloseWithin(limit time.Duration, stop func(context.Context) error) {
	d.onClose(func() error { return within(limit, stop) })
}

func (d *daemon) open(ctx context.Context) error {
	for _, start := range []func(context.Context) error{
		d.lock, d.openToken, d.openBus, d.openEvents, d.openHub, d.openPush, d.openGate, d.openNode, d.openTools, d.openPeers, d.openDocuments, d.openSharing, d.openSessions, d.openQueues, d.openServer, d.openGRPC, d.announce,
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

// close stops the parts in reverse order, except for the hub: it stops before the servers, so
// that waiting clients get the results of their tasks.
func (d *daemon) close() error {
	var errs []error
	if d.node != nil {
		d.node.CloseSwarms() // first: stopping the agents must not make their sub-tasks fail
	}
	if d.hub != nil {
		errs = append(errs, within(hubTimeout, d.hub.Close))
	}
	for _, stop := range slices.Backward(d.closers) {
		errs = append(errs, stop())
	}
	err := errors.Join(errs...)
	if err != nil {
		d.log.Error("the hub did not stop cleanly", "error", err)
	}
	return err
}

func within(limit time.Duration, stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return stop(ctx)
}

func (d *daemon) lock(ctx context.Context) error {
	lock, err := prepare(ctx, d.cfg.DataDir)
	if err != nil {
		return err
	}
	d.locked = lock
	if err := prepareFormat(d.cfg.DataDir, d.opts.Version, d.fileDamaged); err != nil {
		return errors.Join(err, lock.Unlock())
	}
	if !d.opts.KeepLock {
		d.onClose(lock.Unlock)
	}
	return nil
}

// BusConfig returns the hub's bus as the configuration describes it; log may be nil.
func BusConfig(cfg *config.Loaded, log *slog.Logger) bus.Config {
	c := cfg.Bus
	dir := cfg.DataDir
	if c.URL != "" { // the server has the store
		dir = ""
	}
	leaf := bus.LeafConfig{URL: bus.Secret(c.Leaf.URL), Domain: c.Leaf.Domain, Credentials: credentials(c.Leaf.NATSLogin)}
	leaf.Credentials.TLS = c.Leaf.TLSRequired
	return bus.Config{
		DataDir: dir, Durability: bus.Durability(c.Durability), MaxStore: c.MaxStore,
		URL: bus.Secret(c.URL), Name: "parley-hub", Logger: log, Credentials: credentials(c.NATSLogin), Leaf: leaf,
	}
}

// credentials converts the login of a configured NATS server.
func credentials(n config.NATSLogin) bus.Credentials {
	return bus.Credentials{User: n.User, Password: bus.Secret(n.Password), File: n.CredentialsFile, NKeyFile: n.NKeyFile,
		CAFile: n.TLS.CAFile, CertFile: n.TLS.CertFile, KeyFile: n.TLS.KeyFile}
}

func (d *daemon) openBus(ctx context.Context) error {
	d.heads = hub.ReadHeads(d.cfg.DataDir)
	b, err := bus.Open(ctx, BusConfig(d.cfg, d.log))
	if err != nil {
		return err
	}
	d.bus = b
	d.onCloseWithin(busTimeout, b.Close)
	for _, x := range d.damaged {
		d.fileDamaged(x)
	}
	d.damaged = nil
	info := b.Info()
	if info.DurabilityReason != "" {
		d.log.Warn("the bus runs in another durability mode than configured", "mode", info.Durability, "asked", info.DurabilityAsked, "reason", info.DurabilityReason)
	}
	d.log.Info("the bus is open", "kind", info.Kind, "durability", info.Durability, "url", info.URL)
	return nil
}

// maxEventBytes bounds the stored events, in bytes. They get at most a sixteenth of a bounded store.
const maxEventBytes = 64 << 20

func (d *daemon) openEvents(ctx context.Context) (err error) {
	if d.name, err = hubName(d.cfg.DataDir, d.bus.Info().Kind == bus.KindEmbedded, d.fileDamaged); err != nil {
		return err
	}
	size := int64(maxEventBytes)
	if most := d.cfg.Bus.MaxStore; most > 0 {
		size = min(size, most/16)
	}
	if d.events, err = events.Open(ctx, events.Options{Bus: d.bus, Name: d.name, MaxBytes: size, Logger: d.log}); err != nil {
		return err
	}
	d.onCloseWithin(eventsTimeout, d.events.Close)
	d.bus.Watch(bus.Watcher{Subjects: d.watchedSubjects, Message: d.watched})
	return nil
}

func (d *daemon) openHub(ctx context.Context) error {
	owner := ownerOf(d.cfg.DataDir)
	if n, err := process.SweepOwner(owner); err != nil {
		d.log.Warn("cannot search for processes of an earlier run", "error", err)
	} else if n > 0 {
		d.log.Warn("ended processes that an earlier run left behind", "processes", n)
	}
	agents, err := openAgents(d.cfg.Agents, owner, d.cfg.Secrets())
	if err != nil {
		return err
	}
	d.tokens = delegation.NewTokenSigner()
	h, err := hub.New(ctx, hub.Config{
		SessionEnv: d.sessionEnv, HeldFiles: fileGuard{d}.held,
		Bus: d.bus, Name: d.name, Version: d.opts.Version, DataDir: d.cfg.DataDir, Heads: d.heads, WorkRoots: d.cfg.WorkDirs.Roots,
		Trusted: config.NewTrust(d.cfg.DataDir).Dirs, Agents: agents, Logger: d.log,
		ContextTTL: d.cfg.Contexts.Expiry, TaskTTL: d.cfg.Tasks.Retention, Events: d.events,
		Trace: hub.TraceConfig{
			Disabled: !d.cfg.Tasks.Trace.Enabled, TTL: d.cfg.Tasks.Trace.Retention,
			MaxBytes: d.cfg.Tasks.Trace.MaxBytes, TotalBytes: int64(d.cfg.Tasks.Trace.TotalBytes),
		},
		Secrets: d.cfg.Secrets(),
	})
	if err != nil {
		return err
	}
	d.hub, d.heads = h, nil
	return nil
}

// openAgents opens the agents that are not disabled, in the order of their ids.
func openAgents(defs map[string]runner.Definition, owner string, secrets []string) ([]hub.Agent, error) {
	var agents []hub.Agent
	for _, id := range slices.Sorted(maps.Keys(defs)) {
		def := defs[id]
		if def.Disabled {
			continue
		}
		agent, err := runner.Open(def, runner.Options{Drivers: drivers.All(), Owner: owner, Secrets: secrets})
		if err != nil {
			return nil, fmt.Errorf("agent %s: %w", id, err)
		}
		agents = append(agents, hub.Agent{Definition: def, Runner: agent})
	}
	return agents, nil
}

// sessionEnv returns what an agent's processes need in their environment for calls to this hub: their token, and where the hub is. Without
// the latter they would call another hub, or start one, if this one's data directory was named on its command line.
func (d *daemon) sessionEnv(agentID, contextID string) []string {
	return append(d.tokens.Env(agentID, contextID), "PARLEY_DATA_DIR="+d.cfg.DataDir, "PARLEY_SOCKET="+d.cfg.Socket.Path)
}

func (d *daemon) openPush(ctx context.Context) error {
	p, err := push.Open(ctx, push.Options{Tasks: d.hub, Bus: d.bus, Name: d.name, AllowPrivate: d.cfg.Push.AllowPrivate, Logger: d.log})
	if err != nil {
		return err
	}
	d.push = p
	d.onClose(func() error { p.Close(); return nil })
	d.hub.OnTurn(p.TurnStarted)
	return nil
}

// AuditDir returns the directory of the audit log of a data directory's hub.
func AuditDir(dataDir string) string { return filepath.Join(dataDir, "audit") }

// openNode opens the audit log and the node through which agents exchange envelopes. The lock
// of the data directory keeps other hubs from the log.
func (d *daemon) openNode(ctx context.Context) error {
	cfg := d.cfg.Node
	opts := node.Options{
		Hub: d.hub, Version: d.opts.Version, PeerTier: agent.TierOf(cfg.PeerTier), CrossSandbox: cfg.CrossSandbox, Logger: d.log,
	}
	if cfg.Audit.Enabled {
		log, err := audit.Open(AuditDir(d.cfg.DataDir), audit.Options{MaxFileSize: cfg.Audit.MaxFileSize, MaxFiles: cfg.Audit.MaxFiles})
		if err != nil {
			return &Error{Code: CodeDataDir, Message: err.Error(), Remedy: "repair the directory audit in the data directory, or set node.audit.enabled to false", Err: err}
		}
		d.onClose(log.Close)
		opts.Audit, d.audit = log, log
	}
	journal, err := d.swarmJournal(ctx)
	if err != nil {
		return err
	}
	host, err := uniqueName(d.cfg.DataDir, d.fileDamaged)
	if err != nil {
		return err
	}
	opts.Swarms = &node.SwarmOptions{Journal: journal, Hub: d.name, Host: host, Takeover: d.opts.SwarmTakeover, Changed: d.swarmChanged}
	d.programs, err = programs.Open(programs.Options{Hub: d.hub, DataDir: d.cfg.DataDir, Gate: d.gate, Logger: d.log, Damaged: d.fileDamaged})
	if err != nil {
		return err
	}
	opts.Channels = d.programs.Watcher()
	n, err := node.Open(opts)
	if err != nil {
		return err
	}
	d.node = n
	d.onCloseWithin(nodeTimeout, n.Close)
	d.onClose(func() error { d.programs.Close(); return nil })
	return d.programs.Serve(n)
}

// maxJournals bounds the journals of swarms, in bytes. They get at most an eighth of a bounded store.
const maxJournals = 256 << 20

// swarmJournal opens the journal of swarms on the bus, with the durability of tasks.
func (d *daemon) swarmJournal(ctx context.Context) (swarm.Journal, error) {
	size := int64(maxJournals)
	if most := d.cfg.Bus.MaxStore; most > 0 {
		size = min(size, most/8)
	}
	j, err := busjournal.Open(ctx, d.bus.JetStream(), busjournal.Options{MaxBytes: size, Publisher: durable{d.bus}})
	if err != nil {
		return nil, err
	}
	return j, d.bus.Commit(ctx) // of a new stream
}

// durable publishes with the bus's durability instead of JetStream's.
type durable struct{ bus *bus.Bus }

func (p durable) PublishMsg(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	return p.bus.Publish(ctx, msg, opts...)
}

// openTools starts to connect the MCP servers whose tools the agents share.
func (d *daemon) openTools(context.Context) error {
	d.tools = mounts.Open(mounts.Options{
		Node: d.node.Parley(), Servers: d.cfg.MCPServers, Shared: d.cfg.Peers.Tools, Dir: d.cfg.DataDir, Owner: ownerOf(d.cfg.DataDir), Logger: d.log,
		Record: d.toolCalled, Secrets: d.cfg.Secrets(),
	})
	d.onClose(func() error { d.tools.Close(); return nil })
	d.work = delegation.New(delegation.Options{
		Hub: d.hub, Tokens: d.tokens, Answers: sessionAnswers{d}, Permit: d.node.Parley().Router().Permit, Telemetry: d.node.Telemetry(), Refresh: d.refreshSessions,
	})
	return nil
}

// toolCalled records a call of a shared tool in the audit log.
func (d *daemon) toolCalled(i telemetry.Invocation) {
	if d.audit == nil {
		return
	}
	if err := d.audit.AppendInvocation(i); err != nil {
		d.log.Error("cannot audit a tool call", "tool", i.ToolName, "error", err)
	}
}

func (d *daemon) openServer(ctx context.Context) error {
	cards := &dialect.Directory{Agents: d.hub, Version: d.opts.Version, BaseURL: d.baseURL, Token: d.cfg.HTTP.Token != ""}
	rpc := dialect.Config{Hub: dialect.OnHub(d.hub), Cards: cards, Bus: d.busStatus, Documents: d.documents, Swarms: d.node.Swarms(), MCPServers: d.mcpStatus, Events: d.events, Queues: &d.queues}
	var err error
	if d.loops, err = openLoops(filepath.Join(d.cfg.DataDir, "failed-loops.json"), d.fileDamaged); err != nil {
		d.log.Warn("the loops that failed before cannot be read", "error", err)
	}
	rpc.Loops = d.loops
	if d.presence != nil {
		rpc.Held = d.heldMail
	}
	overHTTP := dialect.New(rpc)
	// The page of the hub's user and clients of the socket see, besides, what agents have claimed.
	if d.files != nil {
		rpc.Claims = fileClaims{d.files, &d.members, d.tokens}
		rpc.Threads = threads{d}
	}
	onPage := dialect.New(rpc)
	// Only clients of the socket may stop the hub, join the bus or write to the audit log.
	rpc.Shutdown = d.stop
	rpc.Drain = d.drain
	rpc.WorkDirs = d.hub
	rpc.Names = names{d.hub, d.sessions}
	rpc.Senders = allowedSenders{d.gate}
	if d.presence != nil {
		rpc.Sessions = d.presence
	}
	rpc.Gate = d.bus
	rpc.Peers = d.peersStatus
	rpc.Addresses = d.addresses
	pages := &server.Pages{}
	rpc.PageLink = func(viewOnly bool) (dialect.PageLink, bool) { return d.pageLink(pages, viewOnly) }
	rpc.Shares = d.documents
	rpc.LoopStep = d.loopStep
	if d.bus.Info().Kind == bus.KindEmbedded {
		d.admission = d.openAdmission(ctx)
		rpc.Admission = d.admission
	}
	overSocket := dialect.New(rpc)

	sc := server.Config{
		SocketHandler: overSocket, SocketMCP: d.socketMCP, HTTPHandler: overHTTP, PageHandler: onPage, Cards: cards, Health: overHTTP.Health,
		PublicPath: func(path string) bool {
			agent, isCard := a2aserver.CardPath(path)
			return isCard && cards.Public(agent)
		},
		Memory: d.memory, Token: d.cfg.HTTP.Token, LocalToken: d.httpToken, Pages: pages, Hosts: d.cfg.HTTP.AllowedHosts, Origins: d.cfg.HTTP.AllowedOrigins, Log: d.log,
	}
	if d.admission != nil {
		sc.SocketRest = d.admission.agents.rest
	}
	if d.cfg.Socket.Enabled {
		sc.Socket = d.cfg.Socket.Path
	}
	if d.cfg.HTTP.Enabled {
		sc.HTTP = d.address(d.cfg.HTTP.Port)
		sc.AnyPort = d.cfg.Origin("http.port").Kind != config.FromFlag // --http-port means that port or none
	}
	if err := d.listenGRPC(ctx); err != nil {
		return err
	}
	if err := prepareSocketDir(d.cfg); err != nil {
		return err
	}
	if err := clearOffered(ctx, specifiedSocket, sc.Socket); err != nil {
		return err
	}
	s, err := server.New(sc)
	if err != nil {
		return err
	}
	if d.cfg.HTTP.Enabled {
		if err := d.mount(s); err != nil {
			return err
		}
	}
	if err := s.Start(ctx); err != nil {
		if d.rooms != nil {
			d.rooms.Close()
		}
		return err
	}
	d.server = s
	d.onCloseWithin(serverTimeout, s.Shutdown)
	if addr, ok := s.Addr().(*net.TCPAddr); ok {
		d.notePort("HTTP", d.cfg.HTTP.Port, addr)
	}
	if d.cfg.Socket.Enabled && d.cfg.UsersMain() && runtime.GOOS != "windows" {
		if remove, ok := offerSocket(ctx, specifiedSocket, d.cfg.Socket.Path); ok {
			d.onClose(remove)
		}
	}
	d.onClose(func() error { d.events.EndReaders(); return nil }) // the server waits for their requests
	if d.rooms != nil {                                           // these stop before the server, which waits for their requests
		d.onClose(func() error { d.rooms.Close(); return nil })
		d.onCloseWithin(mcpTimeout, d.mcp.Close)
	}
	if url := d.baseURL(); url != "" && d.cfg.Node.Enabled {
		return d.node.Announce(url)
	}
	return nil
}

// mount adds the paths of the HTTP interface to the server.
func (d *daemon) mount(s *server.Server) error {
	page, err := ui.New()
	if err != nil {
		return err
	}
	page.Mount(s.Mount)
	d.a2a().Mount(s.Mount)
	s.Mount(metricsPath, serveMetrics(d.hub, d.events, d.node.Telemetry()))
	if d.cfg.Node.Enabled {
		d.node.Mount(s.Mount)
	}
	d.rooms = d.documents.Rooms()
	s.Mount(documentsPath+"{name}", d.rooms)
	d.mcp = d.mcpHandler()
	s.Mount(mcpserver.Path, d.mcp)
	s.Mount(site.Path, site.Handler(d.opts.Version))
	return nil
}

// pageLink makes a link to the hub's page. ok is false without HTTP.
func (d *daemon) pageLink(pages *server.Pages, viewOnly bool) (link dialect.PageLink, ok bool) {
	address := d.baseURL()
	if address == "" {
		return dialect.PageLink{}, false
	}
	path, expires := pages.Link(viewOnly)
	return dialect.PageLink{URL: address + path, Expires: dialect.Time{Time: expires}}, true
}

// loopStep records a step of a loop, which runs in another process of the user. It reports whether the step is in the
// audit log, which may be off.
func (d *daemon) loopStep(list string, s ralph.Step) (logged bool, err error) {
	if err := d.loops.step(list, s); err != nil {
		d.log.Warn("that a loop failed cannot be stored", "list", list, "error", err)
	}
	data := map[string]any{"step": string(s.Kind), "item": s.Item, "attempt": s.Attempt, "ref": s.Ref}
	if why := loopFailure(s); why != "" {
		data["reason"] = why
	}
	d.events.Publish(events.Event{Kind: events.LoopStep, Time: s.Time, Subject: list, Data: data})
	if d.audit == nil {
		return false, nil
	}
	event := s.Event()
	event.Sender = "loop " + list
	return true, d.audit.Append(event, nil)
}

// drain stops the hub if that interrupts no task.
func (d *daemon) drain() (busy int) {
	if busy = d.hub.Drain(); busy == 0 {
		d.stop()
	}
	return busy
}

// a2a returns the A2A bindings of the hub. They have no state: HTTP and gRPC each get their own.
func (d *daemon) a2a() *a2aserver.Server {
	opts := a2aserver.Options{
		Hub: d.hub, Push: d.push, Version: d.opts.Version, TokenRequired: d.cfg.HTTP.Token != "", Logger: d.log,
	}
	if d.grpc != nil {
		opts.GRPCAddress = d.grpc.Addr().String()
	}
	return a2aserver.New(opts)
}

// address returns the address of a port on the configured host.
func (d *daemon) address(port int) string {
	return net.JoinHostPort(d.cfg.HTTP.Host, strconv.Itoa(port))
}

// notePort notes that an interface listens on another port than the configured one, which is in use.
func (d *daemon) notePort(name string, configured int, addr *net.TCPAddr) {
	if configured == 0 || addr.Port == configured {
		return
	}
	notice := fmt.Sprintf("port %d is in use by another program; %s listens on port %d", configured, name, addr.Port)
	d.log.Warn(notice, "configured", configured, "address", addr.String())
	d.notices = append(d.notices, notice)
}

// maxGRPCConns bounds the connections of gRPC, each of which buffers up to a megabyte.
const maxGRPCConns = 256

// listenGRPC listens before the agents' cards are made: they contain the address.
func (d *daemon) listenGRPC(ctx context.Context) error {
	if d.cfg.GRPC.Port == 0 {
		return nil
	}
	ln, err := server.ListenAnyPort(ctx, d.address(d.cfg.GRPC.Port))
	if err != nil {
		return &Error{Code: CodeStart, Message: "cannot listen for gRPC: " + err.Error(), Remedy: "choose another grpc.port", Err: err}
	}
	d.grpc = netutil.LimitListener(ln, maxGRPCConns)
	d.onClose(func() error {
		if err := ln.Close(); !errors.Is(err, net.ErrClosed) { // the gRPC server has closed it
			return err
		}
		return nil
	})
	if addr, ok := ln.Addr().(*net.TCPAddr); ok {
		d.notePort("gRPC", d.cfg.GRPC.Port, addr)
	}
	return nil
}

func (d *daemon) openGRPC(context.Context) error {
	ln := d.grpc
	if ln == nil {
		return nil
	}
	s := d.a2a().NewGRPC(a2aserver.GRPCOptions{Authorize: d.authorize, Memory: d.memory})
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	d.onClose(func() error {
		stopGRPC(s)
		return <-served
	})
	d.log.Info("listening for gRPC", "address", ln.Addr().String())
	return nil
}

// stopGRPC waits for running calls, and cancels those that take longer than serverTimeout.
func stopGRPC(s *grpc.Server) {
	timer := time.AfterFunc(serverTimeout, s.Stop)
	defer timer.Stop()
	s.GracefulStop()
}

// authorize compares tokens in constant time. Without a configured token the user's own programs need none.
func (d *daemon) authorize(who caller.Caller, token string) bool {
	needed := d.cfg.HTTP.Token
	if needed == "" {
		if who.Kind == caller.Own {
			return true
		}
		needed = d.httpToken
	}
	return needed != "" && subtle.ConstantTimeCompare([]byte(token), []byte(needed)) == 1
}

// announce writes the run file, when all parts run.
func (d *daemon) announce(context.Context) error {
	d.info = Info{
		PID: os.Getpid(), Version: d.opts.Version, StartedAt: time.Now().Truncate(time.Millisecond), DataDir: d.cfg.DataDir,
		HTTP: d.baseURL(), Durability: string(d.bus.Info().Durability), Log: d.opts.Log, Notices: d.notices,
	}
	if d.cfg.Socket.Enabled {
		d.info.Socket = d.cfg.Socket.Path
	}
	if d.grpc != nil {
		d.info.GRPC = d.grpc.Addr().String()
	}
	i := d.info
	d.announced.Store(&dialect.Addresses{DataDir: i.DataDir, Socket: i.Socket, HTTP: i.HTTP, GRPC: i.GRPC, Notices: i.Notices})
	if err := d.info.write(); err != nil {
		return &Error{Code: CodeDataDir, Message: "cannot write the run file: " + err.Error(), Err: err}
	}
	path := filepath.Join(d.cfg.DataDir, infoName)
	d.onClose(func() error { return os.Remove(path) })
	return nil
}

// addresses returns where the hub is, for hub/status; the data directory only while the hub starts.
func (d *daemon) addresses() dialect.Addresses {
	if a := d.announced.Load(); a != nil {
		return *a
	}
	return dialect.Addresses{DataDir: d.cfg.DataDir}
}

// baseURL returns the URL of the HTTP server, "" without one.
func (d *daemon) baseURL() string {
	if d.server == nil || d.server.Addr() == nil {
		return ""
	}
	addr, ok := d.server.Addr().(*net.TCPAddr)
	if !ok || !addr.IP.IsUnspecified() {
		return "http://" + d.server.Addr().String()
	}
	return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(addr.Port)) // it listens on every address
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
	if d := info.Damage; d != nil {
		status.Damage = &dialect.DamageStatus{Counts: d.Counts, Newest: dialect.Time{Time: d.Newest}}
	}
	switch {
	case info.StorageError != "":
		status.Error = info.StorageError
	case info.State != bus.StateConnected:
		status.Error = cmp.Or(info.LastError, "the connection is "+string(info.State))
	}
	return status
}
