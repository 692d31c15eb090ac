// Package toolbox lets agents share tools, resources and prompts over the Model Context Protocol (MCP).
//
// A [Box] holds what the agents of a process offer. Each agent has a [Provider], whose
// name qualifies its tools, for instance "venus.lint":
//
//	box := toolbox.New(toolbox.Options{})
//	venus, err := box.Provider("venus")
//	err = venus.AddTool(tool, handler)
//	result, err := box.Call(ctx, "mars", "venus.lint", arguments, nil)
//
// [Box.Serve] keeps an MCP server equal to an agent's view of the box, so its clients are notified of changes.
// [Box.Mount] adds the tools of another MCP server, which may be a local program, a remote server, or an agent at
// the other end of a channel (see [Over]), and keeps the connection.
//
// [Options.Policy] decides which agents' tools an agent sees and may call; a router permits the agents that it may
// address. What an agent may not see does not exist for it, and its call is a security event. Arguments and results are checked against the schemas of
// the tool. A failed call returns an [Error] with a code, a message and the agent that offers the tool; each call is
// counted and recorded.
package toolbox

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/telemetry"
)

// Defaults and limits.
const (
	DefaultMaxEntries = 10_000   // tools, resources, templates and prompts, of all agents
	MaxArguments      = 1 << 20  // bytes of JSON
	MaxName           = 128      // bytes of a qualified name
	MaxDescription    = 64 << 10 // bytes
	MaxSchema         = 256 << 10
	MaxURI            = 4 << 10 // bytes of a resource's URI, and of a template of URIs
)

// Policy decides which agents' tools an agent may see and call, as a router.Router does.
type Policy interface {
	// Permit returns nil if agent from may address agent to.
	Permit(from, to string) error
}

// Options set up a Box. The zero Options are valid.
type Options struct {
	// Policy decides for each calling agent; nil permits everything. The caller "", the
	// user of the process, may call everything.
	Policy Policy
	// Telemetry gets an event of each call; nil: none.
	Telemetry *telemetry.Recorder
	// Record is called after each call, with its arguments and result. It must not block; nil: no records.
	Record     func(telemetry.Invocation)
	MaxEntries int              // of the box; 0 means DefaultMaxEntries
	Now        func() time.Time // nil means time.Now
}

// Box holds the tools, resources and prompts that agents share. It is safe for concurrent use.
type Box struct {
	o Options

	mu        sync.RWMutex
	providers map[string]*Provider
	created   int // providers, so far
	offers    offers
	views     map[*view]struct{} // MCP servers that show the box
}

// kind is what an offer is.
type kind int

const (
	kindTool kind = iota
	kindResource
	kindTemplate
	kindPrompt
	kinds // how many there are
)

// offer is a tool, resource, template or prompt. It does not change.
type offer interface{ base() *entry }

// entry is what all offers have.
type entry struct {
	*Provider
	kind  kind
	key   string // the qualified name, the URI or the URI template
	shown any    // in lists: a *mcp.Tool, *mcp.Resource, *mcp.ResourceTemplate or *mcp.Prompt
	from  string // the agent in lists
}

func (e *entry) base() *entry { return e }

// offers are offers by kind and key.
type offers [kinds]map[string]offer

func newOffers() (all offers) {
	for k := range all {
		all[k] = make(map[string]offer)
	}
	return all
}

// New returns an empty box.
func New(o Options) *Box {
	defaults.Set(&o.MaxEntries, DefaultMaxEntries)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Box{o: o, providers: make(map[string]*Provider), offers: newOffers(), views: make(map[*view]struct{})}
}

// permit returns nil if a caller may see what an agent offers.
func (b *Box) permit(caller, owner string) error {
	if caller == "" || caller == owner || b.o.Policy == nil {
		return nil
	}
	err := error(errPolicy)
	b.protect("Options.Policy", func() { err = b.o.Policy.Permit(caller, owner) })
	return err
}

var errPolicy = errorf(CodeRefused, "", "", "the policy cannot decide")

// protect calls a function of the application. Its panic is an error event.
func (b *Box) protect(whose string, f func()) {
	if p := fault.Catch(f); p != nil {
		b.o.Telemetry.Emit(telemetry.Panicked(whose+" of the toolbox", p))
	}
}

// refuse records that a caller wanted what it may not see. For the caller it does not exist.
func (b *Box) refuse(caller string, e *entry, why error) {
	event := telemetry.Event{Type: telemetry.Security, Sender: caller, Recipient: e.id, Target: e.id, SourceAgent: e.from,
		Code: cmp.Or(fault.TextOf(why), string(CodeRefused)), Detail: fmt.Sprintf("%q may not use %s of %q: %v", caller, e.key, e.id, why)}
	if e.kind == kindTool {
		event.ToolName = e.key
	}
	b.o.Telemetry.Emit(event)
}

// change makes a change and updates the views.
func (b *Box) change(do func() error) error {
	b.mu.Lock()
	err := do()
	views := slices.Collect(maps.Keys(b.views))
	b.mu.Unlock()
	if err != nil {
		return err
	}
	for _, v := range views {
		v.sync()
	}
	return nil
}

// Refresh updates every MCP server that shows the box. Call it after a change of the
// policy or of the cards that it uses.
func (b *Box) Refresh() {
	_ = b.change(func() error { return nil }) // it cannot fail
}

// visible lists the offers of a kind that a caller may see, by key.
func (b *Box) visible(caller string, k kind) []offer {
	b.mu.RLock()
	if len(b.offers[k]) == 0 { // as mostly; every connection asks at every change
		b.mu.RUnlock()
		return nil
	}
	all := make([]offer, 0, len(b.offers[k]))
	for _, key := range slices.Sorted(maps.Keys(b.offers[k])) {
		all = append(all, b.offers[k][key])
	}
	b.mu.RUnlock()
	permitted := make(map[string]bool) // by owner
	return slices.DeleteFunc(all, func(o offer) bool {
		id := o.base().id
		ok, asked := permitted[id]
		if !asked {
			ok = b.permit(caller, id) == nil
			permitted[id] = ok
		}
		return !ok
	})
}

// listed is visible, converted for the caller: what is shown, and the agent.
func listed[S, T any](b *Box, caller string, k kind, convert func(shown S, from string) T) []T {
	all := b.visible(caller, k)
	list := make([]T, len(all))
	for i, o := range all {
		list[i] = convert(o.base().shown.(S), o.base().from)
	}
	return list
}

// find returns the offer of a key, nil if the caller may not see it; hidden is the offer in that case, and the refusal
// is recorded.
func (b *Box) find(caller string, k kind, key string) (o, hidden offer) {
	b.mu.RLock()
	o = b.offers[k][key]
	b.mu.RUnlock()
	if o == nil {
		return nil, nil
	}
	if why := b.permit(caller, o.base().id); why != nil {
		b.refuse(caller, o.base(), why)
		return nil, o
	}
	return o, nil
}
