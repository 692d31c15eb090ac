package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
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
	log    *slog.Logger
	conn   *nats.Conn
	js     jetstream.JetStream
	closed chan struct{} // closed by the connection's handler: nothing runs any more

	commits *committer // nil where Commit has nothing to do
	asked   Durability
	mode    Durability // effective; "" for an external server
	why     error      // why mode is not what was asked

	// Of an embedded server only.
	dir      string
	lock     *flock.Flock
	embedded *embedded

	mu       sync.Mutex
	closing  bool
	inFlight sync.WaitGroup // calls that publish
}

// Open starts a server below cfg.DataDir and connects to it in process. A hub
// that was killed leaves nothing behind that hinders.
//
// Recovery of the store cannot be interrupted; the end of ctx is noticed after it.
func Open(ctx context.Context, cfg Config) (*Bus, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Bus{log: cfg.Logger, asked: cfg.Durability, closed: make(chan struct{})}
	if err := b.openEmbedded(ctx, cfg); err != nil {
		return nil, errors.Join(err, b.release())
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
	// With the lock held, a run file is what a killed hub left.
	if err := removeRunFile(b.dir); err != nil {
		return &Error{Code: CodeStorage, Message: "cannot remove the run file of a former hub", Err: err}
	}
	b.openCommitter(cfg)
	if b.embedded, err = startServer(cfg, b.dir, b.mode); err != nil {
		return err
	}
	hub := server.User{Username: "hub"}
	if err := b.connect(cfg,
		nats.InProcessServer(b.embedded.server),
		nats.UserInfo(hub.Username, b.embedded.users.add(hub)),
	); err != nil {
		return err
	}
	peer := server.User{Username: "peer"}
	if err := writeRunFile(b.dir, runFile{
		PID:        os.Getpid(),
		StartedAt:  time.Now(),
		Address:    b.embedded.address(),
		User:       peer.Username,
		Password:   b.embedded.users.add(peer),
		Durability: b.mode,
	}); err != nil {
		return &Error{Code: CodeStorage, Message: "cannot write the run file", Err: err}
	}
	// What the server made of the store at the start is on disk too.
	if err := b.sync(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return contextError(err, "opening the bus")
	}
	b.log.Info("bus started", "durability", b.mode, "asked", b.asked, "address", b.embedded.address(), "store", b.dir)
	return nil
}

// openCommitter decides the effective mode. The committer is there in the fast
// mode too: new streams and the shutdown are synced in every mode.
func (b *Bus) openCommitter(cfg Config) {
	b.mode = cfg.Durability
	s, err := cfg.openSyncer(b.dir)
	if err == nil {
		b.commits = newCommitter(s)
		return
	}
	b.why = err
	if b.mode != DurabilityCommit {
		return
	}
	b.mode = DurabilityAlways
	b.log.Warn("the filesystem cannot be synced as a whole: the bus syncs every write instead, which is slower",
		"asked", DurabilityCommit, "durability", DurabilityAlways, "error", err)
}

func (b *Bus) connect(cfg Config, opts ...nats.Option) error {
	opts = append([]nats.Option{
		nats.Name(cfg.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectBufSize(-1),
		nats.Timeout(connectTimeout),
		nats.ClosedHandler(func(*nats.Conn) { close(b.closed) }),
	}, opts...)
	conn, err := nats.Connect("", opts...)
	if err != nil {
		return &Error{Code: CodeNetwork, Message: "cannot connect to the embedded NATS server", Err: err}
	}
	b.conn = conn
	b.js, err = jetstream.New(conn, jetstream.WithDefaultTimeout(requestTimeout))
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
	if err := b.begin(); err != nil {
		return nil, err
	}
	defer b.inFlight.Done()
	stream, err := b.js.CreateOrUpdateStream(ctx, cfg)
	if err != nil {
		return nil, requestError(err, fmt.Sprintf("make the stream %s", cfg.Name))
	}
	return stream, b.sync(ctx)
}

// Publish stores a message in the stream of its subject and returns when it is
// durable as the mode says. After an error it may be stored all the same: set a
// message id (jetstream.WithMsgID) to try again without a duplicate.
func (b *Bus) Publish(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if err := b.begin(); err != nil {
		return nil, err
	}
	defer b.inFlight.Done()
	ack, err := b.js.PublishMsg(ctx, msg, opts...)
	if err != nil {
		return nil, requestError(err, "store a message")
	}
	return ack, b.Commit(ctx)
}

// Commit returns when everything that JetStream acknowledged before the call,
// to anybody, is durable as the mode says: in DurabilityCommit after a sync
// that all who wait share, otherwise at once.
func (b *Bus) Commit(ctx context.Context) error {
	if b.mode != DurabilityCommit {
		return nil
	}
	return b.sync(ctx)
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
// store synced, and only then the lock released. The end of ctx cuts the
// waiting for messages short, not the rest. A second call does nothing.
func (b *Bus) Close(ctx context.Context) error {
	b.mu.Lock()
	if b.closing {
		b.mu.Unlock()
		return nil
	}
	b.closing = true
	b.mu.Unlock()

	err := b.drain(ctx)
	return errors.Join(err, b.release())
}

// drain waits for the messages in flight.
func (b *Bus) drain(ctx context.Context) error {
	published := make(chan struct{})
	go func() {
		defer close(published)
		b.inFlight.Wait()
	}()
	for _, wait := range []func() <-chan struct{}{
		func() <-chan struct{} { return published },
		b.js.PublishAsyncComplete,
		func() <-chan struct{} {
			if err := b.conn.Drain(); err != nil {
				b.conn.Close()
			}
			return b.closed
		},
	} {
		select {
		case <-wait():
		case <-ctx.Done():
			return contextError(ctx.Err(), "waiting for messages in flight")
		}
	}
	return nil
}

// release frees what Open took, as far as it got.
func (b *Bus) release() error {
	var errs []error
	if b.conn != nil {
		b.conn.Close()
		<-b.closed
	}
	if b.embedded != nil {
		errs = append(errs, removeRunFile(b.dir))
		b.embedded.stop()
	}
	if b.commits != nil {
		if b.embedded != nil {
			errs = append(errs, b.sync(context.Background()))
		}
		errs = append(errs, b.commits.close())
	}
	if b.lock != nil {
		errs = append(errs, b.lock.Unlock())
	}
	return errors.Join(errs...)
}
