// Package config loads the hub's configuration from four layers: built-in defaults, config.yaml, the environment and
// the command line. It is strict: an unknown or duplicate key, a wrong type or a value out of range is an error with
// the file, line, column and the correct form. Every value has an [Origin].
//
// The defaults work without a file.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// Config is the complete configuration of a hub. Paths are absolute after [Load].
type Config struct {
	// Version is the version of this format: 1.
	Version int `yaml:"version"`
	// DataDir holds tasks, logs, the run file and the agents' working directories.
	DataDir string `yaml:"dataDir"`
	// Socket is the Unix socket, for all clients on this machine.
	Socket Socket `yaml:"socket"`
	// HTTP is the HTTP interface: the hub's dialect, A2A and the agent cards.
	HTTP HTTP `yaml:"http"`
	// GRPC is A2A over gRPC.
	GRPC GRPC `yaml:"grpc"`
	// Logging configures the hub's log.
	Logging Logging `yaml:"logging"`
	// Bus is where tasks and messages are stored.
	Bus Bus `yaml:"bus"`
	// Push is the delivery of push notifications.
	Push Push `yaml:"push"`
	// Contexts are conversations.
	Contexts Contexts `yaml:"contexts"`
	// Tasks is how long tasks are kept.
	Tasks Tasks `yaml:"tasks"`
	// WorkDirs is where agents may work.
	WorkDirs WorkDirs `yaml:"workdirs"`
	// Node is how agents of other processes exchange envelopes with the hub's.
	Node Node `yaml:"node"`
	// MCPServers are MCP servers whose tools the agents share, by name; a tool is then called "name.tool".
	MCPServers map[string]MCPServer `yaml:"mcpServers"`
	// Peers is how hubs on several machines use each other's agents.
	Peers Peers `yaml:"peers"`
	// Sessions is who may give tasks to the open sessions of this computer.
	Sessions Sessions `yaml:"sessions"`
	// Agents are the agents by id. A built-in agent keeps its defaults for keys that are not set.
	Agents map[string]runner.Definition `yaml:"agents"`
	// Roster assigns agents to planetary agents (sun, mercury, …): each becomes an agent with that id and its own role. See parley roster.
	Roster map[string]Role `yaml:"roster"`
	// Workers let agents work on queues of the agents' network.
	Workers []Worker `yaml:"workers"`
}

// Worker lets an agent work on a queue of the agents' network with nobody there. Whoever may submit to the queue gives the agent work.
type Worker struct {
	// Agent is the id of the agent that does the work, one of agents or roster.
	Agent string `yaml:"agent"`
	// Capability names the queue, as in submit_work_item.
	Capability string `yaml:"capability"`
	// Count is how many items the agent works on at once, from 1 to 64; unset, one.
	Count int `yaml:"count"`
}

// Role is the role of a planetary agent, played by an agent.
type Role struct {
	// Agent is the id of the agent that plays the role, one of agents.
	Agent string `yaml:"agent"`
	// Prompt precedes the first prompt of each conversation, after the agent's own systemPrompt.
	Prompt string `yaml:"prompt"`
	// Capabilities are the capabilities of the role; unset, those of the agent.
	Capabilities []string `yaml:"capabilities"`
}

// Socket is the Unix socket interface.
type Socket struct {
	// Enabled turns the socket on.
	Enabled bool `yaml:"enabled"`
	// Path is the path of the socket; only the user may open it.
	Path string `yaml:"path"`
}

// HTTP is the HTTP interface.
type HTTP struct {
	// Enabled turns HTTP on.
	Enabled bool `yaml:"enabled"`
	// Host is the address to listen on. Addresses other than loopback require a token.
	Host string `yaml:"host"`
	// Port is the port to listen on; 0 lets the system choose.
	Port int `yaml:"port"`
	// Token is the bearer token that clients must present. Prefer tokenFile or the environment.
	Token string `yaml:"token"`
	// TokenFile is a file that holds the bearer token.
	TokenFile string `yaml:"tokenFile"`
	// AllowedHosts are names that the Host header may contain besides the address itself.
	AllowedHosts []string `yaml:"allowedHosts"`
	// AllowedOrigins are web origins whose pages may call the hub.
	AllowedOrigins []string `yaml:"allowedOrigins"`
}

