package chat

import (
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// A message of the subscription has no sequence, and may not be stored. The server's acknowledgement of it, which its sender
// waits for, says both. Those who wait for messages receive the acknowledgements, too, and so need no request for a message
// that follows those that they know.

const (
	// ackTimeout is how long a message waits for its acknowledgement. Beyond it the channel is read.
	ackTimeout = 20 * time.Millisecond
	// maxUnacknowledged bounds the messages and the acknowledgements that wait for each other.
	maxUnacknowledged = 64
)

// Bounds of the numbered messages that are kept, of all channels together. Those who come later read the channel.
const (
	maxRecent     = maxWaitMessages
	maxRecentSize = 1 << 20 // bytes
	recentAge     = 2 * time.Second
)

// unacknowledged joins messages with their acknowledgements, whichever comes first.
type unacknowledged struct {
	acks     bus.AckWatch
	messages map[string]awaiting          // by the subject of the acknowledgement
	early    map[string]*jetstream.PubAck // acknowledgements that came before their messages; nil values are errors
	timer    *time.Timer                  // runs while there are messages
}

// awaiting is a message without its acknowledgement.
type awaiting struct {
	channel string
	*nats.Msg
	since time.Time
}

// numbered is a message with its sequence.
type numbered struct {
	Message
	channel  string
	readable bool
	at       time.Time
}

// recent is the last numbered messages, oldest first.
type recent struct {
	messages []numbered
	size     int
}

// received is called with the messages of the subscription.
func (s *Space) received(m *nats.Msg) {
	channel, ok := s.channelOf(m.Subject)
	if !ok {
		return
	}
	ack, acked, waits := s.watcher.received(channel, m, s.overdue)
	switch {
	case acked:
		s.number(channel, m, ack)
	case !waits:
		s.notified(channel, m)
	}
}

// acknowledged is called with the acknowledgements that the other processes get; nil for an error.
func (s *Space) acknowledged(reply string, ack *jetstream.PubAck) {
	if m, ok := s.watcher.acknowledged(reply, ack); ok {
		s.number(m.channel, m.Msg, ack)
	}
}

// overdue reads the channels of messages that got no acknowledgement in time.
func (s *Space) overdue() {
	for _, m := range s.watcher.overdue(time.Now()) {
		s.notified(m.channel, m.Msg)
	}
}

// notified notifies those who wait of a message whose channel they must read.
func (s *Space) notified(channel string, m *nats.Msg) {
	s.watcher.notified(channel, m.Header.Get(jetstream.MsgIDHeader))
	s.news.Send()
	s.watcher.repeatNotice(s.news.Send)
}

// number notifies those who wait of a stored message, with its sequence.
func (s *Space) number(channel string, m *nats.Msg, ack *jetstream.PubAck) {
	if ack == nil || ack.Stream != s.streamName(channel) {
		s.notified(channel, m)
		return
	}
	message, readable := s.message(s.byName[channel], m.Header, m.Data)
	message.Sequence, message.ID = ack.Sequence, m.Header.Get(jetstream.MsgIDHeader)
	if !s.watcher.number(channel, message, readable) {
		s.notified(channel, m)
		return
	}
	s.news.Send()
}

// numberOwn records a message of this process, which is stored.
func (s *Space) numberOwn(e *entry) {
	if !s.watcher.watches() {
		return
	}
	m, err := decode(e.data)
	m.Sequence, m.ID = e.seq, e.id
	if err != nil || !s.watcher.number(e.channel.Name, m, true) {
		s.watcher.stored(e.channel.Name)
	}
}

// watches reports whether anything is recorded.
func (w *watcher) watches() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sub != nil
}

