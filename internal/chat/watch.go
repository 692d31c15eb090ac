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
}

// repeats are the delays, each after the one before, at which a notification is repeated. The server delivers a message
// to subscriptions and to the stream at the same time, so that the first read can be too early.
var repeats = []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second}

// open subscribes, unless there is a subscription or the server has refused it. Messages stored before a later request on
// the same connection are visible to that request; notify is called for all others.
func (w *watcher) open(b *bus.Bus, subject string, notify func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = true
	if w.sub != nil || w.denied != nil {
		return nil
	}
	ctx, release := b.UntilDenied(context.Background(), func(denied string) bool { return denied == subject })
	sub, err := b.Conn().Subscribe(subject, func(*nats.Msg) {
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
	context.AfterFunc(ctx, func() {
		if denied := b.DeniedBy(ctx); denied != nil {
			w.refuse(sub, denied)
			notify()
		}
	})
	w.schedule(notify, repeats) // for messages published just before that are not stored yet
	return nil
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
		return
	}
	w.repeat = time.AfterFunc(delays[0], func() {
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
		s.news.Send()
	} else {
		s.watcher.close()
	}
}
