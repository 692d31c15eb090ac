package chat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// ChannelState is the state of one channel on the bus.
type ChannelState struct {
	Channel         Channel
	Exists          bool // whether the stream exists; the first use creates it
	Messages, Bytes uint64
	Newest          time.Time // zero for an empty channel
	Err             error     // an *Error: why the channel cannot be used; nil if it can
}

// Inspect reads the state of every channel without changing anything. It checks the permission to publish with an
// empty message that the server rejects. After a request without an answer, the remaining channels get the same error.
func Inspect(ctx context.Context, b *bus.Bus, namespace string, channels []Channel) []ChannelState {
	s := newNames(namespace, channels)
	states := make([]ChannelState, len(channels))
	var silent error
	for i, c := range channels {
		states[i] = ChannelState{Channel: c, Err: silent}
		if silent != nil {
			continue
		}
		err := s.inspect(ctx, b, &states[i])
		if states[i].Err = err; err != nil && outage(err) && !answers(b) {
			silent = err
		}
	}
	return states
}

// newNames returns a Space for its names only: it has no connection.
func newNames(namespace string, channels []Channel) *Space {
	return &Space{cfg: Config{Namespace: namespace, Channels: channels}, log: slog.New(slog.DiscardHandler), ailing: map[string]time.Time{}}
}

func (s *Space) inspect(ctx context.Context, b *bus.Bus, state *ChannelState) error {
	ctx, cancel := s.request(ctx, b, state.Channel)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, s.streamName(state.Channel.Name))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		lookup, release := context.WithTimeout(ctx, pingTimeout) // a user may lack the permission
		defer release()
		if _, missing := b.JetStream().StreamNameBySubject(lookup, s.subject(state.Channel.Name)); missing == nil {
			return s.taken(ctx, b, state.Channel, nil)
		}
		return nil
	}
	if err != nil {
		return s.unanswered(ctx, b, state.Channel, err)
	}
	info := stream.CachedInfo()
	if err := s.checkOwner(state.Channel, info.Config); err != nil {
		return err
	}
	state.Exists, state.Messages, state.Bytes, state.Newest = true, info.State.Msgs, info.State.Bytes, info.State.LastTime
	// The server rejects a message that expects another stream, and stores nothing; without the permission to publish it
	// does not answer.
	_, err = b.JetStream().PublishMsg(ctx, nats.NewMsg(s.subject(state.Channel.Name)),
		jetstream.WithExpectStream("parley-doctor"), jetstream.WithRetryAttempts(0))
	if api, ok := errors.AsType[*jetstream.APIError](err); ok && api.ErrorCode == errStreamMismatch {
		return nil
	}
	if err == nil {
		return &Error{Code: InternalError, Message: fmt.Sprintf("The server ignores the expected stream of a message for %q.", state.Channel.Name),
			Remedy: "Use a NATS server of version 2.2 or later."}
	}
	return s.unanswered(ctx, b, state.Channel, err)
}
