package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/bus"
)

// An agent that has nothing to do gives up its connection to the bus, which takes 60 KB, and keeps one to the socket, which takes
// a tenth of that. Its identity and its permissions stay its own, the hub writes its heartbeats as it sends them, and wakes it
// when there is mail. See bus.Rest for the agent's side.

const (
	// maxRestLine is more than the length of a line that an agent sends while it rests.
	maxRestLine = 128
	// waitingBeats bounds the heartbeats that wait, one for each agent that the bus admits. Those beyond are not written.
	waitingBeats = 1024
)

// admitted are the agents that were admitted on the hub's bus since its start, by their GUIDs. It is safe for concurrent use.
type admitted struct {
	bus *bus.Bus
	log *slog.Logger

	beats chan *resting
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu     sync.Mutex
	agents map[string]admittedAgent
}

type admittedAgent struct {
	user    string // of its last Grant
	slot    string // the key of its identity's record
	network *agentnet.Network
	rest    *resting // nil while it does not rest
}

// newAdmitted returns admitted agents, whose heartbeats it writes until close.
func newAdmitted(b *bus.Bus, log *slog.Logger) *admitted {
	ctx, stop := context.WithCancel(context.Background())
	m := &admitted{bus: b, log: log, beats: make(chan *resting, waitingBeats), stop: stop, agents: map[string]admittedAgent{}}
	m.done.Go(func() { m.beat(ctx) })
	return m
}

func (m *admitted) close() {
	m.stop()
	m.done.Wait()
}

// add notes the Grant of an agent.
func (m *admitted) add(guid, slot, user string, n *agentnet.Network) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.agents[guid] = admittedAgent{user: user, slot: slot, network: n}
}

// user returns the user of an agent's last Grant.
func (m *admitted) user(guid string) (user string, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, known := m.agents[guid]
	return a.user, known
}

// rest begins the rest of an agent: from now on it counts as connected, and mail for it is noticed. It is server.Config.SocketRest.
func (m *admitted) rest(id jsonrpc.ID, raw json.RawMessage) (server.Detached, *jsonrpc.Error) {
	var p dialect.NetworkRestParams
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, jsonrpc.InvalidParams("params", err.Error())
	}
	r := &resting{of: m, id: id, guid: p.GUID}
	if err := m.begin(r, p.User); err != nil {
		return nil, jsonrpc.NewError(dialect.CodeAgentUnavailable, err.Error(), jsonrpc.Details{})
	}
	return r.serve, nil
}

func (m *admitted) begin(r *resting, user string) error {
	m.mu.Lock()
	a := m.agents[r.guid]
	m.mu.Unlock()
	if a.user != user || a.network == nil {
		return &bus.Error{Code: bus.CodeRejected, Message: "the agent has not been admitted with this credential"}
	}
	if err := a.network.AwaitFirstMail(); err != nil {
		return err
	}
	if err := m.bus.BeginRest(user); err != nil {
		return err
	}
	r.agent = a
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.agents[r.guid].user == user { // it has not joined again
		a.rest = r
		m.agents[r.guid] = a
	}
	return nil
}

// end notes that an agent does not rest any more.
func (m *admitted) end(r *resting) {
	m.mu.Lock()
	if a := m.agents[r.guid]; a.rest == r {
		a.rest = nil
		m.agents[r.guid] = a
	}
	m.mu.Unlock()
	if !r.close() { // the answer has ended it otherwise, and the agent may be in its next one
		m.bus.EndRest(r.agent.user)
	}
}

// arrived wakes an agent for which there is mail. It does not block.
func (m *admitted) arrived(guid string) {
	m.mu.Lock()
	r := m.agents[guid].rest
	m.mu.Unlock()
	if r != nil {
		r.wake(dialect.RestMail)
	}
}

