// Package client is the client of a running hub over its Unix socket, for the command
// line, the MCP server and tests.
package client

import (
	"bufio"
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
	"github.com/parleyhub/parley/internal/base/caller"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/swarm"
)

// maxLine bounds a line from the hub, in bytes. The hub limits a task to 32 MiB.
const maxLine = 128 << 20

// The errors of connections. They are returned wrapped.
var (
	// ErrNotRunning means that nothing listens on the socket.
	ErrNotRunning = errors.New("no hub is running")
	// ErrForeignSocket means that the socket belongs to another user.
	ErrForeignSocket = errors.New("the socket belongs to another user")
	// ErrLost means that the hub closed the connection before it answered.
	ErrLost = errors.New("the hub closed the connection")
)

// Client is a client of a hub. It is safe for concurrent use. Requests share one
// connection; each stream has its own, so that a slow reader delays nothing else.
//
// If the hub has closed the connection between two calls, as it does with idle ones, the next call connects again. A
// call during which the connection is lost is not repeated and fails with [ErrLost].
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

// Close closes the connection. Running and later calls fail with [ErrLost].
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	conn := c.conn
	c.mu.Unlock()
	err := conn.nc.Close()
	<-conn.done
	if errors.Is(err, net.ErrClosed) {
		return nil // the hub has closed it before
	}
	return err
}

// connected returns the connection, or a new one if the hub has closed it.
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
	conn, err := dial(ctx, c.socket) // does not block: the socket is local
	if err != nil {
		return nil, err
	}
	go conn.read()
	c.conn = conn
	return conn, nil
}

// Call sends a request and decodes the answer into result, a pointer, or nil to discard it. An error of the hub is a
// *[jsonrpc.Error]. When ctx ends, Call returns its error, and the hub still completes the request.
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

// Status returns the hub's status.
func (c *Client) Status(ctx context.Context) (*dialect.Status, error) {
	return get[dialect.Status](ctx, c, dialect.MethodStatus, struct{}{})
}

// Agents lists the agents without their cards, with their health if health is set.
func (c *Client) Agents(ctx context.Context, health bool) ([]dialect.Agent, error) {
	return c.ListAgents(ctx, dialect.AgentsListParams{IncludeHealth: health, IncludeCards: new(false)})
}

// ListAgents lists the agents.
func (c *Client) ListAgents(ctx context.Context, p dialect.AgentsListParams) ([]dialect.Agent, error) {
	return value[[]dialect.Agent](ctx, c, dialect.MethodAgentsList, p)
}

// FindAgent returns the agent that a name means in a project.
func (c *Client) FindAgent(ctx context.Context, p dialect.FindAgentParams) (*dialect.Agent, error) {
	return get[dialect.Agent](ctx, c, dialect.MethodAgentsFind, p)
}

// RenameAgent gives an agent another handle.
func (c *Client) RenameAgent(ctx context.Context, p dialect.RenameAgentParams) (*dialect.Agent, error) {
	return get[dialect.Agent](ctx, c, dialect.MethodAgentsRename, p)
}

// Senders returns the senders that the user has always allowed.
func (c *Client) Senders(ctx context.Context) ([]dialect.AllowedSender, error) {
	return value[[]dialect.AllowedSender](ctx, c, dialect.MethodSendersList, nil)
}

// RevokeSender ends the permission of a sender.
func (c *Client) RevokeSender(ctx context.Context, id string) (*dialect.AllowedSender, error) {
	return get[dialect.AllowedSender](ctx, c, dialect.MethodSenderRevoke, dialect.RevokeSenderParams{ID: id})
}

// SessionHook reports an event of an open session, and returns what its hook answers.
func (c *Client) SessionHook(ctx context.Context, p dialect.SessionHookParams) (*dialect.SessionHookAnswer, error) {
	return get[dialect.SessionHookAnswer](ctx, c, dialect.MethodSessionHook, p)
}

// SessionShown reports that a session has got a notice.
func (c *Client) SessionShown(ctx context.Context, notice string) error {
	return c.Call(ctx, dialect.MethodSessionShown, dialect.SessionShownParams{Notice: notice}, nil)
}

