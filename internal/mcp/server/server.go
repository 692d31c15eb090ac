// Package server implements the MCP server: the tools, resources and prompts through which coding agents use Parley.
//
// A [Service] holds what the servers of one project share: the groups of tools and the state of clients without
// connections. It creates a [Server] for each connection. A [Group] registers its tools on a server; the [Call] names the
// caller. [Channels] is the group of the project's channels; other packages provide further groups.
//
// [Service.ServeLines] serves standard input and output in all revisions of the protocol (2024-11-05 to 2025-11-25, and
// 2026-07-28). [Handler] serves them over streamable HTTP, for many projects at one path.
package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	mcphttp "github.com/parleyhub/parley/internal/mcp/http"
)

// Group is a set of related tools, resources and prompts. A group may also be a [Subscriber] and a [Completer].
type Group interface {
	// Tools adds the group's tools, which all servers have in common. It is called once and must not block.
	Tools(*Tools)
	// Register adds the group's resources and prompts to s. It is called once for each server, also for one that is restored, and must
	// not block.
	Register(s *Server)
	// Instructions returns a few sentences for a model about the group's purpose.
	Instructions() string
}

// Changing is a group whose tools, resources or prompts change.
type Changing interface {
	// WatchLists calls changed after each change, until stop is called; changed does not block. lists counts the changes that the user sees.
	WatchLists(changed func()) (lists func() mcphttp.Lists, stop func())
}

// Subscriber is a group whose resources can be subscribed to.
type Subscriber interface {
	// Subscribe adds a client to subscriptionsOf(s, the group), for changes of uri. It returns false if uri is not a
	// resource of the group.
	Subscribe(ctx context.Context, s *Server, client *mcp.ServerSession, uri string) (mine bool, err error)
}

// Completer is a group that completes arguments of its prompts and templates.
type Completer interface {
	// Complete returns the values with the given prefix; false if the reference is not one of the group's.
	Complete(*mcp.CompleteParams) (values []string, mine bool)
}

