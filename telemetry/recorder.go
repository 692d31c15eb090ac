package telemetry

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/clock"
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/fault"
)

// DefaultRecent is how many events a Recorder keeps by default.
const DefaultRecent = 1024

// maxTools bounds the tools that are counted by name; others count as "other".
const maxTools = 1000

// Options set up a Recorder. The zero Options are valid.
type Options struct {
	Recent int              // events to keep; 0 means DefaultRecent
	Sinks  []Sink           // get every event, in this order
	Now    func() time.Time // for events without a timestamp; nil means the wall clock, read in steps of at most 5 ms
}

// Recorder counts events, keeps the latest and passes them to its sinks. The zero
// Recorder is ready; a nil *Recorder discards events. It is safe for concurrent use.
type Recorder struct {
	sinks []Sink
	now   func() time.Time
	size  int

	mu     sync.Mutex
	ring   []Event
	next   int // where to write the next event, once the ring is full
	counts counts
	tools  map[string]uint64
}

// counts is everything that is a plain number. The averages are sums here.
type counts struct {
	Metrics
	sentByType, receivedByType [10]uint64
}

// New returns a Recorder.
func New(o Options) *Recorder {
	return &Recorder{sinks: o.Sinks, now: o.Now, size: o.Recent}
}

// Emit counts and keeps the event, then passes it to the sinks. An event without a timestamp gets the current time.
func (r *Recorder) Emit(e Event) {
	if r == nil {
		return
	}
	if e.Timestamp == 0 {
		e.Timestamp = r.time()
	}
	r.mu.Lock()
	r.count(&e)
	r.keep(&e)
	r.mu.Unlock()
	for i := range r.sinks {
		r.pass(i, e)
	}
}

// pass calls a sink, by index. Its panic is an error event for the other sinks; where all panic, the event is only kept.
func (r *Recorder) pass(sink int, e Event) {
	p := fault.Catch(func() { r.sinks[sink].Emit(e) })
	if p == nil {
		return
	}
	failure := Panicked("a sink of the telemetry", p)
	failure.Timestamp = r.time()
	r.mu.Lock()
	r.count(&failure)
	r.keep(&failure)
	r.mu.Unlock()
	for i, other := range r.sinks {
		if i != sink {
			_ = fault.Catch(func() { other.Emit(failure) }) // an event of this panic could go on forever
		}
	}
}

// EmitAll emits several events at a lower price than one after the other. It sets
// missing timestamps in the slice, and keeps no reference to it.
func (r *Recorder) EmitAll(events []Event) {
	if r == nil || len(events) == 0 {
		return
	}
	for i := range events {
		if events[i].Timestamp == 0 {
			events[i].Timestamp = r.time()
		}
	}
	r.mu.Lock()
	for i := range events {
		r.count(&events[i])
		r.keep(&events[i])
	}
	r.mu.Unlock()
	for sink := range r.sinks {
		for i := range events {
			r.pass(sink, events[i])
		}
	}
}

// time returns the time in Unix milliseconds.
func (r *Recorder) time() int64 {
	if r.now != nil {
		return r.now().UnixMilli()
	}
	return clock.UnixMilli()
}

func (r *Recorder) keep(e *Event) {
	defaults.Set(&r.size, DefaultRecent)
	if len(r.ring) < r.size {
		r.ring = append(r.ring, *e)
		return
	}
	r.ring[r.next] = *e
	if r.next++; r.next == r.size {
		r.next = 0
	}
}

func (r *Recorder) count(e *Event) {
	c := &r.counts
	switch e.Type {
	case MessageSent:
		c.TotalMessagesSent++
		countType(&c.sentByType, e.MessageType)
	case MessageReceived:
		c.TotalMessagesReceived++
		countType(&c.receivedByType, e.MessageType)
	case RoutingDecision:
		c.RoutingDecisions++
		c.AverageRoutingLatencyMs += e.Duration
		if e.Success == Failure {
			c.ErrorCount++
		}
	case ToolInvocation:
		c.TotalToolInvocations++
		c.AverageToolDurationMs += e.Duration
		if e.Success == Failure {
			c.ToolErrorCount++
		}
		r.countTool(e.ToolName)
	case DeliveryFailure:
		c.DeliveryFailures++
		c.ErrorCount++
	case ErrorEvent:
		c.ErrorCount++
	case Security:
		c.SecurityEvents++
	}
}

