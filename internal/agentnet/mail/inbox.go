package mail

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// The limits of an inbox are those of a project's channel. A full channel drops its oldest message; a full inbox
// refuses new ones, so nothing that was accepted is lost. Mail that was read makes room.
const (
	inboxMaxMessages = 10000
	inboxMaxBytes    = 10 << 20
	inboxMaxAge      = 24 * time.Hour
)

// Service is the mail on one bus. It is safe for concurrent use once the Store is started.
type Service struct {
	reg *registry.Registry
	cfg store.Config

	mu      sync.Mutex
	inboxes store.Inboxes // as the server has them

	watcher watcher
	first   firstMail
}

// New returns the mail of a registry's bus. It adds to what the Store prepares, and creates
// the inbox of every agent that is entered, unless its hub does that with the agent's first mail.
func New(reg *registry.Registry) *Service {
	s := &Service{reg: reg, cfg: reg.Config()}
	reg.Prepare(func(ctx context.Context, b *bus.Bus) error {
		if err := reg.EnsureStreams(ctx, b, jetstream.StreamConfig{
			Name:              store.MailStream,
			Description:       "Receipts of mail, and how far it was read",
			Subjects:          []string{store.ReceiptSubject + ">", store.ReadSubject + "*"},
			MaxMsgsPerSubject: 1,
			MaxMsgs:           1_000_000,
			MaxAge:            2 * inboxMaxAge,
			AllowDirect:       true,
		}); err != nil {
			return err
		}
		return s.findInboxes(ctx, b)
	})
	if !s.cfg.Late() {
		reg.OnEnter(s.EnsureInbox)
	}
	return s
}

func inboxConfig(name, subject string) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{
		Name:        name,
		Description: "Mail of agents",
		Subjects:    []string{subject},
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardNew,
		Storage:     jetstream.FileStorage,
		MaxAge:      inboxMaxAge,
		Duplicates:  inboxMaxAge, // a message that is sent again is stored once
		AllowDirect: true,
	}
	if name == store.SharedInbox {
		cfg.MaxMsgsPerSubject, cfg.DiscardNewPerSubject = inboxMaxMessages, true
		return cfg
	}
	cfg.MaxMsgs, cfg.MaxBytes = inboxMaxMessages, inboxMaxBytes
	return cfg
}

// findInboxes determines how the server stores mail. It creates the shared stream where that
// is configured and the server has no inboxes yet.
func (s *Service) findInboxes(ctx context.Context, b *bus.Bus) error {
	ctx, cancel := context.WithTimeout(ctx, 2*store.RequestTimeout)
	defer cancel()
	_, err := b.JetStream().Stream(ctx, store.SharedInbox)
	switch {
	case err == nil:
		s.setInboxes(store.InboxesShared)
		return nil
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return store.AsError(err)
	}
	s.setInboxes(store.InboxesPerAgent)
	if s.cfg.Inboxes != store.InboxesShared || s.cfg.Confined() {
		return nil
	}
	if err := s.reg.MakeStream(ctx, b, inboxConfig(store.SharedInbox, store.InboxSubject+"*")); err != nil {
		if isOverlap(err) {
			s.reg.Log().Warn("this network has an inbox for each agent already; the configured shared inbox is not used")
			return nil
		}
		return err
	}
	s.setInboxes(store.InboxesShared)
	return nil
}

func isOverlap(err error) bool {
	const subjectOverlap = 10065
	return store.IsAPIError(err, subjectOverlap)
}

func (s *Service) setInboxes(i store.Inboxes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inboxes != i {
		s.inboxes = i
		s.reg.Log().Debug("the network's inboxes", "kind", i)
	}
}

// Inboxes returns how the server stores mail; "" before it is known.
func (s *Service) Inboxes() store.Inboxes {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inboxes
}

// inboxStream is the stream of an agent's mail.
func (s *Service) inboxStream(guid string) string {
	if s.Inboxes() == store.InboxesShared {
		return store.SharedInbox
	}
	return store.InboxStreamPrefix + guid
}

