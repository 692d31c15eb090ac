package bus

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
)

// MaxAccounts is how many namespaces an embedded bus serves until it is restarted.
const MaxAccounts = 1024

// projectLimits limit the processes of one project. Each stream must have a size limit, which is
// reserved in the store. The total size is limited by the store alone (Config.MaxStore): the
// server would reserve a limit of the account at once, used or not.
var projectLimits = map[string]server.JetStreamAccountLimits{"": {
	MaxMemory:            0, // no streams in memory
	MaxStore:             -1,
	MaxStreams:           600,
	MaxConsumers:         10_000, // of one stream
	MaxAckPending:        -1,
	MemoryMaxStreamBytes: -1,
	StoreMaxStreamBytes:  -1,
	MaxBytesRequired:     true,
}}

// networkLimits limit the agents' network: one inbox for each live agent, and a little memory for rate limits. Its
// streams need no size limit: most are small, and reserving the limit of every inbox would fill the disk.
var networkLimits = map[string]server.JetStreamAccountLimits{"": {
	MaxMemory:            16 << 20,
	MaxStore:             -1,
	MaxStreams:           4096,
	MaxConsumers:         10_000, // of one stream
	MaxAckPending:        -1,
	MemoryMaxStreamBytes: -1,
	StoreMaxStreamBytes:  -1,
}}

// accounts are the NATS accounts of an embedded server besides the hub's own. NATS isolates accounts from each
// other: subjects and streams. An account is opened, and its streams are recovered, when the first process joins it,
// so that a hub with hundreds of them on disk starts as fast as one with none.
type accounts struct {
	server *server.Server
	log    *slog.Logger
	check  func(account string) error // of its store, before it is opened
	store  sync.RWMutex               // held for writing while the server has its store closed

	mu     sync.Mutex
	byName map[string]*account
	watch  *watch // nil without one

	acks *ackSyncer // nil if acknowledgements are not synced; set before the first account is opened
}

type account struct {
	once    sync.Once
	acc     *server.Account
	limits  map[string]server.JetStreamAccountLimits
	err     error
	watched bool // or about to be; guarded by accounts.mu
	ready   bool // the account is open; guarded by accounts.mu
	synced  bool // the hub syncs its acknowledgements; guarded by accounts.mu
}

func newAccounts(s *server.Server, log *slog.Logger, check func(account string) error) *accounts {
	return &accounts{server: s, log: log, check: check, byName: make(map[string]*account)}
}

// open returns the account of that name. It blocks until the account's streams are recovered.
func (as *accounts) open(name string, limits map[string]server.JetStreamAccountLimits) (*server.Account, error) {
	as.mu.Lock()
	a := as.byName[name]
	if a == nil && len(as.byName) >= MaxAccounts {
		as.mu.Unlock()
		return nil, errorf(CodeLimit, nil, "restart the hub to close unused namespaces",
			"the hub already serves %d namespaces", MaxAccounts)
	}
	if a == nil {
		a = new(account)
		as.byName[name] = a
	}
	as.mu.Unlock()

	first := false
	a.once.Do(func() {
		first, a.limits = true, limits
		if a.acc, a.err = as.enable(name, limits); a.err == nil {
			synced := as.admitAcks(a.acc)
			as.mu.Lock()
			a.ready, a.synced = true, synced
			as.mu.Unlock()
			as.observe(a) // before anybody joins the account
		}
	})
	if a.err == nil {
		if !first {
			as.observe(a)
		}
		return a.acc, nil
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.byName[name] == a { // the next call retries
		delete(as.byName, name)
	}
	if e := (*Error)(nil); errors.As(a.err, &e) {
		return nil, e
	}
	return nil, &Error{Code: CodeStorage, Message: "cannot open the namespace's part of the bus", Err: a.err,
		Remedy: "check the disk and the hub's log"}
}

func (as *accounts) enable(name string, limits map[string]server.JetStreamAccountLimits) (*server.Account, error) {
	as.store.RLock()
	defer as.store.RUnlock()
	if err := as.check(name); err != nil {
		return nil, err
	}
	acc, _ := as.server.LookupOrRegisterAccount(name)
	return acc, acc.EnableJetStream(limits, nil)
}

// admitAcks lets the hub sync the acknowledgements of a project's account, and reports whether it does. The processes sync
// the store themselves otherwise.
func (as *accounts) admitAcks(acc *server.Account) bool {
	if as.acks == nil || acc.Name == networkAccount {
		return false
	}
	err := as.acks.admit(acc)
	if err != nil {
		as.log.Warn("a namespace's processes sync the store themselves", "account", acc.Name, "error", err)
	}
	return err == nil
}

// syncs reports whether the hub syncs the acknowledgements of an account.
func (as *accounts) syncs(name string) bool {
	as.mu.Lock()
	defer as.mu.Unlock()
	a := as.byName[name]
	return a != nil && a.synced
}

// checkOpen checks the stores of all open accounts, while the server has its store closed.
func (as *accounts) checkOpen() (err error) {
	as.mu.Lock()
	names := slices.Collect(maps.Keys(as.byName))
	as.mu.Unlock()
	for _, name := range names {
		err = errors.Join(err, as.check(name))
	}
	return err
}

// reopen enables JetStream again in all open accounts, after the server has started it anew.
func (as *accounts) reopen() (err error) {
	as.mu.Lock()
	all := slices.Collect(maps.Values(as.byName))
	as.mu.Unlock()
	for _, a := range all {
		as.mu.Lock()
		ready := a.ready
		as.mu.Unlock()
		if ready && !a.acc.JetStreamEnabled() {
			err = errors.Join(err, a.acc.EnableJetStream(a.limits, nil))
		}
	}
	return err
}

// observe lets the watcher see an account that it does not see yet. The account is served also when that fails: the
// next process that joins it tries again.
func (as *accounts) observe(a *account) {
	as.mu.Lock()
	w := as.watch
	begin := w != nil && !a.watched
	a.watched = a.watched || begin
	as.mu.Unlock()
	if !begin {
		return
	}
	err := w.open(as.server.GlobalAccount(), a.acc)
	if err == nil {
		return
	}
	w.log.Warn("a namespace cannot be watched: the hub records no events of it", "account", a.acc.Name, "error", err)
	as.mu.Lock()
	defer as.mu.Unlock()
	a.watched = false
}
