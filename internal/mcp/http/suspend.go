package http

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/wait"
)

// Suspended is what is left of a session's server while the session is suspended.
type Suspended interface {
	// Restore returns a server for the same session, whose ServerOptions.GetSessionID returns id.
	Restore(id string) *mcp.Server
	// End is called instead of Options.Release if the session ends.
	End()
}

// Lists counts the changes of a server's lists: of tools, of resources with their templates, and of prompts.
type Lists [3]uint64

// listChanged are the notifications of changes, in the order of [Lists].
var listChanged = [...]string{"tools", "resources", "prompts"}

const (
	maxInitialize = 16 << 10               // bytes of a request initialize that is kept; sessions with a larger one are not suspended
	settleTime    = time.Second            // after a change of a list, within which the SDK has notified the connected clients
	gatherTime    = 10 * time.Millisecond  // for changes of lists that follow each other, as in the SDK
	sweepEvery    = 250 * time.Millisecond // at most
)

// suspensions are what a [Handler] has for suspended sessions. Its lock guards them.
type suspensions struct {
	timer     *time.Timer // of the next sweep; nil before the first one
	next      time.Time   // of the sweep; zero for none
	lists     Lists       // that the last sweep saw
	changed   time.Time   // when it saw a change
	notifying wait.Single
}

// suspension is what a session has for being suspended. The Handler's lock guards it, apart from what is atomic.
type suspension struct {
	first       []byte                 // the request initialize; nil if the session cannot be suspended
	calls       atomic.Int32           // in progress, also of clients that are gone
	initialized atomic.Bool            // the client has said so
	level       atomic.Pointer[string] // of log messages that the client wants; nil for none

	changing  chan struct{} // closed when it is suspended, restored or notified; nil if none of this is under way
	parting   bool          // it is being suspended: its stream stays open when the SDK ends it
	suspended Suspended     // nil unless it is suspended
	stream    *stream       // for notifications, whose connection was taken over; nil if there is none
	lists     Lists         // of which the client of a suspended session was notified
}

// prepare notes the request that begins a session, if that can be suspended, and returns the request with its body.
func (h *Handler) prepare(s *session, r *http.Request) *http.Request {
	if h.opts.Suspend == nil || h.events == nil || s.server == nil || r.Body == nil {
		return r
	}
	s.server.AddReceivingMiddleware(h.observe(s))
	head, err := io.ReadAll(io.LimitReader(r.Body, maxInitialize))
	if message, wrong := jsonrpc.DecodeMessage(head); err == nil && wrong == nil { // else it may be incomplete
		if request, ok := message.(*jsonrpc.Request); ok && request.Method == "initialize" {
			s.first = h.events.shared(head)
		}
	}
	whole := *r
	whole.Body = body{io.MultiReader(bytes.NewReader(head), r.Body), r.Body}
	return &whole
}

// body is a request's body, part of which has been read.
type body struct {
	io.Reader
	io.Closer
}

// observe notes what a restored session has to know, and which calls are in progress.
func (h *Handler) observe(s *session) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			s.calls.Add(1)
			defer s.calls.Add(-1)
			result, err := next(ctx, method, req)
			if !strings.HasPrefix(method, "notifications/") {
				h.events.answering(req.GetSession().ID())
			}
			if err == nil {
				s.note(req.GetParams())
			}
			return result, err
		}
	}
}

// note notes what a restored session has to know of a request.
func (s *session) note(params mcp.Params) {
	switch params := params.(type) {
	case *mcp.InitializedParams:
		s.initialized.Store(true)
	//lint:ignore SA1019 clients of the revisions up to 2025-11-25 still have logging
	case *mcp.SetLoggingLevelParams:
		level := string(params.Level)
		s.level.Store(&level)
	}
}

// sweepWithin has the sessions looked through after d at the latest. The lock is held.
func (h *Handler) sweepWithin(d time.Duration) {
	at := time.Now().Add(d)
	if !h.next.IsZero() && h.next.Before(at) {
		return
	}
	h.next = at
	if h.timer == nil {
		h.timer = time.AfterFunc(d, func() { h.goUnlessClosed(h.sweep) })
		return
	}
	h.timer.Reset(d)
}

