package wire

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Calls is a transport over which requests can also be sent beside the SDK's session, which decodes each part of a result anew with a
// buffer of 32 KiB, and encodes it again for the next connection. It serves one connection.
type Calls struct {
	transport mcp.Transport

	mu      sync.Mutex
	conn    mcp.Connection
	last    int64                            // id
	pending map[int64]chan *jsonrpc.Response // by id
	ended   error
}

const (
	// firstCall is above the ids of the SDK, which counts from 1, and fits the 32 bits that some servers have for them.
	firstCall = 1 << 30
	// cancelTimeout bounds the notification of a server that does not read.
	cancelTimeout = 5 * time.Second
)

// NewCalls returns the transport t with calls.
func NewCalls(t mcp.Transport) *Calls {
	return &Calls{transport: t, last: firstCall, pending: map[int64]chan *jsonrpc.Response{}}
}

// Connect implements mcp.Transport.
func (c *Calls) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, err := c.transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
	return receiving{conn, c}, nil
}

// Call sends a request and waits for its result. The connection must have been initialized by a session of the SDK, which reads from it.
// Errors are like those of the SDK's calls: an answer's *jsonrpc.Error, mcp.ErrConnectionClosed, or that of ctx, whose end cancels the call
// at the server.
func (c *Calls) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	id, answer, err := c.begin()
	if err != nil {
		return nil, closed(method, err)
	}
	request := &jsonrpc.Request{Method: method, Params: params}
	if request.ID, err = jsonrpc.MakeID(float64(id)); err != nil {
		return nil, err
	}
	if err := c.conn.Write(ctx, request); err != nil {
		c.take(id)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, closed(method, err)
	}
	select {
	case response, open := <-answer:
		switch {
		case !open:
			return nil, closed(method, c.reason())
		case response.Error != nil:
			return nil, fmt.Errorf("calling %q: %w", method, response.Error)
		}
		return response.Result, nil
	case <-ctx.Done():
		if c.take(id) != nil {
			go c.cancel(context.WithoutCancel(ctx), request.ID, ctx.Err()) // ends after cancelTimeout
		}
		return nil, ctx.Err()
	}
}

func closed(method string, why error) error {
	return fmt.Errorf("%w: calling %q: %w", mcp.ErrConnectionClosed, method, why)
}

// begin returns the id of a new call and the channel of its answer.
func (c *Calls) begin() (id int64, answer chan *jsonrpc.Response, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return 0, nil, c.ended
	}
	if c.conn == nil {
		return 0, nil, mcp.ErrConnectionClosed
	}
	c.last++
	answer = make(chan *jsonrpc.Response, 1)
	c.pending[c.last] = answer
	return c.last, answer, nil
}

// take removes a call and returns the channel of its answer, nil if it was removed before.
func (c *Calls) take(id int64) chan *jsonrpc.Response {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := c.pending[id]
	delete(c.pending, id)
	return answer
}

func (c *Calls) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// cancel tells the server that nobody waits for a call any more.
func (c *Calls) cancel(ctx context.Context, id jsonrpc.ID, why error) {
	ctx, stop := context.WithTimeout(ctx, cancelTimeout)
	defer stop()
	params, err := json.Marshal(mcp.CancelledParams{Reason: why.Error(), RequestID: id.Raw()})
	if err == nil {
		_ = c.conn.Write(ctx, &jsonrpc.Request{Method: "notifications/cancelled", Params: params}) // the call has ended here
	}
}

// end fails all calls, and those to come.
func (c *Calls) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return
	}
	c.ended = err
	for _, answer := range c.pending {
		close(answer)
	}
	clear(c.pending)
}

// receiving is the SDK's end of a connection: it does not see the answers to Calls.
type receiving struct {
	mcp.Connection
	calls *Calls
}

// Read implements mcp.Connection.
func (r receiving) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		m, err := r.Connection.Read(ctx)
		if err != nil {
			r.calls.end(err)
			return nil, err
		}
		response, ok := m.(*jsonrpc.Response)
		if !ok {
			return m, nil
		}
		id, ok := response.ID.Raw().(int64)
		if !ok || id <= firstCall {
			return m, nil
		}
		if answer := r.calls.take(id); answer != nil { // else nobody waits for it any more
			answer <- response
		}
	}
}
