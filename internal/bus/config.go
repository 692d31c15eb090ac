package bus

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus/damage"
)

// Secret is text that is never printed.
type Secret = text.Secret

// Durability is when an embedded bus acknowledges a message.
type Durability string

// The modes of durability.
const (
	// DurabilityCommit acknowledges when the data is on disk; concurrent writes share one sync. It is the default.
	DurabilityCommit Durability = "commit"
	// DurabilityAlways makes the server sync every write.
	DurabilityAlways Durability = "always"
	// DurabilityFast acknowledges when the kernel has the data: a killed process loses
	// nothing, a power cut the last seconds.
	DurabilityFast Durability = "fast"
)

// ParseDurability parses a mode; "" is DurabilityCommit.
func ParseDurability(s string) (Durability, error) {
	switch d := Durability(s); d {
	case "":
		return DurabilityCommit, nil
	case DurabilityCommit, DurabilityAlways, DurabilityFast:
		return d, nil
	default:
		return "", errorf(CodeConfig, nil, "use commit, always or fast",
			"unknown durability %q", s)
	}
}

const (
	// DefaultMaxStore is the default of Config.MaxStore.
	DefaultMaxStore = 64 << 30
	// MaxPayload is the largest message that an embedded bus accepts, in bytes, including headers.
	MaxPayload = 8 << 20

	defaultName = "parley"
)

// Config configures a Bus. It needs a DataDir or a URL.
type Config struct {
	// DataDir holds the embedded server's store and its lock in its subdirectory "bus",
	// which is created with mode 0700.
	DataDir string
	// Durability of the embedded server; "" is DurabilityCommit.
	Durability Durability
	// MaxStore bounds the embedded store, in bytes; 0 means DefaultMaxStore.
	// The MaxBytes of all streams together cannot exceed it.
	MaxStore int64

	// URL of an external server instead of an embedded one; those of a cluster are separated
	// by commas. The schemes are nats, tls, ws and wss.
	URL Secret
	// Credentials for the URL.
	Credentials Credentials
	// DialContext makes the connections to the servers of the URL; nil is that of a net.Dialer.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)

	// Leaf links an embedded bus to a cluster; the zero value is no link.
	Leaf LeafConfig

	// InboxPrefix of the subjects of answers, if the server restricts the user to one; "" is _INBOX.
	InboxPrefix string

	// Name of the connection in the server's logs; "" is "parley".
	Name string
	// Rest has a joined Bus give up its connection while nothing uses it; nil if it does not.
	Rest *Rest
	// NoEcho keeps the connection's own messages from its subscriptions.
	NoEcho bool
	// Logger for the bus's and the embedded server's messages; nil discards.
	Logger *slog.Logger

	// CheckBudget bounds the time for those parts of the embedded store that need not be checked before the server
	// starts; 0 means [damage.DefaultBudget]. They are checked in the background then.
	CheckBudget time.Duration

	// openSyncer is replaced by tests.
	openSyncer func(dir string) (syncer, error)
}

// Credentials are one method to authenticate at an external server, and the files of a TLS connection. The
// credentials file, the NKey file and the client certificate are read for every connection, so they can be renewed.
type Credentials struct {
	User     string
	Password Secret
	Token    Secret
	NKeyFile string // seed of a user NKey
	File     string // JWT and seed, as nsc writes them

	CAFile   string // certificates to trust instead of the system's
	CertFile string // client certificate, with KeyFile
	KeyFile  string
	// ServerName is expected in the certificate instead of the URL's host.
	ServerName string
	// TLS requires a TLS connection, also if the server does not.
	TLS bool
	// InsecureSkipVerify trusts any certificate. The bus logs a warning.
	InsecureSkipVerify bool
}

// withDefaults checks the configuration and sets the defaults.
func (c Config) withDefaults() (Config, error) {
	mode, err := ParseDurability(string(c.Durability))
	if err != nil {
		return c, err
	}
	c.Durability = mode
	if c.MaxStore < 0 {
		return c, &Error{Code: CodeConfig, Message: "the bus's store cannot be smaller than 0 bytes"}
	}
	c.MaxStore = cmp.Or(c.MaxStore, DefaultMaxStore)
	c.CheckBudget = cmp.Or(c.CheckBudget, damage.DefaultBudget)
	c.Name = cmp.Or(c.Name, defaultName)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.openSyncer == nil {
		c.openSyncer = openSyncer
	}
	return c, nil
}
