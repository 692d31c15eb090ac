package mesh

import "sync"

// broadcast wakes everybody who waits for something new.
type broadcast struct {
	mu   sync.Mutex
	next chan struct{}
}

func (b *broadcast) init() { b.next = make(chan struct{}) }

// send closes the channel that wait returned.
func (b *broadcast) send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.next)
	b.next = make(chan struct{})
}

// wait returns a channel that is closed by the next send. Take it before
// looking whether there is something new, else a send in between is missed.
func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next
}
