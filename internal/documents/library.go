// Package documents stores the hub's shared documents, by name, on the bus.
//
// Each change is appended to a log: one subject per document and epoch, in a stream without retention limits. From
// time to time a snapshot of the state is stored in parts in a second stream, and the head, a key, points to it. A
// document is its newest snapshot and the log since then; all but the last two snapshots, and the log before them,
// are purged. A snapshot counts after it was read back and loaded into a second engine with an equal result. The head
// is changed last, by compare-and-set, so that head, snapshot and log are consistent after a crash at any moment.
//
// Only the hub writes the store: agents, people and browsers use documents through it. An edit returns once it is
// durable in the sense of the bus's mode.
package documents

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// Options configure a Library.
type Options struct {
	Bus    *bus.Bus     // required
	Name   string       // of the hub on the bus; required
	Logger *slog.Logger // nil for none
	// Interval between checks whether a document agrees with its replicas and needs a new epoch; 0 for the default of
	// package replica.
	Interval time.Duration
	// Changed is called when changes of a document are durable; nil for none. It must not block.
	Changed func(name string)
}

// Library holds the documents of a hub. It is safe for concurrent use.
type Library struct {
	store    *store
	log      *slog.Logger
	interval time.Duration
	changed  func(name string)

	mu       sync.Mutex
	open     map[string]*opening
	maxOpen  int                        // MaxDocuments, except in tests
	most     int                        // MaxStored, except in tests
	idle     time.Duration              // idleTime, except in tests
	grouping time.Duration              // groupPause, except in tests
	former   map[string]*replica.Former // previous epochs of documents that are not open
	closed   bool

	compacting sync.Mutex // held while an epoch begins; locked before mu
	renewals   wait.Group

	endRebuild    context.CancelFunc
	checked       chan struct{} // closed when lost heads have been rebuilt; rebuilt and rebuildFailed are the result
	rebuilt       []Rebuilt
	rebuildFailed error
}

// opening is a document that is open, being opened or, if evicted, being closed.
type opening struct {
	done    chan struct{}
	doc     *Document
	err     error
	evicted bool // closed to free a slot
}

// MaxDocuments bounds how many documents may be open, and MaxStored how many may exist; concurrent creations may
// exceed the latter by a few.
const (
	MaxDocuments = 1000
	MaxStored    = 10_000
)

// Open opens the library and creates its streams and buckets if they are missing.
func Open(ctx context.Context, o Options) (*Library, error) {
	s, err := openStore(ctx, o.Bus, o.Name)
	if err != nil {
		return nil, err
	}
	if o.Changed == nil {
		o.Changed = func(string) {}
	}
	l := &Library{
		store: s, changed: o.Changed, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), interval: o.Interval, open: map[string]*opening{},
		maxOpen: MaxDocuments, most: MaxStored, idle: idleTime, grouping: groupPause, former: map[string]*replica.Former{},
		checked: make(chan struct{}),
	}
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.endRebuild = cancel
	go l.rebuild(background)
	return l, nil
}

