package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/hub/events"
)

// Events returns the hub's events. It has a connection of its own.
func (c *Client) Events(ctx context.Context, p dialect.EventsParams) (*Events, error) {
	conn, err := openStream(ctx, c.socket, dialect.MethodEvents, p)
	if err != nil {
		return nil, err
	}
	return &Events{conn: conn}, nil
}

// Events is a stream of the hub's events. It is not safe for concurrent use, except for Close.
type Events struct {
	conn *connection
	done bool
}

// Next blocks until the next event. It returns io.EOF at the end of the stream, [ErrLost] if the hub has closed the
// connection; the caller then continues after the position of the last event. An error of the hub is a
// *[jsonrpc.Error].
func (s *Events) Next(ctx context.Context) (events.Event, error) {
	var m struct {
		Method string `json:"method"`
		Params struct {
			Event events.Event `json:"event"`
		} `json:"params"`
		Error *jsonrpc.Error `json:"error"`
	}
	if s.done {
		return events.Event{}, io.EOF
	}
	if err := s.conn.nextMessage(ctx, &m); err != nil {
		return events.Event{}, err
	}
	if m.Method == dialect.NotifyEvent {
		return m.Params.Event, nil
	}
	s.done = true
	if m.Error != nil {
		return events.Event{}, m.Error
	}
	return events.Event{}, io.EOF
}

// Close closes the stream.
func (s *Events) Close() error { return s.conn.nc.Close() }

// openStream sends the request of a stream over a connection of its own.
func openStream(ctx context.Context, socket, method string, params any) (*connection, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	if err := conn.send(ctx, method, params, streamID); err != nil {
		return nil, errors.Join(err, conn.nc.Close())
	}
	return conn, nil
}

// streamID is the id of a stream's request.
var streamID = jsonrpc.NumberID(1)

// nextMessage blocks until the next line of a stream, and decodes it. The end of ctx closes the connection.
func (c *connection) nextMessage(ctx context.Context, into any) error {
	stop := context.AfterFunc(ctx, func() { c.nc.Close() })
	line, err := c.lines.Next()
	if !stop() {
		return context.Cause(ctx)
	}
	if err != nil {
		return lost(err)
	}
	err = json.Unmarshal(line, into)
	if _, cut := errors.AsType[*json.SyntaxError](err); cut { // the last line may lack its end
		return fmt.Errorf("%w: it did not send JSON-RPC: %w", ErrLost, err)
	}
	if err != nil {
		return fmt.Errorf("read an event of the hub: %w", err)
	}
	return nil
}
