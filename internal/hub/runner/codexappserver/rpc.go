package codexappserver

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strconv"
	"sync"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// rpc is the JSON-RPC connection: it matches answers to calls and hands the rest
// to a peer.
type rpc struct {
	out  *duplex.Outbox
	done chan struct{} // closed when the reading goroutine has ended

	mu    sync.Mutex
	next  int64
	calls map[string]chan message
	err   error // set before done is closed
}

// handler gets what the server sends on its own, on the goroutine that reads.
type handler interface {
	notified(method string, params json.RawMessage)
	requested(id json.RawMessage, method string, params json.RawMessage)
}

func newRPC(stdin io.Writer) *rpc {
	return &rpc{
		out:   duplex.NewOutbox(stdin),
		done:  make(chan struct{}),
		calls: make(map[string]chan message),
	}
}

// start begins to read.
func (r *rpc) start(conn duplex.Conn, h handler) {
	go func() {
		defer close(r.done)
		err := r.read(process.NewLines(conn.Stdout, conn.MaxLine), h)
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
	}()
}

// read takes lines until the end, or until one is too long.
func (r *rpc) read(lines *process.Lines, h handler) error {
	for {
		line, err := lines.Next()
		if err != nil {
			return duplex.ReadError(err)
		}
		var m message
		if json.Unmarshal(line, &m) != nil {
			continue // a warning of a wrapper script, say
		}
		r.dispatch(m, h)
	}
}

func (r *rpc) dispatch(m message, h handler) {
	hasID := len(m.ID) > 0 && !bytes.Equal(m.ID, []byte("null"))
	switch {
	case m.Method != "" && hasID:
		h.requested(m.ID, m.Method, m.Params)
	case m.Method != "":
		h.notified(m.Method, m.Params)
	case hasID:
		r.mu.Lock()
		call := r.calls[string(m.ID)]
		delete(r.calls, string(m.ID)) // a second answer finds nobody
		r.mu.Unlock()
		if call != nil {
			call <- m
		}
	}
}

// call sends a request and blocks until its answer. The error is a *wireError, a
// *runner.Error, duplex.ErrClosed or ctx's.
func (r *rpc) call(ctx context.Context, method string, params, result any) error {
	answer := make(chan message, 1)
	id := r.id()
	key := strconv.FormatInt(id, 10)
	r.mu.Lock()
	r.calls[key] = answer
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.calls, key)
		r.mu.Unlock()
	}()

	if err := r.out.Send(outgoing{ID: id, Method: method, Params: params}); err != nil {
		return err
	}
	m, err := duplex.Await(ctx, answer, r.done, r.cause)
	switch {
	case err != nil:
		return err
	case m.Error != nil:
		return m.Error
	case result == nil:
		return nil
	}
	if err := json.Unmarshal(m.Result, result); err != nil {
		return &runner.Error{Code: runner.CodeProtocol, Message: "the agent's answer to " + method + " could not be understood", Err: err}
	}
	return nil
}

// cause is why the connection ended. Call it after done.
func (r *rpc) cause() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// send sends a request whose answer nobody waits for.
func (r *rpc) send(method string, params any) error {
	return r.out.Send(outgoing{ID: r.id(), Method: method, Params: params})
}

func (r *rpc) id() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	return r.next
}

func (r *rpc) notify(method string, params any) error {
	return r.out.Send(outgoing{Method: method, Params: params})
}

func (r *rpc) answer(id json.RawMessage, result any) error {
	return r.out.Send(reply{ID: id, Result: result})
}

func (r *rpc) refuse(id json.RawMessage, code int, text string) error {
	return r.out.Send(reply{ID: id, Error: &wireError{Code: code, Message: text}})
}

// close waits for both goroutines; the process must be gone.
func (r *rpc) close() {
	<-r.done
	r.out.Close()
}

// Error makes a wireError an error.
func (e *wireError) Error() string { return e.Message }
