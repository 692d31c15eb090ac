package toolbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Limits of a mount.
const (
	MaxMounted         = 1000    // tools, resources, templates and prompts of one server, each
	MaxCatalog         = 8 << 20 // bytes of JSON that describe them, together
	DefaultDialTimeout = 30 * time.Second
	DefaultMaxRedial   = time.Minute // between two attempts
	// DefaultCallTimeout is how long a call may last without an answer or progress.
	DefaultCallTimeout = 10 * time.Minute
	// steady is how long a connection must last to reset the backoff, so that a server
	// that dies when it is used is not restarted every second.
	steady = 30 * time.Second
	// refreshPause is the minimum interval between two reads of a server's lists.
	refreshPause = time.Second
)

// MountOptions select an MCP server to mount.
type MountOptions struct {
	Name   string // the id of the provider, which qualifies the names of the tools
	Source string // the agent in errors and records; "" means Name
	AsIs   bool   // keeps the server's names: those of another box are qualified already
	// Dial returns a new transport to the server, for instance an mcp.CommandTransport, an
	// mcp.StreamableClientTransport or [Over]. ctx ends with the attempt, not with the connection.
	Dial        func(ctx context.Context) (mcp.Transport, error)
	DialTimeout time.Duration // of an attempt, including the lists of tools; 0 means DefaultDialTimeout
	// CallTimeout bounds how long a call, a read or a prompt may last without an answer or progress; 0 means
	// DefaultCallTimeout. After it, the call is canceled at the server and fails with CodeTimeout.
	CallTimeout time.Duration
	MaxRedial   time.Duration // maximum backoff between two attempts; 0 means DefaultMaxRedial
	// Patience is how long after the loss of the connection calls wait for the next one; 0 means that they fail at once.
	Patience time.Duration
	// Changed is called when the server has been connected, with its tools in the box, and when the connection is lost.
	// It must not block. Nil means no function.
	Changed func(connected bool)
	// Revision is the newest revision of the protocol that the client asks for; "" means the newest of the SDK.
	Revision string
	// Meta returns additional entries of the _meta of each tool call. It must not block. Nil means no entries.
	Meta   func() map[string]any
	Logger *slog.Logger // nil discards
}

// Mount is an MCP server whose tools, resources and prompts are in a box. It reconnects when the connection breaks;
// until then its tools stay listed, and their calls fail with CodeUnavailable. It is safe for concurrent use.
type Mount struct {
	o        MountOptions
	provider *Provider
	ctx      context.Context // ends when Close begins
	cancel   context.CancelFunc
	done     chan struct{}
	changed  chan struct{} // the server has changed its lists
	doubt    chan struct{} // a call did not reach the server
	tried    chan struct{} // closed after the first attempt
	reported map[string]bool

	calls    sync.Map // func(Progress) by progress token
	lastCall atomic.Int64

	mu      sync.Mutex
	status  MountStatus
	session *session      // nil while there is none
	ready   chan struct{} // closed while there is a session
}

// MountStatus is the status of a mount, with the number of its entries in the box.
type MountStatus struct {
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	Problem   error     `json:"-"` // why it is not connected
	Tools     int       `json:"tools"`
	Resources int       `json:"resources"`
	Templates int       `json:"templates"`
	Prompts   int       `json:"prompts"`
	Skipped   int       `json:"skipped"` // entries that could not be added
}

var errConnecting = errors.New("the server is not connected yet")