var nameForm = text.Pattern(`^([a-z0-9-]{1,64}=)?[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// InProject qualifies a document's name with the namespace of its project.
func InProject(namespace, name string) string { return namespace + "=" + name }

// CheckName returns an error with [CodeInvalid] if name is no valid name of a document.
func CheckName(name string) error {
	if !nameForm().MatchString(name) {
		return invalid("a document's name has up to 64 letters, digits, - and _, and begins with a letter or digit")
	}
	return nil
}

// Get opens a document. The error has [CodeNotFound] if there is none of this name.
func (l *Library) Get(ctx context.Context, name string) (*Document, error) {
	return l.get(ctx, name, false)
}

// Ensure opens a document and creates it if it is missing.
func (l *Library) Ensure(ctx context.Context, name string) (*Document, error) {
	return l.get(ctx, name, true)
}

func (l *Library) get(ctx context.Context, name string, create bool) (*Document, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, &Error{Code: CodeClosed, Message: "the hub stops"}
	}
	o := l.open[name]
	if o == nil {
		if len(l.open) >= l.maxOpen {
			freed := l.evict(ctx)
			l.mu.Unlock()
			if !freed {
				return nil, &Error{Code: CodeStorage, Message: "too many documents are open at once", Remedy: "try again in a minute"}
			}
			return l.get(ctx, name, create) // another goroutine may have taken the slot
		}
		o = &opening{done: make(chan struct{})}
		l.open[name] = o
		former := l.former[name]
		delete(l.former, name)
		l.mu.Unlock()
		o.doc, o.err = l.openDocument(ctx, name, create, former)
		if o.err != nil {
			l.mu.Lock()
			delete(l.open, name)
			l.mu.Unlock()
		}
		close(o.done)
		return o.doc, o.err
	}
	l.mu.Unlock()
	select {
	case <-o.done:
		if o.doc != nil {
			o.doc.used.Store(time.Now().UnixNano())
		}
		if o.evicted || create && CodeOf(o.err) == CodeNotFound { // it is closed now, or the other call was a Get
			return l.get(ctx, name, create)
		}
		return o.doc, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// idleTime is how long a document must be unused before it may be evicted.
const idleTime = time.Minute

// evict closes the least recently used document among the idle ones. It reports false if there is none or the
// document could not be stored. The caller holds the lock, which evict releases meanwhile.
func (l *Library) evict(ctx context.Context) bool {
	var name string
	var oldest *opening
	for n, o := range l.open {
		select {
		case <-o.done:
		default:
			continue // it is being opened, or closed
		}
		if o.doc != nil && o.doc.idle(l.idle) && (oldest == nil || o.doc.used.Load() < oldest.doc.used.Load()) {
			name, oldest = n, o
		}
	}
	if oldest == nil {
		return false
	}
	// A concurrent get of it waits until it is closed and reopens it.
	closing := &opening{done: make(chan struct{}), evicted: true}
	l.open[name] = closing
	l.mu.Unlock()
	err := oldest.doc.close(ctx)
	l.mu.Lock()
	delete(l.open, name)
	close(closing.done)
	if err != nil {
		l.log.Error("a document was closed before all of its changes were stored", "document", name, "error", err)
	}
	return err == nil && len(l.open) < l.maxOpen
}

// Documents lists the names of all documents, sorted.
func (l *Library) Documents(ctx context.Context) ([]string, error) { return l.store.names(ctx) }

// Document returns the current content of a document.
func (l *Library) Document(ctx context.Context, name string) (*Content, error) {
	d, err := l.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := d.Content(ctx)
	return &c, err
}

// EditDocument applies edits as one change and returns the document once the change is durable. After an error with
// [CodeUncertain] the edits may be applied; after any other error they are not.
func (l *Library) EditDocument(ctx context.Context, name string, edits []Edit) (*Content, error) {
	return l.EditVersion(ctx, name, "", edits)
}

// EditVersion is EditDocument if the document's version is seen; otherwise the error has [CodeChanged]. Positions in a text or
// list are thus those that the caller has seen. Every version is right if seen is "".
func (l *Library) EditVersion(ctx context.Context, name, seen string, edits []Edit) (*Content, error) {
	if err := l.retryClosed(ctx, func() error { return l.change(ctx, name, seen, edits) }); err != nil {
		return nil, err
	}
	c, err := l.AwaitDocument(ctx, name, "") // whatever the epoch
	if err != nil {
		return nil, uncertain(err, "the edit of the document %s was made, and the document cannot be read at the moment", name)
	}
	return c, nil
}

// retryClosed repeats f while a new epoch of the document begins.
func (l *Library) retryClosed(ctx context.Context, f func() error) error {
	for {
		err := f()
		l.mu.Lock()
		closed := l.closed
		l.mu.Unlock()
		if CodeOf(err) != CodeClosed || closed {
			return err
		}
		if !wait.Pause(ctx, reopening) {
			return ctx.Err()
		}
	}
}

// change applies edits as one change of a document, which is created if it is missing.
func (l *Library) change(ctx context.Context, name, seen string, edits []Edit) error {
	d, err := l.Get(ctx, name)
	if CodeOf(err) == CodeNotFound {
		// Invalid edits must not create a document.
		if err := Apply(crdt.New(crdt.Options{}), edits); err != nil {
			return err
		}
		d, err = l.Ensure(ctx, name)
	}
	if err != nil {
		return err
	}
	return d.changeVersion(ctx, seen, edits)
}

// reopening is about how long a document takes to begin a new epoch.
const reopening = 10 * time.Millisecond

// AwaitDocument blocks until a document's version differs from seen and returns the document, across epochs.
func (l *Library) AwaitDocument(ctx context.Context, name, seen string) (c *Content, err error) {
	err = l.retryClosed(ctx, func() error {
		d, err := l.Get(ctx, name)
		if err != nil {
			return err
		}
		now, err := d.Wait(ctx, seen)
		c = &now
		return err
	})
	return c, err
}

// Compact begins a new epoch of a document, which keeps its content and drops its history, and returns the number of
// items before and after. Whoever has the document open must reopen it. Changes that agents made in the old epoch and
// had not sent are merged if they arrive within an hour in this process; changes of browsers are not.
func (l *Library) Compact(ctx context.Context, name string) (before, after int, err error) {
	l.compacting.Lock()
	defer l.compacting.Unlock()
	d, err := l.Get(ctx, name)
	if err != nil {
		return 0, 0, err
	}
	s, err := d.Status(ctx)
	if err != nil {
		return 0, 0, err
	}
	var former *replica.Former
	if err = d.retire(ctx); err == nil {
		former, err = d.compact(ctx)
	}
	// The store has a consistent head, whether compaction succeeded or not: reopen the document from it.
	d.stop()
	d.done.Wait()
	d.Replica.Close()
	l.mu.Lock()
	delete(l.open, name)
	if err == nil {
		l.former[name] = former
	}
	l.mu.Unlock()
	if err != nil {
		return 0, 0, err
	}
	if d, err = l.Get(ctx, name); err != nil {
		return 0, 0, err
	}
	now, err := d.Status(ctx)
	return s.Items, now.Items, err
}

// renewTimeout bounds the compaction of a document.
const renewTimeout = time.Minute

// renew compacts a document in the background. If that fails, the replica asks again later.
func (l *Library) renew(name, why string) {
	l.renewals.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), renewTimeout)
		defer cancel()
		before, after, err := l.Compact(ctx, name)
		if err != nil {
			l.log.Error("a document could not begin a new epoch", "document", name, "because", why, "error", err)
			return
		}
		l.log.Info("a document has begun a new epoch", "document", name, "because", why, "items", before, "left", after)
	})
}

// Close stores all pending changes, closes the documents and returns the first error.
func (l *Library) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.endRebuild()
	<-l.checked
	l.renewals.Stop()
	l.renewals.Wait()
	l.mu.Lock()
	open := l.open
	l.open = map[string]*opening{}
	l.mu.Unlock()
	var closing errgroup.Group
	closing.SetLimit(maxClosing)
	for _, o := range open {
		closing.Go(func() error {
			if <-o.done; o.doc == nil {
				return nil
			}
			return o.doc.close(ctx)
		})
	}
	return closing.Wait()
}

// maxClosing is how many documents are closed at once: each waits for the disk most of the time.
const maxClosing = 8
