package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub/runner"
	natslink "github.com/parleyhub/parley/transport/nats"
)

// The values of keys with fixed values.
var (
	logLevels    = []string{"debug", "info", "warn", "error"}
	senderRules  = []string{"ask", "allow", "deny"}
	durabilities = []string{string(bus.DurabilityCommit), string(bus.DurabilityAlways), string(bus.DurabilityFast)}
)

// minToken is the minimum length of a bearer token: 16 characters cannot be guessed over the network.
const minToken = 16

// check reports values that have the right type but cannot work.
func (l *Loaded) check(d *decoder) {
	if l.Version != 1 {
		d.at("version", fmt.Sprintf("this hub reads version 1, not %d", l.Version))
	}
	l.checkServers(d)
	d.oneOf("logging.level", l.Logging.Level, logLevels)
	l.checkBus(d)
	d.duration("contexts.expiry", l.Contexts.Expiry, time.Minute)
	d.duration("tasks.retention", l.Tasks.Retention, time.Minute)
	d.duration("tasks.trace.retention", l.Tasks.Trace.Retention, time.Minute)
	if t := l.Tasks.Trace; t.MaxBytes < 16<<10 || t.MaxBytes > 1<<20 {
		d.at("tasks.trace.maxBytes", "expected between 16384 bytes and 1 MiB")
	} else if t.TotalBytes < t.MaxBytes {
		d.at("tasks.trace.totalBytes", "expected at least tasks.trace.maxBytes")
	}
	l.checkNode(d)
	for _, name := range slices.Sorted(maps.Keys(l.MCPServers)) {
		l.checkMCPServer(d, name)
	}
	l.checkPeers(d)
	d.oneOf("sessions.outside", l.Sessions.Outside, senderRules)
	d.oneOf("sessions.clients", l.Sessions.Clients, senderRules)
	for _, id := range slices.Sorted(maps.Keys(l.Agents)) {
		l.completeAgent(d, id)
	}
	if len(d.problems) == 0 { // otherwise the agents are incomplete
		l.addRoles(d)
		l.checkWorkers(d)
	}
}

// maxWorkers bounds the entries of workers, and the items that one of them works on at once.
const maxWorkers = 64

