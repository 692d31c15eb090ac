package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/base/text"
)

// SessionServed is the session of a connection: who it is in the agents' network, and to its own program.
type SessionServed struct {
	Vendor string // of the program; "" if it is not known
	GUID   string
	// Thread is the conversation that the program's calls name in their _meta (Codex); "" for none.
	Thread string
}

// metaThread is the entry of a call's _meta in which Codex names its thread.
const metaThread = "threadId"

const (
	maxThread = 256             // bytes
	countTime = 1 * time.Second // for the unread mail behind a tool's result
)

// attend returns what surrounds all tool calls of a connection, also of tools that others offer: it learns from them which
// conversation calls, and says at the end of each result that mail is waiting.
func (g *Network) attend(s *Server) mcp.Middleware {
	s.attends = func(ctx context.Context, thread string, read time.Time) func() string {
		g.begins(ctx, s, thread, read)
		g.registerCaller(ctx, s)
		return func() string { return g.unreadLine(ctx, networkAgentOf(s.client)) }
	}
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			call, ok := req.(*mcp.CallToolRequest)
			if !ok {
				return next(ctx, method, req)
			}
			thread, _ := call.Params.Meta[metaThread].(string)
			read := time.Now()
			if p := s.running(); p != nil {
				read = p.read
			}
			g.begins(ctx, s, thread, read)
			if !s.has(call.Params.Name) {
				g.registerCaller(ctx, s)
			}
			result, err := next(ctx, method, req)
			if r, ok := result.(*mcp.CallToolResult); ok && err == nil && r != nil {
				if line := g.unreadLine(ctx, networkAgentOf(s.client)); line != "" {
					return withLine(r, line, s.has(call.Params.Name)), nil
				}
			}
			return result, err
		}
	}
}

// withLine returns a result with a line at its end: in the text of a tool of ours, as a content of its own behind what another
// program returns, and in the structured content of Parley's tools.
func withLine(r *mcp.CallToolResult, line string, ours bool) *mcp.CallToolResult {
	with := *r
	with.Content, with.StructuredContent = slices.Clone(r.Content), withUnread(r.StructuredContent, line, ours)
	if n := len(with.Content); ours && n > 0 {
		if last, ok := with.Content[n-1].(*mcp.TextContent); ok {
			longer := *last
			longer.Text += "\n\n" + line
			with.Content[n-1] = &longer
			return &with
		}
	}
	with.Content = append(with.Content, &mcp.TextContent{Text: line})
	return &with
}

// begins notes that a call begins, which comes from a conversation ("" for an unknown one) and was read at a time.
func (g *Network) begins(ctx context.Context, s *Server, thread string, read time.Time) {
	g.acknowledge(ctx, s, read)
	if thread != "" && len(thread) <= maxThread {
		g.called(ctx, networkAgentOf(s.client), thread)
	}
}

// acknowledge marks the mail in answers before sent as read: whoever calls again, whatever tool, has got them. A process that is killed right
// after that shows none of it twice.
func (g *Network) acknowledge(ctx context.Context, s *Server, sent time.Time) {
	p := networkAgentOf(s.client)
	if !p.turn.TryAcquire(1) {
		return // another call does it, or the registration changes
	}
	a := p.agent
	p.turn.Release(1)
	if a == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	if err := a.Acknowledge(ctx, sent); err != nil {
		s.Logger("agentnet").Debug("mail is not marked as read yet", "error", err)
	}
}

// called notes the conversation that a call comes from. An agent that was registered by itself before its conversation was known is
// what it was in that conversation from now on.
func (g *Network) called(ctx context.Context, p *networkAgent, thread string) {
	if p.turn.Acquire(ctx, 1) != nil {
		return
	}
	defer p.turn.Release(1)
	if p.thread == thread {
		return
	}
	p.thread = thread
	switch {
	case p.agent == nil:
		p.registration.Conversation, p.itself.Conversation = thread, thread
	case p.byItself:
		g.resume(ctx, p)
	default:
		p.registration.Conversation = thread
		g.network.Converse(ctx, p.agent, p.registration)
		g.network.Say(ctx, p.registration)
	}
	g.served(p)
}

// served reports the session of a connection. The state is locked.
func (g *Network) served(p *networkAgent) {
	if g.onSession == nil || p.agent == nil {
		return
	}
	g.onSession(SessionServed{Vendor: p.agent.Entry().Vendor, GUID: p.agent.GUID(), Thread: p.thread})
}

// unreadLine says that mail is waiting; "" if there is none, or it is not known now. It counts, and says nothing of what is in
// the mail.
func (g *Network) unreadLine(ctx context.Context, p *networkAgent) string {
	if !p.turn.TryAcquire(1) {
		return "" // another call changes the registration
	}
	a := p.agent
	p.turn.Release(1)
	if a == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	n, err := a.UnreadNow(ctx)
	if err != nil || n == 0 {
		return ""
	}
	count := text.Count(n, "unread message")
	if n == agentnet.MaxUnread {
		count = fmt.Sprintf("%d or more unread messages", n)
	}
	return fmt.Sprintf("[Parley: you have %s. Read with read_direct_messages.]", count)
}
