package push

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"

	"github.com/parleyhub/parley/internal/base/wait"
)

const v03 = a2av0.Version

// target is one webhook of one task, with its queue. Service.mu guards the fields above
// saving, except the key and rec's Config and Version, which never change.
type target struct {
	key
	rec     record
	queue   []item
	queued  time.Time // of the newest status that was queued or delivered
	sending bool      // a goroutine sends the queue

	saving  sync.Mutex // held over a write to the store
	retired bool       // it was replaced or deleted, and must not be stored again
}

// item is one notification.
type item struct {
	event  a2a.Event
	status time.Time // of an event that has a status
	final  bool      // it reports the task's end
	latest bool      // replaced by a snapshot of the task when it is sent
}

// snapshot returns a notification of a whole task.
func snapshot(task *a2a.Task) item {
	return item{event: task, status: statusTime(task.Status), final: task.Status.State.Terminal()}
}

func newTarget(k key, r record) *target {
	return &target{key: k, rec: r, queued: r.Delivered}
}

func (t *target) config() Config {
	c := Config{PushConfig: t.rec.Config, Version: t.rec.Version}
	c.TaskID, c.ID = t.task, t.id
	return c
}

// save stores a state of the target, unless it was retired.
func (t *target) save(ctx context.Context, st store, r record) error {
	t.saving.Lock()
	defer t.saving.Unlock()
	if t.retired {
		return nil
	}
	return st.put(ctx, t.key, r)
}

// retire prevents further writes of the target, and waits for a running one. It returns
// false if the target was retired before.
func (t *target) retire() bool {
	t.saving.Lock()
	defer t.saving.Unlock()
	first := !t.retired
	t.retired = true
	return first
}

func (t *target) isRetired() bool {
	t.saving.Lock()
	defer t.saving.Unlock()
	return t.retired
}

// send sends a target's queue.
func (s *Service) send(t *target) {
	for {
		s.mu.Lock()
		if len(t.queue) == 0 || s.closed {
			t.sending = false
			s.mu.Unlock()
			return
		}
		it := t.queue[0]
		t.queue = t.queue[1:]
		s.mu.Unlock()

		if it.latest {
			task, err := s.opts.Tasks.Task(s.ctx, t.task, nil)
			if err != nil {
				continue // the task is gone, or the service closes
			}
			it = snapshot(task)
		}
		gone := s.deliver(t, it)
		if s.ctx.Err() == nil && !t.isRetired() {
			s.settled(t, it, gone)
		}
	}
}

// settled records that a notification was delivered or given up.
func (s *Service) settled(t *target, it item, gone bool) {
	if it.status.IsZero() && !gone {
		return
	}
	s.mu.Lock()
	if it.status.After(t.rec.Delivered) {
		t.rec.Delivered = it.status
	}
	done := (it.final || gone) && !t.rec.Done
	t.rec.Done = t.rec.Done || done
	if gone {
		t.queue = nil
	}
	now := t.rec
	s.mu.Unlock()
	if err := t.save(s.ctx, s.store, now); err != nil {
		s.log.Warn("delivery of a push notification not stored: it may be repeated after a restart", "task", t.task, "error", err)
	}
	if done {
		s.finished(t)
	}
}

// deliver sends one notification until the webhook accepts it, rejects it permanently, or
// Options.GiveUp has passed. gone means that the webhook rejects all notifications.
func (s *Service) deliver(t *target, it item) (gone bool) {
	body, contentType, err := encode(it.event, t.rec.Version, s.opts.MaxBody)
	if err != nil {
		s.log.Error("push notification cannot be encoded", "task", t.task, "error", err)
		return false
	}
	retry := wait.Backoff{First: s.opts.FirstPause, Most: s.opts.MaxPause, Jitter: 0.3}
	begun := time.Now()
	for try := 1; ; try++ {
		outcome := s.call(t, body, contentType)
		if outcome.err == nil {
			return false
		}
		log := s.log.With("task", t.task, "host", hostOf(t.rec.Config.URL), "try", try, "error", outcome.err)
		if s.ctx.Err() != nil || t.isRetired() {
			return false
		}
		if outcome.final || time.Since(begun) > s.opts.GiveUp {
			log.Warn("push notification given up")
			return outcome.gone
		}
		pause := min(max(retry.Next(), outcome.after), s.opts.MaxPause)
		log.Debug("push notification failed", "pause", pause)
		if !wait.Pause(s.ctx, pause) {
			return false
		}
	}
}