// Options configure a [Service].
type Options struct {
	// Name is that of the MCP servers, for their clients; "" means DefaultName.
	Name    string
	Version string
	Groups  []Group
	// OneOfMany is set in a process with many services, which then share the definitions of tools.
	OneOfMany bool
	// Idle is called once after each period of requests, some seconds after the last one; nil for none.
	Idle func()
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Names of MCP servers: DefaultName is the specified name of the program that an agent starts; HubName is that of
// servers in the hub. Both have Title, which is also the name in the hub's cards.
const (
	DefaultName = "nats-mcp-server"
	HubName     = "parley"
	Title       = "Parley"
)

// Service holds what the MCP servers of one project share. It is safe for concurrent use.
type Service struct {
	opts   Options
	log    *slog.Logger
	tokens tokens
	tools  func() *Tools
	// instructions returns what clients' models are told of the groups.
	instructions func() string
	idle         *time.Timer // nil without Idle

	stopped context.Context
	stop    context.CancelFunc
	starts  sync.Mutex     // held while a background goroutine is started
	running sync.WaitGroup // background goroutines
}

// NewService returns a Service that runs until Stop.
func NewService(opts Options) *Service {
	opts.Logger = cmp.Or(opts.Logger, slog.Default())
	s := &Service{opts: opts, log: opts.Logger.With("component", "mcp-server"), tools: sync.OnceValue(func() *Tools { return toolsOf(opts) })}
	s.instructions = sync.OnceValue(func() string { return instructionsOf(opts.Groups) })
	s.stopped, s.stop = context.WithCancel(context.Background())
	if opts.Idle != nil {
		s.idle = time.AfterFunc(idleAfter, opts.Idle)
	}
	return s
}

// idleAfter is the time without requests after which Idle is called.
const idleAfter = 5 * time.Second

// Stop ends blocking calls and the groups' background goroutines, and waits for the latter. Other calls still work.
func (s *Service) Stop() {
	s.endWaits()
	if s.idle != nil {
		s.idle.Stop()
	}
	s.running.Wait()
}

// endWaits is [Service.Stop] without waiting.
func (s *Service) endWaits() {
	s.starts.Lock()
	defer s.starts.Unlock()
	s.stop()
}

// Server is one MCP server: for one connection, or for all requests of clients without connections.
type Server struct {
	service *Service
	mcp     *mcp.Server
	client  *Client // nil if clients have tokens
	caller  Caller
	handle  mcp.MethodHandler                                                             // a request, by all that the groups have put around it
	values  sync.Map                                                                      // of groups
	release func()                                                                        // lets the next tool call of the connection begin
	running func() *pending                                                               // the tool call that begins; nil if it is not known when it is answered
	shared  *Toolbox                                                                      // the group of shared tools; nil for none
	attends func(ctx context.Context, thread string, read time.Time) (line func() string) // see Network.attend; nil for none

	restored bool // it is for the client of a server that was suspended
	stays    bool // it cannot be suspended

	background atomic.Int32 // goroutines of goUntilEnd

	ending   sync.Mutex
	ended    bool
	ends     []func() // at the end of the client
	releases []func() // at the end of the server
}

// Caller is the proven identity of a server's client. The zero Caller is the user, or a process with the user's rights
// that has no agent's token. A handle proves nothing.
type Caller struct {
	// Agent is an agent of the hub, and Context the conversation in which it works.
	Agent, Context string
}

// NewServer returns a server for one connection. Its owner calls End.
func (s *Service) NewServer(caller Caller) *Server { return s.newServer(&Client{}, caller, "") }

// NewStatelessServer returns a server for requests without a connection, as those of 2026-07-28 over HTTP. Agents pass
// the token that set_handle returned. Its owner calls End.
func (s *Service) NewStatelessServer(caller Caller) *Server { return s.newServer(nil, caller, "") }

// newServer returns a server. session is the id of a session that is restored; "" for a new one.
func (s *Service) newServer(client *Client, caller Caller, session string) *Server {
	server := &Server{service: s, client: client, caller: caller, release: func() {}, running: func() *pending { return nil }, restored: session != ""}
	var sessionID func() string
	if session != "" {
		sessionID = func() string { return session }
	}
	server.mcp = mcp.NewServer(&mcp.Implementation{
		Name: cmp.Or(s.opts.Name, DefaultName), Title: Title, Version: s.opts.Version,
	}, &mcp.ServerOptions{
		Instructions:       s.instructions(),
		Logger:             quieter(s.opts.Logger),
		SubscribeHandler:   server.subscribe,
		UnsubscribeHandler: server.unsubscribe,
		CompletionHandler:  server.complete,
		GetSessionID:       sessionID,
	})
	server.mcp.AddReceivingMiddleware(server.protect, server.endListening, server.addTools)
	server.toolsChanged()
	for _, g := range s.opts.Groups {
		g.Register(server)
	}
	server.mcp.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		server.handle = next
		return next
	})
	return server
}

func instructionsOf(groups []Group) string {
	var parts []string
	for _, g := range groups {
		parts = append(parts, g.Instructions())
	}
	return strings.Join(parts, "\n\n")
}

// MCP returns the SDK's server, for resources and prompts. Tools are added with [AddTool].
func (s *Server) MCP() *mcp.Server { return s.mcp }

// Caller returns the proven identity of the server's client.
func (s *Server) Caller() Caller { return s.caller }

// OnEnd registers f to be called by End, for a group to release what it holds for the server's client. After End, f is called
// at once. Where a suspended server is restored, the group registers it again.
func (s *Server) OnEnd(f func()) { s.register(&s.ends, f) }

// OnRelease is OnEnd for what a group holds for the server: f is also called when the server is suspended.
func (s *Server) OnRelease(f func()) { s.register(&s.releases, f) }

func (s *Server) register(to *[]func(), f func()) {
	s.ending.Lock()
	ended := s.ended
	if !ended {
		*to = append(*to, f)
	}
	s.ending.Unlock()
	if ended {
		f()
	}
}

// End releases what groups hold for the server and its client. It is idempotent.
func (s *Server) End() { callAll(s.end()) }

// end ends the server and returns what is to be called for it, and for its client.
func (s *Server) end() (releases, ends []func()) {
	s.ending.Lock()
	defer s.ending.Unlock()
	releases, ends = s.releases, s.ends
	s.ended, s.releases, s.ends = true, nil, nil
	return releases, ends
}

func callAll(lists ...[]func()) {
	for _, list := range lists {
		for _, f := range list {
			f()
		}
	}
}

