// Package news says what is new for an open session: the mail that it has not read and was not told of.
//
// What it says are sentences of Parley's own with counts, ids and names, and never a word that another agent wrote: some
// programs give what a hook adds the authority of their developer or user. The messages themselves are read with a tool.
package news

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/base/text"
)

// The limits.
const (
	maxWaiting  = 100  // messages that are looked at; more are "100 or more"
	maxListed   = 5    // messages that a notice names
	maxName     = 32   // bytes of a name
	maxNotified = 500  // messages that an agent is remembered to have been told of
	maxAgents   = 1000 // agents of whom that is remembered
	maxPending  = 1000 // notices that were not confirmed
	noteTime    = 5 * time.Second
	maxBell     = 32 // bytes of a bell's id
)

// Inbox is the hub's access to the mail of sessions: an *[assignment.Assigner].
type Inbox interface {
	// Waiting returns the oldest unread mail of an agent, and whether there is more.
	Waiting(ctx context.Context, guid string, limit int) (list []mail.Mail, more bool, err error)
	// Note records a sign of a message's receipt, and AttentionOf returns them.
	Note(ctx context.Context, m mail.Mail, sign mail.Sign, at time.Time) error
	AttentionOf(ctx context.Context, m mail.Mail) (mail.Attention, error)
}

// Item is an unread message.
type Item struct {
	mail.Mail
	// Kind is what it is in words, and From the sender's name; "" where it is not fit to be said.
	Kind, From string
	// Task is the id of the task that it is about, "" for none.
	Task string
}

// Notice is what is new for an agent.
type Notice struct {
	// ID is for [News.Shown]; "" if there is nothing new.
	ID    string
	Items []Item // that the agent was not told of, the oldest first
	// Unread counts all unread messages; More says that there may be more of them.
	Unread int
	More   bool
}

// News are what is new for the agents of a hub. They are safe for concurrent use.
type News struct {
	inbox Inbox
	log   *slog.Logger
	now   func() time.Time

	mu       sync.Mutex
	notified map[string]*notified // by GUID
	pending  []pending            // the oldest first
	notes    chan note
}

// notified are the messages that an agent was told of.
type notified struct {
	ids  []string // the oldest first
	used time.Time
}

type pending struct {
	id, guid string
	mail     []mail.Mail
}

type note struct {
	mail mail.Mail
	sign mail.Sign
	at   time.Time
}

// New returns the news of an inbox. now is time.Now if it is nil.
func New(inbox Inbox, log *slog.Logger, now func() time.Time) *News {
	if now == nil {
		now = time.Now
	}
	return &News{inbox: inbox, log: cmp.Or(log, slog.New(slog.DiscardHandler)), now: now, notified: make(map[string]*notified), notes: make(chan note, 4*maxWaiting)}
}

// Run writes the signs of receipts until ctx ends.
func (n *News) Run(ctx context.Context) {
	for {
		select {
		case x := <-n.notes:
			n.write(ctx, x)
		case <-ctx.Done():
			return
		}
	}
}

func (n *News) write(ctx context.Context, x note) {
	ctx, cancel := context.WithTimeout(ctx, noteTime)
	defer cancel()
	if err := n.inbox.Note(ctx, x.mail, x.sign, x.at); err != nil && ctx.Err() == nil {
		n.log.Warn("a receipt was not written", "messageId", x.mail.ID, "sign", x.sign, "error", err)
	}
}

// Record writes a sign of messages, which came at a time, to their receipts, in the background. What does not fit into the queue is
// dropped: a receipt claims less then, not more.
func (n *News) Record(list []mail.Mail, sign mail.Sign, at time.Time) {
	for _, m := range list {
		select {
		case n.notes <- note{m, sign, at}:
		default:
			n.log.Warn("a receipt was not written: too many at once", "messageId", m.ID, "sign", sign)
		}
	}
}

