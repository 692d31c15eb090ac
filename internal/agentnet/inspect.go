package agentnet

import (
	"context"
	"errors"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/bus"
)

// Inspection is the state of a network, seen without taking part in it.
type Inspection struct {
	Used    bool // the network's streams exist
	Live    int  // agents, whatever their visibility
	Offline int
	Dead    uint64 // items of work in the dead letters
	// Mail and Work are what waits on a hub's bus to be forwarded to the network.
	Mail uint64
	Work int
}

// Inspect returns the state of the network whose registry has the bucket, "" for the default. It changes nothing.
func Inspect(ctx context.Context, b *bus.Bus, bucket string) (Inspection, error) {
	s := store.New(store.Config{Bucket: bucket, Logger: slog.New(slog.DiscardHandler)}.WithDefaults())
	defer s.Stop()
	var i Inspection
	err := s.MeasureTime(ctx, b)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return i, nil
	}
	if err != nil {
		return i, store.AsError(err)
	}
	i.Used = true
	reg := registry.New(s)
	all, err := reg.Entries(ctx, b)
	if err != nil {
		return i, store.AsError(err)
	}
	for _, e := range all {
		if reg.Liveness(e) == registry.Gone {
			i.Offline++
		} else {
			i.Live++
		}
	}
	if i.Dead, _, err = messages(ctx, b, store.DeadStream); err != nil {
		return i, store.AsError(err)
	}
	var isHub bool // and somebody has used the network through it
	if i.Mail, isHub, err = messages(ctx, b, outboxStream); err != nil || !isHub {
		return i, store.AsError(err)
	}
	list, err := work.New(reg).Unfinished(ctx, b)
	i.Work = len(list)
	return i, store.AsError(err)
}

// messages counts the messages of a stream, and reports whether it exists.
func messages(ctx context.Context, b *bus.Bus, stream string) (count uint64, exists bool, err error) {
	s, err := b.JetStream().Stream(ctx, stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	}
	return s.CachedInfo().State.Msgs, true, nil
}
