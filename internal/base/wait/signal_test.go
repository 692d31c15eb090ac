package wait_test

import (
	"sync"
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
