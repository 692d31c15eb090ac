package dialect

import (
	"context"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/base/text"
)

// ThreadKind is where the messages of a thread are.
type ThreadKind string

// The kinds of a [Thread].
const (
	ThreadChannel ThreadKind = "channel" // of a project
	ThreadMail    ThreadKind = "mail"    // of two agents, or of the user and an agent
)

// Thread is a channel of a project, or the mail of two agents to each other.
type Thread struct {
	ID   string     `json:"id"`
	Kind ThreadKind `json:"kind"`
	// Project is the namespace of a channel, and Channel its name.
	Project string `json:"project,omitempty"`
	Channel string `json:"channel,omitempty"`
	// Between are the two who write mail.
	Between  []Correspondent `json:"between,omitempty"`
	Messages int             `json:"messages"`
	Unread   int             `json:"unread,omitempty"` // mail that its recipient has not read
	Newest   Time            `json:"newest"`           // null without a message
}

// Correspondent is who writes mail.
type Correspondent struct {
	GUID   string `json:"guid"`
	Handle string `json:"handle"`        // "" if the registry does not know it any more
	You    bool   `json:"you,omitempty"` // the hub's user
}

// ThreadParams are the parameters of hub/threads/get.
type ThreadParams struct {
	ThreadID string `json:"threadId"`
	Limit    int    `json:"limit,omitempty"`
}

// WriteThreadParams are the parameters of hub/threads/write.
type WriteThreadParams struct {
	// ThreadID is that of a channel or of the user's mail with an agent; "mail:" with an agent's GUID begins such mail.
	ThreadID string `json:"threadId"`
	Text     string `json:"text"`
}

// WrittenMessage is the result of hub/threads/write, once the message is stored.
type WrittenMessage struct {
	ThreadID string `json:"threadId"`
	From     string `json:"from"` // the user's handle
	// Warning says that the recipient is offline or busy, or that the message waits on this computer.
	Warning string `json:"warning,omitempty"`
}

// ThreadMessages is the result of hub/threads/get: the latest messages, the oldest first.
type ThreadMessages struct {
	Messages []ThreadMessage `json:"messages"`
	More     bool            `json:"more"` // there are earlier ones
}

// ThreadMessage is a message of a thread. From and Text are its writer's words.
type ThreadMessage struct {
	ID   string `json:"id"`
	From string `json:"from"`
	To   string `json:"to,omitempty"` // of mail
	Type string `json:"type,omitempty"`
	Text string `json:"text"`
	At   Time   `json:"at"`
	// Receipt says how far mail has come.
	Receipt *mail.MessageStatus `json:"receipt,omitempty"`
	// SeenBy are those who have read a channel up to this message, and no further.
	SeenBy []Seen `json:"seenBy,omitempty"`
}

// Seen is who has read a channel.
type Seen struct {
	Who string `json:"who"`
	// At is when that was, absent if it is not known: a read whose position is noted afterwards leaves no time.
	At *Time `json:"at,omitempty"`
}

const (
	defaultThreadLimit = 100
	maxThreadLimit     = 500      // messages
	maxThreadText      = 64 << 10 // bytes of a message that is read
)

// Threads are what agents write to each other, for the hub's own user. The errors are *hub.Error.
type Threads interface {
	// Threads returns the channels of the projects that were used last, and the mail of the last days, the newest first.
	Threads(ctx context.Context) ([]Thread, error)
	Thread(ctx context.Context, id string, limit int) (*ThreadMessages, error)
	// WriteThread writes as the hub's user.
	WriteThread(ctx context.Context, id, text string) (*WrittenMessage, error)
}

func (s *Service) threadsList(ctx context.Context) ([]Thread, error) {
	all, err := s.cfg.Threads.Threads(ctx)
	return append([]Thread{}, all...), err // never null on the wire
}

func (s *Service) thread(c *call) action {
	id, limit := c.requiredText("threadId", maxURI), defaultThreadLimit
	if n := c.count("limit", maxThreadLimit); n != nil && *n > 0 {
		limit = *n
	}
	return func(ctx context.Context) (any, error) {
		found, err := s.cfg.Threads.Thread(ctx, id, limit)
		if err != nil {
			return nil, err
		}
		found.Messages = append([]ThreadMessage{}, found.Messages...)
		for i := range found.Messages {
			m := &found.Messages[i]
			m.Text = text.Clip(m.Text, maxThreadText) // channels take messages of a megabyte
		}
		return found, nil
	}
}

func (s *Service) threadWrite(c *call) action {
	id, words := c.requiredText("threadId", maxURI), c.requiredText("text", mail.MaxMail)
	return func(ctx context.Context) (any, error) { return s.cfg.Threads.WriteThread(ctx, id, words) }
}
