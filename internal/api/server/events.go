package server

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/hub/events"
)

// events answers GET /events: the stream of hub/events as Server-Sent Events, with each event's position as its id.
// The query has the method's parameters; kind may be repeated. The header Last-Event-ID, with which a browser
// connects again, takes precedence over after.
func (s *Server) events(w http.ResponseWriter, r *http.Request, d *jsonrpc.Dispatcher) {
	params, err := rawjson.Append(nil, eventsParams(r))
	if err != nil {
		refuseInternal(w)
		return
	}
	stream := &jsonrpc.EventStream{W: w, KeepAlive: s.cfg.Limits.KeepAlive, CacheControl: "no-cache, no-store"}
	defer stream.Close()
	_, rpcErr := d.Call(r.Context(), jsonrpc.Request{Method: dialect.MethodEvents, Params: params}, func(event any) error {
		e, ok := event.(*events.Event)
		if !ok {
			return nil
		}
		frame := append([]byte("id: "), e.Position.String()...)
		frame, err := rawjson.Append(append(frame, "\ndata: "...), e)
		if err != nil {
			return err
		}
		return stream.Send(append(frame, "\n\n"...))
	})
	if rpcErr == nil || stream.Started() {
		return // a client continues after the last event that it has
	}
	writeJSON(w, statusOf(rpcErr), jsonrpc.AppendError(nil, jsonrpc.NullID, rpcErr))
}

// eventsParams returns the parameters of hub/events in a request. The method checks them.
func eventsParams(r *http.Request) map[string]any {
	query := r.URL.Query()
	params := map[string]any{}
	for _, name := range []string{"after", "since", "agent", "task", "project", "channel"} {
		if v := query.Get(name); v != "" {
			params[name] = v
		}
	}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		params["after"] = last
	}
	if kinds := query["kind"]; len(kinds) > 0 {
		params["kinds"] = slices.Clone(kinds)
	}
	if v := query.Get("follow"); v != "" {
		params["follow"] = v
		if follow, err := strconv.ParseBool(strings.ToLower(v)); err == nil {
			params["follow"] = follow
		}
	}
	return params
}
