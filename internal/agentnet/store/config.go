package store

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/user"
	"time"

	"github.com/parleyhub/parley/internal/bus"
)

// Defaults of a [Config].
const (
	DefaultBucket           = "agent-registry"
	DefaultHeartbeat        = 60 * time.Second
	DefaultTimeoutThreshold = 180 * time.Second
	DefaultRegistryTTL      = 24 * time.Hour
	DefaultCollectInterval  = 5 * time.Minute
	DefaultAckTimeout       = 5 * time.Minute
	DefaultMaxAttempts      = 3
	DefaultDeadLetterTTL    = 7 * 24 * time.Hour
)

// Inboxes is how a network stores its mail.
type Inboxes string

// The ways to store mail.
const (
	// InboxesPerAgent is one stream for each agent, for some hundred agents. A server
	// can confine an agent to its own.
	InboxesPerAgent Inboxes = "per-agent"
	// InboxesShared is one stream for all agents, for thousands.
	InboxesShared Inboxes = "shared"
)

// Visibility is who can discover an agent.
type Visibility string

// The visibilities.
const (
	Private     Visibility = "private"      // only the agent itself
	ProjectOnly Visibility = "project-only" // agents of the same project
	UserOnly    Visibility = "user-only"    // agents of the same user on the same host
	Public      Visibility = "public"       // all agents
)

// Config describes one bus of a network and who uses it. Zero values are the specification's defaults.
type Config struct {
	// Dial connects to the bus. It is retried with backoff, up to MaxBackoff, until it succeeds once; from then on
	// the Bus reconnects by itself. The network closes the Bus.
	Dial func(context.Context) (*bus.Bus, error)
	// ThroughHub says that Dial uses the link of this computer's hub to the cluster.
	// The hub knows whether the link is up, so it is asked every few seconds.
	ThroughHub bool
	// Optional has an unreachable bus logged as normal.
	Optional bool

	Bucket            string // of the registry
	HeartbeatInterval time.Duration
	// TimeoutThreshold is after how long without a heartbeat an agent is offline; it is so after three of its own
	// heartbeat intervals if they end before.
	TimeoutThreshold time.Duration
	RegistryTTL      time.Duration
	CollectInterval  time.Duration
	Visibility       Visibility // of agents that request none
	Inboxes          Inboxes    // where the network has none yet
	Replicas         int        // of new streams; 0 is 3 in a cluster and 1 elsewhere

	AckTimeout    time.Duration // the lease of a claimed item
	MaxAttempts   int
	DeadLetterTTL time.Duration // also of the records of finished items

	// Hostname and Username are the system's where they are empty.
	Hostname, Username string
	// ProjectPath is never published, ProjectID is.
	ProjectPath, ProjectID string
	// GUID is the agent's where the server confines it to one; other agents get theirs from the registry.
	GUID string
	// StateDir holds a lock file for each live agent, so that the identity of a killed
	// agent is free at once. Without it, it is free after three heartbeats.
	StateDir string
	// RememberGUIDs keeps the agents' GUIDs in StateDir, for when the bus cannot be reached.
	RememberGUIDs bool
	// Admission is what a hub has given the agent; nil where no hub admits agents.
	Admission *Admission

	// LateInboxes leaves the inboxes of agents to their first mail: another Network in the hub awaits that.
	LateInboxes bool

	// BeatEvery replaces the heartbeat interval, which no entry can name below ten seconds; for tests.
	BeatEvery time.Duration
	// ReadAfter replaces the time for which a connection has to live on, so that what it got counts as read; for tests.
	ReadAfter time.Duration
	// Logger is slog.Default() where it is nil.
	Logger *slog.Logger
	// Now is time.Now where it is nil.
	Now func() time.Time
	// ClockSet replaces clock.Set; for tests.
	ClockSet func() time.Duration
}

// Admission is what a hub gives an agent that it admits and confines.
type Admission struct {
	GUID    string
	Slot    string // the key of the identity's record
	Secret  string // proves the identity to the hub after a restart
	Reused  bool   // an agent of this kind had the GUID before
	Control string // the subject of the agent's requests to the hub
	HubID   string // identifies the hub's store, see [Store.ID]; empty on the hub's own bus
	Handle  string // digest of the handle under which the agent registered; empty if it is not known
	// LateInbox is set if the hub makes the agent's inbox with its first mail.
	LateInbox bool
}

// WithDefaults returns c with its zero values replaced.
func (c Config) WithDefaults() Config {
	c.Bucket = cmp.Or(c.Bucket, DefaultBucket)
	c.HeartbeatInterval = cmp.Or(c.HeartbeatInterval, DefaultHeartbeat)
	c.TimeoutThreshold = cmp.Or(c.TimeoutThreshold, DefaultTimeoutThreshold)
	c.RegistryTTL = cmp.Or(c.RegistryTTL, DefaultRegistryTTL)
	c.CollectInterval = cmp.Or(c.CollectInterval, DefaultCollectInterval)
	c.Visibility = cmp.Or(c.Visibility, ProjectOnly)
	c.Inboxes = cmp.Or(c.Inboxes, InboxesPerAgent)
	c.AckTimeout = cmp.Or(c.AckTimeout, DefaultAckTimeout)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, DefaultMaxAttempts)
	c.DeadLetterTTL = cmp.Or(c.DeadLetterTTL, DefaultDeadLetterTTL)
	if c.Hostname == "" {
		c.Hostname, _ = os.Hostname() // it may be empty, see below
		c.Hostname = cmp.Or(c.Hostname, "unknown-host")
	}
	if c.Username == "" {
		if u, err := user.Current(); err == nil {
			c.Username = u.Username
		}
	}
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Late reports whether agents need no inbox before there is mail.
func (c Config) Late() bool { return c.LateInboxes || c.Admission != nil && c.Admission.LateInbox }

// Confined reports whether the server lets this process make neither streams nor consumers.
func (c Config) Confined() bool { return c.GUID != "" || c.Admission != nil }

// RegistryStream is the stream of the registry's bucket.
func (c Config) RegistryStream() string { return BucketStream + c.Bucket }

// IdentityBucket is the bucket of the records who has which GUID.
func (c Config) IdentityBucket() string { return c.Bucket + "-identities" }

// LimitsBucket is the bucket of the rate limits.
func (c Config) LimitsBucket() string { return c.Bucket + "-limits" }

// ClaimsBucket is the bucket of the claims of files.
func (c Config) ClaimsBucket() string { return c.Bucket + "-claims" }

// ClaimsKey is the key of the claims of a repository's files.
func (c Config) ClaimsKey(repository string) Key {
	return Key{BucketStream + c.ClaimsBucket(), BucketKeys + c.ClaimsBucket() + "." + repository}
}

// IdentityKey is a key of the identity bucket.
func (c Config) IdentityKey(key string) Key {
	return Key{BucketStream + c.IdentityBucket(), BucketKeys + c.IdentityBucket() + "." + key}
}

// EntryKey is an agent's key in the registry.
func (c Config) EntryKey(guid string) Key {
	return Key{c.RegistryStream(), BucketKeys + c.Bucket + "." + guid}
}
