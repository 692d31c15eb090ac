package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Limits of a mount.
const (
	MaxMounted         = 1000    // tools, resources, templates and prompts of one server, each
	MaxCatalog         = 8 << 20 // bytes of JSON that describe them, together
	DefaultDialTimeout = 30 * time.Second
	DefaultMaxRedial   = time.Minute // between two attempts
	// DefaultCallTimeout is how long a call may hear nothing of the server.
	DefaultCallTimeout = 10 * time.Minute
	// steady is how long a connection must have lasted for the next attempt to come
	// soon: a server that dies as soon as it is used is not begun again every second.
	steady = 30 * time.Second
	// refreshPause is the least time between two looks at what a server has: one that
	// never stops to tell of changes keeps nobody busy.
	refreshPause = time.Second
)

// MountOptions say which MCP server to take in.
type MountOptions struct {
	// Name is the id of the provider, and so the first part of the tools' names.
	Name string
	// Source is who offers the tools, for errors and records, where that is not Name.
	Source string
	// AsIs leaves the names as the server has them: it is another box, whose names
	// are qualified already.
	AsIs bool
	// Dial returns a new transport to the server: mcp.CommandTransport,
	// mcp.StreamableClientTransport or [Over], say. ctx ends when the attempt is
	// given up, not with the connection.
	Dial func(ctx context.Context) (mcp.Transport, error)
	// DialTimeout bounds an attempt, the lists of tools included; 0 means
	// DefaultDialTimeout.
	DialTimeout time.Duration
	// CallTimeout bounds how long a call, a read or a prompt may go without an answer or
	// progress; 0 means DefaultCallTimeout. What takes longer is canceled at the server
	// and fails with CodeTimeout.
	CallTimeout time.Duration
	// MaxRedial bounds the growing pause between two attempts; 0 means
	// DefaultMaxRedial.
	MaxRedial time.Duration
	Logger    *slog.Logger // nil discards
}

// Mount is an MCP server whose tools, resources and prompts stand in a box. Its
// connection is made again when it breaks; until then the calls of its tools, which
// stay listed, fail with CodeUnavailable. It is safe for concurrent use.
type Mount struct {
	o        MountOptions
	provider *Provider
	cancel   context.CancelFunc
	done     chan struct{}
	gone     <-chan struct{} // closed when Close begins
	changed  chan struct{}   // the server has changed its lists
	doubt    chan struct{}   // a call did not reach the server
	tried    chan struct{}   // closed after the first attempt
	told     map[string]bool

	mu       sync.Mutex
	status   MountStatus
	session  *mcp.ClientSession // nil while there is none
	calls    map[int64]func(Progress)
	lastCall int64
}

// MountStatus is how a mount is.
type MountStatus struct {
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	// Problem is why it is not connected.
	Problem error `json:"-"`
	// Tools, Resources, Templates and Prompts are how many stand in the box, Skipped
	// how many could not be taken in.
	Tools     int `json:"tools"`
	Resources int `json:"resources"`
	Templates int `json:"templates"`
	Prompts   int `json:"prompts"`
	Skipped   int `json:"skipped"`
}

var errConnecting = errors.New("the server is not connected yet")

