package daemon

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/chat"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/swarm"
)

// observed is what the hub remembers of what it observes, for its events. Its zero value is ready.
type observed struct {
	network sync.Once     // the first agent joins the agents' network
	joined  chan struct{} // closed by then

	mu        sync.Mutex
	messages  recent[struct{}]       // ids of messages: a sender may repeat one
	items     recent[work.ItemState] // by task id
	documents map[string]bool        // those with an event in the last documentPause; true: changed again
}

// recent remembers the latest values by id, at most maxRecent of them.
type recent[V any] struct {
	values map[string]V
	order  []string
}

const maxRecent = 2048

// put stores a value and returns the one before.
func (r *recent[V]) put(id string, v V) (before V, known bool) {
	before, known = r.values[id]
	if r.values == nil {
		r.values = make(map[string]V)
	}
	r.values[id] = v
	if known {
		return before, true
	}
	if r.order = append(r.order, id); len(r.order) > maxRecent {
		delete(r.values, r.order[0])
		r.order = slices.Delete(r.order, 0, 1)
	}
	return before, false
}

// watchedSubjects are the subjects of other accounts that the hub watches for its events.
func (d *daemon) watchedSubjects(namespace string) []string {
	if namespace == "" {
		d.observed.network.Do(func() { close(d.observed.joined) })
		return []string{store.InboxSubject + "*", claimSubjects}
	}
	return []string{chat.Subjects(namespace)}
}

// claimSubjects are those of the claims of files: the keys of their bucket.
var claimSubjects = store.Config{Bucket: store.DefaultBucket}.ClaimsKey("*").Subject

// watched records a message of a channel, mail, or a change of claims. What has another format is not of these.
func (d *daemon) watched(namespace string, m *nats.Msg) {
	var e events.Event
	var id string
	repository, claimed := strings.CutPrefix(m.Subject, strings.TrimSuffix(claimSubjects, "*"))
	switch {
	case namespace != "":
		e, id = channelEvent(namespace, m)
	case claimed:
		e = claimEvent(repository, m)
	default:
		if e, id = mailEvent(m); e.Kind != "" {
			to, _ := e.Data["to"].(string)
			if _, handle := d.sessionNames(to); handle != "" {
				e.Data["toHandle"] = handle
			}
		}
	}
	if e.Kind == "" || id != "" && d.repeated(id) {
		return
	}
	d.events.Publish(e)
}

// repeated reports whether a message with this id was observed before.
func (d *daemon) repeated(id string) bool {
	d.observed.mu.Lock()
	defer d.observed.mu.Unlock()
	_, known := d.observed.messages.put(id, struct{}{})
	return known
}

func channelEvent(namespace string, m *nats.Msg) (e events.Event, id string) {
	channel, msg, err := chat.Published(namespace, m.Subject, m.Header, m.Data)
	if err != nil {
		return events.Event{}, ""
	}
	return events.Event{Kind: events.ChannelMessage, Project: namespace, Channel: channel,
		Data: map[string]any{"id": msg.ID, "from": msg.Handle, "bytes": len(msg.Text)}}, msg.ID
}

// claimEvent is of a change of the claims of a repository's files.
func claimEvent(repository string, m *nats.Msg) events.Event {
	name, n := claims.Stored(m.Data)
	e := events.Event{Kind: events.ClaimChanged, Subject: repository, Data: map[string]any{"claims": n}}
	if name != "" {
		e.Data["repository"] = name
	}
	return e
}

func mailEvent(m *nats.Msg) (e events.Event, id string) {
	msg, err := mail.Decode(m.Data, m.Header)
	if err != nil {
		return events.Event{}, ""
	}
	return events.Event{Kind: events.MailSent, Subject: msg.ID, Data: map[string]any{
		"from": msg.SenderGUID, "fromHandle": msg.SenderHandle, "to": msg.Recipient, "type": string(msg.Type), "bytes": len(msg.Text),
	}}, msg.ID + " to " + msg.Recipient
}

// watchWork records the states of the work items on this hub's bus, once an agent has joined the agents' network.
func (d *daemon) watchWork(ctx context.Context) {
	since := time.Now()
	select {
	case <-ctx.Done():
		return
	case <-d.observed.joined:
	}
	retry := wait.Backoff{First: time.Second, Most: time.Minute}
	for ctx.Err() == nil {
		if err := d.followWork(ctx, since); err != nil && ctx.Err() == nil {
			d.log.Debug("work items cannot be followed yet", "error", err)
		}
		if !retry.Pause(ctx) {
			return
		}
	}
}

