package websocket_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// fault is what happens to a TCP connection when an envelope is written to it.
type fault string

const (
	before fault = "before" // it is cut before the first byte
	within fault = "within" // half of the bytes leave
	after  fault = "after"  // all bytes leave, but the sender sees it cut
	none   fault = "none"
)

// padding makes the writes that contain an envelope larger than all others.
var padding = strings.Repeat("x", 4096)

// cutter dials TCP connections whose writes of envelopes have faults, in the order of plan.
type cutter struct {
	mu    sync.Mutex
	plan  []fault
	times []time.Time // of the writes that met a fault
}

func (c *cutter) next() fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.plan) == 0 {
		return none
	}
	f := c.plan[0]
	c.plan = c.plan[1:]
	c.times = append(c.times, time.Now())
	return f
}

func (c *cutter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &cutConn{conn, c}, nil
}

type cutConn struct {
	net.Conn
	c *cutter
}

// Write writes p, or what the fault lets through before the connection is closed. The errors are the system's.
func (c *cutConn) Write(p []byte) (int, error) {
	if len(p) < len(padding) {
		return c.Conn.Write(p)
	}
	through := len(p)
	f := c.c.next()
	switch f {
	case none:
		return c.Conn.Write(p)
	case before:
		through = 0
	case within:
		through = len(p) / 2
	}
	if through > 0 {
		if n, err := c.Conn.Write(p[:through]); err != nil {
			return n, err
		}
	}
	c.Close()
	_, err := c.Conn.Write(p)
	return through, err
}

// link12 is a channel over real TCP connections that the test cuts, and what happens at both ends.
type link12 struct {
	cuts cutter
	a    *channel.Channel

	mu     sync.Mutex
	got    []int
	failed []int
	events []telemetry.Event
}

func newLink12(t *rapid.T, delay time.Duration) *link12 {
	p := new(link12)
	l, err := websocket.Listen("127.0.0.1:0", websocket.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o := channel.Options{RetryDelay: delay, ReconnectDelay: time.Microsecond, AckDelay: time.Millisecond}
	mb := channel.NewManager(o, func(c *channel.Channel) {
		c.OnMessage(func(_ context.Context, e *envelope.Envelope) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.got = append(p.got, number(t, e))
		})
	})
	o.Telemetry = telemetry.SinkFunc(func(e telemetry.Event) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if e.Type == telemetry.DeliveryFailure {
			p.events = append(p.events, e)
		}
	})
	o.OnDeliveryFailure = func(_ *channel.Channel, e *envelope.Envelope, err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if channel.CodeOf(err) != channel.CodeDeliveryFailed || !transport.NothingSent(err) {
			t.Errorf("an envelope failed with %v", err)
		}
		p.failed = append(p.failed, number(t, e))
	}
	o.Dialers = map[agent.Transport]transport.Dialer{agent.TransportWebSocket: &websocket.Dialer{DialContext: p.cuts.dial}}
	ma := channel.NewManager(o, nil)
	var serving sync.WaitGroup
	serving.Go(func() { _ = mb.Serve(context.Background(), l) }) // ends with the manager
	t.Cleanup(func() {
		for _, err := range []error{ma.Close(), mb.Close(), l.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
		serving.Wait()
	})
	if p.a, err = ma.OpenAt(context.Background(), "a", "b", l.Endpoint()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.a.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return p
}

func number(t *rapid.T, e *envelope.Envelope) (n int) {
	if _, err := fmt.Sscan(string(e.Payload[1:]), &n); err != nil { // behind the quotation mark
		t.Errorf("payload %.20s: %v", e.Payload, err)
	}
	return n
}

// send sends an envelope and waits until it has arrived or failed.
func (p *link12) send(t *rapid.T, n int) {
	payload, err := json.Marshal(fmt.Sprint(n, " ", padding))
	if err != nil {
		t.Fatal(err)
	}
	e, err := envelope.New("a", "b", envelope.Notification, json.RawMessage(payload))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.a.Send(ctx, e); err != nil {
		t.Fatal(err)
	}
	if err := p.a.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

// Feature: a2a-mcp-protocols, Property 12: Channel retry on failure, over real TCP connections that are cut before,
// within or after an envelope. Req 3.5
func TestProperty12RetriesOverRealConnections(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		delay := time.Duration(rapid.IntRange(1, 4).Draw(t, "delay")) * time.Millisecond
		p := newLink12(t, delay)
		var arrive, fail []int
		for n := range rapid.IntRange(1, 3).Draw(t, "envelopes") {
			faults := rapid.SliceOfN(rapid.SampledFrom([]fault{before, before, before, within, after}), 0, 6).Draw(t, "faults")
			if i := slices.Index(faults, after); i >= 0 {
				faults = faults[:i+1] // it has arrived, if it had not failed before
			}
			used, failed := outcomeOf(faults)
			p.cuts.mu.Lock()
			p.cuts.plan, p.cuts.times = slices.Clone(faults[:used]), nil
			p.cuts.mu.Unlock()
			p.send(t, n)
			if failed {
				fail = append(fail, n)
			} else {
				arrive = append(arrive, n)
			}
			p.cuts.mu.Lock()
			checkDelays(t, faults[:used], p.cuts.times, delay)
			p.cuts.mu.Unlock()
		}
		same := func() error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if !slices.Equal(p.got, arrive) || !slices.Equal(p.failed, fail) || len(p.events) != len(fail) {
				return fmt.Errorf("arrived %v, want %v; failed %v with %d events, want %v", p.got, arrive, p.failed, len(p.events), fail)
			}
			return nil
		}
		wait.Eventually(t, "each envelope arrives once, or fails once", func() bool { return same() == nil })
		if err := same(); err != nil {
			t.Fatal(err)
		}
	})
}

// outcomeOf returns how many of the faults one envelope meets, and whether it fails: after four sends in a row of which
// nothing has left.
func outcomeOf(faults []fault) (used int, failed bool) {
	row := 0
	for i, f := range faults {
		if row++; f != before {
			row = 0
		}
		if row == 4 {
			return i + 1, true
		}
	}
	return len(faults), false
}

// checkDelays checks that each retry comes at least twice as late as the one before. Lower bounds only: a slow machine
// delays a retry further.
func checkDelays(t *rapid.T, faults []fault, times []time.Time, delay time.Duration) {
	if len(times) != len(faults) {
		t.Fatalf("%d sends met a fault, want %d: %v", len(times), len(faults), faults)
	}
	row := 0
	for i := range len(faults) - 1 {
		if row++; faults[i] != before {
			row = 0
			continue
		}
		if pause := times[i+1].Sub(times[i]); pause < delay<<(row-1) {
			t.Fatalf("retry %d came after %v, want at least %v", row, pause, delay<<(row-1))
		}
	}
}