// GRPC is A2A over gRPC.
type GRPC struct {
	// Port is the port for A2A over gRPC on http.host; 0 turns it off.
	Port int `yaml:"port"`
}

// Logging configures the hub's log.
type Logging struct {
	// Level is the lowest level that is logged.
	Level string `yaml:"level"`
	// Pretty writes text for people instead of JSON. Unset, the hub does so on a terminal.
	Pretty *bool `yaml:"pretty"`
}

// Bus is where tasks and messages are stored.
type Bus struct {
	// URL is an external NATS server; several are separated by commas. Empty runs an embedded server in the hub.
	URL string `yaml:"url"`
	// Durability is when the embedded bus acknowledges a write: commit (on disk, shared sync), always (on disk, own sync) or fast (not yet on disk).
	Durability string `yaml:"durability"`
	NATSLogin
	// MaxStore bounds the embedded bus's files, in bytes; 0 means 64 GiB.
	MaxStore int64 `yaml:"maxStore"`
	// Leaf links the embedded bus to the NATS cluster of the agents' network, as a leaf node.
	Leaf Leaf `yaml:"leaf"`
}

// Leaf is the link of the embedded bus to a cluster.
type Leaf struct {
	// URL is the leaf node port of the cluster's servers, such as tls://nats.example.com:7422; several are separated by commas. Empty for no link.
	URL string `yaml:"url"`
	// Domain is the JetStream domain of the cluster, as set in its servers' configuration.
	Domain string `yaml:"domain"`
	// TLSRequired refuses a cluster without TLS. Disable it only on a network that you trust: without TLS anyone on the network path can read and change everything.
	TLSRequired bool `yaml:"tlsRequired"`
	NATSLogin
}

// NATSLogin is the hub's login at the NATS server of the neighboring key url.
type NATSLogin struct {
	// CredentialsFile is a NATS credentials file for url.
	CredentialsFile string `yaml:"credentialsFile"`
	// User logs in at url, with password.
	User string `yaml:"user"`
	// Password is the password of user. Prefer passwordFile or the environment.
	Password string `yaml:"password"`
	// PasswordFile is a file that holds the password of user.
	PasswordFile string `yaml:"passwordFile"`
	// NKeyFile is the seed of a NATS user key for url.
	NKeyFile string `yaml:"nkeyFile"`
	// TLS are the files of a TLS connection to url.
	TLS BusTLS `yaml:"tls"`
}

// BusTLS are the files of a TLS connection to an external NATS server.
type BusTLS struct {
	// CAFile holds certificates to trust instead of the system's.
	CAFile string `yaml:"caFile"`
	// CertFile is the client's certificate, with keyFile.
	CertFile string `yaml:"certFile"`
	// KeyFile is the key of certFile.
	KeyFile string `yaml:"keyFile"`
}

// Push is the delivery of push notifications.
type Push struct {
	// AllowPrivate permits notifications to loopback and private addresses.
	AllowPrivate bool `yaml:"allowPrivate"`
}

// Contexts are conversations.
type Contexts struct {
	// Expiry is how long an unused conversation is kept.
	Expiry time.Duration `yaml:"expiry"`
}

// Tasks is how long tasks are kept.
type Tasks struct {
	// Retention is how long a task is kept after it ended. Of more than 200,000 tasks the hub removes the oldest that have
	// ended, whatever their age.
	Retention time.Duration `yaml:"retention"`
	// Trace is the record of each turn: prompt, tool calls, notices, questions, usage and changes (task show --trace).
	Trace Trace `yaml:"trace"`
}

// Trace bounds the records of turns. They are removed with their task at the latest.
type Trace struct {
	// Enabled keeps a record of each turn.
	Enabled bool `yaml:"enabled"`
	// Retention is how long a record is kept.
	Retention time.Duration `yaml:"retention"`
	// MaxBytes is the size of one record; longer texts in it are cut. At least 16 KiB, at most 1 MiB.
	MaxBytes int `yaml:"maxBytes"`
	// TotalBytes is the size of all records together, above which the oldest are removed.
	TotalBytes int `yaml:"totalBytes"`
}

