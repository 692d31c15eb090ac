package toolbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/router"
)

// Limits of MCP over envelopes.
const (
	MaxConnections = 256 // of one listener
	// MaxPeerConnections are those of one peer. A further one closes the peer's oldest,
	// since a killed peer does not close its connections.
	MaxPeerConnections = 16
	MaxUnread          = 256 // messages of a connection
)

// closeTime bounds the notification of the peer when a connection closes.
const closeTime = time.Second

// frame is the payload of an envelope with an MCP message.
type frame struct {
	Session  string          `json:"mcpSession"`         // the connection's id
	ToServer bool            `json:"toServer,omitempty"` // an agent may be client and server at once
	Message  json.RawMessage `json:"message,omitempty"`
	Closed   bool            `json:"closed,omitempty"`
}

// connections are those of one agent that exchange MCP messages in envelopes.
type connections struct {
	r      *router.Router
	agent  string
	stop   func()          // ends receiving
	ctx    context.Context // of the servers
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	open   map[string]*connection // by peer and id
	opened int                    // so far
	run    sync.WaitGroup         // of the servers
	// serve returns the server for a peer. It is nil at the client's end, which accepts no connections.
	serve func(peer string) *mcp.Server
}

// connection is one end of a connection: an mcp.Connection.
type connection struct {
	all     *connections
	peer    string
	id      string
	number  int // of its opening
	unread  chan jsonrpc.Message
	closing sync.Once
	done    chan struct{}
	last    func() // called once when it closes
}

func newConnections(r *router.Router, agent string, serve func(string) *mcp.Server) *connections {
	all := &connections{r: r, agent: agent, open: make(map[string]*connection), serve: serve}
	all.ctx, all.cancel = context.WithCancel(context.Background())
	all.stop = r.OnReceive(agent, all.receive)
	return all
}

// add returns a new connection, nil if there are too many. done is called when it ends.
func (a *connections) add(peer, id string, done func()) *connection {
	a.closeOldest(peer)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || len(a.open) >= MaxConnections {
		return nil
	}
	a.opened++
	c := &connection{
		all: a, peer: peer, id: id, number: a.opened, unread: make(chan jsonrpc.Message, MaxUnread),
		done: make(chan struct{}), last: done,
	}
	a.open[peer+"\n"+id] = c
	if a.serve != nil {
		a.run.Add(1) // the goroutine that accept starts
	}
	return c
}

// closeOldest closes a peer's oldest connection if the peer has reached its limit.
func (a *connections) closeOldest(peer string) {
	var oldest *connection
	a.mu.Lock()
	n := 0
	for _, c := range a.open {
		if c.peer != peer {
			continue
		}
		if n++; oldest == nil || c.number < oldest.number {
			oldest = c
		}
	}
	a.mu.Unlock()
	if n >= MaxPeerConnections {
		_ = oldest.Close() // it always succeeds
	}
}

func (a *connections) remove(c *connection) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, c.peer+"\n"+c.id)
}

// receive passes an envelope to its connection.
func (a *connections) receive(ctx context.Context, e *envelope.Envelope) {
	var f frame
	if e.Unmarshal(&f) != nil || f.Session == "" || len(f.Session) > 64 || f.ToServer != (a.serve != nil) {
		return // another kind of envelope
	}
	a.mu.Lock()
	c := a.open[e.Sender+"\n"+f.Session]
	a.mu.Unlock()
	if f.Closed {
		if c != nil {
			c.shut()
		}
		return
	}
	message, err := jsonrpc.DecodeMessage(f.Message)
	if err != nil {
		return // not JSON-RPC: no answer
	}
	if c == nil {
		c = a.accept(ctx, e.Sender, f.Session, message)
	}
	if c == nil {
		return
	}
	select {
	case c.unread <- message:
	default:
		_ = c.Close() // it reads too slowly; nobody else waits for it
	}
}

// accept accepts a connection, whose first message must be a call.
func (a *connections) accept(ctx context.Context, peer, id string, first jsonrpc.Message) *connection {
	call, ok := first.(*jsonrpc.Request)
	if !ok || !call.IsCall() || a.serve == nil {
		return nil // the rest of a closed connection
	}
	server := a.serve(peer)
	if server == nil {
		a.sendClosed(ctx, peer, id)
		return nil
	}
	c := a.add(peer, id, nil)
	if c == nil {
		a.sendClosed(ctx, peer, id)
		return nil
	}
	go func() {
		defer a.run.Done()
		s, err := server.Connect(a.ctx, transport{c}, nil)
		if err != nil {
			_ = c.Close() // it always succeeds
			return
		}
		_ = s.Wait() // the reason of the end does not matter
	}()
	return c
}