// Mount begins to take in an MCP server and returns at once. Errors are [*Error]s,
// of a name that is taken say. [Mount.Close] ends it.
func (b *Box) Mount(o MountOptions) (*Mount, error) {
	p, err := b.Provider(o.Name)
	if err != nil {
		return nil, err
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = DefaultDialTimeout
	}
	if o.MaxRedial <= 0 {
		o.MaxRedial = DefaultMaxRedial
	}
	if o.CallTimeout <= 0 {
		o.CallTimeout = DefaultCallTimeout
	}
	p.asIs, p.foreign = o.AsIs, true
	if o.Source != "" {
		p.source = o.Source
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &Mount{
		o: o, provider: p, cancel: cancel, gone: ctx.Done(), done: make(chan struct{}), changed: make(chan struct{}, 1), doubt: make(chan struct{}, 1), tried: make(chan struct{}),
		status: MountStatus{Since: b.o.Now(), Problem: errConnecting}, calls: make(map[int64]func(Progress)), told: make(map[string]bool),
	}
	go m.run(ctx)
	return m, nil
}

// Close disconnects, takes the server's tools out of the box, and waits until all is
// released. Calls that run end with an error of CodeClosed. It is safe to call more than once.
func (m *Mount) Close() {
	m.cancel()
	<-m.done
}

// Tried is closed when the first attempt has ended, well or not: what the server has
// stands in the box then, if it could be reached.
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
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = min(time.Second, m.o.MaxRedial), m.o.MaxRedial
	first := true
	for ctx.Err() == nil {
		session, err := m.dial(ctx)
		// What came of it is noted before anybody hears that it has been tried.
		if err != nil && ctx.Err() == nil {
			m.lost(err)
		}
		if first {
			first = false
			close(m.tried)
		}
		if err == nil {
			began := time.Now()
			if err = m.attend(ctx, session); ctx.Err() == nil {
				m.lost(err)
			}
			if time.Since(began) >= steady {
				wait.Reset()
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait.NextBackOff()):
		}
	}
}

// dial connects and takes in what the server has.
func (m *Mount) dial(ctx context.Context) (*mcp.ClientSession, error) {
	dialing, cancel := context.WithTimeout(ctx, m.o.DialTimeout)
	defer cancel()
	transport, err := m.o.Dial(dialing)
	if err != nil {
		return nil, err
	}
	signal := func() { wake(m.changed) }
	client := mcp.NewClient(&mcp.Implementation{Name: "parley", Version: "1"}, &mcp.ClientOptions{
		Capabilities:                &mcp.ClientCapabilities{}, // none: a mounted server asks nothing of us
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { signal() },
		ResourceListChangedHandler:  func(context.Context, *mcp.ResourceListChangedRequest) { signal() },
		PromptListChangedHandler:    func(context.Context, *mcp.PromptListChangedRequest) { signal() },
		ProgressNotificationHandler: m.progress,
	})
	session, err := client.Connect(dialing, transport, nil)
	if err != nil {
		return nil, err
	}
	if err := m.take(dialing, session); err != nil {
		_ = session.Close() // the first error says it
		return nil, err
	}
	return session, nil
}

// wake has attend look; it does not block.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it will look anyway
	}
}

// attend serves a connection until it breaks or ctx ends.
func (m *Mount) attend(ctx context.Context, session *mcp.ClientSession) error {
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
			_ = session.Close() // it has ended: this releases what is left
			if err == nil {
				err = mcp.ErrConnectionClosed
			}
			return err
		case <-m.doubt:
			// Over HTTP a server that was restarted has forgotten the session, and the
			// connection does not notice. Calls that run would end with it: so it must
			// fail to answer, too.
			if err := m.refresh(ctx, session); err != nil {
				_ = session.Close() // the first error says it
				<-ended
				return err
			}
		case <-rested:
			changed, rested = m.changed, nil
		case <-changed:
			changed, rested = nil, time.After(refreshPause)
			// Where that fails, the old stays.
			if err := m.refresh(ctx, session); err != nil && ctx.Err() == nil {
				m.o.Logger.Warn("the lists of a mounted MCP server cannot be read again", "server", m.o.Name, "error", err)
			}
		}
	}
}

// refresh looks again at what the server has.
func (m *Mount) refresh(ctx context.Context, session *mcp.ClientSession) error {
	ctx, cancel := context.WithTimeout(ctx, m.o.DialTimeout)
	defer cancel()
	return m.take(ctx, session)
}

func (m *Mount) lost(err error) {
	m.mu.Lock()
	was := m.status.Connected
	m.session = nil
	m.status.Connected, m.status.Problem = false, err
	if was {
		m.status.Since = m.provider.box.o.Now()
	}
	m.mu.Unlock()
	m.o.Logger.Warn("a mounted MCP server cannot be reached; it is tried again", "server", m.o.Name, "error", err)
}

