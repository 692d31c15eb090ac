package daemon

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
	"github.com/parleyhub/parley/internal/hub"
)

// threads are what agents write to each other on this hub's bus, for its user. It implements dialect.Threads.
type threads struct{ d *daemon }

const (
	channelThread = "channel:" // with NAMESPACE/CHANNEL
	mailThread    = "mail:"    // with GUID+GUID, or with the GUID of one who writes with the user

	maxThreadProjects = 32
	maxThreads        = 500
)

// Threads implements dialect.Threads.
func (t threads) Threads(ctx context.Context) ([]dialect.Thread, error) {
	streams, err := t.d.bus.ProjectStreams(ctx, maxThreadProjects)
	if err != nil {
		return nil, threadsError(err)
	}
	var all []dialect.Thread
	for i := range streams {
		if s := &streams[i]; s.Messages > 0 {
			if namespace, channel, ok := channelOf(s); ok {
				all = append(all, dialect.Thread{ID: channelThread + namespace + "/" + channel, Kind: dialect.ThreadChannel, Project: namespace, Channel: channel,
					Messages: int(s.Messages), Newest: dialect.Time{Time: s.Newest}})
			}
		}
	}
	letters, err := t.d.files.correspondences(ctx)
	if err != nil {
		return nil, threadsError(err)
	}
	names := t.names(ctx, len(letters) > 0)
	for _, c := range letters {
		all = append(all, dialect.Thread{ID: mailThread + c.A + "+" + c.B, Kind: dialect.ThreadMail, Between: []dialect.Correspondent{names.of(c.A), names.of(c.B)},
			Messages: c.Messages, Unread: c.Unread, Newest: dialect.Time{Time: c.Newest}})
	}
	slices.SortStableFunc(all, func(a, b dialect.Thread) int { return b.Newest.Compare(a.Newest.Time) })
	return all[:min(len(all), maxThreads)], nil
}

// channelOf returns the channel of a stream that belongs to its namespace.
func channelOf(s *bus.ProjectStream) (namespace, channel string, ok bool) {
	namespace, channel, ok = chat.ChannelOf(s.Metadata)
	return namespace, channel, ok && namespace == s.Namespace
}

// correspondents are the handles of agents by GUID.
type correspondents struct {
	person  string
	handles map[string]string
}

// names reads the handles of the agents if they are wanted.
func (t threads) names(ctx context.Context, wanted bool) correspondents {
	c := correspondents{handles: map[string]string{}}
	if !wanted {
		return c
	}
	c.person = t.d.files.get().PersonGUID()
	all, err := t.d.files.get().Sessions(ctx)
	if err != nil {
		t.d.log.Debug("mail is shown without handles", "error", err)
	}
	for _, s := range all {
		c.handles[s.GUID] = s.Handle
	}
	return c
}

func (c correspondents) of(guid string) dialect.Correspondent {
	if guid == c.person {
		return dialect.Correspondent{GUID: guid, Handle: local.PersonHandle(), You: true}
	}
	return dialect.Correspondent{GUID: guid, Handle: c.handles[guid]}
}

// Thread implements dialect.Threads.
func (t threads) Thread(ctx context.Context, id string, limit int) (*dialect.ThreadMessages, error) {
	if rest, ok := strings.CutPrefix(id, channelThread); ok {
		found, err := t.channel(ctx, rest, limit)
		return found, threadsError(err)
	}
	a, b, err := t.writers(id)
	if err != nil {
		return nil, err
	}
	found, err := t.mail(ctx, a, b, limit)
	return found, threadsError(err)
}

// writers returns the two agents of a thread of mail.
func (t threads) writers(id string) (a, b string, err error) {
	rest, ok := strings.CutPrefix(id, mailThread)
	a, b, two := strings.Cut(rest, "+")
	if !two && ok && t.d.files.used() {
		b = t.d.files.get().PersonGUID()
	}
	if a, err = store.CheckGUID("threadId", a); err != nil || !ok {
		return "", "", errNoThread(id)
	}
	if b, err = store.CheckGUID("threadId", b); err != nil {
		return "", "", errNoThread(id)
	}
	return a, b, nil
}

func errNoThread(id string) error {
	return &hub.Error{Code: hub.CodeInvalid, Subject: "threadId", Message: "there is no thread " + text.Quote(id, 80), Remedy: "use an id of hub/threads/list"}
}

