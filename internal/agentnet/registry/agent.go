package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

const (
	minimumHeartbeat = 10 * time.Second // the shortest that an agent can request
	maximumHeartbeat = 24 * time.Hour
	// MaxCapabilities bounds the capabilities of an agent, and those that work requires.
	MaxCapabilities = 64
)

// Registration is an agent's description of itself.
type Registration struct {
	Handle       string
	AgentType    string
	Capabilities []string
	Scope        Scope
	Vendor       string // of the agent's program; "" if it is not known
	Conversation string // as the agent's program calls it; "" if it is not known
	// Kind is the type under which the agent's identity is kept, "" for AgentType: a session stays the agent that it is, whatever role it
	// registers as.
	Kind string
	// Known requires the identity of an agent of this role that is offline; the error is a NotFoundError if there is none.
	Known bool
	// Visibility is the configured one where it is empty.
	Visibility         Visibility
	MaxConcurrentTasks int
	// HeartbeatInterval is the configured one where it is 0.
	HeartbeatInterval time.Duration
}

// kind is the type under which a new identity is kept.
func (r Registration) kind() string { return cmp.Or(r.Kind, r.AgentType) }

// kinds are the types under which an earlier identity may be kept: those of the session and of the role. They are sorted.
func (r Registration) kinds() []string {
	kinds := []string{r.kind(), r.AgentType}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// role returns the role as which a session registers; "" if it says no more than which program it is, or is no session.
func (r Registration) role() string {
	if r.Kind == "" || r.AgentType == r.Kind || IsProgram(r.AgentType, r.Vendor) {
		return ""
	}
	return r.AgentType
}

// SameRole reports whether a session is registered as the same role by both.
func (r Registration) SameRole(as Registration) bool { return r.role() == as.role() }

// WithType is the registration with another type.
func (r Registration) WithType(agentType string) Registration {
	r.AgentType = agentType
	return r
}

// DefaultHandle is the handle of a session that has chosen none: its role, or what its identity is kept under.
func (r Registration) DefaultHandle() string { return cmp.Or(r.role(), r.kind()) }

// programWords are the words that agents add to the name of their program.
var programWords = []string{"agent", "anthropic", "assistant", "cli", "code", "coding", "google", "mistral", "openai", "session"}

// IsProgram reports whether a name, such as an agent type, only says which vendor's program the agent is: claude-code of claude.
func IsProgram(name, vendor string) bool {
	if vendor == "" {
		return false
	}
	found := false
	for word := range strings.SplitSeq(name, "-") {
		if word != vendor && !slices.Contains(programWords, word) {
			return false
		}
		found = found || word == vendor
	}
	return found
}

// Check returns a ValidationError if the registration is invalid.
func (r Registration) Check() error {
	if err := store.CheckName("agent type", r.AgentType); err != nil {
		return err
	}
	if err := store.CheckName("handle", r.Handle); err != nil {
		return err
	}
	if !slices.Contains(Scopes, r.Scope) {
		return invalidScope(r.Scope)
	}
	if r.Visibility != "" && !slices.Contains(Visibilities, r.Visibility) {
		return store.Invalid("There is no visibility %s.", store.Quote(string(r.Visibility))).WithRemedy("Use private, project-only, user-only or public.")
	}
	if r.MaxConcurrentTasks < 0 {
		return store.Invalid("maxConcurrentTasks is %d.", r.MaxConcurrentTasks).WithRemedy("Use 0 for no limit, or a positive number.")
	}
	if h := r.HeartbeatInterval; h != 0 && (h < minimumHeartbeat || h > maximumHeartbeat) {
		return store.Invalid("A heartbeat every %v is not allowed.", h).WithRemedy("Use 10 seconds to 24 hours.")
	}
	return checkCapabilities(r.Capabilities)
}

func checkCapabilities(list []string) error {
	if len(list) > MaxCapabilities {
		return store.Invalid("%d capabilities are too many.", len(list)).WithRemedy("Name at most %d.", MaxCapabilities)
	}
	for _, c := range list {
		if c == "" || len(c) > store.MaxName {
			return store.Invalid("Invalid capability %s.", store.Quote(c)).WithRemedy("A capability is a word of at most %d bytes, for example: typescript.", store.MaxName)
		}
	}
	return nil
}

// Changes are changes of an agent's presence; "" or nil leaves a field as it is.
type Changes struct {
	Status           Presence `json:"status,omitempty" jsonschema:"active, idle, busy or offline"`
	CurrentTaskCount *int     `json:"currentTaskCount,omitempty" jsonschema:"How many tasks you have now"`
	Capabilities     []string `json:"capabilities,omitempty" jsonschema:"What you can do now, instead of what you said before"`
}

// Check returns a ValidationError if the changes are invalid.
func (c Changes) Check() error {
	if c.Status != "" && !slices.Contains(Presences, c.Status) {
		return invalidStatus(c.Status)
	}
	if c.CurrentTaskCount != nil && *c.CurrentTaskCount < 0 {
		return store.Invalid("currentTaskCount is %d.", *c.CurrentTaskCount).WithRemedy("Use 0 or a positive number.")
	}
	return checkCapabilities(c.Capabilities)
}

// Apply changes the entry.
func (c Changes) Apply(e *Entry) {
	e.Status = cmp.Or(c.Status, e.Status)
	if c.CurrentTaskCount != nil {
		e.CurrentTaskCount = float64(*c.CurrentTaskCount)
	}
	if c.Capabilities != nil {
		e.Capabilities = slices.Clone(c.Capabilities)
	}
}

// Agent is an agent of this process on one bus. It is active, with a heartbeat, from Start until its status is
// offline or it leaves. It is safe for concurrent use, but for the methods that are to be called before Start.
type Agent struct {
	reg      *Registry
	guid     string
	identity *Identity
	log      *slog.Logger
	unlisted bool // it has no entry in the registry

	whileActive []func(context.Context)
	onEntered   []func(context.Context, *bus.Bus) (leave func())
	onLeave     []func(why *store.Error)

	turn *semaphore.Weighted // of 1: one goroutine at a time writes the entry
	done sync.WaitGroup

	mu       sync.Mutex
	stop     context.CancelFunc
	entry    Entry  // as this process wants it
	dirty    bool   // the registry may have another entry, apart from the time
	revision uint64 // of the entry, 0 if it is not known
	active   bool
	pending  bool          // it is not entered yet: the bus could not be reached
	handle   string        // under which the identity is to be kept from now on; "" for that of the registration
	failure  *store.Error  // why the agent has left
	leaving  chan struct{} // see Leaving
}

// AgentOptions are details of a new agent.
type AgentOptions struct {
	Unlisted bool // it gets no entry in the registry
	Pending  bool // it is entered as soon as the bus can be reached
	Logger   *slog.Logger
}

// NewAgent returns an agent that is neither entered nor active yet.
func (g *Registry) NewAgent(id *Identity, r Registration, o AgentOptions) *Agent {
	a := &Agent{reg: g, guid: id.guid, identity: id, unlisted: o.Unlisted, pending: o.Pending,
		log: cmp.Or(o.Logger, g.Log()).With("guid", id.guid), turn: semaphore.NewWeighted(1), dirty: true}
	now := store.Timestamp(g.Now())
	a.entry = Entry{GUID: id.guid, Hostname: g.cfg.Hostname, Status: Active, RegisteredAt: now, LastHeartbeat: now}
	g.Describe(&a.entry, r)
	return a
}

// Describe writes a registration into an entry. The user's name is published only where
// the visibility is for the same user, the project only where the agent belongs to one.
func (g *Registry) Describe(e *Entry, r Registration) {
	e.AgentType, e.Handle, e.Scope, e.Capabilities = r.AgentType, r.Handle, r.Scope, slices.Clone(r.Capabilities)
	e.Visibility = cmp.Or(r.Visibility, g.cfg.Visibility)
	e.MaxConcurrentTasks = float64(r.MaxConcurrentTasks)
	e.HeartbeatInterval = max(cmp.Or(r.HeartbeatInterval, g.cfg.HeartbeatInterval), minimumHeartbeat).Seconds()
	e.Username, e.ProjectID, e.Project, e.Vendor = "", "", "", r.Vendor
	if e.Visibility == store.UserOnly {
		e.Username = g.cfg.Username
	}
	if e.Scope == ScopeProject || e.Visibility == store.ProjectOnly {
		e.ProjectID, e.Project = g.cfg.ProjectID, folderOf(g.cfg.ProjectPath)
	}
}

// folderOf returns the name of a project's directory as part of an agent's name: lowercase letters, digits and hyphens.
func folderOf(path string) string {
	if path == "" {
		return ""
	}
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(filepath.Base(path)))
	return strings.Trim(name[:min(len(name), store.MaxName)], "-")
}

