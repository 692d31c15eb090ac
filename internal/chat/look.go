package chat

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// ChannelOf returns the channel whose messages a stream with this metadata stores. ok is false for other streams.
func ChannelOf(metadata map[string]string) (namespace, channel string, ok bool) {
	namespace, channel = metadata[metaNamespace], metadata[metaChannel]
	return namespace, channel, namespace != "" && channel != ""
}

// ReaderOf returns the handle of the agent whose reads a consumer of a channel's stream records. ok is false for other consumers.
func ReaderOf(consumer string) (handle string, ok bool) {
	rest, ok := strings.CutPrefix(consumer, readerPrefix)
	at := strings.LastIndexByte(rest, '-')
	if !ok || at <= 0 {
		return "", false
	}
	return rest[:at], true
}

// Look returns the last limit messages of a channel that exists, oldest first, and whether there are older ones. It leaves no
// trace: unlike Read it creates no stream and no consumer.
func Look(ctx context.Context, b *bus.Bus, namespace, channel string, limit int) (messages []Message, more bool, err error) {
	s, c := namesOnly(namespace, channel)
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, s.streamName(channel))
	if err != nil {
		return nil, false, s.unanswered(ctx, b, c, err)
	}
	state := stream.CachedInfo().State
	if state.Msgs == 0 {
		return nil, false, nil
	}
	from := max(state.FirstSeq, state.LastSeq-min(state.LastSeq, uint64(limit))+1)
	for next := from; ; {
		stored, rest, err := b.Messages(ctx, s.streamName(channel), next, limit, MaxRead)
		for _, raw := range stored {
			next = raw.Sequence + 1
			if m, ok := s.message(c, raw.Header, raw.Data); ok {
				m.Sequence = raw.Sequence
				messages = append(messages, m)
			}
		}
		if err != nil && len(stored) == 0 && next == from {
			return nil, false, s.unanswered(ctx, b, c, err)
		}
		if !rest || len(stored) == 0 || len(messages) >= limit {
			return messages, from > state.FirstSeq, nil
		}
	}
}

// Post stores a message in a channel that exists, and returns when it is durable. It neither creates nor changes the channel.
func Post(ctx context.Context, b *bus.Bus, namespace, channel, handle, text string, at time.Time) error {
	if err := CheckHandle(handle); err != nil {
		return err
	}
	if err := checkText(text); err != nil {
		return err
	}
	data, err := encode(handle, text, at)
	if err != nil {
		return &Error{Code: InternalError, Message: "The message could not be encoded.", Err: err}
	}
	s, c := namesOnly(namespace, channel)
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	_, err = b.Publish(ctx, &nats.Msg{Subject: s.subject(channel), Data: data},
		jetstream.WithMsgID(uuid.NewString()), jetstream.WithExpectStream(s.streamName(channel)))
	if err != nil {
		return s.unanswered(ctx, b, c, err)
	}
	return nil
}

// namesOnly returns a Space that knows the names of one channel, and has no connection.
func namesOnly(namespace, channel string) (*Space, Channel) {
	c := Channel{Name: channel}
	return newNames(namespace, []Channel{c}), c
}
