package toolbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
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
	MaxSessions = 256 // with one listener
	// MaxPeerSessions are those of one peer. One more ends the peer's oldest: who was
	// killed has not said good-bye.
	MaxPeerSessions = 16
	MaxUnread       = 256 // messages of a session
)

// goodbyeTime is how long the end of a session may wait for a link that is broken.
const goodbyeTime = time.Second

// frame is the payload of an envelope that carries MCP.
type frame struct {
	Session string `json:"mcpSession"`
	// ToServer tells the two directions apart, since an agent may be client and
	// server at once.
	ToServer bool            `json:"toServer,omitempty"`
	Message  json.RawMessage `json:"message,omitempty"`
	Closed   bool            `json:"closed,omitempty"`
}

// ends is the sessions of one agent that carry MCP in envelopes.
type ends struct {
	r      *router.Router
	agent  string
	stop   func()          // ends receiving
	ctx    context.Context // of the sessions of servers
	cancel context.CancelFunc

	mu       sync.Mutex
	closed   bool
	sessions map[string]*end // by peer and session
	opened   int             // so far
	run      sync.WaitGroup  // sessions of servers
	// serve returns the server for a peer. It is nil at the client's end, where no
	// session begins by itself.
	serve func(peer string) *mcp.Server
}

// end is one side of a session: an mcp.Connection.
type end struct {
	all     *ends
	peer    string
	session string
	number  int // of its opening
	unread  chan jsonrpc.Message
	closing sync.Once
	done    chan struct{}
	last    func() // called once when it closes
}

func newEnds(r *router.Router, agent string, serve func(string) *mcp.Server) *ends {
	all := &ends{r: r, agent: agent, sessions: make(map[string]*end), serve: serve}
	all.ctx, all.cancel = context.WithCancel(context.Background())
	all.stop = r.OnReceive(agent, all.receive)
	return all
}

// open begins a session, nil if there are too many. done is called when it ends.
func (a *ends) open(peer, session string, done func()) *end {
	a.outgrown(peer)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || len(a.sessions) >= MaxSessions {
		return nil
	}
	a.opened++
	c := &end{
		all: a, peer: peer, session: session, number: a.opened, unread: make(chan jsonrpc.Message, MaxUnread),
		done: make(chan struct{}), last: done,
	}
	a.sessions[peer+"\n"+session] = c
	if a.serve != nil {
		a.run.Add(1) // the session's goroutine, which begin starts
	}
	return c
}

// outgrown ends the oldest session of a peer that has as many as it may have.
func (a *ends) outgrown(peer string) {
	var oldest *end
	a.mu.Lock()
	n := 0
	for _, c := range a.sessions {
		if c.peer != peer {
			continue
		}
		if n++; oldest == nil || c.number < oldest.number {
			oldest = c
		}
	}
	a.mu.Unlock()
	if n >= MaxPeerSessions {
		_ = oldest.Close() // it always succeeds
	}
}

func (a *ends) remove(c *end) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.sessions, c.peer+"\n"+c.session)
}

// receive sorts what arrives for the agent into its sessions.
func (a *ends) receive(ctx context.Context, e *envelope.Envelope) {
	var f frame
	if e.Unmarshal(&f) != nil || f.Session == "" || len(f.Session) > 64 || f.ToServer != (a.serve != nil) {
		return // not for us
	}
	a.mu.Lock()
	c := a.sessions[e.Sender+"\n"+f.Session]
	a.mu.Unlock()
	if f.Closed {
		if c != nil {
			c.shut()
		}
		return
	}
	message, err := jsonrpc.DecodeMessage(f.Message)
	if err != nil {
		return // a peer that does not speak JSON-RPC gets no answer
	}
	if c == nil {
		c = a.begin(ctx, e.Sender, f.Session, message)
	}
	if c == nil {
		return
	}
	select {
	case c.unread <- message:
	default:
		_ = c.Close() // it does not read: the session ends, nobody else waits
	}
}

