package agentnet

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
	// Reads name the last reads that have written the marks, so that one which was
	// not told can see whether it has.
	Reads []string `json:"reads,omitempty"`
}

// maxReads is how many reads the marks name.
const maxReads = 16

// unsureRead is a read that was not told whether its marks were written.
type unsureRead struct {
	id   string
	base uint64 // the revision that it replaces
	mail []Mail
}

// debts are what an agent has marked as read, or may have, and not been given yet.
// They are guarded by the agent's lock.
type debts struct {
	unsure []unsureRead
	owed   []Mail // marked
}

// settle finds out by newer marks what became of unsure reads.
func (d *debts) settle(m markValue) {
	d.unsure = slices.DeleteFunc(d.unsure, func(u unsureRead) bool {
		if slices.Contains(m.Reads, u.id) {
			d.owed = append(d.owed, u.mail...)
			return true
		}
		return m.revision > u.base // somebody else was quicker
	})
}

// pay returns what is owed and selected, up to the limit.
func (d *debts) pay(s Selection) (mail []Mail) {
	d.owed = slices.DeleteFunc(d.owed, func(m Mail) bool {
		paid := len(mail) < s.Limit && s.takes(m)
		if paid {
			mail = append(mail, m)
		}
		return paid
	})
	return mail
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
	reads []string
}

func newMark(before readMarks) *markBuilder {
	return &markBuilder{floor: before.Floor, rest: slices.Clone(before.Above), reads: before.Reads}
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

// marks are those that a read writes.
func (m *markBuilder) marks(read string) readMarks {
	reads := append(slices.Clone(m.reads), read)
	return readMarks{Floor: m.floor, Above: slices.Concat(m.above, m.rest), Reads: reads[max(len(reads)-maxReads, 0):]}
}
