// Package client speaks to a running hub over its Unix socket. It is what the
// command line, the MCP server and the tests use; there is no second way in.
package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/swarm"
)

// maxLine bounds one line from the hub, which itself bounds a task at 32 MiB.
const maxLine = 128 << 20

// Errors that tell why there is no connection. Both come wrapped.
var (
	// ErrNotRunning means that nothing listens on the socket.
	ErrNotRunning = errors.New("no hub is running")
	// ErrForeignSocket means that the socket belongs to another user.
	ErrForeignSocket = errors.New("the socket belongs to another user")
	// ErrLost means that the hub closed the connection before it answered.
	ErrLost = errors.New("the hub closed the connection")
)

// Client is a connection to a hub. Its methods may be called concurrently; the
// requests share the connection, except streams, which have one of their own so
// that a slow reader holds nothing up.
//
// A connection that the hub closed between two calls, as it does with an idle
// one, is opened anew by the next call. A call that was under way when the
// connection broke is not repeated: it fails with [ErrLost].
type Client struct {
	socket string

	mu     sync.Mutex
	conn   *connection
	closed bool
}

// Dial connects to the hub that listens on socket.
func Dial(ctx context.Context, socket string) (*Client, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	go conn.read()
	return &Client{socket: socket, conn: conn}, nil
}

// Close ends the connection. Calls under way, and later ones, fail with
// [ErrLost].
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	conn := c.conn
	c.mu.Unlock()
	err := conn.nc.Close()
	<-conn.done
	if errors.Is(err, net.ErrClosed) {
		return nil // by the hub, before
	}
	return err
}

// connected returns the connection, a new one where the hub closed the last.
func (c *Client) connected(ctx context.Context) (*connection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.conn.done:
	default:
		return c.conn, nil
	}
	if c.closed {
		return nil, c.conn.err
	}
	conn, err := dial(ctx, c.socket) // a local socket: it connects or fails at once
	if err != nil {
		return nil, err
	}
	go conn.read()
	c.conn = conn
	return conn, nil
}

// Call sends one request and decodes the answer into result, a pointer, or nil
// to discard it. An error of the hub is a *[jsonrpc.Error]. When ctx ends, Call
// returns its error; the hub then still finishes what it began.
func (c *Client) Call(ctx context.Context, method string, params, result any) error {
	conn, err := c.connected(ctx)
	if err != nil {
		return err
	}
	raw, err := conn.call(ctx, method, params)
	if err != nil || result == nil {
		return err
	}
	if err := json.Unmarshal(raw, result); err != nil {
		return fmt.Errorf("read the hub's answer to %s: %w", method, err)
	}
	return nil
}

// Status returns the hub's state and figures.
func (c *Client) Status(ctx context.Context) (*dialect.Status, error) {
	return get[dialect.Status](ctx, c, dialect.MethodStatus, struct{}{})
}

// Agents lists the agents, with their health where health is set.
func (c *Client) Agents(ctx context.Context, health bool) ([]dialect.Agent, error) {
	agents, err := get[[]dialect.Agent](ctx, c, dialect.MethodAgentsList, dialect.AgentsListParams{IncludeHealth: health})
	if err != nil {
		return nil, err
	}
	return *agents, nil
}

// CheckHealth probes one agent now.
func (c *Client) CheckHealth(ctx context.Context, agentID string) (*dialect.Health, error) {
	return get[dialect.Health](ctx, c, dialect.MethodAgentsHealth, dialect.AgentParams{AgentID: agentID})
}

// Tasks returns one page of the tasks that match.
func (c *Client) Tasks(ctx context.Context, p dialect.TasksListParams) (*dialect.TaskPage, error) {
	return get[dialect.TaskPage](ctx, c, dialect.MethodTasksPage, p)
}

// Task returns one task with its whole history.
func (c *Client) Task(ctx context.Context, id string) (*dialect.Task, error) {
	return get[dialect.Task](ctx, c, dialect.MethodTaskGet, dialect.TaskParams{ID: id})
}

