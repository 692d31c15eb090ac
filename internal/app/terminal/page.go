package terminal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/hub/events"
)

// line is a line of a page, before it is wrapped.
type line struct {
	role role
	text string
}

func (l line) wrapped(w int) []string {
	var out []string
	for _, s := range display.Wrap(visible(l.text), w-1) {
		out = append(out, l.role.paint(s))
	}
	return out
}

// page shows one thing in full.
type page struct {
	subject
	title string
	load  func(ctx context.Context, h Hub) (content, error)
	kinds []string
	// stream returns the events of a task that runs, nil for other pages.
	stream bool

	content content
	live    string // of an answer that streams
	loaded  bool
	loading bool
	again   bool
	follow  bool // the end stays visible
	top     int
	search  string
	width   int                // of wrapped
	body    []string           // the content, wrapped; nil if it is to be made again
	wrapped []string           // with the answer that streams; nil if it is to be made again
	cancel  context.CancelFunc // of the stream, nil without one
}

// content is what a page shows.
type content struct {
	subject subject
	lines   []line
}

type pageMsg struct {
	page    *page
	content content
	err     error
}

func (p *page) concerns(e events.Event) bool {
	if p.task != "" && e.Task != "" {
		return e.Task == p.task
	}
	for _, k := range p.kinds {
		if strings.HasPrefix(string(e.Kind), k) {
			return true
		}
	}
	return false
}

func (m *model) openPage(p *page) tea.Cmd {
	if p == nil {
		return nil
	}
	m.closePage()
	m.page = p
	return m.loadPage(p)
}

func (m *model) closePage() {
	if m.page != nil && m.page.cancel != nil {
		m.page.cancel()
	}
	m.page = nil
}

func (m *model) loadPage(p *page) tea.Cmd {
	if p.loading {
		p.again = true
		return nil
	}
	p.loading = true
	return func() tea.Msg {
		r := pageMsg{page: p}
		r.err = m.link.call(func(ctx context.Context, h Hub) (err error) {
			r.content, err = p.load(ctx, h)
			bound(r.content.lines)
			return err
		})
		return r
	}
}

func (m *model) pageLoaded(r pageMsg) tea.Cmd {
	p := r.page
	p.loading = false
	switch {
	case r.err != nil && !p.loaded:
		p.content.lines = []line{{bad, cannotLoad + clean(r.err.Error())}}
		p.body = nil
	case r.err == nil:
		p.content, p.subject, p.loaded, p.wrapped = r.content, r.content.subject, true, nil
		p.body = nil
	}
	var cmds []tea.Cmd
	if p.again {
		p.again = false
		cmds = append(cmds, m.loadPage(p))
	}
	if p.stream && p.cancel == nil && p == m.page && roleOf(p.state) == busy {
		cmds = append(cmds, m.followTask(p))
	}
	return tea.Batch(cmds...)
}

// streamMsg is one event of the stream of a page's task, or its end.
type streamMsg struct {
	page *page
	text string
	anew bool // text replaces what came before
	err  error
	next tea.Cmd
}

// followTask reads the answer of a task while it is written.
func (m *model) followTask(p *page) tea.Cmd {
	ctx, cancel := context.WithCancel(m.ctx)
	p.cancel, p.live = cancel, ""
	return func() tea.Msg {
		h := m.link.get()
		if h == nil {
			return streamMsg{page: p, err: errAway}
		}
		stream, err := h.FollowTask(ctx, p.task)
		if err != nil {
			return streamMsg{page: p, err: err}
		}
		context.AfterFunc(ctx, func() { _ = stream.Close() }) // its failure changes nothing
		return nextText(ctx, p, stream)
	}
}

// nextText waits for the next piece of an answer.
func nextText(ctx context.Context, p *page, stream Stream[dialect.Event]) streamMsg {
	for {
		e, err := stream.Next(ctx)
		if err != nil {
			return streamMsg{page: p, err: err}
		}
		r := streamMsg{page: p, next: func() tea.Msg { return nextText(ctx, p, stream) }}
		switch {
		case e.Task != nil:
			for _, a := range e.Task.Artifacts {
				r.text += partsText(a.Parts)
			}
			r.anew = true
		case e.Artifact != nil:
			r.text, r.anew = partsText(e.Artifact.Artifact.Parts), !e.Artifact.Append
		default:
			continue
		}
		return r
	}
}

func partsText(parts []dialect.Part) string {
	m := dialect.Message{Parts: parts}
	return m.Text()
}

func (m *model) streamed(r streamMsg) tea.Cmd {
	p := r.page
	if r.err != nil {
		if p.cancel != nil {
			p.cancel()
			p.cancel = nil
		}
		if p == m.page && m.up {
			return m.loadPage(p)
		}
		return nil
	}
	if r.anew {
		p.live = ""
	}
	if p.live += r.text; len(p.live) > 2*maxText {
		p.live = strings.ToValidUTF8(p.live[len(p.live)-maxText:], "")
	}
	p.wrapped = nil
	return r.next
}

func (p *page) find(text string) {
	p.search = strings.ToLower(text)
	p.body = nil
	p.top, p.follow = 0, false
}

// lines returns the visible lines of the page, h at most.
func (p *page) lines(w, h int, _ time.Time) []string {
	if p.body == nil || p.width != w {
		p.width, p.wrapped = w, nil
		p.body = p.wrap(p.content.lines)
		if !p.loaded && len(p.content.lines) == 0 {
			p.body = []string{"", dim.paint("  Loading …")}
		}
	}
	if p.wrapped == nil {
		p.wrapped = append(slices.Clip(p.body), p.wrap(p.streamed())...)
	}
	last := max(len(p.wrapped)-(h-1), 0)
	if p.follow {
		p.top = last
	}
	p.top = min(p.top, last)
	where := ""
	if last > 0 {
		where = fmt.Sprintf("  %d%%", p.top*100/last)
	}
	out := []string{heading.paint(" "+display.Fit(clean(p.title), w-8)) + dim.paint(where)}
	return append(out, p.wrapped[p.top:min(p.top+h-1, len(p.wrapped))]...)
}

// streamed returns the answer while it is written.
func (p *page) streamed() []line {
	if p.live == "" || roleOf(p.state) != busy {
		return nil
	}
	return []line{{}, {heading, "Answer, as it is written"}, {text: whole(p.live)}}
}

func (p *page) wrap(all []line) []string {
	out := []string{}
	for _, l := range all {
		if p.search != "" && !strings.Contains(strings.ToLower(l.text), p.search) {
			continue
		}
		out = append(out, l.wrapped(p.width)...)
	}
	return out
}

// The most that a page shows, in bytes: of all, and of each text when there are many.
const (
	maxPage  = 1 << 20
	maxShare = 4 << 10
)

// bound cuts the long texts of a page that has too many of them.
func bound(all []line) {
	left := maxPage
	for i := range all {
		if left -= len(all[i].text); left < 0 && len(all[i].text) > maxShare {
			all[i].text = strings.ToValidUTF8(all[i].text[:maxShare], "") + fmt.Sprintf("\n… %d bytes more", len(all[i].text)-maxShare)
		}
	}
}
