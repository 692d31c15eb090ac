package process

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"
)

type pipe struct{ r, w *os.File }

// pipes are the three standard streams. With exec's own pipes, Wait would close an end that is still read.
type pipes struct{ stdin, stdout, stderr pipe }

func (ps *pipes) open() (err error) {
	for _, p := range []*pipe{&ps.stdin, &ps.stdout, &ps.stderr} {
		if p.r, p.w, err = os.Pipe(); err != nil {
			return err
		}
	}
	return nil
}

func (ps *pipes) close() {
	closeFiles(ps.stdin.r, ps.stdin.w, ps.stdout.r, ps.stdout.w, ps.stderr.r, ps.stderr.w)
}

func (ps *pipes) closeChildEnds() {
	closeFiles(ps.stdin.r, ps.stdout.w, ps.stderr.w)
}

func closeFiles(fs ...*os.File) {
	for _, f := range fs {
		if f != nil {
			_ = f.Close() // this process's copy
		}
	}
}

// stdoutPipe returns io.EOF even if a process that could not be swept keeps the other end
// open: after the end of the process no read blocks longer than delay. A slow reader
// loses nothing, because the delay counts only while a read blocks.
type stdoutPipe struct {
	f     *os.File
	delay time.Duration
	ended atomic.Bool
}

func (s *stdoutPipe) processEnded() {
	s.ended.Store(true)
	boundReads(s.f, s.delay)
}

func (s *stdoutPipe) Read(b []byte) (int, error) {
	for {
		bounded := s.ended.Load()
		if bounded {
			boundReads(s.f, s.delay)
		}
		n, err := s.f.Read(b)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && !bounded:
			// The deadline was set during this read, which then had no full delay.
			continue
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
			return n, io.EOF
		}
		return n, err
	}
}

func (s *stdoutPipe) Close() error { return s.f.Close() }

// boundReads ends reads of f after d. Windows has no deadlines for pipes: there the job's
// end has closed the other end already.
func boundReads(f *os.File, d time.Duration) {
	_ = f.SetReadDeadline(time.Now().Add(d))
}
