package daemon

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/parleyhub/parley/internal/api/dialect"
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
}

// openPresence opens the records of the hub's last run.
func (d *daemon) openPresence(inbox news.Inbox) error {
	log := d.log.With("component", "sessions")
	records, err := presence.Open(presence.Options{Path: filepath.Join(d.cfg.DataDir, "open-sessions.json"), Names: d.sessionNames})
	if err != nil {
		return err
	}
	n := news.New(inbox, log, nil)
	d.presence = &openSessions{records, n, hooks.New(hooks.Options{Records: records, News: n, Logger: d.log})}
	return nil
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

// closed returns the agents whose terminal is closed: Codex keeps a session for a while that nobody sees.
func (o *openSessions) closed() map[string]bool {
	all := make(map[string]bool)
	for _, s := range o.records.All() {
		if s.Terminal == presence.TerminalClosed && s.GUID != "" {
			all[s.GUID] = true
		}
	}
	return all
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
	r := o.hooks.Handle(ctx, hooks.Report{Vendor: p.Vendor, Session: p.Session, Dir: p.Dir, Transcript: p.Transcript, Kind: hooks.Kind(p.Kind),
		Source: p.Source, Reason: p.Reason, NotificationType: p.Notified, StopActive: p.StopActive, Headless: p.Headless, Process: presence.Process(p.Process)})
	return dialect.SessionHookAnswer{Context: r.Context, Continue: r.Continue, Watch: r.Watch, Wake: r.Wake, Notice: r.Notice}
}

// Shown implements dialect.Sessions.
func (o *openSessions) Shown(notice string) bool { return o.hooks.Shown(notice) }

// Serve implements dialect.Sessions.
func (o *openSessions) Serve(p dialect.SessionServeParams) dialect.OpenSession {
	return openSession(o.records.Serve(presence.Served{Vendor: p.Vendor, ID: p.Session, Dir: p.Dir, GUID: p.GUID,
		Process: presence.Process(p.Process), Server: presence.Process(p.Server), Since: p.Since.Time}))
}

var _ dialect.Sessions = (*openSessions)(nil)
