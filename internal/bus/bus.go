package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Bus is a connection to NATS with JetStream, and in the hub's process the
// server behind it. All methods are safe for concurrent use.
type Bus struct {
	log  *slog.Logger
	kind Kind
	url  string // without secrets
	link *link
	conn *nats.Conn
	js   jetstream.JetStream

	// commits syncs the store; nil where that is not possible or not ours to do.
	commits  *committer
	asked    Durability // "" unless embedded
	mode     Durability // effective, of an embedded server: see durability
	degraded error      // why mode is not what was asked

	dir      string       // of the store; "" if external
	lock     *flock.Flock // embedded
	embedded *embedded    // embedded
	hub      *hubDialer   // joined

	mu       sync.Mutex
	closing  bool
	inFlight sync.WaitGroup // calls that Close waits for
	closed   chan struct{}  // closed at the end of Close
}

func newBus(cfg Config, kind Kind) *Bus {
	return &Bus{log: cfg.Logger, kind: kind, closed: make(chan struct{})}
}

// Open starts a server below cfg.DataDir and connects to it in process; a hub
// that was killed leaves nothing behind that hinders. With a cfg.URL it
// connects there instead. It tries once: a server that cannot be used is an
// [Error] with the way in which it cannot, see [Code]. A connection that stood
// is restored for ever, at most [MaxDelay] apart.
//
// Neither the recovery of the store nor an attempt to connect (at most 5 s a
// server) can be interrupted; the end of ctx is noticed after it.
func Open(ctx context.Context, cfg Config) (*Bus, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if (cfg.DataDir == "") == (cfg.URL == "") {
		return nil, &Error{
			Code:    CodeConfig,
			Message: "the bus needs either a data directory or a URL",
			Remedy:  "configure one of them",
		}
	}
	b, open := newBus(cfg, KindEmbedded), (*Bus).openEmbedded
	if cfg.URL != "" {
		b, open = newBus(cfg, KindExternal), (*Bus).openExternal
	}
	if err := open(b, ctx, cfg); err != nil {
		return nil, b.abandon(err)
	}
	return b, nil
}

func (b *Bus) openEmbedded(ctx context.Context, cfg Config) error {
	var err error
	if b.dir, err = makeDir(cfg.DataDir); err != nil {
		return err
	}
	if b.lock, err = lockDir(ctx, b.dir); err != nil {
		return err
	}
	b.openCommitter(cfg)
	if b.embedded, err = startServer(cfg, b.dir, b.mode); err != nil {
		return err
	}
	b.url = "nats://" + b.embedded.address()
	b.link = newLink(b.log, "the embedded NATS server", maxLocalDelay)
	hub := server.User{Username: hubUser}
	password, _ := b.embedded.users.add(hub, time.Time{})
	if err := b.connect(cfg, "",
		nats.InProcessServer(b.embedded.server),
		nats.UserInfo(hub.Username, password),
	); err != nil {
		return connectError(err, "the embedded NATS server", nil)
	}
	// What the server made of the store at its start is on disk before the
	// first stream is.
	if err := b.sync(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return contextError(err, "opening the bus")
	}
	b.log.Info("bus started", "durability", b.mode, "address", b.embedded.address(), "store", b.dir)
	return nil
}

// openCommitter decides the effective mode. The committer is there in the fast
// mode too: new streams and the shutdown are synced in every mode.
func (b *Bus) openCommitter(cfg Config) {
	b.asked, b.mode = cfg.Durability, cfg.Durability
	s, err := cfg.openSyncer(b.dir)
	if err == nil {
		b.commits = newCommitter(s)
		return
	}
	if b.mode != DurabilityCommit {
		return
	}
	b.mode, b.degraded = DurabilityAlways, err
	b.log.Warn("the store's filesystem cannot be synced at once: the server syncs every write instead, which is slower",
		"asked", b.asked, "durability", b.mode, "reason", err)
}

func (b *Bus) connect(cfg Config, urls string, opts ...nats.Option) error {
	conn, err := b.link.dial(cfg, urls, opts...)
	if err != nil {
		return err
	}
	b.conn = conn
	b.js, err = jetstream.New(conn,
		jetstream.WithDefaultTimeout(requestTimeout),
		jetstream.WithPublishAsyncTimeout(requestTimeout))
	return err
}

// Conn returns the connection, the same one all the Bus's life. Publishes past
// JetStream, requests and subscriptions use it. Do not close it.
func (b *Bus) Conn() *nats.Conn { return b.conn }

// JetStream returns the JetStream API, for consumers and buckets. What is
// written through it is durable after the next Commit.
func (b *Bus) JetStream() jetstream.JetStream { return b.js }

