package client

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
)

// Rest requests a rest of an agent's connection to the hub's bus. When it returns, the connection may be given up. ctx bounds the request.
// The caller closes the Resting. An error of the hub is a *[jsonrpc.Error].
func Rest(ctx context.Context, socket string, p dialect.NetworkRestParams) (*Resting, error) {
	conn, err := openStream(ctx, socket, dialect.MethodNetworkRest, p)
	if err != nil {
		return nil, err
	}
	r := &Resting{conn}
	if _, err := r.next(ctx, dialect.NotifyResting); err != nil {
		_ = conn.nc.Close() // err is the cause
		return nil, err
	}
	return r, nil
}

// Resting is the rest of an agent's connection. It is safe for concurrent use, except for Wait.
type Resting struct{ conn *connection }

// next reads the next message, which has a method, "" for the answer.
func (r *Resting) next(ctx context.Context, method string) (json.RawMessage, error) {
	var m struct {
		Method string          `json:"method"`
		Result json.RawMessage `json:"result"`
		Error  *jsonrpc.Error  `json:"error"`
	}
	if err := r.conn.nextMessage(ctx, &m); err != nil {
		return nil, err
	}
	if m.Error != nil {
		return nil, m.Error
	}
	if m.Method != method {
		return nil, fmt.Errorf("%w: it did not answer as expected", ErrLost)
	}
	return m.Result, nil
}

// Beat is a heartbeat, which the hub writes.
func (r *Resting) Beat() error { return r.notify(dialect.NotifyBeat) }

// Wake requests the end of the rest.
func (r *Resting) Wake() error { return r.notify(dialect.NotifyWake) }

func (r *Resting) notify(method string) error {
	line, err := jsonrpc.AppendNotification(nil, method, struct{}{})
	if err != nil {
		return err
	}
	r.conn.writing.Lock()
	defer r.conn.writing.Unlock()
	_, err = r.conn.nc.Write(append(line, '\n'))
	return err
}

// Wait waits for the end of the rest. Close ends the wait.
func (r *Resting) Wait() (rested dialect.NetworkRested, err error) {
	result, err := r.next(context.Background(), "")
	if err == nil {
		err = json.Unmarshal(result, &rested)
	}
	return rested, err
}

// Close ends the rest.
func (r *Resting) Close() error { return r.conn.nc.Close() }
