// Package config is the configuration of the MCP server (nats-mcp-server):
// where it comes from, what it may say, and what it means.
//
// Four layers, the higher over the lower (REQ-DESIGN-CONFIG-001): environment
// variables, the project's .mcp-config.json, the user's
// ~/.nats-mcp/config.json, built-in defaults. A layer that is wrong is refused
// as a whole, with every problem's file, line and column
// (REQ-DESIGN-CONFIG-004, REQ-USE-007).
package config

//go:generate go run ./genschema ../../../schema/mcp-config.schema.json

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// Version is the version of the configuration's format (REQ-DESIGN-CONFIG-003).
const Version = 1

// The names of the files, and how far up the project's is looked for
// (REQ-CONFIG-001, REQ-PROJECT-004).
const (
	ProjectFile = ".mcp-config.json"
	UserFile    = ".nats-mcp/config.json" // below the home directory
	MaxParents  = 5
	MaxFileSize = 1 << 20 // bytes
)

// GlobalNamespace is reserved: no project may take it.
const GlobalNamespace = "global"

// Document is what a configuration file may say. Its tags are the schema that
// is shipped as schema/mcp-config.schema.json (REQ-CONFIG-002).
type Document struct {
	Schema    string    `json:"$schema" doc:"The schema of this file, for editors" format:"uri"`
	Version   int64     `json:"version" doc:"The version of this format" min:"1" max:"1" default:"1"`
	Namespace string    `json:"namespace" doc:"Unique namespace for this project. Auto-generated from path if not specified." pattern:"^[a-z0-9-]+$" max:"64"`
	Channels  []Channel `json:"channels" doc:"List of communication channels for this project" max:"500"`
	NATSURL   URL       `json:"natsUrl" doc:"NATS server URL, or several with commas. Can be overridden by NATS_URL environment variable. Without it: the bus of the running Parley hub, which is started if need be." format:"uri" pattern:"^(nats|tls|ws|wss)://[^\\s]+$" max:"4096" example:"nats://localhost:4222"`

	Credentials Credentials `json:"natsCredentials" doc:"How to log in to the NATS server"`
	TLS         TLS         `json:"natsTls" doc:"TLS for the connection to the NATS server"`
	Logging     Logging     `json:"logging" doc:"What is written to standard error"`
	Autostart   bool        `json:"autostart" doc:"Start the Parley hub in the background when no NATS server is configured and no hub runs" default:"true"`
	Parents     int64       `json:"searchParents" doc:"How many directories above the project's the file .mcp-config.json is looked for. Only in the user's file or as NATS_MCP_SEARCH_PARENTS." min:"0" max:"32" default:"5"`

	CrossComputer CrossComputer `json:"crossComputer" doc:"The agents' network: registry, mail and work queues, also across computers"`
	WorkQueue     WorkQueue     `json:"workQueue" doc:"The work queues of the agents' network"`
}

// Channel is one channel of the project (REQ-CONFIG-004, REQ-CONFIG-005).
type Channel struct {
	Name        string `json:"name" doc:"Channel identifier (lowercase alphanumeric and hyphens)" required:"true" pattern:"^[a-z0-9-]+$" max:"64"`
	Description string `json:"description" doc:"Human-readable channel purpose" required:"true" max:"1024"`
	MaxMessages int64  `json:"maxMessages" doc:"Maximum number of messages to retain" min:"1" default:"10000"`
	MaxBytes    int64  `json:"maxBytes" doc:"Maximum storage in bytes (default: 10MB)" min:"1024" default:"10485760"`
	MaxAge      string `json:"maxAge" doc:"Maximum message age (e.g., '24h', '7d', '30m')" pattern:"^[0-9]+(ns|us|ms|s|m|h|d)$" max:"24" default:"24h"`
}

// The limits of a channel whose configuration does not name them
// (REQ-DATA-007).
const (
	DefaultMaxMessages = 10000
	DefaultMaxBytes    = 10 << 20
	DefaultMaxAge      = "24h"
)

// MinMaxAge is the least maximum age of messages that NATS allows.
const MinMaxAge = 100 * time.Millisecond

// Age is MaxAge as a duration. A configuration that Load returned has no error
// here.
func (c Channel) Age() (time.Duration, error) { return parseAge(c.MaxAge) }

