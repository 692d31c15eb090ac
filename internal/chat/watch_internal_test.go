package chat

import (
	"fmt"
	"slices"
	"strings"
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

// numberedAs records a message with a sequence.
func (w *watcher) numberedAs(seq uint64) bool {
	return w.number("p.a", Message{Sequence: seq, ID: fmt.Sprint(seq), Text: "text"}, true)
}

// kept fails unless these are the messages after a sequence; nil if the channel must be read.
func (w *watcher) kept(t *testing.T, after uint64, want ...uint64) {
	t.Helper()
	messages, last, ok := w.after("p.a", after)
	var got []uint64
	for _, m := range messages {
		got = append(got, m.Sequence)
	}
	if !slices.Equal(got, want) || ok != (want != nil) || ok && last != want[len(want)-1] {
		t.Errorf("after %d: %d, last %d, %t; want %d", after, got, last, ok, want)
	}
}

func TestANumberedMessageThatFollowsNeedsNoRead(t *testing.T) {
	w := subscribed()
	if w.numberedAs(8) {
		t.Error("it follows although the end is not known")
	}
	w.learn("p.a", w.mark("p.a"), 7)
	if !w.numberedAs(8) || !w.numberedAs(9) {
		t.Error("it does not follow")
	}
	w.state(t, "after two", 9, true, false)
	w.kept(t, 7, 8, 9)
	w.kept(t, 8, 9)
	w.kept(t, 6)
	w.kept(t, 9)
	for _, seq := range []uint64{11, 9, 1} {
		if w.numberedAs(seq) {
			t.Errorf("%d follows 9", seq)
		}
	}
	w.notified("p.a", "a")
	w.kept(t, 7)
	if w.numberedAs(10) {
		t.Error("it follows a message of which the sequence is not known")
	}
	w.learn("p.a", w.mark("p.a"), 10)
	w.kept(t, 7)
	if !w.numberedAs(11) {
		t.Error("it does not follow after a read")
	}
	w.kept(t, 10, 11)
	w.reset()
	w.kept(t, 10)
}

// A read does not know of what was stored after it had begun.
func TestAReadDoesNotTakeNumberedMessagesBack(t *testing.T) {
	w := subscribed()
	w.learn("p.a", w.mark("p.a"), 7)
	at := w.mark("p.a")
	w.numberedAs(8)
	w.learn("p.a", at, 7)
	w.state(t, "after a read that began before", 8, true, false)
	w.kept(t, 7, 8)

	w.notified("p.a", "a")
	newer := w.mark("p.a")
	w.learn("p.a", newer, 1) // the stream was created again
	w.state(t, "in a new stream", 1, true, false)
	w.kept(t, 0)
	w.learn("p.a", at, 8)
	w.state(t, "after a read of the former one", 1, true, false)
	for seq := uint64(2); seq < 9; seq++ {
		w.numberedAs(seq)
	}
	w.kept(t, 6, 7, 8) // and not what the former one had
}

func TestNumberedMessagesAreKeptForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := subscribed()
		w.learn("p.a", w.mark("p.a"), 0)
		for i := range maxRecent + 1 {
			w.numberedAs(uint64(i + 1))
		}
		if messages, _, ok := w.after("p.a", 1); !ok || len(messages) != maxRecent {
			t.Errorf("%d are kept, %t", len(messages), ok)
		}
		w.kept(t, 0)
		w.number("p.a", Message{Sequence: maxRecent + 2, Text: strings.Repeat("x", maxRecentSize+1)}, true)
		w.kept(t, maxRecent+1)
		w.numberedAs(maxRecent + 3)
		w.kept(t, maxRecent+2, maxRecent+3)
		time.Sleep(recentAge + 1)
		w.kept(t, maxRecent+2)
		w.state(t, "later", maxRecent+3, true, false)
		if n := len(w.recent.messages); n != 0 || w.recent.size != 0 {
			t.Errorf("%d messages of %d bytes are kept", n, w.recent.size)
		}
	})
}
