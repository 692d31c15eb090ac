package agentnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// The limits of mail.
const (
	MaxMail          = 512 << 10 // a message's text, in bytes
	DefaultMailLimit = 50        // messages of one read (REQ-TOOL-READDIRECT-003)
	MaxMailLimit     = 1000
	maxMailRead      = 4 << 20 // bytes of one read
	sendAttempts     = 3
	maxAnnounced     = 200              // messages that are marked as delivered when an agent comes back
	mailPoll         = 10 * time.Second // how long a note of new mail may be lost
)

// mailPayload is a message on the bus (REQ-TOOL-DIRECT-007).
type mailPayload struct {
	MessageID     string          `json:"messageId"`
	SenderGUID    string          `json:"senderGuid"`
	SenderHandle  string          `json:"senderHandle"`
	RecipientGUID string          `json:"recipientGuid"`
	Message       string          `json:"message"`
	MessageType   MessageType     `json:"messageType"`
	Metadata      json.RawMessage `json:"metadata,omitempty"`
	Timestamp     string          `json:"timestamp"`
}

// Mail is a message in an agent's inbox. The sender's GUID and handle are what
// the sender says.
type Mail struct {
	ID           string
	SenderGUID   string
	SenderHandle string
	Recipient    string
	Text         string
	Type         MessageType
	Metadata     json.RawMessage // an object, or nil
	Timestamp    time.Time       // when it was sent
	Sequence     uint64
	// Read says that it was read before.
	Read bool
}