// WhileActive adds what runs in the background while the agent is active. Call it before Start.
func (a *Agent) WhileActive(f func(context.Context)) { a.whileActive = append(a.whileActive, f) }

// OnEntered adds what is called each time the agent is active and entered, and what it returns when the agent is not any
// more. Neither may block for others. Call it before Start.
func (a *Agent) OnEntered(f func(context.Context, *bus.Bus) (leave func())) {
	a.onEntered = append(a.onEntered, f)
}

// OnLeave adds what is called when the agent leaves, or has lost its identity. Call it before Start.
func (a *Agent) OnLeave(f func(why *store.Error)) { a.onLeave = append(a.onLeave, f) }

// GUID returns the agent's GUID.
func (a *Agent) GUID() string { return a.guid }

// Reused reports whether an earlier agent had the identity: there may be mail.
func (a *Agent) Reused() bool { return a.identity.reused }

// Unlisted reports whether the agent has no entry in the registry.
func (a *Agent) Unlisted() bool { return a.unlisted }

// SetHandle changes the agent's handle in the entry that the next heartbeat writes.
func (a *Agent) SetHandle(handle string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.entry.Handle, a.dirty = handle, true
}

// KeepUnder changes the handle under which the identity is kept, with the next change of the entry.
func (a *Agent) KeepUnder(handle string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handle, a.dirty = store.Digest(handle), true
}

