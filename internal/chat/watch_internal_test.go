package chat

import (
	"testing"

	"github.com/nats-io/nats.go"
)

// subscribed returns a watcher with a subscription, without a server.
func subscribed() *watcher {
	w := &watcher{sub: &nats.Subscription{}}
	w.reset()
	return w
}

// state fails unless that is what is known of a channel.
func (w *watcher) state(t *testing.T, what string, seq uint64, current, due bool) {
	t.Helper()
	if s, c, d := w.end("p.a"); s != seq || c != current || d != due {
		t.Errorf("%s: end %d, current %t, due %t; want %d, %t, %t", what, s, c, d, seq, current, due)
	}
}

func TestAChannelIsReadAgainOnlyAfterANotification(t *testing.T) {
	w := subscribed()
	w.state(t, "at first", 0, false, false)
	w.learn("p.a", w.mark("p.a"), 7)
	w.state(t, "after a read", 7, true, false)
	w.notified("p.b")
	w.state(t, "after a message of another channel", 7, true, false)
	w.notified("p.a")
	w.state(t, "after a message", 7, false, true)
	w.learn("p.a", w.mark("p.a"), 8)
	w.state(t, "after the next read", 8, true, false)
	w.stored("p.a", 9)
	w.state(t, "after an own message", 8, false, true)
}

func TestANotificationDuringAReadIsNotLost(t *testing.T) {
	w := subscribed()
	at := w.mark("p.a")
	w.notified("p.a")
	w.learn("p.a", at, 7)
	w.state(t, "notified during the first read", 7, false, true)
	at = w.mark("p.a")
	w.stored("p.a", 8)
	w.learn("p.a", at, 7)
	w.state(t, "own message during a read", 7, false, true)
}

func TestAMessageThatWasReadTooEarlyIsReadAgain(t *testing.T) {
	w := subscribed()
	w.learn("p.a", w.mark("p.a"), 7)
	w.notified("p.a")
	w.learn("p.a", w.mark("p.a"), 7) // it is not stored yet
	w.state(t, "too early", 7, true, false)
	w.repeatEarly()
	w.state(t, "repeated", 7, false, true)
	w.learn("p.a", w.mark("p.a"), 8)
	w.repeatEarly()
	w.state(t, "read", 8, true, false)
}

// A read that finds an own message may have missed one that was notified of: the number of the due message is not known then.
func TestOwnMessagesOnTheirWayKeepARepetition(t *testing.T) {
	w := subscribed()
	w.learn("p.a", w.mark("p.a"), 7)
	done := w.send("p.a")
	w.notified("p.a")
	w.learn("p.a", w.mark("p.a"), 8) // the own one
	done()
	w.repeatEarly()
	w.state(t, "repeated", 8, false, true)

	w.schedule(nil, nil) // the repetitions are over
	w.learn("p.a", w.mark("p.a"), 9)
	w.repeatEarly()
	w.state(t, "after the repetitions", 9, true, false)
}

func TestNothingIsKnownAfterAGapInTheNotifications(t *testing.T) {
	w := subscribed()
	w.learn("p.a", w.mark("p.a"), 7)
	at := w.mark("p.a")
	w.reset()
	w.state(t, "reset", 0, false, false)
	w.learn("p.a", at, 7)
	w.state(t, "a read that began before", 0, false, false)

	w.sub = nil
	w.notified("p.a")
	w.stored("p.a", 8)
	w.learn("p.a", w.mark("p.a"), 8)
	w.state(t, "without a subscription", 0, false, false)
}
