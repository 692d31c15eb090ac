package wait

import "sync"

// Single lets one goroutine at a time do a job, for jobs that are requested more often than they need to run. Its zero value is
// ready; it is safe for concurrent use.
type Single struct {
	mu             sync.Mutex
	running, again bool
}

// Begin reports whether the caller has to do the job, and to call Again after it. Otherwise it is being done, and will be done
// once more.
func (s *Single) Begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		s.again = true
		return false
	}
	s.running = true
	return true
}

// Again reports whether the job has to be done once more. After false another Begin begins it.
func (s *Single) Again() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.again = s.again, false
	return s.running
}
