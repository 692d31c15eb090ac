package swarm

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"sync"

	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/router"
)

// The shared state is a crdt document with one writer, the leader: the journal says
// in which order changes count, and the document takes them to whoever follows it, as
// package replica does. A new leader begins a new document, under another epoch, from
// what the journal has; so does one whose document has grown old.

// The roots of the document.
const (
	valuesRoot = "values" // JSON texts by key
	aboutRoot  = "swarm"  // sequence: the journal's
)

// maxWrites is after how many changes a document begins anew, without the traces of
// what was overwritten.
const maxWrites = 100_000

// documentEpoch is the epoch of a leader's nth document.
func documentEpoch(swarmEpoch, n int) uint64 { return uint64(swarmEpoch)<<32 | uint64(n) }

func documentName(swarmID string) string { return "swarm/" + swarmID }

// documentLimits are what a document may be; they are the same at both ends.
func documentLimits() *crdt.Limits {
	l := crdt.LiveLimits()
	l.Key = MaxKey + len(partPrefix)
	return &l
}

// escaper makes an agent's id one that package replica takes.
var escaper = strings.NewReplacer("%", "%25", "/", "%2F")

// wire is a replica's way to another agent, through the router.
type wire struct {
	r             *router.Router
	swarm         string
	local, remote string

	mu   sync.Mutex
	take channel.Handler
}

// Send implements [replica.Link].
func (w *wire) Send(ctx context.Context, e *envelope.Envelope) error {
	e.Sender, e.Recipient, e.CorrelationID = w.local, w.remote, w.swarm
	_, err := w.r.Send(ctx, e)
	return err
}

// OnMessage implements [replica.Link].
func (w *wire) OnMessage(h channel.Handler) (remove func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.take = h
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.take = nil
	}
}

// LocalAgent implements [replica.Link].
func (w *wire) LocalAgent() string { return escaper.Replace(w.local) }

// RemoteAgent implements [replica.Link].
func (w *wire) RemoteAgent() string { return escaper.Replace(w.remote) }

// arrived takes an envelope that the remote agent has sent about the document.
func (w *wire) arrived(ctx context.Context, e *envelope.Envelope) {
	w.mu.Lock()
	take := w.take
	w.mu.Unlock()
	if take == nil {
		return
	}
	copied := *e
	copied.Sender = w.RemoteAgent()
	take(ctx, &copied)
}

// original is the document at the leader. The leader's goroutine owns it, but for
// arrived.
type original struct {
	r      *replica.Replica
	epoch  uint64
	writes int

	mu    sync.Mutex
	wires map[string]*wire   // of those who follow, by agent
	asks  map[string]*bucket // how often they may ask for all of it, by agent
	ends  map[string]func()
}

// newOriginal makes a document of values as they were at a sequence.
func newOriginal(ctx context.Context, agentID, swarmID string, epoch, sequence uint64, values map[string]json.RawMessage, log *slog.Logger) (*original, error) {
	self := escaper.Replace(agentID)
	r, err := replica.New(replica.Options{
		Agent: self, State: documentName(swarmID), Epoch: epoch, Limits: documentLimits(), NoForward: true, Logger: log,
		Access: func(who string) replica.Access {
			if who == self {
				return replica.Read | replica.Write
			}
			return replica.Read
		},
	})
	if err != nil {
		return nil, err
	}
	o := &original{r: r, epoch: epoch, wires: make(map[string]*wire), asks: make(map[string]*bucket), ends: make(map[string]func())}
	// In pieces that are no larger than other changes: nobody follows yet.
	piece, size := make(map[string]json.RawMessage), 0
	for key, value := range values {
		piece[key] = value
		if size += len(key) + len(value); size > maxBulk {
			if err := o.write(ctx, 0, piece); err != nil {
				o.close()
				return nil, err
			}
			piece, size = make(map[string]json.RawMessage), 0
		}
	}
	if err := o.write(ctx, sequence, piece); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

// write makes changes to the document, all at once; a value that is empty takes its
// key away.
func (o *original) write(ctx context.Context, sequence uint64, changes map[string]json.RawMessage) error {
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
		return d.Map(aboutRoot).Set("sequence", strconv.FormatUint(sequence, 10)) // all digits, whatever reads it
	})
}

// follow links an agent with the document; anew, if it was linked.
func (o *original) follow(r *router.Router, swarmID, local, remote string) error {
	o.leave(remote)
	w := &wire{r: r, swarm: swarmID, local: local, remote: remote}
	o.mu.Lock()
	o.wires[remote] = w
	o.mu.Unlock()
	end, err := o.r.Attach(w)
	if err != nil {
		return err
	}
	o.ends[remote] = end
	return nil
}

// leave ends an agent's link.
func (o *original) leave(remote string) {
	if end := o.ends[remote]; end != nil {
		end()
	}
	delete(o.ends, remote)
	o.mu.Lock()
	delete(o.wires, remote)
	o.mu.Unlock()
}

// arrived takes a message about the document. It reports false where the sender has
// asked for all of it too often: its replica finds that it was not answered, and asks
// again, when it hears of the next digest.
func (o *original) arrived(ctx context.Context, e *envelope.Envelope) bool {
	o.mu.Lock()
	w := o.wires[e.Sender]
	o.mu.Unlock()
	if w == nil {
		return true
	}
	var m struct {
		Kind replica.Kind `json:"kind"`
	}
	if e.Unmarshal(&m) != nil {
		return true // the channel's, or nobody's
	}
	if m.Kind == replica.KindStep1 && !o.mayAsk(e.Sender) {
		return false
	}
	w.arrived(ctx, e)
	return true
}

func (o *original) mayAsk(who string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.asks[who]
	if b == nil {
		fresh := newBucket(stateBurst, stateRate)
		b = &fresh
		o.asks[who] = b
	}
	return b.take(1)
}

func (o *original) close() { _ = o.r.Close() } // returns nil

// copied is the document at a participant.
type copied struct {
	r *replica.Replica
	w *wire
}

// newCopy follows the document of a leader. changed is called after each change, one
// call after the other.
func newCopy(r *router.Router, local, remote, swarmID string, epoch uint64, changed func(*copied, State)) (*copied, error) {
	self, leader := escaper.Replace(local), escaper.Replace(remote)
	doc, err := replica.New(replica.Options{
		Agent: self, State: documentName(swarmID), Epoch: epoch, Limits: documentLimits(), NoForward: true,
		Access: func(who string) replica.Access {
			if who == leader {
				return replica.Read | replica.Write | replica.Relay
			}
			return replica.Read
		},
	})
	if err != nil {
		return nil, err
	}
	c := &copied{r: doc, w: &wire{r: r, swarm: swarmID, local: local, remote: remote}}
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

// state reads the document; ok is false before it has come.
func (c *copied) state(ctx context.Context) (s State, ok bool) {
	var now State // of a reading that may outlast View, if the replica closes
	err := c.r.View(ctx, func(d *crdt.Doc) {
		text, _ := d.Map(aboutRoot).Get("sequence")
		digits, _ := text.(string)
		now.Sequence, _ = strconv.ParseUint(digits, 10, 64) // 0: it has not come
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

func (c *copied) close() { _ = c.r.Close() } // returns nil