// Logger returns the logger of a component.
func (s *Server) Logger(component string) *slog.Logger {
	return s.service.opts.Logger.With("component", component)
}

// Value returns the value that a group stores for this server under key, created by fresh the first time; concurrent
// calls may call fresh more than once.
func (s *Server) Value(key any, fresh func() any) any {
	if v, ok := s.values.Load(key); ok {
		return v
	}
	v, _ := s.values.LoadOrStore(key, fresh())
	return v
}

// Go runs f in the background. Its context ends with [Service.Stop], which waits for f. After Stop, Go does nothing.
func (s *Server) Go(f func(context.Context)) {
	service := s.service
	service.starts.Lock()
	defer service.starts.Unlock()
	if service.stopped.Err() == nil {
		service.running.Go(func() { f(service.stopped) })
	}
}

// goUntilEnd is Go with a context that ends with the server, too. The server is not suspended meanwhile.
func (s *Server) goUntilEnd(f func(context.Context)) {
	s.background.Add(1)
	s.Go(func(ctx context.Context) {
		defer s.background.Add(-1)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		s.OnRelease(cancel)
		f(ctx)
	})
}

// protect converts panics and errors of requests into JSON-RPC errors.
func (s *Server) protect(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (result mcp.Result, err error) {
		defer func() {
			if v := recover(); v != nil {
				s.service.log.Error("a request made the server panic", "method", method, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				result, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
			}
		}()
		if s.service.idle != nil {
			s.service.idle.Reset(idleAfter)
		}
		if s.client != nil {
			s.client.introduce(programOf(req))
		}
		result, err = next(ctx, method, req)
		if f := explain(err); f != nil { // of a resource; tools return their errors as results
			err = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: f.Message + " " + f.Remedy}
		}
		if e, ok := errors.AsType[*jsonrpc.Error](err); ok && len(e.Data) > 0 && !json.Valid(e.Data) {
			// The SDK quotes the URI of a missing resource in Go syntax, not as JSON.
			err = &jsonrpc.Error{Code: e.Code, Message: e.Message}
		}
		return result, err
	}
}

// programOf returns the name of the client's program, if the request has it: initialize, and since revision 2026-07-28
// every request.
func programOf(req mcp.Request) string {
	params := req.GetParams()
	if p, ok := params.(*mcp.InitializeParams); ok && p != nil && p.ClientInfo != nil {
		return p.ClientInfo.Name
	}
	if params == nil || reflect.ValueOf(params).IsNil() {
		return ""
	}
	about, _ := params.GetMeta()[mcp.MetaKeyClientInfo].(map[string]any)
	name, _ := about["name"].(string)
	return name
}

// endListening ends the notification streams of clients that use revision 2026-07-28 with [Service.Stop]. Otherwise they would delay the
// server's end, because the SDK waits for every request, and these last as long as their client.
func (s *Server) endListening(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "subscriptions/listen" {
			var cancel context.CancelFunc
			ctx, cancel = s.service.whileRunning(ctx)
			defer cancel()
		}
		return next(ctx, method, req)
	}
}

func (s *Server) subscribe(ctx context.Context, req *mcp.SubscribeRequest) error {
	for _, g := range s.service.opts.Groups {
		if sub, ok := g.(Subscriber); ok {
			if mine, err := sub.Subscribe(ctx, s, req.Session, req.Params.URI); mine {
				return err
			}
		}
	}
	return mcp.ResourceNotFoundError(req.Params.URI)
}

func (s *Server) unsubscribe(_ context.Context, req *mcp.UnsubscribeRequest) error {
	for _, g := range s.service.opts.Groups {
		if _, ok := g.(Subscriber); ok {
			subscriptionsOf(s, g).remove(req.Session, req.Params.URI)
		}
	}
	return nil
}

// maxCompletions is the protocol's limit.
const maxCompletions = 100

func (s *Server) complete(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	values := []string{}
	for _, g := range s.service.opts.Groups {
		if c, ok := g.(Completer); ok {
			if v, mine := c.Complete(req.Params); mine {
				values = append(values, v...)
				break
			}
		}
	}
	result := &mcp.CompleteResult{}
	result.Completion.Total = len(values)
	if len(values) > maxCompletions {
		values, result.Completion.HasMore = values[:maxCompletions], true
	}
	result.Completion.Values = values
	return result, nil
}
