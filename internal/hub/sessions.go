package hub

import (
	"cmp"
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// sessions are the agents' conversations, one for each agent and context. A bounded number stays open between turns
// for a while; the others are resumed from their records.
type sessions struct {
	hub  *Hub
	dirs *workDirs

	mu      sync.Mutex
	byKey   map[sessionKey]*session
	idle    list.List // of *session, the least recently used first
	records map[sessionKey]sessionRecord
	spares  map[spareKey]*session // see keepSpare; nil while one is made
}

type sessionKey struct{ agent, context string }

// session is an open session. The lock of sessions guards used, idle, spare and closed; the other fields never change.
type session struct {
	key     sessionKey
	agent   *agent
	session runner.Session
	asked   DirRequest // of its first message
	dir     WorkDir
	inode   fs.FileInfo // of dir when the session opened; nil without one
	notice  string      // about dir, for the first task; "" without one
	env     []string    // see Config.SessionEnv
	used    time.Time
	idle    *list.Element // in sessions.idle; nil while a turn runs or it closes
	spare   bool          // it has not had a turn, see keepSpare
	closed  chan struct{} // closed at the end of Close; nil before it starts
}

// sessionRecord is the stored form of a session.
type sessionRecord struct {
	Agent     string    `json:"agent"`
	Context   string    `json:"context"`
	SessionID string    `json:"sessionId"`
	AskedDir  string    `json:"askedDir,omitempty"` // DirRequest.Path; "" for the definition's
	Worktree  bool      `json:"worktree,omitempty"` // DirRequest.Worktree
	Dir       WorkDir   `json:"dir,omitzero"`
	Version   string    `json:"version,omitempty"` // of the agent
	At        time.Time `json:"at"`
}

func (r sessionRecord) asked() DirRequest { return DirRequest{Path: r.AskedDir, Worktree: r.Worktree} }

func (k sessionKey) String() string { return k.agent + "/" + k.context }

func newSessions(h *Hub) *sessions {
	return &sessions{
		hub: h, dirs: newWorkDirs(h.cfg.DataDir, h.cfg.WorkRoots, h.cfg.Trusted),
		byKey: map[sessionKey]*session{}, records: map[sessionKey]sessionRecord{}, spares: map[spareKey]*session{},
	}
}

// open returns the session of an agent in a context for one turn; done returns it. Each key has one turn at a time.
func (p *sessions) open(ctx context.Context, a *agent, contextID string, asked DirRequest) (*session, error) {
	key := sessionKey{a.id, contextID}
	s, err := p.reuse(ctx, key)
	if err != nil {
		return nil, err
	}
	if s != nil {
		err := p.stillUsable(s, asked)
		if err == nil {
			p.take(s)
			return s, nil
		}
		p.done(s, errors.Is(err, errDirReplaced))
		if !errors.Is(err, errDirReplaced) {
			return nil, err
		}
		if _, err := p.reuse(ctx, key); err != nil { // waits until it is closed
			return nil, err
		}
	}
	p.mu.Lock()
	rec, known := p.records[key]
	p.mu.Unlock()
	s = &session{key: key, agent: a}
	if known {
		s.asked = rec.asked()
	} else {
		s.asked = asked.effective(a.definition())
	}
	if err := p.prepareDir(ctx, s); err != nil {
		return nil, err
	}
	if known && asked.conflicts(s.dir) {
		return nil, otherDir(a, s.dir)
	}
	if !known {
		p.remember(s)
	}
	if err := p.begin(s, rec.SessionID); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.byKey[key] = s
	p.mu.Unlock()
	return s, nil
}

// remember stores the directory of a new conversation: its first message decides, also if the agent never names its session.
func (p *sessions) remember(s *session) {
	if s.asked.Path != "" {
		p.store(sessionRecord{Agent: s.key.agent, Context: s.key.context, AskedDir: s.asked.Path, Worktree: s.asked.Worktree, Dir: s.dir})
	}
}

// begin opens the session with its agent.
func (p *sessions) begin(s *session, resume string) (err error) {
	spec := runner.SessionSpec{ContextID: s.key.context, Resume: resume, WorkDir: s.dir.Path}
	if env := p.hub.cfg.SessionEnv; env != nil {
		spec.Env = env(s.key.agent, s.key.context)
		s.env = spec.Env
	}
	s.session, err = s.agent.run.Open(spec)
	return err
}

// reuse returns the open session of a key for one turn, nil if there is none. It waits for one that is closing.
func (p *sessions) reuse(ctx context.Context, key sessionKey) (*session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		s := p.byKey[key]
		if s == nil {
			return nil, nil
		}
		if s.closed == nil {
			p.idle.Remove(s.idle)
			s.idle = nil
			return s, nil
		}
		p.mu.Unlock()
		select {
		case <-s.closed:
			p.mu.Lock()
		case <-ctx.Done():
			p.mu.Lock()
			return nil, &runner.Error{Code: runner.CodeTimeout, Message: "the agent's former session is still ending", Err: ctx.Err()}
		}
	}
}