// Kind returns the type under which the identity is kept; "" if it is not known.
func (a *Agent) Kind() string { return a.identity.kind }

// Log returns the agent's logger.
func (a *Agent) Log() *slog.Logger { return a.log }

// Entry returns what the agent publishes of itself. It does not block.
func (a *Agent) Entry() Entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entry
	e.Capabilities = slices.Clone(e.Capabilities)
	return e
}

// Viewer returns the agent as a viewer of the registry.
func (a *Agent) Viewer() Viewer {
	v := a.reg.Operator()
	v.GUID = a.guid
	return v
}

// Failure returns why the agent has left, nil while it has not.
func (a *Agent) Failure() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failure == nil {
		return nil
	}
	return a.failure
}

// Ready returns the bus of an agent that is entered.
func (a *Agent) Ready() (*bus.Bus, error) {
	if err := a.Failure(); err != nil {
		return nil, err
	}
	b, err := a.reg.Connected()
	if err == nil && a.isPending() {
		return nil, &store.Error{Code: store.ConnectionError, Message: "The agents' network has only just been reached.", Remedy: "Try again in a moment."}
	}
	return b, err
}

func (a *Agent) isPending() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pending
}

// Use counts one use of a rate limit of the agent.
func (a *Agent) Use(ctx context.Context, l store.Limit) error {
	b, err := a.Ready()
	if err != nil {
		return err
	}
	return a.reg.Use(ctx, b, a.guid, l)
}

