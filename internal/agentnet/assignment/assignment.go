// Package assignment hands the tasks of a hub to the sessions that are registered on its bus, and takes their answers.
//
// A task is mail in the session's inbox, durable and with receipts. What the session says about it is a request to the
// hub, which answers once that is stored: the bus ends with the hub, so that nothing is gained by a queue between them.
package assignment

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

const (
	answerSubject   = ".answer"
	progressSubject = ".progress"

	// maxAnswering bounds the requests of sessions that are handled at once; others wait.
	maxAnswering = 64
	// answerTime bounds the handling of one request.
	answerTime = 30 * time.Second
)

// Session is a session in the registry. The entry is not to be changed.
type Session struct {
	*registry.Entry
	Liveness registry.Liveness
}

// Handler handles what sessions say. Its methods are called concurrently.
type Handler interface {
	// Changed is called when the registry may have changed. It must not block.
	Changed()
	// Receipt is called when a session has got a notice or is done with it. It must not block.
	Receipt(mail.MessageStatus)
	// Answer stores a session's answer, and returns once it is stored. The error is a *store.Error.
	Answer(ctx context.Context, guid string, a Answer) error
	// Progress shows what a session says about its work on a task. The error is a *store.Error.
	Progress(guid string, p Progress) error
}

// SignHandler is a Handler that also learns the signs of the receipts of notices. It must not block.
type SignHandler interface {
	Signs(messageID string, a mail.Attention)
}

// Assigner is a hub's access to the sessions on its bus. It is safe for concurrent use.
type Assigner struct {
	store    *store.Store
	registry *registry.Registry
	mail     *mail.Service
	claims   *claims.Service
	log      *slog.Logger
	guid     string // of the hub
	handle   string
}

// Open returns an assigner that connects in the background. guid is the hub's, always the same; handle is its name.
func Open(cfg store.Config, guid, handle string) *Assigner {
	s := store.New(cfg.WithDefaults())
	reg := registry.New(s)
	d := &Assigner{store: s, registry: reg, mail: mail.New(reg), claims: claims.New(reg), log: s.Log(), guid: guid, handle: handle}
	s.Start()
	return d
}

// Close ends the connection.
func (d *Assigner) Close(ctx context.Context) error { return d.store.Close(ctx) }

// Sessions returns all entries of the registry.
func (d *Assigner) Sessions(ctx context.Context) ([]Session, error) {
	b, err := d.store.Connected()
	if err != nil {
		return nil, err
	}
	entries, err := d.registry.Entries(ctx, b)
	if err != nil {
		return nil, store.AsError(err)
	}
	sessions := make([]Session, len(entries))
	for i, e := range entries {
		sessions[i] = Session{&e.Entry, d.registry.Liveness(e)}
	}
	return sessions, nil
}

// Notice is a message to a session about one turn of a task.
type Notice struct {
	Recipient string
	TaskID    string
	Turn      int
	// Again tells a notice from an earlier one of the same turn; the same value stores it once.
	Again    string
	Canceled bool
	// Type is that of the message, mail.Task or mail.TaskCanceled by default.
	Type     mail.MessageType
	Text     string
	Metadata map[string]any
}

// ID returns the notice's message id, always the same.
func (n Notice) ID() string {
	name := fmt.Sprintf("parley:task:%s/%d/%s/%t", n.TaskID, n.Turn, n.Again, n.Canceled)
	if n.Type != "" {
		name += "/" + string(n.Type) + "/" + n.Recipient
	}
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(name)).String()
}

// Post stores a notice in the session's inbox, and returns when the session got it; zero if it has not. With a canceled task
// the session's claims of files end that were for it.
func (d *Assigner) Post(ctx context.Context, n Notice) (seen time.Time, err error) {
	b, err := d.store.Connected()
	if err != nil {
		return seen, err
	}
	kind := cmp.Or(n.Type, mail.Task)
	if n.Canceled {
		kind = mail.TaskCanceled
		if err := d.claims.EndTask(ctx, b, n.Recipient, n.TaskID); err != nil {
			d.log.Warn("the files of a canceled task are claimed until the claim ends", "task", n.TaskID, "error", err)
		}
	}
	id := n.ID()
	before, err := d.mail.StatusOf(ctx, b, d.guid, n.Recipient, id)
	if err != nil {
		return seen, err
	}
	if before != nil {
		return before.Seen(), nil
	}
	err = d.mail.PostTask(ctx, b, mail.TaskNotice{ID: id, SenderGUID: d.guid, SenderHandle: d.handle, Recipient: n.Recipient, Type: kind,
		Text: n.Text, Metadata: n.Metadata})
	return seen, err
}

