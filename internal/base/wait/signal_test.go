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

// Send wakes all who wait at that time, once.
func TestSendWakesAllWaiters(t *testing.T) {
	var s wait.Signal
	s.Send() // nobody waits
	one, two := s.Wait(), s.Wait()
	if isClosed(one) || isClosed(two) {
		t.Error("woken by an earlier Send")
	}
	s.Send()
	if !isClosed(one) || !isClosed(two) {
		t.Error("not woken by Send")
	}
	if isClosed(s.Wait()) {
		t.Error("woken by an earlier Send")
	}
}

// A change between Wait and receiving from its channel is not missed.
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

// Further nudges do not block.
func TestNudgeIsKeptUntilItIsRead(t *testing.T) {
	c := make(chan struct{}, 1)
	wait.Nudge(c)
	wait.Nudge(c)
	if len(c) != 1 {
		t.Errorf("the channel has %d nudges, want 1", len(c))
	}
}

func TestAStoppedGroupStartsNothing(t *testing.T) {
	var g wait.Group
	hold, ran := make(chan struct{}), false
	if !g.Go(func() { <-hold; ran = true }) || g.Stopped() {
		t.Fatal("Go did not start the goroutine, or the group is stopped")
	}
	if !g.Stop() || g.Stop() || !g.Stopped() || g.Go(func() { t.Error("started after Stop") }) {
		t.Error("Stop does not report the first call, or Go starts after it")
	}
	close(hold)
	if g.Wait(); !ran {
		t.Error("Wait returned before the goroutine ended")
	}
}

// Until checks the condition at once and after each Send, until a context ends.
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
		t.Error("Until ended before the condition held")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if !s.Until(ended, ended.Done(), func() bool { return true }) {
		t.Error("Until did not check the condition once")
	}
	never := func() bool { return false }
	if s.Until(ended, nil, never) || s.Until(t.Context(), ended.Done(), never) {
		t.Error("Until reports that the condition held")
	}
}

func TestSlotsBoundTheGoroutines(t *testing.T) {
	var b wait.Group
	slots, hold := make(chan struct{}, 1), make(chan struct{})
	if !b.GoWithin(slots, func() { <-hold }) || b.GoWithin(slots, func() {}) {
		t.Error("the slot does not bound the goroutines to one")
	}
	close(hold)
	b.Stop()
	b.Wait()
	if len(slots) != 0 || b.GoWithin(slots, func() {}) || len(slots) != 0 {
		t.Errorf("%d slots are taken after the end", len(slots))
	}
}

var errOver = errors.New("over")

func TestUnacceptedConnectionsAreDropped(t *testing.T) {
	var dropped []int
	b := wait.NewBacklog(t.Context(), 1, func(n int) { dropped = append(dropped, n) }, func() error { return errOver })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if !b.Put(ended, 1) || b.Offer(2) || b.Put(ended, 3) {
		t.Error("the backlog does not have room for exactly one")
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
	if _, err := b.Accept(t.Context()); !errors.Is(err, errOver) || b.Put(t.Context(), 5) {
		t.Errorf("Accept or Put works after Close: %v", err)
	}
	if !slices.Equal(dropped, []int{3, 4, 5}) {
		t.Errorf("dropped %v", dropped)
	}
}

// Whether Put is called before, during or after Close, the connection is dropped once.
func TestBacklogLosesNothingWhenItCloses(t *testing.T) {
	for range 2000 {
		var dropped atomic.Int32
		b := wait.NewBacklog(t.Context(), 2, func(int) { dropped.Add(1) }, func() error { return nil })
		var puts sync.WaitGroup
		for i := range 4 {
			puts.Go(func() { b.Put(t.Context(), i) })
		}
		b.Close()
		puts.Wait()
		if n := dropped.Load(); n != 4 {
			t.Fatalf("%d of 4 were dropped", n)
		}
	}
}
