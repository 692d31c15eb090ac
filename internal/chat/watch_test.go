package chat_test

import (
	"testing"

	"github.com/parleyhub/parley/internal/chat"
)

// A Space is subscribed to other agents' messages only while somebody waits for them, however
// long.
func TestASpaceIsSubscribedWhileSomebodyWaits(t *testing.T) {
	n := startServer(t)
	s, other := open(t, n.config("project-1")), ready(t, open(t, n.config("project-1")))
	<-s.Tried()
	send(t, s, "agent", "roadmap", "1")
	if s.Watching() {
		t.Error("it is subscribed though nobody waits")
	}
	tips, err := s.Tips(t.Context(), []string{"roadmap"})
	if err != nil {
		t.Fatal(err)
	}
	came := make(chan chat.News, 1)
	first := s.Changed()
	go func() {
		news, err := s.Wait(t.Context(), tips)
		if err != nil {
			t.Error(err)
		}
		came <- news
	}()
	for range 3 { // the wait lasts longer than the interval of the idle checks
		s.UnwatchIdle()
		<-first
		first = s.Changed()
	}
	send(t, other, "other", "roadmap", "2")
	if news := <-came; len(news.Messages["roadmap"]) != 1 {
		t.Errorf("received %+v", news)
	}
	s.UnwatchIdle()
	s.UnwatchIdle()
	if s.Watching() {
		t.Error("it is still subscribed though nobody waits any more")
	}
	changed := s.Changed()
	look(t, s)
	send(t, other, "other", "roadmap", "3")
	<-changed
}

// The server delivers a message to subscriptions and to the stream at the same time. A waiter can
// read before the message is stored, and must be notified again.
func TestANotificationIsRepeated(t *testing.T) {
	n := startServer(t)
	s, other := ready(t, open(t, n.config("project-1"))), ready(t, open(t, n.config("project-1")))
	changed := s.Changed()
	look(t, s)
	send(t, other, "other", "roadmap", "1")
	<-changed
	<-s.Changed() // hangs if the notification is not repeated
}

// look reads a channel after a call of Changed, as callers must. After that, the server has the
// subscription.
func look(t *testing.T, s *chat.Space) {
	t.Helper()
	if _, err := s.Tips(t.Context(), []string{"roadmap"}); err != nil {
		t.Fatal(err)
	}
}

// Several notifications follow one message, because a waiter may read before the stream has stored
// it.
func TestANotificationIsRepeatedWithoutFurtherMessages(t *testing.T) {
	n := startServer(t)
	s := ready(t, open(t, n.config("echo")))
	other := ready(t, open(t, n.config("echo")))
	if _, err := s.Tips(t.Context(), []string{"roadmap"}); err != nil {
		t.Fatal(err)
	}
	first := s.Changed()
	if _, err := s.Tips(t.Context(), []string{"roadmap"}); err != nil { // afterwards the server has the subscription
		t.Fatal(err)
	}
	send(t, other, "a", "roadmap", "x")
	<-first
	for range 2 {
		select {
		case <-s.Changed():
		case <-t.Context().Done():
			t.Fatal("the notification was not repeated")
		}
	}
}

// A waiter that knows where all its channels end notices that one of them was deleted and created again.
func TestAWaitSurvivesANewStream(t *testing.T) {
	n := startServer(t)
	s, other := ready(t, open(t, n.config("project-1"))), ready(t, open(t, n.config("project-1")))
	for _, text := range []string{"1", "2"} {
		send(t, other, "other", "roadmap", text)
	}
	cursor := chat.Cursor{}
	for _, text := range []string{"1", "2"} {
		if news, err := s.Wait(t.Context(), chat.Cursor{"roadmap": cursor["roadmap"]}); err != nil || len(news.Messages["roadmap"]) == 0 {
			t.Fatalf("%s: %+v, %v", text, news, err)
		}
		cursor["roadmap"]++
	}
	if err := other.JetStream().DeleteStream(t.Context(), "project-1_ROADMAP"); err != nil {
		t.Fatal(err)
	}
	again := ready(t, open(t, n.config("project-1"))) // creates it
	came := make(chan chat.News, 1)
	go func() {
		news, err := s.Wait(t.Context(), cursor)
		if err != nil {
			t.Error(err)
		}
		came <- news
	}()
	send(t, again, "other", "roadmap", "3")
	if news := <-came; len(news.Messages["roadmap"]) != 1 || news.Messages["roadmap"][0].Text != "3" || news.Cursor["roadmap"] != 1 {
		t.Errorf("%+v", news)
	}
}
