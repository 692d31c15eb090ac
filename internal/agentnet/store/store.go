// Package store is one bus of the agents' network: its connection, streams, records with revisions, rate limits and
// clock, and the names and errors that the packages of the network share. It knows nothing of agents, mail or work.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/clock"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

const (
	// MaxBackoff is the longest pause between two attempts to reach the network.
	MaxBackoff = 60 * time.Second
	// MaxHubBackoff replaces MaxBackoff for the bus of a hub, which may start any time.
	MaxHubBackoff = 5 * time.Second
	// RequestTimeout bounds one request to the server.
	RequestTimeout = 5 * time.Second
	// clockRefresh is the interval at which the server's time is requested.
	clockRefresh = 10 * time.Minute
	// maxTimeRequests bounds consecutive requests for the time, while answers are too slow to be precise.
	maxTimeRequests = 4
)

// Store is a process's connection to one bus of the network. It is safe for concurrent use once it is started.
type Store struct {
	cfg      Config
	log      *slog.Logger
	clock    *Clock
	watch    *clock.Watch
	changed  wait.Signal
	refusals counter

	prepare   []func(context.Context, *bus.Bus) error
	connected []func(*bus.Bus)

	ctx  context.Context // of everything that runs in the background
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	bus     *bus.Bus // nil until it is reached
	failure error    // why bus is nil
	closing bool
}

// New returns a Store that is not connected yet. cfg has its defaults.
func New(cfg Config) *Store {
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{cfg: cfg, log: cfg.Logger.With("component", "agentnet"), clock: NewClock(cfg.Now, cfg.ClockSet), ctx: ctx, stop: stop, failure: ErrNotYet}
	s.watch = clock.NewWatch(s.Now, cfg.ClockSet)
	s.Prepare(s.ensureLimits)
	return s
}

// Config returns the configuration.
func (s *Store) Config() Config { return s.cfg }

// Log returns the logger of the network.
func (s *Store) Log() *slog.Logger { return s.log }

// Now returns the server's time.
func (s *Store) Now() time.Time { return s.clock.Now() }

// ClockError returns the largest possible difference between Now and the server's time.
func (s *Store) ClockError() time.Duration { return s.clock.Unsure() }

// ClockSet returns when this process noticed that its computer's clock was set, or that the computer has slept, by Now; the zero
// time if it has not.
func (s *Store) ClockSet() time.Time { return s.watch.Changed() }

// Prepare adds what has to succeed whenever the bus is connected, before it is used. Call it before Start.
func (s *Store) Prepare(f func(context.Context, *bus.Bus) error) { s.prepare = append(s.prepare, f) }

// OnFirstConnect adds what is called once, when the bus can be used for the first time. Call it before Start.
func (s *Store) OnFirstConnect(f func(*bus.Bus)) { s.connected = append(s.connected, f) }

// Adopt uses a bus that is connected and prepared already, instead of Start; for those who change no stream.
func (s *Store) Adopt(b *bus.Bus) { s.setBus(b, nil) }

// Start connects in the background and returns at once.
func (s *Store) Start() { s.Go(s.run) }

// Go runs f in a goroutine for which Stop waits. f ends when ctx does.
func (s *Store) Go(f func(ctx context.Context)) { s.done.Go(func() { f(s.ctx) }) }

// Context ends when the Store is stopped.
func (s *Store) Context() context.Context { return s.ctx }

// run connects, and prepares the bus whenever the connection is back.
func (s *Store) run(ctx context.Context) {
	b := s.connect(ctx)
	if b == nil {
		return
	}
	changes := b.Conn().StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED)
	defer b.Conn().RemoveStatusListener(changes)
	for _, f := range s.connected {
		f(b)
	}
	refresh := time.NewTicker(clockRefresh)
	defer refresh.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-refresh.C:
			if b.Resting() { // what decides by the time of this computer's server measures it if the clock was set
				continue
			}
			if err := s.MeasureTime(ctx, b); err != nil {
				s.log.Warn("the server's time is not known", "error", err)
			}
		case status := <-changes:
			s.log.Info("connection to the agents' network", "status", status.String())
			if status == nats.CONNECTED {
				if err := s.prepareAll(ctx, b); err != nil && ctx.Err() == nil {
					s.log.Error("the agents' network is not ready", "error", err)
				}
				s.changed.Send()
			}
		}
	}
}