// UseUpdate counts one change of the agent's entry.
func (a *Agent) UseUpdate(ctx context.Context) error {
	b, err := a.Ready()
	if err != nil {
		return err
	}
	return a.reg.UseKey(ctx, b, a.guid, a.guid, store.UpdateLimit)
}

// Enter enters the agent in the registry. Where that fails it releases the identity.
func (a *Agent) Enter(ctx context.Context) error {
	b, err := a.reg.Connected()
	if err != nil {
		return err
	}
	if err := a.enter(ctx, b); err != nil {
		if releaseErr := a.identity.release(ctx, b); releaseErr != nil {
			a.log.Warn("an unused identity was not released", "error", releaseErr)
		}
		return store.AsError(err)
	}
	return nil
}

func (a *Agent) enter(ctx context.Context, b *bus.Bus) error {
	for _, f := range a.reg.onEnter {
		if err := f(ctx, b, a.guid); err != nil {
			return err
		}
	}
	a.mu.Lock()
	a.entry.NATSURL = serverURL(b)
	a.mu.Unlock()
	if err := a.remember(ctx, b); err != nil {
		return err
	}
	if err := a.write(ctx, b); err != nil {
		return err
	}
	return b.Commit(ctx)
}

// serverURL is the server of the connection, without credentials. In a cluster it changes with the connection.
func serverURL(b *bus.Bus) string {
	info := b.Info()
	if info.Kind != bus.KindExternal {
		return info.URL
	}
	u, err := url.Parse(b.Conn().ConnectedUrl())
	if err != nil || u.Host == "" {
		first, _, _ := strings.Cut(info.URL, ",")
		return first
	}
	return u.Scheme + "://" + u.Host
}

// remember stores the GUID and the handle for when the entry has expired.
func (a *Agent) remember(ctx context.Context, b *bus.Bus) error {
	e := a.Entry()
	k := known{GUID: e.GUID, Handle: e.Handle, AgentType: e.AgentType}
	if a.identity.record.Lock == hubLock {
		k.Holder = a.identity.holder
	}
	_, err := a.reg.knownKey(a.guid).Update(ctx, b, func(store.Value) (any, error) { return k, nil })
	return err
}

// Change changes the entry as the next heartbeat writes it. The status offline ends the heartbeat.
func (a *Agent) Change(change func(*Entry)) (offline bool) {
	a.mu.Lock()
	change(&a.entry)
	a.dirty = true
	offline = a.entry.Status == Offline
	a.mu.Unlock()
	if offline {
		a.deactivate()
	}
	return offline
}

// Publish writes the entry to the registry at once. Unless the status is offline the agent is active then.
func (a *Agent) Publish(ctx context.Context) error {
	b, err := a.Ready()
	if err != nil {
		return err
	}
	if err := a.write(ctx, b); err != nil {
		if errors.Is(err, store.ErrReplaced) {
			a.Leave(store.ErrReplaced)
		}
		return store.AsError(err)
	}
	if a.Entry().Status != Offline {
		a.Start()
	}
	return nil
}

// write refreshes the identity and writes the entry, with the present time. It replaces whatever the registry holds:
// only the agent writes its entry, and only the collector removes it.
func (a *Agent) write(ctx context.Context, b *bus.Bus) error {
	if err := a.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer a.turn.Release(1)
	if err := a.refreshIdentity(ctx, b); err != nil || a.unlisted {
		return err
	}
	server := serverURL(b)
	a.mu.Lock()
	a.entry.NATSURL = server
	a.entry.LastHeartbeat = store.Timestamp(a.reg.Now())
	data, err := a.entry.encode()
	revision := a.revision
	a.dirty = false
	a.mu.Unlock()
	if err != nil {
		return &store.Error{Code: store.ValidationError, Message: fmt.Sprintf("The registry does not accept this entry: %v.", err), Err: err}
	}
	key := a.reg.cfg.EntryKey(a.guid)
	for range store.MaxConflicts {
		revision, err = key.Put(ctx, b, data, revision)
		if !errors.Is(err, store.ErrConflict) {
			break
		}
		v, readErr := key.Get(ctx, b)
		if readErr != nil {
			err = readErr
			break
		}
		revision = v.Revision
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.dirty = true
		return err
	}
	a.revision = revision
	return nil
}

