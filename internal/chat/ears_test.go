package chat_test

import (
	"testing"

	"github.com/parleyhub/parley/internal/chat"
)

// Who only sends and reads is not woken by what others say; who waits is,
// however long it takes.
func TestASpaceHearsOthersWhileSomebodyWaits(t *testing.T) {
	n := startServer(t)
	s, other := open(t, n.config("project-1")), ready(t, open(t, n.config("project-1")))
	<-s.Tried()
	send(t, s, "agent", "roadmap", "1")
	if s.Listening() {
		t.Error("it listens though nobody waits")
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
	for range 3 { // it waits for longer than the rests are apart
		s.Rest()
		<-first
		first = s.Changed()
	}
	send(t, other, "other", "roadmap", "2")
	if news := <-came; len(news.Messages["roadmap"]) != 1 {
		t.Errorf("heard %+v", news)
	}
	s.Rest()
	s.Rest()
	if s.Listening() {
		t.Error("it still listens though nobody waits any more")
	}
	changed := s.Changed()
	look(t, s)
	send(t, other, "other", "roadmap", "3")
	<-changed
}

// The server hands a message to who listens and to the stream at the same time:
// who is woken can look before it is stored, and must be woken again.
func TestWhatIsHeardIsToldAgain(t *testing.T) {
	n := startServer(t)
	s, other := ready(t, open(t, n.config("project-1"))), ready(t, open(t, n.config("project-1")))
	changed := s.Changed()
	look(t, s)
	send(t, other, "other", "roadmap", "1")
	<-changed
	<-s.Changed() // hangs if it is told once
}

// look looks at a channel after Changed, as one must: the server has then begun to
// tell what others say.
func look(t *testing.T, s *chat.Space) {
	t.Helper()
	if _, err := s.Tips(t.Context(), []string{"roadmap"}); err != nil {
		t.Fatal(err)
	}
}
