package agentnet

import (
	"context"
	"errors"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// Inspection is how a network is, as one sees who does not take part.
type Inspection struct {
	Used    bool // somebody has taken part before
	Live    int  // agents, also those that nobody may see
	Offline int
	Dead    uint64 // items of work in the dead letters
	// Mail and Work wait on a hub's bus for the network that the hub's computer
	// takes part in.
	Mail uint64
	Work int
}

// Inspect looks at the network with the registry bucket, "" for the default, and
// changes nothing.
func Inspect(ctx context.Context, b *bus.Bus, bucket string) (Inspection, error) {
	cfg := Config{Bucket: bucket, Logger: slog.New(slog.DiscardHandler)}.withDefaults()
	n := &Network{cfg: cfg, log: cfg.Logger, clock: clock{own: cfg.Now}}
	var i Inspection
	err := n.askTime(ctx, b)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return i, nil
	}
	if err != nil {
		return i, connectionError(err)
	}
	i.Used = true
	all, err := n.seats(ctx, b)
	if err != nil {
		return i, connectionError(err)
	}
	for _, s := range all {
		if n.liveness(s) == Gone {
			i.Offline++
		} else {
			i.Live++
		}
	}
	dead, err := b.JetStream().Stream(ctx, deadStream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
	case err != nil:
		return i, connectionError(err)
	default:
		i.Dead = dead.CachedInfo().State.Msgs
	}
	outbox, err := b.JetStream().Stream(ctx, outboxStream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound): // no hub's, or nobody has begun yet
		return i, nil
	case err != nil:
		return i, connectionError(err)
	}
	i.Mail = outbox.CachedInfo().State.Msgs
	work, err := n.unfinished(ctx, b)
	if err != nil {
		return i, connectionError(err)
	}
	i.Work = len(work)
	return i, nil
}
