package agentnet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/bus"
)

// On a hub's bus the hub itself decides who an agent is, makes its inbox and the
// queues, and gives it a connection that can do nothing but what this agent is there
// for (see Permissions). Receive is the hub's side, a Lobby the agents'.

// Arrival is what an agent tells the hub that is to let it in.
type Arrival struct {
	AgentType   string
	ProjectPath string
	// GUID and Secret are those of a Place that the agent had before a restart of the
	// hub; empty for a new agent.
	GUID, Secret string
}

// Place is what a hub gives an agent that it confines.
type Place struct {
	GUID   string
	Slot   string // the key of its identity's record
	Secret string // by which the hub knows it again
	Again  bool   // an agent of its kind had the GUID before
	Desk   string // the subject on which it asks for queues
	Mark   string // of the hub's bus, see Network.Mark; empty where the network is that bus
	// DialCluster finds the cluster that the hub is linked to, where the agent's place is
	// there; on the hub's own bus it goes on while the link is down. Nil where the
	// network is that bus.
	DialCluster func(context.Context) (*bus.Bus, error)
}

// atHub is the place of identities that a hub has given.
const atHub = "hub"

// deskSubject is followed by the network's configuration and the GUID of who asks.
const deskSubject = "global.hub.desk."

// Attendance says whether the holder of a GUID is there, as the hub's bus knows it.
type Attendance int

// The attendances.
const (
	Unknown  Attendance = iota // the hub has not let it in since its start
	Attends                    // its connection is there, or is expected
	Departed                   // its connection was there
)

// Receive gives an agent its identity and its inbox, and says what its connection may
// do; nil Permissions are everything, for a network with a shared inbox, in which NATS
// cannot tell mail from mail. attendance says what the bus knows of a GUID. Calls must
// not overlap until the connection of the one before is expected.
func (n *Network) Receive(ctx context.Context, a Arrival, attendance func(guid string) Attendance) (Place, *Permissions, error) {
	if err := checkName("agent type", a.AgentType); err != nil {
		return Place{}, nil, err
	}
	if a.GUID != "" { // it becomes part of subjects
		guid, err := checkGUID("guid", a.GUID)
		if err != nil {
			return Place{}, nil, err
		}
		a.GUID = guid
	}
	b, err := n.connected()
	if err != nil {
		return Place{}, nil, err
	}
	desk, err := n.openDesk(b)
	if err != nil {
		return Place{}, nil, connectionError(err)
	}
	place, err := n.findPlace(ctx, b, a, attendance)
	if err != nil {
		return Place{}, nil, connectionError(err)
	}
	if err := n.ensureInbox(ctx, b, place.GUID); err != nil {
		return Place{}, nil, connectionError(err)
	}
	place.Desk = desk + "." + place.GUID
	return place, n.letIn(place, a), b.Commit(ctx)
}

// Host makes ready at the cluster, which this Network is at, for an agent that the hub
// has received on its own bus, and says what its connection through the link may do; nil
// is everything, as with Receive. A GUID that somebody else has brought to the cluster,
// by the Place's Mark, is refused, whatever was said on the hub's bus.
func (n *Network) Host(ctx context.Context, place Place, a Arrival) (*Permissions, error) {
	b, err := n.connected()
	if err != nil {
		return nil, err
	}
	desk, err := n.openDesk(b)
	if err != nil {
		return nil, connectionError(err)
	}
	place.Slot, place.Desk = hostedSlot(place.GUID), desk+"."+place.GUID
	if err := n.claimForHub(ctx, b, place); err != nil {
		return nil, connectionError(err)
	}
	if err := n.ensureInbox(ctx, b, place.GUID); err != nil {
		return nil, connectionError(err)
	}
	return n.letIn(place, a), b.Commit(ctx)
}

