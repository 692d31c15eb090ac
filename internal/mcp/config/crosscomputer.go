package config

import (
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/base/text"
)

// Acknowledgment is the text with which a user enables communication across computers.
const Acknowledgment = "I understand the security implications"

// CrossComputer configures the agents' network.
type CrossComputer struct {
	Enabled         bool   `json:"enabled" env:"CROSS_COMPUTER_ENABLED" doc:"Enable cross-computer agent communication features" default:"false"`
	Local           bool   `json:"local" env:"NATS_MCP_LOCAL_NETWORK" doc:"Use the agents' network on the bus of this computer's hub: nothing leaves the computer, and neither acknowledgment nor natsClusterUrls are needed" default:"false"`
	Acknowledgment  string `json:"acknowledgment" env:"NATS_MCP_ACKNOWLEDGMENT" doc:"User must set to 'I understand the security implications' to enable" max:"256"`
	NATSClusterURLs []URL  `json:"natsClusterUrls" env:"NATS_CLUSTER_URLS" doc:"NATS cluster URLs for cross-computer communication" format:"uri" pattern:"^(nats|tls|ws|wss)://[^\\s,]+$" max:"32" example:"nats://nats.example.com:4222"`
	ThroughHub      bool   `json:"throughHub" env:"NATS_MCP_THROUGH_HUB" doc:"Reach the cluster through the link of this computer's hub (bus.leaf in its config.yaml), which alone holds the credentials: natsClusterUrls and a login are not needed then" default:"false"`
	RegistryBucket  string `json:"registryBucket" env:"REGISTRY_BUCKET" doc:"NATS KV bucket name for agent registry" pattern:"^[a-zA-Z0-9_-]+$" max:"64" default:"agent-registry"`

	HeartbeatInterval   int64    `json:"heartbeatInterval" env:"HEARTBEAT_INTERVAL" doc:"Heartbeat interval in seconds" min:"10" max:"86400" default:"60"`
	TimeoutThreshold    int64    `json:"timeoutThreshold" env:"TIMEOUT_THRESHOLD" doc:"Seconds before considering an agent offline; it is so after three of its own heartbeat intervals if they end before" min:"30" max:"604800" default:"180"`
	RegistryTTL         int64    `json:"registryTTL" env:"NATS_MCP_REGISTRY_TTL" doc:"Registry entry TTL in seconds (default 24 hours)" min:"60" max:"31536000" default:"86400"`
	DefaultVisibility   string   `json:"defaultVisibility" env:"DEFAULT_VISIBILITY" doc:"Default visibility for new agent registrations" enum:"private,project-only,user-only,public" default:"project-only"`
	TLSRequired         bool     `json:"tlsRequired" env:"TLS_REQUIRED" doc:"Require TLS for cross-computer NATS connections" default:"true"`
	AutoRegister        bool     `json:"autoRegister" env:"AUTO_REGISTER" doc:"Automatically register agent on MCP server startup" default:"false"`
	RegisterSessions    bool     `json:"registerSessions" env:"NATS_MCP_REGISTER_SESSIONS" doc:"Register the open session of a known coding agent (Claude Code, Codex, Gemini CLI, Vibe) in this computer's network by itself, so that it can be given tasks. Only parley mcp does it, and not in a cluster" default:"true"`
	DefaultAgentType    string   `json:"defaultAgentType" env:"DEFAULT_AGENT_TYPE" doc:"Default agent type for auto-registration" pattern:"^[a-z0-9-]+$" max:"64" default:"general"`
	DefaultCapabilities []string `json:"defaultCapabilities" env:"NATS_MCP_DEFAULT_CAPABILITIES" doc:"Default capabilities for auto-registration" max:"64"`

	Inboxes   string `json:"inboxes" env:"NATS_MCP_INBOXES" doc:"How a new network keeps its mail: a stream for each agent (up to some hundred), or one shared stream (for thousands). A network that exists stays as it is." enum:"per-agent,shared" default:"per-agent"`
	Replicas  int64  `json:"replicas" env:"NATS_MCP_REPLICAS" doc:"Copies of each new stream of the network and of the channels; 0 for three in a cluster and one elsewhere" min:"0" max:"5" default:"0"`
	AgentGUID string `json:"agentGuid" env:"NATS_MCP_AGENT_GUID" doc:"The agent's GUID. Set it only if the NATS server restricts the user to one GUID; otherwise it is assigned automatically" pattern:"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$" max:"36"`

	NKeyFile           string      `json:"nkeyFile" env:"NATS_MCP_NKEY_FILE" doc:"Path to a user NKey's seed, to log in to the NATS cluster with" max:"4096"`
	CredsFile          string      `json:"credsFile" env:"NATS_MCP_CREDS_FILE" doc:"Path to a credentials file (JWT and seed), to log in to the NATS cluster with" max:"4096"`
	Token              text.Secret `json:"token" env:"NATS_MCP_TOKEN" doc:"Token to log in to the NATS cluster with. Prefer environment variable." secret:"true" max:"4096"`
	InsecureSkipVerify bool        `json:"insecureSkipVerify" env:"NATS_MCP_INSECURE_SKIP_VERIFY" doc:"Do not verify the certificates of the NATS cluster. Anyone on the network path can then read and change messages." default:"false"`
}

