package swarm

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/router"
)

// The shared state is a crdt document with one writer, the leader, which applies changes in the journal's order;
// package replica copies it to the participants. A new leader makes a new document with another epoch from the
// journal; so does a leader whose document has had many changes.

// The roots of the document.
const (
	valuesRoot = "values" // JSON texts by key
	aboutRoot  = "swarm"  // sequence: the journal's
)

// maxWrites is after how many changes a document is replaced by a new one, without the tombstones.
const maxWrites = 100_000

// documentEpoch is the epoch of a leader's nth document.
func documentEpoch(swarmEpoch, n int) uint64 { return uint64(swarmEpoch)<<32 | uint64(n) }

// documentOf names the document of a swarm.
func documentOf(swarmID string) string { return "swarm/" + swarmID }

// aboutState reports whether an envelope is a replica's message about the shared state of its thread's swarm.
func aboutState(e *envelope.Envelope) bool {
	name, ok := replica.DocumentOf(e)
	return ok && name == documentOf(e.CorrelationID)
}

// escaper makes an agent's id valid for package replica.
var escaper = strings.NewReplacer("%", "%25", "/", "%2F")

// newReplica returns an agent's replica of a document, whose leader has this access; the
// others may read. The limits are the same at both ends.
func newReplica(r *router.Router, agentID, swarmID string, epoch uint64, leader string, access replica.Access, log *slog.Logger) (*replica.Replica, error) {
	limits := crdt.LiveLimits()
	limits.Key = MaxKey + len(partPrefix)
	return replica.New(replica.Options{
		Agent: escaper.Replace(agentID), State: documentOf(swarmID), Epoch: epoch, Limits: &limits, NoForward: true, Logger: log, Telemetry: r.Telemetry(),
		Access: func(who string) replica.Access {
			if who == escaper.Replace(leader) {
				return access
			}
			return replica.Read
		},
	})
}

// link is a replica's link to another agent, through the router.
type link struct {
	r             *router.Router
	swarm         string
	local, remote string

	handler atomic.Pointer[channel.Handler]
}

// Send implements [replica.Link].
func (w *link) Send(ctx context.Context, e *envelope.Envelope) error {
	e.Sender, e.Recipient, e.CorrelationID = w.local, w.remote, w.swarm
	_, err := w.r.Send(ctx, e)
	return err
}

// OnMessage implements [replica.Link].
func (w *link) OnMessage(h channel.Handler) (remove func()) {
	w.handler.Store(&h)
	return func() { w.handler.Store(nil) }
}

// LocalAgent implements [replica.Link].
func (w *link) LocalAgent() string { return escaper.Replace(w.local) }

// RemoteAgent implements [replica.Link].
func (w *link) RemoteAgent() string { return escaper.Replace(w.remote) }

// receive handles an envelope of the remote agent.
func (w *link) receive(ctx context.Context, e *envelope.Envelope) {
	if handler := w.handler.Load(); handler != nil {
		copied := *e
		copied.Sender = w.RemoteAgent()
		(*handler)(ctx, &copied)
	}
}

// leaderDoc is the document at the leader. The leader's goroutine owns it; receive may be called from others.
type leaderDoc struct {
	r      *replica.Replica
	epoch  uint64
	writes int

	mu    sync.Mutex
	links map[string]*link   // of those who follow, by agent
	asks  map[string]*bucket // how often they may ask for all of it, by agent
	ends  map[string]func()
}

