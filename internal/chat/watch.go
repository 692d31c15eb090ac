package chat

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

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

	epoch   uint64              // of what is known: a new one begins when notifications may have been missed
	read    map[string]*reading // by subject
	early   map[string]struct{} // subjects whose messages may not have been stored yet when they were read
	sending map[string]int      // by subject: messages of this process, of which there is no notification
}

// reading is what is known of one channel in this epoch.
type reading struct {
	count uint64 // notifications and repetitions
	known bool   // whether end is
	end   uint64 // a read, which began when count was endAt, found nothing after it
	endAt uint64
	due   uint64 // the least sequence that the last message notified of can have; 0 without one
	vague bool   // a notification came before end was known, so that due may be too low
}

// mark is the state of a channel's notifications before a read.
type mark struct{ epoch, count uint64 }

// repeats are the delays, each after the one before, at which a notification is repeated. The server delivers a message
// to subscriptions and to the stream at the same time, so that the first read can be too early.
var repeats = []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second}

// open subscribes, unless there is a subscription or the server has refused it. Messages stored before a later request on
// the same connection are visible to that request; notify is called for all others. ours reports whether a subject is that
// of a channel.
func (w *watcher) open(b *bus.Bus, subject string, ours func(subject string) bool, notify func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = true
	if w.sub != nil || w.denied != nil {
		return nil
	}
	ctx, release := b.UntilDenied(context.Background(), func(denied string) bool { return denied == subject })
	sub, err := b.Conn().Subscribe(subject, func(m *nats.Msg) {
		if ours(m.Subject) {
			w.notified(m.Subject)
		}
		notify()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.schedule(notify, repeats)
	})
	if err != nil {
		release()
		return err
	}
	w.sub, w.release = sub, release
	w.forget()
	context.AfterFunc(ctx, func() {
		if denied := b.DeniedBy(ctx); denied != nil {
			w.refuse(sub, denied)
			notify()
		}
	})
	w.schedule(func() { // for messages published just before that are not stored yet
		w.reset()
		notify()
	}, repeats[1:])
	return nil
}

// of returns what is known of a channel. The lock is held.
func (w *watcher) of(subject string) *reading {
	r := w.read[subject]
	if r == nil {
		r = &reading{}
		w.read[subject] = r
	}
	return r
}

// notified records a message of another process, which the stream may store a little later.
func (w *watcher) notified(subject string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub == nil {
		return // nothing is known
	}
	r := w.of(subject)
	r.count++
	r.vague = r.vague || !r.known
	r.due = max(r.due, r.end) + 1
	w.early[subject] = struct{}{}
}

// send records that a message of this process is on its way; done must be called when that is over.
func (w *watcher) send(subject string) (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sending == nil {
		w.sending = map[string]int{}
	}
	w.sending[subject]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.sending[subject]--; w.sending[subject] == 0 {
			delete(w.sending, subject)
		}
	}
}

// stored records that a message of this process is stored, of which there is no notification.
func (w *watcher) stored(subject string, seq uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub == nil {
		return // nothing is known
	}
	r := w.of(subject)
	r.count++
	r.due = max(r.due, seq)
}

// repeatEarly counts the notifications again whose messages may be stored by now.
func (w *watcher) repeatEarly() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for subject := range w.early {
		w.of(subject).count++
	}
}

// mark returns the state to give to learn after a read of a channel.
func (w *watcher) mark(subject string) mark {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := mark{epoch: w.epoch}
	if r := w.read[subject]; r != nil {
		m.count = r.count
	}
	return m
}

// learn records that a read, which began at a mark, found nothing after seq.
func (w *watcher) learn(subject string, at mark, seq uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub == nil || at.epoch != w.epoch {
		return
	}
	r := w.of(subject)
	r.known, r.end, r.endAt = true, seq, at.count
	if seq >= r.due && !r.vague && w.sending[subject] == 0 {
		r.due = 0
		delete(w.early, subject)
	}
}

// end returns the position after which a channel has no messages. due is set if that was so until a notification, so
// that there are probably some now; without both flags nothing is known.
func (w *watcher) end(subject string) (seq uint64, current, due bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.read[subject]
	if r == nil || !r.known {
		return 0, false, false
	}
	same := r.count == r.endAt
	return r.end, same, !same
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
	w.read, w.early = map[string]*reading{}, map[string]struct{}{}
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

// schedule calls notify after each of the delays. It replaces an earlier schedule. The lock is held.
func (w *watcher) schedule(notify func(), delays []time.Duration) {
	if w.repeat != nil {
		w.repeat.Stop()
	}
	if w.sub == nil || len(delays) == 0 {
		for subject := range w.early {
			r := w.of(subject)
			r.due, r.vague = 0, false
		}
		clear(w.early)
		return
	}
	w.repeat = time.AfterFunc(delays[0], func() {
		w.repeatEarly()
		notify()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.schedule(notify, delays[1:])
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