// SessionServe reports the session that an MCP server serves.
func (c *Client) SessionServe(ctx context.Context, p dialect.SessionServeParams) (*dialect.OpenSession, error) {
	return get[dialect.OpenSession](ctx, c, dialect.MethodSessionServe, p)
}

// QuietSession turns do not disturb on or off for the session of an agent.
func (c *Client) QuietSession(ctx context.Context, p dialect.SessionQuietParams) error {
	return c.Call(ctx, dialect.MethodSessionQuiet, p, nil)
}

// OpenSessions returns this computer's open sessions.
func (c *Client) OpenSessions(ctx context.Context) ([]dialect.OpenSession, error) {
	return value[[]dialect.OpenSession](ctx, c, dialect.MethodSessionsList, nil)
}

// FileClaims returns the claims of files.
func (c *Client) FileClaims(ctx context.Context) ([]dialect.FileClaim, error) {
	return value[[]dialect.FileClaim](ctx, c, dialect.MethodClaimsList, nil)
}

// CheckFiles returns the files that other agents have claimed.
func (c *Client) CheckFiles(ctx context.Context, p dialect.FileCheckParams) ([]dialect.HeldFile, error) {
	return value[[]dialect.HeldFile](ctx, c, dialect.MethodClaimsCheck, p)
}

// BreakFileClaim ends a claim for its holder.
func (c *Client) BreakFileClaim(ctx context.Context, id string) (*dialect.BrokenClaim, error) {
	return get[dialect.BrokenClaim](ctx, c, dialect.MethodClaimBreak, dialect.BreakClaimParams{ClaimID: id})
}

// Threads lists the channels and the mail of agents, the newest first.
func (c *Client) Threads(ctx context.Context) ([]dialect.Thread, error) {
	return value[[]dialect.Thread](ctx, c, dialect.MethodThreadsList, nil)
}

// Thread returns the latest messages of a channel or of the mail of two agents.
func (c *Client) Thread(ctx context.Context, p dialect.ThreadParams) (*dialect.ThreadMessages, error) {
	return get[dialect.ThreadMessages](ctx, c, dialect.MethodThreadGet, p)
}

// WriteThread writes a message in a thread as the hub's user.
func (c *Client) WriteThread(ctx context.Context, p dialect.WriteThreadParams) (*dialect.WrittenMessage, error) {
	return get[dialect.WrittenMessage](ctx, c, dialect.MethodThreadWrite, p)
}

// CheckHealth probes one agent now.
func (c *Client) CheckHealth(ctx context.Context, agentID string) (*dialect.Health, error) {
	return get[dialect.Health](ctx, c, dialect.MethodAgentsHealth, dialect.AgentParams{AgentID: agentID})
}

// Tasks returns a page of the matching tasks.
func (c *Client) Tasks(ctx context.Context, p dialect.TasksListParams) (*dialect.TaskPage, error) {
	return get[dialect.TaskPage](ctx, c, dialect.MethodTasksPage, p)
}

// Task returns one task with its whole history.
func (c *Client) Task(ctx context.Context, id string) (*dialect.Task, error) {
	return get[dialect.Task](ctx, c, dialect.MethodTaskGet, dialect.TaskParams{ID: id})
}

// Trace returns the traces of a task's last turns.
func (c *Client) Trace(ctx context.Context, id string) (*dialect.TaskTrace, error) {
	return get[dialect.TaskTrace](ctx, c, dialect.MethodTasksTrace, dialect.TraceParams{ID: id})
}

// Cancel cancels a task and the tasks delegated from it. It returns when all their processes have ended.
func (c *Client) Cancel(ctx context.Context, id string) (*dialect.Task, error) {
	return get[dialect.Task](ctx, c, dialect.MethodTaskCancel, dialect.TaskParams{ID: id})
}

// CancelAlone is Cancel without the delegated tasks.
func (c *Client) CancelAlone(ctx context.Context, id string) (*dialect.Task, error) {
	return get[dialect.Task](ctx, c, dialect.MethodTaskCancel, dialect.TaskParams{ID: id, KeepDelegated: true})
}

