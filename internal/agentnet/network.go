package agentnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// MaxBackoff is the longest pause between two attempts to reach the network.
const MaxBackoff = 60 * time.Second

// requestTimeout bounds one request to the server.
const requestTimeout = 5 * time.Second

// clockRefresh is how often the server is asked for its time.
const clockRefresh = 10 * time.Minute

// Defaults of a [Config].
const (
	DefaultBucket            = "agent-registry"   // REQ-REGISTRY-002
	DefaultHeartbeat         = 60 * time.Second   // REQ-HEARTBEAT-004
	DefaultTimeoutThreshold  = 180 * time.Second  // REQ-CONFIG-CROSS-001
	DefaultRegistryTTL       = 24 * time.Hour     // REQ-REGISTRY-010
	DefaultCollectInterval   = 5 * time.Minute    // REQ-REGISTRY-012
	DefaultAckTimeout        = 5 * time.Minute    // REQ-DLQ-001
	DefaultMaxAttempts       = 3                  // REQ-DLQ-003
	DefaultDeadLetterTTL     = 7 * 24 * time.Hour // REQ-DLQ-011
	minimumHeartbeat         = 10 * time.Second   // of an agent that asks for one (REQ-REGISTRY-005)
	maximumHeartbeat         = 24 * time.Hour
	maxCapabilities          = 64
	maxAgentsOnThisHost      = 64 // live agents of one type in one project
	identityRefreshesPerLife = 24
)

// Inboxes says how a network keeps its mail.
type Inboxes string

// The ways to keep mail.
const (
	// InboxesPerAgent is a stream an agent: as specified, for some hundred
	// agents. A server can keep an agent to its own.
	InboxesPerAgent Inboxes = "per-agent"
	// InboxesShared is one stream for all: for thousands.
	InboxesShared Inboxes = "shared"
)

// Config says which network there is and who takes part. Zero values are the
// specification's defaults.
type Config struct {
	// Dial finds the bus. It is called until it succeeds once, with pauses that
	// grow to MaxBackoff; from then on the Bus reconnects by itself. The Network
	// closes the Bus.
	Dial func(context.Context) (*bus.Bus, error)
	// ThroughHub says that Dial goes to this computer's hub, which knows whether its
	// link to the cluster stands: it is asked every few seconds.
	ThroughHub bool
	// DialLocal finds the bus of this computer's hub, on which its agents go on
	// while the network cannot be reached; nil for none. The Network closes it.
	DialLocal func(context.Context) (*bus.Bus, error)

	Bucket            string // of the registry
	HeartbeatInterval time.Duration
	// TimeoutThreshold is when an agent is offline whose entry names no
	// heartbeat interval; the others are after three.
	TimeoutThreshold time.Duration
	RegistryTTL      time.Duration
	CollectInterval  time.Duration
	Visibility       Visibility // of agents that ask for none
	Inboxes          Inboxes    // where the network has none yet
	Replicas         int        // of new streams; 0 is 3 in a cluster and 1 elsewhere

	AckTimeout    time.Duration // the lease of a claimed item
	MaxAttempts   int
	DeadLetterTTL time.Duration // and that of finished items' records

	// Hostname and Username are the system's where they are empty.
	Hostname, Username string
	// ProjectPath is never published, ProjectID is.
	ProjectPath, ProjectID string
	// GUID is the agent's where the server confines it to one; otherwise agents
	// get theirs from the registry.
	GUID string
	// Place is the agent's where a hub has let it in, see Lobby.
	Place *Place
	// StateDir keeps a lock file for each live agent, so that the identity of
	// one that was killed is free at once. Without it, it is after three
	// heartbeats.
	StateDir string

	beatEvery time.Duration // replaces the interval in tests
	isNear    bool          // it is the place on the hub's bus of another Network
	kicked    func()        // of such a place: somebody has left what is to be forwarded; may be nil

	// Logger is slog.Default() where it is nil.
	Logger *slog.Logger
	// Now is time.Now where it is nil.
	Now func() time.Time
}

