package natslog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/crdt/snapshots"
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/telemetry"
)

// Code classifies an [Error]. Errors of the document itself are those of packages crdt and replica.
type Code string

// The codes of an [Error].
const (
	CodeInvalid Code = "INVALID_LOG"     // an invalid argument
	CodeStorage Code = "LOG_UNAVAILABLE" // the server does not respond as it should
	CodeFull    Code = "LOG_BACKLOG"     // too many changes wait for the server
	CodeEntry   Code = "LOG_ENTRY_BAD"   // an entry of the log cannot be decoded
	CodeLost    Code = "LOG_EDITS_LOST"  // the epoch ended before edits were in the log, and they could not be carried over
)

// Error is what the package returns. Its fields are Code, Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func failed(code Code, cause error, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: cause}
}

func errClosed() error { return failed(CodeStorage, nil, "the document is closed") }

// Options configure a Document. Agent and Document are required. All replicas of a document need the same
// Namespace, Limits and Counters.
type Options struct {
	Agent     string // the agent that this replica writes for
	Document  string // the name: up to 128 letters, digits and any of _ - =
	Namespace string // prefix of subjects and streams: up to 64 letters, digits and any of _ -; "" for "parley"
	Replicas  int    // JetStream replicas of new streams; 0 means 1

	// SnapshotEvery is the number of entries, or the volume in KiB, after which a snapshot is stored, ±25
	// %; 0 means 1000.
	SnapshotEvery int
	// Keeper makes this replica begin a new epoch when the document is worn; see [crdt.Churn]. Several may
	// be keepers.
	Keeper bool

	Access    func(agent string) replica.Access // see package replica; nil grants all rights
	Limits    *crdt.Limits                      // nil for crdt.LiveLimits
	Counters  []string                          // root counters that a new epoch reduces to one entry with the sum
	Interval  time.Duration                     // between comparisons with other replicas, ±20 %; 0 means 30 s
	Logger    *slog.Logger                      // nil for none
	Telemetry telemetry.Sink                    // receives error and security events; nil for none
}

var (
	documentName  = text.Pattern(`^[A-Za-z0-9_=-]{1,128}$`)
	namespaceName = text.Pattern(`^[A-Za-z0-9_-]{1,64}$`)
)

// Document is a replica of a document that is shared through a log. It is safe for concurrent use. The
// replica's methods Receive, Load, Advance and Leave are reserved for this package.
type Document struct {
	*replica.Replica
	js      jetstream.JetStream
	options Options
	log     *slog.Logger
	writer  string // random id, prefix of the entries' message ids

	outbox   *outbox
	place    *place
	requests chan request // for the follower

	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup

	// The follower's goroutine owns these.
	store     *snapshots.Store
	head      snapshots.Head    // the newest known
	number    uint64            // how many of its states without an entry are included here
	since     int               // entries after it
	volume    int               // bytes of those
	due       int               // entries after which a snapshot is stored
	closed    *closing          // the epoch has ended at place
	needs     map[string]uint64 // updates known to be missing, by session
	suspect   int               // how often to ask because of an entry that could not be decoded
	asking    wait.Backoff      // between questions
	answered  time.Time         // when a question was last answered
	waitUntil time.Time         // until when to wait for others to store what is missing
	joined    chan<- error      // nil once Open has returned
	mustStore bool              // store what is known here once the log has been read
	last      uint64            // sequence of the last entry read
	lastID    string            // its message id
}

// request is a request to the follower.
type request struct {
	do    func(ctx context.Context) error
	ended chan error
}

// Open opens a document, an empty one if it does not exist. It blocks until everything that the log
// contained at the beginning is applied. The connection stays the caller's and must outlive the document.
func Open(ctx context.Context, js jetstream.JetStream, o Options) (*Document, error) {
	if o.Namespace == "" {
		o.Namespace = "parley"
	}
	switch {
	case js == nil:
		return nil, failed(CodeInvalid, nil, "a log needs a JetStream context")
	case !documentName().MatchString(o.Document):
		return nil, failed(CodeInvalid, nil, "a document's name has up to 128 letters, digits and any of _ - =")
	case !namespaceName().MatchString(o.Namespace):
		return nil, failed(CodeInvalid, nil, "a namespace has up to 64 letters, digits and any of _ -")
	}
	defaults.Set(&o.SnapshotEvery, 1000)
	defaults.Set(&o.Interval, 30*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var writer [12]byte
	rand.Read(writer[:]) // never fails
	d := &Document{
		js: js, options: o, log: o.Logger.With("document", o.Document), writer: hex.EncodeToString(writer[:]),
		outbox: new(outbox), place: &place{bad: map[uint64]bool{}}, requests: make(chan request), needs: map[string]uint64{},
		asking: wait.Backoff{First: firstAsk, Most: maxAsk},
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
	d.done.Go(d.follow)
	d.done.Go(d.publish)
	select {
	case err = <-joined:
	case <-ctx.Done():
		err = failed(CodeStorage, ctx.Err(), "the log of the document %s could not be read to its end", o.Document)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Edit makes the edits of f one change, which is in the log after [Document.Flush]. If f fails nothing has
// changed. Edit fails while more than 32 MiB wait for the server.
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

// Flush blocks until everything made here before is in the log.
func (d *Document) Flush(ctx context.Context) error { return d.outbox.flush(ctx, d.ctx) }

// Snapshot stores a snapshot now.
func (d *Document) Snapshot(ctx context.Context) error {
	return d.ask(ctx, func(ctx context.Context) error { return d.snapshot(ctx, false, 0) })
}

// Compact ends the epoch and begins the next with the visible content, without history. All replicas
// follow. Compact blocks until this one has. Handles, observers and undo managers of the former document
// become unusable; see [replica.Update].
func (d *Document) Compact(ctx context.Context) error {
	if err := d.Flush(ctx); err != nil { // otherwise the edits would have to be carried over
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
	switch {
	case d.place.changed.Until(ctx, d.ctx.Done(), func() bool { return d.Epoch() > epoch }):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return errClosed()
}

// renew requests that the follower end the epoch. It does not block.
func (d *Document) renew(string) {
	epoch := d.Epoch()
	select {
	case d.requests <- request{do: func(ctx context.Context) error { return d.end(ctx, epoch) }, ended: make(chan error, 1)}:
	default: // the next check asks again
	}
}

// ask lets the follower run do and waits for the result.
func (d *Document) ask(ctx context.Context, do func(ctx context.Context) error) error {
	w := request{do: do, ended: make(chan error, 1)}
	select {
	case d.requests <- w:
	case <-ctx.Done():
		return ctx.Err()
	case <-d.ctx.Done():
		return errClosed()
	}
	select {
	case err := <-w.ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-d.ctx.Done():
		return errClosed()
	}
}

// Close closes the replica and waits for its goroutines. Edits that are not in the log are lost: call Flush
// before. A handler of OnUpdate must not call it.
func (d *Document) Close() error {
	d.stop()
	d.done.Wait()
	return d.Replica.Close()
}