// received returns the acknowledgement of a message if it has come. Otherwise it reports whether the message waits for it;
// overdue is called if it does not come.
func (w *watcher) received(channel string, m *nats.Msg, overdue func()) (ack *jetstream.PubAck, acked, waits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.pending
	if w.sub == nil || !p.acks.Expects(m.Reply) {
		return nil, false, false
	}
	if ack, acked = p.early[m.Reply]; acked {
		delete(p.early, m.Reply)
		return ack, true, false
	}
	if len(p.messages) >= maxUnacknowledged {
		return nil, false, false
	}
	if p.messages == nil {
		p.messages = map[string]awaiting{}
	}
	if len(p.messages) == 0 {
		p.start(overdue)
	}
	p.messages[m.Reply] = awaiting{channel, m, time.Now()}
	return nil, false, true
}

// acknowledged returns the message of an acknowledgement. ok is false if it has not come yet.
func (w *watcher) acknowledged(reply string, ack *jetstream.PubAck) (m awaiting, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.pending
	if w.sub == nil {
		return awaiting{}, false
	}
	if m, ok = p.messages[reply]; ok {
		delete(p.messages, reply)
		if len(p.messages) == 0 {
			p.timer.Stop()
		}
		return m, true
	}
	if p.early == nil || len(p.early) >= maxUnacknowledged { // most are of messages that were not waited for
		p.early = map[string]*jetstream.PubAck{}
	}
	p.early[reply] = ack
	return awaiting{}, false
}

// overdue returns the messages that have waited too long, and forgets them.
func (w *watcher) overdue(now time.Time) (late []awaiting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.pending
	for reply, m := range p.messages {
		if now.Sub(m.since) >= ackTimeout {
			late = append(late, m)
			delete(p.messages, reply)
		}
	}
	if len(p.messages) > 0 {
		p.timer.Reset(ackTimeout)
	}
	return late
}

func (p *unacknowledged) start(overdue func()) {
	if p.timer == nil {
		p.timer = time.AfterFunc(ackTimeout, overdue)
		return
	}
	p.timer.Reset(ackTimeout)
}

// end forgets all.
func (p *unacknowledged) end() {
	p.acks.Stop()
	if p.timer != nil {
		p.timer.Stop()
	}
	*p = unacknowledged{}
}

// number records a stored message. It reports false if the channel must be read, as after a gap.
func (w *watcher) number(channel string, m Message, readable bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub == nil {
		return false
	}
	r := w.of(channel)
	if !r.current() || m.Sequence != r.end+1 { // a smaller one is that of a new stream
		return false
	}
	r.end, r.newest = m.Sequence, m.ID
	r.numbered++
	now := time.Now()
	w.recent.messages = append(w.recent.messages, numbered{m, channel, readable, now})
	w.recent.size += m.length()
	w.trim(now)
	return true
}

// length is about what the message takes in memory.
func (m Message) length() int { return len(m.Handle) + len(m.Text) }

// trim drops what is too old or too much. The lock is held.
func (w *watcher) trim(now time.Time) {
	x := &w.recent
	for len(x.messages) > 0 {
		oldest := x.messages[0]
		if len(x.messages) <= maxRecent && x.size <= maxRecentSize && now.Sub(oldest.at) <= recentAge {
			return
		}
		w.of(oldest.channel).after = oldest.Sequence
		x.size -= oldest.length()
		x.messages[0] = numbered{}
		x.messages = x.messages[1:]
	}
}

// drop drops the messages of a channel.
func (x *recent) drop(channel string) {
	x.messages = slices.DeleteFunc(x.messages, func(m numbered) bool {
		if m.channel != channel {
			return false
		}
		x.size -= m.length()
		return true
	})
}

// after returns the messages of a channel after seq, and the sequence of the last one. ok is false if the channel must be
// read.
func (w *watcher) after(channel string, seq uint64) (messages []Message, last uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.read[channel]
	if r == nil || !r.current() || seq >= r.end {
		return nil, 0, false
	}
	w.trim(time.Now())
	if seq < r.after {
		return nil, 0, false
	}
	for _, m := range w.recent.messages {
		if m.channel == channel && m.Sequence > seq && m.readable {
			messages = append(messages, m.Message)
		}
	}
	return messages, r.end, true
}