// Totals sums up the stored tasks.
func (c *Client) Totals(ctx context.Context, p dialect.TotalsParams) (*dialect.Totals, error) {
	return get[dialect.Totals](ctx, c, dialect.MethodTotals, p)
}

// Needs lists what waits for the user.
func (c *Client) Needs(ctx context.Context) (*dialect.Needs, error) {
	return get[dialect.Needs](ctx, c, dialect.MethodNeeds, nil)
}

// Work lists the open items and the failed ones of the work queues.
func (c *Client) Work(ctx context.Context) (*dialect.WorkList, error) {
	return get[dialect.WorkList](ctx, c, dialect.MethodWorkList, nil)
}

// RetryWork puts failed work back into its queue.
func (c *Client) RetryWork(ctx context.Context, id string) error {
	return c.Call(ctx, dialect.MethodWorkRetry, dialect.WorkItemParams{TaskID: id}, nil)
}

// DiscardWork removes failed work for good.
func (c *Client) DiscardWork(ctx context.Context, id string) error {
	return c.Call(ctx, dialect.MethodWorkDiscard, dialect.WorkItemParams{TaskID: id}, nil)
}

// Contexts lists the conversations, most recently used first.
func (c *Client) Contexts(ctx context.Context, limit int) ([]dialect.Context, error) {
	return value[[]dialect.Context](ctx, c, dialect.MethodContextsList, dialect.ContextsListParams{Limit: limit})
}

// IDs returns the ids that begin or end with like, the most recently used first.
func (c *Client) IDs(ctx context.Context, p dialect.IDsParams) ([]string, error) {
	found, err := get[dialect.IDs](ctx, c, dialect.MethodIDs, p)
	if err != nil {
		return nil, err
	}
	return found.IDs, nil
}

// CheckDir returns what a message that requests a directory needs.
func (c *Client) CheckDir(ctx context.Context, p dialect.DirCheckParams) (*dialect.DirCheck, error) {
	return get[dialect.DirCheck](ctx, c, dialect.MethodDirCheck, p)
}

// Worktree makes a git worktree, or returns the one that was made for the same parameters.
func (c *Client) Worktree(ctx context.Context, p dialect.WorktreeParams) (*dialect.Worktree, error) {
	return get[dialect.Worktree](ctx, c, dialect.MethodWorktree, p)
}

// Send sends a message. Unless the parameters say otherwise, it blocks until the task
// has ended or waits for its user.
func (c *Client) Send(ctx context.Context, p dialect.SendParams) (*dialect.Task, error) {
	return get[dialect.Task](ctx, c, dialect.MethodSend, p)
}

// CreateSwarm starts a swarm and returns it while it is recruiting.
func (c *Client) CreateSwarm(ctx context.Context, p swarm.Plan) (*swarm.Session, error) {
	return get[swarm.Session](ctx, c, dialect.MethodSwarmCreate, dialect.SwarmCreateParams{Plan: p})
}

// Swarm returns a swarm's current state.
func (c *Client) Swarm(ctx context.Context, id string) (*swarm.Session, error) {
	return get[swarm.Session](ctx, c, dialect.MethodSwarmGet, dialect.SwarmParams{ID: id})
}

// AwaitSwarm returns a swarm when its sequence is not after or it has ended, and unchanged after 20 seconds.
func (c *Client) AwaitSwarm(ctx context.Context, id string, after uint64) (*swarm.Session, error) {
	return get[swarm.Session](ctx, c, dialect.MethodSwarmGet, dialect.SwarmParams{ID: id, After: after})
}

// Swarms lists the swarms, the oldest first.
func (c *Client) Swarms(ctx context.Context) ([]dialect.SwarmSummary, error) {
	return value[[]dialect.SwarmSummary](ctx, c, dialect.MethodSwarmList, struct{}{})
}

// StopSwarm stops a swarm.
func (c *Client) StopSwarm(ctx context.Context, id, reason string) (*swarm.Session, error) {
	return get[swarm.Session](ctx, c, dialect.MethodSwarmStop, dialect.SwarmStopParams{ID: id, Reason: reason})
}