// withDefaults fills in what the configuration did not say.
func (c Channel) withDefaults() Channel {
	if c.MaxMessages == 0 {
		c.MaxMessages = DefaultMaxMessages
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	if c.MaxAge == "" {
		c.MaxAge = DefaultMaxAge
	}
	return c
}

// Credentials are a user and a password. It never prints them.
type Credentials struct {
	Username string `json:"username" doc:"NATS username (if auth enabled)" max:"1024"`
	Password string `json:"password" doc:"NATS password (if auth enabled). Prefer environment variable." secret:"true" max:"1024"`
}

// String hides the password.
func (c Credentials) String() string {
	if c.Username == "" && c.Password == "" {
		return "none"
	}
	return fmt.Sprintf("user %q, password hidden", c.Username)
}

// GoString hides the password from %#v.
func (c Credentials) GoString() string { return c.String() }

// LogValue hides the password from slog.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalJSON hides the password.
func (c Credentials) MarshalJSON() ([]byte, error) {
	shown := struct {
		Username string `json:"username,omitempty"`
		Password string `json:"password,omitempty"`
	}{Username: c.Username}
	if c.Password != "" {
		shown.Password = hidden
	}
	return json.Marshal(shown)
}

// TLS says where the files of a TLS connection are.
type TLS struct {
	Cert string `json:"cert" doc:"Path to TLS client certificate" max:"4096"`
	Key  string `json:"key" doc:"Path to TLS client key" max:"4096"`
	CA   string `json:"ca" doc:"Path to TLS CA certificate" max:"4096"`
}

// Logging says how much is logged and how.
type Logging struct {
	Level  string `json:"level" doc:"Logging verbosity level" enum:"DEBUG,INFO,WARN,ERROR" default:"INFO"`
	Format string `json:"format" doc:"Log output format" enum:"json,text" default:"json"`
}

// SlogLevel is Level for package slog.
func (l Logging) SlogLevel() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		return slog.LevelInfo
	}
	return level
}

// Config is a valid configuration with what follows from it.
type Config struct {
	Document
	// ProjectPath is the absolute path of the project, with links resolved.
	ProjectPath string
	// ProjectID is 16 hex digits of the path's SHA-256 (REQ-PROJECT-005).
	ProjectID string
	// File is the project's file that was read, UserFile the user's; empty where
	// there is none.
	File, UserFile string
	// Origins says where each value that a layer set comes from, by its path in
	// the document; see [Config.Origin].
	Origins map[string]Origin
}

// Layer is one of the places that values come from.
type Layer string

// The layers, the stronger ones later. A derived value follows from the
// project's path.
const (
	LayerDefault     Layer = "default"
	LayerDerived     Layer = "derived"
	LayerUser        Layer = "user"
	LayerProject     Layer = "project"
	LayerEnvironment Layer = "environment"
)

// Origin is where a value comes from.
type Origin struct {
	Layer Layer
	// Name is the file or the environment variable; of a derived value the path
	// that it is derived from.
	Name string
	// Line is in the file; 0 elsewhere.
	Line int
}

// String says it in words.
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

// ProjectID is the identity of a project: 16 hex digits of the SHA-256 of its
// absolute path (REQ-PROJECT-005, REQ-DESIGN-NS-001, REQ-DESIGN-NS-002).
func ProjectID(absolutePath string) string {
	sum := sha256.Sum256([]byte(absolutePath))
	return hex.EncodeToString(sum[:])[:16]
}

// DefaultChannels are those of a project without a configuration
// (REQ-CONFIG-006, section 17.1).
func DefaultChannels() []Channel {
	return []Channel{
		{Name: "roadmap", Description: "Discussion about project roadmap and planning",
			MaxMessages: DefaultMaxMessages, MaxBytes: DefaultMaxBytes, MaxAge: DefaultMaxAge},
		{Name: "parallel-work", Description: "Coordination for parallel work among agents",
			MaxMessages: DefaultMaxMessages, MaxBytes: DefaultMaxBytes, MaxAge: DefaultMaxAge},
		{Name: "errors", Description: "Error reporting and troubleshooting",
			MaxMessages: 5000, MaxBytes: DefaultMaxBytes, MaxAge: "48h"},
	}
}

// Schema is the JSON Schema of the files.
func Schema() *rawjson.Schema {
	s := rawjson.SchemaOf(Document{})
	s.Title = "Configuration of nats-mcp-server (" + ProjectFile + ")"
	return s
}

// parseAge reads "24h", "7d": a whole number and one unit.
func parseAge(text string) (time.Duration, error) {
	units := []struct {
		suffix string
		unit   time.Duration
	}{
		{"ns", time.Nanosecond}, {"us", time.Microsecond}, {"ms", time.Millisecond},
		{"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour},
	}
	for _, u := range units {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n > int64(1<<63-1)/int64(u.unit) {
			break
		}
		if age := time.Duration(n) * u.unit; age >= MinMaxAge {
			return age, nil
		}
		return 0, fmt.Errorf("%q is shorter than %v", text, MinMaxAge)
	}
	return 0, fmt.Errorf("%q is not a duration such as 24h, 7d or 30m", text)
}
