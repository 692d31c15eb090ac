package bus

import (
	"fmt"
	"log/slog"
)

// Durability says when an embedded bus acknowledges a message.
type Durability string

// The modes of durability.
const (
	// DurabilityCommit acknowledges after the data is on disk; all who wait
	// share one sync. The default.
	DurabilityCommit Durability = "commit"
	// DurabilityAlways lets the server sync every write.
	DurabilityAlways Durability = "always"
	// DurabilityFast acknowledges what the kernel holds: the death of the
	// process loses nothing, a power cut the last seconds.
	DurabilityFast Durability = "fast"
)

// ParseDurability reads a mode; "" is DurabilityCommit.
func ParseDurability(s string) (Durability, error) {
	switch d := Durability(s); d {
	case "":
		return DurabilityCommit, nil
	case DurabilityCommit, DurabilityAlways, DurabilityFast:
		return d, nil
	default:
		return "", &Error{
			Code:    CodeConfig,
			Message: fmt.Sprintf("unknown durability %q", s),
			Remedy:  "use commit, always or fast",
		}
	}
}

const (
	// DefaultMaxStore is the default of Config.MaxStore.
	DefaultMaxStore = 64 << 30
	// MaxPayload is the largest message that an embedded bus takes, in bytes,
	// headers included.
	MaxPayload = 8 << 20

	defaultName = "parley"
)

// Config says which bus to open. The zero value with a DataDir is the hub's.
type Config struct {
	// DataDir holds the embedded server's store and its lock in its
	// subdirectory "bus". It is made with mode 0700 if it is missing.
	DataDir string
	// Durability of the embedded server; "" is DurabilityCommit.
	Durability Durability
	// MaxStore bounds the embedded store, in bytes; 0 means DefaultMaxStore.
	// The MaxBytes of all streams together cannot exceed it.
	MaxStore int64

	// URL of an external server instead of an embedded one; several of a
	// cluster with commas between them. Schemes nats, tls, ws and wss.
	URL Secret
	// Credentials for the URL.
	Credentials Credentials

	// Leaf links an embedded bus to a cluster; the zero value does not.
	Leaf LeafConfig

	// InboxPrefix of the subjects that answers come to, where the server
	// confines the user to one; "" is _INBOX.
	InboxPrefix string

	// Name of the connection, for the server's logs; "" is "parley".
	Name string
	// NoEcho spares a connection what it has published itself: its own
	// subscriptions do not get it.
	NoEcho bool
	// Logger for the bus's and the embedded server's messages; nil discards.
	Logger *slog.Logger

	// openSyncer is replaced by tests.
	openSyncer func(dir string) (syncer, error)
}

// Credentials are one way to authenticate at an external server, and the files
// of a TLS connection. The credentials file, the NKey file and the client
// certificate are read again at every connection, so they can be renewed.
type Credentials struct {
	User     string
	Password Secret
	Token    Secret
	NKeyFile string // seed of a user NKey
	File     string // JWT and seed, as nsc writes them

	CAFile   string // certificates to trust instead of the system's
	CertFile string // client certificate, with KeyFile
	KeyFile  string
	// ServerName to expect in the certificate, if not the URL's host.
	ServerName string
	// TLS demands a TLS connection even if no file is named and the server
	// does not ask for it.
	TLS bool
	// InsecureSkipVerify trusts any certificate. The bus warns.
	InsecureSkipVerify bool
}

// withDefaults checks what all buses have in common.
func (c Config) withDefaults() (Config, error) {
	mode, err := ParseDurability(string(c.Durability))
	if err != nil {
		return c, err
	}
	c.Durability = mode
	if c.MaxStore < 0 {
		return c, &Error{Code: CodeConfig, Message: "the bus's store cannot be smaller than 0 bytes"}
	}
	if c.MaxStore == 0 {
		c.MaxStore = DefaultMaxStore
	}
	if c.Name == "" {
		c.Name = defaultName
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.openSyncer == nil {
		c.openSyncer = openSyncer
	}
	return c, nil
}
