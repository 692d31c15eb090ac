// Package presence records the open sessions of coding agents on this computer, as their hooks and MCP servers report
// them: what a session is called by its vendor, which process it is, where it works, whether it is in a turn.
//
// A hook and an MCP server see different halves of a session. [Records] joins them: by the session's process where each
// session has one (Claude Code, Gemini CLI); by the thread where one daemon serves all sessions (Codex), or, until a tool
// call has named the thread, by the directory and the time at which both began.
package presence

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
)

// The vendors whose sessions differ. Others are joined by their process, too.
const (
	Claude   = "claude"
	Codex    = "codex"
	Gemini   = "gemini"
	OpenCode = "opencode"
)

// State is what a session does, as far as its hooks have said.
type State string

// The states. The zero value is unknown, as after a start of the hub.
const (
	Idle    State = "idle"    // it waits for its user's next words
	InTurn  State = "turn"    // its model works
	Waiting State = "waiting" // in a turn, for its user: a permission or an answer
)

// Terminal is whether a person can see a session.
type Terminal string

// The zero value is unknown.
const (
	TerminalOpen   Terminal = "open"
	TerminalClosed Terminal = "closed" // its vendor still has it loaded, but nobody sees it
	NoTerminal     Terminal = "none"   // it has never had one, such as claude -p
)

// Session is the record of one open session.
type Session struct {
	Vendor string `json:"vendor"`
	// ID is the vendor's id of the session (Codex: of the thread). It is empty until a hook or a tool call has named it, and
	// changes when the user of Claude Code clears the conversation.
	ID string `json:"id,omitempty"`
	// Process is the session's own; zero where one process has many (Codex).
	Process    Process `json:"process,omitzero"`
	Dir        string  `json:"dir,omitempty"`
	Transcript string  `json:"transcript,omitempty"`
	// GUID is the session's agent in the agents' network; empty while no MCP server runs for it.
	GUID string `json:"guid,omitempty"`
	// Name is the agent's id at the hub, and Handle what people call it; empty while the hub does not know the agent.
	Name   string `json:"-"`
	Handle string `json:"-"`
	// Server is the process of the MCP server, and ServerSince when it began.
	Server      Process   `json:"server,omitzero"`
	ServerSince time.Time `json:"serverSince,omitzero"`
	Since       time.Time `json:"since"` // when the first report came
	Seen        time.Time `json:"seen"`  // when the last one came
	// Hooked is when a hook last reported; zero if none has: the session has no hooks, or Codex has had no turn yet.
	Hooked time.Time `json:"hooked,omitzero"`
	// Turned is when a hook last reported that a turn begins.
	Turned time.Time `json:"-"`
	// Bell is the id of the bell with whose text a turn began last, at Belled.
	Bell     string    `json:"-"`
	Belled   time.Time `json:"-"`
	State    State     `json:"state,omitempty"`
	Terminal Terminal  `json:"terminal,omitempty"`
	// Quiet is do not disturb: nothing but the session's own turns shows what is new.
	Quiet bool `json:"-"`

	// Screens are the processes one of which shows the session; see [Hooked].
	Screens []Process `json:"screens,omitempty"`
	// Guessed says that directory and time have joined hook and MCP server: a tool call may correct it.
	Guessed bool `json:"guessed,omitempty"`

	covered bool // see [Records.cover]
	lost    bool // its MCP server has ended, so that it cannot read mail
}

// Hooked is what a hook reports.
type Hooked struct {
	Vendor, ID string
	Process    Process // of the session; zero for Codex
	Dir        string
	Transcript string
	State      State    // zero leaves it as it is
	Terminal   Terminal // zero leaves it as it is
	Turn       bool     // a turn begins
	Bell       string   // the id of the bell whose text it begins with; "" for none
	// Screens are the processes one of which shows the session, where the vendor does not say which one (Codex). When all have
	// ended, its terminal is closed.
	Screens []Process
}

// Served is what an MCP server reports of the session that it serves.
type Served struct {
	Vendor  string
	ID      string  // zero if unknown
	Process Process // of the session; zero for Codex
	Dir     string
	GUID    string
	Server  Process
	Since   time.Time // when the server began
	// Screens are as in [Hooked]; Headless says that the session has never had a terminal.
	Screens  []Process
	Headless bool
}

