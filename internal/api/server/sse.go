package server

import (
	"net/http"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
)

// stream answers a request with Server-Sent Events. An error before the first event is
// answered in plain JSON.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, d *jsonrpc.Dispatcher, req jsonrpc.Request) {
	events := &eventStream{w: w, id: req.ID, keepAlive: s.cfg.Limits.KeepAlive}
	defer events.close()
	result, rpcErr := d.Call(r.Context(), req, events.emit)
	if events.started() {
		if rpcErr != nil {
			events.fail(rpcErr)
		}
		return // the last event has the result
	}
	if rpcErr != nil {
		writeJSON(w, http.StatusOK, jsonrpc.AppendError(nil, req.ID, rpcErr))
		return
	}
	answer, err := jsonrpc.AppendResult(nil, req.ID, result)
	if err != nil {
		answer = jsonrpc.AppendError(nil, req.ID, jsonrpc.InternalError())
	}
	writeJSON(w, http.StatusOK, answer)
}

// eventStream writes an SSE stream. A second goroutine, which close ends, writes
// keep-alive comments.
type eventStream struct {
	id        jsonrpc.ID
	keepAlive time.Duration

	mu    sync.Mutex // serialises writes
	w     http.ResponseWriter
	done  chan struct{}  // closed by close; nil before the first event
	ticks sync.WaitGroup // the goroutine of the comments
}

// emit sends an event. The first one starts the stream.
func (e *eventStream) emit(event any) error {
	frame, err := jsonrpc.AppendResult([]byte("data: "), e.id, event)
	if err != nil {
		return err
	}
	if e.done == nil {
		e.begin()
	}
	return e.write(append(frame, "\n\n"...))
}

func (e *eventStream) started() bool { return e.done != nil }

func (e *eventStream) begin() {
	h := e.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-store")
	h.Set("X-Accel-Buffering", "no")
	e.w.WriteHeader(http.StatusOK)
	e.done = make(chan struct{})
	e.ticks.Go(e.comment)
}

func (e *eventStream) comment() {
	ticker := time.NewTicker(e.keepAlive)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if e.write([]byte(": keep-alive\n\n")) != nil {
				return // the next event fails too and ends the stream
			}
		case <-e.done:
			return
		}
	}
}

func (e *eventStream) fail(rpcErr *jsonrpc.Error) {
	frame := jsonrpc.AppendError([]byte("data: "), e.id, rpcErr)
	_ = e.write(append(frame, "\n\n"...)) // fails only if the client has disconnected
}

func (e *eventStream) write(frame []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.w.Write(frame); err != nil {
		return err
	}
	return http.NewResponseController(e.w).Flush()
}

func (e *eventStream) close() {
	if e.done != nil {
		close(e.done)
		e.ticks.Wait()
	}
}
