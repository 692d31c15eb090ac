package cli

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/app/daemon"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
	"github.com/parleyhub/parley/internal/tools/delegation"
	"github.com/parleyhub/parley/toolbox"
)

// hubTools are the tools that agents share on the hub, in an MCP process: what the
// hub shows to the agent of this process, under the same names. They fail with a
// clear error while the hub is away.
type hubTools struct {
	*mcpserver.Toolbox
	mount *toolbox.Mount
	begin chan struct{} // closed when it may be looked for the hub
}

// redialHub bounds the pause between two attempts to reach the hub. They cost next
// to nothing: a socket that is not there.
const redialHub = 5 * time.Second

// shareTools looks for the hub from look on; it starts none.
func (a *app) shareTools(log *slog.Logger) (*hubTools, error) {
	t := &hubTools{begin: make(chan struct{})}
	box := toolbox.New(toolbox.Options{})
	token := taskToken(os.LookupEnv)
	var err error
	t.mount, err = box.Mount(toolbox.MountOptions{
		Name: "hub", AsIs: true, MaxRedial: redialHub, Logger: quietly(log),
		Dial: func(ctx context.Context) (mcp.Transport, error) {
			select {
			case <-t.begin:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			socket, err := a.hubSocket()
			if err != nil {
				return nil, err
			}
			conn, err := client.AttachMCP(ctx, socket, token)
			if err != nil {
				return nil, err
			}
			return &mcp.IOTransport{Reader: conn, Writer: conn}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	t.Toolbox = mcpserver.NewToolbox(box, t.mount.Tried())
	return t, nil
}

// look begins to look for the hub. It is called once.
func (t *hubTools) look() { close(t.begin) }

// lookAfter is look once the channels have found their bus, or not: that may have
// started the hub.
func (t *hubTools) lookAfter(ctx context.Context, tried <-chan struct{}) {
	select {
	case <-tried:
	case <-ctx.Done():
	}
	t.look()
}

// Close ends the connection to the hub.
func (t *hubTools) Close() { t.mount.Close() }

// hubSocket is where the hub listens: the one that runs, else the one that would.
func (a *app) hubSocket() (string, error) {
	cfg, err := a.load()
	if err != nil {
		return "", err
	}
	info, running, err := daemon.Running(cfg.DataDir)
	if err == nil && running && info.Socket != "" {
		return info.Socket, nil
	}
	return cfg.Socket.Path, nil
}

// taskToken is the token of the agent's conversation in which this process runs, ""
// where it runs in none. Some agents keep their environment from the MCP servers
// that they start: then it is that of the process that has started this one.
func taskToken(lookup func(string) (string, bool)) string {
	if token, ok := lookup(delegation.TokenEnv); ok {
		return token
	}
	return ancestorsEnv(delegation.TokenEnv)
}

// quietly lowers what a mount says to debug: a user without a hub misses nothing.
func quietly(log *slog.Logger) *slog.Logger { return slog.New(debugging{log.Handler()}) }

type debugging struct{ slog.Handler }

func (h debugging) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	if !h.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}
