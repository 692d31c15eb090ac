package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Logger returns a sink that logs security events and delivery failures as warnings, errors and failed decisions as
// errors, and everything else at debug level. Events have no payloads.
func Logger(l *slog.Logger) Sink { return logSink{l} }

type logSink struct{ l *slog.Logger }

func (s logSink) Emit(e Event) {
	ctx := context.Background()
	level := levelOf(e)
	if !s.l.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 13)
	for _, a := range [...]struct{ key, value string }{
		{"envelopeId", e.EnvelopeID}, {"sender", e.Sender}, {"recipient", e.Recipient}, {"messageType", string(e.MessageType)},
		{"routingPath", string(e.RoutingPath)}, {"targetAgentId", e.Target}, {"toolName", e.ToolName},
		{"sourceAgent", e.SourceAgent}, {"channelId", e.ChannelID}, {"code", e.Code}, {"detail", e.Detail},
	} {
		if a.value != "" {
			attrs = append(attrs, slog.String(a.key, a.value))
		}
	}
	if e.SourceTier.Valid() {
		attrs = append(attrs, slog.Int("sourceTier", e.SourceTier.Level()), slog.Int("targetTier", e.TargetTier.Level()))
	}
	if e.Duration != 0 {
		attrs = append(attrs, slog.Float64("duration", e.Duration))
	}
	if e.Success != NoOutcome {
		attrs = append(attrs, slog.Bool("success", e.Success == Success))
	}
	attrs = append(attrs, slog.Int64("timestamp", e.Timestamp))
	s.l.LogAttrs(ctx, level, string(e.Type), attrs...)
}

func levelOf(e Event) slog.Level {
	switch {
	case e.Type == Security || e.Type == DeliveryFailure:
		return slog.LevelWarn
	case e.Type == ErrorEvent || e.Success == Failure:
		return slog.LevelError
	}
	return slog.LevelDebug
}

// Limit returns a sink that forwards at most n warnings and errors of one type per period, so that a peer cannot
// fill a log. It reports when it begins to omit events, and later how many it omitted. It forwards all other events.
// Do not use it for counters or the audit log, which need every event.
func Limit(next Sink, n int, period time.Duration) Sink {
	return &limiter{next: next, n: n, period: period, windows: make(map[EventType]*window)}
}

// CodeOmitted is the code of events about those that [Limit] omitted.
const CodeOmitted = "EVENTS_OMITTED"

type limiter struct {
	next   Sink
	n      int
	period time.Duration

	mu      sync.Mutex
	windows map[EventType]*window
}

type window struct {
	began time.Time
	seen  int
}

// Emit forwards the event, or counts it.
func (l *limiter) Emit(e Event) {
	if levelOf(e) < slog.LevelWarn {
		l.next.Emit(e)
		return
	}
	pass, notice := l.count(e.Type)
	if notice != "" {
		l.next.Emit(Event{Type: e.Type, Success: e.Success, Code: CodeOmitted, Detail: notice, Timestamp: e.Timestamp})
	}
	if pass {
		l.next.Emit(e)
	}
}

func (l *limiter) count(t EventType) (pass bool, notice string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.windows[t]
	if w == nil {
		w = &window{began: time.Now()}
		l.windows[t] = w
	}
	if time.Since(w.began) >= l.period {
		if omitted := w.seen - l.n; omitted > 0 {
			notice = fmt.Sprintf("%d more events like this were left out", omitted)
		}
		*w = window{began: time.Now()}
	}
	w.seen++
	if w.seen == l.n+1 {
		notice = fmt.Sprintf("there are more than %d in %v: further events like this are left out for a while", l.n, l.period)
	}
	return w.seen <= l.n, notice
}

// Async passes events to a slow sink in its own goroutine.
type Async struct {
	sink  Sink
	queue chan Event
	done  chan struct{}

	mu      sync.RWMutex // held for reading while an event is queued
	closed  bool
	dropped atomic.Uint64
}

// NewAsync starts the goroutine; [Async.Close] ends it. At most size events are queued;
// further ones are dropped and counted, so that a delivery never waits for an exporter.
func NewAsync(sink Sink, size int) *Async {
	a := &Async{sink: sink, queue: make(chan Event, max(size, 1)), done: make(chan struct{})}
	go func() {
		defer close(a.done)
		for e := range a.queue {
			a.sink.Emit(e)
		}
	}()
	return a
}

// Emit queues the event, or drops it. It never blocks.
func (a *Async) Emit(e Event) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.closed {
		a.dropped.Add(1)
		return
	}
	select {
	case a.queue <- e:
	default:
		a.dropped.Add(1)
	}
}

// Dropped returns how many events were dropped because the queue was full or closed.
func (a *Async) Dropped() uint64 { return a.dropped.Load() }

// Close emits the queued events and ends the goroutine. It is safe to call more than once.
func (a *Async) Close() error {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.queue)
	}
	a.mu.Unlock()
	<-a.done
	return nil
}