// Drain tells the hub to stop if that interrupts no task, and else returns how many tasks it would interrupt.
func (c *Client) Drain(ctx context.Context) (busy int, err error) {
	var result dialect.DrainResult
	err = c.Call(ctx, dialect.MethodDrain, struct{}{}, &result)
	return result.ActiveTasks, err
}

// Shutdown tells the hub to stop. It returns before the hub has stopped.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.Call(ctx, dialect.MethodShutdown, struct{}{}, nil)
}

// PageLink returns a new link to the hub's page.
func (c *Client) PageLink(ctx context.Context, p dialect.PageLinkParams) (*dialect.PageLink, error) {
	return get[dialect.PageLink](ctx, c, dialect.MethodPageLink, p)
}

// JoinBus returns a new credential of the hub's bus.
func (c *Client) JoinBus(ctx context.Context, p dialect.BusJoinParams) (*dialect.BusGrant, error) {
	return get[dialect.BusGrant](ctx, c, dialect.MethodBusJoin, p)
}

// JoinNetwork registers an agent in the agents' network on the hub's bus.
func (c *Client) JoinNetwork(ctx context.Context, p dialect.NetworkJoinParams) (*dialect.NetworkGrant, error) {
	return get[dialect.NetworkGrant](ctx, c, dialect.MethodNetworkJoin, p)
}

// LeaveBus revokes a credential of the hub's bus and closes its connection.
func (c *Client) LeaveBus(ctx context.Context, user string) error {
	return c.Call(ctx, dialect.MethodBusLeave, dialect.BusLeaveParams{User: user}, nil)
}

// Documents lists the names of the hub's documents.
func (c *Client) Documents(ctx context.Context) ([]string, error) {
	return value[[]string](ctx, c, dialect.MethodDocumentsList, struct{}{})
}

// Document returns a document.
func (c *Client) Document(ctx context.Context, name string) (*documents.Content, error) {
	return get[documents.Content](ctx, c, dialect.MethodDocumentsGet, dialect.DocumentParams{Name: name})
}

// AwaitDocument returns a document when its version is not seen, and unchanged after 25 seconds.
func (c *Client) AwaitDocument(ctx context.Context, name, seen string) (*documents.Content, error) {
	return get[documents.Content](ctx, c, dialect.MethodDocumentsWait, dialect.DocumentParams{Name: name, Seen: seen})
}

// EditDocument applies edits as one change, creates the document if it does not exist,
// and returns it when the change is durable.
func (c *Client) EditDocument(ctx context.Context, name string, edits []documents.Edit) (*documents.Content, error) {
	return get[documents.Content](ctx, c, dialect.MethodDocumentsEdit, dialect.DocumentEditParams{Name: name, Edits: edits})
}

// SyncDocument merges a copy with a document, and returns what the copy lacks.
func (c *Client) SyncDocument(ctx context.Context, name string, has documents.Copy) (*documents.Rest, error) {
	return get[documents.Rest](ctx, c, dialect.MethodDocumentsSync, dialect.DocumentSyncParams{Name: name, Copy: has})
}

// CompactDocument removes a document's history.
func (c *Client) CompactDocument(ctx context.Context, name string) (*dialect.DocumentCompacted, error) {
	return get[dialect.DocumentCompacted](ctx, c, dialect.MethodDocumentsCompact, dialect.DocumentParams{Name: name})
}

// ShareDocument sets the role of another process's agent in a document, which is created
// if it does not exist; "" removes the role. It returns the roles by agent.
func (c *Client) ShareDocument(ctx context.Context, name, agentID string, role documents.Role) (map[string]documents.Role, error) {
	return value[map[string]documents.Role](ctx, c, dialect.MethodDocumentsShare, dialect.DocumentShareParams{Name: name, Agent: agentID, Role: role})
}

// DocumentShares returns the roles in a document, by agent.
func (c *Client) DocumentShares(ctx context.Context, name string) (map[string]documents.Role, error) {
	return value[map[string]documents.Role](ctx, c, dialect.MethodDocumentsShares, dialect.DocumentParams{Name: name})
}

