package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// closePatience is how long a client may take to read its last answers.
const closePatience = 3 * time.Second

// ServeLines serves one client over newline-delimited JSON until the input ends,
// a stream breaks, or ctx ends. All requests that were read are answered, those
// that wait for others at once (REQ-REL-008). It returns nil unless a stream
// broke. Close of in must end a read of it; where it does not, as of a terminal,
// a goroutine stays behind until the process ends. The end of the input ends what
// all the Service's servers wait for: a Service that serves lines serves nothing else.
func (s *Service) ServeLines(ctx context.Context, caller Caller, in io.ReadCloser, out io.Writer) error {
	server := s.NewServer(caller)
	defer server.End()
	conn := newLines(in, out, s.endWaits)
	server.release = conn.release
	session, err := server.mcp.Connect(context.WithoutCancel(ctx), conn, nil)
	if err != nil {
		return fmt.Errorf("serve MCP: %w", err)
	}
	go conn.pump() // ends with the input
	done := make(chan error, 1)
	go func() { done <- session.Wait() }() // ends with the connection
	select {
	case err = <-done:
	case <-ctx.Done():
		s.endWaits()
		conn.finish()
		select {
		case err = <-done:
		case <-time.After(closePatience):
			s.log.Warn("the client does not read its last answers")
			go func() { _ = session.Close() }() // hangs until it does
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		err = nil
	}
	return err
}
