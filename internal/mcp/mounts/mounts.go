// Package mounts fills the hub's toolbox: the tools, resources and prompts that its agents share. They come from the MCP
// servers of the configuration and from agents of other processes that speak MCP over envelopes.
//
// Each server is connected in the background and reconnected when it fails, independently of the others. The rules of
// tiers and sandboxes decide what an agent can see; for the servers of the configuration, config.MCPServer.Agents does.
package mounts

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/toolbox"
)

// Options configure [Tools]. Node is required.
type Options struct {
	// Node provides the cards of the agents, the rules and the telemetry.
	Node *parley.Node
	// Servers are the MCP servers of the configuration, by name.
	Servers map[string]config.MCPServer
	// Shared names the Servers and remote agents whose tools paired hubs may use; "*" means all.
	Shared []string
	// Dir is the working directory of programs without a configured one.
	Dir string
	// Owner marks the processes: see process.SweepOwner.
	Owner string
	// Record is called after each call of a tool with its record, in which secrets are redacted and long arguments and
	// results are cut. It must not block; nil: no records.
	Record func(telemetry.Invocation)
	// Secrets are texts that must not be in records, besides those of the environment.
	Secrets []string
	Logger  *slog.Logger // nil discards

	timeout time.Duration // of an attempt to connect; 0 for the toolbox's default
}

// The kinds of a Status.
const (
	KindCommand = "command"
	KindURL     = "url"
	KindAgent   = "agent"
	KindPeer    = "peer" // at another hub
)

// Status is the state of one server.
type Status struct {
	Name, Kind string
	toolbox.MountStatus
	// Why is why the server is not connected, without secrets; "" if it is.
	Why string
}

// Tools is the hub's toolbox. It is safe for concurrent use. Close ends it.
type Tools struct {
	o      Options
	box    *toolbox.Box
	cancel context.CancelFunc
	watch  sync.WaitGroup
	leave  func() // withdraws the toolbox's card; nil without one

	mu      sync.Mutex
	mounted map[string]*mounted // by name
	peers   []string            // see Reserve
}

// mounted is a server in the box.
type mounted struct {
	*toolbox.Mount
	kind    string
	as      agent.Identity // of a remote agent or one at another hub
	redact  func(string) string
	refused atomic.Bool // a server at a URL has answered HTTP 401 or 403
}

// Open returns Tools whose servers are connected in the background.
func Open(o Options) *Tools {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	t := &Tools{o: o, mounted: make(map[string]*mounted)}
	t.box = toolbox.New(toolbox.Options{Policy: t, Telemetry: o.Node.Telemetry(), Record: t.recorder()})
	for _, name := range slices.Sorted(maps.Keys(o.Servers)) {
		if server := o.Servers[name]; !server.Disabled {
			t.mountServer(name, server)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	var err error
	if t.leave, err = t.join(); err != nil {
		o.Logger.Error("remote agents cannot offer tools", "error", err)
		return t
	}
	watcher := o.Node.Registry().Watch()
	t.watch.Go(func() {
		defer watcher.Close()
		t.follow(ctx, watcher)
	})
	return t
}

// Box returns the toolbox.
func (t *Tools) Box() *toolbox.Box { return t.box }

// Permit implements toolbox.Policy: it returns nil if an agent may use the tools of another agent or an MCP server.
func (t *Tools) Permit(from, to string) error {
	t.mu.Lock()
	m := t.mounted[to]
	t.mu.Unlock()
	atPeer := m != nil && m.kind == KindPeer
	if _, _, peer := signedcard.ParseID(from); peer { // another hub: no agent of this one has such an id
		if m == nil || atPeer || !t.shares(to) {
			return fmt.Errorf("peers.tools does not list %s for %s", to, from)
		}
		return nil // the envelopes of its request have passed the rules of tiers and sandboxes
	}
	server, configured := t.o.Servers[to]
	if !configured && !atPeer {
		return t.o.Node.Router().Permit(from, to)
	}
	who, known := t.o.Node.Registry().Identity(from)
	if atPeer {
		if !known {
			return errUnknownAgent(from)
		}
		return t.o.Node.Router().MayAddress(who, m.as)
	}
	if len(server.Agents) > 0 {
		if slices.Contains(server.Agents, from) {
			return nil
		}
		return fmt.Errorf("mcpServers.%s.agents does not list %s", to, from)
	}
	switch {
	case !known:
		return errUnknownAgent(from)
	case who.SandboxID != "":
		return fmt.Errorf("%s is in the sandbox %s: mcpServers.%s.agents must list it", from, who.SandboxID, to)
	}
	return nil
}

func errUnknownAgent(id string) error { return fmt.Errorf("there is no agent %q", id) }

// Status returns the states of the servers, sorted by name.
func (t *Tools) Status() []Status {
	t.mu.Lock()
	all := maps.Clone(t.mounted)
	t.mu.Unlock()
	list := make([]Status, 0, len(all))
	for name, m := range all {
		s := Status{Name: name, Kind: m.kind, MountStatus: m.Mount.Status()}
		if s.Problem != nil {
			s.Why = m.redact(problem(s.Problem))
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// maxProblem bounds the text of a problem, in bytes: it may come from a server.
const maxProblem = 2 << 10

func problem(err error) string { return text.Clip(err.Error(), maxProblem) }

// Close disconnects the servers, ends their processes and waits for their end.
func (t *Tools) Close() {
	t.cancel()
	t.watch.Wait()
	t.mu.Lock()
	all := t.mounted
	t.mounted = nil
	t.mu.Unlock()
	var closing sync.WaitGroup
	for _, m := range all {
		closing.Go(m.Close)
	}
	closing.Wait()
	if t.leave != nil {
		t.leave()
	}
}

func (t *Tools) mountServer(name string, server config.MCPServer) {
	m := &mounted{kind: KindCommand}
	dial := t.program(name, server)
	env := environ(server)
	if server.URL != "" {
		m.kind, dial = KindURL, overHTTP(server, &m.refused)
		env = nil
		for header, value := range server.Headers {
			env = append(env, "SECRET_"+header+"="+value) // the name marks it as a secret
		}
	}
	m.redact = process.NewRedactor(env).Redact
	if err := t.mount(m, toolbox.MountOptions{Name: name, Dial: dial, DialTimeout: t.o.timeout, CallTimeout: server.CallTimeout}); err != nil {
		t.o.Logger.Error("an MCP server of the configuration cannot be mounted", "server", name, "error", err)
	}
}

func (t *Tools) mount(m *mounted, o toolbox.MountOptions) error {
	o.Logger = slog.New(redacting{t.o.Logger.Handler(), m.redact})
	mount, err := t.box.Mount(o)
	if err != nil {
		return err
	}
	m.Mount = mount
	t.mu.Lock()
	t.mounted[o.Name] = m
	t.mu.Unlock()
	return nil
}

// redacting removes secrets from the errors that a mount logs.
type redacting struct {
	slog.Handler
	redact func(string) string
}

func (h redacting) Handle(ctx context.Context, r slog.Record) error {
	clean := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.StringValue(h.redact(problem(err)))
		}
		clean.AddAttrs(a)
		return true
	})
	return h.Handler.Handle(ctx, clean)
}

// speaksMCP reports whether a card declares MCP over envelopes.
func speaksMCP(card agent.Card) bool {
	return slices.ContainsFunc(card.Protocols, func(p string) bool { return len(p) > 4 && p[:4] == "mcp/" })
}

// errClosed is the error of pending calls; the toolbox reports the server as unavailable.
var errClosed = fmt.Errorf("the process has ended: %w", mcp.ErrConnectionClosed)
