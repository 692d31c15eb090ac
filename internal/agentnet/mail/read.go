package mail

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// Selection says which mail to read.
type Selection struct {
	Limit       int         `json:"limit,omitempty" jsonschema:"How many messages at most: 1 to 1000, 50 by default"`
	Type        MessageType `json:"messageType,omitempty" jsonschema:"Only messages of this type; others stay unread"`
	Sender      string      `json:"senderGuid,omitempty" jsonschema:"Only messages of this sender; others stay unread"`
	IncludeRead bool        `json:"includeRead,omitempty" jsonschema:"Also messages that you have read before, of the last day"`
}

// Check returns the selection with its defaults, or a ValidationError.
func (s Selection) Check() (Selection, error) {
	s.Limit = cmp.Or(s.Limit, DefaultMailLimit)
	if s.Limit < 1 || s.Limit > MaxMailLimit {
		return s, store.Invalid("The limit %d is not allowed.", s.Limit).WithRemedy("Use a limit from 1 to %d.", MaxMailLimit)
	}
	if s.Type != "" && !slices.Contains(ReceivedTypes, s.Type) {
		return s, invalidType(s.Type, ReceivedTypes)
	}
	var err error
	if s.Sender != "" {
		s.Sender, err = store.CheckGUID("senderGuid", s.Sender)
	}
	return s, err
}

func (s Selection) matches(m Mail) bool {
	return (s.Type == "" || m.Type == s.Type) && (s.Sender == "" || m.SenderGUID == s.Sender) && (s.IncludeRead || !m.Read)
}

// Read returns the oldest selected mail of the inbox on this bus, oldest first, and marks it
// as read: no process with the agent's identity receives it again, unless it selects mail that
// was read. more reports whether there may be more. The selection is checked.
func (x *Box) Read(ctx context.Context, s Selection) (mail []Mail, more bool, err error) {
	b, err := x.agent.Ready()
	if err != nil {
		return nil, false, err
	}
	retry := store.ConflictBackoff()
	for attempt := 1; ; attempt++ {
		mail, more, err = x.tryRead(ctx, b, s)
		if err == nil {
			return mail, more, nil
		}
		if !errors.Is(err, store.ErrConflict) || attempt == store.MaxConflicts {
			return nil, false, store.AsError(err)
		}
		retry.Pause(ctx)
	}
}

// tryRead fails with ErrConflict if another process reads at the same time.
func (x *Box) tryRead(ctx context.Context, b *bus.Bus, s Selection) (mail []Mail, more bool, err error) {
	marks, err := x.marks(ctx, b)
	if err == nil && s.IncludeRead {
		marks, err = x.currentMarks(ctx, b, marks)
	}
	if err != nil {
		return nil, false, err
	}
	x.mu.Lock()
	x.pending.resolve(marks)
	owed := x.pending.take(s)
	x.mu.Unlock()
	if len(owed) > 0 {
		x.showRead(ctx, b, owed)
		return owed, true, nil
	}
	found, err := x.find(ctx, b, s, marks, false)
	if err == nil && found.none && marks.Floor > 0 { // with mail above the floor, the marks are of this inbox
		if marks, err = x.currentMarks(ctx, b, marks); err == nil && marks.Floor == 0 {
			found, err = x.find(ctx, b, s, marks, false)
		}
	}
	if err != nil {
		return nil, false, err
	}
	unread := slices.DeleteFunc(slices.Clone(found.mail), func(m Mail) bool { return m.Read })
	if len(unread) == 0 && !found.skipped {
		return found.mail, found.more, nil
	}
	if err := ctx.Err(); err != nil { // the caller does not wait any more
		return nil, false, err
	}
	ctx = context.WithoutCancel(ctx) // once it is marked the caller has to get it
	read := uuid.NewString()
	written := found.next.marks(read)
	if _, err := x.marksKey().Put(ctx, b, written, marks.revision); err != nil {
		if !errors.Is(err, store.ErrConflict) { // the server may have written them all the same
			x.mu.Lock()
			x.pending.unsure = append(x.pending.unsure, unsureRead{read, marks.revision, unread})
			x.mu.Unlock()
		}
		return nil, false, err
	}
	x.finish(ctx, b, unread, written.Floor)
	return found.mail, found.more, nil
}