// The limits.
const (
	maxSessions = 1000
	maxQuiet    = 1000
	maxText     = 4096 // bytes of each text
	maxScreens  = 16
	maxEnded    = 1000
	maxThreads  = 1000
)

// Options are those of [Open].
type Options struct {
	// Path is the file in which the records outlive the hub; "" for none.
	Path string
	// Names returns the id and the handle of an agent; nil for none.
	Names func(guid string) (name, handle string)
	// Alive reports whether a process runs; [Process.Alive] by default.
	Alive func(Process) bool
	// Now is the clock; time.Now by default.
	Now func() time.Time
	// Damaged is called if the file was damaged; nil for nobody.
	Damaged func(statefile.Damage)
}

// Records are the sessions that are known. They are safe for concurrent use.
type Records struct {
	opts    Options
	changed wait.Signal
	dirty   chan struct{} // of capacity 1; has a value when the file is behind
	saving  sync.Mutex    // orders the writes of the file, so that none is replaced by an older one

	mu    sync.Mutex
	list  []*Session
	quiet []string // GUIDs
	ended []ended  // the oldest first
	// threads are Codex's threads whose agent a tool call has named, the one that was named last behind the others.
	threads []threadAgent
}

// ended is an agent whose MCP server has ended, or was replaced by another one.
type ended struct {
	guid string
	at   time.Time
}

// Changed returns a channel that is closed by the next change. Call it before reading the records.
func (r *Records) Changed() <-chan struct{} { return r.changed.Wait() }

// All returns the open sessions, the oldest first. A session whose processes have ended is removed.
func (r *Records) All() []Session {
	r.sweep()
	r.mu.Lock()
	all := make([]Session, len(r.list))
	for i, s := range r.list {
		all[i] = r.export(s)
	}
	r.mu.Unlock()
	for i := range all {
		r.name(&all[i])
	}
	return all
}

// Agent returns the session of an agent of the agents' network.
func (r *Records) Agent(guid string) (Session, bool) {
	return r.find(func(s Session) bool { return guid != "" && s.GUID == guid })
}

// Session returns the session with a vendor's id.
func (r *Records) Session(vendor, id string) (Session, bool) {
	return r.find(func(s Session) bool { return id != "" && s.Vendor == vendor && s.ID == id })
}

func (r *Records) find(is func(Session) bool) (Session, bool) {
	all := r.All()
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i], true
	}
	return Session{}, false
}

// export returns a copy of a record. mu is held.
func (r *Records) export(s *Session) Session {
	x := *s
	x.Screens = slices.Clone(s.Screens)
	x.Quiet = slices.Contains(r.quiet, s.GUID)
	if s.covered {
		x.Terminal = TerminalClosed
	}
	return x
}

// name adds the names of the session's agent. mu is not held: the names have a lock of their own.
func (r *Records) name(s *Session) {
	if s.GUID != "" && r.opts.Names != nil {
		s.Name, s.Handle = r.opts.Names(s.GUID)
	}
}

// Hook records a hook's report, and returns the session.
func (r *Records) Hook(h Hooked) Session {
	h.ID, h.Dir, h.Transcript = text.Valid(h.ID, maxText), text.Valid(h.Dir, maxText), text.Valid(h.Transcript, maxText)
	h.Screens = h.Screens[:min(len(h.Screens), maxScreens)]
	r.mu.Lock()
	now := r.opts.Now()
	s := r.hooked(h)
	if s == nil {
		s = r.add(&Session{Vendor: h.Vendor, Since: now})
	}
	s.ID, s.Seen, s.Hooked = cmp.Or(h.ID, s.ID), now, now
	s.Dir, s.Transcript = cmp.Or(h.Dir, s.Dir), cmp.Or(h.Transcript, s.Transcript)
	s.State, s.Terminal = cmp.Or(h.State, s.State), cmp.Or(h.Terminal, s.Terminal)
	if h.Process != (Process{}) {
		s.Process = h.Process
	}
	if h.Turn {
		s.Turned = now
	}
	if h.Bell != "" {
		s.Bell, s.Belled = h.Bell, now
	}
	if len(h.Screens) > 0 {
		s.Screens, s.Terminal, s.covered = slices.Clone(h.Screens), TerminalOpen, false
	}
	if s.Vendor == Codex && s.Server == (Process{}) && !r.joinFormer(s) {
		r.guessServer(s)
	}
	x := r.export(s)
	r.mu.Unlock()
	r.touched()
	r.name(&x)
	return x
}

