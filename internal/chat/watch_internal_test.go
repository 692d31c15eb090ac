package chat

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

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
	w.notified("p.b", "b")
	w.state(t, "after a message of another channel", 7, true, false)
	w.notified("p.a", "a")
	w.state(t, "after a message", 7, false, true)
	w.learn("p.a", w.mark("p.a"), 8)
	w.state(t, "after the next read", 8, true, false)
	w.stored("p.a")
	w.state(t, "after an own message", 8, false, true)
}

func TestANotificationDuringAReadIsNotLost(t *testing.T) {
	w := subscribed()
	at := w.mark("p.a")
	w.notified("p.a", "a")
	w.learn("p.a", at, 7)
	w.state(t, "notified during the first read", 7, false, true)
	at = w.mark("p.a")
	w.stored("p.a")
	w.learn("p.a", at, 7)
	w.state(t, "own message during a read", 7, false, true)
}

func TestAMessageThatWasReadTooEarlyIsReadAgain(t *testing.T) {
	w := subscribed()
	w.learn("p.a", w.mark("p.a"), 7)
	w.notified("p.a", "8")
	w.learn("p.a", w.mark("p.a"), 7) // it is not stored yet
	w.state(t, "too early", 7, true, false)
	w.repeatEarly()
	w.state(t, "repeated", 7, false, true)
	w.got("p.a", []string{"8"})
	w.learn("p.a", w.mark("p.a"), 8)
	w.repeatEarly()
	w.state(t, "read", 8, true, false)
}

// A read that finds an own message may have missed one that was notified of.
func TestOwnMessagesOnTheirWayKeepARepetition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := subscribed()
		w.learn("p.a", w.mark("p.a"), 7)
		w.notified("p.a", "theirs")
		w.got("p.a", []string{"ours"})
		w.learn("p.a", w.mark("p.a"), 8)
		w.repeatEarly()
		w.state(t, "repeated", 8, false, true)

		time.Sleep(repeated + 1)
		w.repeatEarly() // for the last time
		w.learn("p.a", w.mark("p.a"), 9)
		w.repeatEarly()
		w.state(t, "after the repetitions", 9, true, false)
	})
}

// The next message would be repeated, too, and so on while messages come.
func TestAMessageThatWasReadBeforeItsNotificationIsNotRepeated(t *testing.T) {
	w := subscribed()
	w.got("p.a", []string{"7", "8"})
	w.learn("p.a", w.mark("p.a"), 8)
	w.notified("p.a", "8")
	if w.repeatEarly() {
		t.Error("a message that was read is repeated")
	}
}

func TestManyMessagesThatNobodyReadsAreOneNotice(t *testing.T) {
	w := subscribed()
	for i := range 3 * maxNotices {
		w.notified("p.a", fmt.Sprint(i))
	}
	if n := len(w.early["p.a"]); n > maxNotices {
		t.Errorf("%d notices are kept", n)
	}
	w.got("p.a", []string{fmt.Sprint(3*maxNotices - 1)})
	if !w.repeatEarly() {
		t.Error("nothing is repeated, although the messages before were not read")
	}
}

func TestOnlyChannelsWithNewsAreLookedAt(t *testing.T) {
	w := subscribed()
	for _, channel := range []string{"p.a", "p.b"} {
		w.learn(channel, w.mark(channel), 7)
	}
	w.notified("p.b", "b")
	got := w.behind(Cursor{"p.a": 7, "p.b": 7})
	if got = append(got, w.behind(Cursor{"p.a": 6})...); !slices.Equal(got, []string{"p.b", "p.a"}) {
		t.Errorf("behind are %q, want p.b with a new message, and p.a before its end", got)
	}
	if unknown := w.behind(Cursor{"p.c": 0}); !slices.Equal(unknown, []string{"p.c"}) {
		t.Errorf("behind are %q, want p.c, of which nothing is known", unknown)
	}
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
	w.notified("p.a", "a")
	w.stored("p.a")
	w.learn("p.a", w.mark("p.a"), 8)
	w.state(t, "without a subscription", 0, false, false)
}
