package swarm

import (
	"context"
	"sync"
	"time"
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

	mu    sync.Mutex
	byID  map[string]*cachedSession
	bytes int
}

// cachedSession is one swarm. The holder of token owns x and seen; sessionCache.mu guards size and used.
type cachedSession struct {
	id    string
	token chan struct{}
	x     *state // nil: nothing is read yet
	seen  uint64 // Journal.LastOf when it was read last
	size  int    // bytes of records that were read
	used  time.Time
}

func newSessionCache(j Journal) *sessionCache {
	return &sessionCache{journal: j, most: maxCachedBytes, byID: make(map[string]*cachedSession)}
}

// session returns a swarm's present session.
func (f *sessionCache) session(ctx context.Context, id string) (Session, error) {
	last, err := f.journal.LastOf(ctx, id)
	if err != nil {
		return Session{}, &Error{Code: CodeJournal, Subject: id, Message: "the journal cannot be read", Err: err}
	}
	return f.sessionAt(ctx, id, last)
}

// sessionAt returns the session of a swarm whose last record has this sequence; 0 means that it has none.
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
		if n, err := one.x.catchUp(ctx, f.journal, one.id); err == nil {
			one.seen = last
			f.keep(one, n)
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

// get returns a swarm's entry.
func (f *sessionCache) get(id string) *cachedSession {
	f.mu.Lock()
	one := f.byID[id]
	f.mu.Unlock()
	if one == nil {
		one = &cachedSession{id: id, token: make(chan struct{}, 1)}
	}
	return f.keep(one, 0)
}

// keep notes that an entry is used and how many bytes more were read. It returns the
// entry, or the one that has replaced it. Beyond the bounds it drops others.
func (f *sessionCache) keep(one *cachedSession, bytes int) *cachedSession {
	f.mu.Lock()
	defer f.mu.Unlock()
	if have := f.byID[one.id]; have == nil {
		f.byID[one.id] = one
		f.bytes += one.size
	} else if have != one {
		return have
	}
	one.used = time.Now()
	one.size += bytes
	f.bytes += bytes
	for f.bytes > f.most || len(f.byID) > maxCached {
		oldest := one
		for _, other := range f.byID {
			if other.used.Before(oldest.used) {
				oldest = other
			}
		}
		f.drop(oldest)
	}
	return one
}

func (f *sessionCache) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.byID[id]; one != nil {
		f.drop(one)
		one.size = 0
	}
}

func (f *sessionCache) drop(one *cachedSession) {
	delete(f.byID, one.id)
	f.bytes -= one.size
}
