package mounts

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/mcp/wire"
)

// maxMessage bounds one message of a server, in bytes.
const maxMessage = 16 << 20

// environ returns the environment of a server's program.
func environ(s config.MCPServer) []string { return process.Environ(os.Environ(), s.EnvAllow, s.Env) }

// program returns a dialer that starts a server's program.
func (t *Tools) program(name string, s config.MCPServer) func(context.Context) (mcp.Transport, error) {
	dir := cmp.Or(s.Cwd, t.o.Dir)
	return func(context.Context) (mcp.Transport, error) {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("its working directory cannot be used: %w", err)
		}
		p, err := process.Start(process.Command{
			Path: s.Command, Args: s.Args, Dir: dir, Env: environ(s), Marker: process.NewMarker(t.o.Owner),
		})
		if err != nil {
			return nil, err
		}
		return wire.NewCalls(&pipe{p: p, lines: process.NewLines(p.Stdout(), maxMessage), log: t.o.Logger.With("server", name)}), nil
	}
}

// pipe is MCP on the standard streams of a program: a transport for one use, and its connection. The end of the
// program's standard error is kept, bounded and redacted, for the error when the program ends.
type pipe struct {
	p     *process.Process
	lines *process.Lines
	log   *slog.Logger

	writing chan struct{} // of capacity 1; a lock that can be waited for with a context
	closing sync.Once
	unread  chan read
	done    chan struct{}
	reason  atomic.Value // an error: why the program ended, once that is known
}

type read struct {
	message jsonrpc.Message
	err     error
}

// Connect implements mcp.Transport.
func (c *pipe) Connect(context.Context) (mcp.Connection, error) {
	c.unread, c.done, c.writing = make(chan read), make(chan struct{}), make(chan struct{}, 1)
	go c.pump() // ends with the process
	return c, nil
}

// pump reads the program's output until it ends or the pipe is closed.
func (c *pipe) pump() {
	for {
		m, err := c.next()
		select {
		case c.unread <- read{m, err}:
		case <-c.done:
			return
		}
		if err != nil {
			return
		}
	}
}

// next returns the next message. Lines that are no message are skipped, for programs also print other text.
func (c *pipe) next() (jsonrpc.Message, error) {
	for {
		line, err := c.lines.Next()
		switch {
		case errors.Is(err, process.ErrLineTooLong):
			return nil, fmt.Errorf("a message of the server is too large: %w", err)
		case err != nil:
			return nil, c.ended(err)
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		m, err := wire.Decode(line)
		if err != nil {
			c.log.Debug("an MCP server printed a line that is no message", "bytes", len(line))
			continue
		}
		return m, nil
	}
}

// ended stops the program after the end of its output and returns the error with the end of its standard error.
func (c *pipe) ended(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	c.stop() // it may only have closed its output
	stderr := c.p.Stderr()
	if stderr == "" {
		return io.EOF
	}
	err = fmt.Errorf("%w; standard error: %s", errClosed, stderr)
	c.reason.Store(err)
	return err
}

// Read implements mcp.Connection.
func (c *pipe) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case r := <-c.unread:
		return r.message, r.err
	case <-c.done:
		// After a failed write the SDK may close the pipe before the reader's error is delivered.
		if reason, ok := c.reason.Load().(error); ok {
			return nil, reason
		}
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements mcp.Connection. It blocks while the program does not read, until ctx ends; a message that was begun is
// then still completed in the background.
func (c *pipe) Write(ctx context.Context, m jsonrpc.Message) error {
	data, err := wire.Encode(m)
	if err != nil {
		return err
	}
	select {
	case c.writing <- struct{}{}:
	case <-c.done:
		return mcp.ErrConnectionClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	written := make(chan error, 1)
	go func() { // ends with the process, which closes its input
		_, err := c.p.Stdin().Write(append(data, '\n'))
		<-c.writing
		written <- err
	}()
	select {
	case err = <-written:
	case <-c.done:
		err = io.ErrClosedPipe
	case <-ctx.Done():
		return ctx.Err()
	}
	if err != nil {
		if reason := c.ended(io.EOF); reason != io.EOF {
			err = reason
		}
		return fmt.Errorf("%w: %w", mcp.ErrConnectionClosed, err)
	}
	return nil
}

// Close implements mcp.Connection. It returns when all processes of the program have ended.
func (c *pipe) Close() error {
	c.closing.Do(func() { close(c.done) })
	c.stop()
	return nil
}

// stop ends the program: it closes its input, as MCP prescribes, then sends signals.
func (c *pipe) stop() {
	exit := c.p.Stop(context.Background(), process.StopPolicy{Signals: []os.Signal{syscall.SIGTERM}})
	if err := errors.Join(exit.Err, c.p.Close()); err != nil {
		c.log.Warn("the processes of an MCP server could not be ended", "error", err)
	}
}

// SessionID implements mcp.Connection.
func (c *pipe) SessionID() string { return "" }

// overHTTP returns a dialer for a server at a URL. refused is set when the server answers a message with HTTP 401 or 403.
func overHTTP(s config.MCPServer, refused *atomic.Bool) func(context.Context) (mcp.Transport, error) {
	client := &http.Client{
		Transport: bounded{headers{http.DefaultTransport, s.Headers}, refused},
		// The headers must not reach another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(context.Context) (mcp.Transport, error) {
		return &mcp.StreamableClientTransport{Endpoint: s.URL, HTTPClient: client}, nil
	}
}

// headers adds headers to every request.
type headers struct {
	next http.RoundTripper
	add  map[string]string
}

func (h headers) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range h.add {
		r.Header.Set(name, value)
	}
	return h.next.RoundTrip(r)
}

// bounded bounds the messages of a server, which the SDK keeps in memory.
type bounded struct {
	next    http.RoundTripper
	refused *atomic.Bool
}

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	// The answer is passed on: a server may refuse the stream (GET) and serve calls, and the SDK reads the reason from the
	// body of the answer to a message (POST).
	if r.Method == http.MethodPost && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden) {
		b.refused.Store(true)
	}
	mediaType, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")) // "" if it is missing
	answer.Body = &boundedBody{ReadCloser: answer.Body, stream: mediaType == "text/event-stream", left: maxMessage}
	return answer, nil
}

var errTooLarge = fmt.Errorf("a message of the server is larger than %d MiB", maxMessage>>20)

// boundedBody bounds a body, or each event of a stream of events.
type boundedBody struct {
	io.ReadCloser
	stream bool
	blank  bool // at the beginning of a line
	left   int  // bytes that this message may still have
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for _, c := range p[:n] {
		switch {
		case b.stream && c == '\n' && b.blank: // the end of an event
			b.left = maxMessage
			continue
		case c == '\n':
			b.blank = true
		case c != '\r':
			b.blank = false
		}
		if b.left--; b.left < 0 {
			return 0, errTooLarge
		}
	}
	return n, err
}
