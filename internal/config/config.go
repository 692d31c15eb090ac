// Package config reads the hub's configuration: built-in defaults, then
// config.yaml, then the environment, then the command line. It is strict:
// an unknown key, a wrong type, a value out of range or a key given twice is an
// error that names file, line, column and what would be right, and every value
// remembers where it came from.
//
// Without any file every setting has a default that works.
package config

import (
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// Config is the whole configuration of a hub, as it is in force. Paths are
// absolute after [Load].
type Config struct {
	// Version is the version of this format: 1.
	Version int `yaml:"version"`
	// DataDir holds tasks, logs, the run file and the agents' working directories.
	DataDir string `yaml:"dataDir"`
	// Socket is the Unix socket, the way in for everything on this machine.
	Socket Socket `yaml:"socket"`
	// HTTP is the HTTP interface: the hub's dialect, A2A and the agent cards.
	HTTP HTTP `yaml:"http"`
	// GRPC is A2A over gRPC.
	GRPC GRPC `yaml:"grpc"`
	// Logging is what the hub writes about itself.
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
	// MCPServers are MCP servers by name whose tools the agents share, each under its name: "name.tool".
	MCPServers map[string]MCPServer `yaml:"mcpServers"`
	// Peers is how hubs on several machines use each other's agents.
	Peers Peers `yaml:"peers"`
	// Agents are the agents by id. A built-in agent keeps what is not set here.
	Agents map[string]runner.Definition `yaml:"agents"`
	// Roster backs planetary agents (sun, mercury, …) with agents: each gets an agent of its id with a role of its own. See parley roster.
	Roster map[string]Role `yaml:"roster"`
}

// Role is a planetary agent's part, played by an agent.
type Role struct {
	// Agent is the id of the agent that plays it, one of agents.
	Agent string `yaml:"agent"`
	// Prompt is put before the first prompt of each conversation, behind the agent's own systemPrompt.
	Prompt string `yaml:"prompt"`
	// Capabilities are what the role can be asked for; unset, those of the agent.
	Capabilities []string `yaml:"capabilities"`
}

// Socket is the Unix socket interface.
type Socket struct {
	// Enabled turns the socket on.
	Enabled bool `yaml:"enabled"`
	// Path is where the socket lies; only the user may open it.
	Path string `yaml:"path"`
}

// HTTP is the HTTP interface.
type HTTP struct {
	// Enabled turns HTTP on.
	Enabled bool `yaml:"enabled"`
	// Host is the address to listen on. Anything but loopback needs a token.
	Host string `yaml:"host"`
	// Port is the port to listen on; 0 lets the system choose.
	Port int `yaml:"port"`
	// Token is the bearer token that clients must present. Prefer tokenFile or the environment.
	Token string `yaml:"token"`
	// TokenFile is a file that holds the bearer token.
	TokenFile string `yaml:"tokenFile"`
	// AllowedHosts are names that clients may use in the Host header besides the address itself.
	AllowedHosts []string `yaml:"allowedHosts"`
	// AllowedOrigins are web origins whose pages may call the hub.
	AllowedOrigins []string `yaml:"allowedOrigins"`
}

// GRPC is A2A over gRPC.
type GRPC struct {
	// Port is the port for A2A over gRPC on http.host; 0 turns it off.
	Port int `yaml:"port"`
}

// Logging is what the hub writes about itself.
type Logging struct {
	// Level is the least important level that is written.
	Level string `yaml:"level"`
	// Pretty writes lines for people instead of JSON. Unset, it is so where the log goes to a terminal.
	Pretty *bool `yaml:"pretty"`
}

// Bus is where tasks and messages are stored.
type Bus struct {
	// URL is an external NATS server; several are separated by commas. Empty runs one inside the hub.
	URL string `yaml:"url"`
	// Durability says when the embedded bus acknowledges: commit (on disk, shared sync), always (on disk, own sync) or fast (not yet on disk).
	Durability string `yaml:"durability"`
	NATSLogin
	// MaxStore bounds the embedded bus's files, in bytes; 0 leaves it to the disk.
	MaxStore int64 `yaml:"maxStore"`
	// Leaf links the hub's own bus to the NATS cluster of the agents' network, as a leaf node.
	Leaf Leaf `yaml:"leaf"`
}

// Leaf is the link of the hub's own bus to a cluster.
type Leaf struct {
	// URL is the port for leaf nodes of the cluster's servers, such as tls://nats.example.com:7422; several are separated by commas. Empty for no link.
	URL string `yaml:"url"`
	// Domain is the JetStream domain of the cluster, which its servers' configuration must name.
	Domain string `yaml:"domain"`
	// TLSRequired refuses a cluster without TLS. Switch it off only on a network that you trust: others on the way can read and change everything.
	TLSRequired bool `yaml:"tlsRequired"`
	NATSLogin
}

// NATSLogin is how the hub logs in at a NATS server whose url stands beside it.
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
	// AllowPrivate lets notifications go to loopback and private addresses.
	AllowPrivate bool `yaml:"allowPrivate"`
}

