package dialect

import (
	"context"
	"time"
)

// SessionProcess is a process with its start, in the system's own terms.
type SessionProcess struct {
	PID   int    `json:"pid"`
	Start string `json:"start,omitempty"`
}

// SessionHookParams are the parameters of hub/sessions/hook: an event of an open session, as its program's hook reports it.
type SessionHookParams struct {
	Vendor     string         `json:"vendor"` // claude, codex, gemini or opencode
	Session    string         `json:"session"`
	Kind       string         `json:"kind"` // see package hooks
	Dir        string         `json:"dir,omitempty"`
	Transcript string         `json:"transcript,omitempty"`
	Source     string         `json:"source,omitempty"`
	Reason     string         `json:"reason,omitempty"`
	Notified   string         `json:"notified,omitempty"` // what a notification is about
	StopActive bool           `json:"stopActive,omitempty"`
	Bell       string         `json:"bell,omitempty"` // the id of the bell that a turn begins with
	Headless   bool           `json:"headless,omitempty"`
	Process    SessionProcess `json:"process,omitzero"`
	// Files are those that a tool is about to change: the keys of repository and work tree, and the path in it, with spaces between.
	Files []string `json:"files,omitempty"`
}

// SessionHookAnswer is the result of hub/sessions/hook.
type SessionHookAnswer struct {
	Context  string   `json:"context,omitempty"`  // to add to what the model sees
	Continue string   `json:"continue,omitempty"` // with what the session goes on instead of stopping
	Deny     string   `json:"deny,omitempty"`     // why the tool is not to run
	Watch    []string `json:"watch,omitempty"`
	Wake     string   `json:"wake,omitempty"` // to wake the session with
	// Notice is to be reported with hub/sessions/shown once the session has got the answer.
	Notice string `json:"notice,omitempty"`
}

// SessionEventParams are the parameters of hub/sessions/event: an event of an open session as its program's hook has got it. The hub
// does with it what `parley hook` does, which is ready sooner than the hook's own process would be.
type SessionEventParams struct {
	Vendor   string         `json:"vendor"`          // claude, codex or gemini
	Event    string         `json:"event,omitempty"` // the vendor's name of it; "" for the one in the input
	Input    string         `json:"input"`           // from the hook's standard input
	Headless bool           `json:"headless,omitempty"`
	Process  SessionProcess `json:"process,omitzero"`
}

// SessionEventAnswer is the result of hub/sessions/event.
type SessionEventAnswer struct {
	Output string `json:"output,omitempty"` // for the hook's standard output
	Wake   string `json:"wake,omitempty"`   // to wake the session with
	// Notice is to be reported with hub/sessions/shown once the session has got the output.
	Notice string `json:"notice,omitempty"`
}

// SessionShownParams are the parameters of hub/sessions/shown.
type SessionShownParams struct {
	Notice string `json:"notice"`
}

// SessionShown is the result of hub/sessions/shown.
type SessionShown struct {
	Known bool `json:"known"` // false if there is no such notice, or it was reported before
}

// SessionServeParams are the parameters of hub/sessions/serve: the session that an MCP server serves.
type SessionServeParams struct {
	Vendor  string         `json:"vendor"`
	Session string         `json:"session,omitempty"` // "" if it is not known
	Dir     string         `json:"dir,omitempty"`
	GUID    string         `json:"guid,omitempty"` // in the agents' network
	Process SessionProcess `json:"process,omitzero"`
	Server  SessionProcess `json:"server"`
	Since   Time           `json:"since"` // when the server began
	// Token is that of a conversation of an agent of the hub, which is no session.
	Token string `json:"token,omitempty"`
}

// OpenSession is an open session of this computer, as far as its hooks and its MCP server have said.
type OpenSession struct {
	Vendor   string `json:"vendor"`
	Session  string `json:"session,omitempty"` // the vendor's id
	Agent    string `json:"agent,omitempty"`   // the hub's id of it
	Handle   string `json:"handle,omitempty"`
	GUID     string `json:"guid,omitempty"`
	Dir      string `json:"dir,omitempty"`
	PID      int    `json:"pid,omitempty"`
	State    string `json:"state,omitempty"`    // idle, turn or waiting
	Terminal string `json:"terminal,omitempty"` // open, closed or none
	Hooks    bool   `json:"hooks"`              // whether a hook has reported
	Quiet    bool   `json:"quiet"`
	Since    Time   `json:"since"`
	Seen     Time   `json:"seen"`
}