// stillUsable returns why an open session cannot take a turn: the message requests another directory, the trust in the
// directory has ended, or it was replaced (errDirReplaced).
func (p *sessions) stillUsable(s *session, asked DirRequest) error {
	if asked.conflicts(s.dir) {
		return otherDir(s.agent, s.dir)
	}
	if s.inode == nil {
		return nil
	}
	if info, err := os.Stat(s.dir.Path); err != nil || !os.SameFile(info, s.inode) {
		return errDirReplaced
	}
	user := cmp.Or(s.dir.Repository, s.dir.Path)
	if s.dir.Policy == runner.WorkDirContext {
		return nil
	}
	if _, err := p.dirs.allowed(s.key.context, user); err != nil {
		return dirError(s, err)
	}
	return nil
}

// otherDir returns the error for a conversation that works in another directory.
func otherDir(a *agent, dir WorkDir) *runner.Error {
	return &runner.Error{Code: runner.CodeConfig,
		Message: fmt.Sprintf("the conversation with agent %s works in another directory, %s", a.id, dir.Path),
		Remedy:  "leave the directory out, or begin another context"}
}

// done returns a session after its turn, and closes a broken one.
func (p *sessions) done(s *session, broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.park(s)
	if broken {
		p.close(s)
		return
	}
	p.keepSpare(s)
}

// park makes a session idle, and closes those for which there is no room. mu is held.
func (p *sessions) park(s *session) {
	s.used = time.Now()
	s.idle = p.idle.PushBack(s)
	for p.idle.Len() > p.hub.cfg.MaxIdleSessions {
		p.close(p.idle.Front().Value.(*session))
	}
}

// close closes an idle session in the background. mu is held.
func (p *sessions) close(s *session) {
	p.idle.Remove(s.idle)
	s.idle = nil
	s.closed = make(chan struct{})
	spare := p.dropSpare(s)
	p.hub.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := s.session.Close(ctx); err != nil {
			p.hub.log.Warn("an agent's session did not close", "agent", s.key.agent, "error", err)
		}
		if spare {
			p.removeSpareDir(ctx, s)
		}
		p.mu.Lock()
		delete(p.byKey, s.key)
		p.mu.Unlock()
		close(s.closed)
	})
}

// closeTimeout bounds the end of one session's processes.
const closeTimeout = 30 * time.Second

// closeWhere closes the idle sessions that match, and waits for all matching ones that
// are closing. It ignores sessions with a running turn.
func (p *sessions) closeWhere(ctx context.Context, match func(*session) bool) error {
	var closing []chan struct{}
	p.mu.Lock()
	for _, s := range p.byKey {
		if !match(s) {
			continue
		}
		if s.idle != nil {
			p.close(s)
		}
		if s.closed != nil {
			closing = append(closing, s.closed)
		}
	}
	p.mu.Unlock()
	for _, c := range closing {
		select {
		case <-c:
		case <-ctx.Done():
			return contextError(ctx.Err())
		}
	}
	return nil
}

