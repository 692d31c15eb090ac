package mounts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub/process"
)

// maxMessage bounds one message of a server, in bytes.
const maxMessage = 16 << 20

// environ is the environment of a server's program.
func environ(s config.MCPServer) []string { return process.Environ(os.Environ(), s.EnvAllow, s.Env) }

// program makes what starts a server's program.
func (t *Tools) program(name string, s config.MCPServer) func(context.Context) (mcp.Transport, error) {
	dir := s.Cwd
	if dir == "" {
		dir = t.o.Dir
	}
	return func(context.Context) (mcp.Transport, error) {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("it cannot work in its directory: %w", err)
		}
		p, err := process.Start(process.Command{
			Path: s.Command, Args: s.Args, Dir: dir, Env: environ(s), Marker: process.NewMarker(t.o.Owner),
		})
		if err != nil {
			return nil, err
		}
		return &pipe{p: p, lines: process.NewLines(p.Stdout(), maxMessage), log: t.o.Logger.With("server", name)}, nil
	}
}

// pipe is MCP on the standard streams of a program: a transport that is used once,
// and its connection. What the program says on standard error is kept, bounded and
// redacted, for when it ends.
type pipe struct {
	p     *process.Process
	lines *process.Lines
	log   *slog.Logger

	writing chan struct{} // holds one while a message is written
	closing sync.Once
	unread  chan read
	done    chan struct{}
	reason  atomic.Value // an error: why the program speaks no more, once that is known
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

// pump reads what the program writes.
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

// next returns the next message. What is none is passed over: programs print all
// kinds of things.
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
		m, err := jsonrpc.DecodeMessage(line)
		if err != nil {
			c.log.Debug("an MCP server printed what is no message", "bytes", len(line))
			continue
		}
		return m, nil
	}
}

// ended says why the program speaks no more, with what it said last.
func (c *pipe) ended(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	c.stop() // also where it has only closed its output: it is of no use now
	said := c.p.Stderr()
	if said == "" {
		return io.EOF
	}
	err = fmt.Errorf("%w; it said: %s", errClosed, said)
	c.reason.Store(err)
	return err
}

// Read implements mcp.Connection.
func (c *pipe) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case r := <-c.unread:
		return r.message, r.err
	case <-c.done:
		// Who could not write closes, and may do so before the reader's last word.
		if reason, ok := c.reason.Load().(error); ok {
			return nil, reason
		}
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements mcp.Connection. It blocks while the program does not read, until ctx
// ends; a message that has been begun is written to its end all the same.
func (c *pipe) Write(ctx context.Context, m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
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
	go func() { // ends with the process, whose input is closed
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
		if said := c.ended(io.EOF); said != io.EOF {
			err = said // why it reads no more
		}
		return fmt.Errorf("%w: %w", mcp.ErrConnectionClosed, err)
	}
	return nil
}

// Close implements mcp.Connection. It returns when nothing of the program is left.
func (c *pipe) Close() error {
	c.closing.Do(func() { close(c.done) })
	c.stop()
	return nil
}

// stop ends the program: its input ends, which is MCP's way, then signals come.
func (c *pipe) stop() {
	exit := c.p.Stop(context.Background(), process.StopPolicy{Signals: []os.Signal{syscall.SIGTERM}})
	if err := errors.Join(exit.Err, c.p.Close()); err != nil {
		c.log.Warn("the processes of an MCP server could not be ended", "error", err)
	}
}

// SessionID implements mcp.Connection.
func (c *pipe) SessionID() string { return "" }

// overHTTP makes what connects to a server at a URL.
//
// refused is set when the server answers a message with HTTP 401 or 403.
func overHTTP(s config.MCPServer, refused *atomic.Bool) func(context.Context) (mcp.Transport, error) {
	client := &http.Client{
		Transport: bounded{headers{http.DefaultTransport, s.Headers}, refused},
		// The headers are for this server only.
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
	for _, name := range slices.Sorted(maps.Keys(h.add)) {
		r.Header.Set(name, h.add[name])
	}
	return h.next.RoundTrip(r)
}

// bounded bounds the messages of a server: what the SDK reads of one it keeps in memory.
type bounded struct {
	next    http.RoundTripper
	refused *atomic.Bool
}

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	// Only noted: the SDK knows that a server may refuse the stream (GET) and serve calls
	// all the same, and takes the reason from the body of what answers a message (POST).
	if r.Method == http.MethodPost && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden) {
		b.refused.Store(true)
	}
	mediaType, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")) // "" where there is none
	answer.Body = &boundedBody{ReadCloser: answer.Body, stream: mediaType == "text/event-stream", left: maxMessage}
	return answer, nil
}

var errTooLarge = fmt.Errorf("a message of the server is larger than %d MiB", maxMessage>>20)

// boundedBody bounds a body, or each event of a stream of events: a stream may last.
type boundedBody struct {
	io.ReadCloser
	stream bool
	blank  bool // the stream is at the beginning of a line
	left   int  // bytes of this message
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for _, c := range p[:n] {
		switch {
		case b.stream && c == '\n' && b.blank: // an empty line ends an event
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
