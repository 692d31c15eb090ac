// Package config loads the configuration of the MCP server (nats-mcp-server).
//
// Four layers override each other: environment variables, the project's .mcp-config.json, the user's
// ~/.nats-mcp/config.json, built-in defaults. An invalid layer is refused as a whole; the error has the file, line and
// column of each problem.
package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/base/text"
)

// Version is the version of the configuration's format.
const Version = 1

// Names and limits of the files.
const (
	ProjectFile = ".mcp-config.json"
	UserFile    = ".nats-mcp/config.json" // in the home directory
	MaxParents  = 5                       // directories above the project's that are searched by default
	MaxFileSize = 1 << 20                 // bytes
)

// GlobalNamespace is reserved; a project must not use it.
const GlobalNamespace = "global"

// Document is the content of a configuration file. Its tags define the schema schema/mcp-config.schema.json and
// the environment variables.
type Document struct {
	Schema    string    `json:"$schema" doc:"The schema of this file, for editors" format:"uri"`
	Version   int64     `json:"version" doc:"The version of this format" min:"1" max:"1" default:"1"`
	Namespace string    `json:"namespace" env:"NATS_MCP_NAMESPACE" doc:"Unique namespace for this project. Auto-generated from path if not specified." pattern:"^[a-z0-9-]+$" max:"64"`
	Channels  []Channel `json:"channels" doc:"List of communication channels for this project" max:"500"`
	NATSURL   URL       `json:"natsUrl" env:"NATS_URL NATS_MCP_URL" doc:"NATS server URL, or several with commas. Can be overridden by NATS_URL environment variable. Without it: the bus of the running Parley hub, which is started if need be." format:"uri" pattern:"^(nats|tls|ws|wss)://[^\\s]+$" max:"4096" example:"nats://localhost:4222"`

	Credentials Credentials `json:"natsCredentials" doc:"How to log in to the NATS server"`
	TLS         TLS         `json:"natsTls" doc:"TLS for the connection to the NATS server"`
	Logging     Logging     `json:"logging" doc:"What is written to standard error"`
	Autostart   bool        `json:"autostart" env:"NATS_MCP_AUTOSTART" doc:"Start the Parley hub in the background when no NATS server is configured and no hub runs" default:"true"`
	Parents     int64       `json:"searchParents" env:"NATS_MCP_SEARCH_PARENTS" doc:"How many directories above the project's the file .mcp-config.json is looked for. Only in the user's file or as NATS_MCP_SEARCH_PARENTS." min:"0" max:"32" default:"5"`

	CrossComputer CrossComputer `json:"crossComputer" doc:"The agents' network: registry, mail and work queues, also across computers"`
	WorkQueue     WorkQueue     `json:"workQueue" doc:"The work queues of the agents' network"`
}

// Channel is one channel of the project.
type Channel struct {
	Name        string `json:"name" doc:"Channel identifier (lowercase alphanumeric and hyphens)" required:"true" pattern:"^[a-z0-9-]+$" max:"64"`
	Description string `json:"description" doc:"Human-readable channel purpose" required:"true" max:"1024"`
	MaxMessages int64  `json:"maxMessages" doc:"Maximum number of messages to retain" min:"1" default:"10000"`
	MaxBytes    int64  `json:"maxBytes" doc:"Maximum storage in bytes (default: 10MB)" min:"1024" default:"10485760"`
	MaxAge      string `json:"maxAge" doc:"Maximum message age (e.g., '24h', '7d', '30m')" pattern:"^[0-9]+(ns|us|ms|s|m|h|d)$" max:"24" default:"24h"`
}

// Default limits of a channel.
const (
	DefaultMaxMessages = 10000
	DefaultMaxBytes    = 10 << 20
	DefaultMaxAge      = "24h"
)

// MinMaxAge is the smallest maximum age of messages that NATS accepts.
const MinMaxAge = 100 * time.Millisecond

// Age returns MaxAge as a duration. It does not fail for a configuration of Load.
func (c Channel) Age() (time.Duration, error) { return parseAge(c.MaxAge) }

func (c Channel) withDefaults() Channel {
	c.MaxMessages = cmp.Or(c.MaxMessages, DefaultMaxMessages)
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	c.MaxAge = cmp.Or(c.MaxAge, DefaultMaxAge)
	return c
}

// Credentials are one way to log in: a user name and a password, an NKey, a credentials file or a token.
type Credentials struct {
	Username string      `json:"username" env:"NATS_USERNAME NATS_MCP_USERNAME" doc:"NATS username (if auth enabled)" max:"1024"`
	Password text.Secret `json:"password" env:"NATS_PASSWORD NATS_MCP_PASSWORD" doc:"NATS password (if auth enabled). Prefer environment variable." secret:"true" max:"1024"`

	NKeyFile  string      `json:"nkeyFile" env:"NATS_MCP_NKEY_FILE" doc:"Path to a user NKey's seed, to log in with instead of a password" max:"4096"`
	CredsFile string      `json:"credsFile" env:"NATS_MCP_CREDS_FILE" doc:"Path to a credentials file (JWT and seed), to log in with instead of a password" max:"4096"`
	Token     text.Secret `json:"token" env:"NATS_MCP_TOKEN" doc:"Token to log in with instead of a password. Prefer environment variable." secret:"true" max:"4096"`
}

// ways returns the ways to log in that are configured.
func (c Credentials) ways() []string {
	return slices.DeleteFunc([]string{c.Username + string(c.Password), c.NKeyFile, c.CredsFile, string(c.Token)}, func(way string) bool { return way == "" })
}