func countType(counts *[10]uint64, t envelope.Type) {
	if i := slices.Index(types, t); i >= 0 {
		counts[i]++
	}
}

var types = envelope.Types()

func (r *Recorder) countTool(name string) {
	if r.tools == nil {
		r.tools = make(map[string]uint64)
	}
	if _, known := r.tools[name]; !known && len(r.tools) >= maxTools {
		name = "other"
	}
	r.tools[name]++
}

// Metrics are the counters. Averages are 0 before the first event.
type Metrics struct {
	TotalMessagesSent     uint64 `json:"totalMessagesSent"`     // envelopes accepted for delivery
	TotalMessagesReceived uint64 `json:"totalMessagesReceived"` // envelopes that reached a handler
	// MessagesByType is the sum of SentByType and ReceivedByType: a message between two
	// agents of one process counts twice.
	MessagesByType          map[envelope.Type]uint64 `json:"messagesByType"`
	SentByType              map[envelope.Type]uint64 `json:"sentByType"`              // TotalMessagesSent, by type
	ReceivedByType          map[envelope.Type]uint64 `json:"receivedByType"`          // TotalMessagesReceived, by type
	AverageRoutingLatencyMs float64                  `json:"averageRoutingLatencyMs"` // of the decisions, in milliseconds
	RoutingDecisions        uint64                   `json:"routingDecisions"`        // refused ones too
	ErrorCount              uint64                   `json:"errorCount"`              // errors, delivery failures, and envelopes refused or not routed
	SecurityEvents          uint64                   `json:"securityEvents"`          // refusals by policy
	DeliveryFailures        uint64                   `json:"deliveryFailures"`        // envelopes that were given up

	TotalToolInvocations  uint64            `json:"totalToolInvocations"`  // failed ones too
	ToolInvocationsByTool map[string]uint64 `json:"toolInvocationsByTool"` // at most 1000 names, then "other"
	AverageToolDurationMs float64           `json:"averageToolDurationMs"` // in milliseconds
	ToolErrorCount        uint64            `json:"toolErrorCount"`        // invocations that failed
}

// Metrics returns the counters. The three maps by type have all ten types.
func (r *Recorder) Metrics() Metrics {
	if r == nil {
		r = new(Recorder)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &r.counts
	m := c.Metrics
	m.AverageRoutingLatencyMs = average(m.AverageRoutingLatencyMs, m.RoutingDecisions)
	m.AverageToolDurationMs = average(m.AverageToolDurationMs, m.TotalToolInvocations)
	m.MessagesByType = make(map[envelope.Type]uint64, len(types))
	m.SentByType = make(map[envelope.Type]uint64, len(types))
	m.ReceivedByType = make(map[envelope.Type]uint64, len(types))
	m.ToolInvocationsByTool = make(map[string]uint64, len(r.tools))
	maps.Copy(m.ToolInvocationsByTool, r.tools)
	for i, t := range types {
		m.SentByType[t], m.ReceivedByType[t] = c.sentByType[i], c.receivedByType[i]
		m.MessagesByType[t] = c.sentByType[i] + c.receivedByType[i]
	}
	return m
}

func average(sum float64, n uint64) float64 {
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// Recent returns the latest events, oldest first: at most limit, or all if limit is 0 or less.
func (r *Recorder) Recent(limit int) []Event {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Concat(r.ring[r.next:], r.ring[:r.next])
	if limit > 0 && limit < len(all) {
		all = all[len(all)-limit:]
	}
	return all
}

// ResetMetrics sets every counter to 0. The recent events stay.
func (r *Recorder) ResetMetrics() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts = counts{}
	r.tools = nil
}

// Tracer follows envelopes from agent to agent, as package telemetry/otel does for
// OpenTelemetry. It must be safe for concurrent use.
type Tracer interface {
	// Send begins the span of a delivery. It returns the envelope to deliver, a copy of e with the trace context and
	// the sender's tier and sandbox, and the function that ends the span.
	Send(ctx context.Context, sender agent.Identity, e *envelope.Envelope) (*envelope.Envelope, func(error))
	// Receive begins the span in which agentID handles e. The handler gets the returned
	// context: what it sends with that belongs to the trace.
	Receive(ctx context.Context, agentID string, e *envelope.Envelope) (context.Context, func(error))
}