// Latest returns what an agent was not told of yet.
func (n *News) Latest(ctx context.Context, guid string) (Notice, error) {
	list, more, err := n.inbox.Waiting(ctx, guid, maxWaiting)
	if err != nil || len(list) == 0 {
		return Notice{}, err
	}
	known := n.known(ctx, guid, list)
	notice := noticeOf(list, more, known)
	if len(notice.Items) == 0 && more { // what was told and not read does not hide what came after it
		if list, more, err = n.inbox.Waiting(ctx, guid, maxNotified+maxWaiting); err != nil {
			return Notice{}, err
		}
		notice = noticeOf(list, more, known)
	}
	if len(notice.Items) == 0 {
		return notice, nil
	}
	notice.ID = uuid.NewString()
	p := pending{id: notice.ID, guid: guid}
	for _, x := range notice.Items {
		p.mail = append(p.mail, x.Mail)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending = append(n.pending, p)
	n.pending = n.pending[max(len(n.pending)-maxPending, 0):]
	return notice, nil
}

// noticeOf returns the notice of unread messages without those that are known.
func noticeOf(list []mail.Mail, more bool, known []string) Notice {
	notice := Notice{Unread: len(list), More: more}
	for _, m := range list {
		if slices.Contains(known, m.ID) {
			continue
		}
		if len(notice.Items) == maxWaiting {
			notice.More = true
			break
		}
		notice.Items = append(notice.Items, itemOf(m))
	}
	return notice
}

// known returns the messages that an agent was told of. After a start of the hub the receipts say it.
func (n *News) known(ctx context.Context, guid string, list []mail.Mail) []string {
	n.mu.Lock()
	t := n.notified[guid]
	n.mu.Unlock()
	if t == nil {
		t = &notified{}
		for _, m := range list {
			if a, err := n.inbox.AttentionOf(ctx, m); err == nil && a.ShownAt != "" {
				t.ids = append(t.ids, m.ID)
			}
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if other := n.notified[guid]; other != nil {
		t = other
	}
	t.used = n.now()
	n.notified[guid] = t
	n.forgetOldest()
	return slices.Clone(t.ids)
}

// forgetOldest bounds the agents. mu is held.
func (n *News) forgetOldest() {
	if len(n.notified) <= maxAgents {
		return
	}
	oldest := ""
	for guid, t := range n.notified {
		if oldest == "" || t.used.Before(n.notified[oldest].used) {
			oldest = guid
		}
	}
	delete(n.notified, oldest)
}

// Shown records that an agent was told of a notice. It reports false if there is no such notice.
func (n *News) Shown(id string) bool {
	n.mu.Lock()
	i := slices.IndexFunc(n.pending, func(p pending) bool { return p.id == id })
	if i < 0 {
		n.mu.Unlock()
		return false
	}
	p := n.pending[i]
	n.pending = slices.Delete(n.pending, i, i+1)
	t := n.notified[p.guid]
	if t == nil {
		t = &notified{}
		n.notified[p.guid] = t
	}
	for _, m := range p.mail {
		t.ids = append(t.ids, m.ID)
	}
	t.ids = slices.Clone(t.ids[max(len(t.ids)-maxNotified, 0):])
	t.used = n.now()
	n.forgetOldest()
	n.mu.Unlock()
	n.Record(p.mail, mail.Shown, n.now())
	return true
}

// Forget makes an agent be told again of all that is unread: its conversation is a new one.
func (n *News) Forget(guid string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notified[guid] = &notified{used: n.now()}
	n.forgetOldest()
}

// itemOf describes a message without its words.
func itemOf(m mail.Mail) Item {
	x := Item{Mail: m, Kind: "a message", From: Name(m.SenderHandle)}
	var about struct {
		TaskID, From string
		Sender       *struct{ Kind, ID string }
	}
	switch m.Type {
	case mail.Task:
		x.Kind = "a task"
	case mail.TaskCanceled:
		x.Kind = "the cancellation of a task"
	case mail.TaskAnswer:
		x.Kind = "the answer to your task"
	case mail.Direct:
		return x
	default:
		x.Kind = "a message (" + string(m.Type) + ")" // one of a list
		return x
	}
	if json.Unmarshal(m.Metadata, &about) == nil {
		x.Task, x.From = identifier(about.TaskID), Name(about.From)
		if x.From == "" && about.Sender != nil {
			x.From = "somebody outside of this hub"
		}
	}
	return x
}

var (
	names       = text.Pattern(`^[a-z0-9][a-z0-9_.@-]*$`)
	identifiers = text.Pattern(`^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$`)
)

// Name returns an agent's name if it can be said in a notice: short, and without spaces, so that it is no sentence. Else it is
// empty.
func Name(name string) string {
	if len(name) > maxName || !names().MatchString(name) {
		return ""
	}
	return name
}

func identifier(id string) string {
	if !identifiers().MatchString(id) {
		return ""
	}
	return id
}

// Text says what is new, in sentences of ours.
func (n Notice) Text() string {
	if len(n.Items) == 0 {
		return ""
	}
	var b strings.Builder
	count := text.Count(len(n.Items), "new message")
	if n.More {
		count = fmt.Sprintf("%d or more new messages", len(n.Items))
	}
	fmt.Fprintf(&b, "Parley: %s for you", count)
	for i, x := range n.Items[:min(len(n.Items), maxListed)] {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		b.WriteString(x.text())
	}
	if rest := len(n.Items) - maxListed; rest > 0 {
		fmt.Fprintf(&b, "; and %d more", rest)
	}
	b.WriteString(". Read them with the tool read_direct_messages of parley. They were written by other agents or programs, not by your user.")
	return b.String()
}

func (x Item) text() string {
	s := x.Kind
	if x.Task != "" {
		s += " " + x.Task
	}
	if x.From != "" {
		s += " from " + x.From
	}
	return s + " (message " + cmp.Or(identifier(x.ID), "without an id") + ")"
}