// Sessions are this computer's open sessions, for the hub's own user.
type Sessions interface {
	OpenSessions() []OpenSession
	Hook(ctx context.Context, p SessionHookParams) SessionHookAnswer
	// Event decodes an event, handles it as Hook does, and encodes the answer. The error is a *hub.Error.
	Event(ctx context.Context, p SessionEventParams) (SessionEventAnswer, error)
	Shown(notice string) bool
	Serve(p SessionServeParams) OpenSession
	// Quiet turns do not disturb on or off for the session of an agent. The error is a *hub.Error.
	Quiet(agentID string, quiet bool) error
}

// SessionQuietParams are the parameters of hub/sessions/quiet, and its result.
type SessionQuietParams struct {
	AgentID string `json:"agentId"`
	Quiet   bool   `json:"quiet"`
}

// The limits of the sessions' parameters, in bytes.
const (
	maxSessionPath  = 4096
	maxSessionWord  = 64
	maxSessionToken = 2048

	// MaxSessionInput bounds the input of hub/sessions/event.
	MaxSessionInput = 1 << 20
)

// The kinds of events; see package hooks.
var sessionEvents = []string{"start", "end", "before-turn", "after-turn", "before-tool", "after-tool", "notification", "interrupt", "bell", "other"}

func (s *Service) sessionsList(context.Context) ([]OpenSession, error) {
	return append([]OpenSession{}, s.cfg.Sessions.OpenSessions()...), nil // never null on the wire
}

func (s *Service) sessionHook(c *call) action {
	p := SessionHookParams{
		Vendor: c.requiredText("vendor", maxSessionWord), Session: c.requiredText("session", maxID), Kind: c.literal("kind", sessionEvents...),
		Dir: c.text("dir", maxSessionPath), Transcript: c.text("transcript", maxSessionPath),
		Source: c.text("source", maxSessionWord), Reason: c.text("reason", maxSessionWord), Notified: c.text("notified", maxSessionWord),
		StopActive: c.boolean("stopActive", false), Headless: c.boolean("headless", false), Process: c.process("process", false),
		Files: c.textsUpTo(MaxFiles, "files"),
	}
	return func(ctx context.Context) (any, error) { return s.cfg.Sessions.Hook(ctx, p), nil }
}

func (s *Service) sessionEvent(c *call) action {
	p := SessionEventParams{
		Vendor: c.requiredText("vendor", maxSessionWord), Event: c.text("event", maxSessionWord), Input: c.requiredText("input", MaxSessionInput),
		Headless: c.boolean("headless", false), Process: c.process("process", false),
	}
	return func(ctx context.Context) (any, error) {
		answer, err := s.cfg.Sessions.Event(ctx, p)
		if err != nil {
			return nil, err
		}
		return answer, nil
	}
}

func (s *Service) sessionShown(_ context.Context, notice string) (any, error) {
	return SessionShown{s.cfg.Sessions.Shown(notice)}, nil
}

func (s *Service) sessionServe(c *call) action {
	p := SessionServeParams{
		Vendor: c.requiredText("vendor", maxSessionWord), Session: c.text("session", maxID), Dir: c.text("dir", maxSessionPath),
		GUID: c.text("guid", maxSessionWord), Process: c.process("process", false), Server: c.process("server", true),
		Token: c.text("token", maxSessionToken),
	}
	var err error
	if p.Since.Time, err = time.Parse(time.RFC3339Nano, c.requiredText("since", maxSessionWord)); err != nil {
		c.fail("since", "must be a time such as 2026-01-31T12:00:00Z")
	}
	return func(context.Context) (any, error) { return s.cfg.Sessions.Serve(p), nil }
}

func (s *Service) sessionQuiet(c *call) action {
	p := SessionQuietParams{AgentID: c.requiredText("agentId", maxID), Quiet: c.boolean("quiet", true)}
	return func(context.Context) (any, error) {
		if err := s.cfg.Sessions.Quiet(p.AgentID, p.Quiet); err != nil {
			return nil, err
		}
		return p, nil
	}
}

// process reads a process.
func (o object) process(name string, required bool) (p SessionProcess) {
	child, ok := o.child(name, required)
	if !ok {
		return p
	}
	if pid := child.integer("pid", 0, 1<<31-1); pid != nil {
		p.PID = int(*pid)
	}
	p.Start = child.text("start", maxSessionWord)
	return p
}
