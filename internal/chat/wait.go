package chat

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// maxWaitMessages bounds what one wait returns.
const maxWaitMessages = 100

// Cursor is how far somebody has read: the sequence of the last message, by
// channel.
type Cursor map[string]uint64

// News is what came after a cursor.
type News struct {
	// Messages by channel, oldest first.
	Messages map[string][]Message
	// Cursor is behind the messages.
	Cursor Cursor
}

// Tips returns the cursor behind everything that the channels hold now.
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

// Wait blocks until a channel of the cursor has messages behind it, and returns
// them. It also waits through an outage. When ctx ends first it returns no
// messages, and an error only where the bus cannot be reached.
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
			if err == nil && moved(cursor, news.Cursor) { // what came cannot be read: look behind it
				cursor = news.Cursor
				continue
			}
			if err != nil && ctx.Err() == nil { // perhaps lost in an outage: look again
				pause(ctx, requestTimeout/10)
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

// Changed returns a channel that is closed when there may be something new in
// any of the channels: look after the call, and call it again each time.
func (s *Space) Changed() <-chan struct{} {
	changed := s.news.Wait()
	s.listen()
	return changed
}

// after returns what it finds behind the cursor. Where the time or the
// connection ends on the way, it returns what it has: the next look goes on from
// there, however slow the server is.
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

// moved says whether the second cursor stands elsewhere.
func moved(from, to Cursor) bool { return !maps.Equal(from, to) }

// messagesAfter returns the next messages behind seq and the sequence of the
// last that it looked at, also with an error. It looks at a bounded number of
// messages and bytes, whether they can be read or not.
func (s *Space) messagesAfter(ctx context.Context, b *bus.Bus, c Channel, seq uint64) ([]Message, uint64, error) {
	stream, err := b.JetStream().Stream(ctx, s.streamName(c.Name))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, seq, nil
	}
	if err != nil {
		return nil, seq, err
	}
	if stream.CachedInfo().State.LastSeq < seq {
		// The stream was made anew: its numbers begin again.
		seq = 0
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
		message, err := decode(raw.Data)
		if err != nil {
			s.log.Error("a message is skipped: it is not of the channel's format", "channel", c.Name, "error", err)
			continue
		}
		message.Sequence, message.ID = seq, raw.Header.Get(jetstream.MsgIDHeader)
		messages = append(messages, message)
	}
	s.log.Debug("new messages looked for", "stream", s.streamName(c.Name), "messages", len(messages), "sequence", seq)
	return slices.Clip(messages), seq, nil
}
