package agentnet

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// A hub can admit agents one by one: it decides which identity each of them has, makes its
// inbox and its queues, and gives it a connection that is confined to the agent's own
// subjects. Admit and AdmitAtCluster are the hub's side, Memberships is the agents'.

// BusAdmission is what a hub gives an agent for one bus.
type BusAdmission = store.Admission

// Admission is what a hub gives an agent that it admits and confines.
type Admission struct {
	BusAdmission
	// DialCluster connects to the cluster that the hub is linked to, where that is the
	// agents' network; nil where the network is the hub's own bus.
	DialCluster func(context.Context) (*bus.Bus, error)
}

// Admit gives an agent its identity and its inbox, and returns what its connection may do. nil Permissions are
// everything, for a network with a shared inbox, in which NATS cannot confine agents to their mail. state reports
// the connection state of a GUID. Calls must not overlap until the connection of the one before is expected.
func (n *Network) Admit(ctx context.Context, r registry.AdmissionRequest, state func(guid string) registry.ConnectionState) (Admission, *Permissions, error) {
	r, err := r.Check()
	if err != nil {
		return Admission{}, nil, err
	}
	b, err := n.main.store.Connected()
	if err != nil {
		return Admission{}, nil, err
	}
	adm, err := n.main.registry.Assign(ctx, b, r, state)
	if err != nil {
		return Admission{}, nil, store.AsError(err)
	}
	if adm.LateInbox = r.LateInbox; adm.LateInbox {
		err = n.AwaitFirstMail()
	}
	if err != nil {
		return Admission{}, nil, store.AsError(err)
	}
	may, err := n.admit(ctx, b, &adm, r)
	return Admission{BusAdmission: adm}, may.onHub(), err
}

// Permissions returns what the connection of an agent that was admitted may do, as Admit does, by the key of its identity's record. It
// does not block.
func (n *Network) Permissions(guid, slot string) *Permissions { return n.confine(guid, slot).onHub() }

// onHub adds what an agent may do on a hub's own bus only.
func (p *Permissions) onHub() *Permissions {
	if p != nil {
		p.Publish = append(p.Publish, anyInfo)
	}
	return p
}

// anyInfo is the description of any stream, with the number of its messages. Where an account has only the network, it says no more of
// others' inboxes than the receipts, which every agent may read; the server's tree of permissions is smaller by a tenth.
const anyInfo = "$JS.API.STREAM.INFO.*"

// AdmitAtCluster admits an agent to the cluster of this Network that the hub has admitted on its own bus, and
// returns what its connection through the link may do; nil is everything, as with Admit. A GUID that another hub, by
// Admission.HubID, has brought to the cluster is refused.
func (n *Network) AdmitAtCluster(ctx context.Context, adm Admission, r registry.AdmissionRequest) (*Permissions, error) {
	b, err := n.main.store.Connected()
	if err != nil {
		return nil, err
	}
	adm.Slot, adm.LateInbox = registry.HubSlot(adm.GUID), false
	if err := n.main.registry.ClaimForHub(ctx, b, adm.BusAdmission); err != nil {
		return nil, store.AsError(err)
	}
	may, err := n.admit(ctx, b, &adm.BusAdmission, r)
	if may != nil {
		may.Subscribe = append(may.Subscribe, store.ClusterInboxPrefix(adm.GUID)+".>")
	}
	return may, err
}

// admit makes an agent's inbox unless it may be late, sets its control subject, and returns its permissions.
func (n *Network) admit(ctx context.Context, b *bus.Bus, adm *store.Admission, r registry.AdmissionRequest) (*Permissions, error) {
	control, err := n.control.open(b, n)
	if n.main.mail.ForgetInbox(adm.GUID); err == nil && !adm.LateInbox {
		err = n.main.mail.EnsureInbox(ctx, b, adm.GUID)
	}
	if err != nil {
		return nil, store.AsError(err)
	}
	adm.Control = control + "." + adm.GUID
	cfg := n.cfg.BusConfig
	cfg.ProjectPath = r.ProjectPath
	n.control.setOwner(adm.GUID, store.Owner(cfg))
	return n.confine(adm.GUID, adm.Slot), b.Commit(ctx)
}

