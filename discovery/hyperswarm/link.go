package hyperswarm

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/hyperswarm/swarm"
	"github.com/parleyhub/parley/internal/base/wait"
)

// link is a connection with another hub. It sends the current statement about each
// agent in its queue, so a slow hub gets fewer statements and the queue stays small.
type link struct {
	c      *swarm.Conn
	ledger *signedcard.Ledger
	wake   chan struct{} // buffers one change of the queue

	mu       sync.Mutex
	queue    map[string]struct{} // agents to send statements about
	sending  bool                // one that has left the queue
	ended    bool
	idle     wait.Signal // when the queue is sent, or the link has ended
	lastSeen time.Time   // of the last message after the greeting
}

func newLink(c *swarm.Conn, ledger *signedcard.Ledger) *link {
	return &link{c: c, ledger: ledger, wake: make(chan struct{}, 1), queue: make(map[string]struct{})}
}

func (l *link) lastMessage() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastSeen
}

// enqueue schedules the sending of the statement about an agent, in its state at the time of sending.
func (l *link) enqueue(id string) {
	l.mu.Lock()
	l.queue[id] = struct{}{}
	l.mu.Unlock()
	wait.Nudge(l.wake)
}

// flush waits until the queue is sent, or the link or ctx has ended.
func (l *link) flush(ctx context.Context) {
	idle := l.idle.Wait()
	l.mu.Lock()
	flushed := len(l.queue) == 0 && !l.sending || l.ended
	l.mu.Unlock()
	if flushed {
		return
	}
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// run exchanges statements until the connection or ctx ends.
func (l *link) run(ctx context.Context, receive func([]byte)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.c.Close() }) // the connection ends anyway
	defer stop()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer l.c.Destroy()
	writing.Go(func() {
		defer l.end()
		if err := l.write(); err != nil {
			l.c.Destroy()
		}
	})
	return l.read(receive)
}

func (l *link) read(receive func([]byte)) error {
	greeted := false
	for {
		watchdog := time.AfterFunc(timeout, l.c.Destroy)
		m, err := l.c.ReadMessage()
		watchdog.Stop()
		switch {
		case err != nil:
			return err
		case !greeted && string(m) != Greeting:
			return errors.New("the peer is not a hub: its first message is not " + Greeting)
		case !greeted:
			greeted = true
		case string(m) != heartbeat:
			receive(m)
		}
		l.mu.Lock()
		l.lastSeen = time.Now()
		l.mu.Unlock()
	}
}

// write sends the greeting, the queue and heartbeats.
func (l *link) write() error {
	if err := l.c.WriteMessage([]byte(Greeting)); err != nil {
		return err
	}
	beat := time.Tick(interval)
	for {
		var err error
		select {
		case <-l.wake:
			err = l.drain()
		case <-beat:
			err = l.c.WriteMessage([]byte(heartbeat))
		case <-l.c.Done():
			return nil
		case <-l.c.Ended():
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// drain sends the queue.
func (l *link) drain() error {
	for {
		id, ok := l.next()
		if !ok {
			return nil
		}
		data, err := l.ledger.Statement(id)
		if err != nil {
			continue // impossible: it was signed when it was announced
		}
		if err := l.c.WriteMessage(data); err != nil {
			return err
		}
	}
}

// next removes an agent from the queue.
func (l *link) next() (id string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.queue {
		delete(l.queue, id)
		l.sending = true
		return id, true
	}
	l.sending = false
	l.idle.Send()
	return "", false
}

func (l *link) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.idle.Send()
}
