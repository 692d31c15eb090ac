// Package chat implements a project's channels: named streams of messages on the bus that the agents of one project
// share.
//
// A [Space] also works in an outage of the bus, or of one channel's stream: messages of the channel are then queued, within
// a limit, and stored in order and exactly once when it is over. Every other failure is an error of the send.
package chat

import (
	"cmp"
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

	"github.com/parleyhub/parley/internal/base/clock"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// MaxBackoff is the longest pause between two attempts to reach the bus.
const MaxBackoff = 60 * time.Second

// requestTimeout bounds one request to the server. It is short because a request that is pending when the connection
// breaks gets no answer, nor does a request that the server's permissions forbid.
const requestTimeout = 2 * time.Second

// Channel is one channel of a project.
type Channel struct {
	Name        string
	Description string
	MaxMessages int64
	MaxBytes    int64
	MaxAge      time.Duration
}

// Config configures a [Space].
type Config struct {
	// Namespace separates the project's channels from those of other projects.
	Namespace string
	Channels  []Channel
	// Dial connects to the bus. It is retried with backoff, up to MaxBackoff, until it succeeds; after that the Bus
	// reconnects by itself. The Space closes the Bus.
	Dial func(context.Context) (*bus.Bus, error)
	// Replicas are the copies of each new stream; 0 is 3 in a cluster and 1 elsewhere.
	Replicas int
	// KeepDir is where queued messages are kept, so that the next Space of the same Namespace and Server stores those that
	// are left after the end or a kill of this process; "" loses them. Server identifies the server, and is not written there.
	KeepDir, Server string
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Now defaults to time.Now.
	Now func() time.Time
	// ClockSet replaces clock.Set; for tests.
	ClockSet func() time.Duration
}

// Space is the channels of one project. It is safe for concurrent use.
type Space struct {
	cfg      Config
	byName   map[string]Channel
	log      *slog.Logger
	watch    *clock.Watch
	instance string // distinguishes this process's consumers
	ids      string // prefix of the ids of this process's messages
	senders  atomic.Uint64
	sender   *Sender // of Send
	outbox   outbox
	own      *journal     // keeps the queued messages; nil without a KeepDir
	earlier  []*journal   // of Spaces that ended
	payload  atomic.Int64 // the largest message that the server accepts; 0 before the first connection
	news     wait.Signal
	watcher  watcher
	readers  readers
	ends     ends

	clustered atomic.Bool // the server is a node of a cluster

	stop  context.CancelFunc
	done  sync.WaitGroup
	tried chan struct{} // closed after the first attempt to reach the bus

	mu      sync.Mutex
	bus     *bus.Bus // nil until the first connection
	failure error    // of the last attempt, while bus is nil
	ensured map[string]bool
	ailing  map[string]time.Time // when the last request to a channel's stream got no answer
	closing bool
}

// Open returns a Space that connects in the background.
func Open(cfg Config) *Space {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Space{
		cfg:      cfg,
		byName:   map[string]Channel{},
		log:      cfg.Logger.With("component", "nats-connection"),
		watch:    clock.NewWatch(cfg.Now, cfg.ClockSet),
		instance: strings.ToLower(rand.Text()[:8]),
		ids:      rand.Text()[:16], // 80 bits
		stop:     stop,
		failure: &Error{Code: ConnectionError, Message: "The NATS server has not been reached yet.", Remedy: "Try again in a moment.",
			Err: nats.ErrDisconnected},
		ensured: map[string]bool{},
		ailing:  map[string]time.Time{},
		tried:   make(chan struct{}),
	}
	for _, c := range slices.Backward(cfg.Channels) { // of two with one name the first counts
		s.byName[c.Name] = c
	}
	s.sender = s.NewSender()
	s.outbox.pushed = make(chan struct{}, 1)
	s.readers.noted = make(chan struct{}, 1)
	if cfg.KeepDir != "" {
		s.own = newJournal(s.keepPrefix() + "-" + s.instance + ".json")
	}
	s.takeKept()
	s.done.Go(func() { s.run(ctx) })
	return s
}

// run connects, sends the queues, and re-creates missing streams after each reconnect, until ctx ends.
func (s *Space) run(ctx context.Context) {
	b := s.connect(ctx)
	if b == nil {
		return
	}
	idle := time.NewTicker(watchIdle)
	defer idle.Stop()
	last := b.Connection()
	s.begun(ctx, b)
	for {
		now := b.Connection()
		if now.State != last.State || now.Reconnects != last.Reconnects {
			s.log.Info("connection to the bus", "status", strings.ToUpper(string(now.State)), "reconnects", now.Reconnects)
			s.outbox.changed.Send()
			if now.State == bus.StateConnected {
				s.begun(ctx, b)
			}
			last = now
		}
		if now.State == bus.StateConnected {
			s.flush(ctx, b)
			if s.readers.begin() {
				s.done.Go(func() { s.acknowledgeAll(ctx, b) })
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.outbox.pushed:
		case <-s.readers.noted:
		case <-now.Changed:
		case <-idle.C:
			s.unwatchIdle()
		}
	}
}

// begun prepares the channels at the beginning of each connection, which may lead to another server.
func (s *Space) begun(ctx context.Context, b *bus.Bus) {
	s.mu.Lock()
	clear(s.ensured)
	clear(s.ailing)
	s.mu.Unlock()
	s.ends.reset()
	s.watcher.retry()
	s.watcher.close() // the next server may acknowledge elsewhere; whoever waits subscribes again
	s.payload.Store(b.Conn().MaxPayload())
	s.clustered.Store(b.Conn().ConnectedClusterName() != "")
	s.done.Go(func() { s.ensureAll(ctx) }) // a stream without a leader delays it, and nothing else
	s.news.Send()
}

// connect dials until it succeeds or ctx ends; then the bus is nil.
func (s *Space) connect(ctx context.Context) *bus.Bus {
	retry := wait.Backoff{Most: MaxBackoff}
	for attempt := 1; ; attempt++ {
		b, err := s.cfg.Dial(ctx)
		if err == nil {
			s.log.Info("connected to the bus", "attempt", attempt)
		}
		s.mu.Lock()
		s.bus, s.failure = b, err
		s.mu.Unlock()
		if attempt == 1 {
			close(s.tried)
		}
		if err == nil {
			s.news.Send()
			return b
		}
		if ctx.Err() != nil {
			return nil
		}
		delay := retry.Next()
		s.log.Warn("the bus cannot be reached", "attempt", attempt, "retryIn", delay.String(), "error", err)
		wait.Pause(ctx, delay)
	}
}

// Tried returns a channel that is closed when the first attempt to reach the bus has succeeded or failed.
func (s *Space) Tried() <-chan struct{} { return s.tried }

// current returns the bus, connected or not; nil before the first connection.
func (s *Space) current() *bus.Bus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bus
}

// connected returns the bus if it is connected.
func (s *Space) connected() (*bus.Bus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return nil, errClosed
	case s.bus == nil:
		return nil, connectionError(s.failure)
	case s.bus.Connection().State != bus.StateConnected:
		return nil, interrupted(s.bus)
	}
	return s.bus, nil
}

