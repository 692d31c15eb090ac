package hub

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
}

type sessionKey struct{ agent, context string }

// session is an open session. The lock of sessions guards used, idle and closed; the other fields never change.
type session struct {
	key     sessionKey
	agent   *agent
	session runner.Session
	asked   string // the directory that its first message requested
	dir     WorkDir
	used    time.Time
	idle    *list.Element // in sessions.idle; nil while a turn runs or it closes
	closed  chan struct{} // closed at the end of Close; nil before it starts
}

// sessionRecord is the stored form of a session.
type sessionRecord struct {
	Agent     string    `json:"agent"`
	Context   string    `json:"context"`
	SessionID string    `json:"sessionId"`
	AskedDir  string    `json:"askedDir,omitempty"` // see MetaWorkDir
	Version   string    `json:"version,omitempty"`  // of the agent
	At        time.Time `json:"at"`
}

func (k sessionKey) String() string { return k.agent + "/" + k.context }

func newSessions(h *Hub) *sessions {
	return &sessions{
		hub: h, dirs: newWorkDirs(h.cfg.DataDir, h.cfg.WorkRoots),
		byKey: map[sessionKey]*session{}, records: map[sessionKey]sessionRecord{},
	}
}

// open returns the session of an agent in a context for one turn; done returns it. Each key has one turn at a time.
// asked is the directory that the message requests, "" for any; the first message decides for all.
func (p *sessions) open(ctx context.Context, a *agent, contextID, asked string) (*session, error) {
	key := sessionKey{a.id, contextID}
	p.mu.Lock()
	for {
		s := p.byKey[key]
		if s == nil {
			break
		}
		if s.closed == nil {
			if asked != "" && asked != s.asked {
				p.mu.Unlock()
				return nil, otherDir(a)
			}
			p.idle.Remove(s.idle)
			s.idle = nil
			p.mu.Unlock()
			return s, nil
		}
		p.mu.Unlock()
		select {
		case <-s.closed:
		case <-ctx.Done():
			return nil, &runner.Error{Code: runner.CodeTimeout, Message: "the agent's former session is still ending", Err: ctx.Err()}
		}
		p.mu.Lock()
	}
	rec, known := p.records[key]
	p.mu.Unlock()

	if known && asked != "" && asked != rec.AskedDir {
		return nil, otherDir(a)
	}
	if known {
		asked = rec.AskedDir
	}
	dir, err := p.prepareDir(ctx, a.definition(), contextID, asked)
	if err != nil {
		return nil, err
	}
	spec := runner.SessionSpec{ContextID: contextID, Resume: rec.SessionID, WorkDir: dir.Path}
	if env := p.hub.cfg.SessionEnv; env != nil {
		spec.Env = env(a.id, contextID)
	}
	rs, err := a.run.Open(spec)
	if err != nil {
		return nil, err
	}
	s := &session{key: key, agent: a, session: rs, asked: asked, dir: dir}
	p.mu.Lock()
	p.byKey[key] = s
	p.mu.Unlock()
	return s, nil
}

// otherDir returns the error for a conversation that works in another directory.
func otherDir(a *agent) *runner.Error {
	return &runner.Error{Code: runner.CodeConfig,
		Message: fmt.Sprintf("the conversation with agent %s works in another directory", a.id),
		Remedy:  "leave the directory out, or begin another context"}
}

// done returns a session after its turn, and closes a broken one.
func (p *sessions) done(s *session, broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.used = time.Now()
	s.idle = p.idle.PushBack(s)
	if broken {
		p.close(s)
	}
	for p.idle.Len() > p.hub.cfg.MaxIdleSessions {
		p.close(p.idle.Front().Value.(*session))
	}
}

// close closes an idle session in the background. mu is held.
func (p *sessions) close(s *session) {
	p.idle.Remove(s.idle)
	s.idle = nil
	s.closed = make(chan struct{})
	p.hub.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := s.session.Close(ctx); err != nil {
			p.hub.log.Warn("an agent's session did not close", "agent", s.key.agent, "error", err)
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
	asked := rec.AskedDir
	if s := p.byKey[key]; s != nil {
		asked = s.asked
	}
	p.mu.Unlock()
	if rec.SessionID == id && rec.Version == version {
		return
	}
	rec = sessionRecord{
		Agent: key.agent, Context: contextID, SessionID: id, Version: version,
		AskedDir: asked, At: time.Now().UTC(),
	}
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
	var keys []sessionKey
	p.mu.Lock()
	for k := range p.records {
		if k.context == contextID {
			keys = append(keys, k)
			delete(p.records, k)
		}
	}
	p.mu.Unlock()
	var errs []error
	for _, k := range keys {
		errs = append(errs, p.hub.store.deleteRecord(ctx, kindSession, k.String()))
	}
	for _, a := range p.hub.agents.all() {
		errs = append(errs, p.removeDir(ctx, a.definition(), contextID))
	}
	return errors.Join(errs...)
}
