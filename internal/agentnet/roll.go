package agentnet

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/bus"
)

// A roll is all valid entries of the registry. The next look reads only what was
// written since, and everything now and then: what an operator has purged leaves
// no trace. Nobody changes a roll.
type roll struct {
	byGUID map[string]seat
	list   []seat    // the most recently active first (REQ-TOOL-DISCOVER-005)
	last   uint64    // the newest message of the registry that it knows
	whole  time.Time // when everything was read
}

// seats returns all valid entries, the most recently active first. The caller
// does not change them.
func (n *Network) seats(ctx context.Context, b *bus.Bus) ([]seat, error) {
	n.mu.Lock()
	before := n.roll
	n.mu.Unlock()
	now := n.cfg.Now()
	if before == nil || now.Sub(before.whole) > n.cfg.CollectInterval {
		return n.readRoll(ctx, b, roll{whole: now}, before)
	}
	return n.readRoll(ctx, b, *before, before)
}

// readRoll reads what next lacks. What before knows need not be validated.
func (n *Network) readRoll(ctx context.Context, b *bus.Bus, next roll, before *roll) ([]seat, error) {
	prefix := bucketKeys + n.cfg.Bucket + "."
	byGUID := maps.Clone(next.byGUID)
	if byGUID == nil {
		byGUID = map[string]seat{}
	}
	changed := next.list == nil
	err := scan(ctx, b, n.registryStream(), prefix+"*", next.last+1, func(s stored) bool {
		next.last, changed = s.sequence, true
		guid := strings.TrimPrefix(s.subject, prefix)
		delete(byGUID, guid)
		if isMark(s.header) {
			return true
		}
		x, err := before.read(guid, s)
		if err != nil {
			n.log.Debug("an entry of the registry is skipped", "guid", guid, "error", err)
			return true
		}
		byGUID[guid] = x
		return true
	})
	if err != nil {
		return nil, err
	}
	oldest := n.clock.now().Add(-n.cfg.RegistryTTL)
	for guid, x := range byGUID {
		if x.seen.Before(oldest) { // the server has forgotten it, without a word
			delete(byGUID, guid)
			changed = true
		}
	}
	if changed {
		next.byGUID, next.list = byGUID, slices.SortedFunc(maps.Values(byGUID), moreRecent)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.roll == nil || next.whole.After(n.roll.whole) || next.whole.Equal(n.roll.whole) && next.last > n.roll.last {
		n.roll = &next
	}
	return next.list, nil
}

func moreRecent(x, y seat) int {
	if c := y.beat.Compare(x.beat); c != 0 {
		return c
	}
	return strings.Compare(x.GUID, y.GUID)
}

// read reads an entry. One that differs from what the roll has by the time of
// its heartbeat only is not validated again: to validate takes most of the time.
func (r *roll) read(guid string, s stored) (seat, error) {
	x := seat{revision: s.sequence, seen: s.time, raw: s.data}
	if r != nil {
		have, ok := r.byGUID[guid]
		if ok && have.revision == s.sequence {
			return have, nil
		}
		if ok && have.beatAgain(&x) {
			return x, nil
		}
	}
	var err error
	if x.Entry, err = decodeEntry(s.data); err != nil {
		return seat{}, err
	}
	if x.GUID != guid {
		return seat{}, fmt.Errorf("it names the GUID %s", quote(x.GUID))
	}
	x.beat = parseTime(x.LastHeartbeat)
	return x, nil
}

// beatAgain fills in the entry of x if its JSON is that of s but for the time of
// the heartbeat.
func (s seat) beatAgain(x *seat) bool {
	if len(x.raw) != len(s.raw) {
		return false
	}
	from, to := heartbeatIn(s.raw)
	if from == to || string(s.raw[from:to]) != s.LastHeartbeat ||
		!bytes.Equal(s.raw[:from], x.raw[:from]) || !bytes.Equal(s.raw[to:], x.raw[to:]) {
		return false
	}
	said := string(x.raw[from:to])
	when, err := time.Parse(timestampFormat, said)
	if err != nil {
		return false
	}
	x.Entry, x.LastHeartbeat, x.beat = s.Entry, said, when
	return true
}

// heartbeatIn returns where in an entry's JSON the time of the heartbeat is, without its
// quotes; nowhere if from is to.
func heartbeatIn(raw []byte) (from, to int) {
	const name = `"lastHeartbeat":"` // in no text, whose quotes are escaped
	at := bytes.Index(raw, []byte(name))
	if at < 0 {
		return 0, 0
	}
	from = at + len(name)
	length := bytes.IndexByte(raw[from:], '"')
	if length < 0 {
		return 0, 0
	}
	return from, from + length
}
