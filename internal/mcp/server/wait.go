package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/parleyhub/parley/internal/chat"
)

// The limits of a wait. Clients give a call up after 60 s.
const (
	defaultWait = 50 * time.Second
	maxWait     = 55 * time.Second
	maxNews     = 256 << 10 // bytes of text in one answer
)

// progressEvery is how often a client hears that a wait is alive. Tests change
// it.
var progressEvery = 10 * time.Second

type waitForMessagesIn struct {
	Channels       []string `json:"channels,omitempty" jsonschema:"Only these channels; all of the project by default"`
	TimeoutSeconds int      `json:"timeout_seconds,omitempty" jsonschema:"How long to wait at most: 1 to 55 seconds, 50 by default"`
}

type waitForMessagesOut struct {
	Messages []message `json:"messages" jsonschema:"The new messages, oldest first in each channel; empty if the time ran out"`
	TimedOut bool      `json:"timedOut" jsonschema:"Whether the time ran out before anything came"`
	More     bool      `json:"more" jsonschema:"Whether there are further messages: call again at once"`
}

// waitForMessages blocks until there is something new, so that agents need not
// poll.
func (g *Channels) waitForMessages() Tool[waitForMessagesIn, waitForMessagesOut] {
	return Tool[waitForMessagesIn, waitForMessagesOut]{
		Name: "wait_for_messages", Title: "Wait for messages", ReadOnly: true, Blocks: true,
		Description: "Wait until another agent sends something new, and return it. New is what came since you last read the channel or " +
			"waited for it, or since set_handle; your own messages do not count. Returns at once if there is something already. If nothing " +
			"comes in time the answer says so: call it again if you still need to wait. Use this instead of calling read_messages repeatedly.",
		Refine: func(p map[string]*jsonschema.Schema) {
			low, high := 1.0, maxWait.Seconds()
			t := p["timeout_seconds"]
			t.Minimum, t.Maximum, t.Default = &low, &high, []byte(fmt.Sprint(defaultWait.Seconds()))
			p["channels"].Items.Examples = g.channelNames(3)
			p["channels"].Type, p["channels"].Types = "array", nil
		},
		Handle: func(ctx context.Context, c *Call, in waitForMessagesIn) (string, waitForMessagesOut, error) {
			wait, err := waitTime(in.TimeoutSeconds)
			if err != nil {
				return "", waitForMessagesOut{}, err
			}
			channels := distinct(in.Channels)
			if len(channels) == 0 {
				channels = g.names()
			}
			stop := c.reportProgress(ctx, wait)
			news, err := g.wait(ctx, readingOf(c.Session), channels, wait)
			stop()
			if err != nil {
				return "", waitForMessagesOut{}, err
			}
			return news.text(channels, wait), news.out(), nil
		},
	}
}

// distinct leaves out what comes again, and keeps the order.
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

func waitTime(seconds int) (time.Duration, error) {
	wait := time.Duration(seconds) * time.Second
	switch {
	case seconds == 0:
		return defaultWait, nil
	case seconds < 0 || seconds > int(maxWait.Seconds()):
		return 0, &Failure{Category: ValidationError, Message: fmt.Sprintf("The timeout of %d seconds is not allowed.", seconds),
			Remedy: fmt.Sprintf("Use 1 to %d seconds, and call again to wait longer.", int(maxWait.Seconds()))}
	}
	return wait, nil
}

// reportProgress tells the client from time to time that the call is alive. The
// caller calls stop, which waits for the last report.
func (c *Call) reportProgress(ctx context.Context, total time.Duration) (stop func()) {
	if c.request.Params.GetProgressToken() == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for start := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				c.Progress(ctx, time.Since(start).Seconds(), total.Seconds(), "waiting for messages")
			}
		}
	}()
	return func() { cancel(); <-done }
}

// news is what a wait returns.
type news struct {
	messages []newMessage // none if the time ran out
	more     bool
}

type newMessage struct {
	channel string
	chat.Message
}

// wait returns what is new to r in the channels, at most wait later. Only an
// outage for all of that time is an error.
func (g *Channels) wait(ctx context.Context, r *reading, channels []string, wait time.Duration) (news, error) {
	patience, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	cursor, err := g.cursor(patience, r, channels)
	if err != nil {
		return news{}, err
	}
	for {
		came, err := g.space.Wait(patience, cursor)
		if err != nil {
			return news{}, err
		}
		if len(came.Messages) == 0 {
			return news{}, ctx.Err()
		}
		if n := r.deliver(channels, came); len(n.messages) > 0 {
			return n, nil
		}
		cursor = came.Cursor // they were all the session's own
	}
}

// cursor is where the session stands. Channels that it has not begun to read
// begin at their end, which needs the bus.
func (g *Channels) cursor(ctx context.Context, r *reading, channels []string) (chat.Cursor, error) {
	for {
		changed := g.space.Changed()
		known, missing := r.cursor(channels)
		if len(missing) == 0 {
			return known, nil
		}
		tips, err := g.space.Tips(ctx, missing)
		if err == nil {
			r.begin(tips)
			continue
		}
		if !outage(err) {
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, err
		}
	}
}

func outage(err error) bool {
	return failureOf(err).Category == string(chat.ConnectionError)
}

// deliver moves the cursors behind what it returns: as much as fits, without the
// session's own messages.
func (r *reading) deliver(channels []string, came chat.News) news {
	var n news
	size := 0
	for _, channel := range slices.Compact(slices.Sorted(slices.Values(channels))) {
		seen := came.Cursor[channel]
		for _, m := range came.Messages[channel] {
			if r.isOwn(channel, m) {
				continue
			}
			if size += m.Size(); size > maxNews && len(n.messages) > 0 {
				n.more, seen = true, m.Sequence-1
				break
			}
			n.messages = append(n.messages, newMessage{channel, m})
		}
		r.read(channel, seen)
	}
	return n
}

func (n news) out() waitForMessagesOut {
	out := waitForMessagesOut{Messages: []message{}, TimedOut: len(n.messages) == 0, More: n.more}
	for _, m := range n.messages {
		out.Messages = append(out.Messages, messageOf(m.channel, m.Message))
	}
	return out
}

func (n news) text(channels []string, wait time.Duration) string {
	if len(n.messages) == 0 {
		return fmt.Sprintf("No new messages in #%s for %d seconds. Call wait_for_messages again to go on waiting.",
			strings.Join(channels, ", #"), int(wait.Seconds()))
	}
	var b strings.Builder
	channel := ""
	for _, m := range n.messages {
		if m.channel != channel {
			if channel != "" {
				b.WriteString("\n\n")
			}
			channel = m.channel
			fmt.Fprintf(&b, "New messages from #%s:\n", channel)
		}
		b.WriteString("\n" + m.String())
	}
	if n.more {
		b.WriteString("\n\n(There are more. Call wait_for_messages again.)")
	}
	return b.String()
}
