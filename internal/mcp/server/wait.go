package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/parleyhub/parley/internal/chat"
)

// MaxWait bounds the wait of a blocking tool; clients abort a call after 60 s.
const MaxWait = 55 * time.Second

const (
	defaultWait    = 50 * time.Second
	maxNews        = 256 << 10 // bytes of text in one answer
	waitingMessage = "waiting for messages"
)

type waitForMessagesIn struct {
	Channels       []string `json:"channels,omitempty" jsonschema:"Only these channels; all of the project by default"`
	TimeoutSeconds int      `json:"timeout_seconds,omitempty" jsonschema:"How long to wait at most: 1 to 55 seconds, 50 by default"`
}

type waitForMessagesOut struct {
	Messages []message `json:"messages" jsonschema:"The new messages, oldest first in each channel; empty if the time ran out"`
	TimedOut bool      `json:"timedOut" jsonschema:"Whether the time ran out before anything came"`
	More     bool      `json:"more" jsonschema:"Whether there are further messages: call again at once"`
	Unread   []unread  `json:"unread,omitempty" jsonschema:"The channels that could not be read"`
}

type unread struct {
	Channel string `json:"channel"`
	Problem string `json:"problem" jsonschema:"Why it could not be read"`
}

func (g *Channels) waitForMessages() Tool[waitForMessagesIn, waitForMessagesOut] {
	return Tool[waitForMessagesIn, waitForMessagesOut]{
		Name: "wait_for_messages", Title: "Wait for messages", WrittenBy: ByOthers, ReadOnly: true, Blocks: true,
		Description: "Wait until another agent sends something new, and return it. New is what came since you last read the channel or " +
			"waited for it, or since set_handle; your own messages do not count. Returns at once if there is something already. If nothing " +
			"comes in time the answer says so: call it again if you still need to wait. Use this instead of calling read_messages repeatedly.",
		Refine: func(p map[string]*jsonschema.Schema) {
			refineTimeout(p)
			p["channels"].Items.Examples = g.examples()
			lists(p, "channels")
		},
		Handle: func(ctx context.Context, c *Call, in waitForMessagesIn) (string, waitForMessagesOut, error) {
			wait, err := WaitTime(in.TimeoutSeconds)
			if err != nil {
				return "", waitForMessagesOut{}, err
			}
			channels := distinct(in.Channels)
			if len(channels) == 0 {
				channels = g.names()
			}
			stop := c.ReportProgress(ctx, wait, waitingMessage)
			news, err := g.wait(ctx, positionOf(c.Client, g.space), channels, wait)
			stop()
			if err != nil {
				return "", waitForMessagesOut{}, err
			}
			return news.text(channels, wait), news.out(), nil
		},
	}
}

// distinct removes duplicates and keeps the order.
func distinct(names []string) []string {
	var kept []string
	seen := map[string]bool{}
	for _, name := range names {
		if !seen[name] {
			kept = append(kept, name)
			seen[name] = true
		}
	}
	return kept
}

