package presence

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// A Codex thread's MCP server begins with the thread. It is joined if it began in this time after it, or a little before, since
// the two clocks are not the same.
const (
	serverBefore = 2 * time.Second
	serverAfter  = 20 * time.Second
)

// threadAgent is a Codex thread with its agent.
type threadAgent struct {
	Thread string `json:"thread"`
	GUID   string `json:"guid"`
}

// remember notes a thread's agent, so that its user may resume it. mu is held.
func (r *Records) remember(thread, guid string) {
	if thread == "" || guid == "" {
		return
	}
	r.threads = slices.DeleteFunc(r.threads, func(x threadAgent) bool { return x.Thread == thread })
	r.threads = append(r.threads, threadAgent{thread, guid})
	r.threads = r.threads[max(len(r.threads)-maxThreads, 0):]
}

// former returns the agent that a thread had when a tool call named it last, "" if none has. mu is held.
func (r *Records) former(thread string) string {
	for _, x := range r.threads {
		if x.Thread == thread {
			return x.GUID
		}
	}
	return ""
}

// Former returns the agent that a Codex thread had when a tool call named it last, which is its agent again when its user resumes it; "" if
// none has.
func (r *Records) Former(thread string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.former(thread)
}

// joinFormer joins a Codex thread, of which a hook has reported, with the agent that it had before: its first tool call makes its MCP server
// that agent, whatever the server has begun as. It reports false if that is not known, another thread has the agent, or the thread's own server has ended. mu is held.
func (r *Records) joinFormer(s *Session) bool {
	guid := r.former(s.ID)
	if guid == "" {
		return false
	}
	holder := r.first(func(x *Session) bool { return x != s && x.GUID == guid })
	switch {
	case holder != nil && holder.ID != "", holder == nil && s.lost:
		return false
	case holder == nil:
		s.GUID = guid
	default:
		r.join(s, holder)
	}
	return true
}

// join gives a thread the server of a record of which nothing else is known. mu is held.
func (r *Records) join(s, server *Session) {
	s.GUID, s.Server, s.ServerSince, s.Guessed, s.lost = server.GUID, server.Server, server.ServerSince, true, false
	r.remove(server)
}

// guessServer joins a Codex thread, of which a hook has reported, with the MCP server that began with it. A thread that was resumed
// is older than its server: it gets the latest one if a single terminal shows its directory. mu is held.
func (r *Records) guessServer(s *Session) {
	var latest, together *Session
	for _, x := range r.list {
		if x == s || x.Vendor != Codex || x.ID != "" || x.Server == (Process{}) || x.Dir != s.Dir {
			continue
		}
		if latest == nil || x.ServerSince.After(latest.ServerSince) {
			latest = x
		}
		if beganTogether(s.ID, x.ServerSince) && (together == nil || x.ServerSince.Before(together.ServerSince)) {
			together = x
		}
	}
	server := together
	if server == nil && len(s.Screens) == 1 {
		server = latest
	}
	if server == nil {
		return
	}
	r.join(s, server)
}

// beganTogether reports whether a Codex thread and a server began at the same time.
func beganTogether(thread string, server time.Time) bool {
	began, ok := ThreadTime(thread)
	after := server.Sub(began)
	return ok && !server.IsZero() && after > -serverBefore && after < serverAfter
}

// ThreadTime returns when a Codex thread began, which is part of its id (UUID version 7).
func ThreadTime(id string) (time.Time, bool) {
	u, err := uuid.Parse(id)
	if err != nil || u.Version() != 7 {
		return time.Time{}, false
	}
	var ms int64
	for _, b := range u[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms), true
}

// MayBe reports whether an agent's record may be another half of a Codex session whose agent is not known: an MCP server in the same
// directory that no tool call and no time has joined with a thread.
func (s Session) MayBe(other Session) bool {
	return s.Vendor == Codex && other.Vendor == Codex && s.GUID == "" && (other.ID == "" || other.Guessed) && s.Dir == other.Dir
}

// cover finds the Codex threads that no terminal can show, because each terminal shows one, and later ones need all that are open:
// after /new, Codex keeps the former thread and its MCP server for a minute. It reports whether that has changed. mu is held.
func (r *Records) cover(gone map[Process]bool) (changed bool) {
	var open []*Session
	for _, s := range r.list {
		if s.Vendor == Codex && s.GUID != "" && len(s.Screens) > 0 {
			open = append(open, s)
		}
	}
	slices.SortStableFunc(open, func(a, b *Session) int { return b.active().Compare(a.active()) })
	shown := make(map[Process]*Session)
	for _, s := range open {
		covered := !show(s, gone, shown, make(map[Process]bool))
		changed = changed || covered != s.covered
		s.covered = covered
	}
	return changed
}

// show gives a session one of its terminals; another session that has it may move to another one of its own.
func show(s *Session, gone map[Process]bool, shown map[Process]*Session, tried map[Process]bool) bool {
	for _, p := range s.Screens {
		if gone[p] || tried[p] {
			continue
		}
		tried[p] = true
		if shown[p] == nil || show(shown[p], gone, shown, tried) {
			shown[p] = s
			return true
		}
	}
	return false
}

// active is when a session began or its hook reported last.
func (s *Session) active() time.Time {
	if s.Hooked.After(s.ServerSince) {
		return s.Hooked
	}
	return s.ServerSince
}