// Cancel stops a task and what agents have delegated from it, and returns when no
// process of it all is left.
func (c *Client) Cancel(ctx context.Context, id string) (*dialect.Task, error) {
	return get[dialect.Task](ctx, c, dialect.MethodTaskCancel, dialect.TaskParams{ID: id})
}

// CancelAlone is Cancel, but what was delegated from the task goes on.
func (c *Client) CancelAlone(ctx context.Context, id string) (*dialect.Task, error) {
	return get[dialect.Task](ctx, c, dialect.MethodTaskCancel, dialect.TaskParams{ID: id, KeepDelegated: true})
}

// Contexts lists the conversations, most recently used first.
func (c *Client) Contexts(ctx context.Context, limit int) ([]dialect.Context, error) {
	contexts, err := get[[]dialect.Context](ctx, c, dialect.MethodContextsList, dialect.ContextsListParams{Limit: limit})
	if err != nil {
		return nil, err
	}
	return *contexts, nil
}

// Send sends a message. Unless the parameters say otherwise it blocks until the
// task has ended or waits for somebody.
func (c *Client) Send(ctx context.Context, p dialect.SendParams) (*dialect.Task, error) {
	return get[dialect.Task](ctx, c, dialect.MethodSend, p)
}

// CreateSwarm begins a swarm and returns it, recruiting.
func (c *Client) CreateSwarm(ctx context.Context, p swarm.Plan) (*swarm.Session, error) {
	return get[swarm.Session](ctx, c, dialect.MethodSwarmCreate, dialect.SwarmCreateParams{Plan: p})
}

// Swarm returns a swarm as it stands.
func (c *Client) Swarm(ctx context.Context, id string) (*swarm.Session, error) {
	return get[swarm.Session](ctx, c, dialect.MethodSwarmGet, dialect.SwarmParams{ID: id})
}

// AwaitSwarm returns a swarm once it is past a sequence or has ended; after a while
// it returns it unchanged.
func (c *Client) AwaitSwarm(ctx context.Context, id string, after uint64) (*swarm.Session, error) {
	return get[swarm.Session](ctx, c, dialect.MethodSwarmGet, dialect.SwarmParams{ID: id, After: after})
}

// Swarms lists the swarms, the oldest first.
func (c *Client) Swarms(ctx context.Context) ([]dialect.SwarmSummary, error) {
	list, err := get[[]dialect.SwarmSummary](ctx, c, dialect.MethodSwarmList, struct{}{})
	if err != nil {
		return nil, err
	}
	return *list, nil
}

// StopSwarm ends a swarm.
func (c *Client) StopSwarm(ctx context.Context, id, reason string) (*swarm.Session, error) {
	return get[swarm.Session](ctx, c, dialect.MethodSwarmStop, dialect.SwarmStopParams{ID: id, Reason: reason})
}

// Shutdown asks the hub to stop. It returns before the hub is gone.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.Call(ctx, dialect.MethodShutdown, struct{}{}, nil)
}

// JoinBus asks for a credential of the hub's bus. Every call gives a new one.
func (c *Client) JoinBus(ctx context.Context, p dialect.BusJoinParams) (*dialect.BusGrant, error) {
	return get[dialect.BusGrant](ctx, c, dialect.MethodBusJoin, p)
}

// JoinNetwork asks for an agent's place in the agents' network on the hub's bus.
func (c *Client) JoinNetwork(ctx context.Context, p dialect.NetworkJoinParams) (*dialect.NetworkGrant, error) {
	return get[dialect.NetworkGrant](ctx, c, dialect.MethodNetworkJoin, p)
}

// LeaveBus withdraws a credential of the hub's bus and cuts its connection.
func (c *Client) LeaveBus(ctx context.Context, user string) error {
	return c.Call(ctx, dialect.MethodBusLeave, dialect.BusLeaveParams{User: user}, nil)
}

