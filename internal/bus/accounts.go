package bus

import (
	"fmt"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
)

// MaxAccounts is how many namespaces an embedded bus serves in one life.
const MaxAccounts = 1024

// projectLimits bound what the processes of one project can take. A stream must
// say how large it gets, for that is reserved in the store; how large all
// streams together get is bounded by the store alone (Config.MaxStore), for the
// server would set an account's own limit aside at once, used or not.
var projectLimits = map[string]server.JetStreamAccountLimits{"": {
	MaxMemory:            0, // memory is the hub's
	MaxStore:             -1,
	MaxStreams:           600,
	MaxConsumers:         10_000, // of one stream
	MaxAckPending:        -1,
	MemoryMaxStreamBytes: -1,
	StoreMaxStreamBytes:  -1,
	MaxBytesRequired:     true,
}}

// networkLimits are those of the agents' network: an inbox a live agent, and a
// little memory for rate limits. Its streams need not say how large they get:
// most are small, and to reserve an inbox's limit for each would take the disk.
var networkLimits = map[string]server.JetStreamAccountLimits{"": {
	MaxMemory:            16 << 20,
	MaxStore:             -1,
	MaxStreams:           4096,
	MaxConsumers:         10_000, // of one stream
	MaxAckPending:        -1,
	MemoryMaxStreamBytes: -1,
	StoreMaxStreamBytes:  -1,
}}

// accounts are the NATS accounts of an embedded server beside the hub's own.
// NATS lets nothing pass from one to another: neither subjects nor streams. An
// account is opened when somebody joins it for the first time, and its streams
// are read back then, so that a hub with hundreds of them on disk starts as
// fast as one with none.
type accounts struct {
	server *server.Server

	mu     sync.Mutex
	byName map[string]*account
}

type account struct {
	once sync.Once
	acc  *server.Account
	err  error
}

func newAccounts(s *server.Server) *accounts {
	return &accounts{server: s, byName: make(map[string]*account)}
}

// open returns the account of that name. The first caller waits for its streams
// to be read back, and others of the same account with it.
func (as *accounts) open(name string, limits map[string]server.JetStreamAccountLimits) (*server.Account, error) {
	as.mu.Lock()
	a := as.byName[name]
	if a == nil && len(as.byName) >= MaxAccounts {
		as.mu.Unlock()
		return nil, &Error{
			Code:    CodeLimit,
			Message: fmt.Sprintf("the hub serves %d namespaces already", MaxAccounts),
			Remedy:  "restart the hub: namespaces that nobody uses any more make room then",
		}
	}
	if a == nil {
		a = new(account)
		as.byName[name] = a
	}
	as.mu.Unlock()

	a.once.Do(func() { a.acc, a.err = as.enable(name, limits) })
	if a.err == nil {
		return a.acc, nil
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.byName[name] == a { // the next one tries again
		delete(as.byName, name)
	}
	return nil, &Error{Code: CodeStorage, Message: "cannot open the namespace's part of the bus", Err: a.err,
		Remedy: "check the disk and the hub's log"}
}

func (as *accounts) enable(name string, limits map[string]server.JetStreamAccountLimits) (*server.Account, error) {
	acc, _ := as.server.LookupOrRegisterAccount(name)
	if err := acc.EnableJetStream(limits, nil); err != nil {
		return nil, err
	}
	return acc, nil
}
