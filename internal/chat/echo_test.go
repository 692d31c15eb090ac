package chat_test

import "testing"

// Who waits hears a message before the stream has stored it, and may look too
// early: it is woken again, though nothing more comes.
func TestWhoHearsLooksMoreThanOnce(t *testing.T) {
	n := startServer(t)
	s := ready(t, open(t, n.config("echo")))
	other := ready(t, open(t, n.config("echo")))
	if _, err := s.Tips(t.Context(), []string{"roadmap"}); err != nil {
		t.Fatal(err)
	}
	first := s.Changed()
	if _, err := s.Tips(t.Context(), []string{"roadmap"}); err != nil { // the server knows that we listen
		t.Fatal(err)
	}
	send(t, other, "a", "roadmap", "x")
	<-first
	for range 2 {
		select {
		case <-s.Changed():
		case <-t.Context().Done():
			t.Fatal("it was not woken again")
		}
	}
}
