package registry

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// A snapshot is all valid entries of the registry. A read adds what was written since, and replaces everything once per collect
// interval: what an operator purges leaves no tombstone. Only whoever reads the registry uses it; its entries are never changed.
type snapshot struct {
	byGUID map[string]*StoredEntry
	list   []*StoredEntry // most recently active first; nil if it is to be made; never changed
	last   uint64         // the newest message of the registry in it
	full   time.Time      // when everything was read
}

// Entries returns all valid entries, the most recently active first. The caller must not change them. One caller at a time reads the
// registry.
func (g *Registry) Entries(ctx context.Context, b *bus.Bus) ([]*StoredEntry, error) {
	if err := g.reading.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer g.reading.Release(1)
	g.mu.Lock()
	before := g.snapshot
	g.mu.Unlock()
	now, next := g.cfg.Now(), before
	if before == nil || now.Sub(before.full) > g.cfg.CollectInterval {
		next = &snapshot{byGUID: make(map[string]*StoredEntry), full: now}
	}
	if err := g.read(ctx, b, next, before); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.snapshot == before {
		g.snapshot = next
	}
	return next.list, nil
}

// entriesOnce is Entries for a caller that seldom needs them. It keeps no snapshot where nobody else has one: every process of the network
// collects now and then.
func (g *Registry) entriesOnce(ctx context.Context, b *bus.Bus) ([]*StoredEntry, error) {
	g.mu.Lock()
	used := g.snapshot != nil
	g.mu.Unlock()
	all, err := g.Entries(ctx, b)
	if !used {
		g.mu.Lock()
		g.snapshot = nil
		g.mu.Unlock()
	}
	return all, err
}

// read adds to s what it lacks. Entries of before, which may be s or nil, are not validated again.
func (g *Registry) read(ctx context.Context, b *bus.Bus, s, before *snapshot) error {
	prefix := store.BucketKeys + g.cfg.Bucket + "."
	err := store.Scan(ctx, b, g.cfg.RegistryStream(), prefix+"*", s.last+1, func(m store.Message) bool {
		guid := strings.TrimPrefix(m.Subject, prefix)
		var e *StoredEntry
		if !store.IsTombstone(m.Header) {
			var err error
			if e, err = before.entry(guid, m); err != nil {
				g.Log().Debug("an invalid entry of the registry is skipped", "guid", guid, "error", err)
			}
		}
		s.last, s.list = m.Sequence, nil
		delete(s.byGUID, guid)
		if e != nil {
			s.byGUID[e.GUID] = e
		}
		return true
	})
	if err != nil {
		return err
	}
	oldest := g.Now().Add(-g.cfg.RegistryTTL)
	for guid, e := range s.byGUID {
		if e.seen.Before(oldest) { // the server expires entries without a tombstone
			delete(s.byGUID, guid)
			s.list = nil
		}
	}
	if s.list == nil {
		s.list = slices.AppendSeq(make([]*StoredEntry, 0, len(s.byGUID)), maps.Values(s.byGUID))
		slices.SortFunc(s.list, moreRecent)
	}
	return nil
}

func moreRecent(x, y *StoredEntry) int {
	if c := y.beat.Compare(x.beat); c != 0 {
		return c
	}
	return strings.Compare(x.GUID, y.GUID)
}

// entry decodes an entry. One that differs from the snapshot's only by the time of its heartbeat is not validated again: validation takes
// most of the time.
func (s *snapshot) entry(guid string, m store.Message) (*StoredEntry, error) {
	from, to := heartbeatIn(m.Data)
	text := string(m.Data[from:to])
	e := &StoredEntry{revision: m.Sequence, seen: m.Time, digest: digestAround(m.Data[:from], m.Data[to:])}
	if s != nil && s.byGUID[guid] != nil {
		have := s.byGUID[guid]
		if have.revision == m.Sequence {
			return have, nil
		}
		beat, err := time.Parse(store.TimestampFormat, text)
		if err == nil && have.digest == e.digest && have.isTimed {
			e.Entry, e.LastHeartbeat, e.beat, e.isTimed = have.Entry, text, beat, true
			return e, nil
		}
	}
	var err error
	if e.Entry, err = DecodeEntry(m.Data); err != nil {
		return nil, err
	}
	if e.GUID != guid {
		return nil, fmt.Errorf("it names the GUID %s", store.Quote(e.GUID))
	}
	e.share()
	e.beat, e.isTimed = store.ParseTime(e.LastHeartbeat), from < to && text == e.LastHeartbeat
	return e, nil
}

// digestAround returns the digest of an entry's JSON around the time of its heartbeat. It differs between processes.
func digestAround(before, after []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.Write(before) // it returns no error
	_, _ = h.Write(after)
	return h.Sum64()
}

var seed = maphash.MakeSeed()

// share replaces the texts of an entry that others have, too, by those of one of them.
func (e *Entry) share() {
	for _, text := range []*string{&e.AgentType, &e.Handle, &e.Hostname, &e.Username, &e.ProjectID, &e.Project, &e.Vendor, &e.NATSURL,
		(*string)(&e.Scope), (*string)(&e.Visibility), (*string)(&e.Status)} {
		*text = unique.Make(*text).Value()
	}
	for i, c := range e.Capabilities {
		e.Capabilities[i] = unique.Make(c).Value()
	}
	e.Capabilities = slices.Clone(e.Capabilities) // decoding leaves room for more
}

// heartbeatIn returns the position of the time of the heartbeat in an entry's JSON,
// without its quotes; from is to where there is none.
func heartbeatIn(raw []byte) (from, to int) {
	const name = `"lastHeartbeat":"` // no text contains it: quotes in text are escaped
	before, after, found := bytes.Cut(raw, []byte(name))
	length := bytes.IndexByte(after, '"')
	if !found || length < 0 {
		return 0, 0
	}
	from = len(before) + len(name)
	return from, from + length
}