// EnsureInbox creates an agent's inbox unless it exists.
func (s *Service) EnsureInbox(ctx context.Context, b *bus.Bus, guid string) error {
	stream := s.inboxStream(guid)
	if stream == store.SharedInbox {
		return nil
	}
	if err := s.dropMarks(ctx, b, guid); err != nil {
		return store.AsError(err)
	}
	err := s.reg.EnsureStreams(ctx, b, inboxConfig(stream, store.InboxSubject+guid))
	if isOverlap(err) { // another process has created the shared stream meanwhile
		return s.findInboxes(ctx, b)
	}
	return err
}

// dropMarks clears the read marks of a former inbox: the numbers of messages begin again in a new inbox, and in one whose end
// a power cut has taken.
func (s *Service) dropMarks(ctx context.Context, b *bus.Bus, guid string) error {
	if s.cfg.Confined() {
		return nil
	}
	key := store.Key{Stream: store.MailStream, Subject: store.ReadSubject + guid}
	v, err := key.Get(ctx, b) // before the inbox: a reader may mark later mail meanwhile
	if err != nil || !v.Exists() {
		return err
	}
	var marks readMarks
	if err := json.Unmarshal(v.Data, &marks); err != nil {
		return err
	}
	again, err := s.isNew(ctx, b, guid, marks.Floor)
	if err != nil || !again {
		return err
	}
	_, err = key.Put(ctx, b, readMarks{Reads: marks.Reads}, v.Revision)
	return err
}

// use returns how much of an inbox's limits is used, from 0 to 1.
func (s *Service) use(ctx context.Context, b *bus.Bus, guid string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, store.RequestTimeout)
	defer cancel()
	name := s.inboxStream(guid)
	stream, err := b.JetStream().Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) { // it was removed
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if name != store.SharedInbox {
		state := stream.CachedInfo().State
		return max(float64(state.Msgs)/inboxMaxMessages, float64(state.Bytes)/inboxMaxBytes), nil
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(store.InboxSubject+guid))
	if err != nil {
		return 0, err
	}
	return float64(info.State.Subjects[store.InboxSubject+guid]) / inboxMaxMessages, nil
}

// trim removes an agent's read mail.
func (s *Service) trim(ctx context.Context, b *bus.Bus, guid string, floor uint64) error {
	ctx, cancel := context.WithTimeout(ctx, store.RequestTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, s.inboxStream(guid))
	if err != nil {
		return err
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(store.InboxSubject+guid), jetstream.WithPurgeSequence(floor+1))
}

// isNew reports whether an inbox does not have the message up to which it was read: it is gone, was created again, or has lost its end.
func (s *Service) isNew(ctx context.Context, b *bus.Bus, guid string, floor uint64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, store.RequestTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, s.inboxStream(guid))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	info := stream.CachedInfo()
	return info.State.LastSeq < floor && isLeader(info.Cluster), nil
}

// electionTimeout is how long replicas of a stream at least miss their leader before they elect another one.
const electionTimeout = 4 * time.Second

// isLeader reports whether the server that has described a stream is its leader, or the stream's only one. One that was suspended or cut off
// also answers, until it knows of another leader, and lacks what that has stored. Replicas answer a leader each second.
func isLeader(c *jetstream.ClusterInfo) bool {
	if c == nil || len(c.Replicas) == 0 {
		return true
	}
	if c.Leader == "" {
		return false
	}
	heard := 1
	for _, r := range c.Replicas {
		if r.Active > 0 && r.Active < electionTimeout { // 0 if it was never heard
			heard++
		}
	}
	return 2*heard > 1+len(c.Replicas)
}

// lastSequence returns the number of the last message in the stream of an inbox.
func (s *Service) lastSequence(ctx context.Context, b *bus.Bus, guid string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, store.RequestTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, s.inboxStream(guid))
	if err != nil {
		return 0, err
	}
	return stream.CachedInfo().State.LastSeq, nil
}

// IsFull reports whether a server refused mail because the stream is full.
func IsFull(err error) bool {
	const storeFailed = 10077
	return store.IsAPIError(err, storeFailed) && strings.Contains(err.Error(), "exceeded")
}

