package drivers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// object is a JSON object of a message to an agent.
type object = map[string]any

// textBlocks returns a prompt for claude and codex.
func textBlocks(text string) []object { return []object{{"type": "text", "text": text}} }

// isID reports whether a JSON-RPC message has an id.
func isID(id json.RawMessage) bool { return len(id) > 0 && !bytes.Equal(id, []byte("null")) }

// readError translates an error of process.Lines. A line that is too long ends
// the connection, because its content is lost.
func readError(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return duplex.ErrClosed
	case errors.Is(err, process.ErrLineTooLong):
		return &runner.Error{Code: runner.CodeLimit, Message: "the agent sent a message that is too long", Err: err}
	default:
		return fmt.Errorf("%w: %w", duplex.ErrClosed, err)
	}
}

// calls is a connection of JSON lines on which both sides send requests. M is the
// type of an answer. Its methods are safe for concurrent use.
type calls[M any] struct {
	*outbox
	questions questions
	done      chan struct{} // closed when read has returned

	mu      sync.Mutex
	next    int64
	waiting map[string]chan M // by the request's id
	err     error             // why read returned
}

// newCalls starts the goroutine that writes. The caller starts read.
func newCalls[M any](stdin io.Writer) *calls[M] {
	return &calls[M]{outbox: newOutbox(stdin), done: make(chan struct{}), waiting: make(map[string]chan M)}
}

// read passes each line to receive until the output ends or a line is too long.
func (c *calls[M]) read(pipes duplex.Pipes, receive func(line []byte)) {
	defer close(c.done)
	lines := process.NewLines(pipes.Stdout, pipes.MaxLine)
	for {
		line, err := lines.Next()
		if err != nil {
			c.mu.Lock()
			c.err = readError(err)
			c.mu.Unlock()
			return
		}
		receive(line)
	}
}

// id returns an id for the next request.
func (c *calls[M]) id() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	return c.next
}

// call sends a request and blocks until the answer to id, the end of ctx or the end of the connection.
func (c *calls[M]) call(ctx context.Context, id string, request any) (M, error) {
	answer := make(chan M, 1)
	c.mu.Lock()
	c.waiting[id] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
	}()
	if err := c.send(request); err != nil {
		var none M
		return none, err
	}
	return await(ctx, c, answer)
}

// answered passes an answer to its call. A second answer is dropped, and so is one to an unknown id.
func (c *calls[M]) answered(id string, m M) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.waiting[id]; call != nil {
		delete(c.waiting, id)
		call <- m
	}
}

// cause returns why the connection ended. It is set once done is closed.
func (c *calls[M]) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close implements duplex.Connection: it waits for both goroutines, and cancels the permission requests.
func (c *calls[M]) Close() {
	<-c.done
	c.outbox.close()
	c.questions.end()
}

// await blocks until ch yields a value, ctx ends or the connection ends. A value
// that arrived before the end of the connection is returned.
func await[T, M any](ctx context.Context, c *calls[M], ch <-chan T) (T, error) {
	var none T
	select {
	case v := <-ch:
		return v, nil
	case <-ctx.Done():
		return none, ctx.Err()
	case <-c.done:
	}
	select {
	case v := <-ch:
		return v, nil
	default:
		return none, c.cause()
	}
}

// Bounds of what waits to be written to an agent that does not read.
const (
	maxQueuedLines = 1024
	maxQueuedBytes = 32 << 20
)

var errFlood = errors.New("the agent sends requests and does not read the answers")

// outbox writes JSON lines to an agent, in order. send never blocks, so that the goroutine that reads the agent can
// answer it: an agent that writes before it reads would otherwise deadlock with the hub.
type outbox struct {
	w       io.Writer
	stopped chan struct{} // closed when the writing goroutine has returned

	mu    sync.Mutex
	cond  sync.Cond
	queue [][]byte
	bytes int
	err   error
}

// newOutbox starts the writing goroutine. It returns after close, or when w fails.
func newOutbox(w io.Writer) *outbox {
	o := &outbox{w: w, stopped: make(chan struct{})}
	o.cond.L = &o.mu
	go o.run()
	return o
}

// send queues v as one line. The error is that of an earlier write, ErrClosed, or errFlood.
func (o *outbox) send(v any) error {
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

func (o *outbox) run() {
	defer close(o.stopped)
	for line := o.next(); line != nil; line = o.next() {
		if _, err := o.w.Write(line); err != nil {
			o.fail(err)
		}
	}
}

// next blocks until a line waits, and returns it; nil after an error.
func (o *outbox) next() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) == 0 && o.err == nil {
		o.cond.Wait()
	}
	if o.err != nil {
		return nil
	}
	line := o.queue[0]
	o.queue = o.queue[1:]
	o.bytes -= len(line)
	return line
}

func (o *outbox) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = fmt.Errorf("%w: %w", duplex.ErrClosed, err)
	}
	o.cond.Broadcast()
}

// close drops what waits and returns when the goroutine has returned. The writer
// must have been closed, or be about to return.
func (o *outbox) close() {
	o.fail(io.ErrClosedPipe)
	<-o.stopped
}

// maxQuestions bounds the goroutines that wait for decisions on one connection.
// The turn's own bound is lower, and reported to the user: requests above it end at once.
const maxQuestions = 64

// questions are the permission requests of an agent that wait for a decision, by
// their ids in the protocol. The zero value is ready.
type questions struct {
	mu   sync.Mutex
	cond sync.Cond // that a request has left open
	open map[string]context.CancelFunc
	wg   sync.WaitGroup
}

// ask asks on its own goroutine and passes the decision to answer. A request that waits already is ignored. Without
// a turn the decision is empty and immediate. answer must not block. With too many requests, ask blocks until the turn
// has refused or decided one, so that each of a burst gets its decision. It is for one goroutine.
func (q *questions) ask(t *duplex.Turn, id string, req runner.PermissionRequest, answer func(duplex.Decision)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open[id] != nil {
		return
	}
	if t == nil {
		answer(duplex.Decision{})
		return
	}
	if q.open == nil {
		q.open, q.cond.L = make(map[string]context.CancelFunc), &q.mu
	}
	for len(q.open) >= maxQuestions {
		q.cond.Wait()
	}
	ctx, cancel := context.WithCancel(context.Background())
	q.open[id] = cancel
	q.wg.Go(func() {
		defer cancel()
		d := t.Ask(ctx, req)
		q.mu.Lock()
		delete(q.open, id)
		q.cond.Signal()
		q.mu.Unlock()
		answer(d)
	})
}

// withdraw cancels a request that the agent has settled by itself.
func (q *questions) withdraw(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if cancel := q.open[id]; cancel != nil {
		cancel()
	}
}

// end cancels all requests and returns when the last one is answered. Until then
// the caller must not ask with a turn.
func (q *questions) end() {
	q.mu.Lock()
	for _, cancel := range q.open {
		cancel()
	}
	q.mu.Unlock()
	q.wg.Wait()
}
