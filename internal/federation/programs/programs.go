// Package programs makes connected Go programs agents of the hub: those whose agents serve tasks with the coordination
// library. The hub cannot dial a program; it asks over the channel that the program has opened.
//
// An agent keeps its place in the directory and its tasks while its program does not run, and while the hub is stopped.
package programs

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/internal/base/entries"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/federation/exchange"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/senders"
	"github.com/parleyhub/parley/tasks"
)

const (
	// Deadline is how long a task waits for a program's answer unless its sender says less.
	Deadline = 24 * time.Hour
	// keepTime is how long an agent without tasks is in the directory after its program has gone.
	keepTime    = 24 * time.Hour
	maxPrograms = 1000
	maxTasks    = 100 // that a program has at once; more wait in the queue
	maxQueue    = 1000

	refreshPause  = 50 * time.Millisecond // bounds how often the channels are compared with the agents
	expiryPause   = 10 * time.Minute      // between looks for agents that have been away for too long
	maxDescriptor = 200                   // bytes of a name or a version
)

// Options are those of [Open]. All but Logger are required.
type Options struct {
	Hub     *hub.Hub
	DataDir string
	Gate    *senders.Gate // decides whose tasks the programs get
	Logger  *slog.Logger  // nil discards
	// Damaged is called if the file of the programs was damaged; nil for nobody.
	Damaged func(statefile.Damage)
}

// Programs are the agents of connected programs. They are safe for concurrent use.
type Programs struct {
	hub      *hub.Hub
	gate     *senders.Gate
	log      *slog.Logger
	computer string
	opened   time.Time
	kept     *entries.List[kept]
	kick     chan struct{} // of capacity 1; has a value when the channels may have changed
	running  sync.WaitGroup
	stop     context.CancelFunc

	mu     sync.Mutex
	node   *node.Node          // nil before Serve
	sender *exchange.Sender    // nil before Serve
	agents map[string]*program // by the ids of their cards
}

// kept is an agent in the file.
type kept struct {
	ID   string     `json:"id"`   // at the hub
	Card string     `json:"card"` // its id in the program
	Name string     `json:"name"`
	Tier agent.Tier `json:"tier"`
	Seen time.Time  `json:"seen"` // when it was last connected

	Public       bool   `json:"public,omitempty"`       // see [tasks.Public]
	Capabilities string `json:"capabilities,omitempty"` // their ids, a line for each
}

// Key implements [entries.Entry].
func (k kept) Key() string { return k.Card }

// Open registers the agents of the hub's last run, so that their tasks go on. It reads a file and does not block.
func Open(o Options) (*Programs, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	list, err := entries.Read[kept](filepath.Join(o.DataDir, "connected-programs.json"), "tasks for connected programs wait until these connect again", o.Damaged)
	if err != nil {
		return nil, err
	}
	p := &Programs{hub: o.Hub, gate: o.Gate, log: o.Logger.With("component", "programs"), kept: list, kick: make(chan struct{}, 1), agents: make(map[string]*program),
		opened: time.Now().UTC().Round(0)}
	p.computer, _ = os.Hostname() // without it the directory has no computer
	for _, k := range list.All() {
		if k.Seen.IsZero() { // it was connected when the last hub ended
			k.Seen = p.opened
		}
		card := agent.Card{ID: k.Card, Name: k.Name, Tier: k.Tier}
		for id := range strings.Lines(k.Capabilities) {
			card.Capabilities = append(card.Capabilities, agent.Capability{ID: strings.TrimSpace(id)})
		}
		if k.Public {
			card.Protocols = []string{tasks.Public}
		}
		p.register(&program{of: p, id: k.ID, cardID: k.Card, card: card, seen: k.Seen})
	}
	return p, nil
}

// Watcher returns the functions that follow the channels of the node for programs.
func (p *Programs) Watcher() node.ChannelWatcher {
	return node.ChannelWatcher{
		Closed:   func(local, remote string) { p.each(local, func(s *exchange.Sender) { s.CloseAnswers(remote) }) },
		Reopened: func(local, remote string) { p.each(local, func(s *exchange.Sender) { s.AskAgain(remote) }) },
		Changed:  func(local, _ string) { p.each(local, func(*exchange.Sender) { wait.Nudge(p.kick) }) },
	}
}

// each calls f if a channel is one for tasks.
func (p *Programs) each(local string, f func(*exchange.Sender)) {
	if local != tasks.Hub {
		return
	}
	p.mu.Lock()
	s := p.sender
	p.mu.Unlock()
	if s != nil {
		f(s)
	}
}

// Serve accepts programs at a node, whose watcher is that of [Programs.Watcher]. Call [Programs.Close] before the node
// closes.
func (p *Programs) Serve(n *node.Node) error {
	s, err := exchange.NewSender(n, tasks.Hub, agent.L0) // every tier may answer L0, and L0 may address every tier
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	p.mu.Lock()
	p.node, p.sender, p.stop = n, s, stop
	p.mu.Unlock()
	p.running.Go(func() { p.follow(ctx) })
	wait.Nudge(p.kick)
	return nil
}

