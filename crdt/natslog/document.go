package natslog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/crdt/snapshots"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/telemetry"
)

// Options set up a Document. Agent and Document are needed; all who share a document need the same
// Namespace, Limits and Counters.
type Options struct {
	Agent     string // whom this replica writes for
	Document  string // its name: up to 128 letters, digits and any of _ - =
	Namespace string // what subjects and streams begin with: up to 64 letters, digits and any of _ -; "" for "parley"
	Replicas  int    // of the streams, if they are made; 0 means 1

	// SnapshotEvery is how many entries of the log, or a thousandth of that in MiB, a snapshot is taken
	// after, give or take a quarter; 0 means 1000.
	SnapshotEvery int
	// Keeper has this replica begin a new epoch when the document is worn; see [crdt.Churn]. Several may be keepers.
	Keeper bool

	Access    func(agent string) replica.Access // as of package replica; nil allows everything
	Limits    *crdt.Limits                      // nil for crdt.LiveLimits
	Counters  []string                          // root counters of which a new epoch keeps the sum in one entry
	Interval  time.Duration                     // between looks at whether all have the same, give or take a fifth; 30 s
	Logger    *slog.Logger                      // nil for none
	Telemetry telemetry.Sink                    // gets error and security events; nil for none
}

var (
	documentName  = regexp.MustCompile(`^[A-Za-z0-9_=-]{1,128}$`)
	namespaceName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
)

// Document is a replica of a document that is shared through a log. It is safe for concurrent use. Of the
// replica's methods those of the log are not for callers: Receive, Load, Advance and Leave.
type Document struct {
	*replica.Replica
	js      jetstream.JetStream
	options Options
	log     *slog.Logger
	writer  string // of entries, drawn at random

	outbox *outbox
	place  *place
	wants  chan want // for the follower

	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup

	// Of the follower.
	store   *snapshots.Store
	head    snapshots.Head    // the newest that is known
	number  uint64            // of its states that no entry has, those that are here
	since   int               // entries behind it
	volume  int               // bytes of them
	due     int               // entries after which a snapshot is taken
	closed  *closing          // the epoch has ended at place
	needs   map[string]uint64 // updates that are known to be missing, by session
	suspect int               // how often to ask because of an entry that could not be read
	asking  time.Duration     // pause before asking again
	told    time.Time         // when a question was answered last
	hopes   time.Time         // until when others may bring what is missing
	joined  chan<- error      // nil once this document has joined
	owes    bool              // what is known here is to be stored, once the log has been read
	last    uint64            // the sequence of the entry that was read last
	lastID  string            // and its message id
}

// want is something that the follower is to do.
type want struct {
	do    func(ctx context.Context) error
	ended chan error
}

// Open joins a document, which begins empty if nobody has made it. It returns when all that the log had at the
// beginning has been applied. The connection is the caller's and must outlive the document.
func Open(ctx context.Context, js jetstream.JetStream, o Options) (*Document, error) {
	if o.Namespace == "" {
		o.Namespace = "parley"
	}
	switch {
	case js == nil:
		return nil, failed(CodeInvalid, nil, "a log needs a JetStream")
	case !documentName.MatchString(o.Document):
		return nil, failed(CodeInvalid, nil, "a document's name has up to 128 letters, digits and any of _ - =")
	case !namespaceName.MatchString(o.Namespace):
		return nil, failed(CodeInvalid, nil, "a namespace has up to 64 letters, digits and any of _ -")
	}
	if o.SnapshotEvery <= 0 {
		o.SnapshotEvery = 1000
	}
	if o.Interval <= 0 {
		o.Interval = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var writer [12]byte
	rand.Read(writer[:]) // never fails
	d := &Document{
		js: js, options: o, log: o.Logger.With("document", o.Document), writer: hex.EncodeToString(writer[:]),
		outbox: newOutbox(0), place: newPlace(), wants: make(chan want), needs: map[string]uint64{},
	}
	d.draw()
	var err error
	d.Replica, err = replica.New(replica.Options{
		Agent: o.Agent, State: o.Document, Log: d.outbox.put, Access: o.Access, Limits: o.Limits, Counters: o.Counters,
		Keeper: o.Keeper, Renew: d.renew, Interval: o.Interval, Logger: o.Logger, Telemetry: o.Telemetry,
	})
	if err != nil {
		return nil, err
	}
	d.ctx, d.stop = context.WithCancel(context.Background())
	joined := make(chan error, 1)
	d.joined = joined
	d.done.Add(2)
	go d.follow()
	go d.publish()
	select {
	case err = <-joined:
	case <-ctx.Done():
		err = failed(CodeStorage, ctx.Err(), "the log of the document %s was not read to its end", o.Document)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Edit makes the edits of f one change, which is in the log when [Document.Flush] says so. An error of f takes
// the edits back. While more than 32 MiB wait for the server it fails.
func (d *Document) Edit(ctx context.Context, f func(doc *crdt.Doc) error) error {
	if err := d.outbox.room(); err != nil {
		return err
	}
	return d.Replica.Edit(ctx, f)
}

// Do is Edit for a function that makes its own transactions.
func (d *Document) Do(ctx context.Context, f func(doc *crdt.Doc) error) error {
	if err := d.outbox.room(); err != nil {
		return err
	}
	return d.Replica.Do(ctx, f)
}

// Flush waits until all that was made here before is in the log, from where all others get it.
func (d *Document) Flush(ctx context.Context) error { return d.outbox.flush(ctx, d.ctx) }

// Snapshot stores a snapshot now, for those who join.
func (d *Document) Snapshot(ctx context.Context) error {
	return d.ask(ctx, func(ctx context.Context) error { return d.snapshot(ctx, false) })
}

// Compact ends the epoch and begins the next, with what the document shows and none of its history. All
// follow. It returns when this replica has. Handles, observers and undo managers of the former document are of no
// more use, see [replica.Update].
func (d *Document) Compact(ctx context.Context) error {
	if err := d.Flush(ctx); err != nil { // what is not in the log would have to be carried over
		return err
	}
	epoch := d.Epoch()
	err := d.ask(ctx, func(ctx context.Context) error { return d.end(ctx, epoch) })
	for errors.Is(err, errLacking) {
		wait.Pause(d.ctx, firstPause)
		err = d.ask(ctx, func(ctx context.Context) error { return d.end(ctx, epoch) })
	}
	if err != nil {
		return err
	}
	return d.place.wait(ctx, d.ctx, func() bool { return d.Epoch() > epoch })
}

// renew is told that the epoch should end; it must not block.
func (d *Document) renew(string) {
	epoch := d.Epoch()
	select {
	case d.wants <- want{do: func(ctx context.Context) error { return d.end(ctx, epoch) }, ended: make(chan error, 1)}:
	default: // the next examination tells it again
	}
}

// ask has the follower do something and waits for its end.
func (d *Document) ask(ctx context.Context, do func(ctx context.Context) error) error {
	w := want{do: do, ended: make(chan error, 1)}
	select {
	case d.wants <- w:
	case <-ctx.Done():
		return ctx.Err()
	case <-d.ctx.Done():
		return failed(CodeStorage, nil, "the document is closed")
	}
	select {
	case err := <-w.ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-d.ctx.Done():
		return failed(CodeStorage, nil, "the document is closed")
	}
}

// Close ends the replica and waits for its goroutines. What is not in the log is lost: call Flush
// before. A handler of OnUpdate must not call it.
func (d *Document) Close() error {
	d.stop()
	d.done.Wait()
	return d.Replica.Close()
}
