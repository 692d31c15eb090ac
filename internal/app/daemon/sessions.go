package daemon

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/senders"
	"github.com/parleyhub/parley/internal/sessions"
)

// openSessions makes the sessions of the hub's last run agents of the hub. With an external bus there are none: sessions
// join the bus of a hub only if it is its own.
func (d *daemon) openSessions(context.Context) error {
	if d.bus.Info().Kind != bus.KindEmbedded {
		return nil
	}
	assigner, err := d.newAssigner()
	if err != nil {
		return err
	}
	d.onCloseWithin(time.Second, assigner.close)
	d.files = assigner
	if err := d.openPresence(assigner); err != nil {
		return err
	}
	d.answers, err = sessions.OpenAnswers(d.hub, assigner, filepath.Join(d.cfg.DataDir, "delegated.json"), d.log, d.fileDamaged)
	if err != nil {
		return err
	}
	d.onClose(func() error { d.answers.Close(); return nil })
	d.sessions, err = sessions.Open(sessions.Options{Hub: d.hub, Assigner: assigner, DataDir: d.cfg.DataDir, Logger: d.log, Damaged: d.fileDamaged,
		Closed: d.presence.records.Closed, Quiet: d.presence.records.Quiet, Gate: d.gate})
	d.presence.sessions = d.sessions
	return err
}

// names are the names of the hub's agents. Without sessions nothing can be renamed.
type names struct {
	*hub.Hub
	sessions *sessions.Sessions // may be nil
}

// RenameAgent implements dialect.Names.
func (n names) RenameAgent(id, name string) error {
	if _, err := n.Agent(id); err != nil {
		return err
	}
	if n.sessions == nil {
		return &hub.Error{Code: hub.CodeUnsupported, Message: "this hub has no sessions that could be renamed",
			Remedy: "the names of programs are in config.yaml"}
	}
	return n.sessions.Rename(id, name)
}

// sessionAnswers implements delegation.Answers. The answers are opened after the tools, and before anybody can call these.
type sessionAnswers struct{ d *daemon }

func (s sessionAnswers) Began(guid string, id a2a.TaskID) (end func(*a2a.Task)) {
	if s.d.answers == nil {
		return func(*a2a.Task) {}
	}
	return s.d.answers.Began(guid, id)
}

func (s sessionAnswers) Waits(guid string, id a2a.TaskID) (end func(*a2a.Task)) {
	if s.d.answers == nil {
		return func(*a2a.Task) {}
	}
	return s.d.answers.Waits(guid, id)
}

// openGate reads whose tasks the hub's sessions and connected programs get.
func (d *daemon) openGate(context.Context) (err error) {
	d.gate, err = senders.Open(senders.Options{Hub: d.hub, Path: filepath.Join(d.cfg.DataDir, "senders.json"), Logger: d.log, Damaged: d.fileDamaged,
		Policy: senders.Policy{Outside: senders.Rule(d.cfg.Sessions.Outside), Clients: senders.Rule(d.cfg.Sessions.Clients)}})
	return err
}

// allowedSenders implements dialect.Senders.
type allowedSenders struct{ gate *senders.Gate }

// AllowedSenders implements dialect.Senders.
func (s allowedSenders) AllowedSenders() []dialect.AllowedSender {
	var all []dialect.AllowedSender
	for _, x := range s.gate.Allowed() {
		all = append(all, allowedSender(x))
	}
	return all
}

// RevokeSender implements dialect.Senders.
func (s allowedSenders) RevokeSender(id string) (dialect.AllowedSender, error) {
	x, err := s.gate.Revoke(id)
	return allowedSender(x), err
}

func allowedSender(x senders.Allowed) dialect.AllowedSender {
	return dialect.AllowedSender{ID: x.ID, Kind: string(x.Sender.Kind), Sender: x.Sender.ID, Label: x.Sender.Label, Since: dialect.Time{Time: x.Since}}
}

// followSessions follows the sessions once an agent has joined the agents' network, until ctx ends.
func (d *daemon) followSessions(ctx context.Context) {
	if d.sessions == nil {
		return
	}
	if d.networkUsed(ctx) {
		d.sessions.Run(ctx)
	}
}

const (
	refreshTime = 2 * time.Second // for which a session's call waits until the hub knows the session
	refreshWait = 20 * time.Millisecond
)

// refreshSessions makes the sessions that have just registered agents of the hub. It waits until the hub has joined the agents' network,
// which it does with the first agent.
func (d *daemon) refreshSessions(ctx context.Context) {
	if d.sessions == nil || !d.bus.HasNetwork() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, refreshTime)
	defer cancel()
	retry := wait.Backoff{First: refreshWait, Most: 10 * refreshWait}
	for d.sessions.Refresh(ctx) != nil && retry.Pause(ctx) {
	}
}