// begin begins the session of a peer whose first message is a call.
func (a *ends) begin(ctx context.Context, peer, session string, first jsonrpc.Message) *end {
	call, ok := first.(*jsonrpc.Request)
	if !ok || !call.IsCall() || a.serve == nil {
		return nil // the rest of a session that has ended
	}
	server := a.serve(peer)
	if server == nil {
		a.sendClosed(ctx, peer, session)
		return nil
	}
	c := a.open(peer, session, nil)
	if c == nil {
		a.sendClosed(ctx, peer, session)
		return nil
	}
	go func() {
		defer a.run.Done()
		s, err := server.Connect(a.ctx, transport{c}, nil)
		if err != nil {
			_ = c.Close() // it always succeeds
			return
		}
		_ = s.Wait() // how the peer left does not matter
	}()
	return c
}

func (a *ends) sendClosed(ctx context.Context, peer, session string) {
	// A peer that cannot be reached any more needs no good-bye.
	ctx, cancel := context.WithTimeout(ctx, goodbyeTime)
	defer cancel()
	_ = a.send(ctx, peer, envelope.Notification, frame{Session: session, ToServer: a.serve == nil, Closed: true})
}

func (a *ends) send(ctx context.Context, peer string, t envelope.Type, f frame) error {
	e, err := envelope.New(a.agent, peer, t, f)
	if err != nil {
		return err
	}
	e.CorrelationID = f.Session
	_, err = a.r.SendWait(ctx, e)
	return err
}

// close ends every session and waits for them.
func (a *ends) close() {
	a.stop()
	a.mu.Lock()
	a.closed = true
	var all []*end
	for _, c := range a.sessions {
		all = append(all, c)
	}
	a.mu.Unlock()
	for _, c := range all {
		_ = c.Close() // it always succeeds
	}
	a.cancel()
	a.run.Wait()
}

// Read implements mcp.Connection.
func (c *end) Read(ctx context.Context) (jsonrpc.Message, error) {
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
func (c *end) Write(ctx context.Context, m jsonrpc.Message) error {
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
	// The session need not die of one result that is too large for an envelope.
	return c.write(ctx, &jsonrpc.Response{ID: answer.ID, Error: &jsonrpc.Error{
		Code: jsonrpc.CodeInternalError, Message: "the result cannot be sent: " + err.Error(),
	}})
}

func (c *end) write(ctx context.Context, m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	return c.all.send(ctx, c.peer, kind(m), frame{Session: c.session, ToServer: c.all.serve == nil, Message: data})
}

// kind is the envelope's type for a message.
func kind(m jsonrpc.Message) envelope.Type {
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
func (c *end) Close() error {
	if c.shut() {
		c.all.sendClosed(context.Background(), c.peer, c.session)
	}
	return nil
}

// shut closes this side only. It reports whether it was open.
func (c *end) shut() bool {
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
func (c *end) SessionID() string { return c.session }

// transport hands out a connection that is there already.
type transport struct{ c mcp.Connection }

func (t transport) Connect(context.Context) (mcp.Connection, error) { return t.c, nil }

// Over returns a transport of MCP to another agent, near or far, in envelopes from
// the agent local: for [MountOptions.Dial], or any MCP client. The other side
// answers with [Listen]. Every rule of the router holds.
func Over(r *router.Router, local, remote string) mcp.Transport { return over{r, local, remote} }

type over struct {
	r             *router.Router
	local, remote string
}

func (o over) Connect(context.Context) (mcp.Connection, error) {
	if err := o.r.Permit(o.local, o.remote); err != nil && router.CodeOf(err) != router.CodeAgentNotFound {
		return nil, fmt.Errorf("%s cannot use the tools of %s: %w", o.local, o.remote, err)
	}
	all := newEnds(o.r, o.local, nil)
	return all.open(o.remote, uuid.NewString(), func() { all.stop(); all.cancel() }), nil
}

// Listener lets other agents use an MCP server through envelopes.
type Listener struct{ all *ends }

// Listen has an agent answer those that speak MCP to it. serve returns the server
// for a peer, or nil to refuse; it is called for each session and must not block.
func Listen(r *router.Router, agentID string, serve func(peer string) *mcp.Server) *Listener {
	return &Listener{newEnds(r, agentID, serve)}
}

// Close ends every session and waits for them.
func (l *Listener) Close() { l.all.close() }
