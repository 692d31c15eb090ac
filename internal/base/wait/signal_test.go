package wait_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/base/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Everybody who has begun to wait is woken once, nobody who comes later.
func TestASendWakesWhoWaits(t *testing.T) {
	var s wait.Signal
	s.Send() // nobody is there
	one, two := s.Wait(), s.Wait()
	if isClosed(one) || isClosed(two) {
		t.Error("woken by a send before")
	}
	s.Send()
	if !isClosed(one) || !isClosed(two) {
		t.Error("not woken")
	}
	if isClosed(s.Wait()) {
		t.Error("woken by a send before")
	}
}

// A change that comes after Wait is not missed.
func TestNoSendIsMissed(t *testing.T) {
	var s wait.Signal
	var mu sync.Mutex
	count := 0
	const sends = 1000
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				changed := s.Wait()
				mu.Lock()
				done := count == sends
				mu.Unlock()
				if done {
					return
				}
				<-changed
			}
		})
	}
	for range sends {
		mu.Lock()
		count++
		mu.Unlock()
		s.Send()
	}
	all.Wait()
}

// A nudge is kept until it is read, and further ones do not block.
func TestANudgeIsKept(t *testing.T) {
	c := make(chan struct{}, 1)
	wait.Nudge(c)
	wait.Nudge(c)
	if len(c) != 1 {
		t.Errorf("%d nudges", len(c))
	}
}

func TestAStoppedGroupStartsNothing(t *testing.T) {
	var g wait.Group
	hold, ran := make(chan struct{}), false
	if !g.Go(func() { <-hold; ran = true }) || g.Stopped() {
		t.Fatal("nothing runs")
	}
	if !g.Stop() || g.Stop() || !g.Stopped() || g.Go(func() { t.Error("started after Stop") }) {
		t.Error("it is not stopped once")
	}
	close(hold)
	if g.Wait(); !ran {
		t.Error("Wait does not wait")
	}
}

// Until looks at once and after each Send, until an end.
func TestUntilBlocksUntilTheConditionHolds(t *testing.T) {
	var s wait.Signal
	var n atomic.Int64
	go func() {
		for range 3 {
			n.Add(1)
			s.Send()
		}
	}()
	if !s.Until(t.Context(), nil, func() bool { return n.Load() == 3 }) {
		t.Error("it ended before")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if !s.Until(ended, ended.Done(), func() bool { return true }) {
		t.Error("it did not look")
	}
	never := func() bool { return false }
	if s.Until(ended, nil, never) || s.Until(t.Context(), ended.Done(), never) {
		t.Error("it held")
	}
}

func TestSlotsBoundTheGoroutines(t *testing.T) {
	var b wait.Group
	slots, hold := make(chan struct{}, 1), make(chan struct{})
	if !b.GoWithin(slots, func() { <-hold }) || b.GoWithin(slots, func() {}) {
		t.Error("one may run at a time")
	}
	close(hold)
	b.Stop()
	b.Wait()
	if len(slots) != 0 || b.GoWithin(slots, func() {}) || len(slots) != 0 {
		t.Errorf("%d slots are taken after the end", len(slots))
	}
}

var errOver = errors.New("over")

func TestConnectionsThatNobodyAcceptsAreDropped(t *testing.T) {
	var dropped []int
	b := wait.NewBacklog(t.Context(), 1, func(n int) { dropped = append(dropped, n) }, func() error { return errOver })
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
