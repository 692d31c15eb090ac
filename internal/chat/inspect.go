package chat

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// ChannelState is how one channel is on the bus.
type ChannelState struct {
	Channel Channel
	// Exists says whether its stream was made already: the first use makes it.
	Exists          bool
	Messages, Bytes uint64
	Newest          time.Time // zero of an empty channel
	// Err is why the channel cannot be used, an *Error; nil if it can.
	Err error
}

// probeTimeout bounds one question: a server does not answer what is forbidden.
const probeTimeout = 2 * time.Second

// Inspect looks at the stream of every channel, and makes and changes nothing.
// Whether messages may be published it learns from one without content that the
// server refuses. When a question stays without an answer, the channels after it
// have the same error.
func Inspect(ctx context.Context, b *bus.Bus, namespace string, channels []Channel) []ChannelState {
	s := &Space{cfg: Config{Namespace: namespace, Channels: channels}} // for its names only
	states := make([]ChannelState, len(channels))
	var silent error
	for i, c := range channels {
		states[i].Channel = c
		if states[i].Err = silent; silent != nil {
			continue
		}
		states[i].Err = s.inspect(ctx, b, &states[i])
		if e, ok := errors.AsType[*Error](states[i].Err); ok && e.Category == ConnectionError {
			silent = e
		}
	}
	return states
}

func (s *Space) inspect(ctx context.Context, b *bus.Bus, state *ChannelState) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, s.streamName(state.Channel.Name))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return unanswered(b, err)
	}
	info := stream.CachedInfo()
	if err := s.checkOwner(state.Channel, info.Config); err != nil {
		return err
	}
	state.Exists, state.Messages, state.Bytes, state.Newest = true, info.State.Msgs, info.State.Bytes, info.State.LastTime
	return s.mayPublish(ctx, b, state.Channel)
}

// mayPublish asks with a message for a stream that the subject does not belong
// to: the server answers that it does not, and stores nothing.
func (s *Space) mayPublish(ctx context.Context, b *bus.Bus, c Channel) error {
	_, err := b.JetStream().PublishMsg(ctx, nats.NewMsg(s.subject(c.Name)),
		jetstream.WithExpectStream("parley-doctor"), jetstream.WithRetryAttempts(0))
	if api, ok := errors.AsType[*jetstream.APIError](err); ok && api.ErrorCode == errStreamMismatch {
		return nil
	}
	if err == nil {
		return &Error{Category: InternalError, Message: fmt.Sprintf("The server ignores which stream a message for %q is meant for.", c.Name),
			Remedy: "Use a NATS server of version 2.2 or later."}
	}
	return unanswered(b, err)
}