// Serve calls h with what sessions do until ctx ends. It blocks until the calls have returned.
func (d *Assigner) Serve(ctx context.Context, h Handler) error {
	if err := d.store.Ready(ctx); err != nil {
		return err
	}
	b, err := d.store.Connected()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &service{assigner: d, h: h, ctx: ctx, free: make(chan struct{}, maxAnswering)}
	subscriptions, err := s.subscribe(b)
	defer func() {
		for _, sub := range subscriptions {
			_ = sub.Unsubscribe() // it fails if the connection has ended, and the subscription with it
		}
		cancel()
		s.calls.Wait()
	}()
	if err != nil {
		return err
	}
	changes := b.Conn().StatusChanged(nats.CONNECTED)
	defer b.Conn().RemoveStatusListener(changes)
	h.Changed()
	for {
		select {
		case <-changes:
			h.Changed()
		case <-ctx.Done():
			return nil
		}
	}
}

// service is one Serve.
type service struct {
	assigner *Assigner
	h        Handler
	ctx      context.Context
	free     chan struct{} // has a value for each call that runs
	calls    sync.WaitGroup
}

func (s *service) subscribe(b *bus.Bus) (all []*nats.Subscription, err error) {
	cfg := s.assigner.store.Config()
	for subject, handle := range map[string]nats.MsgHandler{
		store.BucketKeys + cfg.Bucket + ".*":            func(*nats.Msg) { s.h.Changed() },
		store.ReceiptSubject + s.assigner.guid + ".*.*": s.receipt,
		store.TaskSubject + "*" + answerSubject:         func(m *nats.Msg) { s.request(m, s.answer) },
		store.TaskSubject + "*" + progressSubject:       func(m *nats.Msg) { s.request(m, s.progress) },
	} {
		sub, err := b.Conn().Subscribe(subject, handle)
		if err != nil {
			return all, err
		}
		all = append(all, sub)
	}
	ctx, cancel := context.WithTimeout(s.ctx, store.RequestTimeout)
	defer cancel()
	return all, b.Conn().FlushWithContext(ctx)
}

func (s *service) receipt(m *nats.Msg) {
	if id, a, ok := mail.DecodeAttention(m.Subject, m.Data); ok {
		if h, wants := s.h.(SignHandler); wants {
			h.Signs(id, a)
		}
		return
	}
	var st mail.MessageStatus
	if json.Unmarshal(m.Data, &st) == nil && !st.Seen().IsZero() {
		s.h.Receipt(st)
	}
}

// request handles a session's request, and answers it.
func (s *service) request(m *nats.Msg, handle func(ctx context.Context, guid string, data []byte) error) {
	guid, _, _ := strings.Cut(strings.TrimPrefix(m.Subject, store.TaskSubject), ".")
	select {
	case s.free <- struct{}{}:
	case <-s.ctx.Done():
		return
	}
	s.calls.Go(func() {
		defer func() { <-s.free }()
		ctx, cancel := context.WithTimeout(s.ctx, answerTime)
		defer cancel()
		data, err := json.Marshal(newReply(handle(ctx, guid, m.Data)))
		if err == nil {
			err = m.Respond(data)
		}
		if err != nil {
			s.assigner.log.Warn("a session got no answer", "guid", guid, "error", err) // it asks again
		}
	})
}

func (s *service) answer(ctx context.Context, guid string, data []byte) error {
	a, err := decodeAnswer(data)
	if err != nil {
		return err
	}
	return s.h.Answer(ctx, guid, a)
}

func (s *service) progress(_ context.Context, guid string, data []byte) error {
	p, err := decodeProgress(data)
	if err != nil {
		return err
	}
	return s.h.Progress(guid, p)
}

// Waiting returns the oldest mail of a session that was not read, without texts, and whether there is more.
func (d *Assigner) Waiting(ctx context.Context, guid string, limit int) (list []mail.Mail, more bool, err error) {
	b, err := d.store.Connected()
	if err != nil {
		return nil, false, err
	}
	return d.mail.Waiting(ctx, b, guid, limit)
}

