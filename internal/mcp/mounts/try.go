package mounts

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/toolbox"
)

// Cause is the kind of problem that prevents a connection to a server.
type Cause string

// The causes. For CauseOther see Status.Why.
const (
	CauseNone        Cause = ""
	CauseNotFound    Cause = "not found"   // the program or its directory is missing or not executable
	CauseEnded       Cause = "ended"       // the program ended or closed its output
	CauseSilent      Cause = "silent"      // no answer in time
	CauseRefused     Cause = "refused"     // HTTP 401 or 403
	CauseUnreachable Cause = "unreachable" // no connection to the URL
	CauseOther       Cause = "other"
)

// Try connects a server of the configuration once, as a hub does, lists its tools and disconnects. The program works in
// dir if it has no directory configured. Try blocks up to timeout, and a moment to end the program; ctx ends it earlier.
// It is safe for concurrent use.
func Try(ctx context.Context, name string, s config.MCPServer, dir string, timeout time.Duration) (Status, Cause) {
	t := &Tools{o: Options{Dir: dir, Logger: slog.New(slog.DiscardHandler), timeout: timeout}, box: toolbox.New(toolbox.Options{}), mounted: make(map[string]*mounted)}
	t.mountServer(name, s)
	m := t.mounted[name]
	if m == nil { // an invalid name, which a checked configuration does not have
		return Status{Name: name, Why: "the name cannot be used"}, CauseOther
	}
	defer m.Close()
	select {
	case <-m.Tried():
	case <-ctx.Done():
		return Status{Name: name, Kind: m.kind, Why: ctx.Err().Error()}, CauseSilent
	}
	status := t.Status()[0]
	return status, causeOf(status.Problem, m)
}

func causeOf(err error, m *mounted) Cause {
	var network net.Error
	switch {
	case err == nil:
		return CauseNone
	case m.refused.Load():
		return CauseRefused
	case errors.Is(err, process.ErrNotFound), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return CauseNotFound
	case errors.Is(err, context.DeadlineExceeded):
		return CauseSilent
	case errors.As(err, &network):
		return CauseUnreachable
	case m.kind == KindCommand && (errors.Is(err, mcp.ErrConnectionClosed) || errors.Is(err, io.EOF)):
		return CauseEnded
	}
	return CauseOther
}