// taken is what a server has, as it stands in the box.
type taken struct {
	tools     []*tool
	resources []*resource
	templates []*template
	prompts   []*prompt
	skipped   int
	size      int // bytes of JSON
}

// take replaces the provider's entries by what the server has now.
func (m *Mount) take(ctx context.Context, session *mcp.ClientSession) error {
	t, err := m.read(ctx, session)
	if err != nil {
		return err
	}
	// Who sees its tools may call them at once.
	m.mu.Lock()
	m.session = session
	m.mu.Unlock()
	b, p := m.provider.box, m.provider
	err = b.change(func() error {
		if p.closed {
			return errorf(CodeClosed, "", p.id, "agent %q has left", p.id)
		}
		old := taken{tools: mine(b.tools, p), resources: mine(b.resources, p), templates: mine(b.templates, p), prompts: mine(b.prompts, p)}
		p.clear()
		t.skipped += enterAll(m, b.tools, old.tools, t.tools, func(x *tool) (string, any) { return x.shown.Name, x.shown })
		t.skipped += enterAll(m, b.resources, old.resources, t.resources, func(x *resource) (string, any) { return x.shown.URI, x.shown })
		t.skipped += enterAll(m, b.templates, old.templates, t.templates, func(x *template) (string, any) { return x.shown.URITemplate, x.shown })
		t.skipped += enterAll(m, b.prompts, old.prompts, t.prompts, func(x *prompt) (string, any) { return x.shown.Name, x.shown })
		t.tools, t.resources, t.templates, t.prompts = mine(b.tools, p), mine(b.resources, p), mine(b.templates, p), mine(b.prompts, p)
		return nil
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	since := m.status.Since
	if !m.status.Connected {
		since = b.o.Now()
	}
	m.status = MountStatus{
		Connected: true, Since: since, Tools: len(t.tools), Resources: len(t.resources),
		Templates: len(t.templates), Prompts: len(t.prompts), Skipped: t.skipped,
	}
	return nil
}

func mine[V owned](all map[string]V, p *Provider) []V {
	var list []V
	for _, v := range all {
		if v.owner() == p {
			list = append(list, v)
		}
	}
	return list
}

// enterAll enters what a server has. What has not changed stays the same entry, so
// that no session is told of a change. It returns how many do not fit.
func enterAll[V any](m *Mount, all map[string]V, old, now []V, describe func(V) (key string, shown any)) (skipped int) {
	before := make(map[string]V, len(old))
	for _, v := range old {
		key, _ := describe(v)
		before[key] = v
	}
	for _, v := range now {
		key, shown := describe(v)
		if same, was := before[key]; was {
			if _, as := describe(same); reflect.DeepEqual(as, shown) {
				v = same
			}
		}
		if err := enter(m.provider, all, key, v, CodeDuplicate); err != nil {
			m.skip(key, err)
			skipped++
		}
	}
	return skipped
}

// maxTold bounds the log of what is left out.
const maxTold = 100

// skip tells once of what is left out. Only the goroutine of the mount calls it.
func (m *Mount) skip(what string, why error) {
	what = what[:min(len(what), MaxName)]
	if m.told[what] || len(m.told) >= maxTold {
		return
	}
	m.told[what] = true
	m.o.Logger.Warn("something of a mounted MCP server is left out", "server", m.o.Name, "name", what, "error", why)
}

// read asks the server for everything that it says it has.
func (m *Mount) read(ctx context.Context, session *mcp.ClientSession) (*taken, error) {
	t := new(taken)
	has := session.InitializeResult().Capabilities
	if has == nil {
		return t, nil
	}
	var err error
	if has.Tools != nil {
		t.tools, err = collect(m, t, session.Tools(ctx, nil), m.tool)
	}
	if err == nil && has.Resources != nil {
		t.resources, err = collect(m, t, session.Resources(ctx, nil), m.resource)
	}
	if err == nil && has.Resources != nil {
		t.templates, err = collect(m, t, session.ResourceTemplates(ctx, nil), m.template)
	}
	if err == nil && has.Prompts != nil {
		t.prompts, err = collect(m, t, session.Prompts(ctx, nil), m.prompt)
	}
	return t, err
}

var errNothing = errors.New("it is null")

var errCatalog = fmt.Errorf("what the server has is described in more than %d MiB", MaxCatalog>>20)

// limit is how many entries of each kind are taken in: of another box, all.
func (m *Mount) limit() int {
	if m.o.AsIs {
		return DefaultMaxEntries
	}
	return MaxMounted
}

// describedIn reports whether there is room for what describes one more entry.
func (t *taken) describedIn(m *Mount, x any) error {
	if m.o.AsIs {
		return nil
	}
	data, err := json.Marshal(x)
	if t.size += len(data); err == nil && t.size > MaxCatalog {
		err = errCatalog
	}
	return err
}

// collect makes entries of a list, at most [Mount.limit].
func collect[T, V any](m *Mount, t *taken, list iter.Seq2[*T, error], make func(*T) (V, string, error)) ([]V, error) {
	var all []V
	seen := 0
	for x, err := range list {
		if err != nil {
			return nil, err
		}
		if seen++; seen > m.limit() {
			m.o.Logger.Warn("a mounted MCP server has more than can be taken in", "server", m.o.Name, "limit", m.limit())
			t.skipped++
			break
		}
		if x == nil { // "null" in the list
			m.skip("", errNothing)
			t.skipped++
			continue
		}
		v, name, err := make(x)
		if err == nil {
			err = t.describedIn(m, x)
		}
		if err != nil {
			m.skip(name, err)
			t.skipped++
			continue
		}
		all = append(all, v)
	}
	return all, nil
}

func (m *Mount) tool(t *mcp.Tool) (*tool, string, error) {
	name := t.Name
	made, err := m.provider.newTool(t, func(ctx context.Context, c *Call) (*mcp.CallToolResult, error) { return m.callTool(ctx, name, c) })
	return made, name, err
}

func (m *Mount) resource(r *mcp.Resource) (*resource, string, error) {
	made, err := m.provider.newResource(r, m.load)
	return made, r.URI, err
}

func (m *Mount) template(t *mcp.ResourceTemplate) (*template, string, error) {
	made, err := m.provider.newTemplate(t, m.load)
	return made, t.URITemplate, err
}

func (m *Mount) prompt(x *mcp.Prompt) (*prompt, string, error) {
	name := x.Name
	made, err := m.provider.newPrompt(x, func(ctx context.Context, arguments map[string]string) (*mcp.GetPromptResult, error) {
		return ask(ctx, m, name, nil, func(ctx context.Context, s *mcp.ClientSession) (*mcp.GetPromptResult, error) {
			return s.GetPrompt(ctx, &mcp.GetPromptParams{Name: name, Arguments: arguments})
		})
	})
	return made, name, err
}

// codeNoResource says that there is no such resource, in the revisions of the protocol
// before 2026-07-28; since then it is the code of wrong params, of which a read has
// none but the URI.
const codeNoResource = -32002

func (m *Mount) load(ctx context.Context, uri string) (*mcp.ReadResourceResult, error) {
	return ask(ctx, m, uri, nil, func(ctx context.Context, s *mcp.ClientSession) (*mcp.ReadResourceResult, error) {
		result, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		if e, ok := errors.AsType[*jsonrpc.Error](err); ok && (e.Code == codeNoResource || e.Code == jsonrpc.CodeInvalidParams) {
			err = fmt.Errorf("%w: %s", ErrNoResource, uri)
		}
		return result, err
	})
}

func (m *Mount) callTool(ctx context.Context, name string, c *Call) (*mcp.CallToolResult, error) {
	params := &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(c.Arguments)}
	// A caller who does not ask for progress has it asked for all the same: it tells a
	// server that works from one that hangs.
	alive := make(chan struct{}, 1)
	hear := newTeller(c.progress)
	defer hear.close()
	token := m.expect(func(p Progress) {
		wake(alive)
		hear.tell(p)
	})
	defer m.forget(token)
	params.SetProgressToken(token)
	return ask(ctx, m, c.Tool, alive, func(ctx context.Context, s *mcp.ClientSession) (*mcp.CallToolResult, error) {
		return s.CallTool(ctx, params)
	})
}

// teller passes on how far a call is, always the latest word: a caller who takes long to
// hear it holds up neither the server's other calls nor its own.
type teller struct {
	latest chan Progress
	done   chan struct{}

	mu     sync.Mutex
	closed bool
}

// newTeller begins to tell; to may be nil.
func newTeller(to func(Progress)) *teller {
	t := &teller{latest: make(chan Progress, 1), done: make(chan struct{})}
	if to == nil {
		close(t.done)
		return t
	}
	go func() { // ends with close
		defer close(t.done)
		for p := range t.latest {
			to(p)
		}
	}()
	return t
}

// tell does not block.
func (t *teller) tell(p Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	select {
	case <-t.latest: // nobody has heard it yet
	default:
	}
	t.latest <- p
}

// close waits for the word that is being heard.
func (t *teller) close() {
	t.mu.Lock()
	t.closed = true
	close(t.latest)
	t.mu.Unlock()
	<-t.done
}

// errSilent is the cause of the end of a call of which nothing was heard, errGone that of
// one whose server is mounted no more: the SDK would wait for it before it disconnects.
var (
	errSilent = errors.New("the server neither answered nor told of progress")
	errGone   = errors.New("the server is mounted no more")
)

// patience returns a context that ends when alive has told nothing for a time, or when
// gone is closed. stop must be called, and waits for what counts the time.
func patience(ctx context.Context, d time.Duration, alive, gone <-chan struct{}) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		timer := time.NewTimer(d)
		defer timer.Stop()
		for {
			select {
			case <-alive:
				timer.Reset(d)
			case <-timer.C:
				cancel(errSilent)
				return
			case <-gone:
				cancel(errGone)
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

// ask asks the server, if it is connected. alive tells that it works, and may be nil.
func ask[R any](ctx context.Context, m *Mount, name string, alive <-chan struct{}, f func(context.Context, *mcp.ClientSession) (R, error)) (R, error) {
	m.mu.Lock()
	session, problem := m.session, m.status.Problem
	m.mu.Unlock()
	var none R
	if session == nil {
		return none, m.unavailable(name, problem)
	}
	ctx, stop := patience(ctx, m.o.CallTimeout, alive, m.gone)
	defer stop()
	result, err := f(ctx, session)
	if err != nil && context.Cause(ctx) == errSilent {
		wake(m.doubt)
		return none, failed(CodeTimeout, name, m.provider.source, errSilent,
			fmt.Sprintf("the MCP server %s has not answered within %s", m.o.Name, m.o.CallTimeout))
	}
	if err != nil && context.Cause(ctx) == errGone {
		return none, failed(CodeClosed, name, m.provider.source, errGone,
			fmt.Sprintf("the MCP server %s has left", m.o.Name))
	}
	if undelivered(err) {
		wake(m.doubt)
		return none, m.unavailable(name, err)
	}
	return result, err
}

// errRejected is how the SDK says that a request did not get through; a server's own
// error may come with it.
var errRejected = &jsonrpc.Error{Code: -32005}

// undelivered reports whether an error says that the server cannot be reached, not that
// it has refused something.
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
		"the MCP server "+m.o.Name+" cannot be reached now; it is tried again, so try the call later")
}

// expect remembers who wants to hear of a call's progress.
func (m *Mount) expect(progress func(Progress)) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastCall++
	m.calls[m.lastCall] = progress
	return m.lastCall
}

func (m *Mount) forget(token int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.calls, token)
}

func (m *Mount) progress(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
	token, ok := req.Params.ProgressToken.(float64) // as JSON has it
	if !ok {
		return
	}
	m.mu.Lock()
	tell := m.calls[int64(token)]
	m.mu.Unlock()
	if tell != nil {
		tell(Progress{Done: req.Params.Progress, Total: req.Params.Total, Message: req.Params.Message})
	}
}