var queueName = text.Pattern(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// checkWorkers checks the workers, and sets the counts that are not set.
func (l *Loaded) checkWorkers(d *decoder) {
	if len(l.Workers) > maxWorkers {
		d.at("workers", fmt.Sprintf("more than %d workers", maxWorkers))
	}
	if len(l.Workers) > 0 && l.Bus.URL != "" {
		d.at("workers", "only a hub with its own bus has workers; remove bus.url or this")
	}
	seen := map[Worker]bool{}
	for i := range l.Workers {
		w, key := &l.Workers[i], fmt.Sprintf("workers[%d]", i)
		if def, known := l.Agents[w.Agent]; w.Agent == "" {
			d.at(key, "agent is missing: set the agent that does the work")
		} else if !known || def.Disabled {
			d.at(key+".agent", fmt.Sprintf("there is no agent %q", w.Agent))
		}
		w.Capability = strings.ToLower(strings.TrimSpace(w.Capability))
		if !queueName().MatchString(w.Capability) || w.Capability == "deadletter" {
			d.at(key+".capability", "expected the name of a queue: up to 64 letters, digits, - and _, such as typescript")
		}
		if l.Origin(key+".count").Kind == FromDefault {
			w.Count = 1
		} else if w.Count < 1 || w.Count > maxWorkers {
			d.at(key+".count", fmt.Sprintf("expected 1 to %d", maxWorkers))
		}
		if pair := (Worker{Agent: w.Agent, Capability: w.Capability}); seen[pair] {
			d.at(key, "this agent works on this queue already: set its count")
		} else {
			seen[pair] = true
		}
	}
}

// addRoles adds an agent for each role of the roster: a copy of the agent assigned to it, with the
// tier that the specification gives the role.
func (l *Loaded) addRoles(d *decoder) {
	made := make(map[string]runner.Definition, len(l.Roster))
	for _, id := range slices.Sorted(maps.Keys(l.Roster)) {
		key, role := "roster."+id, l.Roster[id]
		def, known := l.Agents[role.Agent]
		_, taken := l.Agents[id]
		switch {
		case !slices.Contains(agent.PlanetaryIDs(), id):
			d.oneOf(key, id, agent.PlanetaryIDs())
			continue
		case taken:
			d.at(key, "agents."+id+" is set too; remove one")
			continue
		case role.Agent == "":
			d.at(key, "agent is missing: set the agent that plays "+id)
			continue
		case !known || def.Disabled:
			d.at(key+".agent", fmt.Sprintf("there is no agent %q", role.Agent))
			continue
		}
		tier := agent.PlanetaryTier(id).Level()
		def.ID, def.Extends, def.Name, def.Tier = id, "", strings.ToUpper(id), &tier
		def.Description = "Played by " + role.Agent + "."
		def.SystemPrompt = strings.TrimSpace(def.SystemPrompt + "\n\n" + role.Prompt)
		if role.Capabilities != nil {
			def.Capabilities = nil
			for _, c := range role.Capabilities {
				def.Capabilities = append(def.Capabilities, runner.Capability{ID: c})
			}
		}
		made[id] = def
	}
	for _, id := range slices.Sorted(maps.Keys(made)) {
		l.Agents[id] = made[id]
		l.completeAgent(d, id)
	}
}

func (l *Loaded) checkServers(d *decoder) {
	if !l.Socket.Enabled && !l.HTTP.Enabled {
		d.at("socket.enabled", "socket and http are both off; no client could reach the hub")
	}
	if l.Socket.Enabled && l.Socket.Path == "" {
		d.at("socket.path", "must not be empty")
	}
	d.port("http.port", l.HTTP.Port)
	d.port("grpc.port", l.GRPC.Port)
	if l.GRPC.Port != 0 && l.GRPC.Port == l.HTTP.Port {
		d.at("grpc.port", "is the same as http.port; gRPC needs its own port")
	}
	if l.HTTP.Host == "" {
		d.at("http.host", "must not be empty; 0.0.0.0 listens on every address")
	}
	if l.HTTP.Enabled && !loopback(l.HTTP.Host) && l.HTTP.Token == "" {
		d.at("http.host", fmt.Sprintf("%s is not loopback: set PARLEY_HTTP_TOKEN or http.tokenFile first, so that only clients with the token have access", l.HTTP.Host))
	}
	if t := l.HTTP.Token; t != "" && (len(t) < minToken || strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' })) {
		d.at("http.token", fmt.Sprintf("must have at least %d visible ASCII characters, without spaces", minToken))
	}
	for i, origin := range l.HTTP.AllowedOrigins {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.Path != "" {
			d.at(fmt.Sprintf("http.allowedOrigins[%d]", i), "expected an origin such as https://example.org, without a path")
		}
	}
}

// loopback reports whether only this machine can reach host.
func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}

func (l *Loaded) checkBus(d *decoder) {
	d.oneOf("bus.durability", l.Bus.Durability, durabilities)
	if l.Bus.MaxStore < 0 {
		d.at("bus.maxStore", "must not be negative")
	}
	d.natsServer("bus", "nats://host:4222", "needs bus.url; the embedded bus creates its own credentials",
		l.Bus.URL, l.Bus.NATSLogin, clientSchemes...)
	l.checkLeaf(d)
}

var domainPattern = text.Pattern(`^[A-Za-z0-9_-]{1,64}$`)

