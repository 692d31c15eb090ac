package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
)

// Logger returns a sink that logs each event: security events and delivery
// failures as warnings, errors and failed decisions as errors, everything else
// at debug level. Payloads never reach a log; they are not in events.
func Logger(l *slog.Logger) Sink { return logSink{l} }

type logSink struct{ l *slog.Logger }

func (s logSink) Emit(e Event) {
	ctx := context.Background()
	level := levelOf(e)
	if !s.l.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 12)
	for _, a := range [...]struct{ key, value string }{
		{"envelopeId", e.EnvelopeID}, {"sender", e.Sender}, {"recipient", e.Recipient}, {"messageType", string(e.MessageType)},
		{"routingPath", string(e.RoutingPath)}, {"targetAgentId", e.Target}, {"toolName", e.ToolName},
		{"channelId", e.ChannelID}, {"code", e.Code}, {"detail", e.Detail},
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

// Async hands events to a slow sink from a goroutine of its own.
type Async struct {
	sink  Sink
	queue chan Event
	done  chan struct{}

	mu      sync.RWMutex // held for reading while an event is queued
	closed  bool
	dropped atomic.Uint64
}

// NewAsync starts the goroutine; [Async.Close] ends it. At most size events
// wait; the one that finds the queue full is dropped and counted, so that the
// sender of an envelope never waits for an exporter.
func NewAsync(sink Sink, size int) *Async {
	a := &Async{sink: sink, queue: make(chan Event, max(size, 1)), done: make(chan struct{})}
	go a.run()
	return a
}

func (a *Async) run() {
	defer close(a.done)
	for e := range a.queue {
		a.sink.Emit(e)
	}
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

// Dropped returns how many events found the queue full or closed.
func (a *Async) Dropped() uint64 { return a.dropped.Load() }

// Close hands over what is queued and ends the goroutine. It is safe to call
// more than once.
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
