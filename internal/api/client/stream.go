package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
)

// Stream returns the events of a task: first the task, then its changes. It is not safe
// for concurrent use, except for Close.
type Stream struct {
	conn *connection
	task *dialect.Task
	done bool
}

func (c *Client) stream(ctx context.Context, method string, params any) (*Stream, error) {
	conn, err := openStream(ctx, c.socket, method, params)
	if err != nil {
		return nil, err
	}
	return &Stream{conn: conn}, nil
}

// message is a line of a stream: a notification with an event, or the final response.
type message struct {
	Method string              `json:"method"`
	Params dialect.StreamEvent `json:"params"`
	Result json.RawMessage     `json:"result"`
	Error  *jsonrpc.Error      `json:"error"`
}

// Next blocks until the next event. It returns io.EOF after the last; [Stream.Task] then
// returns the task. An error of the hub is a *[jsonrpc.Error].
func (s *Stream) Next(ctx context.Context) (dialect.Event, error) {
	if s.done {
		return dialect.Event{}, io.EOF
	}
	var m message
	if err := s.conn.nextMessage(ctx, &m); err != nil {
		return dialect.Event{}, err
	}
	if m.Method == dialect.NotifyEvent {
		return m.Params.Event, nil
	}
	s.done = true
	if m.Error != nil {
		return dialect.Event{}, m.Error
	}
	if err := json.Unmarshal(m.Result, &s.task); err != nil {
		return dialect.Event{}, fmt.Errorf("read the end of the stream: %w", err)
	}
	return dialect.Event{}, io.EOF
}

// Task returns the task at the end of the stream, nil before.
func (s *Stream) Task() *dialect.Task { return s.task }

// Close closes the stream; the task keeps running.
func (s *Stream) Close() error { return s.conn.nc.Close() }
