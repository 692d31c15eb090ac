package sealed_test

import (
	"context"
	"errors"
	"testing"

	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/sealed"
)

func TestABacklogHoldsConnectionsForAccept(t *testing.T) {
	s1, s2 := streams(t)
	atA, atB := greet(t, s1, new(transport.Codec)), greet(t, s2, new(transport.Codec))
	a, b := <-atA, <-atB
	defer a.Abort()
	l := sealed.NewBacklog(1)
	if !l.Go(func() { l.Put(t.Context(), b) }) {
		t.Fatal("nothing runs")
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
	l.Put(t.Context(), b) // nobody accepts it any more
	l.Close()
	l.Close()
	if l.Context().Err() == nil || l.Go(func() {}) {
		t.Error("it goes on after the end")
	}
	if _, err := l.Accept(t.Context()); transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("got %v", err)
	}
	if _, err := b.Receive(deadline(t)); transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("a connection that nobody accepted lives: %v", err)
	}
}
