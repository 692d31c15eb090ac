// Package chat is a project's channels: named streams of messages on the bus
// that the agents of one project share.
//
// A [Space] works before the bus can be reached and while it is gone: what is
// sent then waits in a bounded queue and is stored, in order and once, when the
// bus is back.
package chat

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/base/broadcast"
	"github.com/parleyhub/parley/internal/bus"
)

// MaxBackoff is the longest pause between two attempts to reach the bus
// (REQ-REL-002).
const MaxBackoff = 60 * time.Second

// requestTimeout bounds one look at the server. A request that is under way
// when the connection breaks is never answered: a short limit makes the next
// attempt come soon.
const requestTimeout = 2 * time.Second

// Channel is one channel of a project.
type Channel struct {
	Name        string
	Description string
	MaxMessages int64
	MaxBytes    int64
	MaxAge      time.Duration
}

// Config says which channels there are and where.
type Config struct {
	// Namespace keeps the project's channels apart from other projects'.
	Namespace string
	Channels  []Channel
	// Dial finds the bus. It is called until it succeeds once, with pauses that
	// grow to MaxBackoff; from then on the Bus reconnects by itself. The Space
	// closes the Bus.
	Dial func(context.Context) (*bus.Bus, error)
	// Logger is slog.Default() where it is nil.
	Logger *slog.Logger
	// Now is time.Now where it is nil.
	Now func() time.Time
}

// Space is the channels of one project. It is safe for concurrent use.
type Space struct {
	cfg      Config
	log      *slog.Logger
	instance string // tells this process's consumers from others'
	ids      string // begins the ids of this process's messages
	sent     atomic.Uint64
	outbox   outbox
	news     broadcast.Signal
	ears     ears
	readers  readers

	stop  context.CancelFunc
	done  sync.WaitGroup
	tried chan struct{} // closed after the first attempt to reach the bus

	mu      sync.Mutex
	bus     *bus.Bus // nil until it is reached
	failure error    // why it is nil
	ensured map[string]bool
	closing bool
}

// Open begins to look for the bus and returns at once.
func Open(cfg Config) *Space {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Space{
		cfg:      cfg,
		log:      cfg.Logger.With("component", "nats-connection"),
		instance: strings.ToLower(rand.Text()[:8]),
		ids:      rand.Text()[:16], // 80 bits
		stop:     stop,
		failure: &Error{Category: ConnectionError, Message: "The messages' server has not been reached yet.",
			Remedy: "It is being tried; try again in a moment."},
		ensured: map[string]bool{},
		tried:   make(chan struct{}),
	}
	s.outbox.init()
	s.done.Go(func() { s.run(ctx) })
	return s
}

// run connects, and then keeps the channels and the queue up to date whenever
// the connection comes back, until ctx ends.
func (s *Space) run(ctx context.Context) {
	b, changes, ok := s.connect(ctx)
	if !ok {
		return
	}
	defer b.Conn().RemoveStatusListener(changes)
	rest := time.NewTicker(earsRest)
	defer rest.Stop()
	s.ensureAll(ctx)
	for {
		s.flush(ctx)
		select {
		case <-ctx.Done():
			return
		case <-s.outbox.pushed:
		case <-rest.C:
			if s.ears.rest() {
				s.news.Send()
			}
		case status := <-changes:
			s.log.Info("connection to the bus", "status", status.String())
			if status == nats.CONNECTED {
				s.forgetEnsured()
				s.ensureAll(ctx)
				s.news.Send()
			}
		}
	}
}

