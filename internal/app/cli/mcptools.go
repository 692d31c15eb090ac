package cli

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/handlers"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/mcp/delegation"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
	"github.com/parleyhub/parley/internal/mcp/wire"
	"github.com/parleyhub/parley/toolbox"
)

// hubTools are the hub's shared tools in an MCP process: those that the hub shows to the agent of this process, with
// the same names. Calls fail with a clear error while the hub is down.
type hubTools struct {
	*mcpserver.Toolbox
	mount *toolbox.Mount
	begin chan struct{} // closed by connect

	changes handlers.List[func()] // called when the hub comes or goes
	project atomic.Pointer[mcpserver.Project]
}

// meta names to the hub the session whose MCP server this is.
func (t *hubTools) meta() map[string]any {
	if p := t.project.Load(); p != nil {
		if guid := p.Session(); guid != "" {
			return map[string]any{delegation.MetaSession: guid}
		}
	}
	return nil
}

// hubRevision is the revision of the protocol between the MCP process and the hub: the last whose requests need not all name their client.
const hubRevision = "2025-11-25"

// redialHub bounds the pause between two attempts to reach the hub. An attempt is cheap: it opens a socket.
const redialHub = 5 * time.Second

// awaitHub is how long calls wait for a hub that has just gone away: it may be starting again.
const awaitHub = 10 * time.Second

// retryHub is the pause between their attempts.
const retryHub = 100 * time.Millisecond

// shareTools returns the hub's tools, which are available once connect is called and a hub
// runs. It does not start a hub. token is that of the agent's conversation, "" for none.
func (a *app) shareTools(token string, log *slog.Logger) (*hubTools, error) {
	t := &hubTools{begin: make(chan struct{})}
	box := toolbox.New(toolbox.Options{})
	var err error
	t.mount, err = box.Mount(toolbox.MountOptions{
		Name: "hub", AsIs: true, Revision: hubRevision, MaxRedial: redialHub, Patience: awaitHub, Logger: quietly(log), Meta: t.meta,
		Changed: func(bool) {
			for _, f := range t.changes.All() {
				(*f)()
			}
		},
		Dial: func(ctx context.Context) (mcp.Transport, error) {
			select {
			case <-t.begin:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			socket, err := a.hubSocket(ctx)
			if err != nil {
				return nil, err
			}
			conn, err := client.AttachMCP(ctx, socket, token)
			if err != nil {
				return nil, err
			}
			return wire.NewCalls(mcpserver.ClientLines(conn)), nil
		},
	})
	if err != nil {
		return nil, err
	}
	t.Toolbox = mcpserver.NewToolbox(box, t.mount.Tried())
	return t, nil
}

// connect begins to connect to the hub. It must be called once.
func (t *hubTools) connect() { close(t.begin) }

// connectAfter calls connect once tried is closed: after the channels' first attempt to find
// their bus, which may start the hub.
func (t *hubTools) connectAfter(ctx context.Context, tried <-chan struct{}) {
	select {
	case <-tried:
	case <-ctx.Done():
	}
	t.connect()
}

// Present reports whether the hub is connected.
func (t *hubTools) Present() bool { return t.mount.Status().Connected }

// OnPresence calls f when the hub comes or goes.
func (t *hubTools) OnPresence(f func()) (stop func()) { return t.changes.Add(f) }

// retry calls reach until that meets a hub that runs and does not stop, for as long as calls of the hub's tools wait for one that has just gone
// away.
func (t *hubTools) retry(ctx context.Context, reach func() error) error {
	begun := time.Now()
	for {
		err := reach()
		if !errors.Is(err, client.ErrNotRunning) && !hasStopped(err) {
			return err
		}
		if st := t.mount.Status(); !st.Connected && st.Since.Before(begun) { // else it may be about to notice the loss
			begun = st.Since
		}
		left := awaitHub - time.Since(begun)
		if left <= 0 || !wait.Pause(ctx, min(left, retryHub)) {
			return err
		}
	}
}

// Close ends the connection to the hub.
func (t *hubTools) Close() { t.mount.Close() }

// hubSocket returns the socket of the running hub.
func (a *app) hubSocket(ctx context.Context) (string, error) {
	cfg, err := a.load(ctx)
	if err != nil {
		return "", err
	}
	return daemon.Locate(ctx, cfg)
}

// taskToken returns the token of the agent's conversation in which this process runs, "" if
// it runs in none. Some agents do not pass their environment to the MCP servers that they
// start; then it searches the ancestors' environments.
func taskToken(lookup func(string) (string, bool)) string {
	if token, ok := lookup(delegation.TokenEnv); ok {
		return token
	}
	return ancestorsEnv(delegation.TokenEnv)
}

// quietly returns a logger that lowers every level to debug: the lack of a hub is normal.
func quietly(log *slog.Logger) *slog.Logger { return slog.New(debugHandler{log.Handler()}) }

type debugHandler struct{ slog.Handler }

func (h debugHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	if !h.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}
