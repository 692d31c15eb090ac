package hooks

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/sessions/news"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

// MaxRow is how often in a row a session goes on after a turn because something has arrived.
const MaxRow = 3

const (
	maxRows    = 1000            // sessions whose rows are counted
	answerTime = 1 * time.Second // for what is new; a hook waits a little longer
)

// Report is an event as the hub gets it from a hook.
type Report struct {
	Vendor, Session, Dir, Transcript string
	Kind                             Kind
	Source, Reason, NotificationType string
	StopActive                       bool
	Bell                             string           // see [Event]
	Process                          presence.Process // of the session; zero for Codex
	Headless                         bool             // no person sees it
	Files                            []claims.Target  // that the tool of BeforeTool changes
}

// Reply is the hub's answer.
type Reply struct {
	Answer
	// Notice is for [Service.Shown], once the answer has been given to the session; "" for none.
	Notice string
}

// News is what is new for agents: a *[news.News].
type News interface {
	Latest(ctx context.Context, guid string) (news.Notice, error)
	Forget(guid string)
	Shown(notice string) bool
}

// Options are those of [New]. Records and News are required.
type Options struct {
	Records *presence.Records
	News    News
	// Screens returns the processes that may show Codex sessions of a directory; [presence.Screens] by default.
	Screens func(dir string) []presence.Process
	// Watch returns the files that a new session of Claude Code is to watch; nil for none.
	Watch func(presence.Session) []string
	// Files are the claims of files; nil for none.
	Files Files
	// Bell returns the text with which a session is to be woken now; nil for none.
	Bell   func(presence.Session) string
	Logger *slog.Logger
}

// Service handles the events of the hooks of this computer's sessions. It is safe for concurrent use.
type Service struct {
	o   Options
	log *slog.Logger

	mu       sync.Mutex
	rows     map[string]int    // how often a session went on after a turn, by vendor and id
	notified map[string]string // the claims that a session was told of last, by vendor and id
}

// New returns a Service.
func New(o Options) *Service {
	if o.Screens == nil {
		o.Screens = presence.Screens
	}
	return &Service{o: o, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)).With("component", "hooks"), rows: make(map[string]int), notified: make(map[string]string)}
}

// Handle records an event, and returns what its hook answers. It blocks for about a second at most.
func (s *Service) Handle(ctx context.Context, r Report) Reply {
	key := r.Vendor + " " + r.Session
	if r.Kind == End {
		s.forget(key)
		if r.Source == "" && r.Reason == "clear" { // the session goes on under another id
			return Reply{}
		}
		s.o.Records.End(r.Vendor, r.Session)
		return Reply{}
	}
	session := s.o.Records.Hook(s.hooked(r))
	switch r.Kind {
	case Start:
		if session.GUID != "" {
			s.o.News.Forget(session.GUID)
		}
		s.changed(key, "")
		// No turn begins now: what is new is said when one does, by a bell or before the turn. Said now, it would count as known.
		return s.watching(Reply{Answer: Answer{Context: s.claimed(ctx, key, session)}}, session)
	case BeforeTurn:
		s.forget(key)
		reply := s.tell(ctx, key, session)
		if session.Vendor == presence.OpenCode { // it reports no start of a conversation that goes on
			reply = s.watching(reply, session)
		}
		return reply
	case BeforeTool:
		return s.guard(ctx, session, r.Files)
	case Bell:
		if s.o.Bell != nil {
			return Reply{Answer: Answer{Wake: s.o.Bell(session)}}
		}
	case AfterTurn:
		return s.goOn(ctx, key, session, r.StopActive)
	}
	return Reply{}
}

// watching adds the files that a session is to watch to a reply.
func (s *Service) watching(r Reply, session presence.Session) Reply {
	if s.o.Watch != nil {
		r.Watch = s.o.Watch(session)
	}
	return r
}

// hooked returns what the records are told of an event.
func (s *Service) hooked(r Report) presence.Hooked {
	h := presence.Hooked{Vendor: r.Vendor, ID: r.Session, Process: r.Process, Dir: r.Dir, Transcript: r.Transcript, State: stateAfter(r),
		Turn: r.Kind == BeforeTurn, Bell: r.Bell}
	switch {
	case r.Headless:
		h.Terminal = presence.NoTerminal
	case r.Vendor != presence.Codex:
		h.Terminal = presence.TerminalOpen
	case r.Kind == Start || r.Kind == BeforeTurn:
		h.Screens = s.o.Screens(r.Dir)
	}
	return h
}

// stateAfter returns what a session does after an event, zero if that does not change.
func stateAfter(r Report) presence.State {
	switch r.Kind {
	case Start, AfterTurn, Interrupt:
		return presence.Idle
	case BeforeTurn, BeforeTool, AfterTool:
		return presence.InTurn
	case Notification:
		switch r.NotificationType {
		case "idle_prompt":
			return presence.Idle
		case "permission_prompt", "elicitation_dialog", "ToolPermission":
			return presence.Waiting
		}
	}
	return ""
}

// tell returns what is new for a session: messages, and claims of other agents.
func (s *Service) tell(ctx context.Context, key string, session presence.Session) Reply {
	n := s.latest(ctx, session)
	context := n.Text()
	if claimed := s.claimed(ctx, key, session); claimed != "" {
		context = strings.TrimPrefix(context+"\n"+claimed, "\n")
	}
	return Reply{Answer{Context: context}, n.ID}
}

func (s *Service) latest(ctx context.Context, session presence.Session) news.Notice {
	if session.GUID == "" {
		return news.Notice{}
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	n, err := s.o.News.Latest(ctx, session.GUID)
	if err != nil {
		s.log.Debug("it is not known what is new for a session", "session", session.ID, "error", err)
	}
	return n
}

// goOn makes a session go on after a turn if something has arrived that it was not told of.
func (s *Service) goOn(ctx context.Context, key string, session presence.Session, active bool) Reply {
	s.mu.Lock()
	row := s.rows[key]
	s.mu.Unlock()
	if !active {
		row = 0
	}
	if row >= MaxRow || active && row == 0 { // another hook makes it go on, or an earlier run of this hub did
		return Reply{}
	}
	if session.Quiet || session.Terminal == presence.NoTerminal {
		return Reply{}
	}
	n := s.latest(ctx, session)
	if n.ID == "" {
		s.forget(key)
		return Reply{}
	}
	s.mu.Lock()
	if len(s.rows) >= maxRows {
		clear(s.rows)
	}
	s.rows[key] = row + 1
	s.mu.Unlock()
	s.o.Records.Hook(presence.Hooked{Vendor: session.Vendor, ID: session.ID, Process: session.Process, State: presence.InTurn})
	return Reply{Answer{Continue: n.Text()}, n.ID}
}

func (s *Service) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.rows, key)
}

// Shown records that a reply was given to its session.
func (s *Service) Shown(notice string) bool { return s.o.News.Shown(notice) }
