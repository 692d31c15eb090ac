package chat

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// maxWaitMessages bounds what one wait returns.
const maxWaitMessages = 100

// Cursor is a read position: the sequence of the last message read, by channel.
type Cursor map[string]uint64

// News is the messages after a cursor.
type News struct {
	// Messages by channel, oldest first.
	Messages map[string][]Message
	// Cursor is the position after the messages.
	Cursor Cursor
}

// Tips returns the cursor after the newest messages of the channels.
func (s *Space) Tips(ctx context.Context, channels []string) (Cursor, error) {
	b, err := s.connected()
	if err != nil {
		return nil, err
	}
	cursor := Cursor{}
	for _, name := range channels {
		c, err := s.channel(name)
		if err != nil {
			return nil, err
		}
		if err := s.ensure(ctx, b, c); err != nil {
			return nil, unanswered(b, err)
		}
		if cursor[name], err = s.last(ctx, b, c); err != nil {
			return nil, unanswered(b, err)
		}
	}
	return cursor, nil
}

// Wait blocks until a channel of the cursor has later messages, and returns them. An outage does not end it. When ctx
// ends first it returns no messages, with an error only if the bus is unreachable.
func (s *Space) Wait(ctx context.Context, cursor Cursor) (News, error) {
	for name := range cursor {
		if _, err := s.channel(name); err != nil {
			return News{}, err
		}
	}
	for {
		changed := s.Changed()
		b, err := s.connected()
		if errors.Is(err, errClosed) {
			return News{}, err
		}
		if err == nil {
			var news News
			if news, err = s.after(ctx, b, cursor); err == nil && len(news.Messages) > 0 {
				return news, nil
			}
			if err == nil && moved(cursor, news.Cursor) { // past messages in an unreadable format
				cursor = news.Cursor
				continue
			}
			if err != nil && ctx.Err() == nil { // perhaps the connection was lost
				wait.Pause(ctx, requestTimeout/10)
				continue
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if err != nil && !errors.Is(err, ctx.Err()) {
				return News{}, connectionError(err)
			}
			return News{Cursor: cursor}, nil
		}
	}
}

// Changed returns a channel that is closed when any of the project's channels may have new messages. Read the channels
// after the call, and call it again for each wait.
func (s *Space) Changed() <-chan struct{} {
	changed := s.news.Wait()
	b := s.current()
	if b == nil {
		return changed // connect sends the signal
	}
	if err := s.watcher.open(b, s.cfg.Namespace+".*", s.news.Send); err != nil {
		s.log.Error("new messages cannot be watched", "error", err)
	}
	return changed
}

// after returns the messages after the cursor. If the time or the connection ends midway, it returns those read so far,
// so that a slow server makes progress over several calls.
func (s *Space) after(ctx context.Context, b *bus.Bus, cursor Cursor) (News, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	news := News{Messages: map[string][]Message{}, Cursor: maps.Clone(cursor)}
	for _, c := range s.cfg.Channels {
		seq, ok := cursor[c.Name]
		if !ok {
			continue
		}
		messages, last, err := s.messagesAfter(ctx, b, c, seq)
		news.Cursor[c.Name] = last
		if len(messages) > 0 {
			news.Messages[c.Name] = messages
		}
		if err != nil && moved(cursor, news.Cursor) {
			return news, nil
		}
		if err != nil {
			return News{}, err
		}
	}
	return news, nil
}

func moved(from, to Cursor) bool { return !maps.Equal(from, to) }

// messagesAfter returns the next messages after seq and the sequence of the last message that it fetched, also with an
// error. It fetches a bounded number of messages and bytes, readable or not.
func (s *Space) messagesAfter(ctx context.Context, b *bus.Bus, c Channel, seq uint64) ([]Message, uint64, error) {
	stream, err := b.JetStream().Stream(ctx, s.streamName(c.Name))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, seq, nil
	}
	if err != nil {
		return nil, seq, err
	}
	if stream.CachedInfo().State.LastSeq < seq {
		seq = 0 // the stream was deleted and created again
	}
	var messages []Message
	size := 0
	for looked := 0; looked < maxWaitMessages && size < MaxRead && seq < stream.CachedInfo().State.LastSeq; looked++ {
		raw, err := stream.GetMsg(ctx, seq+1, jetstream.WithGetMsgSubject(s.subject(c.Name)))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			return messages, seq, err
		}
		seq = raw.Sequence
		size += len(raw.Data)
		if m, ok := s.message(c, raw.Header, raw.Data); ok {
			m.Sequence = seq
			messages = append(messages, m)
		}
	}
	s.log.Debug("new messages fetched", "stream", s.streamName(c.Name), "messages", len(messages), "sequence", seq)
	return slices.Clip(messages), seq, nil
}