// refreshIdentity refreshes the identity. The caller has acquired the right to write.
func (a *Agent) refreshIdentity(ctx context.Context, b *bus.Bus) error {
	a.mu.Lock()
	handle := a.handle
	a.mu.Unlock()
	a.identity.keepUnder(handle)
	before := a.identity.written
	if err := a.identity.refresh(ctx, a.reg, b); err != nil || a.identity.written.Equal(before) {
		return err
	}
	a.reg.rememberGUID(a.identity)
	return a.remember(ctx, b)
}

// Deregister stops the heartbeat and marks the agent as offline. Its entry, its GUID and its mail remain for the next
// agent of its kind. While the bus cannot be reached the agent has left, too, but the registry shows it as offline only
// once it can be reached, see Leaving.
func (a *Agent) Deregister(ctx context.Context) error {
	b, err := a.Ready()
	if err != nil {
		if failure := a.Failure(); failure != nil {
			return failure
		}
		entered := !a.isPending()
		a.Leave(store.ErrNotRegistered)
		a.identity.Unlock()
		if entered && store.IsUnreachable(err) {
			a.leaveLater()
		}
		return nil
	}
	a.Leave(store.ErrNotRegistered)
	a.Change(func(e *Entry) { e.Status, e.CurrentTaskCount = Offline, 0 })
	err = errors.Join(a.write(ctx, b), a.identity.release(ctx, b))
	if err == nil {
		a.log.Info("agent deregistered")
		err = b.Commit(ctx)
	}
	if err = store.AsError(err); store.IsUnreachable(err) {
		a.leaveLater()
		return nil
	}
	return err
}

// Leaving returns a channel that is closed when the registry shows a deregistered agent as offline, or will not any
// more: the Store was stopped, or another process is the agent. It is nil if Deregister has left nothing to do.
func (a *Agent) Leaving() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leaving
}

// leaveLater marks the agent as offline as soon as the bus can be reached.
func (a *Agent) leaveLater() {
	done := make(chan struct{})
	a.mu.Lock()
	a.leaving = done
	a.mu.Unlock()
	a.log.Info("the agent is shown as offline when the bus can be reached again")
	a.reg.Go(func(ctx context.Context) {
		defer close(done)
		retry := wait.Backoff{First: time.Second, Most: store.MaxBackoff}
		for ctx.Err() == nil {
			if a.reg.Ready(ctx) != nil {
				return
			}
			err := a.showOffline(ctx)
			if err == nil || errors.Is(err, store.ErrReplaced) {
				return
			}
			a.log.Debug("the agent is not shown as offline yet", "error", err)
			retry.Pause(ctx)
		}
	})
}

// showOffline writes the status offline into the entry, unless another process has written the entry since, and
// releases the identity.
func (a *Agent) showOffline(ctx context.Context) error {
	b, err := a.reg.Connected()
	if err != nil {
		return err
	}
	key := a.reg.cfg.EntryKey(a.guid)
	for range store.MaxConflicts {
		v, err := key.Get(ctx, b)
		if err == nil {
			err = a.identity.refresh(ctx, a.reg, b)
		}
		if err != nil {
			return err
		}
		e := a.Entry()
		if now, err := DecodeEntry(v.Data); !v.Exists() || err != nil || now.RegisteredAt != e.RegisteredAt {
			return a.identity.release(ctx, b)
		}
		e.Status, e.CurrentTaskCount = Offline, 0
		data, err := e.encode()
		if err != nil {
			return err
		}
		// The identity is released first: whoever sees the agent as offline can take it. If somebody has by then, the entry
		// has changed, too.
		if err := a.identity.release(ctx, b); err != nil {
			return err
		}
		_, err = key.Put(ctx, b, data, v.Revision)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil {
			err = b.Commit(ctx)
		}
		if err == nil {
			a.log.Info("agent deregistered")
		}
		return err
	}
	return store.ErrConflict
}

