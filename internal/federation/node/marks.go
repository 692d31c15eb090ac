package node

import (
	"maps"
	"slices"
	"strings"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/hub"
)

// The protocols in the cards for other hubs. Hubs that do not know them ignore them.
const (
	protocolKeys    = "parley-keys/1"    // requests may have keys
	protocolSession = "parley-session/1" // the agent is a session: a task waits for it
	protocolOffline = "parley-offline"   // the session is offline
	sessionMark     = "parley-session-"  // begins a protocol that says something of a session: see marks
	runMark         = "parley-run/"      // begins a protocol that identifies a run of a hub: see RunOf
)

// Session is what a card says of an agent that is a session of a person. Its texts are another hub's.
type Session struct {
	Handle, Type, Vendor, Project, Folder, Computer string

	Offline bool
}

// marks returns the fields of a session by the names that they have in a card.
func (s *Session) marks() map[string]*string {
	return map[string]*string{"handle": &s.Handle, "type": &s.Type, "vendor": &s.Vendor, "project": &s.Project, "folder": &s.Folder, "computer": &s.Computer}
}

// Keyed reports whether a card says that requests to its agent may have keys.
func Keyed(card agent.Card) bool { return slices.Contains(card.Protocols, protocolKeys) }

// RunOf returns the run of the hub that has made a card, the [channel.Manager.Instance] of its process; "" if the card does not say it.
func RunOf(card agent.Card) string {
	for _, p := range card.Protocols {
		if run, ok := strings.CutPrefix(p, runMark); ok {
			return run
		}
	}
	return ""
}

// SessionOf returns what a card says of a session; ok is false for other agents.
func SessionOf(card agent.Card) (s Session, ok bool) {
	if !Keyed(card) || !slices.Contains(card.Protocols, protocolSession) {
		return s, false
	}
	s.Offline = slices.Contains(card.Protocols, protocolOffline)
	fields := s.marks()
	for _, p := range card.Protocols {
		name, value, _ := strings.Cut(strings.TrimPrefix(p, sessionMark), "/")
		if field := fields[name]; field != nil && strings.HasPrefix(p, sessionMark) {
			*field = clip(value, maxMark)
		}
	}
	return s, true
}

// AsOffline returns the protocols of a session's card as those of one that is offline.
func AsOffline(protocols []string) []string {
	if len(protocols) == 0 || slices.Contains(protocols, protocolOffline) {
		return protocols
	}
	return append(slices.Clone(protocols), protocolOffline)
}

// maxMark bounds a text about a session in bytes.
const maxMark = 128

// sessionProtocols are the protocols in the card of a session.
func sessionProtocols(info hub.AgentInfo) []string {
	marks := []string{protocolSession}
	if info.Health.Status == hub.Unhealthy {
		marks = append(marks, protocolOffline)
	}
	at := info.Residence
	s := Session{Handle: at.Handle, Type: at.Type, Vendor: at.Vendor, Project: at.Project, Folder: at.Folder, Computer: at.Computer}
	fields := s.marks()
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if value := clip(strings.TrimSpace(*fields[name]), maxMark); value != "" {
			marks = append(marks, sessionMark+name+"/"+value)
		}
	}
	return marks
}