// WorkQueue configures the work queues of the agents' network.
type WorkQueue struct {
	AckTimeout          int64 `json:"ackTimeout" env:"WORKQUEUE_ACK_TIMEOUT" doc:"Seconds before redelivery on no acknowledgment" min:"1" max:"604800" default:"300"`
	MaxDeliveryAttempts int64 `json:"maxDeliveryAttempts" env:"WORKQUEUE_MAX_ATTEMPTS" doc:"Attempts before moving to dead letter queue" min:"1" max:"1000" default:"3"`
	DeadLetterTTL       int64 `json:"deadLetterTTL" env:"WORKQUEUE_DLQ_TTL" doc:"Seconds to retain dead letter items" min:"1" max:"31536000" default:"604800"`
}

// Networked reports whether the agents' network is enabled, on this computer or across computers.
func (c *Config) Networked() bool { return c.CrossComputer.Enabled || c.CrossComputer.Local }

// JoinLocalNetwork enables the agents' network of this computer, unless it is configured or the project's bus is not the
// hub's. Parley's own programs call it; the specification disables the network by default.
func (c *Config) JoinLocalNetwork() {
	_, configured := c.Origins["crossComputer.local"]
	if !configured && !c.CrossComputer.Enabled && c.NATSURL == "" {
		c.CrossComputer.Local = true
	}
}

// AgentsDir returns the directory that records which of this user's agents run, for the agents' network; "" without a
// home directory.
func AgentsDir() string { return userDir("agents") }

// UnsentDir returns the directory that keeps messages which could not be stored before the end of a process; "" without a
// home directory.
func UnsentDir() string { return userDir("unsent") }

// userDir returns a directory beside the user's file.
func userDir(name string) string {
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, filepath.Dir(filepath.FromSlash(UserFile)), name)
}

// ClusterURL returns all URLs of the cluster, separated by commas.
func (c CrossComputer) ClusterURL() URL {
	urls := make([]string, len(c.NATSClusterURLs))
	for i, u := range c.NATSClusterURLs {
		urls[i] = string(u)
	}
	return URL(strings.Join(urls, ","))
}

// checkCrossComputer checks the configuration of the agents' network.
func (l *loader) checkCrossComputer() {
	c := &l.config.CrossComputer
	at := func(path string) Origin {
		return l.sourceOf("crossComputer."+path, "crossComputer.enabled", "crossComputer.local")
	}
	if c.AgentGUID != "" && uuid.Validate(c.AgentGUID) != nil {
		l.problem(at("agentGuid"), "crossComputer.agentGuid", "is not a GUID")
	}
	if c.Local && c.Enabled {
		l.problem(at("local"), "crossComputer.local", "the network is either that of this computer (local) or across computers (enabled): set one of them")
	}
	l.checkForeignTrust()
	if !c.Enabled {
		return
	}
	if c.Acknowledgment != Acknowledgment {
		l.problem(at("acknowledgment"), "crossComputer.acknowledgment",
			`agents of other computers will be able to write to this one; to enable that, set it to exactly "`+Acknowledgment+`"`)
	}
	if c.ThroughHub { // the hub's own configuration has the cluster and the login
		if len(c.NATSClusterURLs) > 0 {
			l.problem(at("throughHub"), "crossComputer.throughHub", "the cluster is either that of the hub's link (throughHub) or that of natsClusterUrls: set one of them")
		}
		if c.AgentGUID != "" {
			l.problem(at("agentGuid"), "crossComputer.agentGuid", "an agent that goes through the hub gets its GUID from it: remove it")
		}
		return
	}
	if len(c.NATSClusterURLs) == 0 {
		l.problem(at("natsClusterUrls"), "crossComputer.natsClusterUrls",
			"required when crossComputer is enabled: name the NATS servers that the computers share, here or in NATS_CLUSTER_URLS")
	}
	for _, u := range c.NATSClusterURLs {
		if parsed, err := url.Parse(string(u)); err != nil || parsed.Hostname() == "" {
			l.problem(at("natsClusterUrls"), "crossComputer.natsClusterUrls", "one of them is not a URL such as nats://nats.example.com:4222")
		} else if c.TLSRequired && parsed.Scheme == "ws" {
			l.problem(at("natsClusterUrls"), "crossComputer.natsClusterUrls", "ws:// has no TLS, which tlsRequired demands: use wss://")
		}
	}
	if len(l.config.NetworkCredentials().ways()) > 1 && len(l.config.Credentials.ways()) < 2 {
		l.problem(at("nkeyFile"), "crossComputer", "there is more than one way to log in: keep one of natsCredentials, nkeyFile, credsFile, token")
	}
}