// usable is connected, for calls that wait while a connection that has just been lost is being made again.
func (s *Space) usable(ctx context.Context) (*bus.Bus, error) {
	if b := s.current(); b != nil {
		b.Await(ctx)
	}
	return s.connected()
}

// Channels lists the project's channels in the order of the configuration.
func (s *Space) Channels() []Channel { return slices.Clone(s.cfg.Channels) }

// channel returns the channel of a name.
func (s *Space) channel(name string) (Channel, error) {
	if c, ok := s.byName[name]; ok {
		return c, nil
	}
	names := make([]string, len(s.cfg.Channels))
	for i, c := range s.cfg.Channels {
		names[i] = c.Name
	}
	e := &Error{Code: NotFoundError, Message: fmt.Sprintf("There is no channel %s. The project's channels are: %s.", text.Quote(name, 80), strings.Join(names, ", ")),
		Remedy: "Use one of these names, or add the channel to the project's .mcp-config.json and restart the MCP server."}
	if len(names) == 0 {
		e.Message = fmt.Sprintf("There is no channel %s: the project has none.", text.Quote(name, 80))
		e.Remedy = "Add channels to the project's .mcp-config.json and restart the MCP server."
	}
	return Channel{}, e
}

// Status is the state of a [Space].
type Status struct {
	Connected bool
	// Problem is why it is not connected; nil if it is.
	Problem error
	// Queued is how many messages wait for the bus, Dropped how many were dropped since the start because the queue was
	// full.
	Queued, Dropped int
	// Bus describes the connection; nil while there is none.
	Bus *bus.Info
}

// Status returns the state. It does not block.
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

// Close stores the queued messages before ctx ends if the bus is connected, leaves the others in KeepDir, closes the bus,
// and returns how many messages were lost. With a KeepDir it does not wait for the end of an outage. It waits for the
// goroutines of the Space.
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
		connected := func() bool { return b.Connection().State == bus.StateConnected }
		s.outbox.drained(ctx, func() bool { return s.cfg.KeepDir == "" || connected() }, s.cfg.KeepDir != "")
		if connected() {
			s.readers.deleteAll(ctx, b)
		}
	}
	s.stop()
	s.done.Wait()
	s.watcher.close()
	lost = s.keepRest()
	if b = s.current(); b == nil {
		return lost, nil
	}
	return lost, b.Close(ctx)
}