// hooked returns the record that a hook reports of, nil for a new one. mu is held.
func (r *Records) hooked(h Hooked) *Session {
	return r.first(
		func(s *Session) bool {
			return h.Process != (Process{}) && s.Vendor == h.Vendor && s.Process == h.Process
		},
		func(s *Session) bool {
			return s.Vendor == h.Vendor && h.ID != "" && s.ID == h.ID && (h.Process == (Process{}) || s.Process == (Process{}) || !r.opts.Alive(s.Process))
		},
	)
}

// first returns the first session that fulfils the first of the conditions that any fulfils. mu is held.
func (r *Records) first(conditions ...func(*Session) bool) *Session {
	for _, is := range conditions {
		if i := slices.IndexFunc(r.list, is); i >= 0 {
			return r.list[i]
		}
	}
	return nil
}

// add appends a record. The one that was seen longest ago makes room. mu is held.
func (r *Records) add(s *Session) *Session {
	if len(r.list) >= maxSessions {
		oldest := slices.MinFunc(r.list, func(a, b *Session) int { return a.Seen.Compare(b.Seen) })
		r.remove(oldest)
	}
	r.list = append(r.list, s)
	return s
}

func (r *Records) remove(s *Session) {
	r.list = slices.DeleteFunc(r.list, func(x *Session) bool { return x == s })
}

// End removes the session with a vendor's id, because a hook has reported its end. It reports false if there is none.
func (r *Records) End(vendor, id string) bool {
	r.mu.Lock()
	s := r.first(func(s *Session) bool { return id != "" && s.Vendor == vendor && s.ID == id })
	if s != nil {
		r.remove(s)
	}
	r.mu.Unlock()
	if s != nil {
		r.touched()
	}
	return s != nil
}

// Serve records what an MCP server reports, and returns the session. Reports of the same server replace each other.
func (r *Records) Serve(v Served) Session {
	v.ID, v.Dir = text.Valid(v.ID, maxText), text.Valid(v.Dir, maxText)
	r.mu.Lock()
	now := r.opts.Now()
	s := r.served(v)
	if s == nil {
		s = r.add(&Session{Vendor: v.Vendor, Since: now})
	}
	r.release(v, s)
	r.replaced(v, s)
	r.ended = slices.DeleteFunc(r.ended, func(e ended) bool { return e.guid == v.GUID })
	s.GUID, s.Server, s.ServerSince, s.Seen, s.lost = v.GUID, v.Server, v.Since, now, false
	s.Dir = cmp.Or(s.Dir, v.Dir)
	if v.ID != "" && (s.ID == "" || v.Vendor == Codex) {
		s.ID, s.Guessed = v.ID, false
	}
	if v.Vendor == Codex {
		r.remember(v.ID, v.GUID)
	}
	if v.Process != (Process{}) {
		s.Process = v.Process
	}
	if v.Headless {
		s.Terminal = NoTerminal
	} else if len(v.Screens) > 0 {
		s.Screens, s.Terminal = slices.Clone(v.Screens[:min(len(v.Screens), maxScreens)]), TerminalOpen
	}
	x := r.export(s)
	r.mu.Unlock()
	r.touched()
	r.name(&x)
	return x
}

// replaced handles the agent that a session had until now, if another one takes its place. It was another session's if it was guessed, and it
// stays if the program has started two servers, as of two entries of its configuration. Otherwise it has ended; with Codex its process may run
// for a while. mu is held.
func (r *Records) replaced(v Served, s *Session) {
	if s.GUID == "" || s.GUID == v.GUID {
		return
	}
	if s.Server != v.Server && (s.Guessed || s.Vendor != Codex && r.opts.Alive(s.Server)) {
		r.add(&Session{Vendor: s.Vendor, Process: s.Process, Terminal: s.Terminal, Dir: s.Dir, GUID: s.GUID, Server: s.Server, ServerSince: s.ServerSince, Since: s.ServerSince, Seen: r.opts.Now()})
		return
	}
	r.end(s.GUID)
}

// end notes that an agent's session has ended. mu is held.
func (r *Records) end(guid string) {
	if guid == "" {
		return
	}
	r.ended = append(r.ended, ended{guid, r.opts.Now()})
	r.ended = r.ended[max(len(r.ended)-maxEnded, 0):]
}