// closeIdle closes the sessions that were unused for their agent's limit.
func (p *sessions) closeIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	var next *list.Element
	for e := p.idle.Front(); e != nil; e = next {
		next = e.Next()
		s := e.Value.(*session)
		if time.Since(s.used) >= s.agent.definition().Limits.SessionIdle {
			p.close(s)
		}
	}
}

// closeAll closes every session. No turn may run.
func (p *sessions) closeAll() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*closeTimeout)
	defer cancel()
	if err := p.closeWhere(ctx, func(*session) bool { return true }); err != nil {
		p.hub.log.Error("agents' sessions stay open", "error", err)
	}
	p.hub.wg.Wait()
}

// started stores the id that an agent gave its session.
func (p *sessions) started(a *agent, contextID, id string) {
	key := sessionKey{a.id, contextID}
	version := a.health.current().Version
	p.mu.Lock()
	rec := p.records[key]
	s := p.byKey[key]
	p.mu.Unlock()
	if rec.SessionID == id && rec.Version == version {
		return
	}
	rec.Agent, rec.Context, rec.SessionID, rec.Version = key.agent, contextID, id, version
	if s != nil {
		rec.AskedDir, rec.Worktree, rec.Dir = s.asked.Path, s.asked.Worktree, s.dir
	}
	p.store(rec)
}

// store stores a record, and keeps it in memory also if that fails.
func (p *sessions) store(rec sessionRecord) {
	key := sessionKey{rec.Agent, rec.Context}
	rec.At = time.Now().UTC()
	value, err := json.Marshal(rec)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		err = p.hub.store.putRecord(ctx, kindSession, key.String(), value)
	}
	if err != nil {
		p.hub.log.Warn("a session could not be stored: it will not be resumed after a restart", "agent", key.agent, "error", err)
	}
	p.mu.Lock()
	p.records[key] = rec
	p.mu.Unlock()
}

// knows reports whether an agent has a conversation in a context, open or stored.
func (p *sessions) knows(key sessionKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, stored := p.records[key]
	return stored || p.byKey[key] != nil
}

// workDirs returns the known directories of a context's agents.
func (p *sessions) workDirs(contextID string, agents []string) map[string]WorkDir {
	p.mu.Lock()
	defer p.mu.Unlock()
	dirs := map[string]WorkDir{}
	for _, id := range agents {
		key := sessionKey{id, contextID}
		dir := p.records[key].Dir
		if s := p.byKey[key]; s != nil {
			dir = s.dir
		}
		if dir != (WorkDir{}) {
			dirs[id] = dir
		}
	}
	return dirs
}

// restore adds a stored record.
func (p *sessions) restore(value []byte) error {
	var rec sessionRecord
	if err := json.Unmarshal(value, &rec); err != nil {
		return fmt.Errorf("decode a stored session: %w", err)
	}
	p.records[sessionKey{rec.Agent, rec.Context}] = rec
	return nil
}

// release closes a context's sessions, deletes their records and removes its working directory.
func (p *sessions) release(ctx context.Context, contextID string) error {
	if err := p.closeWhere(ctx, func(s *session) bool { return s.key.context == contextID }); err != nil {
		return err
	}
	asked := map[string]DirRequest{} // by agent
	p.mu.Lock()
	for k, rec := range p.records {
		if k.context == contextID {
			asked[k.agent] = rec.asked()
			delete(p.records, k)
		}
	}
	p.mu.Unlock()
	var errs []error
	for id := range asked {
		errs = append(errs, p.hub.store.deleteRecord(ctx, kindSession, sessionKey{id, contextID}.String()))
	}
	for _, a := range p.hub.agents.all() {
		errs = append(errs, p.removeDir(ctx, a.definition(), contextID, asked[a.id]))
	}
	return errors.Join(errs...)
}