// WorkDirs is where agents may work.
type WorkDirs struct {
	// Roots are directories that agents may work in besides their own in the data directory and those of parley trust, set with workdir.path or requested by a message.
	Roots []string `yaml:"roots"`
}

// Node is how agents of other processes exchange envelopes with the hub's.
type Node struct {
	// Enabled admits programs with the coordination library at /node of the HTTP interface, with the same checks.
	Enabled bool `yaml:"enabled"`
	// PeerTier is the highest tier that agents of other processes may have, from 0 (highest) to 3.
	PeerTier int `yaml:"peerTier"`
	// CrossSandbox are ids of agents that agents in any sandbox may address.
	CrossSandbox []string `yaml:"crossSandbox"`
	// Audit is the log of routed and refused envelopes; see parley replay.
	Audit Audit `yaml:"audit"`
}

// MCPServer is an MCP server whose tools the agents share: a program, or one at a URL.
type MCPServer struct {
	// Disabled leaves the server out.
	Disabled bool `yaml:"disabled"`
	// Command is the program, looked up in PATH, that serves MCP on standard input and output. It is not a shell command.
	Command string `yaml:"command"`
	// Args are the program's arguments. Do not put secrets here: every user of the machine can read them.
	Args []string `yaml:"args"`
	// Env adds variables to the program's small base environment.
	Env map[string]string `yaml:"env"`
	// EnvAllow are names of variables of the hub's environment that the program gets too; a trailing * matches the rest.
	EnvAllow []string `yaml:"envAllow"`
	// Cwd is the program's working directory; empty means the data directory.
	Cwd string `yaml:"cwd"`
	// URL is the address of a server that speaks streamable HTTP, instead of command.
	URL string `yaml:"url"`
	// Headers are sent with every request to url.
	Headers map[string]string `yaml:"headers"`
	// TokenFile is a file that holds a bearer token for url.
	TokenFile string `yaml:"tokenFile"`
	// CallTimeout bounds how long a call may take without an answer or progress; empty means 10m.
	CallTimeout time.Duration `yaml:"callTimeout"`
	// Agents are ids of agents that may use the server; empty means all agents without a sandbox.
	Agents []string `yaml:"agents"`
}

// Audit is the log of routed and refused envelopes; see parley replay.
type Audit struct {
	// Enabled writes the log, including payloads, to the directory audit of the data directory.
	Enabled bool `yaml:"enabled"`
	// MaxFileSize is the size of a file, in bytes, at which a new one is started.
	MaxFileSize int64 `yaml:"maxFileSize"`
	// MaxFiles is how many files are kept.
	MaxFiles int `yaml:"maxFiles"`
}

// Peers is how hubs on several machines use each other's agents.
type Peers struct {
	// Enabled lets paired hubs (see parley peers) find this hub's agents and run tasks on them: over a shared NATS server, if there is one, and over Hyperswarm.
	Enabled bool `yaml:"enabled"`
	// NATS is the NATS server that the hubs share, if it is not that of bus.url: nothing is stored there.
	NATS PeersNATS `yaml:"nats"`
	// Prefix is the prefix of the hubs' subjects; it must be the same for hubs that should find each other.
	Prefix string `yaml:"prefix"`
	// PeerTier is the highest tier that other hubs' agents may have here, from 0 (highest) to 3.
	PeerTier int `yaml:"peerTier"`
	// Tools selects the tools that paired hubs may use: names of mcpServers, and ids of agents of other processes; "*" for all. Empty, the default, means none.
	Tools []string `yaml:"tools"`
	// Hyperswarm connects hubs without a shared server: over UDP; hubs find each other by their keys.
	Hyperswarm Hyperswarm `yaml:"hyperswarm"`
}

// PeersNATS is a NATS server that only connects hubs; it stores nothing.
type PeersNATS struct {
	// URL is the server; those of a cluster are separated by commas. Empty means bus.url.
	URL string `yaml:"url"`
	NATSLogin
}

