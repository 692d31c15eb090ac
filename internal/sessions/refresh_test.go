package sessions_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/sessions"
)

// listed is an assigner whose registry has the entries of a list.
type listed struct {
	sessions.Assigner
	all []assignment.Session
}

// Sessions returns a list that the caller may change, and what a reading of the registry has besides.
func (l *listed) Sessions(context.Context) ([]assignment.Session, error) {
	return slices.Clone(l.all), nil
}

// crowd returns the sessions of a hub, and the registry that they follow, with n entries.
func crowd(t *testing.T, n int) (*sessions.Sessions, *hub.Hub, *listed) {
	t.Helper()
	h, err := hub.New(t.Context(), hub.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	l := &listed{}
	for i := range n {
		now := store.Timestamp(time.Now())
		l.all = append(l.all, assignment.Session{Liveness: registry.Live, Entry: &registry.Entry{GUID: uuid.NewString(), AgentType: "worker", Handle: fmt.Sprint("w-", i),
			Hostname: "h", Visibility: store.Public, Capabilities: []string{"go"}, Status: registry.Idle, RegisteredAt: now, LastHeartbeat: now}})
	}
	s, err := sessions.Open(sessions.Options{Hub: h, Assigner: l, DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, h, l
}

// beaten returns an entry with a later heartbeat.
func beaten(e *registry.Entry) *registry.Entry {
	later := *e
	later.LastHeartbeat = store.Timestamp(time.Now().Add(time.Minute))
	return &later
}

// A hub reads the registry every few seconds, and after each heartbeat: what has not changed costs no memory.
func TestReadingUnchangedSessionsAllocatesNothingForEach(t *testing.T) {
	const n = 300
	s, h, l := crowd(t, n)
	changes := 0
	h.OnAgents(func() { changes++ })
	beats := make([]*registry.Entry, n)
	for i := range beats {
		beats[i] = beaten(l.all[i].Entry)
	}
	for _, c := range []struct {
		what string
		next func(i int) *registry.Entry
	}{{"the same entries", func(i int) *registry.Entry { return l.all[i].Entry }}, {"heartbeats", func(i int) *registry.Entry { return beats[i] }}} {
		allocated := testing.AllocsPerRun(10, func() {
			for i := range l.all {
				l.all[i].Entry = c.next(i)
			}
			if err := s.Refresh(t.Context()); err != nil {
				t.Error(err)
			}
		})
		if allocated > n/10 {
			t.Errorf("%s: %.0f allocations for %d sessions", c.what, allocated, n)
		}
	}
	if changes > 0 {
		t.Errorf("%d changes of the hub's agents", changes)
	}
	if agents := h.Agents(); len(agents) != n {
		t.Errorf("%d agents", len(agents))
	}
}

// Of several sessions, those that changed, left or withdrew do so, and nothing else.
func TestReadingTheSessionsShowsWhatHasChanged(t *testing.T) {
	s, h, l := crowd(t, 5)
	busy := *l.all[1].Entry
	busy.Status = registry.Busy
	hidden := *l.all[2].Entry
	hidden.Visibility = store.Private
	l.all[0].Entry, l.all[1].Entry, l.all[2].Entry = beaten(l.all[0].Entry), &busy, &hidden
	l.all[4].Liveness = registry.Gone
	l.all = slices.Delete(l.all, 3, 4)
	for range 2 {
		if err := s.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		for id, want := range map[string]hub.AgentState{"w-0": hub.AgentIdle, "w-1": hub.AgentWorking, "w-3": hub.AgentOffline, "w-4": hub.AgentOffline} {
			if info, err := h.Agent(id); err != nil || info.State != want {
				t.Errorf("%s: %v, %s, want %s", id, err, info.State, want)
			}
		}
		if h.HasAgent("w-2") {
			t.Error("a session that is private now is an agent")
		}
	}
}