// Note records a sign of a message's receipt.
func (d *Assigner) Note(ctx context.Context, m mail.Mail, sign mail.Sign, at time.Time) error {
	b, err := d.store.Connected()
	if err != nil {
		return err
	}
	_, err = d.mail.Note(ctx, b, m, sign, at)
	return err
}

// AttentionOf returns the signs of a message's receipt, of a message of the hub if it has no sender.
func (d *Assigner) AttentionOf(ctx context.Context, m mail.Mail) (mail.Attention, error) {
	b, err := d.store.Connected()
	if err != nil {
		return mail.Attention{}, err
	}
	return d.mail.AttentionOf(ctx, b, cmp.Or(m.SenderGUID, d.guid), m.Recipient, m.ID)
}

// Follow calls arrived with the session for which mail was sent, until ctx ends. The mail may not be stored yet. arrived must not
// block.
func (d *Assigner) Follow(ctx context.Context, arrived func(guid string)) error {
	if err := d.store.Ready(ctx); err != nil {
		return err
	}
	b, err := d.store.Connected()
	if err != nil {
		return err
	}
	sub, err := b.Conn().Subscribe(store.InboxSubject+"*", func(m *nats.Msg) { arrived(strings.TrimPrefix(m.Subject, store.InboxSubject)) })
	if err != nil {
		return err
	}
	<-ctx.Done()
	_ = sub.Unsubscribe() // it fails if the connection has ended, and the subscription with it
	return nil
}

// CheckFiles returns the claims of other agents than guid on files.
func (d *Assigner) CheckFiles(ctx context.Context, guid string, files []claims.Target) ([]claims.Hit, error) {
	b, err := d.store.Connected()
	if err != nil {
		return nil, err
	}
	return d.claims.Check(ctx, b, guid, files)
}

// ClaimsIn returns the claims of files in the repository of a directory.
func (d *Assigner) ClaimsIn(ctx context.Context, dir string) ([]claims.Claim, error) {
	b, err := d.store.Connected()
	if err != nil {
		return nil, err
	}
	repository, err := claims.Find(d.store.Config().Hostname, dir)
	if err != nil {
		return nil, err
	}
	return d.claims.In(ctx, b, repository.Key)
}

// FileClaims returns the claims of files in all repositories.
func (d *Assigner) FileClaims(ctx context.Context) ([]claims.Claim, error) {
	b, err := d.store.Connected()
	if err != nil {
		return nil, err
	}
	return d.claims.All(ctx, b)
}

// BreakFileClaim ends the claim of any agent for the hub's user, by its id or a part of it, and tells its holder. notified is false if it could not
// be.
func (d *Assigner) BreakFileClaim(ctx context.Context, id string) (broken claims.Claim, notified bool, err error) {
	b, err := d.store.Connected()
	if err != nil {
		return broken, false, err
	}
	broken, err = d.claims.Break(ctx, b, id)
	if err != nil {
		return broken, false, err
	}
	_, err = d.Post(ctx, Notice{Recipient: broken.HolderGUID, TaskID: broken.ID, Type: mail.Direct, Metadata: map[string]any{"claimId": broken.ID},
		Text: fmt.Sprintf("The user has ended your claim %s of %s in %s: another agent may change these files now. Look at them again before you change them, and claim them with claim_files.",
			broken.ID, strings.Join(broken.Paths, ", "), broken.Repository)})
	if err != nil {
		d.log.Warn("the holder of a claim is not told that it was ended", "claim", broken.ID, "error", err)
	}
	return broken, err == nil, nil
}

// Correspondences returns which agents have written to each other, the newest first, without the hub's own notices.
func (d *Assigner) Correspondences(ctx context.Context) ([]mail.Correspondence, error) {
	b, err := d.store.Connected()
	if err != nil {
		return nil, err
	}
	return d.mail.Correspondences(ctx, b, d.guid)
}

// MailBetween returns the last messages of two agents to each other, with their receipts, and whether there are more.
func (d *Assigner) MailBetween(ctx context.Context, x, y string, limit int) ([]mail.Receipted, bool, error) {
	b, err := d.store.Connected()
	if err != nil {
		return nil, false, err
	}
	return d.mail.Between(ctx, b, x, y, limit)
}

// PersonGUID returns the GUID under which the hub's user writes mail.
func (d *Assigner) PersonGUID() string { return d.registry.PersonGUID() }