// Mount starts to mount an MCP server and returns at once. Errors are [*Error]s, for
// instance for a duplicate name. [Mount.Close] ends it.
func (b *Box) Mount(o MountOptions) (*Mount, error) {
	if o.Dial == nil {
		return nil, errorf(CodeInvalid, o.Name, "", "the server %q cannot be mounted: MountOptions.Dial is nil", o.Name)
	}
	p, err := b.Provider(o.Name)
	if err != nil {
		return nil, err
	}
	defaults.Set(&o.DialTimeout, DefaultDialTimeout)
	defaults.Set(&o.MaxRedial, DefaultMaxRedial)
	defaults.Set(&o.CallTimeout, DefaultCallTimeout)
	p.asIs, p.foreign = o.AsIs, true
	p.source = cmp.Or(o.Source, p.source)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &Mount{
		o: o, provider: p, ctx: ctx, cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}, 1), doubt: make(chan struct{}, 1), tried: make(chan struct{}),
		status: MountStatus{Since: b.o.Now(), Problem: errConnecting}, ready: make(chan struct{}), reported: make(map[string]bool),
	}
	go m.run(ctx)
	return m, nil
}

// Close disconnects, removes the server's tools from the box and waits for the end.
// Running calls fail with CodeClosed. It is safe to call more than once.
func (m *Mount) Close() {
	m.cancel()
	<-m.done
}

// Tried is closed after the first attempt: if it succeeded, the box has the server's tools.
func (m *Mount) Tried() <-chan struct{} { return m.tried }

// Status returns without blocking.
func (m *Mount) Status() MountStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}

// run keeps the connection until ctx ends.
func (m *Mount) run(ctx context.Context) {
	defer close(m.done)
	defer m.provider.Close()
	retry := wait.Backoff{First: time.Second, Most: m.o.MaxRedial, Jitter: 0.5}
	first := true
	for ctx.Err() == nil {
		session, err := m.dial(ctx)
		if err != nil && ctx.Err() == nil {
			m.lost(err)
		}
		if first {
			first = false
			close(m.tried)
		}
		if err == nil {
			began := time.Now()
			if err = m.serve(ctx, session); ctx.Err() == nil {
				m.lost(err)
			}
			if time.Since(began) >= steady {
				retry.Reset()
			}
		}
		retry.Pause(ctx)
	}
}

// dial connects and loads the server's lists.
func (m *Mount) dial(ctx context.Context) (*session, error) {
	dialing, cancel := context.WithTimeout(ctx, m.o.DialTimeout)
	defer cancel()
	var transport mcp.Transport
	err := errors.New("the server's Dial panicked")
	m.provider.box.protect("MountOptions.Dial", func() { transport, err = m.o.Dial(dialing) })
	if err != nil {
		return nil, err
	}
	signal := func() { wait.Nudge(m.changed) }
	client := mcp.NewClient(clientInfo, &mcp.ClientOptions{
		Capabilities:                &mcp.ClientCapabilities{}, // none: a mounted server may send no requests
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { signal() },
		ResourceListChangedHandler:  func(context.Context, *mcp.ResourceListChangedRequest) { signal() },
		PromptListChangedHandler:    func(context.Context, *mcp.PromptListChangedRequest) { signal() },
		ProgressNotificationHandler: m.progress,
	})
	connected, err := client.Connect(dialing, transport, &mcp.ClientSessionOptions{ProtocolVersion: m.o.Revision})
	if err != nil {
		return nil, err
	}
	session := newSession(connected, transport)
	if err := m.load(dialing, session); err != nil {
		_ = session.Close() // the first error counts
		return nil, err
	}
	return session, nil
}

// serve keeps a connection until it breaks or ctx ends.
func (m *Mount) serve(ctx context.Context, session *session) error {
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	changed := m.changed
	var rested <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			err := session.Close()
			<-ended
			return err
		case err := <-ended:
			_ = session.Close() // releases what is left
			if err == nil {
				err = mcp.ErrConnectionClosed
			}
			return err
		case <-m.doubt:
			// Over HTTP the client does not notice that a restarted server has forgotten the connection. Closing it
			// ends running calls, so the server must fail to answer first.
			if err := m.refresh(ctx, session); err != nil {
				_ = session.Close() // the first error counts
				<-ended
				return err
			}
		case <-rested:
			changed, rested = m.changed, nil
		case <-changed:
			changed, rested = nil, time.After(refreshPause)
			// After an error the old lists stay.
			if err := m.refresh(ctx, session); err != nil && ctx.Err() == nil {
				m.o.Logger.Warn("the lists of a mounted MCP server cannot be read again", "server", m.o.Name, "error", err)
			}
		}
	}
}