// Documents lists the names of the hub's documents.
func (c *Client) Documents(ctx context.Context) ([]string, error) {
	names, err := get[[]string](ctx, c, dialect.MethodDocumentsList, struct{}{})
	if err != nil {
		return nil, err
	}
	return *names, nil
}

// Document returns a document as it is.
func (c *Client) Document(ctx context.Context, name string) (*documents.Content, error) {
	return get[documents.Content](ctx, c, dialect.MethodDocumentsGet, dialect.DocumentParams{Name: name})
}

// AwaitDocument returns a document as soon as it is another than in the version seen, or
// as it is after about half a minute.
func (c *Client) AwaitDocument(ctx context.Context, name, seen string) (*documents.Content, error) {
	return get[documents.Content](ctx, c, dialect.MethodDocumentsWait, dialect.DocumentParams{Name: name, Seen: seen})
}

// EditDocument makes edits one change of a document, which is made if there is none,
// and returns what it is then, once that is durable.
func (c *Client) EditDocument(ctx context.Context, name string, edits []documents.Edit) (*documents.Content, error) {
	return get[documents.Content](ctx, c, dialect.MethodDocumentsEdit, dialect.DocumentEditParams{Name: name, Edits: edits})
}

// CompactDocument begins a document anew, without its history.
func (c *Client) CompactDocument(ctx context.Context, name string) (*dialect.DocumentCompacted, error) {
	return get[dialect.DocumentCompacted](ctx, c, dialect.MethodDocumentsCompact, dialect.DocumentParams{Name: name})
}

// ShareDocument gives an agent of another process a role in a document, which is made if there
// is none, or takes it away with "". It returns the roles by agent.
func (c *Client) ShareDocument(ctx context.Context, name, agentID string, role documents.Role) (map[string]documents.Role, error) {
	roles, err := get[map[string]documents.Role](ctx, c, dialect.MethodDocumentsShare, dialect.DocumentShareParams{Name: name, Agent: agentID, Role: role})
	if err != nil {
		return nil, err
	}
	return *roles, nil
}

// DocumentShares returns the roles in a document, by agent.
func (c *Client) DocumentShares(ctx context.Context, name string) (map[string]documents.Role, error) {
	roles, err := get[map[string]documents.Role](ctx, c, dialect.MethodDocumentsShares, dialect.DocumentParams{Name: name})
	if err != nil {
		return nil, err
	}
	return *roles, nil
}

func get[T any](ctx context.Context, c *Client, method string, params any) (*T, error) {
	result := new(T)
	if err := c.Call(ctx, method, params, result); err != nil {
		return nil, err
	}
	return result, nil
}

// LoopStep puts a step of a loop into the hub's audit log.
func (c *Client) LoopStep(ctx context.Context, list string, s ralph.Step) error {
	_, err := get[dialect.LoopStepResult](ctx, c, dialect.MethodLoopStep, dialect.LoopStepParams{List: list, Step: s})
	return err
}

// Stream sends a message and returns the events of its task.
func (c *Client) Stream(ctx context.Context, p dialect.SendParams) (*Stream, error) {
	return c.stream(ctx, dialect.MethodStream, p)
}

// Follow returns the events of a task that exists.
func (c *Client) Follow(ctx context.Context, id string) (*Stream, error) {
	return c.stream(ctx, dialect.MethodTaskFollow, dialect.TaskParams{ID: id})
}

// connection is one connection: writes are serialised, one goroutine reads and
// hands each response to the call that waits for its id.
type connection struct {
	nc   net.Conn
	r    *bufio.Reader
	done chan struct{} // closed when read returned
	err  error         // why, set before done is closed

	writing sync.Mutex

	mu      sync.Mutex
	next    int64
	waiting map[string]chan jsonrpc.Response
}