// Closed returns the agents whose session nobody sees any more although the registry may not know it yet, with the time at which it
// ended; the zero time where its process still runs, but no terminal shows it.
func (r *Records) Closed() map[string]time.Time {
	closed := make(map[string]time.Time)
	for _, s := range r.All() {
		if s.Terminal == TerminalClosed && s.GUID != "" {
			closed[s.GUID] = time.Time{}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.ended {
		closed[e.guid] = e.at
	}
	return closed
}

// served returns the record of the session that an MCP server serves, nil for a new one. mu is held.
func (r *Records) served(v Served) *Session {
	bound := func(s *Session) bool {
		return s.Server == v.Server && (v.ID == "" || v.Vendor != Codex || s.ID == "" || s.ID == v.ID)
	}
	if v.Vendor == Codex && v.ID != "" {
		return r.first(func(s *Session) bool { return s.Vendor == Codex && s.ID == v.ID }, bound)
	}
	return r.first(bound,
		func(s *Session) bool {
			return v.Process != (Process{}) && s.Vendor == v.Vendor && s.Process == v.Process
		},
		func(s *Session) bool { return v.ID != "" && s.Vendor == v.Vendor && s.ID == v.ID },
		func(s *Session) bool {
			return v.Vendor == Codex && s.Server == (Process{}) && s.Dir == v.Dir && beganTogether(s.ID, v.Since)
		},
	)
}

// release takes a server and its agent from all sessions but one. A thread that was joined with the server by guess stays the agent that it
// was. A session of which nothing else is known is removed. mu is
// held.
func (r *Records) release(v Served, but *Session) {
	for _, s := range slices.Clone(r.list) {
		if s == but || s.Server != v.Server && (v.GUID == "" || s.GUID != v.GUID) {
			continue
		}
		if s.GUID == v.GUID || s.GUID != r.former(s.ID) {
			s.GUID = ""
		}
		s.Server, s.ServerSince, s.Guessed = Process{}, time.Time{}, false
		if s.ID == "" && s.Process == (Process{}) {
			r.remove(s)
		}
	}
}

// SetQuiet turns do not disturb on or off for the session of an agent. It is kept for the agent's next session, and stored when SetQuiet
// returns; after an error it may be lost by a kill of the hub.
func (r *Records) SetQuiet(guid string, quiet bool) error {
	r.mu.Lock()
	r.quiet = slices.DeleteFunc(r.quiet, func(x string) bool { return x == guid })
	if quiet {
		r.quiet = append(r.quiet, guid)
		r.quiet = r.quiet[max(len(r.quiet)-maxQuiet, 0):]
	}
	r.mu.Unlock()
	r.touched()
	return r.save()
}

// Quiet reports whether an agent is not to be disturbed, also while it has no session.
func (r *Records) Quiet(guid string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.quiet, guid)
}

// sweep removes what has ended: sessions whose process is gone, and servers.
func (r *Records) sweep() {
	gone := map[Process]bool{}
	r.mu.Lock()
	for _, s := range r.list {
		for _, p := range append([]Process{s.Process, s.Server}, s.Screens...) {
			gone[p] = false
		}
	}
	r.mu.Unlock()
	delete(gone, Process{})
	for p := range gone { // without the lock
		gone[p] = !r.opts.Alive(p)
	}
	if r.drop(gone) {
		r.touched()
	}
}

// drop applies what [Records.sweep] has found.
func (r *Records) drop(gone map[Process]bool) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range slices.Clone(r.list) {
		if gone[s.Server] {
			r.end(s.GUID)
			s.GUID, s.Server, s.ServerSince, s.Guessed, s.lost, changed = "", Process{}, time.Time{}, false, true, true
		}
		closed := len(s.Screens) > 0 && !slices.ContainsFunc(s.Screens, func(p Process) bool { return !gone[p] })
		if closed && s.Terminal != TerminalClosed {
			s.Terminal, changed = TerminalClosed, true
		}
		// Without a hook nothing but the server has reported it, such as codex exec.
		if gone[s.Process] || (s.ID == "" || s.Hooked.IsZero()) && s.Process == (Process{}) && s.Server == (Process{}) {
			r.end(s.GUID)
			r.remove(s)
			changed = true
		}
	}
	return r.cover(gone) || changed
}

func (r *Records) touched() {
	wait.Nudge(r.dirty)
	r.changed.Send()
}