// NetworkCredentials returns how to log in to the cluster of the agents' network: NATSCredentials with those that
// crossComputer has of its own.
func (d Document) NetworkCredentials() Credentials {
	c, cross := d.Credentials, d.CrossComputer
	c.NKeyFile, c.CredsFile = cmp.Or(cross.NKeyFile, c.NKeyFile), cmp.Or(cross.CredsFile, c.CredsFile)
	c.Token = cmp.Or(cross.Token, c.Token)
	return c
}

// ChannelCredentials returns how to log in to natsUrl: NATSCredentials, or without any and with the cluster's servers those
// of crossComputer.
func (d Document) ChannelCredentials() Credentials {
	if len(d.Credentials.ways()) == 0 && d.NATSURL != "" && d.NATSURL == d.CrossComputer.ClusterURL() {
		return d.NetworkCredentials()
	}
	return d.Credentials
}

// TLS has the paths of the files for a TLS connection.
type TLS struct {
	Cert string `json:"cert" env:"NATS_TLS_CERT NATS_MCP_TLS_CERT" doc:"Path to TLS client certificate" max:"4096"`
	Key  string `json:"key" env:"NATS_TLS_KEY NATS_MCP_TLS_KEY" doc:"Path to TLS client key" max:"4096"`
	CA   string `json:"ca" env:"NATS_TLS_CA NATS_MCP_TLS_CA" doc:"Path to TLS CA certificate" max:"4096"`
}

// Logging configures the log.
type Logging struct {
	Level  string `json:"level" env:"LOG_LEVEL NATS_MCP_LOG_LEVEL" doc:"Logging verbosity level" enum:"DEBUG,INFO,WARN,ERROR" default:"INFO"`
	Format string `json:"format" env:"LOG_FORMAT NATS_MCP_LOG_FORMAT" doc:"Log output format" enum:"json,text" default:"json"`
}

// SlogLevel returns Level for package slog.
func (l Logging) SlogLevel() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		return slog.LevelInfo
	}
	return level
}

// Config is a valid configuration with derived values.
type Config struct {
	Document
	// ProjectPath is the absolute path of the project, with symbolic links resolved.
	ProjectPath string
	// ProjectID is the first 16 hex digits of the path's SHA-256.
	ProjectID string
	// File is the path of the project's file, UserFile that of the user's; "" if there is none.
	File, UserFile string
	// Origins has the origins of the values that a layer has set, by path in the document; see [Config.Origin].
	Origins map[string]Origin
}

// Layer is one of the sources of values.
type Layer string

// The layers in the order of increasing precedence. A derived value is computed from the project's path.
const (
	LayerDefault     Layer = "default"
	LayerDerived     Layer = "derived"
	LayerUser        Layer = "user"
	LayerProject     Layer = "project"
	LayerEnvironment Layer = "environment"
)

// Origin is the source of a value.
type Origin struct {
	Layer Layer
	Name  string // of the file or the environment variable; of a derived value the project's path
	// Line and Column are those in the file; 0 for other sources.
	Line, Column int
}

// String describes the origin.
func (o Origin) String() string {
	switch {
	case o.Line > 0:
		return fmt.Sprintf("%s (%s:%d)", o.Layer, o.Name, o.Line)
	case o.Name != "":
		return fmt.Sprintf("%s (%s)", o.Layer, o.Name)
	default:
		return string(o.Layer)
	}
}

// Channel returns the channel of that name.
func (c *Config) Channel(name string) (Channel, bool) {
	for _, channel := range c.Channels {
		if channel.Name == name {
			return channel, true
		}
	}
	return Channel{}, false
}

// ProjectID returns the identity of a project: the first 16 hex digits of the SHA-256 of its absolute path.
func ProjectID(absolutePath string) string {
	sum := sha256.Sum256([]byte(absolutePath))
	return hex.EncodeToString(sum[:])[:16]
}

// DefaultChannels returns the channels of a project without a configuration.
func DefaultChannels() []Channel {
	return []Channel{
		Channel{Name: "roadmap", Description: "Discussion about project roadmap and planning"}.withDefaults(),
		Channel{Name: "parallel-work", Description: "Coordination for parallel work among agents"}.withDefaults(),
		Channel{Name: "errors", Description: "Error reporting and troubleshooting", MaxMessages: 5000, MaxAge: "48h"}.withDefaults(),
	}
}

// Schema returns the JSON Schema of the files.
func Schema() *jsonschema.Schema {
	s := rawjson.SchemaOf(Document{})
	s.Title = "Configuration of nats-mcp-server (" + ProjectFile + ")"
	return s
}

var ageUnits = map[string]time.Duration{
	"ns": time.Nanosecond, "us": time.Microsecond, "ms": time.Millisecond,
	"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
}

// parseAge parses a whole number with one unit, such as "24h" or "7d".
func parseAge(text string) (time.Duration, error) {
	digits := strings.TrimRight(text, "numshd")
	unit, ok := ageUnits[text[len(digits):]]
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n > math.MaxInt64/int64(unit) {
		return 0, fmt.Errorf("%q is not a duration such as 24h, 7d or 30m", text)
	}
	if age := time.Duration(n) * unit; age >= MinMaxAge {
		return age, nil
	}
	return 0, fmt.Errorf("%q is shorter than %v", text, MinMaxAge)
}