func dial(ctx context.Context, socket string) (*connection, error) {
	if err := checkOwner(socket); err != nil {
		return nil, err
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		if notListening(err) {
			return nil, fmt.Errorf("%w on %s", ErrNotRunning, socket)
		}
		return nil, fmt.Errorf("connect to the hub: %w", err)
	}
	return &connection{
		nc: nc, r: bufio.NewReaderSize(nc, 64<<10), done: make(chan struct{}),
		waiting: map[string]chan jsonrpc.Response{},
	}, nil
}

func checkOwner(socket string) error {
	info, err := os.Stat(socket)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w on %s", ErrNotRunning, socket)
	}
	if err != nil {
		return fmt.Errorf("look at the socket: %w", err)
	}
	if info.Mode()&os.ModeSocket == 0 && !socketLooksLikeFile(info) {
		return fmt.Errorf("%w on %s: it is not a socket", ErrNotRunning, socket)
	}
	if !ownedByUser(info) {
		return fmt.Errorf("%w: %s; use --socket for one of your own", ErrForeignSocket, socket)
	}
	return nil
}

func (c *connection) call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	id, answer := c.expect()
	defer c.forget(id)
	if err := c.send(ctx, method, params, id); err != nil {
		return nil, err
	}
	select {
	case resp := <-answer:
		return outcome(resp)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-c.done:
		select { // the answer may have come last
		case resp := <-answer:
			return outcome(resp)
		default:
			return nil, c.err
		}
	}
}

func outcome(resp jsonrpc.Response) (json.RawMessage, error) {
	if resp.Error != nil {
		return nil, resp.Error
	}
	return resp.Result, nil
}

func (c *connection) expect() (jsonrpc.ID, <-chan jsonrpc.Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	id := jsonrpc.NumberID(c.next)
	answer := make(chan jsonrpc.Response, 1)
	c.waiting[id.String()] = answer
	return id, answer
}

func (c *connection) forget(id jsonrpc.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id.String())
}

// send writes one request. A write that ctx cuts off ends the connection: half
// a line would spoil the next one.
func (c *connection) send(ctx context.Context, method string, params any, id jsonrpc.ID) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("encode the parameters of %s: %w", method, err)
	}
	line, err := json.Marshal(jsonrpc.Request{ID: id, Method: method, Params: raw})
	if err != nil {
		return fmt.Errorf("encode %s: %w", method, err)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	stop := context.AfterFunc(ctx, func() {
		// The error would be that the connection is closed already.
		_ = c.nc.SetWriteDeadline(time.Unix(1, 0))
	})
	_, err = c.nc.Write(append(line, '\n'))
	if !stop() {
		c.nc.Close()
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return nil
}

// read hands out responses until the connection ends.
func (c *connection) read() {
	defer close(c.done)
	defer c.nc.Close()
	for {
		line, err := readLine(c.r)
		if err != nil {
			c.err = lost(err)
			return
		}
		var resp jsonrpc.Response
		if err := json.Unmarshal(line, &resp); err != nil {
			c.err = fmt.Errorf("%w: it sent what is no JSON-RPC: %w", ErrLost, err)
			return
		}
		c.mu.Lock()
		answer := c.waiting[resp.ID.String()]
		delete(c.waiting, resp.ID.String())
		c.mu.Unlock()
		if answer != nil {
			answer <- resp // has room: each id is answered once
		}
	}
}

func lost(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return ErrLost
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// readLine reads up to a newline, at most maxLine bytes.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		piece, err := r.ReadSlice('\n')
		if len(line)+len(piece) > maxLine {
			return nil, fmt.Errorf("a line longer than %d bytes", maxLine)
		}
		switch {
		case err == nil && line == nil:
			return bytes.Clone(piece), nil
		case err == nil:
			return append(line, piece...), nil
		case errors.Is(err, bufio.ErrBufferFull):
			line = append(line, piece...)
		default:
			return nil, err
		}
	}
}

// Wait blocks until the hub has closed the connection, which it does when it
// stops, or until ctx ends.
func (c *Client) Wait(ctx context.Context) error {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	select {
	case <-conn.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