// EnsureStream makes a stream, or changes it to cfg, and returns when that is
// on disk, in every mode: a power cut soon after would lose a new stream with
// all its messages.
func (b *Bus) EnsureStream(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	return ensure(ctx, b, "make the stream "+cfg.Name, func() (jetstream.Stream, error) {
		return b.js.CreateOrUpdateStream(ctx, cfg)
	})
}

// EnsureKeyValue is EnsureStream for a key-value bucket. What is put there is
// durable after the next Commit.
func (b *Bus) EnsureKeyValue(ctx context.Context, cfg jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	return ensure(ctx, b, "make the bucket "+cfg.Bucket, func() (jetstream.KeyValue, error) {
		return b.js.CreateOrUpdateKeyValue(ctx, cfg)
	})
}

func ensure[T any](ctx context.Context, b *Bus, doing string, create func() (T, error)) (made T, err error) {
	if err := b.begin(); err != nil {
		return made, err
	}
	defer b.inFlight.Done()
	made, err = create()
	if err != nil {
		return made, requestError(err, doing)
	}
	return made, b.sync(ctx)
}

// Publish stores a message in the stream of its subject and returns when it is
// durable as the mode says. After an error it may be stored all the same: give
// it a message id (jetstream.WithMsgID) to try again without a duplicate. When
// the connection is lost it fails at once.
func (b *Bus) Publish(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if err := b.begin(); err != nil {
		return nil, err
	}
	defer b.inFlight.Done()
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	future, err := b.send(ctx, msg, opts)
	if err != nil {
		return nil, err
	}
	ack, err := await(ctx, future)
	if err != nil {
		return nil, requestError(err, fmt.Sprintf("store a message on %s", msg.Subject))
	}
	return ack, b.Commit(ctx)
}

// Commit returns when everything that JetStream acknowledged before the call,
// to anybody, is durable as the mode says: in DurabilityCommit after a sync
// that all who wait share, otherwise at once. After a failure of the disk every
// Commit fails.
func (b *Bus) Commit(ctx context.Context) error {
	if b.durability() != DurabilityCommit {
		return nil
	}
	return b.sync(ctx)
}

// durability is the mode in effect; a joined Bus has that of the hub it is
// connected to.
func (b *Bus) durability() Durability {
	if b.hub != nil {
		return b.hub.current().Durability
	}
	return b.mode
}

// sync syncs in any mode, where it is possible.
func (b *Bus) sync(ctx context.Context) error {
	if b.commits == nil {
		return nil
	}
	err := b.commits.commit(ctx)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return contextError(err, "waiting for the disk")
	}
	return err
}

// begin registers a call that Close waits for.
func (b *Bus) begin() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return errClosed
	}
	b.inFlight.Add(1)
	return nil
}

// Close ends the Bus in an order that loses nothing: no more publishes, those
// in flight are finished, subscriptions drained, the server shut down, its
// store synced, and only then the lock released. Consumers are their owners' to
// stop before. The end of ctx cuts the waiting for messages short, not the
// rest. A second call waits for the first.
func (b *Bus) Close(ctx context.Context) error {
	b.mu.Lock()
	if b.closing {
		b.mu.Unlock()
		return waitFor(ctx, b.closed, "for the bus to close")
	}
	b.closing = true
	b.mu.Unlock()
	defer close(b.closed)

	err := b.drain(ctx)
	if err = errors.Join(err, b.release()); err != nil {
		return err
	}
	b.log.Info("bus closed", "kind", b.kind)
	return nil
}

// drain waits for what is in flight.
func (b *Bus) drain(ctx context.Context) error {
	const inFlight = "for messages in flight"
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		b.inFlight.Wait() // at the latest when release has closed the connection
	}()
	if err := waitFor(ctx, returned, inFlight); err != nil {
		return err
	}
	if err := waitFor(ctx, b.js.PublishAsyncComplete(), inFlight); err != nil {
		return err
	}
	if err := b.conn.Drain(); err != nil {
		return nil // without a connection there is nothing to drain
	}
	return waitFor(ctx, b.link.closed, inFlight)
}

func waitFor(ctx context.Context, done <-chan struct{}, what string) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return contextError(ctx.Err(), "waiting "+what)
	}
}

// abandon releases a Bus that could not be opened and returns why.
func (b *Bus) abandon(why error) error {
	if err := b.release(); err != nil {
		return errors.Join(why, err)
	}
	return why
}

// release frees what the Bus holds, as far as opening it got.
func (b *Bus) release() error {
	var errs []error
	if b.conn != nil {
		b.conn.Close()
		<-b.link.closed
	}
	if b.hub != nil {
		b.hub.close()
	}
	if b.embedded != nil {
		b.embedded.stop()
		errs = append(errs, b.sync(context.Background()))
	}
	if b.commits != nil {
		errs = append(errs, b.commits.close())
	}
	if b.lock != nil {
		errs = append(errs, b.lock.Unlock())
	}
	return errors.Join(errs...)
}
