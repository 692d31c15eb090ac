package dialect

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/hub/events"
)

// EventsParams are the parameters of hub/events.
type EventsParams struct {
	After   string   `json:"after,omitempty"` // the position of the last event that the client has seen
	Since   *Time    `json:"since,omitempty"` // without After: the time of the first event; missing: from now on
	Kinds   []string `json:"kinds,omitempty"` // prefixes of kinds, in whole words
	Agent   string   `json:"agent,omitempty"`
	Task    string   `json:"task,omitempty"`
	Project string   `json:"project,omitempty"`
	Channel string   `json:"channel,omitempty"`
	Follow  *bool    `json:"follow,omitempty"` // missing: true
	Latest  int      `json:"latest,omitempty"` // at most this many of the events since Since, or of all without it; 0: no bound
	Brief   bool     `json:"brief,omitempty"`  // with Follow: while much happens, most events of tasks, turns and work are left out
}

// EventsResult ends the stream of hub/events: at the latest event without Follow, else when the hub stops.
type EventsResult struct {
	Position string `json:"position"` // after which the client continues
}

// pace is the shortest time between two reads of one client's new events.
const pace = 50 * time.Millisecond

// briefPace is pace for those who get only some of the events of a busy hub.
const briefPace = 250 * time.Millisecond

// maxLatest bounds how many of the latest events a client may ask for.
const maxLatest = 100_000

// events answers hub/events.
func (s *Service) events(c *call) action {
	q := events.Query{
		Follow: c.boolean("follow", true), Since: c.since(), Pace: pace, Brief: c.boolean("brief", false),
		Filter: events.Filter{
			Kinds: c.texts("kinds"), Agent: c.text("agent", maxID), Task: c.text("task", maxID),
			Project: c.text("project", maxPath), Channel: c.text("channel", maxID),
		},
	}
	if q.Brief {
		q.Pace = briefPace
	}
	if n := c.integer("latest", 0, maxLatest); n != nil {
		q.Latest = int(*n)
	}
	var err error
	if after := c.text("after", maxID); after != "" {
		if q.After, err = events.ParsePosition(after); err != nil {
			c.fail("after", "is not a position of an event")
		}
	}
	return func(ctx context.Context) (any, error) {
		if c.emit == nil {
			return nil, unsupported(c.Method+" cannot be answered in a batch", "send it by itself")
		}
		at, err := s.emitEvents(ctx, q, func(e events.Event) error { return c.emit(&e) })
		return EventsResult{Position: at.String()}, err
	}
}

// emitEvents emits the events of a query until they end, and returns the position of the last.
func (s *Service) emitEvents(ctx context.Context, q events.Query, emit func(events.Event) error) (events.Position, error) {
	r, err := s.cfg.Events.Subscribe(ctx, q)
	if err != nil {
		return events.Position{}, err
	}
	defer r.Close()
	for {
		e, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return r.Position(), nil
		}
		if err == nil {
			err = emit(e)
		}
		if err != nil {
			return r.Position(), err
		}
	}
}

// eventsError translates an error of the events that the caller can act on.
func eventsError(err error) error {
	var e *events.Error
	if !errors.As(err, &e) {
		return err
	}
	code, ok := map[events.Code]wireCode{
		events.CodeInvalid: {jsonrpc.CodeInvalidParams, "INVALID_PARAMS"},
		events.CodeBusy:    {jsonrpc.CodeServerBusy, "SERVER_BUSY"},
		events.CodeClosed:  {jsonrpc.CodeServerBusy, "SERVER_BUSY"},
		events.CodeStorage: {jsonrpc.CodeServerBusy, "SERVER_BUSY"},
	}[e.Code]
	return code.error(ok, err, e.Message, jsonrpc.Details{Remedy: e.Remedy})
}
