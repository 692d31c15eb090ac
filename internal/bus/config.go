package bus

import (
	"fmt"
	"log/slog"
	"time"
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

	defaultName    = "parley"
	connectTimeout = 5 * time.Second
	requestTimeout = 10 * time.Second // for a request whose context has no deadline
)

// Config says which bus to open. The zero value with a DataDir is the hub's.
type Config struct {
	// DataDir holds the embedded server's store, lock and run file in its
	// subdirectory "bus". It is made with mode 0700 if it is missing.
	DataDir string
	// Durability of the embedded server; "" is DurabilityCommit.
	Durability Durability
	// MaxStore bounds the embedded store, in bytes; 0 means DefaultMaxStore.
	// The MaxBytes of all streams together cannot exceed it.
	MaxStore int64
	// Name of the connection, for the server's logs; "" is "parley".
	Name string
	// Logger for the bus's and the embedded server's messages; nil discards.
	Logger *slog.Logger

	// openSyncer is replaced by tests.
	openSyncer func(dir string) (syncer, error)
}

func (c Config) withDefaults() (Config, error) {
	mode, err := ParseDurability(string(c.Durability))
	if err != nil {
		return c, err
	}
	c.Durability = mode
	if c.MaxStore <= 0 {
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
	if c.DataDir == "" {
		return c, &Error{Code: CodeConfig, Message: "the bus needs a data directory or a URL"}
	}
	return c, nil
}