// Close ends the following of channels. The agents stay registered.
func (p *Programs) Close() {
	p.mu.Lock()
	stop := p.stop
	p.mu.Unlock()
	if stop != nil {
		stop()
	}
	p.running.Wait()
}

// follow keeps the hub's agents in step with the channels until ctx ends.
func (p *Programs) follow(ctx context.Context) {
	cards := p.node.Registry().Watch()
	defer cards.Close()
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() { // ends with ctx
		for {
			if _, err := cards.Next(ctx); err != nil {
				return
			}
			wait.Nudge(p.kick)
		}
	})
	expiry := time.NewTicker(expiryPause)
	defer expiry.Stop()
	for {
		select {
		case <-p.kick:
		case <-expiry.C:
		case <-ctx.Done():
			return
		}
		p.refresh(ctx)
		if !wait.Pause(ctx, refreshPause) {
			return
		}
	}
}

// refresh makes the hub's agents those of the programs that are connected, or were.
func (p *Programs) refresh(ctx context.Context) {
	online := make(map[string]bool)
	for _, card := range p.node.Registry().Remote() {
		c, ok := p.node.Channels().Between(tasks.Hub, card.ID)
		if !ok || c.Status() != channel.Open {
			continue
		}
		online[card.ID] = true
		p.connected(card)
	}
	for _, x := range p.all() {
		if !online[x.cardID] {
			p.absent(ctx, x)
		}
	}
}

func (p *Programs) all() []*program {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*program, 0, len(p.agents))
	for _, x := range p.agents {
		all = append(all, x)
	}
	return all
}

// connected registers the agent of a program, or updates it.
func (p *Programs) connected(card agent.Card) {
	p.mu.Lock()
	x, count := p.agents[card.ID], len(p.agents)
	p.mu.Unlock()
	switch {
	case x != nil:
		p.update(x, card, true)
		return
	case count >= maxPrograms:
		p.log.Warn("a program's agent is not in the directory, which has too many", "agent", card.ID, "most", maxPrograms)
		return
	}
	p.register(&program{of: p, id: p.idOf(card.ID), cardID: card.ID, card: card, online: true})
}

// idOf returns an id at the hub that no agent has: that of the card if possible.
func (p *Programs) idOf(card string) string {
	id := strings.ToLower(card)
	if !runner.ValidID(id) {
		id = runner.Identifier(id)
	}
	if id == "" {
		id = "program"
	}
	return runner.FreeID(id, p.hub.HasAgent)
}

// register adds an agent to the hub.
func (p *Programs) register(x *program) {
	p.mu.Lock()
	p.agents[x.cardID] = x
	p.mu.Unlock()
	err := p.hub.Register(hub.Agent{Definition: x.definition(), Runner: x, Durable: true, Reported: true, Residence: x.residence()})
	if err != nil {
		p.log.Error("a program's agent cannot be registered", "agent", x.id, "error", err)
		p.mu.Lock()
		delete(p.agents, x.cardID)
		p.mu.Unlock()
		return
	}
	p.keep(x)
	p.log.Info("a connected program is an agent", "agent", x.id, "card", text.Quote(x.cardID, maxDescriptor), "connected", x.online)
}

// keep stores an agent.
func (p *Programs) keep(x *program) {
	x.mu.Lock()
	k := kept{ID: x.id, Card: x.cardID, Name: x.card.Name, Tier: x.card.Tier, Seen: x.seen, Public: x.public()}
	for _, c := range x.card.Capabilities {
		k.Capabilities += c.ID + "\n"
	}
	x.mu.Unlock()
	if err := p.kept.Put(k); err != nil {
		p.log.Error("a program's agent cannot be stored; its tasks may wait after a restart", "agent", k.ID, "error", err)
	}
}

// update takes over what a card says, and whether the program is connected. Only follow calls it, so that the directory shows the last state.
func (p *Programs) update(x *program, card agent.Card, online bool) {
	if !x.changed(card, online) {
		return
	}
	p.keep(x)
	if err := p.hub.Move(x.id, x.residence()); err != nil {
		p.log.Warn("a program's agent could not be updated", "agent", x.id, "error", err)
	}
	if err := p.hub.Update(x.definition()); err != nil { // it probes too
		p.log.Warn("a program's agent could not be updated", "agent", x.id, "error", err)
	}
}

// absent handles an agent whose program is not connected: it is removed after a time unless it has tasks.
func (p *Programs) absent(ctx context.Context, x *program) {
	p.update(x, x.card, false)
	info, err := p.hub.Agent(x.id)
	if err == nil && (time.Since(x.lastSeen()) < keepTime || time.Since(p.opened) < expiryPause || info.Running+info.Queued > 0) {
		return // a hub that has just begun resumes the agent's tasks
	}
	p.mu.Lock()
	delete(p.agents, x.cardID)
	p.mu.Unlock()
	if err := p.hub.Deregister(ctx, x.id); err != nil && ctx.Err() == nil {
		p.log.Warn("a program's agent cannot be removed", "agent", x.id, "error", err)
	}
	if err := p.kept.Remove(x.cardID); err != nil {
		p.log.Warn("the list of connected programs cannot be stored", "error", err)
	}
}
