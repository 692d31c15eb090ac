package chat

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/bus"
)

// earsRest is how often a Space asks whether anybody still wants to hear.
const earsRest = time.Minute

// ears hear what others say while somebody waits for it. Most agents send and
// read and wait for nothing: in a project of a hundred of them, each message
// would wake ninety-nine processes that do not care.
type ears struct {
	mu     sync.Mutex
	sub    *nats.Subscription // nil while nobody listens
	wanted bool               // since the last rest
	echo   *time.Timer        // nil until the ears were open
}

// echoes are how long after something was heard, or could have been, it is told
// again. The server hands a message to who listens and to the stream at the same
// time: on a busy machine who looks at once can look before it is stored. Each is
// counted from the one before.
var echoes = []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second}

// open begins to listen, if it does not yet. What is looked up on the same
// connection after it, and what is heard, leave no gap between them.
func (e *ears) open(b *bus.Bus, subject string, heard func()) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wanted = true
	if e.sub != nil {
		return nil
	}
	sub, err := b.Conn().Subscribe(subject, func(*nats.Msg) {
		heard()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.repeat(heard, echoes)
	})
	if err != nil {
		return err
	}
	e.sub = sub
	e.repeat(heard, echoes) // of what was said just before, and is not stored yet
	return nil
}

// repeat tells again what was heard, after each of the pauses. What is heard
// meanwhile begins anew. The caller holds the lock.
func (e *ears) repeat(heard func(), pauses []time.Duration) {
	e.hush()
	if e.sub == nil || len(pauses) == 0 {
		return
	}
	e.echo = time.AfterFunc(pauses[0], func() {
		heard()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.repeat(heard, pauses[1:])
	})
}

// hush ends the echoes.
func (e *ears) hush() {
	if e.echo != nil {
		e.echo.Stop()
	}
}

// close forgets the subscription, which ends with its connection.
func (e *ears) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hush()
	e.sub = nil
}

// rest closes the ears where nobody has opened them since the last rest. Who
// waits since then has to be woken to open them again: woken says so.
func (e *ears) rest() (woken bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sub == nil {
		return false
	}
	if e.wanted {
		e.wanted = false
		return true
	}
	// An error means that the connection is closed.
	_ = e.sub.Unsubscribe()
	e.hush()
	e.sub = nil
	return false
}
