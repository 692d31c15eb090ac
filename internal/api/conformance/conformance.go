package conformance

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"google.golang.org/grpc"

	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/push"
	mcphttp "github.com/parleyhub/parley/internal/mcp/http"
)

// Options are those of [New].
type Options struct {
	// DataDir is an empty directory for the hub's store.
	DataDir string
	// BaseURL is the URL of the handler, such as http://127.0.0.1:9999.
	BaseURL string
	// GRPCAddress is the address of the gRPC server; empty for none.
	GRPCAddress string
	// StreamingTimeout is the kit's TCK_STREAMING_TIMEOUT; 0 means its 2 s.
	StreamingTimeout time.Duration
	// Version is the version in the cards.
	Version string
	Logger  *slog.Logger // nil discards
}

// Suite is a hub with its bus and push notifications, whose only agent is the A2A
// kits', and the server for the MCP suite.
type Suite struct {
	bus    *bus.Bus
	hub    *hub.Hub
	push   *push.Service
	server *a2aserver.Server
	mcp    *mcphttp.Handler
}

// New starts a suite. The caller serves [Suite.Handler] and closes the suite.
func New(ctx context.Context, opts Options) (_ *Suite, err error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	defaults.Set(&opts.StreamingTimeout, 2*time.Second)
	s := &Suite{mcp: newMCP(opts.Version)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close(ctx))
		}
	}()
	if s.bus, err = bus.Open(ctx, bus.Config{DataDir: opts.DataDir, Durability: bus.DurabilityFast, Logger: opts.Logger}); err != nil {
		return nil, err
	}
	s.hub, err = hub.New(ctx, hub.Config{
		Bus:     s.bus,
		Version: opts.Version,
		DataDir: opts.DataDir,
		Agents: []hub.Agent{{
			Definition: Definition(),
			// The kit requires at least twice the timeout.
			Runner: agent{hold: 2*opts.StreamingTimeout + opts.StreamingTimeout/2},
		}},
		Logger: opts.Logger,
	})
	if err != nil {
		return nil, err
	}
	// The kit's webhook is on this machine.
	s.push, err = push.Open(ctx, push.Options{Tasks: s.hub, Bus: s.bus, AllowPrivate: true, Logger: opts.Logger})
	if err != nil {
		return nil, err
	}
	s.hub.OnTurn(s.push.TurnStarted)
	s.server = a2aserver.New(a2aserver.Options{
		Hub:          s.hub,
		Push:         s.push,
		Version:      opts.Version,
		BaseURL:      opts.BaseURL,
		GRPCAddress:  opts.GRPCAddress,
		DefaultAgent: AgentID,
		Wrap:         func(h a2asrv.RequestHandler) a2asrv.RequestHandler { return messenger{h} },
		Logger:       opts.Logger,
	})
	return s, nil
}

// Handler returns the handler of the A2A paths (the agent at /a2a and /agents/tck/a2a,
// the union card for the kit for 0.3 at the root) and of the MCP server at /mcp.
func (s *Suite) Handler() http.Handler {
	mux := http.NewServeMux()
	s.server.Mount(mux.Handle)
	mux.Handle(mcpPath, s.mcp)
	return mux
}

// GRPC returns a new gRPC server. The caller serves and stops it.
func (s *Suite) GRPC() *grpc.Server { return s.server.NewGRPC(a2aserver.GRPCOptions{}) }

// Close closes the suite.
func (s *Suite) Close(ctx context.Context) error {
	errs := []error{s.mcp.Close()}
	if s.hub != nil {
		errs = append(errs, s.hub.Close(ctx))
	}
	if s.push != nil {
		s.push.Close()
	}
	if s.bus != nil {
		errs = append(errs, s.bus.Close(ctx))
	}
	return errors.Join(errs...)
}

// messenger answers tck-message-response with a message without a task, which the hub's agents never do.
type messenger struct{ a2asrv.RequestHandler }

const messageResponse = "tck-message-response"

func (m messenger) SendMessage(ctx context.Context, req *a2a.SendMessageRequest) (a2a.SendMessageResult, error) {
	if answer := direct(req); answer != nil {
		return answer, nil
	}
	return m.RequestHandler.SendMessage(ctx, req)
}

func (m messenger) SendStreamingMessage(ctx context.Context, req *a2a.SendMessageRequest) iter.Seq2[a2a.Event, error] {
	if answer := direct(req); answer != nil {
		return func(yield func(a2a.Event, error) bool) { yield(answer, nil) }
	}
	return m.RequestHandler.SendStreamingMessage(ctx, req)
}

func direct(req *a2a.SendMessageRequest) *a2a.Message {
	if req.Message == nil || !strings.HasPrefix(req.Message.ID, messageResponse) {
		return nil
	}
	return a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart("Direct message response"))
}
