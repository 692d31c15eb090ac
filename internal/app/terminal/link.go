package terminal

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub/events"
)

var errAway = errors.New("the hub is away")

// link keeps a connection to the hub and follows its events.
type link struct {
	ctx    context.Context
	cancel context.CancelFunc
	dial   func(context.Context) (Hub, error)
	feed   chan feedMsg
	done   chan struct{}

	mu  sync.Mutex
	hub Hub
}

// feedMsg is what the link reports: that the hub is there or away, or events.
type feedMsg struct {
	up     bool
	away   error
	events []events.Event
}

func newLink(ctx context.Context, dial func(context.Context) (Hub, error)) *link {
	ctx, cancel := context.WithCancel(ctx)
	l := &link{ctx: ctx, cancel: cancel, dial: dial, feed: make(chan feedMsg, 256), done: make(chan struct{})}
	go l.run()
	return l
}

// close ends the connection and waits for the goroutine.
func (l *link) close() {
	l.cancel()
	<-l.done
}

func (l *link) run() {
	defer close(l.done)
	pauses := wait.Backoff{First: 200 * time.Millisecond, Most: 3 * time.Second}
	after := ""
	for l.ctx.Err() == nil {
		err := l.follow(&after, &pauses)
		if l.ctx.Err() != nil {
			break
		}
		l.report(feedMsg{away: err})
		pauses.Pause(l.ctx)
	}
	if h := l.get(); h != nil {
		_ = h.Close() // its failure changes nothing
	}
}

// follow reports the hub's events until the stream is lost. after is the position of the last one.
func (l *link) follow(after *string, pauses *wait.Backoff) error {
	h := l.get()
	if h == nil {
		var err error
		if h, err = l.dial(l.ctx); err != nil {
			return err
		}
		l.mu.Lock()
		l.hub = h
		l.mu.Unlock()
	}
	stream, err := h.HubEvents(l.ctx, dialect.EventsParams{After: *after})
	if err != nil {
		*after = "" // the position may be another hub's
		return err
	}
	defer stream.Close()
	for first := true; ; first = false {
		e, err := stream.Next(l.ctx)
		if err != nil {
			*after = keepPosition(*after, first)
			return err
		}
		if first {
			pauses.Reset()
			l.report(feedMsg{up: true})
		}
		*after = e.Position.String()
		l.report(feedMsg{events: []events.Event{e}})
	}
}

// keepPosition forgets a position that the hub did not accept.
func keepPosition(after string, refused bool) string {
	if refused {
		return ""
	}
	return after
}

func (l *link) get() Hub {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hub
}

func (l *link) report(m feedMsg) {
	select {
	case l.feed <- m:
	case <-l.ctx.Done():
	}
}

// maxBatch bounds the events of one message.
const maxBatch = 512

// next waits for the link's next report; events that are there already are one report.
func (l *link) next() tea.Msg {
	var m feedMsg
	select {
	case m = <-l.feed:
	case <-l.ctx.Done():
		return nil
	}
	for len(m.events) > 0 && len(m.events) < maxBatch {
		select {
		case more := <-l.feed:
			if len(more.events) == 0 {
				return []feedMsg{m, more}
			}
			m.events = append(m.events, more.events...)
		default:
			return []feedMsg{m}
		}
	}
	return []feedMsg{m}
}

// call runs do with the hub, within a limit.
func (l *link) call(do func(ctx context.Context, h Hub) error) error {
	h := l.get()
	if h == nil {
		return errAway
	}
	ctx, cancel := context.WithTimeout(l.ctx, callLimit)
	defer cancel()
	return do(ctx, h)
}

// endOnly returns nil at the end of a stream, any other error as it is.
func endOnly(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