func (c Config) withDefaults() Config {
	c.Bucket = or(c.Bucket, DefaultBucket)
	c.HeartbeatInterval = or(c.HeartbeatInterval, DefaultHeartbeat)
	c.TimeoutThreshold = or(c.TimeoutThreshold, DefaultTimeoutThreshold)
	c.RegistryTTL = or(c.RegistryTTL, DefaultRegistryTTL)
	c.CollectInterval = or(c.CollectInterval, DefaultCollectInterval)
	c.Visibility = or(c.Visibility, ProjectOnly)
	c.Inboxes = or(c.Inboxes, InboxesPerAgent)
	c.AckTimeout = or(c.AckTimeout, DefaultAckTimeout)
	c.MaxAttempts = or(c.MaxAttempts, DefaultMaxAttempts)
	c.DeadLetterTTL = or(c.DeadLetterTTL, DefaultDeadLetterTTL)
	if c.Hostname == "" {
		c.Hostname, _ = os.Hostname() // a computer without a name is named below
		c.Hostname = or(c.Hostname, "unknown-host")
	}
	if c.Username == "" {
		if u, err := user.Current(); err == nil {
			c.Username = u.Username
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// Network is this process's place in the agents' network. It is safe for
// concurrent use.
type Network struct {
	cfg        Config
	log        *slog.Logger
	clock      clock
	news       wait.Signal // something may have changed
	queue      queues
	outbox     outbox
	items      forwarder
	near       *Network // on the hub's bus; nil without one
	neighbours guidSet  // of a near Network: who has had mail there
	refusals   refusals
	guests     guests // of the hub that this is the operator's Network of

	ctx  context.Context // of everything that runs in the background
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	bus     *bus.Bus // nil until it is reached
	failure error    // why it is nil
	inboxes Inboxes  // as the server has them
	agents  map[*Agent]struct{}
	roll    *roll  // of the last look at all entries; nil before
	desk    string // where confined agents ask for queues; empty until the first is let in
	closing bool
}

// Open begins to look for the network and returns at once.
func Open(cfg Config) *Network {
	cfg = cfg.withDefaults()
	ctx, stop := context.WithCancel(context.Background())
	n := &Network{
		cfg:     cfg,
		log:     cfg.Logger.With("component", "mesh"),
		clock:   clock{own: cfg.Now},
		ctx:     ctx,
		stop:    stop,
		failure: errNotYet,
		agents:  map[*Agent]struct{}{},
	}
	n.outbox.init()
	n.items.init()
	if cfg.DialLocal != nil {
		near := cfg.nearConfig()
		if n.forwards() {
			near.kicked = func() { wake(n.outbox.kick); wake(n.items.kick) }
		}
		n.near = Open(near)
	}
	if n.forwards() {
		n.done.Go(func() { n.forward(n.outbox.kick, n.forwardMail) })
		n.done.Go(func() { n.forward(n.items.kick, n.forwardWork) })
	}
	n.done.Go(n.run)
	return n
}

// run connects, and makes the network's streams whenever the connection comes
// back, until the Network is closed.
func (n *Network) run() {
	b, ok := n.connect()
	if !ok {
		return
	}
	if n.cfg.kicked != nil {
		if _, err := b.Conn().Subscribe(kickSubject, func(*nats.Msg) { n.cfg.kicked() }); err != nil { // ends with the connection
			n.log.Warn("what other processes leave to be forwarded is noticed later", "error", err)
		}
	}
	changes := b.Conn().StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED)
	defer b.Conn().RemoveStatusListener(changes)
	if !n.confined() { // whom the server confines it does not let tidy up
		n.done.Go(n.collect)
	}
	refresh := time.NewTicker(clockRefresh)
	defer refresh.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-refresh.C:
			if err := n.askTime(n.ctx, b); err != nil {
				n.log.Warn("the server was not asked for its time", "error", err)
			}
		case status := <-changes:
			n.log.Info("connection to the agents' network", "status", status.String())
			if status == nats.CONNECTED {
				if err := n.ensureAll(n.ctx, b); err != nil && n.ctx.Err() == nil {
					n.log.Error("the agents' network is not ready", "error", err)
				}
				n.news.Send()
			}
		}
	}
}

