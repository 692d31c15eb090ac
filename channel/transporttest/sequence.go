package transporttest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/parleyhub/parley/envelope"
)

// Sequence checks that the payloads that arrive count from 0: each once, in order.
// The zero Sequence is ready; it is safe for concurrent use.
type Sequence struct {
	mu    sync.Mutex
	n     int
	wrong []string // the first few
}

// Handle takes an envelope, as channel.Channel.OnMessage wants it.
func (s *Sequence) Handle(_ context.Context, e *envelope.Envelope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if string(e.Payload) != fmt.Sprint(s.n) && len(s.wrong) < 10 {
		s.wrong = append(s.wrong, fmt.Sprintf("%s came as number %d", e.Payload, s.n))
	}
	s.n++
}

// Check fails the test unless exactly n have arrived, in order.
func (s *Sequence) Check(t testing.TB, n int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n != n || len(s.wrong) > 0 {
		t.Errorf("%d arrived of %d; %v", s.n, n, s.wrong)
	}
}
