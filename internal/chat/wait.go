package chat

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

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
	// Unread has the error of each channel of the cursor that could not be read.
	Unread map[string]error
}

// maxTipRequests bounds the concurrent requests of Tips.
const maxTipRequests = 16

// A TipsError has the error of each channel that Tips could not read.
type TipsError map[string]error

// Error implements error.
func (e TipsError) Error() string { return errors.Join(e.Unwrap()...).Error() }

// Unwrap returns the errors in the order of the channels' names.
func (e TipsError) Unwrap() []error {
	var list []error
	for _, name := range slices.Sorted(maps.Keys(e)) {
		list = append(list, e[name])
	}
	return list
}

// Tips returns the cursor after the newest messages of the channels. With a TipsError it is that of the channels that
// answered. It asks for all at once, so that a stream without a leader delays it only once.
func (s *Space) Tips(ctx context.Context, channels []string) (Cursor, error) {
	b, err := s.usable(ctx)
	if err != nil {
		return nil, err
	}
	cursor, failed := Cursor{}, TipsError{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(maxTipRequests)
	for _, name := range channels {
		c, err := s.channel(name)
		if err != nil {
			return nil, errors.Join(err, group.Wait())
		}
		group.Go(func() error {
			last, err := s.tip(ctx, b, c)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[name] = err
			} else {
				cursor[name] = last
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil || len(failed) == 0 {
		return cursor, err
	}
	return cursor, failed
}

// Ailing returns the channels whose streams did not answer the last request.
func (s *Space) Ailing() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ailing := map[string]bool{}
	for name := range s.ailing {
		ailing[name] = true
	}
	return ailing
}

// tip returns the sequence of the newest message of a channel.
func (s *Space) tip(ctx context.Context, b *bus.Bus, c Channel) (uint64, error) {
	if _, recent := s.ails(c.Name); recent {
		return 0, s.ailingError(c)
	}
	if err := s.ensure(ctx, b, c); err != nil {
		return 0, err
	}
	if end, current, _ := s.watcher.end(c.Name); current {
		return end, nil
	}
	at := s.watcher.mark(c.Name)
	ctx, release := s.request(ctx, b, c)
	defer release()
	last, err := s.last(ctx, b, c)
	if err != nil {
		return 0, s.unanswered(ctx, b, c, err)
	}
	s.watcher.learn(c.Name, at, last)
	return last, nil
}

// Wait blocks until a channel of the cursor has later messages, and returns them. An outage does not end it. When ctx
// ends first it returns no messages, with an error if no channel could be read last. A permission that the server refuses
// to all channels, or to the notification of new messages, is an error at once.
func (s *Space) Wait(ctx context.Context, cursor Cursor) (News, error) {
	for name := range cursor {
		if _, err := s.channel(name); err != nil {
			return News{}, err
		}
	}
	var unread map[string]error
	var failure error // of the last attempt
	for {
		changed := s.Changed()
		b, err := s.connected()
		if errors.Is(err, errClosed) {
			return News{}, err
		}
		failure = cmp.Or(err, failure)
		if err == nil {
			var news News
			var moved bool
			if news, moved, err = s.after(ctx, b, cursor); err == nil && len(news.Messages) > 0 {
				return news, nil
			}
			if err == nil && moved { // past messages in an unreadable format
				cursor = news.Cursor
				continue
			}
			if err == nil {
				err = s.watcher.refused()
			}
			if ctx.Err() == nil {
				unread, failure = news.Unread, err
			}
			if err != nil && ctx.Err() == nil {
				if denied(err) {
					return News{}, err
				}
				wait.Pause(ctx, requestTimeout/10) // perhaps the connection was lost
				continue
			}
		}
		retry := s.retryAiling(cursor)
		select {
		case <-changed:
		case <-retry:
		case <-ctx.Done():
			if failure != nil {
				return News{}, connectionError(failure)
			}
			return News{Cursor: cursor, Unread: unread}, nil
		}
	}
}

// retryAiling returns a channel that receives when a stream of the cursor's channels that did not answer may be asked
// again; nil if there is none.
func (s *Space) retryAiling(cursor Cursor) <-chan time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.ailing {
		if _, ok := cursor[name]; ok {
			return time.After(ailingFor)
		}
	}
	return nil
}

// Changed returns a channel that is closed when any of the project's channels may have new messages. Read the channels
// after the call, and call it again for each wait.
func (s *Space) Changed() <-chan struct{} {
	changed := s.news.Wait()
	b := s.current()
	if b == nil {
		return changed // connect sends the signal
	}
	if err := s.watcher.open(b, s.notificationSubject(), s.received, s.acknowledged, s.news.Send); err != nil {
		s.log.Error("new messages cannot be watched", "error", err)
	}
	return changed
}

// after returns the messages after the cursor, and whether the cursor has moved. If the time or the connection ends midway,
// it returns those read so far, so that a slow server makes progress over several calls. A channel whose stream does not
// answer is asked last, and only if the others have nothing; then it returns an error only if no channel answered.
func (s *Space) after(ctx context.Context, b *bus.Bus, cursor Cursor) (news News, moved bool, err error) {
	behind := s.behind(cursor)
	if len(behind) == 0 { // nothing is made for each of the channels, of which there may be hundreds
		return News{Cursor: cursor}, false, nil
	}
	news = News{Messages: map[string][]Message{}, Cursor: maps.Clone(cursor), Unread: map[string]error{}}
	answered := len(behind) < len(cursor)
	var failure error
	s.lookUp(ctx, b, behind)
	for _, c := range behind {
		seq := cursor[c.Name]
		if messages, last, ok := s.watcher.after(c.Name, seq); ok {
			news.Cursor[c.Name], moved, answered = last, true, true
			if len(messages) > 0 {
				news.Messages[c.Name] = messages
			}
			continue
		}
		since, recent := s.ails(c.Name)
		if end, current, _ := s.watcher.end(c.Name); current && end == seq && since.IsZero() {
			answered = true
			continue
		}
		if !since.IsZero() && moved {
			continue
		}
		if recent {
			news.Unread[c.Name] = s.ailingError(c)
			failure = cmp.Or(failure, news.Unread[c.Name])
			continue
		}
		messages, last, err := s.nextOf(ctx, b, c, seq)
		news.Cursor[c.Name] = last
		moved = moved || last != seq
		if len(messages) > 0 {
			news.Messages[c.Name] = messages
		}
		if err != nil && moved {
			return news, true, nil
		}
		if err != nil {
			news.Unread[c.Name] = err
		}
		failure = cmp.Or(failure, err)
		answered = answered || err == nil
	}
	if failure != nil && !answered {
		return News{}, false, failure
	}
	return news, moved, nil
}

// behind returns the channels of a cursor that may have later messages, those last whose streams did not answer.
func (s *Space) behind(cursor Cursor) []Channel {
	names := s.watcher.behind(cursor)
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.ailing {
		if _, ok := cursor[name]; ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	channels := make([]Channel, len(names))
	for i, name := range names {
		channels[i] = s.byName[name]
	}
	slices.SortFunc(channels, func(a, b Channel) int {
		return cmp.Or(s.ailing[a.Name].Compare(s.ailing[b.Name]), cmp.Compare(a.Name, b.Name))
	})
	return channels
}

// lookUp looks up where those of the channels end of which that is not known, several at once. Those that cannot be looked
// up remain unknown.
func (s *Space) lookUp(ctx context.Context, b *bus.Bus, channels []Channel) {
	var group errgroup.Group
	group.SetLimit(maxTipRequests)
	for _, c := range channels {
		_, current, due := s.watcher.end(c.Name)
		if since, _ := s.ails(c.Name); current || due || !since.IsZero() {
			continue
		}
		group.Go(func() error {
			request, release := s.request(ctx, b, c)
			defer release()
			at := s.watcher.mark(c.Name)
			last, err := s.endOf(request, b, c)
			switch {
			case err == nil:
				s.watcher.learn(c.Name, at, last)
			case ctx.Err() == nil:
				_ = s.unanswered(request, b, c, err) // marks a stream that does not answer; reading it returns the error
			}
			return nil
		})
	}
	_ = group.Wait()
}

// nextOf is messagesAfter within requestTimeout.
func (s *Space) nextOf(ctx context.Context, b *bus.Bus, c Channel, seq uint64) ([]Message, uint64, error) {
	request, release := s.request(ctx, b, c)
	defer release()
	messages, last, err := s.messagesAfter(request, b, c, seq)
	if err != nil && ctx.Err() == nil {
		err = s.unanswered(request, b, c, err)
	}
	if err == nil {
		s.heal(c.Name)
	}
	return messages, last, err
}

// messagesAfter returns the next messages after seq and the sequence of the last message that it fetched, also with an
// error. It fetches a bounded number of messages and bytes, readable or not.
func (s *Space) messagesAfter(ctx context.Context, b *bus.Bus, c Channel, seq uint64) ([]Message, uint64, error) {
	at := s.watcher.mark(c.Name)
	_, current, due := s.watcher.end(c.Name)
	if !current && !due {
		last, err := s.endOf(ctx, b, c)
		if err != nil {
			return nil, seq, err
		}
		if last <= seq {
			s.watcher.learn(c.Name, at, last)
		}
		if last == seq {
			return nil, seq, nil
		}
		if last < seq {
			seq = 0 // the stream was deleted and created again
		}
	}
	messages, last, more, err := s.fetch(ctx, b, c, seq)
	if err == nil && last == seq && seq > 0 { // nothing: not stored yet, or the stream was deleted and created again
		end, endErr := s.endOf(ctx, b, c)
		if endErr != nil {
			return nil, seq, endErr
		}
		if end < seq {
			seq = 0
			messages, last, more, err = s.fetch(ctx, b, c, seq)
		}
	}
	if err == nil && !more {
		s.watcher.learn(c.Name, at, last)
	}
	s.log.Debug("new messages fetched", "stream", s.streamName(c.Name), "messages", len(messages), "sequence", last)
	return messages, last, err
}

// endOf returns the sequence of the newest message that a channel has had, 0 without a stream.
func (s *Space) endOf(ctx context.Context, b *bus.Bus, c Channel) (uint64, error) {
	stream, err := b.JetStream().Stream(ctx, s.streamName(c.Name))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return stream.CachedInfo().State.LastSeq, nil
}

// fetch is messagesAfter without the check whether the stream is another one. more is false if nothing follows.
func (s *Space) fetch(ctx context.Context, b *bus.Bus, c Channel, seq uint64) (messages []Message, last uint64, more bool, err error) {
	stored, more, err := b.Messages(ctx, s.streamName(c.Name), seq+1, maxWaitMessages, MaxRead)
	if errors.Is(err, nats.ErrNoResponders) {
		return s.fetchSingly(ctx, b, c, seq)
	}
	ids := make([]string, len(stored))
	for i, raw := range stored {
		seq, ids[i] = raw.Sequence, raw.Header.Get(jetstream.MsgIDHeader)
		if m, ok := s.message(c, raw.Header, raw.Data); ok {
			m.Sequence = seq
			messages = append(messages, m)
		}
	}
	s.watcher.got(c.Name, ids)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		err = nil
	}
	return messages, seq, more, err
}

// fetchSingly is fetch for a stream of another program that does not allow direct access, or that does not exist.
func (s *Space) fetchSingly(ctx context.Context, b *bus.Bus, c Channel, seq uint64) (messages []Message, last uint64, more bool, err error) {
	stream, err := b.JetStream().Stream(ctx, s.streamName(c.Name))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, seq, false, nil
	}
	if err != nil {
		return nil, seq, true, err
	}
	size := 0
	for looked := 0; looked < maxWaitMessages && size < MaxRead; looked++ {
		raw, err := stream.GetMsg(ctx, seq+1, jetstream.WithGetMsgSubject(s.subject(c.Name)))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return messages, seq, false, nil
		}
		if err != nil {
			return messages, seq, true, err
		}
		seq = raw.Sequence
		s.watcher.got(c.Name, []string{raw.Header.Get(jetstream.MsgIDHeader)})
		size += len(raw.Data)
		if m, ok := s.message(c, raw.Header, raw.Data); ok {
			m.Sequence = seq
			messages = append(messages, m)
		}
	}
	return messages, seq, true, nil
}
