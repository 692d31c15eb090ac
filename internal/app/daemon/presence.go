package daemon

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/mcp/delegation"
	"github.com/parleyhub/parley/internal/sessions"
	"github.com/parleyhub/parley/internal/sessions/doorbell"
	"github.com/parleyhub/parley/internal/sessions/hooks"
	"github.com/parleyhub/parley/internal/sessions/news"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

// openSessions are the records of this computer's open sessions, what is new for them, and the answers to their hooks. It
// implements dialect.Sessions.
type openSessions struct {
	records *presence.Records
	news    *news.News
	hooks   *hooks.Service
	bell    *doorbell.Doorbell // has no bells if sessions are not to be woken
	socket  *doorbell.Socket   // nil without bells
	mail    mailFollower
	hub     *hub.Hub
	// sessions has them as agents of the hub.
	sessions *sessions.Sessions

	members  *members
	tokens   *delegation.TokenSigner
	locating locator
}

// locateTime bounds how long a session waits until the files of its tool are located.
const locateTime = time.Second

// mailFollower says for whom mail arrives.
type mailFollower interface {
	Follow(ctx context.Context, arrived func(guid string)) error
}

// openPresence opens the records of the hub's last run.
func (d *daemon) openPresence(inbox interface {
	news.Inbox
	mailFollower
	hooks.Files
}) error {
	log := d.log.With("component", "sessions")
	records, err := presence.Open(presence.Options{Path: filepath.Join(d.cfg.DataDir, "open-sessions.json"), Names: d.sessionNames, Damaged: d.fileDamaged})
	if err != nil {
		return err
	}
	n := news.New(inbox, log, nil)
	o := &openSessions{records: records, news: n, mail: inbox, hub: d.hub, members: &d.members, tokens: d.tokens, locating: d.locating}
	d.presence = o
	options := hooks.Options{Records: records, News: n, Files: inbox, Logger: d.log}
	bells := map[string][]doorbell.Bell{}
	if d.cfg.Sessions.Wake {
		if bells, err = d.openBells(o, &options); err != nil {
			return err
		}
	}
	o.bell = doorbell.New(doorbell.Options{Records: o.records, News: o.news, Logger: d.log, Bells: bells, Unwoken: d.unwoken, HeldChanged: d.heldChanged})
	o.hooks = hooks.New(options)
	return nil
}

// BellsDir is the directory of the files that wake sessions, in a data directory.
func BellsDir(dataDir string) string { return filepath.Join(dataDir, "bells") }

// unwoken tells the senders of tasks that a session is not woken for them.
func (d *daemon) unwoken(list []mail.Mail, why string) {
	for _, m := range list {
		d.sessions.Unwoken(m.ID, why)
	}
}

// heldChanged tells that other mail than before waits until a session's user lets it in.
func (d *daemon) heldChanged(guid string) {
	held := 0
	var name string
	for _, s := range d.presence.records.All() {
		if s.GUID == guid {
			name = s.Name
		}
	}
	for _, h := range d.presence.bell.Held() {
		if h.Session.GUID == guid {
			held = len(h.Mail)
		}
	}
	d.events.Publish(events.Event{Kind: events.MailHeld, Agent: name, Data: map[string]any{"messages": held}})
}

// openBells opens the bells of the vendors, and lets the hooks answer them.
func (d *daemon) openBells(o *openSessions, options *hooks.Options) (map[string][]doorbell.Bell, error) {
	file, err := doorbell.NewFile(BellsDir(d.cfg.DataDir))
	if err != nil {
		return nil, err
	}
	user, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	home := func(variable, name string) string { return cmp.Or(os.Getenv(variable), filepath.Join(user, name)) }
	o.socket = doorbell.NewSocket(home("CLAUDE_CONFIG_DIR", ".claude"), d.log)
	options.Watch = func(s presence.Session) []string {
		path, err := file.Watch(s)
		if err != nil {
			d.log.Warn("a session's bell cannot be made", "error", err)
		}
		if path == "" {
			return nil
		}
		return []string{path}
	}
	options.Bell = func(s presence.Session) string {
		text, _ := file.Take(s.Process)
		return text
	}
	return map[string][]doorbell.Bell{
		presence.Claude:   {file, o.socket},
		presence.OpenCode: {file},
		presence.Codex:    {doorbell.AppServer{Home: home("CODEX_HOME", ".codex"), Version: d.opts.Version, Sessions: o.records.All, Former: o.records.Former}},
	}, nil
}

// wakeSessions wakes sessions for which something is new, until ctx ends.
func (d *daemon) wakeSessions(ctx context.Context) {
	if d.presence == nil || d.sessions == nil {
		return
	}
	if d.presence.socket != nil {
		defer d.presence.socket.Close()
	}
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() {
		if !d.networkUsed(ctx) {
			return
		}
		retry := wait.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}
		for ctx.Err() == nil {
			if err := d.presence.mail.Follow(ctx, d.presence.bell.Arrived); err != nil && ctx.Err() == nil {
				d.log.Debug("the mail of sessions cannot be followed yet", "error", err)
			}
			if !retry.Pause(ctx) {
				return
			}
		}
	})
	d.presence.bell.Run(ctx)
}

// sessionNames returns the id and the handle of a session.
func (d *daemon) sessionNames(guid string) (name, handle string) {
	info, ok := d.hub.Session(guid)
	if !ok {
		return "", ""
	}
	return info.Definition.ID, info.Residence.Handle
}