// connect dials until there is a prepared bus. It returns nil when ctx ends.
func (s *Store) connect(ctx context.Context) *bus.Bus {
	var b *bus.Bus
	retry := wait.Backoff{Most: MaxBackoff}
	if s.cfg.Optional || s.cfg.ThroughHub {
		retry.Most = MaxHubBackoff
	}
	for attempt := 1; ; attempt++ {
		var err error
		if b == nil {
			b, err = s.cfg.Dial(ctx)
		}
		if err == nil {
			err = s.prepareAll(ctx, b)
		}
		if err == nil {
			s.log.Info("connected to the agents' network", "attempt", attempt)
			s.setBus(b, nil)
			return b
		}
		if ctx.Err() != nil {
			if b != nil {
				if err := b.Close(context.WithoutCancel(ctx)); err != nil {
					s.log.Warn("closing the connection to the agents' network failed", "error", err)
				}
			}
			return nil
		}
		level := slog.LevelError
		if s.cfg.Optional || s.cfg.ThroughHub && attempt > 1 {
			level = slog.LevelDebug
		}
		pause := retry.Next()
		s.log.Log(ctx, level, "the agents' network cannot be used", "attempt", attempt, "retryIn", pause.String(), "error", err)
		s.setBus(nil, err)
		wait.Pause(ctx, pause)
	}
}

func (s *Store) setBus(b *bus.Bus, failure error) {
	s.mu.Lock()
	s.bus, s.failure = b, failure
	s.mu.Unlock()
	s.changed.Send()
}

// Connected returns the bus if it can be used now, and a ConnectionError otherwise.
func (s *Store) Connected() (*bus.Bus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return nil, ErrClosed
	case s.bus == nil:
		return nil, AsError(s.failure)
	case !s.bus.Conn().IsConnected() && s.bus.Info().Kind == bus.KindJoined:
		return nil, &Error{Code: ConnectionError,
			Message: "The connection to this computer's hub, whose bus the agents' network uses, is interrupted.",
			Remedy:  "Try again in a moment. If somebody has stopped the hub, a person starts it again with `" + local.Program() + " start`; your registration, mail and work are kept.",
			Err:     s.bus.Conn().LastError()}
	case !s.bus.Conn().IsConnected():
		return nil, &Error{Code: ConnectionError,
			Message: "The connection to the agents' network is interrupted.",
			Remedy:  "It is being restored. Try again in a moment, or run `" + local.Program() + " doctor`.",
			Err:     s.bus.Conn().LastError()}
	}
	return s.bus, nil
}

// Await blocks while a connection that has just been lost is being made again, see [bus.Bus.Await].
func (s *Store) Await(ctx context.Context) {
	if b := s.current(); b != nil {
		b.Await(ctx)
	}
}

// current returns the bus, connected or not; nil before the first connection.
func (s *Store) current() *bus.Bus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bus
}

// Commit is that of the bus, see [bus.Bus.Commit].
func (s *Store) Commit(ctx context.Context) error {
	b, err := s.Connected()
	if err != nil {
		return err
	}
	return b.Commit(ctx)
}

// Changed returns a channel that is closed when Connected may return something else.
func (s *Store) Changed() <-chan struct{} { return s.changed.Wait() }

// Ready blocks until the bus can be used. When ctx ends first it returns why it cannot.
func (s *Store) Ready(ctx context.Context) (err error) {
	s.changed.Until(ctx, nil, func() bool {
		_, err = s.Connected()
		return err == nil || errors.Is(err, ErrClosed)
	})
	return err
}

// Stop ends everything that runs in the background and waits for it. The connection stays open until Close.
func (s *Store) Stop() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.stop()
	s.done.Wait()
	s.changed.Send()
}

// Close stops the Store and closes the connection.
func (s *Store) Close(ctx context.Context) error {
	s.Stop()
	if b := s.current(); b != nil {
		return b.Close(ctx)
	}
	return nil
}

// prepareAll prepares the bus for use, and measures the server's time.
func (s *Store) prepareAll(ctx context.Context, b *bus.Bus) error {
	for _, f := range s.prepare {
		if err := f(ctx, b); err != nil {
			return AsError(err)
		}
	}
	return s.MeasureTime(ctx, b)
}

// MeasureTime sets the clock to the server's time. It repeats the request while answers are
// slow, as on a busy computer.
func (s *Store) MeasureTime(ctx context.Context, b *bus.Bus) error {
	for range maxTimeRequests {
		measured, err := s.measureTimeOnce(ctx, b)
		if err != nil {
			return err
		}
		if measured && !s.clock.imprecise() {
			break
		}
	}
	return nil
}

// measureTimeOnce reports false if the computer's clock was set meanwhile.
func (s *Store) measureTimeOnce(ctx context.Context, b *bus.Bus) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	set, before := s.ClockSet(), s.cfg.Now()
	stream, err := b.JetStream().Stream(ctx, s.cfg.RegistryStream())
	if err != nil {
		return false, err
	}
	at, after := stream.CachedInfo().TimeStamp, s.cfg.Now()
	if !s.ClockSet().Equal(set) {
		return false, nil
	}
	if !at.IsZero() {
		s.clock.Set(at, before, after, b.IsLocal())
	}
	return true, nil
}