func (a *connections) sendClosed(ctx context.Context, peer, id string) {
	// A peer that cannot be reached need not know.
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	_ = a.send(ctx, peer, envelope.Notification, frame{Session: id, ToServer: a.serve == nil, Closed: true})
}

func (a *connections) send(ctx context.Context, peer string, t envelope.Type, f frame) error {
	e, err := envelope.New(a.agent, peer, t, f)
	if err != nil {
		return err
	}
	e.CorrelationID = f.Session
	_, err = a.r.SendWait(ctx, e)
	return err
}

// close closes every connection and waits for the servers.
func (a *connections) close() {
	a.stop()
	a.mu.Lock()
	a.closed = true
	all := slices.Collect(maps.Values(a.open))
	a.mu.Unlock()
	for _, c := range all {
		_ = c.Close() // it always succeeds
	}
	a.cancel()
	a.run.Wait()
}

// Read implements mcp.Connection.
func (c *connection) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-c.unread:
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.done:
		return nil, io.EOF
	}
}

// Write implements mcp.Connection.
func (c *connection) Write(ctx context.Context, m jsonrpc.Message) error {
	select {
	case <-c.done:
		return mcp.ErrConnectionClosed
	default:
	}
	err := c.write(ctx, m)
	answer, isAnswer := m.(*jsonrpc.Response)
	if !isAnswer || router.CodeOf(err) != router.CodeInvalidEnvelope {
		return err
	}
	// A result that is too large for an envelope must not end the connection.
	return c.write(ctx, &jsonrpc.Response{ID: answer.ID, Error: &jsonrpc.Error{
		Code: jsonrpc.CodeInternalError, Message: "the result cannot be sent: " + err.Error(),
	}})
}

func (c *connection) write(ctx context.Context, m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	return c.all.send(ctx, c.peer, typeOf(m), frame{Session: c.id, ToServer: c.all.serve == nil, Message: data})
}

// typeOf is the envelope's type for a message.
func typeOf(m jsonrpc.Message) envelope.Type {
	switch m := m.(type) {
	case *jsonrpc.Response:
		if m.Error != nil {
			return envelope.ErrorMessage
		}
		return envelope.Response
	case *jsonrpc.Request:
		if m.IsCall() {
			return envelope.Request
		}
	}
	return envelope.Notification
}

// Close implements mcp.Connection.
func (c *connection) Close() error {
	if c.shut() {
		c.all.sendClosed(context.Background(), c.peer, c.id)
	}
	return nil
}

// shut closes this side only. It reports whether it was open.
func (c *connection) shut() bool {
	first := false
	c.closing.Do(func() {
		first = true
		close(c.done)
		c.all.remove(c)
		if c.last != nil {
			c.last()
		}
	})
	return first
}

// SessionID implements mcp.Connection.
func (c *connection) SessionID() string { return c.id }

// transport returns an existing connection.
type transport struct{ c mcp.Connection }

func (t transport) Connect(context.Context) (mcp.Connection, error) { return t.c, nil }

// Over returns an MCP transport to another agent, local or remote, for [MountOptions.Dial] or any MCP client. It
// sends envelopes as the agent local, and the router's rules apply. The other agent uses [Listen].
func Over(r *router.Router, local, remote string) mcp.Transport { return over{r, local, remote} }

var errNoRouter = errorf(CodeInvalid, "", "", "MCP over envelopes needs a router, and it is nil")

type over struct {
	r             *router.Router
	local, remote string
}

func (o over) Connect(context.Context) (mcp.Connection, error) {
	if o.r == nil {
		return nil, errNoRouter
	}
	if err := o.r.Permit(o.local, o.remote); err != nil && router.CodeOf(err) != router.CodeAgentNotFound {
		return nil, fmt.Errorf("%s cannot use the tools of %s: %w", o.local, o.remote, err)
	}
	all := newConnections(o.r, o.local, nil)
	return all.add(o.remote, uuid.NewString(), func() { all.stop(); all.cancel() }), nil
}

// Listener serves an MCP server to other agents over envelopes.
type Listener struct{ all *connections }

// Err returns why the listener accepts nothing: Listen got no router or no function. Otherwise it returns nil.
func (l *Listener) Err() error {
	if l.all == nil {
		return errNoListener
	}
	return nil
}

var errNoListener = errorf(CodeInvalid, "", "", "a listener for MCP over envelopes needs a router and a function that returns the server, and one is nil")

// Listen accepts MCP connections to an agent. serve returns the server for a peer, or
// nil to refuse it; it is called for each connection and must not block.
func Listen(r *router.Router, agentID string, serve func(peer string) *mcp.Server) *Listener {
	if r == nil || serve == nil {
		return &Listener{}
	}
	return &Listener{newConnections(r, agentID, serve)}
}

// Close closes every connection and waits for the servers.
func (l *Listener) Close() {
	if l.all != nil {
		l.all.close()
	}
}