// confine returns the permissions of an agent that was admitted; nil is everything.
func (n *Network) confine(guid, slot string) *Permissions {
	if n.main.mail.Inboxes() == store.InboxesShared {
		return nil
	}
	cfg := n.cfg.BusConfig
	p := Confined{GUID: guid, Bucket: cfg.Bucket, slot: slot}.Permissions()
	control, owner := n.control.of(guid)
	p.Publish = append(p.Publish, control, control+registry.HeartbeatToken, store.BucketKeys+cfg.LimitsBucket()+"."+owner+".*",
		// Only the workers' consumers have this name.
		store.QueueSubject+"*", "$JS.API.CONSUMER.INFO.*."+store.QueueGroup, "$JS.API.CONSUMER.MSG.NEXT.*."+store.QueueGroup, "$JS.ACK.*."+store.QueueGroup+".>")
	return &p
}

// AwaitFirstMail is for a Network of a hub on its own bus: from now on it makes the inboxes of agents with their first mail.
func (n *Network) AwaitFirstMail() error {
	b, err := n.main.store.Connected()
	if err != nil {
		return err
	}
	c := &n.control
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.awaitsMail {
		return nil
	}
	if err := n.main.mail.AwaitFirst(n.main.store.Context(), b, n.arrived); err != nil {
		return store.AsError(err)
	}
	c.awaitsMail = true
	return store.AsError(b.Conn().Flush())
}

func (n *Network) arrived(guid string) {
	if n.cfg.MailArrived != nil {
		n.cfg.MailArrived(guid)
	}
}

// Heartbeat is a heartbeat of an agent that was admitted to the hub's own bus, and whose connection rests. After an error the agent
// has to write its entry itself.
func (n *Network) Heartbeat(ctx context.Context, guid string) error {
	return n.main.registry.Heartbeat(ctx, guid)
}

// StoreID identifies the store of this Network's bus, also after a restart. It is no secret.
func (n *Network) StoreID(ctx context.Context) (string, error) {
	b, err := n.main.store.Connected()
	if err != nil {
		return "", err
	}
	return n.main.store.ID(ctx, b)
}

// controlSubject is followed by a digest of the network's configuration and the GUID of the agent that publishes.
const controlSubject = "global.hub.desk."

// maxOwners bounds the admitted agents whose owner is remembered.
const maxOwners = 10_000

// control serves the requests of admitted agents to their hub.
type control struct {
	mu      sync.Mutex
	subject string            // without the GUID; empty until it is served
	owners  map[string]string // the owner keys of the admitted agents, by GUID

	awaitsMail bool // see AwaitFirstMail
}

// open serves queue requests and heartbeats from now on, until the connection ends, and
// returns the subject without the GUID. It is the same after a restart.
func (c *control) open(b *bus.Bus, n *Network) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.subject != "" {
		return c.subject, nil
	}
	cfg, ctx := n.cfg, n.main.store.Context()
	subject := controlSubject + store.Digest(fmt.Sprint(cfg.Bucket, cfg.Inboxes, cfg.RegistryTTL, cfg.AckTimeout, cfg.MaxAttempts, cfg.DeadLetterTTL))
	_, err := b.Conn().Subscribe(subject+".*", func(m *nats.Msg) {
		guid := m.Subject[len(subject)+1:]
		if !strings.HasPrefix(m.Reply, store.InboxPrefix(guid)+".") && !strings.HasPrefix(m.Reply, store.ClusterInboxPrefix(guid)+".") {
			return // the agent may not publish elsewhere, so neither does the hub for it
		}
		answer, err := n.main.work.AnswerQueueRequest(ctx, string(m.Data), c.owner(guid))
		if err == nil {
			err = m.Respond(answer)
		}
		if err != nil {
			n.log.Warn("a request for a queue was not answered", "guid", guid, "error", err)
		}
	})
	if err == nil {
		_, err = b.Conn().Subscribe(subject+".*"+registry.HeartbeatToken, func(m *nats.Msg) {
			guid := strings.TrimSuffix(m.Subject[len(subject)+1:], registry.HeartbeatToken)
			n.main.registry.RelayHeartbeat(ctx, b, guid, m)
		})
	}
	if err != nil {
		return "", err
	}
	c.subject = subject
	return subject, b.Conn().Flush()
}

func (c *control) setOwner(guid, owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owners == nil || len(c.owners) >= maxOwners {
		c.owners = map[string]string{}
	}
	c.owners[guid] = owner
}

// of returns the control subject and the owner key of an agent that was admitted.
func (c *control) of(guid string) (subject, owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.subject + "." + guid, cmp.Or(c.owners[guid], guid)
}

// owner returns the owner key of an agent, its GUID where that is not remembered.
func (c *control) owner(guid string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.owners[guid], guid)
}
