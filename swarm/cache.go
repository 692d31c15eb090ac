package swarm

import (
	"container/list"
	"context"
	"sync"
)

// Bounds of the session cache. Beyond them the least recently used session is dropped.
const (
	maxCached      = 1000
	maxCachedBytes = 64 << 20 // of records
)

// sessionCache holds the sessions of swarms that others lead: it reads a journal once,
// and then the new records. It is safe for concurrent use.
type sessionCache struct {
	journal Journal

	most int // bytes

	mu     sync.Mutex
	byID   map[string]*list.Element // of *cachedSession
	recent list.List                // the most recently used in front
	bytes  int
}

// cachedSession is one swarm. The holder of token owns it, except for size.
type cachedSession struct {
	id    string
	token chan struct{}
	x     *state // nil: nothing is read yet
	seen  uint64 // Journal.LastOf when it was read last
	size  int    // bytes of records that were read; sessionCache.mu guards it
}

func newSessionCache(j Journal) *sessionCache {
	return &sessionCache{journal: j, most: maxCachedBytes, byID: make(map[string]*list.Element)}
}

// session returns a swarm's present session.
func (f *sessionCache) session(ctx context.Context, id string) (Session, error) {
	last, err := f.journal.LastOf(ctx, id)
	if err != nil {
		return Session{}, &Error{Code: CodeJournal, Subject: id, Message: "the journal cannot be read", Err: err}
	}
	return f.sessionAt(ctx, id, last)
}

// sessionAt returns the session of a swarm whose last record has this sequence; 0 means
// that it has none.
func (f *sessionCache) sessionAt(ctx context.Context, id string, last uint64) (Session, error) {
	if last == 0 {
		f.forget(id)
		return Session{}, notFound(id)
	}
	one := f.get(id)
	select {
	case one.token <- struct{}{}:
	case <-ctx.Done():
		return Session{}, ctx.Err()
	}
	defer func() { <-one.token }()
	if last > one.seen || one.x == nil {
		if err := f.read(ctx, one, last); err != nil {
			return Session{}, err
		}
	}
	return one.x.snapshot(), nil
}

// read reads the rest of a journal. If it does not continue what was read before, the
// journal was deleted and made again, and is read from the beginning.
func (f *sessionCache) read(ctx context.Context, one *cachedSession, last uint64) error {
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

// get returns a swarm's entry and marks it as recently used.
func (f *sessionCache) get(id string) *cachedSession {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := f.byID[id]; at != nil {
		f.recent.MoveToFront(at)
		return at.Value.(*cachedSession)
	}
	one := &cachedSession{id: id, token: make(chan struct{}, 1)}
	f.byID[id] = f.recent.PushFront(one)
	f.trim()
	return one
}

// keep adds an entry that was read again, unless another has replaced it.
func (f *sessionCache) keep(one *cachedSession, bytes int) {
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

func (f *sessionCache) grow(one *cachedSession, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := f.byID[one.id]; at == nil || at.Value != one {
		return // it was dropped
	}
	one.size += bytes
	f.bytes += bytes
	f.trim()
}

func (f *sessionCache) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := f.byID[id]; at != nil {
		f.drop(at)
	}
}

// trim applies the bounds. f.mu is held.
func (f *sessionCache) trim() {
	for f.bytes > f.most || f.recent.Len() > maxCached {
		f.drop(f.recent.Back())
	}
}

func (f *sessionCache) drop(at *list.Element) {
	one := f.recent.Remove(at).(*cachedSession)
	delete(f.byID, one.id)
	f.bytes -= one.size
	one.size = 0
}