// sweep suspends the sessions that are idle, and ends the suspended ones whose time is over.
func (h *Handler) sweep() {
	settled := h.listsSettled()
	h.mu.Lock()
	h.next = time.Time{}
	var idle, over []*session
	for id, s := range h.sessions {
		h.noteGone(s)
		switch {
		case s.first == nil || s.changing != nil:
		case s.suspended == nil && settled && h.isIdle(s):
			idle = append(idle, s)
		case s.suspended != nil && time.Since(s.used) >= h.opts.SessionTimeout:
			delete(h.sessions, id)
			over = append(over, s)
		}
	}
	h.mu.Unlock()
	for _, s := range over {
		_ = h.end(s) // it is suspended, which ends without an error
	}
	for _, s := range idle {
		h.suspend(s)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed.Err() != nil {
		return
	}
	soon := max(h.opts.SuspendAfter/4, min(h.opts.SuspendAfter, sweepEvery))
	for _, s := range h.sessions {
		if s.left {
			h.sweepWithin(max(h.opts.GoneAfter-time.Since(s.used), soon))
		}
		if s.suspended != nil {
			h.sweepWithin(max(h.opts.SessionTimeout-time.Since(s.used), sweepEvery))
		} else if s.first != nil {
			h.sweepWithin(soon)
		}
	}
}

// isIdle reports whether a session can be suspended now: nothing is in progress but its stream for notifications. The lock is held.
func (h *Handler) isIdle(s *session) bool {
	streams := 0
	if s.stream != nil {
		streams = 1
	}
	return s.requests == streams && s.calls.Load() == 0 && h.events.allAnswered(s.id) && time.Since(s.used) >= h.opts.SuspendAfter
}

// listsSettled reports whether the lists have not changed for a time.
func (h *Handler) listsSettled() bool {
	now := h.currentLists()
	h.mu.Lock()
	defer h.mu.Unlock()
	if now != h.lists {
		h.lists, h.changed = now, time.Now()
	}
	return time.Since(h.changed) >= settleTime
}

func (h *Handler) currentLists() Lists {
	if h.opts.Lists == nil {
		return Lists{}
	}
	return h.opts.Lists()
}

// beginChange has others wait until endChange; see changing. The lock is held.
func (h *Handler) beginChange(s *session) { s.changing = make(chan struct{}) }

// endChange lets those go on who wait.
func (h *Handler) endChange(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(s.changing)
	s.changing, s.parting = nil, false
}

// awaitChange waits for the end of a change. The lock is held, but not while it waits.
func (h *Handler) awaitChange(s *session) {
	changing := s.changing
	h.mu.Unlock()
	<-changing
	h.mu.Lock()
}

// suspend suspends a session, unless it is not idle any more.
func (h *Handler) suspend(s *session) {
	h.mu.Lock()
	if h.closed.Err() != nil || h.sessions[s.id] != s || s.changing != nil || s.suspended != nil || !h.isIdle(s) {
		h.mu.Unlock()
		return
	}
	h.beginChange(s)
	h.mu.Unlock()
	defer h.endChange(s)
	drop := h.opts.Suspend(s.server)
	if drop == nil {
		return
	}
	h.mu.Lock()
	s.parting, s.lists = true, h.lists
	stream := s.stream
	h.mu.Unlock()
	h.events.enter(s.id, suspending)
	_ = s.current.Close() // it ends also after an error
	if stream != nil {
		<-stream.left
	}
	h.events.enter(s.id, connected)
	suspended := drop()
	h.mu.Lock()
	s.current, s.server, s.suspended = nil, nil, suspended
	h.mu.Unlock()
	h.opts.Logger.Info("an idle session was suspended")
	h.notify(s)
}

// restore makes the server of a suspended session again, and its connection: it gets the messages again with which the client began the
// session. The caller has begun the change. After a failure the session has ended.
func (h *Handler) restore(s *session) {
	defer h.endChange(s)
	server := s.suspended.Restore(s.id)
	server.AddReceivingMiddleware(h.observe(s))
	ctx := context.WithValue(context.Background(), serverKey{}, server)
	h.events.enter(s.id, restoring)
	h.replay(ctx, "", s.first)
	current := sessionOf(server, s.id)
	if current == nil {
		h.opts.Logger.Error("a suspended session could not be restored")
		for wrong := range server.Sessions() {
			_ = wrong.Close() // it has another id
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		s.suspended = unrestored{s.suspended, func() { h.release(server) }}
		if h.sessions[s.id] == s { // else somebody ends it
			delete(h.sessions, s.id)
			go func() { _ = h.end(s) }() // without an error
		}
		return
	}
	if s.initialized.Load() {
		h.replay(ctx, s.id, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	}
	if level := s.level.Load(); level != nil {
		name, _ := json.Marshal(*level) // a string can be encoded
		h.replay(ctx, s.id, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":%s}}`, name))
	}
	h.events.enter(s.id, connected)
	delivered := h.events.notifications(s.id)
	h.appendChanges(s) // what changes later, the SDK notifies of
	h.mu.Lock()
	s.current, s.server, s.suspended, s.used = current, server, nil, time.Now()
	var serves <-chan struct{}
	if s.stream != nil {
		serves = h.serveAgain(s.stream, server, delivered)
	}
	h.sweepWithin(h.opts.SuspendAfter)
	h.mu.Unlock()
	if serves != nil {
		<-serves // what is stored until then, it sends
	}
}

// unrestored is what is left of a session that could not be restored.
type unrestored struct {
	Suspended
	end func()
}

// End implements [Suspended].
func (u unrestored) End() { u.end() }

// replay has the SDK handle a message of a session, "" for the first one, and discards the answer.
func (h *Handler) replay(ctx context.Context, id string, message []byte) {
	r := requestOf(ctx, http.MethodPost, id)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(message)), int64(len(message))
	h.stateful.ServeHTTP(discard{}, r)
}

// requestOf returns a request of a session's client, as the SDK expects it.
func requestOf(ctx context.Context, method, id string) *http.Request {
	r := &http.Request{Method: method, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}}
	if id != "" {
		r.Header.Set(headerSession, id)
	}
	return r.WithContext(ctx)
}

// discard is an [http.ResponseWriter] that discards the answer.
type discard struct{}

// Header implements [http.ResponseWriter].
func (discard) Header() http.Header { return http.Header{} }

// Write implements [http.ResponseWriter].
func (discard) Write(data []byte) (int, error) { return len(data), nil }

// WriteHeader implements [http.ResponseWriter].
func (discard) WriteHeader(int) {}

// endSuspended releases what is left of a suspended session, which is not in the map any more.
func (h *Handler) endSuspended(s *session) {
	if s.stream != nil {
		h.endStream(s.stream)
	}
	_ = h.events.forget(context.Background(), s.id) // it cannot be repeated
	s.suspended.End()
}

// ListsChanged has the clients of suspended sessions notified of changes of [Options.Lists]. It does not block.
func (h *Handler) ListsChanged() {
	if !h.notifying.Begin() {
		return
	}
	begun := h.goUnlessClosed(func() {
		for again := true; again; again = h.notifying.Again() {
			wait.Pause(h.closed, gatherTime)
			h.notifySuspended()
		}
	})
	if !begun {
		h.notifying.Again()
	}
}

// notifySuspended notifies the clients of all suspended sessions, of which none waits for another.
func (h *Handler) notifySuspended() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed.Err() != nil {
		return
	}
	for _, s := range h.sessions {
		if s.suspended == nil || s.changing != nil {
			continue // what has it compares the lists afterwards
		}
		h.beginChange(s)
		h.watching.Go(func() {
			defer h.endChange(s)
			h.notify(s)
		})
	}
}

// notify notifies the client of a suspended session of changes of the lists. The caller has begun the change.
func (h *Handler) notify(s *session) {
	h.mu.Lock()
	stream := s.stream
	h.mu.Unlock()
	sent := h.events.notifications(s.id)
	for i, data := range h.appendChanges(s) {
		if stream != nil {
			_, _ = stream.Write(fmt.Appendf(nil, "event: message\nid: _%d\ndata: %s\n\n", sent+i, data)) // else the client comes back for it
		}
	}
}

// appendChanges stores notifications of the lists that have changed since the client was notified, and returns them.
func (h *Handler) appendChanges(s *session) (stored [][]byte) {
	lists := h.currentLists()
	for i, list := range listChanged {
		if lists[i] != s.lists[i] {
			data := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/%s/list_changed","params":{}}`, list)
			if err := h.events.Append(context.Background(), s.id, "", data); err != nil {
				h.opts.Logger.Warn("a notification could not be stored", "error", err)
			}
			stored = append(stored, data)
		}
	}
	s.lists = lists
	return slices.Clip(stored)
}