// keepPresence writes the records and the receipts until ctx ends.
func (d *daemon) keepPresence(ctx context.Context) {
	if d.presence == nil {
		return
	}
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() { d.presence.news.Run(ctx) })
	if err := d.presence.records.Run(ctx); err != nil {
		d.log.Warn("the open sessions could not be stored", "error", err)
	}
}

// OpenSessions implements dialect.Sessions.
func (o *openSessions) OpenSessions() []dialect.OpenSession {
	all := o.records.All()
	list := make([]dialect.OpenSession, len(all))
	for i, s := range all {
		list[i] = openSession(s)
	}
	return list
}

func openSession(s presence.Session) dialect.OpenSession {
	return dialect.OpenSession{Vendor: s.Vendor, Session: s.ID, Agent: s.Name, Handle: s.Handle, GUID: s.GUID, Dir: s.Dir, PID: s.Process.PID,
		State: string(s.State), Terminal: string(s.Terminal), Hooks: !s.Hooked.IsZero(), Quiet: s.Quiet,
		Since: dialect.Time{Time: s.Since}, Seen: dialect.Time{Time: s.Seen}}
}

// Hook implements dialect.Sessions.
func (o *openSessions) Hook(ctx context.Context, p dialect.SessionHookParams) dialect.SessionHookAnswer {
	r := o.hooks.Handle(ctx, hooks.Report{Files: parseTargets(p.Files), Vendor: p.Vendor, Session: p.Session, Dir: p.Dir, Transcript: p.Transcript, Kind: hooks.Kind(p.Kind),
		Source: p.Source, Reason: p.Reason, NotificationType: p.Notified, StopActive: p.StopActive, Bell: p.Bell, Headless: p.Headless,
		Process: presence.Process(p.Process)})
	return dialect.SessionHookAnswer{Context: r.Context, Continue: r.Continue, Watch: r.Watch, Deny: r.Deny, Wake: r.Wake, Notice: r.Notice}
}

// Event implements dialect.Sessions.
func (o *openSessions) Event(ctx context.Context, p dialect.SessionEventParams) (dialect.SessionEventAnswer, error) {
	e, err := hooks.Decode(p.Vendor, p.Event, []byte(p.Input))
	if err != nil {
		return dialect.SessionEventAnswer{}, &hub.Error{Code: hub.CodeInvalid, Subject: "input", Message: "the event cannot be read: " + err.Error()}
	}
	if e.Kind == hooks.Other {
		return dialect.SessionEventAnswer{}, nil
	}
	r := o.hooks.Handle(ctx, hooks.Report{Files: o.located(ctx, e.Files()), Vendor: e.Vendor, Session: e.Session, Dir: e.Dir, Transcript: e.Transcript,
		Kind: e.Kind, Source: e.Source, Reason: e.Reason, NotificationType: e.NotificationType, StopActive: e.StopActive, Bell: e.Bell, Headless: p.Headless,
		Process: presence.Process(p.Process)})
	return dialect.SessionEventAnswer{Output: string(r.Answer.Encode(e)), Wake: r.Wake, Notice: r.Notice}, nil
}

// located returns what claims call the files that a tool is about to change, as many as one check takes. The tool may run
// if the file system does not say in time.
func (o *openSessions) located(ctx context.Context, files []string) []claims.Target {
	ctx, cancel := context.WithTimeout(ctx, locateTime)
	defer cancel()
	all, err := o.locating.locate(ctx, files)
	if err != nil {
		return nil
	}
	return all[:min(len(all), claims.MaxTargets)]
}

// Shown implements dialect.Sessions.
func (o *openSessions) Shown(notice string) bool { return o.hooks.Shown(notice) }

// Serve implements dialect.Sessions.
func (o *openSessions) Serve(p dialect.SessionServeParams) dialect.OpenSession {
	if p.Token != "" { // an agent of the hub
		if caller, ok := o.tokens.Verify(p.Token); ok && p.GUID != "" {
			o.members.joined(caller, p.GUID)
		}
		return dialect.OpenSession{Vendor: p.Vendor, GUID: p.GUID}
	}
	v := presence.Served{Vendor: p.Vendor, ID: p.Session, Dir: p.Dir, GUID: p.GUID,
		Process: presence.Process(p.Process), Server: presence.Process(p.Server), Since: p.Since.Time}
	if v.Vendor == presence.Codex {
		v.Screens, v.Headless = presence.ScreensOf(v.Server, v.Dir)
	}
	before, _ := o.records.Agent(v.GUID)
	s := o.records.Serve(v)
	if v.GUID != "" && before.Server != v.Server { // what the former one has not acknowledged as read, nobody may have read
		o.news.Forget(v.GUID)
		o.bell.Arrived(v.GUID)
	}
	return openSession(s)
}

// Quiet implements dialect.Sessions.
func (o *openSessions) Quiet(agentID string, quiet bool) error {
	info, err := o.hub.Agent(agentID)
	if err != nil {
		return err
	}
	if info.Residence.GUID == "" || info.Residence.Kind != hub.KindSession {
		return &hub.Error{Code: hub.CodeUnsupported, Message: agentID + " is no session of this computer, so that it is never woken",
			Remedy: "the sessions are in `" + local.Program() + " agents --kind session`"}
	}
	if err := o.records.SetQuiet(info.Residence.GUID, quiet); err != nil {
		return &hub.Error{Code: hub.CodeInternal, Message: "it cannot be stored whether the session is to be disturbed", Err: err,
			Remedy: "free space on the disk and call it again; until the hub ends it holds all the same"}
	}
	return o.sessions.SetQuiet(agentID, quiet)
}

var _ dialect.Sessions = (*openSessions)(nil)
