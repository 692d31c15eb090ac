package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// closeTimeout is how long a client may take to read its last answers.
const closeTimeout = 3 * time.Second

// ServeLines serves one client over newline-delimited JSON until the input ends, a stream fails, or ctx ends. It answers
// all requests that were read; blocking calls are interrupted. It returns nil unless a stream failed. Closing in must end
// a read of it; otherwise, as with a terminal, a goroutine remains until the process ends. The end of the input
// interrupts the blocking calls of all servers of the Service, so that a Service that serves lines must serve nothing
// else.
func (s *Service) ServeLines(ctx context.Context, caller Caller, in io.ReadCloser, out io.Writer) error {
	server := s.NewServer(caller)
	defer server.End()
	conn := newLines(in, out, s.endWaits)
	server.release, server.running = conn.release, conn.running
	session, err := server.mcp.Connect(context.WithoutCancel(ctx), conn, nil)
	if err != nil {
		return fmt.Errorf("serve MCP: %w", err)
	}
	conn.answerDirectly(server.directly(session))
	go conn.pump() // ends with the input
	done := make(chan error, 1)
	go func() { // ends with the connection
		err := session.Wait()
		conn.begun.Wait()
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		s.endWaits()
		conn.finish(io.EOF)
		select {
		case err = <-done:
		case <-time.After(closeTimeout):
			s.log.Warn("the client does not read its last answers")
			go func() { _ = session.Close() }() // blocks until it does
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		err = nil
	}
	return err
}
