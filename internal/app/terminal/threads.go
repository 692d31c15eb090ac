package terminal

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/api/dialect"
)

// threadRow shows a channel, or the mail of two agents.
func threadRow(t *dialect.Thread) row {
	r := row{key: t.ID, at: t.Newest.Time}
	writable := t.Kind == dialect.ThreadChannel || slices.ContainsFunc(t.Between, func(c dialect.Correspondent) bool { return c.You })
	if writable {
		r.thread = t.ID
	}
	what := "channel of " + clean(t.Project)
	if t.Kind == dialect.ThreadMail {
		what = "mail"
	}
	if t.Unread > 0 {
		r.state = "waiting"
		what += fmt.Sprintf(", %d not read", t.Unread)
	}
	r.cells = []string{threadTitle(t), fmt.Sprint(t.Messages), what}
	return r.found(t.ID)
}

func threadTitle(t *dialect.Thread) string {
	if t.Kind == dialect.ThreadChannel {
		return "# " + clean(t.Channel)
	}
	var names []string
	for _, c := range t.Between {
		name := cmp.Or(clean(c.Handle), c.GUID[:min(len(c.GUID), 8)])
		if c.You {
			name = "you"
		}
		names = append(names, name)
	}
	return strings.Join(names, " and ")
}

// threadPage shows the messages of a channel or of mail, with who has seen them.
func threadPage(r row) *page {
	s := r.subject
	return &page{subject: s, title: r.cells[0], kinds: []string{"channel.", "mail."}, follow: true, load: func(ctx context.Context, h Hub) (content, error) {
		found, err := h.Thread(ctx, dialect.ThreadParams{ThreadID: r.key, Limit: 200})
		if err != nil {
			return content{}, err
		}
		var out lines
		if found.More {
			out.add(dim, "Earlier messages are not shown.")
		}
		for i := range found.Messages {
			out.message(&found.Messages[i])
		}
		return content{subject: s, lines: out}, nil
	}}
}

func (l *lines) message(m *dialect.ThreadMessage) {
	who := clean(m.From)
	if m.To != "" {
		who += " to " + clean(m.To)
	}
	l.add(bold, "%s  %s", who, strings.TrimSpace(m.At.Local().Format(time.DateTime)+"  "+clean(m.Type)))
	l.add(plainText, "%s", indented(whole(m.Text), "  "))
	if m.Receipt != nil {
		l.receipt(m.Receipt)
	}
	if len(m.SeenBy) > 0 {
		var seen []string
		for _, s := range m.SeenBy {
			who := clean(s.Who)
			if s.At != nil {
				who += " " + clock(s.At.Time)
			}
			seen = append(seen, who)
		}
		l.add(good, "  ✓ read up to here: %s", strings.Join(seen, ", "))
	}
	l.add(plainText, "")
}

// receipt says how far mail has come, and when.
func (l *lines) receipt(r *mail.MessageStatus) {
	var stages []string
	for _, s := range [][2]string{
		{"stored", r.StoredAt}, {"delivered", r.DeliveredAt}, {"woke the session", r.WokenAt}, {"shown", r.ShownAt}, {"held", r.HeldAt}, {"refused", r.RefusedAt},
		{"read", r.ReadAt}, {"handled", r.HandledAt},
	} {
		if s[1] != "" {
			stages = append(stages, s[0]+" "+clock(stamp(s[1])))
		}
	}
	if r.Note != "" {
		stages = append(stages, clean(r.Note))
	}
	text := strings.Join(stages, " · ")
	if r.ReadAt == "" {
		l.add(waits, "  ? not read yet · %s", text)
		return
	}
	l.add(good, "  ✓ %s", text)
}
