// Package transporttest has the tests that every transport must pass, and a dialer whose connections have faults.
package transporttest

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/transport"
)

// Faults is a dialer whose connections fail on demand. Faults affect the frames that
// the dialling end sends; cuts affect both ends. It is safe for concurrent use.
type Faults struct {
	dialer transport.Dialer

	mu      sync.Mutex
	conns   map[*faulty]struct{}
	refuse  bool
	fail    int // sends to fail
	failed  []time.Time
	drop    int // batches to drop
	chaos   *rand.Rand
	rewrite func(transport.Frame) transport.Frame
}

// NewFaults returns a dialer that dials with d.
func NewFaults(d transport.Dialer) *Faults {
	return &Faults{dialer: d, conns: make(map[*faulty]struct{})}
}

// locked calls change with the lock held.
func (f *Faults) locked(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// Refuse makes Dial fail, or work again.
func (f *Faults) Refuse(yes bool) { f.locked(func() { f.refuse = yes }) }

// Refusing reports whether Dial fails.
func (f *Faults) Refusing() (yes bool) {
	f.locked(func() { yes = f.refuse })
	return yes
}

// Cut closes all connections.
func (f *Faults) Cut() {
	for _, c := range f.all() {
		c.Conn.Close()
	}
}

// Freeze makes the present connections half-open: they stay open, but frames are lost in both directions.
func (f *Faults) Freeze() {
	for _, c := range f.all() {
		c.freeze()
	}
}

// FailSends makes the next n sends of data fail with CodeNotSent.
func (f *Faults) FailSends(n int) { f.locked(func() { f.fail = n }) }

// FailedSends returns the times at which sends failed because of FailSends.
func (f *Faults) FailedSends() (failed []time.Time) {
	f.locked(func() { failed = slices.Clone(f.failed) })
	return failed
}

// Drop loses the next n batches.
func (f *Faults) Drop(n int) { f.locked(func() { f.drop = n }) }

// Chaos repeats and reorders frames at random from now on.
func (f *Faults) Chaos(seed uint64) {
	f.locked(func() { f.chaos = rand.New(rand.NewPCG(seed, seed)) })
}

// Rewrite applies change to each frame that is sent from now on.
func (f *Faults) Rewrite(change func(transport.Frame) transport.Frame) {
	f.locked(func() { f.rewrite = change })
}

// Dial connects, unless the test refuses connections.
func (f *Faults) Dial(ctx context.Context, to agent.Endpoint) (transport.Conn, error) {
	if f.Refusing() {
		return nil, &transport.Error{Code: transport.CodeUnreachable, Message: "refused by the test"}
	}
	conn, err := f.dialer.Dial(ctx, to)
	if err != nil {
		return nil, err
	}
	c := &faulty{Conn: conn, f: f}
	c.frozen, c.freeze = context.WithCancel(context.Background())
	c.closed, c.end = context.WithCancel(context.Background())
	f.locked(func() { f.conns[c] = struct{}{} })
	return c, nil
}

func (f *Faults) all() (all []*faulty) {
	f.locked(func() { all = slices.Collect(maps.Keys(f.conns)) })
	return all
}

type faulty struct {
	transport.Conn
	f              *Faults
	frozen, closed context.Context
	freeze, end    context.CancelFunc
	late           []transport.Frame // held back to arrive out of order
}

func (c *faulty) Close() error {
	c.f.locked(func() { delete(c.f.conns, c) })
	c.end()
	return c.Conn.Close()
}

func (c *faulty) Receive(ctx context.Context) ([]transport.Frame, error) {
	type result struct {
		frames []transport.Frame
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got := make(chan result, 1)
	go func() {
		frames, err := c.Conn.Receive(ctx)
		got <- result{slices.Clone(frames), err}
	}()
	select {
	case r := <-got:
		if c.frozen.Err() == nil {
			return r.frames, r.err
		}
	case <-c.frozen.Done():
	}
	select {
	case <-c.closed.Done():
		return nil, transport.ErrClosed("the connection", nil)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *faulty) Send(ctx context.Context, frames []transport.Frame) error {
	if c.frozen.Err() != nil {
		return nil
	}
	frames, err := c.spoil(frames)
	if err != nil || len(frames) == 0 {
		return err
	}
	return c.Conn.Send(ctx, frames)
}

// spoil applies the faults to a batch. A lost one is empty.
func (c *faulty) spoil(frames []transport.Frame) (out []transport.Frame, err error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.f.fail > 0 && frames[0].Kind == transport.Data {
		c.f.fail--
		c.f.failed = append(c.f.failed, time.Now())
		return nil, &transport.Error{Code: transport.CodeNotSent, Message: "failed by the test"}
	}
	if c.f.drop > 0 {
		c.f.drop--
		return nil, nil
	}
	out = slices.Clone(frames)
	if c.f.rewrite != nil {
		for i := range out {
			out[i] = c.f.rewrite(out[i])
		}
	}
	if c.f.chaos != nil {
		out = c.shuffle(out)
	}
	return out, nil
}

// shuffle repeats some frames, swaps some and holds some back until the next batch.
func (c *faulty) shuffle(frames []transport.Frame) []transport.Frame {
	r := c.f.chaos
	out := c.late
	c.late = nil
	for _, f := range frames {
		out = append(out, f)
		if r.IntN(5) == 0 {
			out = append(out, f)
		}
	}
	for i := 1; i < len(out); i++ {
		if r.IntN(3) == 0 && data(out[i]) && data(out[i-1]) {
			out[i], out[i-1] = out[i-1], out[i]
		}
	}
	if last := out[len(out)-1]; data(last) && r.IntN(10) == 0 {
		c.late = append(c.late, last)
		out = out[:len(out)-1]
	}
	return out
}

func data(f transport.Frame) bool { return f.Kind == transport.Data || f.Kind == transport.Ack }