// newLeaderDoc makes a document of values as they were at a sequence.
func newLeaderDoc(ctx context.Context, through *router.Router, agentID, swarmID string, epoch, sequence uint64, values map[string]json.RawMessage, log *slog.Logger) (*leaderDoc, error) {
	r, err := newReplica(through, agentID, swarmID, epoch, agentID, replica.Read|replica.Write, log)
	if err != nil {
		return nil, err
	}
	o := &leaderDoc{r: r, epoch: epoch, links: make(map[string]*link), asks: make(map[string]*bucket), ends: make(map[string]func())}
	// In pieces that are not larger than other changes.
	piece, size := make(map[string]json.RawMessage), 0
	for key, value := range values {
		piece[key] = value
		if size += len(key) + len(value); err == nil && size > maxBulk {
			err = o.write(ctx, 0, piece)
			clear(piece)
			size = 0
		}
	}
	if err == nil {
		err = o.write(ctx, sequence, piece)
	}
	if err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

// write makes changes to the document in one step; an empty value deletes its key.
func (o *leaderDoc) write(ctx context.Context, sequence uint64, changes map[string]json.RawMessage) error {
	o.writes += len(changes)
	return o.r.Edit(ctx, func(d *crdt.Doc) error {
		values := d.Map(valuesRoot)
		for _, key := range sortedKeys(changes) {
			var err error
			if value := changes[key]; len(value) > 0 {
				err = values.Set(key, string(value))
			} else if _, there := values.Get(key); there {
				err = values.Delete(key)
			}
			if err != nil {
				return err
			}
		}
		return d.Map(aboutRoot).Set("sequence", strconv.FormatUint(sequence, 10)) // as text, which keeps all digits
	})
}

// follow links an agent to the document, again if it was linked.
func (o *leaderDoc) follow(r *router.Router, swarmID, local, remote string) error {
	o.leave(remote)
	w := &link{r: r, swarm: swarmID, local: local, remote: remote}
	o.mu.Lock()
	o.links[remote] = w
	o.mu.Unlock()
	end, err := o.r.Attach(w)
	if err != nil {
		return err
	}
	o.ends[remote] = end
	return nil
}

// leave ends an agent's link.
func (o *leaderDoc) leave(remote string) {
	if end := o.ends[remote]; end != nil {
		end()
	}
	delete(o.ends, remote)
	o.mu.Lock()
	delete(o.links, remote)
	o.mu.Unlock()
}

// receive handles a message about the document. It reports false if the sender has requested the whole document too
// often; its replica repeats the request after the next digest.
func (o *leaderDoc) receive(ctx context.Context, e *envelope.Envelope) bool {
	o.mu.Lock()
	w := o.links[e.Sender]
	o.mu.Unlock()
	if w == nil {
		return true
	}
	var m struct {
		Kind replica.Kind `json:"kind"`
	}
	if e.Unmarshal(&m) != nil {
		return true // not a replica's message
	}
	if m.Kind == replica.KindStep1 && !o.mayAsk(e.Sender) {
		return false
	}
	w.receive(ctx, e)
	return true
}

func (o *leaderDoc) mayAsk(who string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return takeOne(o.asks, who, stateBurst, stateRate)
}

func (o *leaderDoc) close() { _ = o.r.Close() } // returns nil

// memberDoc is the document at a participant.
type memberDoc struct {
	r *replica.Replica
	w *link
}

// newMemberDoc follows the document of a leader. changed is called after each change, one call at a time.
func newMemberDoc(r *router.Router, local, remote, swarmID string, epoch uint64, changed func(*memberDoc, State)) (*memberDoc, error) {
	doc, err := newReplica(r, local, swarmID, epoch, remote, replica.Read|replica.Write|replica.Relay, nil)
	if err != nil {
		return nil, err
	}
	c := &memberDoc{r: doc, w: &link{r: r, swarm: swarmID, local: local, remote: remote}}
	doc.OnUpdate(func(replica.Update) {
		if s, ok := c.state(context.Background()); ok {
			changed(c, s)
		}
	})
	if _, err := doc.Attach(c.w); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// state reads the document; ok is false before it has arrived.
func (c *memberDoc) state(ctx context.Context) (s State, ok bool) {
	var now State // View may return before the function does, if the replica closes
	err := c.r.View(ctx, func(d *crdt.Doc) {
		text, _ := d.Map(aboutRoot).Get("sequence")
		digits, _ := text.(string)
		now.Sequence, _ = strconv.ParseUint(digits, 10, 64) // 0: it has not arrived
		now.Values = make(map[string]json.RawMessage, d.Map(valuesRoot).Len())
		for key, value := range d.Map(valuesRoot).All() {
			if text, isText := value.(string); isText {
				now.Values[key] = json.RawMessage(text)
			}
		}
	})
	if err != nil {
		return State{}, false
	}
	return now, now.Sequence > 0
}

func (c *memberDoc) close() { _ = c.r.Close() } // returns nil