// value calls a method and returns its result.
func value[T any](ctx context.Context, c *Client, method string, params any) (result T, err error) {
	err = c.Call(ctx, method, params, &result)
	return result, err
}

// get is value for results that are returned as pointers, nil with an error.
func get[T any](ctx context.Context, c *Client, method string, params any) (*T, error) {
	result, err := value[T](ctx, c, method, params)
	if err != nil {
		return nil, err
	}
	return &result, nil
}

// DismissLoop makes nothing wait for the user because of a loop that failed.
func (c *Client) DismissLoop(ctx context.Context, list string) error {
	return c.Call(ctx, dialect.MethodLoopDismiss, dialect.LoopDismissParams{List: list}, nil)
}

// LoopStep writes a step of a loop to the hub's audit log.
func (c *Client) LoopStep(ctx context.Context, list string, s ralph.Step) error {
	return c.Call(ctx, dialect.MethodLoopStep, dialect.LoopStepParams{List: list, Step: s}, nil)
}

// Stream sends a message and returns the events of its task.
func (c *Client) Stream(ctx context.Context, p dialect.SendParams) (*Stream, error) {
	return c.stream(ctx, dialect.MethodStream, p)
}

// Follow returns the events of an existing task.
func (c *Client) Follow(ctx context.Context, id string) (*Stream, error) {
	return c.stream(ctx, dialect.MethodTaskFollow, dialect.TaskParams{ID: id})
}

// connection is a connection to the hub. Writes are serialised. One goroutine reads and
// passes each response to the call with its id.
type connection struct {
	nc    net.Conn
	r     *bufio.Reader
	lines *process.Lines // of r
	done  chan struct{}  // closed when read has returned
	err   error          // of read, set before done is closed

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
		if local.NotListening(err) {
			return nil, fmt.Errorf("%w on %s", ErrNotRunning, socket)
		}
		return nil, fmt.Errorf("connect to the hub: %w", err)
	}
	if who := caller.Of(nc); who.Kind == caller.Other { // the file has been replaced since it was checked
		_ = nc.Close()
		return nil, fmt.Errorf("%w: %s listens on %s", ErrForeignSocket, who, socket)
	}
	r := bufio.NewReaderSize(nc, 64<<10)
	return &connection{
		nc: nc, r: r, lines: process.NewLines(r, maxLine), done: make(chan struct{}),
		waiting: map[string]chan jsonrpc.Response{},
	}, nil
}

func checkOwner(socket string) error {
	info, err := os.Stat(socket)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w on %s", ErrNotRunning, socket)
	}
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w, or is in a directory that is not yours: %s", ErrForeignSocket, socket)
	}
	if err != nil {
		return fmt.Errorf("%w on %s: %s", ErrNotRunning, socket, local.Reason(err))
	}
	if !local.IsSocket(info) {
		return fmt.Errorf("%w on %s: it is not a socket", ErrNotRunning, socket)
	}
	if !local.OwnedByUser(info) {
		return fmt.Errorf("%w: %s", ErrForeignSocket, socket)
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
		select { // the answer may have arrived just before
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

// send writes a request. If ctx ends during the write, the connection is closed, since a
// partial line would corrupt the next one.
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
		// It fails only on a closed connection.
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

// read passes responses to calls until the connection ends.
func (c *connection) read() {
	defer close(c.done)
	defer c.nc.Close()
	for {
		line, err := c.lines.Next()
		if err != nil {
			c.err = lost(err)
			return
		}
		var resp jsonrpc.Response
		if err := json.Unmarshal(line, &resp); err != nil {
			c.err = fmt.Errorf("%w: it did not send JSON-RPC: %w", ErrLost, err)
			return
		}
		c.mu.Lock()
		answer := c.waiting[resp.ID.String()]
		delete(c.waiting, resp.ID.String())
		c.mu.Unlock()
		if answer != nil {
			answer <- resp // buffered, and each id is answered once
		}
	}
}

func lost(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return ErrLost
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// Wait blocks until the hub closes the connection, as when it stops, or ctx ends.
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
