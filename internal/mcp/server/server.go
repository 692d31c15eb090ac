package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Group is a set of tools, resources and prompts that belong together. A group
// may also be a [Subscriber] and a [Completer].
type Group interface {
	// Register adds what the group offers to s. It is called once for each
	// server, so it must be quick and must not block.
	Register(s *Server)
	// Instructions tell a model in a few sentences what the group is for.
	Instructions() string
}

// Subscriber is a group whose resources can be subscribed to.
type Subscriber interface {
	// Subscribe begins to send notifications about uri to ss. Where uri is none
	// of the group's it returns false. An error says why there are none although it is.
	Subscribe(ctx context.Context, s *Server, ss *mcp.ServerSession, uri string) (mine bool, err error)
	// Unsubscribe ends them. That there are none is no error.
	Unsubscribe(s *Server, ss *mcp.ServerSession, uri string)
}

// Completer is a group that completes arguments of its prompts and templates.
type Completer interface {
	// Complete returns the values that begin with what was typed; false where the
	// reference is none of the group's.
	Complete(*mcp.CompleteParams) (values []string, mine bool)
}

// Options are what a Service is made of.
type Options struct {
	Version string
	Groups  []Group
	// Idle is called when nothing was asked for a while, once after each time
	// that something was. Nil for nothing.
	Idle func()
	// Logger is slog.Default() where it is nil.
	Logger *slog.Logger
}

// Service is what the MCP servers of one project share. It is safe for
// concurrent use.
type Service struct {
	opts   Options
	log    *slog.Logger
	tokens tokens
	tools  sync.Map    // definitions of tools by toolKey, made once
	idle   *time.Timer // nil without Idle

	stopped context.Context
	stop    context.CancelFunc
	starts  sync.Mutex     // held to start something in the background
	running sync.WaitGroup // what runs there
}

// NewService returns a Service that runs until Stop.
func NewService(opts Options) *Service {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	s := &Service{opts: opts, log: opts.Logger.With("component", "mcp-server")}
	s.stopped, s.stop = context.WithCancel(context.Background())
	if opts.Idle != nil {
		s.idle = time.AfterFunc(idleAfter, opts.Idle)
	}
	return s
}

// idleAfter is how long nothing must have been asked.
const idleAfter = 5 * time.Second

// Stop ends the calls that wait for something, and what groups do in the
// background. Other calls still work.
func (s *Service) Stop() {
	s.endWaits()
	if s.idle != nil {
		s.idle.Stop()
	}
	s.running.Wait()
}

// endWaits is Stop without waiting.
func (s *Service) endWaits() {
	s.starts.Lock()
	defer s.starts.Unlock()
	s.stop()
}

// Server is one MCP server: for one connection, or for all requests of clients
// that have none.
type Server struct {
	service *Service
	mcp     *mcp.Server
	session *Session // nil where clients carry tokens
	caller  Caller
	values  sync.Map // what groups keep for this server
	awaited sync.Map // the sessions whose ends are waited for, by sessionEnd
	release func()   // lets the next tool call of the connection begin

	ending sync.Mutex
	ended  bool
	ends   []func()
}

// Caller is for whom a server acts, as far as that is proven. The zero Caller is
// the user: whoever has the user's rights here and has not said to be an agent. A
// handle proves nothing.
type Caller struct {
	// Agent is an agent of the hub, and Context the conversation in which it works.
	Agent, Context string
}

// NewServer makes a server for one connection, which is the session
// (REQ-TOOL-005). Its owner calls End.
func (s *Service) NewServer(caller Caller) *Server { return s.newServer(&Session{}, caller) }

// NewSessionlessServer makes a server for requests that belong to no
// connection, as those of 2026-07-28 over HTTP. Agents pass a token that
// set_handle gave them. Its owner calls End.
func (s *Service) NewSessionlessServer(caller Caller) *Server { return s.newServer(nil, caller) }