// whileWaiting calls f with a context that ends after the time to wait, and reports progress until it returns.
func whileWaiting(ctx context.Context, c *Call, seconds int, f func(context.Context) error) (time.Duration, error) {
	wait, err := WaitTime(seconds)
	if err != nil {
		return 0, err
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	defer c.ReportProgress(ctx, wait, waitingMessage)()
	return wait, f(waiting)
}

// WaitTime converts the timeout argument of a blocking tool; 0 is the default. It returns a ValidationError for a
// negative timeout or one beyond MaxWait.
func WaitTime(seconds int) (time.Duration, error) {
	if seconds < 0 || seconds > int(MaxWait.Seconds()) {
		return 0, &Failure{Category: ValidationError, Message: fmt.Sprintf("The timeout of %d seconds is not allowed.", seconds),
			Remedy: fmt.Sprintf("Use 1 to %d seconds, and call again to wait longer.", int(MaxWait.Seconds()))}
	}
	return cmp.Or(time.Duration(seconds)*time.Second, defaultWait), nil
}

// news is the result of a wait.
type news struct {
	messages []newMessage // none if the time ran out
	more     bool
	unread   map[string]error // by channel
}

type newMessage struct {
	channel string
	chat.Message
}

// wait blocks until the channels have messages after r, or until the time is over, and returns them. An outage is an
// error only if it lasts the whole time.
func (g *Channels) wait(ctx context.Context, r *position, channels []string, wait time.Duration) (news, error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	cursor, unread, err := g.cursor(waiting, r, channels)
	if err != nil {
		return news{}, err
	}
	for {
		received, err := g.space.Wait(waiting, cursor)
		if err != nil {
			return news{}, err
		}
		if len(received.Messages) == 0 {
			all := map[string]error{}
			maps.Copy(all, unread)
			maps.Copy(all, received.Unread)
			return news{unread: all}, ctx.Err()
		}
		if n := r.deliver(received); len(n.messages) > 0 {
			return n, nil
		}
		cursor = received.Cursor // all of them were the agent's own
	}
}

// cursor returns the read position in the channels. A channel that has none begins at its end, which requires the bus;
// those that cannot be read are left out, with the error.
func (g *Channels) cursor(ctx context.Context, r *position, channels []string) (chat.Cursor, map[string]error, error) {
	for {
		changed := g.space.Changed()
		known, missing := r.cursor(channels)
		if len(missing) == 0 {
			return known, nil, nil
		}
		tips, err := g.space.Tips(ctx, missing)
		r.begin(tips)
		if err == nil {
			continue
		}
		if known, _ = r.cursor(channels); len(known) > 0 {
			unread, _ := errors.AsType[chat.TipsError](err)
			return known, unread, nil
		}
		if failureOf(err).Category != string(chat.ConnectionError) {
			return nil, nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, err
		}
	}
}

// deliver returns as many messages as fit, without the agent's own, and advances the read position past them.
func (r *position) deliver(received chat.News) news {
	var n news
	size := 0
	for _, channel := range slices.Sorted(maps.Keys(received.Messages)) {
		for _, m := range received.Messages[channel] {
			if r.sender.Sent(m) {
				continue
			}
			if size += m.Size(); size > maxNews && len(n.messages) > 0 {
				n.more, received.Cursor[channel] = true, m.Sequence-1
				break
			}
			n.messages = append(n.messages, newMessage{channel, m})
		}
	}
	r.readAll(received.Cursor)
	return n
}

func (n news) out() waitForMessagesOut {
	out := waitForMessagesOut{Messages: []message{}, TimedOut: len(n.messages) == 0, More: n.more}
	for _, name := range slices.Sorted(maps.Keys(n.unread)) {
		out.Unread = append(out.Unread, unread{name, failureOf(n.unread[name]).Message})
	}
	for _, m := range n.messages {
		out.Messages = append(out.Messages, messageOf(m.channel, m.Message))
	}
	return out
}

func (n news) text(channels []string, wait time.Duration) string {
	var b strings.Builder
	if len(n.messages) == 0 {
		read := slices.DeleteFunc(slices.Clone(channels), func(name string) bool { return n.unread[name] != nil })
		fmt.Fprintf(&b, "No new messages in #%s for %d seconds.", strings.Join(read, ", #"), int(wait.Seconds()))
		for _, u := range n.out().Unread {
			fmt.Fprintf(&b, " #%s cannot be read: %s", u.Channel, u.Problem)
		}
		b.WriteString(" Call wait_for_messages again to go on waiting.")
		return b.String()
	}
	for i, m := range n.messages {
		if i == 0 || m.channel != n.messages[i-1].channel {
			if i > 0 {
				b.WriteString("\n\n")
			}
			fmt.Fprintf(&b, "New messages from #%s:\n", m.channel)
		}
		b.WriteString("\n" + m.String())
	}
	if n.more {
		b.WriteString("\n\n(There are more. Call wait_for_messages again.)")
	}
	return b.String()
}
