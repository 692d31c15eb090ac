package mesh

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/parleyhub/parley/internal/bus"
)

// readMarks say which of an agent's mail was read: everything up to Floor, and
// the messages in Above, in ascending order.
type readMarks struct {
	Floor uint64   `json:"floor"`
	Above []uint64 `json:"above,omitempty"`
}

func (r readMarks) read(seq uint64) bool {
	if seq <= r.Floor {
		return true
	}
	_, found := slices.BinarySearch(r.Above, seq)
	return found
}

// markValue is readMarks as they are stored.
type markValue struct {
	readMarks
	revision uint64
}

func (n *Network) markCell(guid string) cell { return cell{mailStream, readSubject + guid} }

func (a *Agent) readMark(ctx context.Context, b *bus.Bus) (markValue, error) {
	v, err := a.net.markCell(a.guid).read(ctx, b)
	if err != nil {
		return markValue{}, err
	}
	m := markValue{revision: v.revision}
	if !v.there() {
		return m, nil
	}
	return m, json.Unmarshal(v.data, &m.readMarks)
}

// currentMark is readMark, but of an inbox that was made anew, whose numbers
// begin again, nothing was read.
func (a *Agent) currentMark(ctx context.Context, b *bus.Bus) (markValue, error) {
	m, err := a.readMark(ctx, b)
	if err != nil || m.Floor == 0 {
		return m, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, a.net.inboxStream(a.guid))
	if err != nil {
		return m, err
	}
	if stream.CachedInfo().State.LastSeq < m.Floor {
		m.readMarks = readMarks{}
	}
	return m, nil
}

func (a *Agent) writeMark(ctx context.Context, b *bus.Bus, r readMarks, revision uint64) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = a.net.markCell(a.guid).write(ctx, b, data, revision)
	return err
}

// markBuilder follows a look through the inbox, in order.
type markBuilder struct {
	floor uint64
	gap   bool     // something above floor was not read
	above []uint64 // read, above the gap
	rest  []uint64 // of the former marks, above what was seen
}

func newMark(before readMarks) *markBuilder {
	return &markBuilder{floor: before.Floor, rest: slices.Clone(before.Above)}
}

// see notes whether a message has been read. What was read and is behind the
// last unread message is covered by the floor.
func (m *markBuilder) see(seq uint64, read bool) {
	for len(m.rest) > 0 && m.rest[0] <= seq {
		m.rest = m.rest[1:] // seen now, or gone from the inbox
	}
	switch {
	case !read:
		m.gap = m.gap || seq > m.floor
	case m.gap:
		m.above = append(m.above, seq)
	default:
		m.floor = max(m.floor, seq)
	}
}

func (m *markBuilder) marks() readMarks {
	return readMarks{Floor: m.floor, Above: slices.Concat(m.above, m.rest)}
}