// claimForHub writes into the identity's record whose hub says who holds it: the one that
// has brought the GUID here before, or else the first, if nobody has it.
func (n *Network) claimForHub(ctx context.Context, b *bus.Bus, place Place) error {
	identity := n.recordOf(place)
	identity.Hub = place.Mark
	record, err := json.Marshal(identity)
	if err != nil {
		return err
	}
	_, err = n.identityCell(place.Slot).change(ctx, b, func(v value) ([]byte, error) {
		if !v.there() {
			return record, n.unknown(ctx, b, place.GUID)
		}
		var before identityRecord
		if json.Unmarshal(v.data, &before) != nil || before.Hub != place.Mark {
			return nil, errReplaced
		}
		return record, nil
	})
	return err
}

// Mark tells the store of this Network's bus from all others, also after a restart. It
// is no secret.
func (n *Network) Mark(ctx context.Context) (string, error) {
	b, err := n.connected()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, itemStream)
	if err != nil {
		return "", connectionError(err)
	}
	return digest(n.cfg.Hostname, n.cfg.Username, fmt.Sprint(stream.CachedInfo().Created.UnixNano())), nil
}

// unknown returns an error if somebody has a GUID.
func (n *Network) unknown(ctx context.Context, b *bus.Bus, guid string) error {
	for _, taken := range []cell{n.knownCell(guid), n.identityCell("fixed." + guid), n.entryCell(guid)} {
		v, err := taken.read(ctx, b)
		if err != nil {
			return err
		}
		if v.there() {
			return errReplaced
		}
	}
	return nil
}

// hostedSlot is the key of the identity's record, at the cluster, of an agent whose hub
// says who it is.
func hostedSlot(guid string) string { return "hub." + guid }

// letIn remembers whose an agent is that has a place here, and says what its connection
// may do.
func (n *Network) letIn(place Place, a Arrival) *Permissions {
	there := n.cfg
	there.ProjectPath = a.ProjectPath
	kind, owner := (&Network{cfg: there}).allowances(a.AgentType)
	n.guests.note(place.GUID, owner)
	if n.inboxStream(place.GUID) == sharedInbox {
		return nil
	}
	p := Confined{GUID: place.GUID, Bucket: n.cfg.Bucket}.Permissions()
	p.Publish = append(p.Publish, place.Desk, place.Desk+pulseToken, bucketKeys+n.identityBucket()+"."+place.Slot,
		bucketKeys+n.limitsBucket()+"."+kind+".*", bucketKeys+n.limitsBucket()+"."+owner+".*",
		// No other consumer has the name of the workers'.
		queueSubject+"*", "$JS.API.CONSUMER.INFO.*."+queueGroup, "$JS.API.CONSUMER.MSG.NEXT.*."+queueGroup, "$JS.ACK.*."+queueGroup+".>")
	p.Subscribe = append(p.Subscribe, ClusterInboxPrefix(place.GUID)+".>")
	return &p
}

// findPlace takes the first slot of the agent's kind that nobody lives in, or the one
// that the agent had.
func (n *Network) findPlace(ctx context.Context, b *bus.Bus, a Arrival, attendance func(string) Attendance) (Place, error) {
	key := digest(n.cfg.Hostname, a.ProjectPath, a.AgentType)
	for slot := range maxAgentsOnThisHost {
		place := Place{GUID: uuid.NewString(), Slot: fmt.Sprintf("slot.%s.%d", key, slot), Secret: rand.Text()}
		c := cell{bucketStream + n.identityBucket(), bucketKeys + n.identityBucket() + "." + place.Slot}
		v, err := c.read(ctx, b)
		if err != nil {
			return Place{}, err
		}
		var before identityRecord
		if v.there() && json.Unmarshal(v.data, &before) == nil && uuid.Validate(before.GUID) == nil {
			if a.GUID == before.GUID {
				return n.comeBack(place, before, a)
			}
			lives, err := n.livesHere(ctx, b, before, attendance)
			if err != nil {
				return Place{}, err
			}
			if lives || a.GUID != "" {
				continue
			}
			place.GUID, place.Again = before.GUID, true
		} else if a.GUID != "" { // the bus has lost it
			if err := n.unknown(ctx, b, a.GUID); err != nil {
				return Place{}, err
			}
			place.GUID, place.Secret, place.Again = a.GUID, a.Secret, true
		}
		data, err := json.Marshal(n.recordOf(place))
		if err != nil {
			return Place{}, err
		}
		if _, err := c.write(ctx, b, data, v.revision); errors.Is(err, errConflict) {
			continue // an agent of a project that the hub serves itself was quicker
		} else if err != nil {
			return Place{}, err
		}
		return place, nil
	}
	return Place{}, &Error{Code: ConflictError,
		Message: fmt.Sprintf("There are already %d agents of the type %s in this project on this computer.", maxAgentsOnThisHost, quote(a.AgentType)),
		Remedy:  "End some of them, or use another agent type."}
}