// connect dials until there is a bus with the network's streams.
func (n *Network) connect() (*bus.Bus, bool) {
	retry := wait.Backoff{Most: MaxBackoff}
	if n.cfg.isNear || n.cfg.ThroughHub {
		retry.Most = maxNearBackoff
	}
	var b *bus.Bus
	for attempt := 1; ; attempt++ {
		var err error
		if b == nil {
			b, err = n.cfg.Dial(n.ctx)
		}
		if err == nil {
			err = n.ensureAll(n.ctx, b)
		}
		if err == nil {
			n.log.Info("connected to the agents' network", "attempt", attempt)
			n.mu.Lock()
			n.bus, n.failure = b, nil
			n.mu.Unlock()
			n.news.Send()
			return b, true
		}
		if n.ctx.Err() != nil {
			if b != nil {
				n.closeBus(context.Background(), b)
			}
			return nil, false
		}
		pause := retry.Next()
		n.log.Log(n.ctx, n.cfg.unreachable(attempt), "the agents' network cannot be used", "attempt", attempt, "retryIn", pause.String(), "error", err)
		n.mu.Lock()
		n.failure = err
		n.mu.Unlock()
		n.news.Send()
		wait.Pause(n.ctx, pause)
	}
}

func (n *Network) closeBus(ctx context.Context, b *bus.Bus) {
	if err := b.Close(ctx); err != nil {
		n.log.Warn("the connection to the agents' network did not close as it should", "error", err)
	}
}

// connected returns the bus if it can be used right now.
func (n *Network) connected() (*bus.Bus, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closing:
		return nil, errClosed
	case n.bus == nil:
		return nil, connectionError(n.failure)
	case !n.bus.Conn().IsConnected() && n.bus.Info().Kind == bus.KindJoined:
		return nil, &Error{Code: ConnectionError,
			Message: "The connection to the hub of this computer, on whose bus the agents' network is, is interrupted.",
			Remedy:  "Try again in a moment. If somebody has stopped the hub, a person starts it again with `parley start`; your registration, mail and work are kept.",
			Err:     n.bus.Conn().LastError()}
	case !n.bus.Conn().IsConnected():
		return nil, &Error{Code: ConnectionError,
			Message: "The connection to the agents' network is interrupted.",
			Remedy:  "It is being restored. Try again in a moment, or run `parley doctor`.",
			Err:     n.bus.Conn().LastError()}
	}
	return n.bus, nil
}

