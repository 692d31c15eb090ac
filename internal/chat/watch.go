package chat

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
)

// watchIdle is how often a Space checks whether its subscription is still used.
const watchIdle = time.Minute

// watcher subscribes to the project's messages while somebody waits for them. Most agents never wait: in a project of a
// hundred agents each message would wake ninety-nine processes for nothing.
type watcher struct {
	mu      sync.Mutex
	sub     *nats.Subscription // nil while there is none
	release func()             // of the context that a refusal of sub ends
	wanted  bool               // since the last unwatchIdle
	repeat  *time.Timer        // nil until the first subscription
	denied  error              // instead of a subscription; open tries again after it is cleared

	epoch uint64              // of what is known: a new one begins when notifications may have been missed
	read  map[string]*reading // by channel
	early map[string]notices  // by channel: those whose messages may not have been stored yet when the channel was read

	pending unacknowledged
	recent  recent
}

// reading is what is known of one channel in this epoch.
type reading struct {
	count  uint64 // notifications without a sequence, and repetitions
	known  bool   // whether end is
	end    uint64 // a read, which began when count was endAt, found nothing after it, or numbered messages followed without a gap
	endAt  uint64
	newest string // id of the last message that was read

	numbered uint64 // how often the end was moved by a numbered message
	after    uint64 // the messages after this sequence, up to end, are recent ones
}

// current reports whether nothing follows end.
func (r *reading) current() bool { return r.known && r.count == r.endAt }

// notices are notifications of messages that were not read yet: until when they are repeated, by the message's id.
type notices map[string]time.Time

// maxNotices bounds the notices of a channel; those beyond it are one.
const maxNotices = 64

// unread notes a message.
func (n notices) unread(id string, until time.Time) {
	if len(n) >= maxNotices {
		clear(n)
		id = "" // as of a message that another program sent without one
	}
	n[id] = until
}

// mark is the state of a channel's notifications before a read.
type mark struct{ epoch, count, numbered uint64 }

// repeats are the delays, each after the one before, at which a notification is repeated. The server delivers a message
// to subscriptions and to the stream at the same time, so that the first read can be too early.
var repeats = []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second}

// repeated is how long a notification is repeated at most. Its message is stored by then, or never.
const repeated = 2 * time.Second

// open subscribes, unless there is a subscription or the server has refused it. Messages stored before a later request on
// the same connection are visible to that request; notify is called for all others, after received and acknowledged.
func (w *watcher) open(b *bus.Bus, subject string, received func(*nats.Msg), acknowledged func(string, *jetstream.PubAck), notify func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = true
	if w.sub != nil || w.denied != nil {
		return nil
	}
	acks, err := b.WatchAcks(acknowledged)
	if err != nil {
		return err
	}
	ctx, release := b.UntilDenied(context.Background(), func(denied string) bool { return denied == subject })
	sub, err := b.Conn().Subscribe(subject, received)
	if err != nil {
		acks.Stop()
		release()
		return err
	}
	w.sub, w.release = sub, release
	w.pending.acks = acks
	w.forget()
	context.AfterFunc(ctx, func() {
		if denied := b.DeniedBy(ctx); denied != nil {
			w.refuse(sub, denied)
			notify()
		}
	})
	w.schedule(repeats[1:], func() bool { // for messages published just before that are not stored yet
		w.reset()
		notify()
		return true
	})
	return nil
}

// repeatNotice has a notification repeated while messages may be unread that were not stored when they were looked for.
func (w *watcher) repeatNotice(notify func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.schedule(repeats, func() bool {
		early := w.repeatEarly()
		if early { // otherwise all is read, and those who wait need not look again
			notify()
		}
		return early
	})
}

// of returns what is known of a channel. The lock is held.
func (w *watcher) of(channel string) *reading {
	r := w.read[channel]
	if r == nil {
		r = &reading{}
		w.read[channel] = r
	}
	return r
}

// notified records a message of another process, which the stream may store a little later. id is "" if it has none.
func (w *watcher) notified(channel, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub == nil {
		return // nothing is known
	}
	r := w.of(channel)
	r.count++
	if id != "" && id == r.newest { // it was read before
		return
	}
	if w.early[channel] == nil {
		w.early[channel] = notices{}
	}
	w.early[channel].unread(id, time.Now().Add(repeated))
}

// got records that messages with these ids were read, in their order.
func (w *watcher) got(channel string, ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	early := w.early[channel]
	for _, id := range ids {
		if id == "" {
			continue
		}
		delete(early, id)
		w.of(channel).newest = id
	}
	if len(early) == 0 {
		delete(w.early, channel)
	}
}

