package envelope

import (
	"cmp"
	"container/list"
	"slices"
	"sync"

	"github.com/parleyhub/parley/internal/base/defaults"
)

// Limits of a [Threads] store unless its fields say otherwise.
const (
	DefaultMaxThreads   = 10_000
	DefaultMaxPerThread = 1_000
	DefaultMaxBytes     = 64 << 20
)

// envelopeCost is the approximate size of an envelope without its payload, in bytes.
const envelopeCost = 512

// Threads keeps envelopes by thread, see [Envelope.Thread], with the one that opens it, within bounds: when it is full,
// it drops the thread that was added to least recently; a full or only thread drops its earliest envelope. The zero
// value is ready; set the limits before the first use. It is safe for concurrent use.
type Threads struct {
	MaxThreads   int // 0 means DefaultMaxThreads
	MaxPerThread int // 0 means DefaultMaxPerThread
	MaxBytes     int // of all payloads, and 512 for each envelope; 0 means DefaultMaxBytes

	mu     sync.Mutex
	bytes  int
	byID   map[string]*list.Element // of *thread
	recent list.List                // of *thread, the most recently added to in front
}

type thread struct {
	id        string
	envelopes []*Envelope // in order of timestamp, then of receipt
	ids       map[string]bool
}

func cost(e *Envelope) int { return len(e.Payload) + envelopeCost }

// Add adds e to its thread. It reports false for a duplicate and for an envelope that is nil or has no id.
func (s *Threads) Add(e *Envelope) bool {
	if e == nil || e.ID == "" {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.thread(e.Thread())
	if t.ids[e.ID] {
		return false
	}
	t.ids[e.ID] = true
	at, _ := slices.BinarySearchFunc(t.envelopes, e.Timestamp, func(have *Envelope, ts int64) int {
		if have.Timestamp == ts && e.CorrelationID != "" {
			return -1 // after those of the same millisecond, which the opening envelope precedes
		}
		return cmp.Compare(have.Timestamp, ts)
	})
	t.envelopes = slices.Insert(t.envelopes, at, e)
	s.bytes += cost(e)
	if len(t.envelopes) > defaults.Or(s.MaxPerThread, DefaultMaxPerThread) {
		s.dropFirst(t)
	}
	for most := defaults.Or(s.MaxBytes, DefaultMaxBytes); s.bytes > most; {
		if s.recent.Len() > 1 {
			s.drop(s.recent.Back())
		} else if len(t.envelopes) > 1 {
			s.dropFirst(t)
		} else {
			break // a single envelope that exceeds MaxBytes is kept
		}
	}
	return true
}

func (s *Threads) dropFirst(t *thread) {
	delete(t.ids, t.envelopes[0].ID)
	s.bytes -= cost(t.envelopes[0])
	t.envelopes = slices.Delete(t.envelopes, 0, 1)
}

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
	if len(s.byID) > defaults.Or(s.MaxThreads, DefaultMaxThreads) {
		s.drop(s.recent.Back())
	}
	return t
}

// Thread returns the envelopes of a thread by timestamp; those of the same millisecond in the order in which they were
// added, after the one that opens the thread.
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

// Remove removes an envelope from its thread, for instance one that could not be sent.
// It reports whether it was there.
func (s *Threads) Remove(e *Envelope) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e == nil {
		return false
	}
	el := s.byID[e.Thread()]
	if el == nil {
		return false
	}
	t := el.Value.(*thread)
	i := slices.IndexFunc(t.envelopes, func(have *Envelope) bool { return have.ID == e.ID })
	if i < 0 {
		return false
	}
	s.bytes -= cost(t.envelopes[i])
	t.envelopes = slices.Delete(t.envelopes, i, i+1)
	delete(t.ids, e.ID)
	if len(t.envelopes) == 0 {
		s.drop(el)
	}
	return true
}

// Len returns the number of threads.
func (s *Threads) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}
