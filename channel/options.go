package channel

import (
	"context"
	"encoding/json"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
)

// Options set up a Manager. Only Dialers is needed, and only to open channels;
// zero means the default that each field names.
type Options struct {
	// Dialers opens connections, by transport.
	Dialers map[agent.Transport]transport.Dialer
	// Resolve returns an agent's endpoints, for [Manager.Open].
	Resolve func(ctx context.Context, agentID string) ([]agent.Endpoint, error)
	// Authorize accepts or refuses a channel that a peer opens or resumes; the peer gets
	// the text of its error. Nil accepts every channel that the transport accepts.
	Authorize func(context.Context, Request) error
	// Introduce returns the card to send when a local agent, under the id that the peer gets (see Names), opens or
	// accepts a channel; nil, or no card, sends none.
	Introduce func(agentID string) json.RawMessage
	// Names translates the ids of local agents for other processes; nil: they are the same everywhere.
	Names Names
	// Introduced is called after Authorize with the card that a peer sent; an error refuses the channel.
	Introduced func(context.Context, Request) error
	// Policy decides which agents may have channels and what may go over them; nil permits everything.
	Policy Policy
	// Local reports whether the agent with this id at an endpoint is of this process; the endpoint is empty if none is
	// given. A channel to one needs neither dialer nor endpoint: its two ends are among [Manager.Channels]. Nil: no
	// agent is.
	Local func(agentID string, at agent.Endpoint) bool
	// Routed says that a router counts the envelopes that [Manager.Forward] sends and that the handlers of OnMessage
	// receive, so that Telemetry gets message-sent and message-received events of the others only.
	Routed bool
	// Ended is called, possibly twice, with each channel that has ended or failed to
	// open, once it is no longer among [Manager.Channels]. It must not block.
	Ended func(*Channel)

	Window      int // envelopes that were sent and not yet handled; 256
	WindowBytes int // their approximate bytes, in each direction; 16 MiB
	MaxChannels int // 100,000

	Retries          int           // after a failed delivery; 3
	RetryDelay       time.Duration // before the first retry, then doubled; 100 ms
	AckTimeout       time.Duration // without progress, then the connection counts as broken; 15 s
	AckDelay         time.Duration // at most, until an acknowledgement is sent; 10 ms
	GapTimeout       time.Duration // for a missing envelope among later ones, then the connection counts as broken; 2 s
	ProbeTimeout     time.Duration // for the answer to a probe, then the connection counts as broken; 2 s
	HandshakeTimeout time.Duration // 10 s
	ReconnectDelay   time.Duration // before reconnecting, then doubled up to 5 s; 100 ms
	ReconnectTimeout time.Duration // without a connection or the other agent, then the channel closes; 60 s

	// Checkpoints stores, across restarts, how many envelopes of each channel were
	// handled; nil keeps that in memory only.
	Checkpoints Checkpoints
	// Telemetry gets message-sent, message-received, channel-state,
	// delivery-failure, security and error events; nil, none.
	Telemetry telemetry.Sink
	// OnDeliveryFailure is called with each envelope that failed. If the channel closed
	// before the acknowledgement, the envelope may have arrived.
	OnDeliveryFailure func(*Channel, *envelope.Envelope, error)
}

// Request is a peer's request for a channel.
type Request struct {
	Peer   string          // as the transport has authenticated it
	From   string          // the agent that it speaks for
	To     string          // the local agent
	Card   json.RawMessage // From's card, if it was sent; see agent.Decode
	Resume bool            // continues a channel that the peer opened before
	Own    bool            // the peer is this process: see Options.Local
}

// Policy decides about channels and envelopes, as a router.Router does. It records its refusals.
type Policy interface {
	// PermitChannel returns nil if agent from may open a channel to agent to, as far as both are known. It is called
	// at both ends once they have exchanged cards, also when a channel reconnects, and at the opener's before.
	PermitChannel(from, to string) error
	// PermitEnvelope returns nil if an envelope may go to agent to. It is called for each envelope before it is
	// queued to be sent, and before a handler receives it.
	PermitEnvelope(to string, e *envelope.Envelope) error
}

// Names translates between the ids of local agents and those by which other processes know them. Peers use the latter,
// in handshakes and envelopes; everything at this end, the envelopes that handlers get included, has the local ones.
type Names interface {
	// Outside returns the id of a local agent for a remote one.
	Outside(local, remote string) string
	// Inside returns the id of the local agent that a peer means with an id; it returns other ids as they are.
	Inside(id string) string
}

// sameNames are the names of a process whose agents have the same ids everywhere.
type sameNames struct{}

func (sameNames) Outside(local, _ string) string { return local }
func (sameNames) Inside(id string) string        { return id }

// open is the policy that permits everything.
type open struct{}

func (open) PermitChannel(string, string) error              { return nil }
func (open) PermitEnvelope(string, *envelope.Envelope) error { return nil }

// Checkpoints stores, for each channel, the number of the last envelope that was handled. Implementations must be
// safe for concurrent use. A crash exactly between the handler's return and Save repeats that one envelope; a
// handler that must not repeat it stores the envelope's id with its effect.
type Checkpoints interface {
	// Load returns the number, 0 for an unknown channel.
	Load(channelID string) (uint64, error)
	// Save is called after an envelope was handled and before it is acknowledged,
	// for one channel from one goroutine at a time. An error closes the channel.
	Save(channelID string, handled uint64) error
}

func (o Options) withDefaults() Options {
	defaults.Set(&o.Window, 256)
	o.Window = min(o.Window, maxWindow)
	defaults.Set(&o.WindowBytes, 16<<20)
	defaults.Set(&o.MaxChannels, 100_000)
	defaults.Set(&o.Retries, 3)
	defaults.Set(&o.RetryDelay, 100*time.Millisecond)
	defaults.Set(&o.AckTimeout, 15*time.Second)
	defaults.Set(&o.AckDelay, 10*time.Millisecond)
	defaults.Set(&o.GapTimeout, 2*time.Second)
	defaults.Set(&o.ProbeTimeout, 2*time.Second)
	defaults.Set(&o.HandshakeTimeout, 10*time.Second)
	defaults.Set(&o.ReconnectDelay, 100*time.Millisecond)
	defaults.Set(&o.ReconnectTimeout, time.Minute)
	if o.Telemetry == nil {
		o.Telemetry = (*telemetry.Recorder)(nil)
	}
	accept := func(context.Context, Request) error { return nil }
	if o.Authorize == nil {
		o.Authorize = accept
	}
	if o.Introduced == nil {
		o.Introduced = accept
	}
	if o.Introduce == nil {
		o.Introduce = func(string) json.RawMessage { return nil }
	}
	if o.Policy == nil {
		o.Policy = open{}
	}
	if o.Names == nil {
		o.Names = sameNames{}
	}
	if o.Local == nil {
		o.Local = func(string, agent.Endpoint) bool { return false }
	}
	if o.Ended == nil {
		o.Ended = func(*Channel) {}
	}
	if o.OnDeliveryFailure == nil {
		o.OnDeliveryFailure = func(*Channel, *envelope.Envelope, error) {}
	}
	return o
}

const (
	maxWindow         = 1 << 16
	maxReconnectDelay = 5 * time.Second
	closeTimeout      = time.Second // to notify the peer
	maxTombstones     = 4096
)
