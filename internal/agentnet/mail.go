package agentnet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Send stores a message in another agent's inbox and returns when it is durable there. The recipient may be offline.
//
// Where there is a hub (Config.DialLocal), mail for agents of this computer is stored on its bus. While the network
// cannot be reached, other mail is stored in an outbox there, and forwarded in order.
func (a *Agent) Send(ctx context.Context, m mail.Message) (mail.Sent, error) {
	guid, err := store.CheckGUID("recipientGuid", m.Recipient)
	if err != nil {
		return mail.Sent{}, err
	}
	at, err := a.mailRoute(ctx, guid)
	if err != nil {
		return mail.Sent{}, err
	}
	queued, err := a.mustQueue(ctx, at)
	if err != nil {
		return mail.Sent{}, err
	}
	draft, err := mail.NewDraft(m, a.net.main.store.Now())
	if err != nil {
		return mail.Sent{}, err
	}
	if queued {
		if err := a.use(ctx, store.MessageLimit); err != nil && !store.IsUnreachable(err) {
			return mail.Sent{}, err
		}
		return a.enqueue(ctx, guid, draft)
	}
	b, err := at.Ready()
	if err != nil {
		return mail.Sent{}, err
	}
	to, err := at.of.registry.Addressee(ctx, b, guid)
	if err != nil {
		return mail.Sent{}, err
	}
	if err := a.use(ctx, store.MessageLimit); err != nil {
		return mail.Sent{}, err
	}
	sent, err := at.box.Post(ctx, guid, draft)
	if err != nil {
		return mail.Sent{}, err
	}
	sent.RecipientHandle = to.Handle
	if to.Status == registry.Offline || to.Status == registry.Busy {
		sent.Warning = fmt.Sprintf("The recipient is %s; the message waits in its inbox.", to.Status)
	}
	return sent, nil
}

// deliver stores a message in an agent's inbox, or in the outbox.
func (a *Agent) deliver(ctx context.Context, guid string, draft mail.Draft) (mail.Sent, error) {
	at, err := a.mailRoute(ctx, guid)
	if err != nil {
		return mail.Sent{}, err
	}
	if _, err := at.Ready(); err != nil {
		return mail.Sent{}, err
	}
	queued, err := a.mustQueue(ctx, at)
	if err != nil {
		return mail.Sent{}, err
	}
	if queued {
		return a.enqueue(ctx, guid, draft)
	}
	return at.box.Post(ctx, guid, draft)
}

// mailRoute returns where mail for an agent is stored: on the hub's bus if it is an agent of this computer, and in
// the network otherwise. An agent that once had mail on the hub's bus always has, so that its mail stays in order.
func (a *Agent) mailRoute(ctx context.Context, guid string) (*member, error) {
	local := a.localMember()
	if local == nil {
		return a.main, nil
	}
	b, err := local.Ready()
	if err == nil {
		_, err = local.of.registry.Addressee(ctx, b, guid)
	}
	if err == nil {
		a.net.neighbors.Store(guid, true)
		return local, nil
	}
	if _, known := a.net.neighbors.Load(guid); store.IsUnreachable(err) && (known || a.mayBeLocal(ctx, guid)) {
		return nil, err
	}
	return a.main, nil
}

// mayBeLocal reports whether an agent may be one of this computer, while the hub's bus cannot be queried. A first
// message sent to the network could arrive after a second one sent to the hub's bus.
func (a *Agent) mayBeLocal(ctx context.Context, guid string) bool {
	b, err := a.main.Ready()
	if err != nil {
		return true
	}
	host, err := a.net.main.registry.HostOf(ctx, b, guid)
	return err != nil || host == a.net.cfg.Hostname
}

// Read returns the oldest selected mail, oldest first, and marks it as read: no process with the agent's identity
// receives it again, unless it selects mail that was read. more reports whether there may be more than the limit.
func (a *Agent) Read(ctx context.Context, s mail.Selection) (list []mail.Mail, more bool, err error) {
	return a.read(ctx, s, (*mail.Box).Read)
}

// Take is Read, but does not mark the mail as read: that needs Answered, and then Acknowledge or, if the answer is Alive,
// that the agent stays active for mail.AcknowledgeAfter. Until then only the process with the agent's next life returns it again.
func (a *Agent) Take(ctx context.Context, s mail.Selection, answer *mail.Answer) (list []mail.Mail, more bool, err error) {
	return a.read(ctx, s, taking(answer))
}

// boxRead reads one inbox.
type boxRead func(x *mail.Box, ctx context.Context, s mail.Selection) ([]mail.Mail, bool, error)

func taking(answer *mail.Answer) boxRead {
	return func(x *mail.Box, ctx context.Context, s mail.Selection) ([]mail.Mail, bool, error) {
		return x.Take(ctx, s, answer)
	}
}

// Answered reports that an answer with mail was written, or that it will not be: then the mail is returned again. An
// answer without mail needs no report.
func (a *Agent) Answered(answer *mail.Answer, written bool) {
	a.main.box.Answered(answer, written)
	if local := a.localMember(); local != nil {
		local.box.Answered(answer, written)
	}
	if !written {
		a.unread.forget()
	}
}