// found is the result of a scan of the inbox.
type found struct {
	mail    []Mail
	more    bool     // there may be more
	skipped bool     // mail of the wrong format was not read before
	none    bool     // there is no mail above the floor, selected or not
	invalid []uint64 // of mail of the wrong format that was not read before
	next    *marksBuilder
}

// find returns the selected mail of the inbox, oldest first. Mail that this process has taken counts as read for the
// selection, and with take also in the next marks.
func (x *Box) find(ctx context.Context, b *bus.Bus, s Selection, marks storedMarks, take bool) (found, error) {
	f, size := found{none: true, next: newMarks(marks.readMarks)}, 0
	floor := marks.Floor
	if s.IncludeRead {
		floor = 0
	}
	err := x.svc.scanInbox(ctx, b, x.agent.GUID(), floor+1, func(msg store.Message) bool {
		f.none = false
		m, err := x.open(msg, marks.readMarks)
		if err != nil {
			if !m.Read && !(take && x.holds(m.Sequence)) {
				x.agent.Log().Error("mail of the wrong format is skipped", "sequence", m.Sequence, "error", err)
				f.skipped, f.invalid = true, append(f.invalid, m.Sequence)
			}
			f.next.see(m.Sequence, true) // so that it is removed like what was read
			return true
		}
		read := m.Read
		if !read && x.holds(m.Sequence) {
			m.Read, read = true, take
		}
		selected := s.matches(m)
		if selected && (len(f.mail) == s.Limit || (size > 0 && size+len(m.Text) > maxMailRead)) {
			f.more = true
			return false
		}
		if selected {
			f.mail = append(f.mail, m)
			size += len(m.Text)
		}
		f.next.see(m.Sequence, read || selected)
		return true
	})
	return f, err
}

// finish writes the receipts of mail that was marked as read, and removes what was read before floor once the inbox is
// half full.
func (x *Box) finish(ctx context.Context, b *bus.Bus, unread []Mail, floor uint64) {
	var use float64
	var err error
	var asking sync.WaitGroup
	asking.Go(func() { use, err = x.svc.use(ctx, b, x.agent.GUID()) }) // while the receipts are written to the disk
	if len(unread) > 0 {
		x.showRead(ctx, b, unread)
	}
	asking.Wait()
	if err == nil && use >= 0.5 {
		err = x.svc.trim(ctx, b, x.agent.GUID(), floor)
	}
	if err != nil {
		x.agent.Log().Warn("the inbox was not trimmed", "error", err)
	}
}

// showRead writes receipts of messages that were marked as read.
func (x *Box) showRead(ctx context.Context, b *bus.Bus, mail []Mail) {
	if err := x.writeReceipts(ctx, b, Read, []taken{{written: time.Now(), mail: mail}}); err != nil {
		x.agent.Log().Warn("receipts were not written", "error", err)
	}
}

// open decodes a message of the agent's inbox. Also on an error the result has Sequence and Read.
func (x *Box) open(msg store.Message, marks readMarks) (Mail, error) {
	m, err := Decode(msg.Data, msg.Header)
	if err == nil && m.Recipient != x.agent.GUID() {
		err = errors.New("it is for another agent")
	}
	m.Sequence, m.Read = msg.Sequence, marks.contain(msg.Sequence)
	return m, err
}

// scan calls visit with the mail after floor. It skips what has the wrong format; Read logs that.
func (x *Box) scan(ctx context.Context, b *bus.Bus, floor uint64, marks readMarks, visit func(Mail) bool) error {
	return x.svc.scanInbox(ctx, b, x.agent.GUID(), floor+1, func(msg store.Message) bool {
		m, err := x.open(msg, marks)
		return err != nil || visit(m)
	})
}

// scanUnread calls visit with the mail that was not read, until it returns false, and returns how often it did.
func (x *Box) scanUnread(ctx context.Context, b *bus.Bus, visit func(Mail) bool) (count int, err error) {
	marks, err := x.marks(ctx, b)
	if err != nil {
		return 0, err
	}
	err = x.scan(ctx, b, marks.Floor, marks.readMarks, func(m Mail) bool {
		if m.Read || x.holds(m.Sequence) {
			return true
		}
		count++
		return visit(m)
	})
	return count, err
}