// stored records that a message of this process is stored, of which there is no notification and nothing else is known.
func (w *watcher) stored(channel string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub == nil {
		return // nothing is known
	}
	w.of(channel).count++
}

// repeatEarly counts the notifications again whose messages may be stored by now. It reports false if there are none.
func (w *watcher) repeatEarly() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.early) == 0 {
		return false
	}
	now := time.Now()
	for channel, early := range w.early {
		w.of(channel).count++
		maps.DeleteFunc(early, func(_ string, until time.Time) bool { return now.After(until) })
		if len(early) == 0 {
			delete(w.early, channel) // this repetition is the last one
		}
	}
	return true
}

// mark returns the state to give to learn after a read of a channel.
func (w *watcher) mark(channel string) mark {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := mark{epoch: w.epoch}
	if r := w.read[channel]; r != nil {
		m.count, m.numbered = r.count, r.numbered
	}
	return m
}

// learn records that a read, which began at a mark, found nothing after seq.
func (w *watcher) learn(channel string, at mark, seq uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub == nil || at.epoch != w.epoch {
		return
	}
	r := w.of(channel)
	if r.known && at.count < r.endAt { // a later read has ended
		return
	}
	same := r.known && at.count == r.endAt
	r.known, r.endAt = true, at.count
	if same && (seq == r.end || seq < r.end && at.numbered != r.numbered) { // messages may have followed since the read began
		return
	}
	r.end, r.after = seq, seq
	w.recent.drop(channel)
}

// end returns the position after which a channel has no messages. due is set if that was so until a notification, so
// that there are probably some now; without both flags nothing is known.
func (w *watcher) end(channel string) (seq uint64, current, due bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.read[channel]
	if r == nil || !r.known {
		return 0, false, false
	}
	current = r.current()
	return r.end, current, !current
}

// behind returns the channels of a cursor that have messages after it, or of which that is not known.
func (w *watcher) behind(cursor Cursor) (channels []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, seq := range cursor {
		r := w.read[name]
		if r == nil || !r.current() || r.end != seq {
			channels = append(channels, name)
		}
	}
	return channels
}

// reset begins a new epoch: messages may have come without a notification.
func (w *watcher) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget()
}

// forget is reset with the lock held.
func (w *watcher) forget() {
	w.epoch++
	w.read, w.early, w.recent = map[string]*reading{}, map[string]notices{}, recent{}
}

// refuse replaces a subscription by the error of its refusal.
func (w *watcher) refuse(sub *nats.Subscription, denied error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub == sub {
		w.unsubscribe()
		w.denied = denied
	}
}

// refused returns an Error if the server does not permit the subscription, nil otherwise.
func (w *watcher) refused() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.denied == nil {
		return nil
	}
	return &Error{Code: ConnectionError, Err: w.denied,
		Message: "The server does not let this user be notified of new messages. " + text.Sentence(w.denied.(*bus.Error).Message),
		Remedy:  "Allow it to subscribe to the project's subjects, or use another user. Reading the channels does not need this."}
}

// retry lets open subscribe again after a refusal.
func (w *watcher) retry() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.denied = nil
}

// schedule calls again after each of the delays, until it returns false. It replaces an earlier schedule. The lock is held.
func (w *watcher) schedule(delays []time.Duration, again func() bool) {
	if w.repeat != nil {
		w.repeat.Stop()
	}
	if w.sub == nil || len(delays) == 0 {
		clear(w.early)
		return
	}
	w.repeat = time.AfterFunc(delays[0], func() {
		if !again() {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.schedule(delays[1:], again)
	})
}

// close unsubscribes.
func (w *watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsubscribe()
}

// unsubscribe is close with the lock held.
func (w *watcher) unsubscribe() {
	if w.sub == nil {
		return
	}
	w.release()
	_ = w.sub.Unsubscribe() // fails only on a closed connection
	w.sub = nil
	w.pending.end()
	w.schedule(nil, nil)
	w.forget()
}

// unwatchIdle closes the subscription if it was not used since the last call. Otherwise it wakes the waiters, so that
// those who still wait use it again.
func (s *Space) unwatchIdle() {
	s.watcher.retry()
	s.watcher.mu.Lock()
	wanted := s.watcher.wanted
	s.watcher.wanted = false
	s.watcher.mu.Unlock()
	if wanted {
		s.watcher.reset() // the client may have dropped notifications that it was too slow for
		s.news.Send()
	} else {
		s.watcher.close()
	}
}
