package hub

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"strings"
	"unicode"

	"github.com/parleyhub/parley/internal/base/text"
)

// SenderKind is what a sender is.
type SenderKind string

// The kinds of senders besides the hub's own user, whose kind is empty.
const (
	SenderClient  SenderKind = "client"  // a program on this computer that calls over HTTP or gRPC
	SenderA2A     SenderKind = "a2a"     // a client on another computer
	SenderPeer    SenderKind = "peer"    // an agent of a paired hub
	SenderProgram SenderKind = "program" // a program with the coordination library
)

// Sender is who sends a message. The zero value is the hub's own user with the user's agents: whoever calls through the
// hub's socket. Nothing of it is secret.
type Sender struct {
	Kind SenderKind `json:"kind,omitempty"`
	// ID identifies the sender among those of its kind: an address, or the id of a peer's agent. It is proven.
	ID string `json:"id,omitempty"`
	// Label is for people: what the sender calls itself, which proves nothing, or what the user calls the hub.
	Label string `json:"label,omitempty"`
}

const (
	maxSenderID    = 256
	maxSenderLabel = 120
)

// Own reports whether the sender is the hub's own user.
func (s Sender) Own() bool { return s.Kind == "" }

// Outside reports whether the sender may be on another computer.
func (s Sender) Outside() bool { return !s.Own() && s.Kind != SenderClient }

// Same reports whether both are the same sender, whatever they call themselves.
func (s Sender) Same(other Sender) bool { return s.Kind == other.Kind && s.ID == other.ID }

// String returns what people read of a sender, on one line.
func (s Sender) String() string {
	if s.Own() {
		return "the hub's user"
	}
	name := string(s.Kind) + " " + s.ID
	if s.Label != "" && s.Label != s.ID {
		name += " (" + s.Label + ")"
	}
	return name
}

// clean bounds what comes from the sender itself.
func (s Sender) clean() Sender {
	s.ID = text.Clip(printable(s.ID), maxSenderID)
	s.Label = text.Clip(printable(s.Label), maxSenderLabel)
	return s
}

// printable returns a text on one line, without control characters.
func printable(s string) string {
	return text.OneLine(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s))
}

// ClientAt returns the sender for a call from a network address. direct is false if the call came through something else,
// such as a proxy or a web page: a loopback address says nothing then.
func ClientAt(address string, direct bool) Sender {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return Sender{Kind: SenderA2A, ID: "unknown"}
	}
	ip = ip.Unmap().WithZone("")
	switch {
	case ip.IsLoopback() && direct:
		return Sender{Kind: SenderClient, ID: ip.String()}
	case ip.IsLoopback():
		return Sender{Kind: SenderA2A, ID: "proxy at " + ip.String()}
	}
	return Sender{Kind: SenderA2A, ID: ip.String()}
}

type senderKey struct{}

// WithSender returns a context for calls of a sender: it is that of each message that names no other one.
func WithSender(ctx context.Context, s Sender) context.Context {
	return context.WithValue(ctx, senderKey{}, s)
}

// SenderFrom returns the sender of a context, the zero value without one.
func SenderFrom(ctx context.Context) Sender {
	s, _ := ctx.Value(senderKey{}).(Sender)
	return s
}

// identified returns the request with its sender.
func (req SendRequest) identified(ctx context.Context) SendRequest {
	if req.Sender.Own() {
		req.Sender = SenderFrom(ctx)
	}
	req.Sender = req.Sender.clean()
	return req
}

// storedSender is a sender in a task's metadata.
type storedSender struct {
	Sender
	Permitted bool `json:"permitted,omitempty"` // the user has permitted the sender's messages to this task
}

// SenderOf returns the sender of the message that a task works on, or has worked on last.
func SenderOf(taskMetadata map[string]any) Sender { return readSender(taskMetadata).Sender }

// Permitted reports whether the hub's user has permitted the sender of a task to send its messages.
func Permitted(taskMetadata map[string]any) bool {
	s := readSender(taskMetadata)
	return s.Own() || s.Permitted
}

func readSender(taskMetadata map[string]any) (s storedSender) {
	stored, ok := taskMetadata[MetaSender]
	if !ok {
		return s
	}
	if s, ok := readStored(stored); ok {
		return s
	}
	raw, err := json.Marshal(stored)
	if err != nil || json.Unmarshal(raw, &s) != nil || s.Own() {
		return storedSender{Sender: Sender{Kind: SenderA2A, ID: "unknown"}} // it is somebody: only the hub writes it
	}
	return s
}

// data returns the sender as it is in a task's metadata, decoded.
func (s storedSender) data() map[string]any {
	m := make(map[string]any, 4)
	for _, f := range [...]struct{ name, value string }{{"kind", string(s.Kind)}, {"id", s.ID}, {"label", s.Label}} {
		if f.value != "" {
			m[f.name] = f.value
		}
	}
	if s.Permitted {
		m["permitted"] = true
	}
	return m
}

// readStored is the inverse of data. ok is false for anything that data would not return.
func readStored(stored any) (s storedSender, ok bool) {
	m, _ := stored.(map[string]any)
	for name, value := range m {
		switch text, isText := value.(string); {
		case name == "kind" && isText:
			s.Kind = SenderKind(text)
		case name == "id" && isText:
			s.ID = text
		case name == "label" && isText:
			s.Label = text
		case name == "permitted" && value == true:
			s.Permitted = true
		default:
			return storedSender{}, false
		}
	}
	return s, !s.Own()
}

// setSender notes who sent the message of the next turn. What the user has permitted holds for the same sender. mu is held.
func (t *task) setSender(s Sender) {
	now := readSender(t.metadata)
	switch {
	case s.Same(now.Sender):
	case s.Own():
		t.metadata = maps.Clone(t.metadata)
		delete(t.metadata, MetaSender)
		t.snap = nil
	default:
		t.setMeta(MetaSender, storedSender{Sender: s}.data())
	}
}

// reachable returns an error if a sender cannot reach the agent: to others than this hub's own users and agents, a hidden
// one is not there.
func (a *agent) reachable(s Sender) error {
	a.mu.Lock()
	hidden := a.at.Hidden
	a.mu.Unlock()
	if !hidden || !s.Outside() {
		return nil
	}
	return &Error{Code: CodeAgentNotFound, Message: "there is no agent " + text.Quote(a.id, 64), Remedy: "the list of agents names those there are"}
}
