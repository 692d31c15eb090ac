package channel

import (
	"context"
	"encoding/json"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
)

// Options set up a Manager. Only Dialers is needed, and only to open channels;
// zero means the default that each field names.
type Options struct {
	// Dialers opens connections, by transport.
	Dialers map[agent.Transport]transport.Dialer
	// Resolve returns where an agent can be reached; [Manager.Open] asks it.
	Resolve func(ctx context.Context, agentID string) ([]agent.Endpoint, error)
	// Authorize decides on a channel that a peer opens or resumes; an error
	// refuses it, and its text reaches the peer. Nil takes every channel that the
	// transport lets in.
	Authorize func(context.Context, Request) error
	// Introduce returns the card to send along when a local agent opens or takes
	// a channel; nil, or no card, sends none.
	Introduce func(agentID string) json.RawMessage
	// Introduced is told of the card that a peer sent, after Authorize; an error
	// refuses the channel.
	Introduced func(context.Context, Request) error
	// Ended is told of each channel that has ended, one that never opened included,
	// when it is no longer among [Manager.Channels], maybe twice. It must not block.
	Ended func(*Channel)

	Window      int // envelopes that were sent and not yet handled; 256
	WindowBytes int // their bytes, about, at either end: what it holds for the other; 16 MiB
	MaxChannels int // 100,000

	Retries          int           // after a delivery that failed; 3
	RetryDelay       time.Duration // before the first retry, then doubled; 100 ms
	AckTimeout       time.Duration // without a sign of life, then the connection counts as broken; 15 s
	AckDelay         time.Duration // at most, until an acknowledgement is sent; 10 ms
	GapTimeout       time.Duration // for a missing envelope among later ones, then the connection counts as broken; 2 s
	HandshakeTimeout time.Duration // 10 s
	ReconnectDelay   time.Duration // before connecting again, then doubled up to 5 s; 100 ms
	ReconnectTimeout time.Duration // without a connection, then the channel closes; 60 s

	// Checkpoints keeps how far this process has handled channels, across
	// restarts; nil keeps it in memory only.
	Checkpoints Checkpoints
	// Telemetry gets message-sent, message-received, channel-state,
	// delivery-failure, security and error events; nil, none.
	Telemetry telemetry.Sink
	// OnDeliveryFailure is told of each envelope that was given up. If
	// the channel closed before an acknowledgement came, it may have arrived.
	OnDeliveryFailure func(*Channel, *envelope.Envelope, error)
}

// Request is what a peer asks for.
type Request struct {
	Peer   string          // who it is, as the transport has authenticated it
	From   string          // the agent that it speaks for
	To     string          // the local agent that it wants
	Card   json.RawMessage // From's card, if it was sent; see agent.Decode
	Resume bool            // it goes on with a channel that it opened before
}

// Checkpoints keeps, for each channel, the number up to which its envelopes were
// handled. Implementations must be safe for concurrent use. A crash exactly
// between the handler's return and Save repeats that one envelope; a handler
// that must exclude it remembers the envelope's id with its effect.
type Checkpoints interface {
	// Load returns the number, 0 for a channel that is not known.
	Load(channelID string) (uint64, error)
	// Save is called after an envelope was handled and before it is acknowledged,
	// for one channel from one goroutine at a time. An error closes the channel.
	Save(channelID string, handled uint64) error
}

func (o Options) withDefaults() Options {
	number := func(n *int, otherwise int) {
		if *n <= 0 {
			*n = otherwise
		}
	}
	duration := func(d *time.Duration, otherwise time.Duration) {
		if *d <= 0 {
			*d = otherwise
		}
	}
	number(&o.Window, 256)
	o.Window = min(o.Window, maxWindow)
	number(&o.WindowBytes, 16<<20)
	number(&o.MaxChannels, 100_000)
	number(&o.Retries, 3)
	duration(&o.RetryDelay, 100*time.Millisecond)
	duration(&o.AckTimeout, 15*time.Second)
	duration(&o.AckDelay, 10*time.Millisecond)
	duration(&o.GapTimeout, 2*time.Second)
	duration(&o.HandshakeTimeout, 10*time.Second)
	duration(&o.ReconnectDelay, 100*time.Millisecond)
	duration(&o.ReconnectTimeout, time.Minute)
	if o.Telemetry == nil {
		o.Telemetry = (*telemetry.Recorder)(nil)
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
	closeTimeout      = time.Second // for telling the peer
)