// Leave stops the agent's goroutines and waits for them. Every later call fails with why.
func (a *Agent) Leave(why *store.Error) {
	a.fail(why)
	a.deactivate()
	a.left(why)
}

func (a *Agent) fail(why *store.Error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failure == nil {
		a.failure = why
	}
}

func (a *Agent) left(why *store.Error) {
	for _, f := range a.onLeave {
		f(why)
	}
}

// Start makes the agent active, unless it is active or has left.
func (a *Agent) Start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active || a.failure != nil {
		return
	}
	ctx, stop := context.WithCancel(a.reg.Context())
	a.active, a.stop = true, stop
	a.done.Go(func() { a.run(ctx, stop) })
	for _, f := range a.whileActive {
		a.done.Go(func() { f(ctx) })
	}
}

func (a *Agent) deactivate() {
	a.mu.Lock()
	active := a.active
	a.active = false
	if active {
		a.stop()
	}
	a.mu.Unlock()
	a.done.Wait()
}

// run enters the agent. Then it has a goroutine only while its heartbeat is written.
func (a *Agent) run(ctx context.Context, stop context.CancelFunc) {
	b, err := a.awaitEntry(ctx)
	if err != nil {
		return
	}
	a.done.Add(1)
	a.reg.heartbeats.start(ctx, stop, a, b, a.done.Done)
}

// awaitEntry waits until the bus can be used and the agent is entered.
func (a *Agent) awaitEntry(ctx context.Context) (*bus.Bus, error) {
	retry := wait.Backoff{Most: store.MaxBackoff}
	for attempt := 1; ; attempt++ {
		if err := a.reg.Ready(ctx); err != nil {
			return nil, err
		}
		b, err := a.reg.Connected()
		if err == nil && a.isPending() {
			err = a.enterPending(ctx, b)
		}
		if err == nil {
			return b, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		if !store.IsUnreachable(err) {
			a.log.Error("the agent is not in the network yet", "error", err, "attempt", attempt)
		}
		retry.Pause(ctx)
	}
}

// enterPending enters an agent that was registered while the bus could not be reached.
func (a *Agent) enterPending(ctx context.Context, b *bus.Bus) error {
	if !a.unlisted && a.reg.cfg.Admission == nil { // a hub claims the identities that it assigns
		if err := a.claimIdentity(ctx, b); err != nil {
			return err
		}
	}
	if err := a.enter(ctx, b); err != nil {
		return err
	}
	a.mu.Lock()
	a.pending = false
	a.mu.Unlock()
	a.log.Info("the agent has entered the network")
	return nil
}

// markDirty makes the next heartbeat write the whole entry.
func (a *Agent) markDirty() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dirty = true
}

// interval returns the time between two heartbeats: the entry's, or a third of the threshold if that is shorter, so that
// the agent is not shown as offline in between.
func (a *Agent) interval() time.Duration {
	return cmp.Or(a.reg.cfg.BeatEvery, min(a.Entry().interval(), a.reg.cfg.TimeoutThreshold/3))
}

// beat writes a heartbeat, or lets the hub write it. It blocks for at most 2*RequestTimeout.
func (a *Agent) beat(ctx context.Context, b *bus.Bus) error {
	ctx, cancel := context.WithTimeout(ctx, 2*store.RequestTimeout)
	defer cancel()
	if a.reg.cfg.Admission != nil && a.relayHeartbeat(b) {
		return nil
	}
	return a.write(ctx, b)
}
