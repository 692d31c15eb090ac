package swarm

import (
	"container/list"
	"context"
	"sync"
)

// Bounds of what a coordinator keeps of swarms that it does not lead: beyond them the
// one that was asked for the longest time ago is forgotten, and read again when it is
// asked for.
const (
	maxFolds     = 1000
	maxFoldBytes = 64 << 20 // of records
)

// folds are swarms as their journals have them: read once, and then followed. They are
// safe for concurrent use.
type folds struct {
	journal Journal

	most int // bytes

	mu     sync.Mutex
	byID   map[string]*list.Element // of *fold
	recent list.List                // asked for most recently in front
	bytes  int
}

// fold is one swarm. Who has taken the token of turn owns it, but for size.
type fold struct {
	id   string
	turn chan struct{}
	x    *state // nil: nothing is read yet
	seen uint64 // Journal.LastOf when it was read last
	size int    // bytes of records that were read; folds.mu guards it
}

func newFolds(j Journal) *folds {
	return &folds{journal: j, most: maxFoldBytes, byID: make(map[string]*list.Element)}
}

// session returns a swarm as it stands.
func (f *folds) session(ctx context.Context, id string) (Session, error) {
	last, err := f.journal.LastOf(ctx, id)
	if err != nil {
		return Session{}, &Error{Code: CodeJournal, Subject: id, Message: "the journal cannot be read", Err: err}
	}
	return f.sessionAt(ctx, id, last)
}

// sessionAt returns a swarm whose last record has this sequence; 0: it has none.
func (f *folds) sessionAt(ctx context.Context, id string, last uint64) (Session, error) {
	if last == 0 {
		f.forget(id)
		return Session{}, notFound(id)
	}
	one := f.take(id)
	select {
	case one.turn <- struct{}{}:
	case <-ctx.Done():
		return Session{}, ctx.Err()
	}
	defer func() { <-one.turn }()
	if last > one.seen || one.x == nil {
		if err := f.read(ctx, one, last); err != nil {
			return Session{}, err
		}
	}
	return one.x.snapshot(), nil
}

// read follows a journal to its end. One that does not go on from what was read was
// forgotten meanwhile, and begun anew.
func (f *folds) read(ctx context.Context, one *fold, last uint64) error {
	if one.x != nil {
		n, err := one.x.catchUp(ctx, f.journal, one.id)
		if err == nil {
			one.seen = last
			f.grow(one, n)
			return nil
		}
	}
	one.x, one.seen = nil, 0
	f.forget(one.id)
	x := new(state)
	n, err := x.catchUp(ctx, f.journal, one.id)
	if err != nil {
		return err
	}
	one.x, one.seen = x, last
	f.keep(one, n)
	return nil
}

// take returns a swarm's fold, and counts it as asked for.
func (f *folds) take(id string) *fold {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := f.byID[id]; at != nil {
		f.recent.MoveToFront(at)
		return at.Value.(*fold)
	}
	one := &fold{id: id, turn: make(chan struct{}, 1)}
	f.byID[id] = f.recent.PushFront(one)
	f.trim()
	return one
}

// keep enters a fold that has been read anew, unless another has taken its place.
func (f *folds) keep(one *fold, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byID[one.id] != nil {
		return
	}
	f.byID[one.id] = f.recent.PushFront(one)
	one.size = bytes
	f.bytes += bytes
	f.trim()
}

func (f *folds) grow(one *fold, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := f.byID[one.id]; at == nil || at.Value != one {
		return // it is not kept any more
	}
	one.size += bytes
	f.bytes += bytes
	f.trim()
}

func (f *folds) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := f.byID[id]; at != nil {
		f.drop(at)
	}
}

// trim keeps to the bounds. f.mu is held.
func (f *folds) trim() {
	for f.bytes > f.most || f.recent.Len() > maxFolds {
		f.drop(f.recent.Back())
	}
}

func (f *folds) drop(at *list.Element) {
	one := f.recent.Remove(at).(*fold)
	delete(f.byID, one.id)
	f.bytes -= one.size
	one.size = 0
}