// Acknowledge marks the mail as read whose answer was written up to a time. It is known to have been received, because the
// agent has called since. Without such mail it does nothing.
func (a *Agent) Acknowledge(ctx context.Context, until time.Time) error {
	err := a.main.box.Acknowledge(ctx, until)
	if local := a.localMember(); local != nil {
		err = errors.Join(err, local.box.Acknowledge(ctx, until))
	}
	return err
}

func (a *Agent) read(ctx context.Context, s mail.Selection, read boxRead) (list []mail.Mail, more bool, err error) {
	defer func() {
		if len(list) > 0 {
			a.unread.forget()
		}
	}()
	if s, err = s.Check(); err != nil {
		return nil, false, err
	}
	local := a.readyLocal()
	if local == nil {
		return read(a.main.box, ctx, s)
	}
	here, moreHere, errHere := read(local.box, ctx, s)
	if errHere != nil && !store.IsUnreachable(errHere) {
		return nil, false, errHere
	}
	if len(here) == s.Limit {
		return here, true, nil // perhaps
	}
	s.Limit -= len(here)
	there, moreThere, err := read(a.main.box, ctx, s)
	if err != nil && (!store.IsUnreachable(err) || errHere != nil) {
		if len(here) > 0 { // it is marked as read, or taken
			a.main.Log().Warn("the inbox in the network could not be read", "error", err)
			return here, true, nil
		}
		return nil, false, err
	}
	return merge(here, there), moreHere || moreThere, nil
}

// merge merges two lists of mail by time. The order within each list stays.
func merge(here, there []mail.Mail) []mail.Mail {
	merged := make([]mail.Mail, 0, len(here)+len(there))
	for len(here) > 0 && len(there) > 0 {
		next := &here
		if there[0].Timestamp.Before(here[0].Timestamp) {
			next = &there
		}
		merged = append(merged, (*next)[0])
		*next = (*next)[1:]
	}
	return append(append(merged, here...), there...)
}

// firstPoll is the first pause between two reads of an inbox that was announced to have new mail.
const firstPoll = 2 * time.Millisecond

// Wait blocks until there is selected mail that was not read, and reads it. When ctx ends
// first it returns nothing, and an error only where the network cannot be reached.
func (a *Agent) Wait(ctx context.Context, s mail.Selection) (list []mail.Mail, more bool, err error) {
	return a.await(ctx, s, (*mail.Box).Read)
}

// WaitAndTake is Wait with Take instead of Read.
func (a *Agent) WaitAndTake(ctx context.Context, s mail.Selection, answer *mail.Answer) (list []mail.Mail, more bool, err error) {
	return a.await(ctx, s, taking(answer))
}

func (a *Agent) await(ctx context.Context, s mail.Selection, read boxRead) (list []mail.Mail, more bool, err error) {
	s.IncludeRead = false
	// The server announces a message before it has stored it. A read may therefore come too early, and is repeated soon.
	pauses := wait.Backoff{First: firstPoll, Most: mail.PollInterval}
	for {
		changed, connected := a.main.box.Changed(), a.net.main.store.Changed()
		var localChanged <-chan struct{} // nil blocks
		if local := a.localMember(); local != nil {
			localChanged = local.box.Changed()
		}
		list, more, err = a.read(ctx, s, read)
		if len(list) > 0 || (err != nil && !store.IsUnreachable(err)) {
			return list, more, err
		}
		poll := time.NewTimer(pauses.Next())
		select {
		case <-changed:
			pauses.Reset()
		case <-localChanged:
			pauses.Reset()
		case <-connected:
		case <-poll.C:
		case <-ctx.Done():
			poll.Stop()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				return nil, false, err
			}
			return nil, false, nil
		}
		poll.Stop()
	}
}

// Unread counts the mail that was not read, up to MaxMailLimit.
func (a *Agent) Unread(ctx context.Context) (int, error) {
	local := a.readyLocal()
	if local == nil {
		return a.main.box.Unread(ctx)
	}
	here, err := local.box.Unread(ctx)
	if err != nil {
		return 0, err
	}
	there, err := a.main.box.Unread(ctx)
	if err != nil && !store.IsUnreachable(err) {
		return 0, err
	}
	return min(here+there, mail.MaxMailLimit), nil
}

// MessageStatus returns the delivery status of a message that this agent sent.
func (a *Agent) MessageStatus(ctx context.Context, messageID string) (mail.MessageStatus, error) {
	if local := a.readyLocal(); local != nil {
		if status, err := local.box.Status(ctx, messageID); !store.IsNotFound(err) {
			return status, err
		}
	}
	return a.main.box.Status(ctx, messageID)
}

// MarkHandled reports to the sender of a message in this agent's inbox that the agent is done with it.
func (a *Agent) MarkHandled(ctx context.Context, messageID, note string) (mail.Mail, error) {
	if local := a.readyLocal(); local != nil {
		if m, err := local.box.MarkHandled(ctx, messageID, note); !store.IsNotFound(err) {
			return m, err
		}
	}
	return a.main.box.MarkHandled(ctx, messageID, note)
}
