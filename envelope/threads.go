package envelope

import (
	"cmp"
	"container/list"
	"slices"
	"sync"
)

// Limits of a [Threads] store unless its fields say otherwise.
const (
	DefaultMaxThreads   = 10_000
	DefaultMaxPerThread = 1_000
	DefaultMaxBytes     = 64 << 20
)

// envelopeCost is what an envelope takes beside its payload, in bytes, about.
const envelopeCost = 512

// Threads keeps envelopes by correlation id. It is
// bounded: the thread that was added to least recently gives way to a new one,
// and a full thread, or the only one, loses its earliest envelope. The zero value is ready; set
// the limits before the first use. It is safe for concurrent use.
type Threads struct {
	MaxThreads   int // 0 means DefaultMaxThreads
	MaxPerThread int // 0 means DefaultMaxPerThread
	MaxBytes     int // of all payloads, and 512 for each envelope; 0 means DefaultMaxBytes

	mu     sync.Mutex
	bytes  int
	byID   map[string]*list.Element // of *thread
	recent list.List                // most recently added to in front
}

type thread struct {
	id        string
	envelopes []*Envelope // in order of timestamp, then of arrival
	ids       map[string]bool
}

func cost(e *Envelope) int { return len(e.Payload) + envelopeCost }

// Add keeps e in its thread. An envelope without a correlation id is in no
// thread, and one that the thread has already is not added again; Add then
// reports false.
func (s *Threads) Add(e *Envelope) bool {
	if e.CorrelationID == "" {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.thread(e.CorrelationID)
	if t.ids[e.ID] {
		return false
	}
	t.ids[e.ID] = true
	at, _ := slices.BinarySearchFunc(t.envelopes, e.Timestamp, func(have *Envelope, ts int64) int {
		if have.Timestamp == ts {
			return -1 // after those of the same millisecond
		}
		return cmp.Compare(have.Timestamp, ts)
	})
	t.envelopes = slices.Insert(t.envelopes, at, e)
	s.bytes += cost(e)
	if len(t.envelopes) > orDefault(s.MaxPerThread, DefaultMaxPerThread) {
		s.dropFirst(t)
	}
	for most := orDefault(s.MaxBytes, DefaultMaxBytes); s.bytes > most; {
		if s.recent.Len() > 1 {
			s.drop(s.recent.Back())
		} else if len(t.envelopes) > 1 {
			s.dropFirst(t)
		} else {
			break // one that is larger than all may be is kept
		}
	}
	return true
}

// dropFirst drops a thread's earliest envelope.
func (s *Threads) dropFirst(t *thread) {
	delete(t.ids, t.envelopes[0].ID)
	s.bytes -= cost(t.envelopes[0])
	t.envelopes = slices.Delete(t.envelopes, 0, 1)
}

// drop drops a thread.
func (s *Threads) drop(el *list.Element) {
	t := s.recent.Remove(el).(*thread)
	delete(s.byID, t.id)
	for _, e := range t.envelopes {
		s.bytes -= cost(e)
	}
}

// thread finds or starts a thread and makes it the most recent.
func (s *Threads) thread(id string) *thread {
	if el := s.byID[id]; el != nil {
		s.recent.MoveToFront(el)
		return el.Value.(*thread)
	}
	if s.byID == nil {
		s.byID = make(map[string]*list.Element)
	}
	t := &thread{id: id, ids: make(map[string]bool)}
	s.byID[id] = s.recent.PushFront(t)
	if len(s.byID) > orDefault(s.MaxThreads, DefaultMaxThreads) {
		s.drop(s.recent.Back())
	}
	return t
}

// Thread returns the envelopes with this correlation id in order of their
// timestamps; those of the same millisecond in the order in which they came.
func (s *Threads) Thread(correlationID string) []*Envelope {
	s.mu.Lock()
	defer s.mu.Unlock()
	el := s.byID[correlationID]
	if el == nil {
		return nil
	}
	return slices.Clone(el.Value.(*thread).envelopes)
}

// Forget drops a thread.
func (s *Threads) Forget(correlationID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if el := s.byID[correlationID]; el != nil {
		s.drop(el)
	}
}

// Remove takes an envelope out of its thread again, one that could not be sent say.
// It reports whether it was there.
func (s *Threads) Remove(e *Envelope) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	el := s.byID[e.CorrelationID]
	if el == nil {
		return false
	}
	t := el.Value.(*thread)
	if !t.ids[e.ID] {
		return false
	}
	delete(t.ids, e.ID)
	t.envelopes = slices.DeleteFunc(t.envelopes, func(have *Envelope) bool {
		if have.ID != e.ID {
			return false
		}
		s.bytes -= cost(have)
		return true
	})
	if len(t.envelopes) == 0 {
		s.recent.Remove(el)
		delete(s.byID, t.id)
	}
	return true
}

// Len returns the number of threads.
func (s *Threads) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

func orDefault(n, otherwise int) int {
	if n > 0 {
		return n
	}
	return otherwise
}
