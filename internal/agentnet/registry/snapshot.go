package registry

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// A snapshot is all valid entries of the registry. It is immutable. The next one reads only what was written since,
// and everything once per collect interval: what an operator purges leaves no tombstone.
type snapshot struct {
	byGUID map[string]StoredEntry
	list   []StoredEntry // most recently active first
	last   uint64        // the newest message of the registry in it
	full   time.Time     // when everything was read
}

// Entries returns all valid entries, the most recently active first. The caller must not change them.
func (g *Registry) Entries(ctx context.Context, b *bus.Bus) ([]StoredEntry, error) {
	g.mu.Lock()
	before := g.snapshot
	g.mu.Unlock()
	now := g.cfg.Now()
	next := snapshot{full: now}
	if before != nil && now.Sub(before.full) <= g.cfg.CollectInterval {
		next = *before
	}
	return g.readSnapshot(ctx, b, next, before)
}

// readSnapshot reads what next lacks. Entries of before are not validated again.
func (g *Registry) readSnapshot(ctx context.Context, b *bus.Bus, next snapshot, before *snapshot) ([]StoredEntry, error) {
	prefix := store.BucketKeys + g.cfg.Bucket + "."
	byGUID := maps.Clone(next.byGUID)
	if byGUID == nil {
		byGUID = map[string]StoredEntry{}
	}
	changed := next.list == nil
	err := store.Scan(ctx, b, g.cfg.RegistryStream(), prefix+"*", next.last+1, func(m store.Message) bool {
		next.last, changed = m.Sequence, true
		guid := strings.TrimPrefix(m.Subject, prefix)
		delete(byGUID, guid)
		if store.IsTombstone(m.Header) {
			return true
		}
		e, err := before.read(guid, m)
		if err != nil {
			g.Log().Debug("an invalid entry of the registry is skipped", "guid", guid, "error", err)
			return true
		}
		byGUID[guid] = e
		return true
	})
	if err != nil {
		return nil, err
	}
	oldest := g.Now().Add(-g.cfg.RegistryTTL)
	for guid, e := range byGUID {
		if e.seen.Before(oldest) { // the server expires entries without a tombstone
			delete(byGUID, guid)
			changed = true
		}
	}
	if changed {
		list := slices.AppendSeq(make([]StoredEntry, 0, len(byGUID)), maps.Values(byGUID)) // made once: a hub does it after each heartbeat
		slices.SortFunc(list, moreRecent)
		next.byGUID, next.list = byGUID, list
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.snapshot == nil || next.full.After(g.snapshot.full) || next.full.Equal(g.snapshot.full) && next.last > g.snapshot.last {
		g.snapshot = &next
	}
	return next.list, nil
}

func moreRecent(x, y StoredEntry) int {
	if c := y.beat.Compare(x.beat); c != 0 {
		return c
	}
	return strings.Compare(x.GUID, y.GUID)
}

// read decodes an entry. One that differs from the snapshot's only by the time of its
// heartbeat is not validated again: validation takes most of the time.
func (s *snapshot) read(guid string, m store.Message) (StoredEntry, error) {
	e := StoredEntry{revision: m.Sequence, seen: m.Time, raw: m.Data}
	if s != nil {
		have, ok := s.byGUID[guid]
		if ok && have.revision == m.Sequence {
			return have, nil
		}
		if ok && have.copyTo(&e) {
			return e, nil
		}
	}
	var err error
	if e.Entry, err = DecodeEntry(m.Data); err != nil {
		return StoredEntry{}, err
	}
	if e.GUID != guid {
		return StoredEntry{}, fmt.Errorf("it names the GUID %s", store.Quote(e.GUID))
	}
	e.beat = store.ParseTime(e.LastHeartbeat)
	return e, nil
}

// copyTo fills in the fields of newer if its JSON is that of s but for the time of the heartbeat.
func (s StoredEntry) copyTo(newer *StoredEntry) bool {
	if len(newer.raw) != len(s.raw) {
		return false
	}
	from, to := heartbeatIn(s.raw)
	if from == to || string(s.raw[from:to]) != s.LastHeartbeat ||
		!bytes.Equal(s.raw[:from], newer.raw[:from]) || !bytes.Equal(s.raw[to:], newer.raw[to:]) {
		return false
	}
	text := string(newer.raw[from:to])
	beat, err := time.Parse(store.TimestampFormat, text)
	if err != nil {
		return false
	}
	newer.Entry, newer.LastHeartbeat, newer.beat = s.Entry, text, beat
	return true
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
