package sealed_test

import (
	"context"
	"errors"
	"testing"

	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/sealed"
)

func TestBacklogQueuesConnectionsForAccept(t *testing.T) {
	s1, s2 := streams(t)
	atA, atB := greet(t, s1, new(transport.Codec)), greet(t, s2, new(transport.Codec))
	a, b := <-atA, <-atB
	defer a.Abort()
	l := sealed.NewBacklog(1)
	if !l.Go(func() { l.Put(t.Context(), b) }) {
		t.Fatal("Go did not start the goroutine")
	}
	c, err := l.Accept(deadline(t))
	if err != nil || c.Peer() != s2.RemoteKey().String() {
		t.Errorf("%v, %v", c, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Accept(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	l.Put(t.Context(), b) // it is never accepted
	l.Close()
	l.Close()
	if l.Context().Err() == nil || l.Go(func() {}) {
		t.Error("the backlog still runs after Close")
	}
	if _, err := l.Accept(t.Context()); transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("got %v", err)
	}
	if _, err := b.Receive(deadline(t)); transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("a connection that was never accepted is open: %v", err)
	}
}