// Hyperswarm connects hubs without a shared server: over UDP; hubs find each other by their keys.
type Hyperswarm struct {
	// Enabled turns it on, with peers.enabled.
	Enabled bool `yaml:"enabled"`
	// Listen is the IPv4 address and UDP port to listen on. Empty means all interfaces, and the port of public or any.
	Listen string `yaml:"listen"`
	// Public is the IPv4 address and port at which every other hub can reach this one, if there is one. Hubs behind NAT find each other through it: one hub with a public address is needed, more are better.
	Public string `yaml:"public"`
	// Bootstrap are hubs with public, as host:port, through which to find others, besides those paired with parley peers pair --at.
	Bootstrap []string `yaml:"bootstrap"`
	// Network is a secret that hubs share to find each other under a common topic, besides by the keys of paired hubs. It grants no access. Prefer networkFile.
	Network string `yaml:"network"`
	// NetworkFile is a file that holds the secret of network.
	NetworkFile string `yaml:"networkFile"`
	// Capabilities also announces a topic for each capability of the hub's agents, and searches for capabilities by topic: for networks of more than a thousand hubs.
	Capabilities bool `yaml:"capabilities"`
	// Relay forwards between paired hubs that have no direct path to each other. It needs public.
	Relay bool `yaml:"relay"`
	// Relays are hubs with relay, by the relay keys that parley peers list prints there, to use if there is no direct path.
	Relays []string `yaml:"relays"`
}

// Sessions is who may give tasks to open sessions and connected programs besides the user, whose commands and agents always may. Each value is ask, allow or deny: with ask a task waits as auth-required until the user has answered it.
type Sessions struct {
	// Outside is the rule for paired hubs, programs with the coordination library, and A2A clients on other computers. They reach public sessions and programs only.
	Outside string `yaml:"outside"`
	// Clients is the rule for A2A clients on this computer. They are the user's own, or have the token.
	Clients string `yaml:"clients"`
	// Wake lets the hub wake an idle session when something is new for it: a turn begins then without its user. Otherwise it sees what is new in its next turn.
	Wake bool `yaml:"wake"`
}

// Default returns the default configuration, with home as the user's home directory and the built-in agents.
func Default(home string) *Config {
	c := &Config{
		Version:  1,
		DataDir:  filepath.Join(home, ".a2a-hub"),
		Socket:   Socket{Enabled: true, Path: DefaultSocket(filepath.Join(home, ".a2a-hub"))},
		HTTP:     HTTP{Enabled: true, Host: "127.0.0.1", Port: 8080},
		Logging:  Logging{Level: "info"},
		Bus:      Bus{Durability: "commit", Leaf: Leaf{TLSRequired: true}},
		Contexts: Contexts{Expiry: 30 * 24 * time.Hour},
		Tasks: Tasks{Retention: 90 * 24 * time.Hour, Trace: Trace{
			Enabled: true, Retention: 90 * 24 * time.Hour, MaxBytes: 256 << 10, TotalBytes: 1 << 30,
		}},
		Node:   Node{Enabled: true, PeerTier: 2, Audit: Audit{Enabled: true, MaxFileSize: 16 << 20, MaxFiles: 8}},
		Peers:  Peers{Prefix: "parley", PeerTier: 2, Hyperswarm: Hyperswarm{Enabled: true}},
		Agents: map[string]runner.Definition{},

		Sessions: Sessions{Outside: "ask", Clients: "allow", Wake: true},
	}
	for id := range runner.Builtin() {
		c.Agents[id] = runner.Definition{} // completed by Load
	}
	return c
}

// MaxSocketPath is the length, in bytes, of a path that fits in every system's sockaddr_un.
const MaxSocketPath = 103

// DefaultSocket returns the socket of a data directory's hub: hub.sock in the directory, or for a long path a file in the
// user's own directory below /tmp. The socket is the user's own, and each data directory has another one.
func DefaultSocket(dataDir string) string {
	path := filepath.Join(dataDir, "hub.sock")
	if len(path) <= MaxSocketPath {
		return path
	}
	sum := sha256.Sum256([]byte(dataDir))
	name := hex.EncodeToString(sum[:8]) + ".sock"
	if runtime.GOOS == "windows" { // there is no /tmp, and a user's temporary directory is private
		return filepath.Join(os.TempDir(), "parley-"+name)
	}
	return filepath.Join("/tmp", "parley-"+strconv.Itoa(os.Geteuid()), name)
}