// beat writes the heartbeats of agents that rest, until ctx ends.
func (m *admitted) beat(ctx context.Context) {
	for {
		select {
		case r := <-m.beats:
			r.beating.Store(false)
			if err := r.agent.network.Heartbeat(ctx, r.guid); err != nil && ctx.Err() == nil {
				m.log.Debug("an agent that rests has to write its entry itself", "guid", r.guid, "reason", err)
				r.wake(dialect.RestEntry)
			}
		case <-ctx.Done():
			return
		}
	}
}

// resting is the rest of one agent.
type resting struct {
	of    *admitted
	id    jsonrpc.ID // of the request
	guid  string
	agent admittedAgent

	beating atomic.Bool // a heartbeat waits

	mu       sync.Mutex
	conn     net.Conn        // nil before it has begun, and after its end
	due      dialect.RestEnd // why it has ended, "" while it has not
	answered bool            // or about to be
}

// serve serves the agent's connection until that ends.
func (r *resting) serve(conn net.Conn) {
	defer r.of.end(r)
	if !r.open(conn) {
		return
	}
	// A thousand goroutines wait here: what they call has to fit into a small stack.
	lines, n := make([]byte, maxRestLine), 0
	for n < len(lines) {
		more, err := conn.Read(lines[n:])
		if err != nil { // the agent has ended or is connected again, or the hub stops
			return
		}
		n = r.take(lines, n+more)
	}
}

// take handles the complete ones of the lines in the first n bytes, and moves the rest to their beginning. It returns the length of that.
func (r *resting) take(lines []byte, n int) int {
	for {
		line, rest, complete := bytes.Cut(lines[:n], []byte("\n"))
		if !complete {
			return n
		}
		switch {
		case bytes.Contains(line, []byte(dialect.NotifyBeat)):
			r.beat()
		case bytes.Contains(line, []byte(dialect.NotifyWake)):
			r.wake(dialect.RestAsked)
		}
		n = copy(lines, rest)
	}
}

// beat has a heartbeat written, unless one waits. It does not block: the bus may hang, and the agent's next line be a request to wake it.
func (r *resting) beat() {
	if r.beating.Swap(true) {
		return
	}
	select {
	case r.of.beats <- r:
	default:
		r.beating.Store(false)
	}
}

var restingLine = []byte(`{"jsonrpc":"2.0","method":"` + dialect.NotifyResting + `","params":{}}` + "\n")

// open tells the agent that it may give up its connection. There may have been mail since the rest has begun.
func (r *resting) open(conn net.Conn) bool {
	if _, err := conn.Write(restingLine); err != nil {
		return false
	}
	r.mu.Lock()
	r.conn = conn
	due := r.due
	r.answered = due != ""
	r.mu.Unlock()
	if due != "" {
		r.answer(conn, due)
	}
	return true
}

// wake ends the rest for a reason.
func (r *resting) wake(why dialect.RestEnd) {
	r.mu.Lock()
	conn, again := r.conn, r.due != ""
	if !again {
		r.due, r.answered = why, conn != nil
	}
	r.mu.Unlock()
	if conn != nil && !again {
		r.answer(conn, why)
	}
}

// close has nobody answer the agent any more. It reports whether it was answered.
func (r *resting) close() (answered bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conn = nil
	return r.answered
}

// answer sends the agent a new credential. It does not block, since the agent has read what was sent before.
func (r *resting) answer(conn net.Conn, why dialect.RestEnd) {
	request := bus.GrantRequest{Access: bus.AccessNetwork}
	if may := r.agent.network.Permissions(r.guid, r.agent.slot); may != nil {
		request = bus.GrantRequest{Access: bus.AccessAgent, Publish: may.Publish, Subscribe: may.Subscribe}
	}
	g, err := r.of.bus.Resume(r.agent.user, request)
	var line []byte
	if err == nil {
		line, err = jsonrpc.AppendResult(nil, r.id, dialect.NetworkRested{BusGrant: dialect.FromGrant(g), Reason: why})
	}
	if err == nil {
		_, err = conn.Write(append(line, '\n'))
	}
	if err != nil {
		r.of.log.Debug("an agent that rests connects anew", "guid", r.guid, "error", err)
		_ = conn.Close() // err is the cause
	}
}