// RefreshTime measures the server's time before something is decided by it, if this computer's clock was set since, or the computer has
// slept. Otherwise it does not block.
func (s *Store) RefreshTime(ctx context.Context) error {
	if !s.clock.Outdated() {
		return nil
	}
	b, err := s.Connected()
	if err != nil {
		return err
	}
	return s.MeasureTime(ctx, b)
}

// ID identifies the store of this bus, also after a restart. It is no secret.
func (s *Store) ID(ctx context.Context, b *bus.Bus) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, ItemStream)
	if err != nil {
		return "", AsError(err)
	}
	return Digest(s.cfg.Hostname, s.cfg.Username, fmt.Sprint(stream.CachedInfo().Created.UnixNano())), nil
}

// BucketConfig returns the configuration of the stream behind a KV bucket, compatible with the KV stores of NATS
// clients.
func BucketConfig(bucket, description string, maxAge time.Duration) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              BucketStream + bucket,
		Description:       description,
		Subjects:          []string{BucketKeys + bucket + ".>"},
		MaxMsgsPerSubject: 1,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgSize:        -1,
		MaxConsumers:      -1,
		MaxAge:            maxAge,
		Discard:           jetstream.DiscardNew,
		Storage:           jetstream.FileStorage,
		AllowRollup:       true,
		DenyDelete:        true,
		AllowDirect:       true,
	}
}

func (s *Store) ensureLimits(ctx context.Context, b *bus.Bus) error {
	limits := BucketConfig(s.cfg.LimitsBucket(), "Rate limits", 10*time.Minute)
	limits.Storage = jetstream.MemoryStorage
	return s.EnsureStreams(ctx, b, limits)
}

// EnsureStreams creates the streams that are missing. Of an existing one it changes only the maximum age, to that of
// the process that was configured last; the rest is the operator's.
func (s *Store) EnsureStreams(ctx context.Context, b *bus.Bus, wanted ...jetstream.StreamConfig) error {
	for _, want := range wanted {
		if err := s.ensureStream(ctx, b, want); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) ensureStream(ctx context.Context, b *bus.Bus, want jetstream.StreamConfig) error {
	ctx, cancel := context.WithTimeout(ctx, 2*RequestTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, want.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return s.MakeStream(ctx, b, want)
	case err != nil || s.cfg.Confined():
		return AsError(err)
	}
	have := stream.CachedInfo().Config
	if !slices.Equal(have.Subjects, want.Subjects) {
		return &Error{Code: ConflictError,
			Message: fmt.Sprintf("Another program on the server uses the stream %s.", want.Name),
			Remedy:  "Use another NATS account for the agents' network.",
			Err:     fmt.Errorf("the stream %s has the subjects %q", have.Name, have.Subjects)}
	}
	if have.MaxAge == want.MaxAge && have.AllowDirect {
		return nil
	}
	s.log.Warn("a stream's maximum age is changed to this process's configuration",
		"stream", want.Name, "before", have.MaxAge.String(), "now", want.MaxAge.String())
	have.MaxAge, have.AllowDirect = want.MaxAge, true
	if want.MaxAge > 0 {
		have.Duplicates = min(max(have.Duplicates, want.Duplicates), want.MaxAge)
	}
	_, err = b.EnsureStream(ctx, have)
	return AsError(err)
}

// MakeStream creates a stream with the configured replicas. Where none are configured, a
// cluster of too few nodes gets one.
func (s *Store) MakeStream(ctx context.Context, b *bus.Bus, want jetstream.StreamConfig) error {
	const noPeers, replicasNotSupported = 10005, 10074
	want.Replicas = s.cfg.Replicas
	if want.Replicas == 0 {
		want.Replicas = 1
		if b.Conn().ConnectedClusterName() != "" || b.Info().Kind == bus.KindLinked { // a link may lead to a cluster
			want.Replicas = 3
		}
	}
	_, err := b.EnsureStream(ctx, want)
	if IsAPIError(err, noPeers, replicasNotSupported) && s.cfg.Replicas == 0 && want.Replicas > 1 {
		s.log.Warn("the cluster has too few nodes for three copies of a stream", "stream", want.Name, "error", err)
		want.Replicas = 1
		_, err = b.EnsureStream(ctx, want)
	}
	return AsError(err)
}

// MaxPayload is the largest message that the server accepts, less room for headers.
func MaxPayload(b *bus.Bus) int64 { return b.Conn().MaxPayload() - 1024 }
