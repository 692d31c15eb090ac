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
}

// open begins to listen, if it does not yet. What is looked up on the same
// connection after it, and what is heard, leave no gap between them.
func (e *ears) open(b *bus.Bus, subject string, heard func()) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wanted = true
	if e.sub != nil {
		return nil
	}
	sub, err := b.Conn().Subscribe(subject, func(*nats.Msg) { heard() })
	if err != nil {
		return err
	}
	e.sub = sub
	return nil
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
	e.sub = nil
	return false
}