// channel returns the messages of a channel, with those who have read up to each.
func (t threads) channel(ctx context.Context, name string, limit int) (*dialect.ThreadMessages, error) {
	namespace, channel, stream, err := t.stream(ctx, name)
	if err != nil {
		return nil, err
	}
	var found dialect.ThreadMessages
	var messages []chat.Message
	err = t.joined(ctx, namespace, func(b *bus.Bus) (err error) {
		messages, found.More, err = chat.Look(ctx, b, namespace, channel, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		found.Messages = append(found.Messages, dialect.ThreadMessage{ID: m.ID, From: m.Handle, Text: m.Text, At: dialect.Time{Time: m.Timestamp}})
	}
	for who, reader := range readersOf(stream) {
		at, exact := slices.BinarySearchFunc(messages, reader.Sequence, func(m chat.Message, seq uint64) int { return cmp.Compare(m.Sequence, seq) })
		if !exact {
			at--
		}
		if at >= 0 {
			m := &found.Messages[at]
			seen := dialect.Seen{Who: who}
			if !reader.At.IsZero() {
				seen.At = &dialect.Time{Time: reader.At}
			}
			m.SeenBy = append(m.SeenBy, seen)
		}
	}
	for i := range found.Messages {
		slices.SortFunc(found.Messages[i].SeenBy, func(a, b dialect.Seen) int { return strings.Compare(a.Who, b.Who) })
	}
	return &found, nil
}

// readersOf returns how far each agent has read a channel; one that has read it as several processes, the furthest of them.
func readersOf(s *bus.ProjectStream) map[string]bus.StreamReader {
	readers := map[string]bus.StreamReader{}
	for _, r := range s.Readers {
		if who, ok := chat.ReaderOf(r.Name); ok && r.Sequence >= readers[who].Sequence && r.Sequence > 0 {
			readers[who] = r
		}
	}
	return readers
}

// stream returns the stream of a channel, named as NAMESPACE/CHANNEL.
func (t threads) stream(ctx context.Context, name string) (namespace, channel string, s *bus.ProjectStream, err error) {
	namespace, channel, _ = strings.Cut(name, "/")
	all, err := t.d.bus.ProjectStreams(ctx, maxThreadProjects)
	if err != nil {
		return "", "", nil, err
	}
	for i := range all {
		if n, c, ok := channelOf(&all[i]); ok && n == namespace && c == channel {
			return n, c, &all[i], nil
		}
	}
	return "", "", nil, errNoThread(channelThread + name)
}

// joined calls f with a connection to a project's part of the bus.
func (t threads) joined(ctx context.Context, namespace string, f func(b *bus.Bus) error) error {
	b, err := t.d.joinOwn(ctx, bus.Config{Name: "parley-hub screens " + namespace}, bus.GrantRequest{Access: bus.AccessProject, Namespace: namespace})
	if err != nil {
		return err
	}
	defer func() { _ = within(time.Second, b.Close) }() // what was written is acknowledged
	return f(b)
}

// mail returns the mail of two agents with its receipts.
func (t threads) mail(ctx context.Context, a, b string, limit int) (*dialect.ThreadMessages, error) {
	if !t.d.files.used() {
		return &dialect.ThreadMessages{}, nil
	}
	letters, more, err := t.d.files.get().MailBetween(ctx, a, b, limit)
	if err != nil {
		return nil, err
	}
	names, found := t.names(ctx, true), &dialect.ThreadMessages{More: more}
	for _, m := range letters {
		kind := string(m.Type)
		if m.Type == mail.Direct {
			kind = ""
		}
		found.Messages = append(found.Messages, dialect.ThreadMessage{ID: m.ID, From: cmp.Or(names.of(m.SenderGUID).Handle, m.SenderHandle), To: cmp.Or(names.of(m.Recipient).Handle, m.Recipient),
			Type: kind, Text: m.Text, At: dialect.Time{Time: m.Timestamp}, Receipt: &m.Status})
	}
	return found, nil
}

// WriteThread implements dialect.Threads.
func (t threads) WriteThread(ctx context.Context, id, words string) (*dialect.WrittenMessage, error) {
	written := &dialect.WrittenMessage{ThreadID: id, From: local.PersonHandle()}
	if rest, ok := strings.CutPrefix(id, channelThread); ok {
		namespace, channel, _, err := t.stream(ctx, rest)
		if err == nil {
			err = t.joined(ctx, namespace, func(b *bus.Bus) error { return chat.Post(ctx, b, namespace, channel, written.From, words, time.Now()) })
		}
		return written, threadsError(err)
	}
	a, b, err := t.writers(id)
	if err != nil {
		return nil, err
	}
	recipient := a
	switch person := t.d.files.get().PersonGUID(); person {
	case b:
	case a:
		recipient = b
	default:
		return nil, &hub.Error{Code: hub.CodeInvalid, Subject: "threadId", Message: "this is the mail of two agents, and you are neither", Remedy: "write to one of them"}
	}
	written.Warning, err = t.send(ctx, recipient, words)
	return written, threadsError(err)
}

// send sends mail as the hub's user. An answer is in the user's inbox, see `parley network inbox`.
func (t threads) send(ctx context.Context, recipient, words string) (warning string, err error) {
	network := t.d.queues.get()
	if network == nil {
		return "", store.ErrNotYet
	}
	me, err := network.RegisterPerson(ctx, local.PersonHandle())
	if err != nil {
		return "", err
	}
	sent, err := me.Send(ctx, mail.Message{Recipient: recipient, Text: words})
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, failed := network.Leave(leave, me); failed != nil {
		t.d.log.Warn("the hub's user has not left the agents' network after writing", "error", failed)
	}
	return sent.Warning, err
}

// threadsError returns an error of the channels or of the agents' network as one of the hub.
func threadsError(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*chat.Error](err); ok {
		code := hub.CodeUnavailable
		if e.Code == chat.ValidationError {
			code = hub.CodeInvalid
		}
		return &hub.Error{Code: code, Subject: "text", Message: strings.TrimSuffix(e.Message, "."), Remedy: strings.TrimSuffix(e.Remedy, "."), Err: err}
	}
	e, ok := errors.AsType[*store.Error](err)
	if !ok {
		return err
	}
	code := hub.CodeUnavailable
	if e.Code == store.NotFoundError || e.Code == store.ValidationError {
		code = hub.CodeInvalid
	}
	return &hub.Error{Code: code, Subject: "threadId", Message: strings.TrimSuffix(e.Message, "."), Remedy: strings.TrimSuffix(e.Remedy, "."), Err: err}
}

var _ dialect.Threads = threads{}
