package duplex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// What the dialects' peers have in common.

// ReadError is why reading an agent has ended: err comes from process.Lines. A
// line that is too long ends it too: what it said cannot be guessed.
func ReadError(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return ErrClosed
	case errors.Is(err, process.ErrLineTooLong):
		return &runner.Error{Code: runner.CodeLimit, Message: "the agent sent a message that is too long", Err: err}
	default:
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
}

// Await blocks until something comes on ch, ctx ends, or the connection: done is
// closed then, and cause tells why. What has come counts, also where the end was
// close behind.
func Await[T any](ctx context.Context, ch <-chan T, done <-chan struct{}, cause func() error) (T, error) {
	var none T
	select {
	case v := <-ch:
		return v, nil
	case <-ctx.Done():
		return none, ctx.Err()
	case <-done:
	}
	select {
	case v := <-ch:
		return v, nil
	default:
		return none, cause()
	}
}

// maxQuestions bounds the goroutines that wait for decisions on one connection.
// The turn's own bound, which says so to the user, is lower.
const maxQuestions = 64

// Questions are the permission requests of an agent that wait for a decision, by
// the ids of their protocol. The zero value is ready.
type Questions struct {
	mu   sync.Mutex
	open map[string]context.CancelFunc
	wg   sync.WaitGroup
}

// Ask asks on a goroutine of its own and hands the decision to answer, unless the
// same request waits already: one answer is enough. Without a turn, or where too
// many wait, there is no decision, at once. answer must not block.
func (q *Questions) Ask(t *Turn, id string, req runner.PermissionRequest, answer func(Decision)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open[id] != nil {
		return
	}
	if t == nil || len(q.open) >= maxQuestions {
		answer(Decision{})
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	if q.open == nil {
		q.open = make(map[string]context.CancelFunc)
	}
	q.open[id] = cancel
	q.wg.Go(func() {
		defer cancel()
		d := t.Ask(ctx, req)
		q.mu.Lock()
		delete(q.open, id)
		q.mu.Unlock()
		answer(d)
	})
}

// Withdraw lets go of a request that the agent has settled otherwise.
func (q *Questions) Withdraw(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if cancel := q.open[id]; cancel != nil {
		cancel()
	}
}

// End lets go of all and returns when the last is answered. Until then nothing may
// be asked with a turn.
func (q *Questions) End() {
	q.mu.Lock()
	for _, cancel := range q.open {
		cancel()
	}
	q.mu.Unlock()
	q.wg.Wait()
}