// streamPoll bounds the pause between two looks for the stream of work items, which the first agent creates after it
// has joined: of each item the stream keeps the latest state only.
const streamPoll = time.Second

// followWork records the states of work items from a time on, until ctx ends. It blocks while no agent has created the
// stream.
func (d *daemon) followWork(ctx context.Context, since time.Time) error {
	b, err := d.ownNetwork(ctx, "parley-hub events")
	if err != nil {
		return err
	}
	defer func() { _ = within(time.Second, b.Close) }() // nothing is written
	stream, err := b.JetStream().Stream(ctx, store.ItemStream)
	for retry := (wait.Backoff{First: 20 * time.Millisecond, Most: streamPoll}); errors.Is(err, jetstream.ErrStreamNotFound) && retry.Pause(ctx); {
		stream, err = b.JetStream().Stream(ctx, store.ItemStream)
	}
	if err != nil {
		return err
	}
	c, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{store.ItemSubject + "*"}, DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since,
	})
	if err != nil {
		return err
	}
	running, err := c.Consume(func(m jetstream.Msg) { d.workChanged(m.Data()) })
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-running.Closed(): // the stream was removed
	}
	running.Stop()
	<-running.Closed()
	return nil
}

func (d *daemon) workChanged(record []byte) {
	x, err := work.Decode(record)
	if err != nil {
		return
	}
	d.observed.mu.Lock()
	before, _ := d.observed.items.put(x.TaskID, x.State)
	d.observed.mu.Unlock()
	if before == x.State && x.State != work.Claimed { // a repair; claims may pass to another worker
		return
	}
	d.events.Publish(events.Event{Kind: events.WorkState, Subject: x.TaskID, Data: map[string]any{
		"state": string(x.State), "queue": x.Capability, "from": x.SubmitterHandle, "holder": x.HolderHandle, "attempts": x.Attempts,
		"reason": string(x.FailureReason),
	}})
	switch {
	case x.State == work.Dead:
		d.events.Publish(events.Event{Kind: events.DeadLetterAdded, Subject: x.TaskID,
			Data: map[string]any{"queue": x.Capability, "reason": string(x.FailureReason), "attempts": x.Attempts}})
	case before == work.Dead, x.State == work.Discarded && x.FailureReason != "": // others were withdrawn
		d.events.Publish(events.Event{Kind: events.DeadLetterRemoved, Subject: x.TaskID,
			Data: map[string]any{"queue": x.Capability, "state": string(x.State)}})
	}
}

// swarmChanged records a change of a swarm that this hub leads.
func (d *daemon) swarmChanged(c swarm.Change) {
	if c.SubTask == "" {
		d.events.Publish(events.Event{Kind: events.SwarmState, Subject: c.Swarm, Data: map[string]any{"state": string(c.Status)}})
		return
	}
	d.events.Publish(events.Event{Kind: events.SwarmSubTask, Agent: c.Agent, Subject: c.Swarm,
		Data: map[string]any{"subTask": c.SubTask, "state": string(c.Result)}})
}

// documentPause is the shortest time between two events of one document: somebody who types changes it many times a
// second.
const documentPause = time.Second

// documentChanged records a change of a document, and those of the next documentPause as one.
func (d *daemon) documentChanged(name string) {
	o := &d.observed
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, pausing := o.documents[name]; pausing {
		o.documents[name] = true
		return
	}
	if o.documents == nil {
		o.documents = make(map[string]bool)
	}
	o.documents[name] = false
	d.events.Publish(events.Event{Kind: events.DocumentChanged, Subject: name})
	time.AfterFunc(documentPause, func() {
		o.mu.Lock()
		again := o.documents[name]
		delete(o.documents, name)
		o.mu.Unlock()
		if again {
			d.documentChanged(name)
		}
	})
}

// peersInterval is how often the hub checks which of its peers send messages.
const peersInterval = 5 * time.Second

// watchPeers records when a paired hub connects or is lost, until ctx ends.
func (d *daemon) watchPeers(ctx context.Context) {
	connected := map[string]bool{}
	for {
		now := map[string]bool{}
		for _, p := range d.peers.Status() {
			now[p.Name] = len(p.Via) > 0
		}
		for name := range connected {
			if _, paired := now[name]; !paired {
				now[name] = false
			}
		}
		for _, name := range slices.Sorted(maps.Keys(now)) {
			if now[name] == connected[name] {
				continue
			}
			kind := events.PeerDisconnected
			if now[name] {
				kind = events.PeerConnected
			}
			d.events.Publish(events.Event{Kind: kind, Subject: name})
		}
		connected = now
		if !wait.Pause(ctx, peersInterval) {
			return
		}
	}
}