func (l *Loaded) checkLeaf(d *decoder) {
	leaf := l.Bus.Leaf
	d.natsServer("bus.leaf", "tls://host:7422", "needs bus.leaf.url",
		leaf.URL, leaf.NATSLogin, "nats", "tls")
	switch {
	case leaf.URL == "" && leaf.Domain != "":
		d.at("bus.leaf.domain", "needs bus.leaf.url")
	case leaf.URL == "":
	case l.Bus.URL != "":
		d.at("bus.leaf.url", "only the embedded bus can be linked to a cluster; remove bus.url or this")
	case !domainPattern().MatchString(leaf.Domain):
		d.at("bus.leaf.domain", "set the JetStream domain of the cluster (jetstream { domain: … } in its servers' configuration): without one it does not answer through a leaf node")
	}
}

// clientSchemes are the schemes of client URLs of a NATS server.
var clientSchemes = []string{"nats", "tls", "ws", "wss"}

// natsServer checks the URLs and the login of a NATS server. without is the message for a login without a URL.
func (d *decoder) natsServer(key, example, without, servers string, n NATSLogin, schemes ...string) {
	if servers == "" {
		for _, k := range []struct{ key, value string }{
			{".credentialsFile", n.CredentialsFile}, {".nkeyFile", n.NKeyFile}, {".user", n.User}, {".password", n.Password},
			{".tls.caFile", n.TLS.CAFile}, {".tls.certFile", n.TLS.CertFile}, {".tls.keyFile", n.TLS.KeyFile},
		} {
			if k.value != "" {
				d.at(key+k.key, without)
			}
		}
		return
	}
	for _, part := range strings.Split(servers, ",") {
		u, err := url.Parse(strings.TrimSpace(part))
		if err != nil || u.Host == "" || !slices.Contains(schemes, u.Scheme) {
			d.at(key+".url", "expected URLs such as "+example+", separated by commas")
			return
		}
		if u.User != nil {
			d.at(key+".url", fmt.Sprintf("holds credentials; use %s.user with %[1]s.passwordFile, or %[1]s.credentialsFile", key))
			return
		}
	}
}

func (l *Loaded) checkNode(d *decoder) {
	n := l.Node
	if n.PeerTier < 0 || n.PeerTier > 3 {
		d.at("node.peerTier", fmt.Sprintf("%d is not one of 0, 1, 2, 3", n.PeerTier))
	}
	for i, id := range n.CrossSandbox {
		if err := agent.CheckID(id); err != nil {
			d.at(fmt.Sprintf("node.crossSandbox[%d]", i), err.Error())
		}
	}
	if n.Audit.MaxFileSize < 64<<10 || n.Audit.MaxFileSize > 1<<30 {
		d.at("node.audit.maxFileSize", "expected between 65536 bytes and 1 GiB")
	}
	if n.Audit.MaxFiles < 2 || n.Audit.MaxFiles > 1000 {
		d.at("node.audit.maxFiles", "expected between 2 and 1000")
	}
}

// maxMCPServers bounds the number of MCP servers: each is a process or a connection.
const maxMCPServers = 100