// Contexts are conversations.
type Contexts struct {
	// Expiry is how long an unused conversation is kept.
	Expiry time.Duration `yaml:"expiry"`
}

// Tasks is how long tasks are kept.
type Tasks struct {
	// Retention is how long a task is kept after it ended.
	Retention time.Duration `yaml:"retention"`
}

// WorkDirs is where agents may work.
type WorkDirs struct {
	// Roots are directories that agents may work in besides their own in the data directory, by workdir.path or because a message asks for it (send --dir).
	Roots []string `yaml:"roots"`
}

// Node is how agents of other processes exchange envelopes with the hub's.
type Node struct {
	// Enabled lets programs with the coordination library in at /node of the HTTP interface, under the same checks.
	Enabled bool `yaml:"enabled"`
	// PeerTier is the highest tier that agents of other processes may have, from 0, the highest of all, to 3.
	PeerTier int `yaml:"peerTier"`
	// CrossSandbox are ids of agents that those in any sandbox may address.
	CrossSandbox []string `yaml:"crossSandbox"`
	// Audit is the log of what was routed and what was refused; see parley replay.
	Audit Audit `yaml:"audit"`
}

// MCPServer is an MCP server whose tools the agents share: a program, or one at a URL.
type MCPServer struct {
	// Disabled leaves the server out.
	Disabled bool `yaml:"disabled"`
	// Command is the program, looked up in PATH, that speaks MCP on standard input and output. Never a shell line.
	Command string `yaml:"command"`
	// Args are the program's arguments. Secrets do not belong here: every user of the machine can read them.
	Args []string `yaml:"args"`
	// Env is what the program gets in its environment besides a small base.
	Env map[string]string `yaml:"env"`
	// EnvAllow are names of the hub's own environment that it gets too; a trailing * matches the rest.
	EnvAllow []string `yaml:"envAllow"`
	// Cwd is the program's working directory; empty means the data directory.
	Cwd string `yaml:"cwd"`
	// URL is the address of a server that speaks streamable HTTP, instead of command.
	URL string `yaml:"url"`
	// Headers are sent with every request to url.
	Headers map[string]string `yaml:"headers"`
	// TokenFile is a file that holds a bearer token for url.
	TokenFile string `yaml:"tokenFile"`
	// CallTimeout bounds how long a call may go without an answer or progress; empty means 10m.
	CallTimeout time.Duration `yaml:"callTimeout"`
	// Agents are ids of agents that may use the server; empty means all that are in no sandbox.
	Agents []string `yaml:"agents"`
}

// Audit is the log of what was routed and what was refused; see parley replay.
type Audit struct {
	// Enabled keeps the log, payloads included, in the directory audit of the data directory.
	Enabled bool `yaml:"enabled"`
	// MaxFileSize is how large a file grows, in bytes, before the next is begun.
	MaxFileSize int64 `yaml:"maxFileSize"`
	// MaxFiles is how many files are kept.
	MaxFiles int `yaml:"maxFiles"`
}

