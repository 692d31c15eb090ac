package http

import (
	"sync/atomic"
	"time"
)

// presence is what a session has for noticing that its client is gone. The Handler's lock guards left.
type presence struct {
	gone    *atomic.Bool // see Options.Gone; nil without it
	changed func()
	left    bool // the client has closed its stream and made no request since; false again once it is known to be gone
}

// present notes a request of a client. The lock is held.
func (h *Handler) present(s *session) {
	s.left = false
	if s.gone != nil && s.gone.CompareAndSwap(true, false) {
		h.watching.Go(s.changed)
	}
}

// closedStream notes that the stream of a session that goes on has ended: its client has closed it, or does not read it. The lock is held.
func (h *Handler) closedStream(s *session) {
	if s.left = s.gone != nil; s.left {
		h.sweepWithin(h.opts.GoneAfter)
	}
}

// noteGone notes that a client is gone, if it has been silent for long enough. A call in progress is no silence. The lock is held.
func (h *Handler) noteGone(s *session) {
	if s.left && s.calls.Load() == 0 && time.Since(s.used) >= h.opts.GoneAfter {
		s.left = false
		s.gone.Store(true)
		h.watching.Go(s.changed)
	}
}