var serverName = text.Pattern(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// checkMCPServer checks one MCP server.
func (l *Loaded) checkMCPServer(d *decoder, name string) {
	key, s := "mcpServers."+name, l.MCPServers[name]
	bad := func(field, format string, args ...any) { d.at(key+"."+field, fmt.Sprintf(format, args...)) }
	if len(name) > 64 || !serverName().MatchString(name) {
		d.at(key, "the name must be up to 64 letters, digits, _ and -, with single dots between them")
		return
	}
	if _, taken := l.Agents[name]; taken {
		d.at(key, "an agent already has this name")
	}
	if len(l.MCPServers) > maxMCPServers {
		d.at("mcpServers", fmt.Sprintf("more than %d servers", maxMCPServers))
	}
	switch {
	case s.Disabled:
		return
	case (s.Command == "") == (s.URL == ""):
		d.at(key, "expected either command or url")
	case s.Command != "" && (len(s.Headers) > 0 || s.TokenFile != ""):
		bad("command", "cannot be used with headers and tokenFile: they are for url")
	case s.URL != "" && (len(s.Args)+len(s.Env)+len(s.EnvAllow) > 0 || s.Cwd != ""):
		bad("url", "cannot be used with args, env, envAllow and cwd: they are for command")
	}
	if s.URL != "" {
		l.checkMCPAddress(bad, s)
	}
	if s.CallTimeout != 0 && (s.CallTimeout < time.Second || s.CallTimeout > 24*time.Hour) {
		bad("callTimeout", "must be from 1s to 24h")
	}
	for _, env := range slices.Sorted(maps.Keys(s.Env)) {
		if env == "" || strings.ContainsAny(env, "=\x00") || strings.ContainsRune(s.Env[env], 0) {
			bad("env."+env, "is not a valid environment variable")
		}
	}
	for i, id := range s.Agents {
		if _, known := l.Agents[id]; !known {
			bad(fmt.Sprintf("agents[%d]", i), "there is no agent %q", id)
		}
	}
}

func (l *Loaded) checkMCPAddress(bad func(field, format string, args ...any), s MCPServer) {
	u, err := url.Parse(s.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		bad("url", "expected a URL such as https://example.org/mcp")
		return
	case u.User != nil:
		bad("url", "holds credentials; use headers or tokenFile")
	case u.Scheme == "http" && !loopback(u.Hostname()) && len(s.Headers) > 0:
		bad("url", "would send the headers over the network unencrypted; use https")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(s.Headers[name]) {
			bad("headers."+name, "is not a valid header")
		}
	}
}

// completeAgent checks one agent and sets its defaults.
func (l *Loaded) completeAgent(d *decoder, id string) {
	key, def := "agents."+id, l.Agents[id]
	if def.Disabled {
		return
	}
	whole, err := def.Complete()
	var re *runner.Error
	if errors.As(err, &re) && re.Subject != "" {
		field := key + "." + re.Subject
		if re.Subject == "id" {
			field = key
		}
		d.at(field, strings.TrimPrefix(re.Error(), re.Subject+": "))
		return
	}
	if err != nil {
		d.at(key, err.Error())
		return
	}
	l.Agents[id] = whole
	if w := whole.WorkDir; w.Path != "" && !l.allowed(w.Path) {
		d.at(key+".workdir.path", fmt.Sprintf("%s is not below workdirs.roots %q: add a directory there", w.Path, l.WorkDirs.Roots))
	}
}

// allowed reports whether a directory is below a root or one of the hub's own, after it has followed symbolic links.
func (l *Loaded) allowed(path string) bool {
	return NewTrust(l.DataDir).Owns(path) ||
		slices.ContainsFunc(l.WorkDirs.Roots, func(root string) bool { return within(path, root) })
}

func within(path, root string) bool {
	return below(realPath(path), realPath(root))
}

// realPath follows symbolic links in the existing part of path.
func realPath(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	dir := filepath.Dir(path)
	if dir == path {
		return path
	}
	return filepath.Join(realPath(dir), filepath.Base(path))
}

// oneOf checks that value is allowed or empty, which means the default.
func (d *decoder) oneOf(key, value string, allowed []string) {
	if value == "" || slices.Contains(allowed, value) {
		return
	}
	message := fmt.Sprintf("%q is not one of %s", value, strings.Join(allowed, ", "))
	if near := text.Nearest(value, allowed); near != "" {
		message += "; did you mean " + near + "?"
	}
	d.at(key, message)
}

func (d *decoder) port(key string, port int) {
	if port < 0 || port > 65535 {
		d.at(key, fmt.Sprintf("%d is not a port; expected 0 to 65535", port))
	}
}

func (d *decoder) duration(key string, dur, least time.Duration) {
	if dur < least {
		d.at(key, fmt.Sprintf("%s is too short; expected at least %s", dur, least))
	}
}

func (l *Loaded) checkPeers(d *decoder) {
	if l.Peers.Enabled && l.Bus.URL == "" && l.Peers.NATS.URL == "" && !l.Peers.Hyperswarm.Enabled {
		d.at("peers.enabled", "hubs connect over a shared NATS server or over Hyperswarm: set peers.nats.url, bus.url or peers.hyperswarm.enabled")
	}
	d.natsServer("peers.nats", "nats://host:4222", "needs peers.nats.url; bus has its own credentials",
		l.Peers.NATS.URL, l.Peers.NATS.NATSLogin, clientSchemes...)
	l.checkHyperswarm(d)
	if !natslink.ValidPrefix(l.Peers.Prefix) {
		d.at("peers.prefix", "expected one to eight words of letters, digits, - and _, with dots between")
	}
	for i, name := range l.Peers.Tools {
		if name == "" || len(name) > agent.MaxIDLength {
			d.at(fmt.Sprintf("peers.tools[%d]", i), `expected the name of one of mcpServers, the id of an agent, or "*"`)
		}
	}
	if l.Peers.PeerTier < 0 || l.Peers.PeerTier > 3 {
		d.at("peers.peerTier", fmt.Sprintf("expected a tier from 0 to 3, not %d", l.Peers.PeerTier))
	}
}

func (l *Loaded) checkHyperswarm(d *decoder) {
	h := l.Peers.Hyperswarm
	if _, err := h.ListenAddr(); err != nil {
		d.at("peers.hyperswarm.listen", err.Error())
	}
	if _, err := h.PublicAddr(); err != nil {
		d.at("peers.hyperswarm.public", err.Error())
	}
	if err := dhtrpc.CheckBootstrap(h.Bootstrap); err != nil {
		d.at("peers.hyperswarm.bootstrap", err.Error())
	}
	if _, err := h.RelayKeys(); err != nil {
		d.at("peers.hyperswarm.relays", err.Error())
	}
	if h.Relay && h.Public == "" {
		d.at("peers.hyperswarm.relay", "a relay must be reachable by all: set peers.hyperswarm.public")
	}
	if h.Capabilities && h.Network == "" {
		d.at("peers.hyperswarm.capabilities", "the topics of capabilities are derived from the network's secret: set peers.hyperswarm.networkFile")
	}
	if h.Network != "" && len(h.Network) < minNetwork {
		d.at("peers.hyperswarm.network", fmt.Sprintf("a secret of %d characters can be guessed; use %d or more", len(h.Network), minNetwork))
	}
}

// minNetwork is the minimum length of a network's secret.
const minNetwork = 16

// ListenAddr returns the address to listen on; the zero value means that Public determines it.
func (h Hyperswarm) ListenAddr() (netip.AddrPort, error) {
	if h.Listen == "" {
		return netip.AddrPort{}, nil
	}
	a, err := netip.ParseAddrPort(h.Listen)
	if err != nil || !a.Addr().Is4() {
		return netip.AddrPort{}, fmt.Errorf("%q is not an IPv4 address and port, such as 0.0.0.0:49737", h.Listen)
	}
	return a, nil
}

// PublicAddr returns the public address of this hub, the zero value without one.
func (h Hyperswarm) PublicAddr() (netip.AddrPort, error) {
	if h.Public == "" {
		return netip.AddrPort{}, nil
	}
	a, err := netip.ParseAddrPort(h.Public)
	if err != nil || !a.Addr().Is4() || a.Addr().IsUnspecified() || a.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is not an IPv4 address and port that others can reach, such as 203.0.113.7:49737", h.Public)
	}
	return a, nil
}

// RelayKeys returns the keys of the relays.
func (h Hyperswarm) RelayKeys() ([]identity.PublicKey, error) {
	var all []identity.PublicKey
	for _, text := range h.Relays {
		key, err := identity.ParsePublicKey(text)
		if err != nil {
			return nil, fmt.Errorf("%.100q is not a key: %w", text, err)
		}
		all = append(all, key)
	}
	return all, nil
}
