package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
)

// key names a turn of another hub's task. A request that is repeated with its key starts nothing: it is answered with
// what the first one led to. Keys are scoped by the hub that sends them, whose id the channel has verified.
type key struct {
	Key  string `json:"key,omitempty"`  // the task's id at its hub
	Turn int    `json:"turn,omitempty"` // from 1
}

// Bounds of keys.
const (
	maxKey  = 128
	maxTurn = 1000
)

func (k key) given() bool { return k.Key != "" }

// check returns an error unless the key is valid or absent.
func (k key) check() error {
	if k.Key == "" && k.Turn == 0 {
		return nil
	}
	if k.Key == "" || len(k.Key) > maxKey || k.Turn < 1 || k.Turn > maxTurn {
		return fmt.Errorf("key has 1 to %d bytes, and turn is 1 to %d", maxKey, maxTurn)
	}
	return nil
}

// family returns the name here of the task that keys are about. The hash prevents that one hub names the tasks of another.
func (k key) family(sender string) string {
	_, of := agent.SplitID(sender)
	if of == "" {
		of = sender
	}
	return hash("key %d %s %s", len(of), of, k.Key)
}

// turnID returns the id of a turn's message, which is the idempotency key of the task that it starts too.
func turnID(family string, turn int) string { return fmt.Sprintf("peer-%s-%d", family, turn) }

// maxStreams is how many requests with keys are being answered at once; it is below maxWork, so that other requests have
// room.
const maxStreams = maxWork / 2

// keyed answers a request with a key: it starts a turn, or follows the one that it started before.
func (r *responder) keyed(ctx context.Context, e *envelope.Envelope, req request) (follow func()) {
	family := req.key.family(e.Sender)
	streaming, end, ok := r.streams.begin(r.n.open, family)
	if !ok {
		return r.failing(ctx, e, &Failure{Code: upper(string(hub.CodeUnavailable)), Message: "too many requests are being answered", Remedy: "repeat the request later", Of: e.ID})
	}
	sub, known, err := r.sendOnce(ctx, e, req, family)
	if err != nil {
		end()
		f := failureFrom(err)
		f.Of = e.ID
		return r.failing(ctx, e, f)
	}
	return func() {
		defer end()
		r.streamKeyed(ctx, streaming, e, sub, known)
	}
}

// sendOnce sends a request's message unless a task has it already; then known is set. The router calls the handler for one
// envelope at a time, so that nothing comes between the two.
func (r *responder) sendOnce(ctx context.Context, e *envelope.Envelope, req request, family string) (sub *hub.Subscription, known bool, err error) {
	before, known, err := r.turnOf(ctx, family, req.key.Turn)
	if err != nil {
		return nil, false, err
	}
	if known || before != nil && unanswerable(before.Status.State) {
		sub, err = r.n.o.Hub.Subscribe(ctx, before.ID)
		return sub, true, err
	}
	send, err := r.message(ctx, e, req)
	if err != nil {
		return nil, false, err
	}
	m := send.Message
	m.ID, m.TaskID = turnID(family, req.key.Turn), "" // whatever else waits for input in the thread
	if before != nil {
		m.ContextID = before.ContextID
	}
	if before != nil && hub.Interrupted(before.Status.State) {
		m.TaskID = before.ID
	} else {
		m.Metadata = maps.Clone(m.Metadata)
		m.Metadata[hub.MetaOnce] = m.ID
	}
	sub, err = r.n.o.Hub.SendAndStream(ctx, send)
	return sub, false, err
}

// unanswerable reports whether a task's next turn is an answer to a question that is not there any more: its hub has stopped
// meanwhile, for example. The agent must not get it as a new task. After a completed one, the next turn is a new task.
func unanswerable(s a2a.TaskState) bool { return s.Terminal() && s != a2a.TaskStateCompleted }