// checkForeignTrust refuses settings that a project's file must not make: the project may be a stranger's repository,
// and the agent's process runs with the user's rights.
func (l *loader) checkForeignTrust() {
	c := &l.config.CrossComputer
	byProject := func(path string) bool { return l.config.Origins[path].Layer == LayerProject }
	tls := &l.config.TLS
	for path, file := range map[string]*string{
		"crossComputer.nkeyFile": &c.NKeyFile, "crossComputer.credsFile": &c.CredsFile,
		"natsCredentials.nkeyFile": &l.config.Credentials.NKeyFile, "natsCredentials.credsFile": &l.config.Credentials.CredsFile,
		"natsTls.key": &tls.Key, "natsTls.cert": &tls.Cert, "natsTls.ca": &tls.CA,
	} {
		if *file == "" || !byProject(path) {
			continue
		}
		inside, ok := within(l.config.ProjectPath, *file)
		if !ok {
			l.problem(l.sourceOf(path), path, "a project's file must not refer to a file outside of the project: "+
				"configure it in ~/"+UserFile+" or in the environment")
		}
		*file = inside
	}
	for _, servers := range []string{"natsUrl", "crossComputer.natsClusterUrls"} {
		if tls.CA != "" && byProject("natsTls.ca") && l.config.Origins[servers].Layer == LayerUser {
			l.problem(l.sourceOf("natsTls.ca"), "natsTls.ca",
				"a project's file must not set the CA for the servers of ~/"+UserFile+": set it there")
		}
	}
	if c.InsecureSkipVerify && byProject("crossComputer.insecureSkipVerify") {
		l.problem(l.sourceOf("crossComputer.insecureSkipVerify"), "crossComputer.insecureSkipVerify",
			"a project's file must not disable the verification: set it in ~/"+UserFile+", or NATS_MCP_INSECURE_SKIP_VERIFY")
	}
	if !c.TLSRequired && byProject("crossComputer.tlsRequired") && l.config.Origins["crossComputer.natsClusterUrls"].Layer == LayerUser {
		l.problem(l.sourceOf("crossComputer.tlsRequired"), "crossComputer.tlsRequired",
			"a project's file must not disable TLS for the servers of ~/"+UserFile+": set it there")
	}
}

// within returns the path of a file with symbolic links resolved, and whether it is in a directory.
func within(dir, file string) (string, bool) {
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	rel, err := filepath.Rel(dir, file)
	return file, err == nil && filepath.IsLocal(rel)
}

// OnThisComputer reports whether all servers of a URL are on this computer.
func (u URL) OnThisComputer() bool {
	for one := range strings.SplitSeq(string(u), ",") {
		parsed, err := url.Parse(strings.TrimSpace(one))
		if err != nil {
			return false
		}
		host := parsed.Hostname()
		address, err := netip.ParseAddr(host)
		if host != "localhost" && (err != nil || !address.IsLoopback()) {
			return false
		}
	}
	return u != ""
}

// TLS reports whether the URL's scheme requires TLS.
func (u URL) TLS() bool {
	return strings.HasPrefix(string(u), "tls://") || strings.HasPrefix(string(u), "wss://")
}