// Ready waits until the network can be used, and returns why it cannot when ctx
// ends first.
func (n *Network) Ready(ctx context.Context) error {
	for {
		changed := n.news.Wait()
		_, err := n.connected()
		if err == nil || errors.Is(err, errClosed) {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}

// Status is how a Network is.
type Status struct {
	Connected bool
	Problem   error // why it is not connected
	Agents    int   // registered by this process
	Inboxes   Inboxes
	Bus       *bus.Info // nil until there was a connection
	// Near says that this computer's agents can go on among themselves, on the bus of
	// its hub, while the network cannot be reached.
	Near bool
}

// Status returns without blocking.
func (n *Network) Status() Status {
	b, err := n.connected()
	near := false
	if n.near != nil {
		_, nearErr := n.near.connected()
		near = nearErr == nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	st := Status{Connected: err == nil, Problem: err, Agents: len(n.agents), Inboxes: n.inboxes, Near: near}
	if b != nil {
		info := b.Info()
		st.Bus = &info
	}
	return st
}

// Close deregisters this process's agents (REQ-REGISTRY-014,
// REQ-HEARTBEAT-008) as far as ctx allows, and releases everything.
func (n *Network) Close(ctx context.Context) error {
	n.mu.Lock()
	agents := make([]*Agent, 0, len(n.agents))
	for a := range n.agents {
		agents = append(agents, a)
	}
	again := n.closing
	n.mu.Unlock()
	if again {
		return nil
	}
	for _, a := range agents {
		if err := a.Deregister(ctx); err != nil {
			n.log.Warn("an agent was not deregistered", "guid", a.guid, "error", err)
		}
	}
	n.mu.Lock()
	n.closing = true
	n.mu.Unlock()
	n.stop()
	n.done.Wait()
	n.news.Send()
	var nearErr error
	if n.near != nil {
		nearErr = n.near.Close(ctx)
	}
	n.mu.Lock()
	b := n.bus
	n.mu.Unlock()
	if b == nil {
		return nearErr
	}
	return errors.Join(nearErr, b.Close(ctx))
}

// ensureAll makes what every agent of the network shares, and asks for the
// server's time.
func (n *Network) ensureAll(ctx context.Context, b *bus.Bus) error {
	for _, want := range n.sharedStreams(b) {
		if _, err := n.ensure(ctx, b, want); err != nil {
			return err
		}
	}
	if err := n.findInboxes(ctx, b); err != nil {
		return err
	}
	if n.cfg.isNear {
		if err := ensureOutbox(ctx, b); err != nil {
			return connectionError(err)
		}
	}
	n.queue.forget()
	n.mu.Lock()
	n.roll = nil // the server may be another one, with other revisions
	n.mu.Unlock()
	return n.askTime(ctx, b)
}

// timeQuestions is how often a server is asked for its time until the answer comes soon
// enough to go by.
const timeQuestions = 4

// askTime sets the clock. On a busy computer an answer may take seconds: it asks again.
func (n *Network) askTime(ctx context.Context, b *bus.Bus) error {
	for range timeQuestions {
		if err := n.askTimeOnce(ctx, b); err != nil {
			return err
		}
		if !n.clock.blurred() {
			break
		}
	}
	return nil
}

func (n *Network) askTimeOnce(ctx context.Context, b *bus.Bus) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	before := n.cfg.Now()
	stream, err := b.JetStream().Stream(ctx, n.registryStream())
	if err != nil {
		return err
	}
	if at := stream.CachedInfo().TimeStamp; !at.IsZero() {
		n.clock.set(at, before, n.cfg.Now())
	}
	return nil
}

func (n *Network) registryStream() string { return bucketStream + n.cfg.Bucket }
func (n *Network) identityBucket() string { return n.cfg.Bucket + "-identities" }
func (n *Network) limitsBucket() string   { return n.cfg.Bucket + "-limits" }

// bucketConfig is the stream of a KV bucket, as the KV store of any client
// expects it.
func bucketConfig(bucket, description string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              bucketStream + bucket,
		Description:       description,
		Subjects:          []string{bucketKeys + bucket + ".>"},
		MaxMsgsPerSubject: 1,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgSize:        -1,
		MaxConsumers:      -1,
		Discard:           jetstream.DiscardNew,
		Storage:           jetstream.FileStorage,
		AllowRollup:       true,
		DenyDelete:        true,
		AllowDirect:       true,
	}
}

// sharedStreams are what the network consists of besides inboxes and queues.
func (n *Network) sharedStreams(b *bus.Bus) []jetstream.StreamConfig {
	registry := bucketConfig(n.cfg.Bucket, "The agents' registry")
	registry.MaxAge = n.cfg.RegistryTTL // REQ-REGISTRY-003, REQ-REGISTRY-010
	identities := bucketConfig(n.identityBucket(), "Which agent had which GUID")
	identities.MaxAge = n.cfg.RegistryTTL + n.cfg.RegistryTTL/identityRefreshesPerLife
	limits := bucketConfig(n.limitsBucket(), "Rate limits")
	limits.MaxAge = 10 * time.Minute
	limits.Storage = jetstream.MemoryStorage
	mail := jetstream.StreamConfig{
		Name:              mailStream,
		Description:       "Receipts of mail, and how far it was read",
		Subjects:          []string{receiptSubject + ">", readSubject + "*"},
		MaxMsgsPerSubject: 1,
		MaxMsgs:           1_000_000,
		MaxAge:            2 * inboxMaxAge,
		AllowDirect:       true,
	}
	dead := jetstream.StreamConfig{
		Name:        deadStream,
		Description: "Work that failed",
		Subjects:    []string{deadSubject},
		MaxAge:      n.cfg.DeadLetterTTL, // REQ-DLQ-011
		Duplicates:  min(n.cfg.DeadLetterTTL, 24*time.Hour),
		AllowDirect: true,
	}
	items := jetstream.StreamConfig{
		Name:              itemStream,
		Description:       "Work: who holds it, and what came of it",
		Subjects:          []string{itemSubject + "*"},
		MaxMsgsPerSubject: 1,
		AllowMsgTTL:       true,
		AllowDirect:       true,
	}
	audit := jetstream.StreamConfig{
		Name:        auditStream,
		Description: "What the collector removed",
		Subjects:    []string{auditSubject},
		MaxMsgs:     10_000,
		MaxAge:      30 * 24 * time.Hour,
		AllowDirect: true,
	}
	return []jetstream.StreamConfig{registry, identities, limits, mail, dead, items, audit}
}

// ensure makes a stream that is missing. Of one that is there it changes the
// maximum age only: the last who configures it decides, and everything else is
// the operator's.
func (n *Network) ensure(ctx context.Context, b *bus.Bus, want jetstream.StreamConfig) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*requestTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, want.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return n.makeStream(ctx, b, want)
	case err != nil:
		return nil, connectionError(err)
	}
	have := stream.CachedInfo().Config
	if n.confined() {
		return stream, nil
	}
	if !slices.Equal(have.Subjects, want.Subjects) {
		return nil, &Error{Code: ConflictError,
			Message: fmt.Sprintf("The place of %s on the server is taken by another program.", want.Name),
			Remedy:  "Use another NATS account for the agents' network.",
			Err:     fmt.Errorf("the stream %s has the subjects %q", have.Name, have.Subjects)}
	}
	if have.MaxAge == want.MaxAge && have.AllowDirect {
		return stream, nil
	}
	n.log.Warn("a stream's maximum age is changed to what this process's configuration says",
		"stream", want.Name, "before", have.MaxAge.String(), "now", want.MaxAge.String())
	have.MaxAge, have.AllowDirect = want.MaxAge, true
	if want.MaxAge > 0 {
		have.Duplicates = min(max(have.Duplicates, want.Duplicates), want.MaxAge)
	}
	stream, err = b.EnsureStream(ctx, have)
	if err != nil {
		return nil, connectionError(err)
	}
	return stream, nil
}

// makeStream makes a stream with as many copies as there should be, or can be.
func (n *Network) makeStream(ctx context.Context, b *bus.Bus, want jetstream.StreamConfig) (jetstream.Stream, error) {
	want.Replicas = n.cfg.Replicas
	if want.Replicas == 0 {
		want.Replicas = 1
		if b.Conn().ConnectedClusterName() != "" || b.Info().Kind == bus.KindLinked { // behind a link there may be a cluster
			want.Replicas = 3
		}
	}
	stream, err := b.EnsureStream(ctx, want)
	if isTooFewPeers(err) && n.cfg.Replicas == 0 && want.Replicas > 1 {
		n.log.Warn("the cluster has too few nodes for three copies of a stream", "stream", want.Name, "error", err)
		want.Replicas = 1
		stream, err = b.EnsureStream(ctx, want)
	}
	if err != nil {
		return nil, connectionError(err)
	}
	return stream, nil
}

func isTooFewPeers(err error) bool {
	const noPeers, replicasNotSupported = 10005, 10074
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == noPeers || api.ErrorCode == replicasNotSupported)
}