// turnOf returns the latest task of a family, up to a turn; nil if there is none. It has the turn itself if known is set.
func (r *responder) turnOf(ctx context.Context, family string, turn int) (t *a2a.Task, known bool, err error) {
	for n := turn; n > 0; n-- {
		t, err = r.n.o.Hub.Task(ctx, hub.OnceID(r.agent, turnID(family, n)), nil)
		if hub.CodeOf(err) == hub.CodeTaskNotFound {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		return t, n == turn || has(t, turnID(family, turn)) >= 0, nil
	}
	return nil, false, nil
}

// has returns the place of a message in a task's history, or -1.
func has(t *a2a.Task, id string) int {
	return slices.IndexFunc(t.History, func(m *a2a.Message) bool { return m.ID == id })
}

// over reports whether a task's state is the outcome of its latest message. A question that was asked before that message
// is not: the message answers it and waits for its turn.
func over(t *a2a.Task) bool {
	if t.Status.State.Terminal() {
		return true
	}
	if !hub.Interrupted(t.Status.State) {
		return false
	}
	if t.Status.Message == nil || len(t.History) == 0 {
		return true
	}
	asked := has(t, t.Status.Message.ID)
	return asked < 0 || asked == len(t.History)-1
}

// streamKeyed sends the events of the turn that a request with a key belongs to, until it is over. It waits for events until
// streaming ends.
func (r *responder) streamKeyed(ctx, streaming context.Context, e *envelope.Envelope, sub *hub.Subscription, known bool) {
	now := sub.Task()
	s := streamer{d: r, e: e, last: *now, of: e.ID, whole: known}
	start := Start{begun: begun{TaskID: string(now.ID), ContextID: now.ContextID}, Of: e.ID, State: stateName(now.Status.State), Resumed: known}
	if !r.reply(ctx, e, envelope.StreamStart, start) || known && !s.event(ctx, now) {
		sub.Close()
		return
	}
	switch {
	case known && r.ended(now):
		sub.Close()
	case !r.pass(ctx, streaming, sub, &s.last, func(event a2a.Event) bool { return s.event(ctx, event) }):
		return // the node closes, or another request has taken over; the task keeps running
	}
	if over(&s.last) {
		s.end(ctx)
	}
}

// pass passes a task's events on until it has an outcome for whoever has asked, and reports whether it has: not if streaming
// has ended or each has returned false. A task that waits for somebody at this hub goes on by itself. The function each keeps
// last up to date. The subscription is closed.
func (r *responder) pass(ctx, streaming context.Context, sub *hub.Subscription, last *a2a.Task, each func(a2a.Event) bool) bool {
	defer func() { sub.Close() }()
	for {
		event, err := sub.Next(streaming)
		switch {
		case err == nil:
			if !each(event) {
				return false
			}
			continue
		case !errors.Is(err, io.EOF):
			return false
		case !r.waitsHere(last.Status.State):
			return true
		}
		sub.Close()
		next, err := r.n.o.Hub.Subscribe(ctx, last.ID)
		if err != nil {
			return false
		}
		sub = next
		if !each(sub.Task()) {
			return false
		}
		if r.ended(sub.Task()) {
			return true
		}
	}
}

// ended reports whether a task has an outcome for the other hub.
func (r *responder) ended(t *a2a.Task) bool { return over(t) && !r.waitsHere(t.Status.State) }

// resume makes the text follow whole at the end, for a receiver that has missed events.
func (s *streamer) resume(ctx context.Context) bool {
	if s.of == "" || s.whole {
		return true
	}
	s.whole, s.sent = true, false
	start := Start{begun: begun{TaskID: string(s.last.ID), ContextID: s.last.ContextID}, Of: s.of, State: stateName(s.last.Status.State), Resumed: true}
	return s.d.reply(ctx, s.e, envelope.StreamStart, start)
}

// waitsHere reports whether a task in this state waits for somebody at this hub, and goes on by itself afterwards: a session
// or a connected program is asked only when the sender is permitted.
func (r *responder) waitsHere(state a2a.TaskState) bool {
	info, err := r.n.o.Hub.Agent(r.agent)
	return err == nil && state == a2a.TaskStateAuthRequired && waitsFor(info)
}

// cancelKeyed cancels the task with a turn, or the one whose question the turn would have answered, and confirms it. It confirms too
// that there is nothing to cancel.
func (r *responder) cancelKeyed(ctx context.Context, e *envelope.Envelope, k key) (follow func()) {
	if err := k.check(); err != nil {
		return r.failing(ctx, e, &Failure{Code: "INVALID_PAYLOAD", Message: err.Error(), Of: e.ID})
	}
	return func() {
		t, known, err := r.turnOf(ctx, k.family(e.Sender), k.Turn)
		if err == nil && (known || t != nil && hub.Interrupted(t.Status.State)) {
			err = r.stop(ctx, t.ID)
		}
		if err != nil {
			f := failureFrom(err)
			f.Of = e.ID
			r.fail(ctx, e, f)
			return
		}
		r.reply(ctx, e, envelope.Response, Result{State: stateName(a2a.TaskStateCanceled), Of: e.ID})
	}
}

// streams are the answers to requests with keys that an agent sends now. The end of a channel does not end them: the request
// may have been repeated over the next one already. They are safe for concurrent use.
type streams struct {
	mu   sync.Mutex
	open map[string]*keyedStream // by family
}

type keyedStream struct{ cancel context.CancelFunc }

// begin starts an answer, and ends the one to the same task before. The caller calls end. It returns false if there are too
// many.
func (s *streams) begin(ctx context.Context, family string) (streaming context.Context, end func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.open[family]
	if old == nil && len(s.open) >= maxStreams {
		return ctx, nil, false
	}
	if old != nil {
		old.cancel()
	}
	streaming, cancel := context.WithCancel(ctx)
	mine := &keyedStream{cancel}
	if s.open == nil {
		s.open = make(map[string]*keyedStream)
	}
	s.open[family] = mine
	return streaming, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open[family] == mine {
			delete(s.open, family)
		}
	}, true
}

// Bounds of files.
const (
	maxFileName = 1024
	maxFiles    = 16 << 20  // bytes of the files of one answer
	filePart    = 256 << 10 // bytes of a file in one envelope
)

// file sends a chunk, and with a key the content of the file that it names.
func (s *streamer) file(ctx context.Context, c Chunk, p *a2a.Part) bool {
	content, ok := p.Content.(a2a.Raw)
	if !ok || s.of == "" || s.files+len(content) > maxFiles {
		return s.data(ctx, c)
	}
	s.files += len(content)
	size := len(content)
	c.Size, c.MediaType = &size, text.Cut(p.MediaType, maxMark)
	for first := true; first || len(content) > 0; first = false {
		part := content[:min(len(content), filePart)]
		content = content[len(part):]
		c.Bytes = part
		if !s.data(ctx, c) {
			return false
		}
	}
	return true
}

// asFile returns a text with a file's name as a file.
func asFile(p *a2a.Part) *a2a.Part {
	content, ok := p.Content.(a2a.Text)
	if !ok || p.Filename == "" {
		return p
	}
	file := a2a.NewRawPart([]byte(content))
	file.Filename, file.MediaType = p.Filename, cmp.Or(p.MediaType, "text/plain")
	return file
}