// networkUsed waits until an agent has joined the agents' network. It reports false if ctx ends first.
func (d *daemon) networkUsed(ctx context.Context) bool {
	if d.bus.HasNetwork() {
		return true
	}
	select {
	case <-d.observed.joined:
		return true
	case <-ctx.Done():
		return false
	}
}

// newAssigner returns the hub's assigner in the agents' network on its bus.
func (d *daemon) newAssigner() (*lazyAssigner, error) {
	name, err := uniqueName(d.cfg.DataDir, d.fileDamaged)
	if err != nil {
		return nil, err
	}
	guid := uuid.NewSHA1(uuid.NameSpaceURL, []byte("parley:hub:"+name)).String()
	return &lazyAssigner{used: d.bus.HasNetwork, open: func() *assignment.Assigner {
		return assignment.Open(d.assignerConfig(), guid, "hub")
	}}, nil
}

// assignerConfig has the user's settings of the network: the assigner may be the first in it, and the first inbox decides on the kind
// of all.
func (d *daemon) assignerConfig() store.Config {
	cfg := store.Config{Logger: d.log,
		Dial: func(ctx context.Context) (*bus.Bus, error) { return d.ownNetwork(ctx, "parley-hub sessions") }}
	users, err := mcpConfig("")
	if err != nil {
		return cfg // the network is the usual one
	}
	return withSettings(cfg, NetworkSettings(users))
}

// lazyAssigner is an assigner that connects at its first use: most hubs have no sessions.
type lazyAssigner struct {
	open func() *assignment.Assigner
	used func() bool // whether an agent has joined the network

	mu       sync.Mutex
	assigner *assignment.Assigner // nil before the first use
}

func (l *lazyAssigner) get() *assignment.Assigner {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.assigner == nil {
		l.assigner = l.open()
	}
	return l.assigner
}

// Sessions implements sessions.Assigner.
func (l *lazyAssigner) Sessions(ctx context.Context) ([]assignment.Session, error) {
	return l.get().Sessions(ctx)
}

// Waiting implements news.Inbox.
func (l *lazyAssigner) Waiting(ctx context.Context, guid string, limit int) ([]mail.Mail, bool, error) {
	return l.get().Waiting(ctx, guid, limit)
}

// Note implements news.Inbox.
func (l *lazyAssigner) Note(ctx context.Context, m mail.Mail, sign mail.Sign, at time.Time) error {
	return l.get().Note(ctx, m, sign, at)
}

// AttentionOf implements news.Inbox.
func (l *lazyAssigner) AttentionOf(ctx context.Context, m mail.Mail) (mail.Attention, error) {
	return l.get().AttentionOf(ctx, m)
}

// Follow implements mailFollower.
func (l *lazyAssigner) Follow(ctx context.Context, arrived func(guid string)) error {
	return l.get().Follow(ctx, arrived)
}

// CheckFiles implements hooks.Files.
func (l *lazyAssigner) CheckFiles(ctx context.Context, guid string, files []claims.Target) ([]claims.Hit, error) {
	if !l.used() {
		return nil, nil
	}
	return l.get().CheckFiles(ctx, guid, files)
}

// ClaimsIn implements hooks.Files.
func (l *lazyAssigner) ClaimsIn(ctx context.Context, dir string) ([]claims.Claim, error) {
	if !l.used() {
		return nil, nil
	}
	return l.get().ClaimsIn(ctx, dir)
}

// FileClaims implements fileClaims.
func (l *lazyAssigner) FileClaims(ctx context.Context) ([]claims.Claim, error) {
	if !l.used() {
		return nil, nil
	}
	return l.get().FileClaims(ctx)
}

// BreakFileClaim implements fileClaims.
func (l *lazyAssigner) BreakFileClaim(ctx context.Context, id string) (broken claims.Claim, notified bool, err error) {
	return l.get().BreakFileClaim(ctx, id)
}

// correspondences returns which agents have written to each other.
func (l *lazyAssigner) correspondences(ctx context.Context) ([]mail.Correspondence, error) {
	if !l.used() {
		return nil, nil
	}
	return l.get().Correspondences(ctx)
}

// Post implements sessions.Assigner.
func (l *lazyAssigner) Post(ctx context.Context, n assignment.Notice) (seen time.Time, err error) {
	return l.get().Post(ctx, n)
}

// Serve implements sessions.Assigner.
func (l *lazyAssigner) Serve(ctx context.Context, h assignment.Handler) error {
	return l.get().Serve(ctx, h)
}

func (l *lazyAssigner) close(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.assigner == nil {
		return nil
	}
	return l.assigner.Close(ctx)
}