// RemoveInboxes removes the empty inboxes of agents that the registry has forgotten.
func (s *Service) RemoveInboxes(ctx context.Context, b *bus.Bus) (removed int, err error) {
	streams := b.JetStream().ListStreams(ctx, jetstream.WithStreamListSubject(store.InboxSubject+"*"))
	var empty []string
	for info := range streams.Info() {
		guid, ok := strings.CutPrefix(info.Config.Name, store.InboxStreamPrefix)
		if ok && info.State.Msgs == 0 && s.reg.Now().Sub(info.Created) > s.cfg.RegistryTTL {
			empty = append(empty, guid)
		}
	}
	if err := streams.Err(); err != nil {
		return 0, err
	}
	for _, guid := range empty {
		if _, err := s.reg.Addressee(ctx, b, guid); !store.IsNotFound(err) {
			continue
		}
		if err := b.JetStream().DeleteStream(ctx, store.InboxStreamPrefix+guid); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// Box is an agent's access to the mail on one bus. It is safe for concurrent use.
type Box struct {
	svc     *Service
	agent   *registry.Agent
	arrived wait.Signal

	taking *semaphore.Weighted // of 1: Take and Acknowledge

	delivering, acknowledging, noting wait.Single // the jobs of Answered, and noteWaiting

	// The holder of taking may use these.
	began bool   // mail was taken
	old   uint64 // the last message of the inbox by then

	mu      sync.Mutex
	pending pendingReads
	takes   takes
	entered *entered // nil while the agent is not
}

// Box returns the box of an agent that is not started yet. While the agent is active the box watches its inbox.
func (s *Service) Box(agent *registry.Agent) *Box {
	x := &Box{svc: s, agent: agent, taking: semaphore.NewWeighted(1)}
	agent.OnEntered(x.enter)
	agent.OnLeave(func(*store.Error) { x.arrived.Send() })
	return x
}

// Changed returns a channel that is closed when there may be new mail.
func (x *Box) Changed() <-chan struct{} { return x.arrived.Wait() }

// Box has no goroutine while nothing happens: a hub has thousands of them. Mail is announced by the Service.

// entered is what the jobs of a box use while its agent is entered.
type entered struct {
	ctx  context.Context
	bus  *bus.Bus
	jobs sync.WaitGroup
}

// enter begins to watch the inbox of an agent that is entered.
func (x *Box) enter(ctx context.Context, b *bus.Bus) (leave func()) {
	e := &entered{ctx: ctx, bus: b}
	x.mu.Lock()
	x.entered = e
	x.mu.Unlock()
	ignore := x.svc.watch(b, x)
	x.check()
	x.settle()
	return func() {
		ignore()
		x.mu.Lock()
		x.entered = nil
		x.mu.Unlock()
		e.jobs.Wait()
	}
}

// start does a job in the background, unless the agent is not entered: then the job waits until it is.
func (x *Box) start(running *wait.Single, job func(context.Context, *bus.Bus)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.entered
	if e == nil || !running.Begin() {
		return
	}
	e.jobs.Go(func() {
		for job(e.ctx, e.bus); running.Again(); {
			job(e.ctx, e.bus)
		}
	})
}

// check looks in the background for mail that has come while the connection was lost.
func (x *Box) check() { x.start(&x.noting, x.noteWaiting) }

// settle does in the background what answers that were written leave to do.
func (x *Box) settle() {
	x.start(&x.delivering, x.noteAnswered)
	x.start(&x.acknowledging, x.acknowledgeLiving)
}

// noteWaiting writes the receipts that are missing of mail that waits: its sender was killed after it had sent it.
func (x *Box) noteWaiting(ctx context.Context, b *bus.Bus) {
	announced := 0
	_, err := x.scanUnread(ctx, b, func(m Mail) bool {
		if announced++; announced > maxAnnounced {
			return false
		}
		if err := x.svc.writeReceipt(ctx, b, m, Stored, ""); err != nil {
			x.agent.Log().Debug("a receipt was not written", "error", err)
		}
		return ctx.Err() == nil
	})
	if err != nil && ctx.Err() == nil {
		x.agent.Log().Warn("the inbox could not be scanned after connecting", "error", err)
	}
	x.arrived.Send()
}
