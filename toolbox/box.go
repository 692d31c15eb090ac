package toolbox

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

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

// Policy decides whose tools an agent may see and call. A router.Router is one.
type Policy interface {
	// Permit returns nil if agent from may address agent to.
	Permit(from, to string) error
}

// Options set up a Box. The zero Options are good.
type Options struct {
	// Policy is asked for each agent that calls; nil permits everything. The
	// caller "", the user of the process, may call everything.
	Policy Policy
	// Telemetry gets an event of each call; nil: nobody does.
	Telemetry *telemetry.Recorder
	// Record gets the record of each call, arguments and result included, after
	// the call. It must not block; nil: nobody does.
	Record func(telemetry.Invocation)
	// MaxEntries bounds what the box holds; 0 means DefaultMaxEntries.
	MaxEntries int
	Now        func() time.Time // nil means time.Now
}

// Box is the tools, resources and prompts that agents share. It is safe for
// concurrent use.
type Box struct {
	o Options

	mu        sync.RWMutex
	providers map[string]*Provider
	came      int                  // providers, so far
	tools     map[string]*tool     // by qualified name
	resources map[string]*resource // by URI
	templates map[string]*template // by URI template
	prompts   map[string]*prompt   // by qualified name
	faces     map[*face]struct{}   // MCP servers that show the box
}

// New returns an empty box.
func New(o Options) *Box {
	if o.MaxEntries <= 0 {
		o.MaxEntries = DefaultMaxEntries
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Box{
		o: o, providers: make(map[string]*Provider), tools: make(map[string]*tool), resources: make(map[string]*resource),
		templates: make(map[string]*template), prompts: make(map[string]*prompt), faces: make(map[*face]struct{}),
	}
}

// permits reports whether a caller may see what an agent offers.
func (b *Box) permits(caller, owner string) bool {
	return caller == "" || caller == owner || b.o.Policy == nil || b.o.Policy.Permit(caller, owner) == nil
}

// change makes a change and shows it to those who look.
func (b *Box) change(do func() error) error {
	b.mu.Lock()
	err := do()
	faces := slices.Collect(maps.Keys(b.faces))
	b.mu.Unlock()
	if err != nil {
		return err
	}
	for _, f := range faces {
		f.sync()
	}
	return nil
}

// Refresh shows every MCP server anew what its agent may see. Call it after a
// change of the policy, or of the cards that it goes by.
func (b *Box) Refresh() {
	_ = b.change(func() error { return nil }) // it cannot fail
}

// room returns an error if n more entries are too many. b.mu is held.
func (b *Box) room(n int, name, owner string) error {
	if len(b.tools)+len(b.resources)+len(b.templates)+len(b.prompts)+n <= b.o.MaxEntries {
		return nil
	}
	return errorf(CodeFull, name, owner, "the toolbox is full: it holds at most %d tools, resources and prompts", b.o.MaxEntries)
}

// owned is anything that an agent offers.
type owned interface{ owner() *Provider }

// visible lists what a caller may see of m, in the order of the keys.
func visible[K cmp.Ordered, V owned](b *Box, caller string, m map[K]V) []V {
	b.mu.RLock()
	keys := slices.Sorted(maps.Keys(m))
	all := make([]V, 0, len(keys))
	for _, k := range keys {
		all = append(all, m[k])
	}
	b.mu.RUnlock()
	permitted := make(map[string]bool) // one question for each agent
	return slices.DeleteFunc(all, func(v V) bool {
		id := v.owner().id
		ok, asked := permitted[id]
		if !asked {
			ok = b.permits(caller, id)
			permitted[id] = ok
		}
		return !ok
	})
}

// find returns what a caller may see under a key.
func find[K comparable, V owned](b *Box, caller string, m map[K]V, key K) (V, bool) {
	b.mu.RLock()
	v, ok := m[key]
	b.mu.RUnlock()
	if !ok || !b.permits(caller, v.owner().id) {
		var none V
		return none, false
	}
	return v, true
}