// refresh reads the server's lists again.
func (m *Mount) refresh(ctx context.Context, session *session) error {
	ctx, cancel := context.WithTimeout(ctx, m.o.DialTimeout)
	defer cancel()
	return m.load(ctx, session)
}

func (m *Mount) lost(err error) {
	m.mu.Lock()
	was := m.status.Connected
	if m.session != nil {
		m.session, m.ready = nil, make(chan struct{})
	}
	m.status.Connected, m.status.Problem = false, err
	if was {
		m.status.Since = m.provider.box.o.Now()
	}
	m.mu.Unlock()
	if was {
		m.report(false)
	}
	m.o.Logger.Warn("a mounted MCP server cannot be reached; retrying", "server", m.o.Name, "error", err)
}

// report tells the application that the connection has begun or ended.
func (m *Mount) report(connected bool) {
	if m.o.Changed != nil {
		m.provider.box.protect("MountOptions.Changed", func() { m.o.Changed(connected) })
	}
}

// catalog is what a server has, converted for the box.
type catalog struct {
	offers  []offer
	skipped int
	size    int // bytes of JSON
}

// load replaces the provider's entries by what the server has now.
func (m *Mount) load(ctx context.Context, session *session) error {
	t, err := m.read(ctx, session)
	if err != nil {
		return err
	}
	// First, since its tools may be called once they are listed.
	m.mu.Lock()
	if m.session == nil {
		close(m.ready)
	}
	m.session = session
	m.mu.Unlock()
	b, p := m.provider.box, m.provider
	var added [kinds]int
	err = b.change(func() error {
		if p.closed {
			return errorf(CodeClosed, "", p.id, "agent %q has left", p.id)
		}
		before := p.clear()
		for _, o := range t.offers {
			e := o.base()
			if same := before[e.kind][e.key]; same != nil && reflect.DeepEqual(same.base().shown, e.shown) {
				o = same // unchanged, so that no client is notified
			}
			if err := p.enter(o); err != nil {
				m.skip(e.key, err)
				t.skipped++
				continue
			}
			added[e.kind]++
		}
		return nil
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	was, since := m.status.Connected, m.status.Since
	if !was {
		since = b.o.Now()
	}
	m.status = MountStatus{
		Connected: true, Since: since, Tools: added[kindTool], Resources: added[kindResource],
		Templates: added[kindTemplate], Prompts: added[kindPrompt], Skipped: t.skipped,
	}
	m.mu.Unlock()
	if !was {
		m.report(true)
	}
	return nil
}

// maxReported bounds the log of skipped entries.
const maxReported = 100

// skip logs a skipped entry once. Only the goroutine of the mount calls it.
func (m *Mount) skip(what string, why error) {
	what = what[:min(len(what), MaxName)]
	if m.reported[what] || len(m.reported) >= maxReported {
		return
	}
	m.reported[what] = true
	m.o.Logger.Warn("an entry of a mounted MCP server is skipped", "server", m.o.Name, "name", what, "error", why)
}

// read reads the server's lists.
func (m *Mount) read(ctx context.Context, session *session) (*catalog, error) {
	t := new(catalog)
	has := session.InitializeResult().Capabilities
	if has == nil {
		return t, nil
	}
	var err error
	if has.Tools != nil {
		err = collect(m, t, session.Tools(ctx, nil), m.tool)
	}
	if err == nil && has.Resources != nil {
		err = collect(m, t, session.Resources(ctx, nil), m.resource)
	}
	if err == nil && has.Resources != nil {
		err = collect(m, t, session.ResourceTemplates(ctx, nil), m.template)
	}
	if err == nil && has.Prompts != nil {
		err = collect(m, t, session.Prompts(ctx, nil), m.prompt)
	}
	return t, err
}

var errNothing = errors.New("it is null")

var errCatalog = fmt.Errorf("the descriptions of the server's entries exceed %d MiB", MaxCatalog>>20)

// limit bounds the entries of each kind.
func (m *Mount) limit() int {
	if m.o.AsIs {
		return DefaultMaxEntries
	}
	return MaxMounted
}

// hasRoomFor returns an error if the description of one more entry is too large.
func (t *catalog) hasRoomFor(m *Mount, x any) error {
	if m.o.AsIs {
		return nil
	}
	data, err := json.Marshal(x)
	if t.size += len(data); err == nil && t.size > MaxCatalog {
		err = errCatalog
	}
	return err
}

// collect adds the offers of a list to t, at most [Mount.limit].
func collect[T any](m *Mount, t *catalog, list iter.Seq2[*T, error], make func(*T) (o offer, name string, err error)) error {
	seen := 0
	for x, err := range list {
		if err != nil {
			return err
		}
		if seen++; seen > m.limit() {
			m.o.Logger.Warn("a mounted MCP server has too many entries", "server", m.o.Name, "limit", m.limit())
			t.skipped++
			break
		}
		if x == nil { // "null" in the list
			m.skip("", errNothing)
			t.skipped++
			continue
		}
		o, name, err := make(x)
		if err == nil {
			err = t.hasRoomFor(m, x)
		}
		if err != nil {
			m.skip(name, err)
			t.skipped++
			continue
		}
		t.offers = append(t.offers, o)
	}
	return nil
}

func (m *Mount) tool(t *mcp.Tool) (offer, string, error) {
	name := t.Name
	made, err := m.provider.newTool(t, func(ctx context.Context, c *Call) (outcome, error) { return m.callTool(ctx, name, c) })
	return made, name, err
}

func (m *Mount) resource(r *mcp.Resource) (offer, string, error) {
	made, err := m.provider.newResource(r, m.readResource)
	return made, r.URI, err
}

func (m *Mount) template(t *mcp.ResourceTemplate) (offer, string, error) {
	made, err := m.provider.newTemplate(t, m.readResource)
	return made, t.URITemplate, err
}

func (m *Mount) prompt(x *mcp.Prompt) (offer, string, error) {
	name := x.Name
	made, err := m.provider.newPrompt(x, func(ctx context.Context, arguments map[string]string) (*mcp.GetPromptResult, error) {
		return ask(ctx, m, name, func(ctx context.Context, s *session, _ func()) (*mcp.GetPromptResult, error) {
			return s.GetPrompt(ctx, &mcp.GetPromptParams{Name: name, Arguments: arguments})
		})
	})
	return made, name, err
}

// codeNoResource is the code for an unknown resource in the revisions of the protocol
// before 2026-07-28; since then it is that of invalid params, and the URI is the only one.
const codeNoResource = -32002

func (m *Mount) readResource(ctx context.Context, uri string) (*mcp.ReadResourceResult, error) {
	return ask(ctx, m, uri, func(ctx context.Context, s *session, _ func()) (*mcp.ReadResourceResult, error) {
		result, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		if e, ok := errors.AsType[*jsonrpc.Error](err); ok && (e.Code == codeNoResource || e.Code == jsonrpc.CodeInvalidParams) {
			err = fmt.Errorf("%w: %s", ErrNoResource, uri)
		}
		return result, err
	})
}

func (m *Mount) callTool(ctx context.Context, name string, c *Call) (outcome, error) {
	meta := map[string]any{}
	if m.o.Meta != nil {
		maps.Copy(meta, m.o.Meta())
	}
	report, stop := latest(c.progress)
	defer stop()
	return ask(ctx, m, c.Tool, func(ctx context.Context, s *session, alive func()) (outcome, error) {
		// Always ask for progress: it distinguishes a working server from one that hangs.
		token := m.lastCall.Add(1)
		m.calls.Store(token, func(p Progress) {
			alive()
			report(p)
		})
		defer m.calls.Delete(token)
		meta["progressToken"] = token
		return s.call(ctx, name, c.Arguments, meta)
	})
}

// latest returns a function that passes the latest progress of a call on, so that a slow caller delays neither the
// server's other calls nor its own. to may be nil. stop waits for a report that is under way.
func latest(to func(Progress)) (report func(Progress), stop func()) {
	if to == nil {
		return func(Progress) {}, func() {}
	}
	next := make(chan Progress, 1)
	ended, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		for {
			select {
			case p := <-next:
				to(p)
			case <-ended:
				if len(next) > 0 {
					to(<-next)
				}
				return
			}
		}
	}()
	report = func(p Progress) {
		for {
			select {
			case next <- p:
				return
			case <-next: // replaced before it was reported
			}
		}
	}
	return report, func() { close(ended); <-done }
}

// The causes for which calls are canceled. The SDK waits for running calls before it disconnects.
var (
	errNoProgress = errors.New("the server neither answered nor reported progress")
	errUnmounted  = errors.New("the server is not mounted any more")
)

// ask sends a request to the server, if it is connected. It is canceled when the server
// neither answers nor reports progress, which f notes with alive, or is unmounted.
func ask[R any](ctx context.Context, m *Mount, name string,
	f func(ctx context.Context, s *session, alive func()) (R, error)) (R, error) {
	session, problem := m.connected(ctx)
	var none R
	if session == nil {
		return none, m.unavailable(name, problem)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.ctx, func() { cancel(errUnmounted) })()
	timeout := time.AfterFunc(m.o.CallTimeout, func() { cancel(errNoProgress) })
	defer timeout.Stop()
	result, err := f(ctx, session, func() { timeout.Reset(m.o.CallTimeout) })
	if err != nil && context.Cause(ctx) == errNoProgress {
		wait.Nudge(m.doubt)
		return none, failed(CodeTimeout, name, m.provider.source, errNoProgress,
			fmt.Sprintf("the MCP server %s has not answered within %s", m.o.Name, m.o.CallTimeout))
	}
	if err != nil && context.Cause(ctx) == errUnmounted {
		return none, failed(CodeClosed, name, m.provider.source, errUnmounted,
			fmt.Sprintf("the MCP server %s has left", m.o.Name))
	}
	if undelivered(err) {
		wait.Nudge(m.doubt)
		return none, m.unavailable(name, err)
	}
	return result, err
}

// connected returns the session, or why there is none. It waits for one for as long after the loss of the last as the mount's
// patience lasts.
func (m *Mount) connected(ctx context.Context) (*session, error) {
	m.mu.Lock()
	session, ready, rest := m.session, m.ready, m.o.Patience-m.provider.box.o.Now().Sub(m.status.Since)
	m.mu.Unlock()
	if session == nil && rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-ready:
		case <-timer.C:
		case <-ctx.Done():
		case <-m.ctx.Done():
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.session, m.status.Problem
}

// errRejected is the SDK's error for a request that was not sent; it may wrap an error of the server.
var errRejected = &jsonrpc.Error{Code: -32005}

// undelivered reports whether an error means that the server cannot be reached, rather
// than that it refused the request.
func undelivered(err error) bool {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.Is(err, mcp.ErrConnectionClosed), errors.Is(err, errRejected):
		return true
	}
	_, answered := errors.AsType[*jsonrpc.Error](err)
	return !answered && !errors.Is(err, ErrNoResource)
}

func (m *Mount) unavailable(name string, why error) *Error {
	return failed(CodeUnavailable, name, m.provider.source, why,
		"the MCP server "+m.o.Name+" cannot be reached now; try the call again later")
}

func (m *Mount) progress(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
	token, _ := req.Params.ProgressToken.(float64) // as JSON has it
	if report, ok := m.calls.Load(int64(token)); ok {
		report.(func(Progress))(Progress{Done: req.Params.Progress, Total: req.Params.Total, Message: req.Params.Message})
	}
}