// comeBack gives an agent the place that it proves to be its own.
func (n *Network) comeBack(place Place, before identityRecord, a Arrival) (Place, error) {
	if before.Holder != digest(a.Secret) {
		return Place{}, errReplaced
	}
	place.GUID, place.Secret, place.Again = a.GUID, a.Secret, true
	return place, nil
}

// recordOf is the identity's record of a place. Everybody may read it, so it has no
// more than a hash of the secret.
func (n *Network) recordOf(p Place) identityRecord {
	return identityRecord{GUID: p.GUID, Holder: digest(p.Secret), Since: timestamp(n.clock.now()), Place: atHub}
}

func (n *Network) livesHere(ctx context.Context, b *bus.Bus, r identityRecord, attendance func(string) Attendance) (bool, error) {
	if r.Place == atHub && !r.Released {
		switch attendance(r.GUID) {
		case Attends:
			return true, nil
		case Departed:
			return false, nil
		}
	}
	return n.holds(ctx, b, r, false)
}

// placed is the identity of an agent that a hub has let in.
func (n *Network) placed(p *Place) *identity {
	record, slot := n.recordOf(*p), p.Slot
	if p.DialCluster != nil {
		slot, record.Hub = hostedSlot(p.GUID), p.Mark
	}
	return &identity{guid: p.GUID, cell: n.identityCell(slot),
		holder: record.Holder, record: record, written: n.clock.now(), reused: p.Again}
}

// confined says that the server lets this process make neither streams nor consumers.
func (n *Network) confined() bool { return n.cfg.GUID != "" || n.cfg.Place != nil }

