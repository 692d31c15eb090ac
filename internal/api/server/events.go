package server

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/hub/events"
)

// gather is how long an event waits for those that come with it, so that they cost one write for each viewer.
const gather = 5 * time.Millisecond

// events answers GET /events: the stream of hub/events as Server-Sent Events, with each event's position as its id.
// The query has the method's parameters; kind may be repeated. The header Last-Event-ID, with which a browser
// connects again, takes precedence over after.
func (s *Server) events(w http.ResponseWriter, r *http.Request, d *jsonrpc.Dispatcher) {
	params, err := rawjson.Append(nil, eventsParams(r))
	if err != nil {
		refuseInternal(w)
		return
	}
	stream := &jsonrpc.EventStream{W: w, KeepAlive: s.cfg.Limits.KeepAlive, CacheControl: "no-cache, no-store", Gather: gather}
	defer stream.Close()
	var frame []byte // reused: Send copies it
	_, rpcErr := d.Call(r.Context(), jsonrpc.Request{Method: dialect.MethodEvents, Params: params}, func(event any) error {
		e, ok := event.(*events.Event)
		if !ok {
			return nil
		}
		text, err := e.JSON()
		if err != nil {
			return err
		}
		frame = append(append(frame[:0], "id: "...), e.Position.String()...)
		frame = append(append(frame, "\ndata: "...), text...)
		frame = append(frame, "\n\n"...)
		return stream.Send(frame)
	})
	if rpcErr == nil || stream.Started() {
		return // a client continues after the last event that it has
	}
	writeJSON(w, statusOf(rpcErr), jsonrpc.AppendError(nil, jsonrpc.NullID, rpcErr))
}

// totals answers GET /totals with the result of hub/totals. The query has the method's parameters; by may be repeated.
func (s *Server) totals(w http.ResponseWriter, r *http.Request, d *jsonrpc.Dispatcher) {
	query := queryParams(r, "agentId", "project", "since")
	if by, given := r.URL.Query()["by"]; given {
		query["by"] = slices.DeleteFunc(by, func(group string) bool { return group == "" })
	}
	answer(w, r, d, dialect.MethodTotals, query)
}

// queryParams returns the named parameters of a request's query.
func queryParams(r *http.Request, names ...string) map[string]any {
	params := map[string]any{}
	for _, name := range names {
		if v := r.URL.Query().Get(name); v != "" {
			params[name] = v
		}
	}
	return params
}

// eventsParams returns the parameters of hub/events in a request. The method checks them.
func eventsParams(r *http.Request) map[string]any {
	params := queryParams(r, "after", "since", "agent", "task", "project", "channel")
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		params["after"] = last
	}
	if kinds := r.URL.Query()["kind"]; len(kinds) > 0 {
		params["kinds"] = kinds
	}
	for _, name := range []string{"follow", "brief"} {
		v := r.URL.Query().Get(name)
		if is, err := strconv.ParseBool(v); err == nil {
			params[name] = is
		} else if v != "" {
			params[name] = v
		}
	}
	if v := r.URL.Query().Get("latest"); v != "" {
		params["latest"] = v
		if n, err := strconv.Atoi(v); err == nil {
			params["latest"] = n
		}
	}
	return params
}