func (s *Service) newServer(session *Session, caller Caller) *Server {
	server := &Server{service: s, session: session, caller: caller, release: func() {}}
	server.mcp = mcp.NewServer(&mcp.Implementation{
		Name: "nats-mcp-server", Title: "Parley", Version: s.opts.Version,
	}, &mcp.ServerOptions{
		Instructions:       s.instructions(),
		Logger:             quieter(s.opts.Logger),
		SubscribeHandler:   server.subscribe,
		UnsubscribeHandler: server.unsubscribe,
		CompletionHandler:  server.complete,
	})
	server.mcp.AddReceivingMiddleware(server.protect, server.endListening)
	for _, g := range s.opts.Groups {
		g.Register(server)
	}
	return server
}

func (s *Service) instructions() string {
	var parts []string
	for _, g := range s.opts.Groups {
		parts = append(parts, g.Instructions())
	}
	return strings.Join(parts, "\n\n")
}

// MCP is the SDK's server, for resources and prompts. Tools are added with
// [AddTool].
func (s *Server) MCP() *mcp.Server { return s.mcp }

// Caller is for whom the server acts.
func (s *Server) Caller() Caller { return s.caller }

// OnEnd has f called when nobody uses the server any more, for a group to take back
// what it keeps for it.
func (s *Server) OnEnd(f func()) {
	s.ending.Lock()
	ended := s.ended
	if !ended {
		s.ends = append(s.ends, f)
	}
	s.ending.Unlock()
	if ended {
		f()
	}
}

// End says that nobody uses the server any more. A second call does nothing.
func (s *Server) End() {
	s.ending.Lock()
	ends := s.ends
	s.ended, s.ends = true, nil
	s.ending.Unlock()
	for _, f := range ends {
		f()
	}
}

// Logger is the logger of a component.
func (s *Server) Logger(component string) *slog.Logger {
	return s.service.opts.Logger.With("component", component)
}

// Value returns what a group keeps for this server under key, and makes it the
// first time; fresh may run more often than that.
func (s *Server) Value(key any, fresh func() any) any {
	if v, ok := s.values.Load(key); ok {
		return v
	}
	v, _ := s.values.LoadOrStore(key, fresh())
	return v
}

// sessionEnd is who waits for the end of which session.
type sessionEnd struct {
	session *mcp.ServerSession
	by      any
}

// onEnd calls f when a session has ended, once however often it is asked for by the same. A client
// that subscribes again and again costs one goroutine.
func (s *Server) onEnd(ss *mcp.ServerSession, by any, f func()) {
	end := sessionEnd{ss, by}
	if _, waiting := s.awaited.LoadOrStore(end, true); waiting {
		return
	}
	go func() { // ends with the session, whose owner closes it
		_ = ss.Wait() // why it ended does not matter here
		s.awaited.Delete(end)
		f()
	}()
}

// Go runs f in the background. Its context ends with [Service.Stop], which waits
// for f. After Stop it does nothing.
func (s *Server) Go(f func(context.Context)) {
	service := s.service
	service.starts.Lock()
	defer service.starts.Unlock()
	if service.stopped.Err() == nil {
		service.running.Go(func() { f(service.stopped) })
	}
}

// protect keeps a mistake of ours from ending the process (REQ-ERROR-006).
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
		result, err = next(ctx, method, req)
		if f := explain(err); f != nil { // of a resource: tools return results
			err = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: f.Message + " " + f.Remedy}
		}
		if e, ok := errors.AsType[*jsonrpc.Error](err); ok && len(e.Data) > 0 && !json.Valid(e.Data) {
			// The SDK quotes a URI that does not exist as Go does, not as JSON.
			err = &jsonrpc.Error{Code: e.Code, Message: e.Message}
		}
		return result, err
	}
}

// endListening ends the streams of notifications that clients of 2026-07-28 have
// open. Without it they would keep the server alive when its input has ended: the
// SDK waits for every request, and these end only with their client.
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
		if sub, ok := g.(Subscriber); ok {
			sub.Unsubscribe(s, req.Session, req.Params.URI)
		}
	}
	return nil
}

// maxCompletions is the protocol's bound.
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