// deskAnswer is what the hub says to who asks for a queue.
type deskAnswer struct {
	Code    Code   `json:"category,omitempty"` // of why there is none
	Message string `json:"message,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
}

// openDesk makes queues for confined agents from now on, and returns the subject
// without who asks.
func (n *Network) openDesk(b *bus.Bus) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.desk != "" {
		return n.desk, nil
	}
	c := n.cfg // the same after a restart
	desk := deskSubject + digest(fmt.Sprint(c.Bucket, c.Inboxes, c.RegistryTTL, c.AckTimeout, c.MaxAttempts, c.DeadLetterTTL))
	_, err := b.Conn().Subscribe(desk+".*", func(m *nats.Msg) { // ends with the connection
		guid := m.Subject[len(desk)+1:]
		if !strings.HasPrefix(m.Reply, InboxPrefix(guid)+".") && !strings.HasPrefix(m.Reply, ClusterInboxPrefix(guid)+".") {
			return // what we say must not get where who asks may not write
		}
		ctx, cancel := context.WithTimeout(n.ctx, 2*requestTimeout)
		defer cancel()
		n.queue.forget() // its lease is to be as the last who asks has it
		err := n.makeQueue(ctx, string(m.Data), n.guests.owner(guid))
		var answer deskAnswer
		if e, ok := errors.AsType[*Error](err); ok {
			answer = deskAnswer{e.Code, e.Message, e.Remedy}
		}
		data, err := json.Marshal(answer)
		if err == nil {
			err = m.Respond(data)
		}
		if err != nil {
			n.log.Warn("an agent that asked for a queue was not answered", "guid", guid, "error", err)
		}
	})
	if err == nil {
		_, err = b.Conn().Subscribe(desk+".*"+pulseToken, func(m *nats.Msg) { n.answerPulse(b, desk, m) })
	}
	if err != nil {
		return "", err
	}
	n.desk = desk
	return desk, b.Conn().Flush()
}

// maxGuests bounds what is remembered of guests.
const maxGuests = 10_000

// guests are the owners of the agents that a hub has let in, by GUID: who is confined
// cannot be asked.
type guests struct {
	mu     sync.Mutex
	owners map[string]string
}

func (g *guests) note(guid, owner string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.owners == nil || len(g.owners) >= maxGuests {
		g.owners = map[string]string{}
	}
	g.owners[guid] = owner
}

// owner is the GUID itself where the guest is forgotten.
func (g *guests) owner(guid string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return or(g.owners[guid], guid)
}

// askForQueue has the hub make a queue.
func (n *Network) askForQueue(ctx context.Context, b *bus.Bus, capability string) error {
	m, err := b.Conn().RequestWithContext(ctx, n.cfg.Place.Desk, []byte(capability))
	if err != nil {
		return err
	}
	var answer deskAnswer
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return err
	}
	if answer.Code != "" {
		return &Error{Code: answer.Code, Message: answer.Message, Remedy: answer.Remedy}
	}
	return nil
}

// A heartbeat that changes nothing but the time is a pulse: the agent tells the hub's
// desk that it lives, and the hub writes the time into its entry. It answers only where
// it cannot, and then the agent writes its entry itself. So nothing is sent to an agent
// that is idle: to send takes a stack of 32 KiB of its connection, which the server
// keeps until the garbage was collected several times.
const pulseToken = ".pulse"

// pulseAnswers is where an agent is told that it has to write its entry itself.
func (a *Agent) pulseAnswers() string { return InboxPrefix(a.guid) + pulseToken }

// pulse is a heartbeat by way of the hub. It returns false if the agent has to write its
// entry itself: there is something else to say, the identity's record is due, or there
// is no hub to tell.
func (a *Agent) pulse(b *bus.Bus) bool {
	select {
	case <-a.turn:
	default:
		return false // it is being written
	}
	defer func() { a.turn <- struct{}{} }()
	a.mu.Lock()
	unsaid := a.unsaid
	a.mu.Unlock()
	return !unsaid && !a.identity.due(a.net) &&
		b.Conn().PublishRequest(a.net.cfg.Place.Desk+pulseToken, a.pulseAnswers(), nil) == nil
}

// answerPulse is the hub's side of a pulse.
func (n *Network) answerPulse(b *bus.Bus, desk string, m *nats.Msg) {
	guid := strings.TrimSuffix(m.Subject[len(desk)+1:], pulseToken)
	ctx, cancel := context.WithTimeout(n.ctx, requestTimeout)
	defer cancel()
	err := n.notePulse(ctx, b, guid)
	if err == nil || !strings.HasPrefix(m.Reply, InboxPrefix(guid)+".") { // as at the desk
		return
	}
	n.log.Debug("an agent is to write its entry itself", "guid", guid, "reason", err)
	if err := m.Respond(nil); err != nil && n.ctx.Err() == nil {
		n.log.Warn("an agent whose heartbeat could not be noted was not told", "guid", guid, "error", err)
	}
}

// notePulse writes the time of now into an agent's entry.
func (n *Network) notePulse(ctx context.Context, b *bus.Bus, guid string) error {
	_, err := n.entryCell(guid).change(ctx, b, func(v value) ([]byte, error) {
		if !v.there() {
			return nil, errors.New("there is no entry")
		}
		from, to := heartbeatIn(v.data)
		if from == to {
			return nil, errors.New("the entry has no time of a heartbeat")
		}
		return slices.Concat(v.data[:from], []byte(timestamp(n.clock.now())), v.data[to:]), nil
	})
	return err
}