// Peers is how hubs on several machines use each other's agents.
type Peers struct {
	// Enabled lets hubs that have paired with this one (see parley peers) find its agents and run tasks on them: over a NATS server that they share, if there is one, and over Hyperswarm.
	Enabled bool `yaml:"enabled"`
	// NATS is the NATS server that the hubs share, where it is another than that of bus.url: nothing is stored there.
	NATS PeersNATS `yaml:"nats"`
	// Prefix is what the subjects of the hubs that should meet begin with.
	Prefix string `yaml:"prefix"`
	// PeerTier is the highest tier that other hubs' agents may have here, from 0, the highest of all, to 3.
	PeerTier int `yaml:"peerTier"`
	// Tools are those whose tools paired hubs may use: names of mcpServers, and ids of agents of other processes; "*" for all. Empty, the default, means none.
	Tools []string `yaml:"tools"`
	// Hyperswarm is how hubs meet without a server that all share: over UDP, found by each other's keys.
	Hyperswarm Hyperswarm `yaml:"hyperswarm"`
}

// PeersNATS is a NATS server on which hubs meet that have their stores elsewhere.
type PeersNATS struct {
	// URL is the server; several of a cluster are separated by commas. Empty means that of bus.url.
	URL string `yaml:"url"`
	NATSLogin
}

// Hyperswarm is how hubs meet without a server that all share: over UDP, found by each other's keys.
type Hyperswarm struct {
	// Enabled turns it on, with peers.enabled.
	Enabled bool `yaml:"enabled"`
	// Listen is the IPv4 address and UDP port to listen at. Empty is all interfaces, and the port of public or any.
	Listen string `yaml:"listen"`
	// Public is the IPv4 address and port at which every other hub reaches this one, if they all do. Hubs that nobody can reach find each other by it: one such hub is needed, more are better.
	Public string `yaml:"public"`
	// Bootstrap are hubs with public, as host:port, to find others by, besides those whose address was given with parley peers pair.
	Bootstrap []string `yaml:"bootstrap"`
	// Network is a secret that hubs share to find each other under a topic of their own, besides by the keys that they have paired with. It lets nobody in. Prefer networkFile.
	Network string `yaml:"network"`
	// NetworkFile is a file that holds the secret of network.
	NetworkFile string `yaml:"networkFile"`
	// Capabilities announces a topic for each capability of the hub's agents, too, and looks for capabilities there: for networks of more than a thousand hubs.
	Capabilities bool `yaml:"capabilities"`
	// Relay forwards between hubs that have paired with this one and find no path to each other. It needs public.
	Relay bool `yaml:"relay"`
	// Relays are hubs with relay, by the relay keys that parley peers list shows there, to go through where no direct path is found.
	Relays []string `yaml:"relays"`
}

// Default returns the configuration that is in force where nothing is set, with
// home as the user's home directory and the built-in agents as they are.
func Default(home string) *Config {
	c := &Config{
		Version:  1,
		DataDir:  filepath.Join(home, ".a2a-hub"),
		Socket:   Socket{Enabled: true, Path: defaultSocket()},
		HTTP:     HTTP{Enabled: true, Host: "127.0.0.1", Port: 8080},
		Logging:  Logging{Level: "info"},
		Bus:      Bus{Durability: "commit", Leaf: Leaf{TLSRequired: true}},
		Contexts: Contexts{Expiry: 30 * 24 * time.Hour},
		Tasks:    Tasks{Retention: 90 * 24 * time.Hour},
		Node:     Node{Enabled: true, PeerTier: 2, Audit: Audit{Enabled: true, MaxFileSize: 16 << 20, MaxFiles: 8}},
		Peers:    Peers{Prefix: "parley", PeerTier: 2, Hyperswarm: Hyperswarm{Enabled: true}},
		Agents:   map[string]runner.Definition{},
	}
	for id := range runner.Builtin() {
		c.Agents[id] = runner.Definition{} // completed by Load
	}
	return c
}

func defaultSocket() string {
	if runtime.GOOS == "windows" { // there is no /tmp
		return filepath.Join(os.TempDir(), "a2a-hub.sock")
	}
	return "/tmp/a2a-hub.sock"
}