// outcome is the result of one request.
type outcome struct {
	err   error         // nil if the webhook accepted
	final bool          // a retry is useless
	gone  bool          // the webhook answered 410 Gone
	after time.Duration // the requested pause
}

// call sends one request.
func (s *Service) call(t *target, body []byte, contentType string) outcome {
	select {
	case s.calls <- struct{}{}:
		defer func() { <-s.calls }()
	case <-s.ctx.Done():
		return outcome{err: s.ctx.Err()}
	}
	if t.isRetired() { // while the call waited
		return outcome{err: errors.New("configuration removed"), final: true}
	}
	c := t.rec.Config
	req, err := http.NewRequestWithContext(s.ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return outcome{err: errors.New("the URL cannot be called"), final: true} // err contains the URL
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", "parley")
	if c.Token != "" {
		req.Header.Set("X-A2A-Notification-Token", c.Token)
		if t.rec.Version != v03 {
			req.Header.Set("A2A-Notification-Token", c.Token) // the name in the 1.0 SDKs
		}
	}
	if c.Auth != nil && c.Auth.Credentials != "" {
		req.Header.Set("Authorization", c.Auth.Scheme+" "+c.Auth.Credentials)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err // without the URL, which may contain a secret
		}
		return outcome{err: err, final: errors.Is(err, errBlocked)}
	}
	defer func() { _ = resp.Body.Close() }() // after reading
	// The connection can be reused once the body is read. Its content does not matter.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	return judge(resp)
}

func judge(resp *http.Response) outcome {
	code := resp.StatusCode
	if code >= 200 && code < 300 {
		return outcome{}
	}
	o := outcome{err: fmt.Errorf("the webhook answered %d", code)}
	switch {
	case code == http.StatusGone:
		o.final, o.gone = true, true
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500:
		if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
			o.after = time.Duration(min(seconds, 24*3600)) * time.Second
		}
	default: // a redirect, or an error of the request
		o.final = true
	}
	return o
}

// hostOf returns the part of a webhook's URL that may be logged.
func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Host
}

// metaOmitted marks a truncated notification; the client reads the rest with GetTask.
const metaOmitted = "parley.omitted"

// encode returns the body of a notification. Above limit bytes it omits the history and
// the artifacts, then the status's message.
func encode(event a2a.Event, version a2a.ProtocolVersion, limit int) (body []byte, contentType string, err error) {
	body, contentType, err = encodeWhole(event, version)
	if err != nil || len(body) <= limit {
		return body, contentType, err
	}
	info := event.TaskInfo()
	short := &a2a.Task{ID: info.TaskID, ContextID: info.ContextID, Metadata: map[string]any{metaOmitted: "history, artifacts"}}
	switch e := event.(type) {
	case *a2a.Task:
		short.Status = e.Status
	case *a2a.TaskStatusUpdateEvent:
		short.Status = e.Status
	default:
		short.Status.State = a2a.TaskStateWorking // artifacts exist only while it works
	}
	if body, contentType, err = encodeWhole(short, version); err != nil || len(body) <= limit {
		return body, contentType, err
	}
	short.Status.Message = nil
	return encodeWhole(short, version)
}

func encodeWhole(event a2a.Event, version a2a.ProtocolVersion) ([]byte, string, error) {
	if version != v03 {
		body, err := json.Marshal(a2a.StreamResponse{Event: event})
		return body, "application/a2a+json", err
	}
	old, err := a2av0.FromV1Event(event)
	if err != nil {
		return nil, "", err
	}
	body, err := json.Marshal(old)
	return body, "application/json", err
}
