package hubtools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/process"
)

// maxLine bounds one message of a program, in bytes.
const maxLine = 16 << 20

// environ is the environment of a server's program.
func environ(s config.MCPServer) []string { return process.Environ(os.Environ(), s.EnvAllow, s.Env) }

// program makes what starts a server's program.
func (t *Tools) program(name string, s config.MCPServer) func(context.Context) (mcp.Transport, error) {
	dir := s.Cwd
	if dir == "" {
		dir = t.o.Dir
	}
	return func(context.Context) (mcp.Transport, error) {
		p, err := process.Start(process.Command{
			Path: s.Command, Args: s.Args, Dir: dir, Env: environ(s), Marker: process.NewMarker(t.o.Owner),
		})
		if err != nil {
			return nil, err
		}
		return &pipe{p: p, lines: process.NewLines(p.Stdout(), maxLine), log: t.o.Logger.With("server", name)}, nil
	}
}

// pipe is MCP on the standard streams of a program: a transport that is used once,
// and its connection. What the program says on standard error is kept, bounded and
// redacted, for when it ends.
type pipe struct {
	p     *process.Process
	lines *process.Lines
	log   *slog.Logger

	writing sync.Mutex
	closing sync.Once
	unread  chan read
	done    chan struct{}
}

type read struct {
	message jsonrpc.Message
	err     error
}

// Connect implements mcp.Transport.
func (c *pipe) Connect(context.Context) (mcp.Connection, error) {
	c.unread, c.done = make(chan read), make(chan struct{})
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
	return fmt.Errorf("%w; it said: %s", errClosed, said)
}

// Read implements mcp.Connection.
func (c *pipe) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case r := <-c.unread:
		return r.message, r.err
	case <-c.done:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements mcp.Connection. It blocks while the program does not read.
func (c *pipe) Write(_ context.Context, m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if _, err := c.p.Stdin().Write(append(data, '\n')); err != nil {
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
func overHTTP(s config.MCPServer) func(context.Context) (mcp.Transport, error) {
	client := &http.Client{
		Transport: headers{http.DefaultTransport, s.Headers},
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
