package duplex

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Bounds of what waits to be written to an agent that does not read.
const (
	maxQueuedLines = 1024
	maxQueuedBytes = 32 << 20
)

// ErrClosed says that the connection to the agent is over.
var ErrClosed = errors.New("the agent's connection is closed")

// errFlood says that an agent makes more work than it takes answers.
var errFlood = errors.New("the agent does not read what it asked for")

// Outbox writes JSON lines to an agent, in order. Send never blocks, so that the
// goroutine that reads the agent can answer it: an agent that writes before it
// reads would otherwise stand still together with us.
type Outbox struct {
	w    io.Writer
	done chan struct{} // closed when the writing goroutine has ended

	mu    sync.Mutex
	cond  sync.Cond
	queue [][]byte
	bytes int
	err   error
}

// NewOutbox starts the writing goroutine. It ends after Close, or when w fails.
func NewOutbox(w io.Writer) *Outbox {
	o := &Outbox{w: w, done: make(chan struct{})}
	o.cond.L = &o.mu
	go o.run()
	return o
}

// Send queues v as one line. The error is that of an earlier line, ErrClosed, or
// says that too much waits.
func (o *Outbox) Send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	b = append(b, '\n')
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	if len(o.queue) >= maxQueuedLines || o.bytes+len(b) > maxQueuedBytes {
		return errFlood
	}
	o.queue = append(o.queue, b)
	o.bytes += len(b)
	o.cond.Signal()
	return nil
}

func (o *Outbox) run() {
	defer close(o.done)
	for {
		line, ok := o.next()
		if !ok {
			return
		}
		if _, err := o.w.Write(line); err != nil {
			o.fail(err)
			return
		}
	}
}

func (o *Outbox) next() ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) == 0 && o.err == nil {
		o.cond.Wait()
	}
	if o.err != nil {
		return nil, false
	}
	line := o.queue[0]
	o.queue = o.queue[1:]
	o.bytes -= len(line)
	return line, true
}

func (o *Outbox) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	o.cond.Broadcast()
}

// Close drops what waits and returns when the goroutine has ended. The writer
// must have been closed, or be about to return.
func (o *Outbox) Close() {
	o.fail(io.ErrClosedPipe)
	<-o.done
}