// connect dials until there is a bus. The channel tells each change of the
// connection, also the first after somebody could see it.
func (s *Space) connect(ctx context.Context) (*bus.Bus, chan nats.Status, bool) {
	var changes chan nats.Status
	for attempt := 1; ; attempt++ {
		b, err := s.cfg.Dial(ctx)
		if err == nil {
			s.log.Info("connected to the bus", "attempt", attempt)
			changes = b.Conn().StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED)
			s.attach(b)
		} else {
			s.mu.Lock()
			s.failure = err
			s.mu.Unlock()
		}
		if attempt == 1 {
			close(s.tried)
		}
		if err == nil {
			return b, changes, true
		}
		if ctx.Err() != nil {
			return nil, nil, false
		}
		pause := bus.Backoff(attempt, MaxBackoff)
		s.log.Warn("the bus cannot be reached", "attempt", attempt, "retryIn", pause.String(), "error", err)
		select {
		case <-ctx.Done():
			return nil, nil, false
		case <-time.After(pause):
		}
	}
}

func (s *Space) attach(b *bus.Bus) {
	s.mu.Lock()
	s.bus, s.failure = b, nil
	s.mu.Unlock()
	s.news.Send()
}

// Tried is closed when the first attempt to reach the bus has ended, either way.
func (s *Space) Tried() <-chan struct{} { return s.tried }

// listen has the news tell what others say, too.
func (s *Space) listen() {
	s.mu.Lock()
	b := s.bus
	s.mu.Unlock()
	if b == nil {
		return // attach wakes who waits
	}
	if err := s.ears.open(b, s.cfg.Namespace+".*", s.news.Send); err != nil {
		s.log.Error("new messages cannot be followed", "error", err)
	}
}

// connected returns the bus if it can be used right now.
func (s *Space) connected() (*bus.Bus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return nil, errClosed
	case s.bus == nil:
		return nil, connectionError(s.failure)
	case !s.bus.Conn().IsConnected():
		return nil, interrupted(s.bus)
	}
	return s.bus, nil
}

// Channels lists the project's channels in the order of the configuration.
func (s *Space) Channels() []Channel { return slices.Clone(s.cfg.Channels) }

// channel finds a channel (REQ-TOOL-016, REQ-TOOL-025, REQ-ERROR-003).
func (s *Space) channel(name string) (Channel, error) {
	names := make([]string, len(s.cfg.Channels))
	for i, c := range s.cfg.Channels {
		if c.Name == name {
			return c, nil
		}
		names[i] = c.Name
	}
	return Channel{}, &Error{
		Category: NotFoundError,
		Message:  fmt.Sprintf("There is no channel %s.", quote(name)),
		Remedy:   fmt.Sprintf("The project's channels are: %s.", strings.Join(names, ", ")),
	}
}

// Status is how a Space is.
type Status struct {
	Connected bool
	// Problem is why it is not connected, nil if it is.
	Problem error
	// Queued is how many messages wait for the bus, Dropped how many were lost
	// since the start because too many did.
	Queued, Dropped int
	// Bus describes the connection, nil until there was one.
	Bus *bus.Info
}

// Status returns without blocking.
func (s *Space) Status() Status {
	b, err := s.connected()
	st := Status{Connected: err == nil, Problem: err}
	st.Queued, st.Dropped = s.outbox.counts()
	if b != nil {
		info := b.Info()
		st.Bus = &info
	}
	return st
}

// Close stores what is queued if the bus can be reached before ctx ends, and
// releases everything (REQ-REL-009). It returns how many messages are lost.
func (s *Space) Close(ctx context.Context) (lost int, err error) {
	s.mu.Lock()
	again := s.closing
	s.closing = true
	b := s.bus
	s.mu.Unlock()
	if again {
		return 0, nil
	}
	if b != nil {
		s.outbox.drained(ctx)
		s.readers.deleteAll(ctx, b)
	}
	s.stop()
	s.done.Wait()
	s.ears.close()
	s.mu.Lock()
	b = s.bus
	s.mu.Unlock()
	lost, _ = s.outbox.counts()
	if lost > 0 {
		s.log.Error("messages were not stored before the end", "lost", lost)
	}
	if b == nil {
		return lost, nil
	}
	return lost, b.Close(ctx)
}