// decodeMail reads a message that this or another program has sent.
func decodeMail(data []byte, header nats.Header) (Mail, error) {
	var p mailPayload
	if !utf8.Valid(data) {
		return Mail{}, errors.New("not UTF-8")
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return Mail{}, err
	}
	sender, err := uuid.Parse(p.SenderGUID)
	if err != nil {
		return Mail{}, fmt.Errorf("the sender: %w", err)
	}
	recipient, err := uuid.Parse(p.RecipientGUID)
	if err != nil {
		return Mail{}, fmt.Errorf("the recipient: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, p.Timestamp)
	if err != nil {
		return Mail{}, err
	}
	m := Mail{ID: p.MessageID, SenderGUID: sender.String(), SenderHandle: p.SenderHandle, Recipient: recipient.String(),
		Text: p.Message, Type: or(p.MessageType, Direct), Metadata: p.Metadata, Timestamp: at}
	if uuid.Validate(m.ID) != nil { // of another program: the id must be one token of a subject
		m.ID = digest(or(m.ID, header.Get(jetstream.MsgIDHeader)), p.Timestamp, p.Message)
	}
	if !slices.Contains(MessageTypes, m.Type) {
		return Mail{}, fmt.Errorf("the message type %s", quote(string(m.Type)))
	}
	var object map[string]json.RawMessage
	if len(m.Metadata) > 0 && json.Unmarshal(m.Metadata, &object) != nil {
		return Mail{}, errors.New("the metadata are not an object")
	}
	if object == nil {
		m.Metadata = nil
	}
	return m, nil
}

// Message is what Send sends.
type Message struct {
	Recipient string // GUID
	Text      string
	Type      MessageType // "" is Direct
	Metadata  map[string]any
}

// Sent is a message that is stored in the recipient's inbox.
type Sent struct {
	ID              string
	RecipientHandle string
	Timestamp       time.Time
	// Warning says that the recipient is offline or busy (REQ-TOOL-DIRECT-006).
	Warning string
	// Queued says that the network cannot be reached and the message waits on this
	// computer, durably; RecipientHandle is the GUID then.
	Queued bool
}

// Send stores a message in another agent's inbox and returns when it is
// durable there (REQ-TOOL-DIRECT-008 to REQ-TOOL-DIRECT-010). The recipient may
// be offline.
//
// Where there is a hub (Config.DialLocal), mail for agents of this computer is
// stored there. While the network cannot be reached, other mail is kept in an outbox
// there, and forwarded in order.
func (a *Agent) Send(ctx context.Context, m Message) (Sent, error) {
	guid, err := checkGUID("recipientGuid", m.Recipient)
	if err != nil {
		return Sent{}, err
	}
	at, err := a.neighbour(ctx, guid)
	if err != nil {
		return Sent{}, err
	}
	if at == nil {
		at = a
	}
	b, outage := at.ready()
	queued, err := at.queued(ctx, outage)
	if err != nil {
		return Sent{}, err
	}
	if err := checkText(m.Text); err != nil {
		return Sent{}, err
	}
	kind := or(m.Type, Direct)
	metadata, err := checkMetadata(kind, m.Metadata, a.net.clock.now())
	if err != nil {
		return Sent{}, err
	}
	if queued {
		if err := a.charge(ctx, messageLimit); err != nil && !isConnection(err) {
			return Sent{}, err
		}
		return a.enqueue(ctx, guid, mailPayload{Message: m.Text, MessageType: kind, Metadata: metadata})
	}
	to, err := at.net.addressee(ctx, b, guid)
	if err != nil {
		return Sent{}, err
	}
	if err := a.charge(ctx, messageLimit); err != nil {
		return Sent{}, err
	}
	sent, err := at.post(ctx, b, guid, mailPayload{Message: m.Text, MessageType: kind, Metadata: metadata})
	if err != nil {
		return Sent{}, err
	}
	sent.RecipientHandle = to.handle
	switch to.status {
	case Offline:
		sent.Warning = fmt.Sprintf("%s is offline; the message waits in its inbox.", to.handle)
	case Busy:
		sent.Warning = fmt.Sprintf("%s is busy; the message waits in its inbox.", to.handle)
	}
	return sent, nil
}

func checkText(text string) error {
	switch {
	case text == "":
		return invalid("The message is empty.").WithRemedy("Say something in it.")
	case !utf8.ValidString(text):
		return invalid("The message is not valid UTF-8.").WithRemedy("Send text only; encode binary data, for example with base64.")
	case len(text) > MaxMail:
		return invalid("The message is %d bytes long; at most %d are allowed.", len(text), MaxMail).
			WithRemedy("Write the long part to a file and send its path, or split the message.")
	}
	return nil
}

func tooLarge(size int, most int64) *Error {
	return invalid("The message makes %d bytes on the network; the server takes %d.", size, most).
		WithRemedy("Write the long part to a file and send its path.")
}

// post stores a message, however often the attempt has to be repeated, once.
func (a *Agent) post(ctx context.Context, b *bus.Bus, recipient string, p mailPayload) (Sent, error) {
	now := a.net.clock.now()
	p.MessageID, p.RecipientGUID, p.Timestamp = uuid.NewString(), recipient, timestamp(now)
	p.SenderGUID, p.SenderHandle = a.guid, a.Entry().Handle
	data, err := json.Marshal(p)
	if err != nil {
		return Sent{}, &Error{Code: InternalError, Message: "The message cannot be encoded.", Err: err}
	}
	if most := b.Conn().MaxPayload() - 1024; int64(len(data)) > most {
		return Sent{}, tooLarge(len(data), most)
	}
	retry := wait.Backoff{Most: time.Second}
	for attempt := 1; ; attempt++ {
		_, err = b.Publish(ctx, &nats.Msg{Subject: inboxSubject + recipient, Data: data},
			jetstream.WithMsgID(p.MessageID), jetstream.WithExpectStream(a.net.inboxStream(recipient)))
		if err == nil {
			break
		}
		if inboxFull(err) {
			return Sent{}, &Error{Code: ConflictError, Message: "The recipient's inbox is full.",
				Remedy: "Try again when it has read its mail.", Err: err}
		}
		if attempt == sendAttempts || ctx.Err() != nil || !b.Conn().IsConnected() {
			return Sent{}, connectionError(err)
		}
		if errors.Is(err, jetstream.ErrNoStreamResponse) {
			if err := a.net.ensureInbox(ctx, b, recipient); err != nil {
				return Sent{}, err
			}
		}
		retry.Pause(ctx)
	}
	mail := Mail{ID: p.MessageID, SenderGUID: a.guid, Recipient: recipient, Timestamp: now}
	if err := a.receipt(ctx, b, mail, Stored); err != nil {
		a.log.Warn("a message is stored, but its receipt is not", "messageId", p.MessageID, "error", err)
	}
	return Sent{ID: p.MessageID, Timestamp: now}, nil
}

// Selection says which mail to read (REQ-TOOL-READDIRECT-003).
type Selection struct {
	Limit  int // 0 is DefaultMailLimit
	Type   MessageType
	Sender string // GUID
	// IncludeRead also returns what was read before, as long as it is kept.
	IncludeRead bool
}

func (s *Selection) check() error {
	s.Limit = or(s.Limit, DefaultMailLimit)
	if s.Limit < 1 || s.Limit > MaxMailLimit {
		return invalid("The limit %d is not allowed.", s.Limit).WithRemedy("Use a limit from 1 to %d.", MaxMailLimit)
	}
	if s.Type != "" && !slices.Contains(MessageTypes, s.Type) {
		return invalid("There is no message type %s.", quote(string(s.Type))).WithRemedy("Use one of: %s.", joinTypes())
	}
	if s.Sender == "" {
		return nil
	}
	guid, err := checkGUID("senderGuid", s.Sender)
	s.Sender = guid
	return err
}

func (s Selection) takes(m Mail) bool {
	return (s.Type == "" || m.Type == s.Type) && (s.Sender == "" || m.SenderGUID == s.Sender) && (s.IncludeRead || !m.Read)
}

// Read returns the oldest mail that is selected, oldest first, and marks it as
// read: nobody with the agent's identity gets it again, unless it asks for what
// was read (REQ-TOOL-READDIRECT-004 to REQ-TOOL-READDIRECT-006). more says that
// there was more than the limit.
func (a *Agent) Read(ctx context.Context, s Selection) (mail []Mail, more bool, err error) {
	if err := s.check(); err != nil {
		return nil, false, err
	}
	if near := a.nearby(); near != nil {
		return a.readBoth(ctx, near, s)
	}
	return a.readOne(ctx, s)
}

// readOne reads the inbox that is at this Agent's own bus.
func (a *Agent) readOne(ctx context.Context, s Selection) (mail []Mail, more bool, err error) {
	b, err := a.ready()
	if err != nil {
		return nil, false, err
	}
	retry := conflictBackoff
	for attempt := 1; ; attempt++ {
		mail, more, err = a.readOnce(ctx, b, s)
		if err == nil {
			return mail, more, nil
		}
		if !errors.Is(err, errConflict) || attempt == maxConflicts {
			return nil, false, connectionError(err)
		}
		retry.Pause(ctx)
	}
}

func (a *Agent) readOnce(ctx context.Context, b *bus.Bus, s Selection) (mail []Mail, more bool, err error) {
	mark, err := a.currentMark(ctx, b)
	if err != nil {
		return nil, false, err
	}
	a.mu.Lock()
	a.debts.settle(mark)
	owed := a.debts.pay(s)
	a.mu.Unlock()
	if len(owed) > 0 {
		a.receipts(ctx, b, owed)
		return owed, true, nil // perhaps
	}
	size, next := 0, newMark(mark.readMarks)
	visit := func(m Mail) bool {
		taken := s.takes(m)
		if taken && (len(mail) == s.Limit || (size > 0 && size+len(m.Text) > maxMailRead)) {
			more = true
			return false
		}
		if taken {
			mail = append(mail, m)
			size += len(m.Text)
		}
		next.see(m.Sequence, m.Read || taken)
		return true
	}
	floor := mark.Floor
	if s.IncludeRead {
		floor = 0
	}
	skipped := false
	err = scan(ctx, b, a.net.inboxStream(a.guid), inboxSubject+a.guid, floor+1, func(s stored) bool {
		m, err := a.openMail(s, mark.readMarks)
		if err == nil {
			return visit(m)
		}
		if !mark.read(s.sequence) {
			a.log.Error("mail is skipped: it is not of the network's format", "sequence", s.sequence, "error", err)
			skipped = true
		}
		next.see(s.sequence, true) // so that it goes the way of what was read, and makes room
		return true
	})
	if err != nil {
		return nil, false, err
	}
	unread := slices.DeleteFunc(slices.Clone(mail), func(m Mail) bool { return m.Read })
	if len(unread) == 0 && !skipped {
		return mail, more, nil
	}
	if err := ctx.Err(); err != nil { // nobody is there to be given it
		return nil, false, err
	}
	// From here on it is the caller's, however long the answer takes.
	ctx = context.WithoutCancel(ctx)
	read := uuid.NewString()
	marks := next.marks(read)
	if err := a.writeMark(ctx, b, marks, mark.revision); err != nil {
		if !errors.Is(err, errConflict) { // it may have been written all the same
			a.mu.Lock()
			a.debts.unsure = append(a.debts.unsure, unsureRead{read, mark.revision, unread})
			a.mu.Unlock()
		}
		return nil, false, err
	}
	if len(unread) > 0 {
		a.receipts(ctx, b, unread)
	}
	if err := a.net.trim(ctx, b, a.guid, marks.Floor); err != nil {
		a.log.Warn("the inbox was not trimmed", "error", err)
	}
	return mail, more, nil
}

// unread calls visit with the mail that was not read yet.
func (a *Agent) unread(ctx context.Context, b *bus.Bus, mark markValue, visit func(Mail) bool) error {
	announced := 0
	return a.look(ctx, b, mark.Floor, mark.readMarks, func(m Mail) bool {
		if m.Read {
			return true
		}
		announced++
		return announced <= maxAnnounced && visit(m)
	})
}

// openMail reads a message of the agent's inbox.
func (a *Agent) openMail(s stored, marks readMarks) (Mail, error) {
	m, err := decodeMail(s.data, s.header)
	if err == nil && m.Recipient != a.guid {
		err = errors.New("it is for another agent")
	}
	m.Sequence, m.Read = s.sequence, marks.read(s.sequence)
	return m, err
}

// look calls visit with the mail behind floor, and says what was read. What is not of
// the network's format it skips; who reads the inbox says so.
func (a *Agent) look(ctx context.Context, b *bus.Bus, floor uint64, marks readMarks, visit func(Mail) bool) error {
	return scan(ctx, b, a.net.inboxStream(a.guid), inboxSubject+a.guid, floor+1, func(s stored) bool {
		m, err := a.openMail(s, marks)
		return err != nil || visit(m)
	})
}

// Wait blocks until there is selected mail that was not read, and reads it. When
// ctx ends first it returns nothing, and an error only where the network cannot
// be reached.
func (a *Agent) Wait(ctx context.Context, s Selection) (mail []Mail, more bool, err error) {
	s.IncludeRead = false
	poll := time.NewTicker(mailPoll)
	defer poll.Stop()
	for {
		changed, online := a.mail.Wait(), a.net.news.Wait()
		var changedNear <-chan struct{} // nil, which never comes, without one
		if near := a.nearPlace(); near != nil {
			changedNear = near.mail.Wait()
		}
		mail, more, err = a.Read(ctx, s)
		if len(mail) > 0 || (err != nil && !isConnection(err)) {
			return mail, more, err
		}
		select {
		case <-changed:
		case <-changedNear:
		case <-online:
		case <-poll.C:
		case <-ctx.Done():
			if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				return nil, false, err
			}
			return nil, false, nil
		}
	}
}

func isConnection(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == ConnectionError && !errors.Is(err, errClosed)
}

// Unread counts the mail that was not read yet, up to 1000.
func (a *Agent) Unread(ctx context.Context) (int, error) {
	near := a.nearby()
	if near == nil {
		return a.unreadOne(ctx)
	}
	here, err := near.unreadOne(ctx)
	if err != nil {
		return 0, err
	}
	there, err := a.unreadOne(ctx)
	if err != nil && !isConnection(err) {
		return 0, err
	}
	return min(here+there, MaxMailLimit), nil
}

func (a *Agent) unreadOne(ctx context.Context) (int, error) {
	b, err := a.ready()
	if err != nil {
		return 0, err
	}
	mark, err := a.readMark(ctx, b)
	count := 0
	if err == nil {
		err = a.look(ctx, b, mark.Floor, mark.readMarks, func(m Mail) bool {
			if !m.Read {
				count++
			}
			return count < MaxMailLimit
		})
	}
	if err != nil {
		return 0, connectionError(err)
	}
	return count, nil
}