// Unread counts the mail in the inbox on this bus that was not read, up to MaxMailLimit.
func (x *Box) Unread(ctx context.Context) (int, error) { return x.UnreadUpTo(ctx, MaxMailLimit) }

// UnreadUpTo is Unread with another limit.
func (x *Box) UnreadUpTo(ctx context.Context, limit int) (int, error) {
	b, err := x.agent.Ready()
	if err != nil {
		return 0, err
	}
	left := limit
	count, err := x.scanUnread(ctx, b, func(Mail) bool {
		left--
		return left > 0
	})
	return count, store.AsError(err)
}

// readMarks say which of an agent's mail was read: everything up to Floor, and the
// messages in Above, in ascending order.
type readMarks struct {
	Floor uint64   `json:"floor"`
	Above []uint64 `json:"above,omitempty"`
	// Reads are the ids of the last reads, so that one whose write was not acknowledged
	// can see whether it was stored.
	Reads []string `json:"reads,omitempty"`
}

// maxReads is how many reads the marks name.
const maxReads = 16

func (r readMarks) contain(seq uint64) bool {
	if seq <= r.Floor {
		return true
	}
	_, found := slices.BinarySearch(r.Above, seq)
	return found
}

// storedMarks are readMarks with their revision.
type storedMarks struct {
	readMarks
	revision uint64
}

// unsureRead is a read whose write of the marks was not acknowledged.
type unsureRead struct {
	id   string
	base uint64 // the revision that it replaces
	mail []Mail
}

// pendingReads is mail that was, or may have been, marked as read although no caller received
// it. The box's lock guards it.
type pendingReads struct {
	unsure []unsureRead
	owed   []Mail // marked
}

// resolve finds out from newer marks which unsure reads were stored.
func (p *pendingReads) resolve(m storedMarks) {
	p.unsure = slices.DeleteFunc(p.unsure, func(u unsureRead) bool {
		if slices.Contains(m.Reads, u.id) {
			p.owed = append(p.owed, u.mail...)
			return true
		}
		return m.revision > u.base // another process was faster
	})
}

// take removes and returns the owed mail that is selected, up to the limit.
func (p *pendingReads) take(s Selection) (mail []Mail) {
	p.owed = slices.DeleteFunc(p.owed, func(m Mail) bool {
		selected := len(mail) < s.Limit && s.matches(m)
		if selected {
			mail = append(mail, m)
		}
		return selected
	})
	return mail
}

func (x *Box) marksKey() store.Key {
	return store.Key{Stream: store.MailStream, Subject: store.ReadSubject + x.agent.GUID()}
}

func (x *Box) marks(ctx context.Context, b *bus.Bus) (storedMarks, error) {
	v, err := x.marksKey().Get(ctx, b)
	m := storedMarks{revision: v.Revision}
	if err != nil || !v.Exists() {
		return m, err
	}
	return m, json.Unmarshal(v.Data, &m.readMarks)
}

// currentMarks returns m, or no marks if the inbox was deleted and created again, which restarts the sequence numbers.
func (x *Box) currentMarks(ctx context.Context, b *bus.Bus, m storedMarks) (storedMarks, error) {
	if m.Floor == 0 {
		return m, nil
	}
	again, err := x.svc.isNew(ctx, b, x.agent.GUID(), m.Floor)
	if again {
		m.readMarks = readMarks{}
	}
	return m, err
}

// marksBuilder computes new marks during a scan of the inbox.
type marksBuilder struct {
	floor uint64
	gap   bool     // a message above floor was not read
	above []uint64 // read, above the gap
	rest  []uint64 // of the former marks, above what was seen
	reads []string
}

func newMarks(before readMarks) *marksBuilder {
	return &marksBuilder{floor: before.Floor, rest: slices.Clone(before.Above), reads: before.Reads}
}

// see notes whether a message has been read. The floor rises up to the first unread one.
func (m *marksBuilder) see(seq uint64, read bool) {
	for len(m.rest) > 0 && m.rest[0] <= seq {
		m.rest = m.rest[1:] // seen now, or removed from the inbox
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

// marks returns the marks with the id of the read that writes them.
func (m *marksBuilder) marks(read string) readMarks {
	reads := append(slices.Clone(m.reads), read)
	return readMarks{Floor: m.floor, Above: slices.Concat(m.above, m.rest), Reads: reads[max(len(reads)-maxReads, 0):]}
}
