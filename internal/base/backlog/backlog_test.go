package backlog_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/base/backlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errOver = errors.New("over")

func TestConnectionsThatNobodyAcceptsAreDropped(t *testing.T) {
	var dropped []int
	b := backlog.New(t.Context(), 1, func(n int) { dropped = append(dropped, n) }, func() error { return errOver })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if !b.Put(ended, 1) || b.Offer(2) || b.Put(ended, 3) {
		t.Error("there is room for one")
	}
	if n, err := b.Accept(t.Context()); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := b.Accept(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	b.Offer(4)
	b.Close()
	b.Close()
	if _, err := b.Accept(t.Context()); !errors.Is(err, errOver) || b.Put(t.Context(), 5) && b.Context().Err() == nil {
		t.Errorf("it goes on after the end: %v", err)
	}
	if !slices.Equal(dropped, []int{3, 4}) && !slices.Equal(dropped, []int{3, 4, 5}) {
		t.Errorf("dropped %v", dropped)
	}
}
