package documents

import (
	"context"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/bus"
)

// Options set up a Library.
type Options struct {
	Bus    *bus.Bus     // required
	Name   string       // the hub's on the bus; required
	Logger *slog.Logger // nil for none
	// Interval between looks at a document, for whether it is as its copies and whether it is worn; 0 for
	// that of package replica.
	Interval time.Duration
}

// Library has the documents of a hub. It is safe for concurrent use.
type Library struct {
	store    *store
	log      *slog.Logger
	interval time.Duration

	mu      sync.Mutex
	open    map[string]*opening
	maxOpen int                        // MaxDocuments but in tests
	most    int                        // MaxStored but in tests
	idle    time.Duration              // idleTime but in tests
	former  map[string]*replica.Former // of documents that have a new epoch and are not open
	closed  bool

	compacting sync.Mutex // held while an epoch begins, before mu
	renewals   sync.WaitGroup
}

// opening is a document that is open, or being opened.
type opening struct {
	done    chan struct{}
	doc     *Document
	err     error
	evicted bool // it was closed to make room for others
}

// MaxDocuments bounds how many documents may be open, and MaxStored how many there may be. Of some that are made at the
// same moment there may be a few more.
const (
	MaxDocuments = 1000
	MaxStored    = 10_000
)

// Open opens the library.
func Open(ctx context.Context, o Options) (*Library, error) {
	s, err := openStore(ctx, o.Bus, o.Name)
	if err != nil {
		return nil, err
	}
	l := &Library{store: s, log: o.Logger, interval: o.Interval, open: map[string]*opening{}, maxOpen: MaxDocuments, most: MaxStored, idle: idleTime, former: map[string]*replica.Former{}}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	return l, nil
}

var nameForm = regexp.MustCompile(`^([a-z0-9-]{1,64}=)?[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// InProject returns the name of a project's document, apart from those of other
// projects.
func InProject(namespace, name string) string { return namespace + "=" + name }

// CheckName says whether a document may have a name.
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return &Error{Code: CodeInvalid, Message: "a document's name has up to 64 letters, digits, - and _, and begins with a letter or digit"}
	}
	return nil
}

// Names lists the documents that there are, in order.
func (l *Library) Names(ctx context.Context) ([]string, error) {
	names, err := l.store.names(ctx)
	slices.Sort(names)
	return names, err
}

// Get returns a document that there is.
func (l *Library) Get(ctx context.Context, name string) (*Document, error) {
	return l.get(ctx, name, false)
}

// Ensure returns a document, a new one if there is none of this name.
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
			made := l.evict(ctx)
			l.mu.Unlock()
			if !made {
				return nil, &Error{Code: CodeStorage, Message: "too many documents are open at once", Remedy: "try again in a minute"}
			}
			return l.get(ctx, name, create) // unless somebody else has taken the room
		}
		o = &opening{done: make(chan struct{})}
		l.open[name] = o
		with := opened{interval: l.interval, max: l.most, former: l.former[name], renew: func(why string) { l.renew(name, why) }}
		delete(l.former, name)
		l.mu.Unlock()
		o.doc, o.err = openDocument(ctx, l.store, name, create, with, l.log)
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
		if o.evicted {
			return l.get(ctx, name, create)
		}
		if o.err != nil && create && CodeOf(o.err) == CodeNotFound {
			return l.get(ctx, name, create) // the other did not want a new one
		}
		return o.doc, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// idleTime is how long nobody has looked at a document that is closed to make room.
const idleTime = time.Minute

// evict closes the document that was not used for longest, if there is one that nobody uses. The
// lock is held, before and after; it reports false if there is none, or the document could not be stored.
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
	// Whoever wants it meanwhile waits until it is closed, and then opens it.
	closing := &opening{done: make(chan struct{}), evicted: true}
	l.open[name] = closing
	l.mu.Unlock()
	err := oldest.doc.close(ctx)
	l.mu.Lock()
	delete(l.open, name)
	close(closing.done)
	if err != nil {
		l.log.Error("a document was closed before all of it was stored", "document", name, "error", err)
	}
	return err == nil && len(l.open) < l.maxOpen
}

// Documents lists the names, as package client does.
func (l *Library) Documents(ctx context.Context) ([]string, error) { return l.Names(ctx) }

// Document returns a document as it is.
func (l *Library) Document(ctx context.Context, name string) (*Content, error) {
	d, err := l.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := d.Content(ctx)
	return &c, err
}

// EditDocument makes edits one change and returns the document, once that is durable. An error with
// [CodeUncertain] says that the edits may have been made; after any other they were not.
func (l *Library) EditDocument(ctx context.Context, name string, edits []Edit) (*Content, error) {
	for {
		err := l.change(ctx, name, edits)
		if err == nil {
			break
		}
		if CodeOf(err) != CodeClosed || l.ended() {
			return nil, err
		}
		select { // the document has just begun a new epoch
		case <-time.After(reopening):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	c, err := l.AwaitDocument(ctx, name, "") // in whatever epoch it is by now
	if err != nil {
		return nil, &Error{
			Code: CodeUncertain, Err: err, Message: "the edit of the document " + name + " was made, and the document cannot be read at the moment",
			Remedy: "look at the document before you make the edit again",
		}
	}
	return c, nil
}

func (l *Library) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// change makes edits one change of a document, which is made if there is none.
func (l *Library) change(ctx context.Context, name string, edits []Edit) error {
	d, err := l.Get(ctx, name)
	if CodeOf(err) == CodeNotFound {
		// Edits that cannot be made must not make a document.
		if err := Apply(crdt.New(crdt.Options{}), edits); err != nil {
			return err
		}
		d, err = l.Ensure(ctx, name)
	}
	if err != nil {
		return err
	}
	return d.Change(ctx, edits)
}

// reopening is about how long it takes until a new epoch of a document is there.
const reopening = 10 * time.Millisecond

// AwaitDocument returns a document as soon as it is another than seen, whatever epoch it is in then.
func (l *Library) AwaitDocument(ctx context.Context, name, seen string) (*Content, error) {
	for {
		d, err := l.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		c, err := d.Wait(ctx, seen)
		if CodeOf(err) != CodeClosed {
			return &c, err
		}
		select {
		case <-time.After(reopening):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Compact begins a new epoch of a document, with its content and without its history. Who
// has it open must open it anew. What agents wrote for the old epoch, and the hub had not heard of, is
// carried over if it comes within an hour and this process lives; a browser's copy is not.
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
	// Whatever came of it, the store has a head that holds: open that.
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

// renewPatience bounds how long a new epoch may take to begin.
const renewPatience = time.Minute

// renew begins a new epoch of a document that is worn. If that fails, its replica asks again.
func (l *Library) renew(name, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.renewals.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), renewPatience)
		defer cancel()
		before, after, err := l.Compact(ctx, name)
		if err != nil {
			l.log.Error("a document's new epoch did not begin", "document", name, "because", why, "error", err)
			return
		}
		l.log.Info("a document has begun a new epoch", "document", name, "because", why, "items", before, "left", after)
	})
}

// Close stores what is not stored yet and ends all documents.
func (l *Library) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.renewals.Wait()
	l.mu.Lock()
	open := l.open
	l.open = map[string]*opening{}
	l.mu.Unlock()
	var first error
	for _, o := range open {
		<-o.done
		if o.doc == nil {
			continue
		}
		if err := o.doc.close(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}
