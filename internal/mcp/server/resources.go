package server

import (
	"context"
	"math"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/chat"
)

// channelURI is the prefix of the URIs of channels.
const channelURI = "parley://channels/"

func (g *Channels) addResources(s *Server) {
	for _, c := range g.space.Channels() {
		s.mcp.AddResource(&mcp.Resource{
			URI: channelURI + c.Name, Name: c.Name, Title: "#" + c.Name, Description: c.Description, MIMEType: "text/markdown",
		}, g.readResource)
	}
	s.mcp.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: channelURI + "{channel}", Name: "channel", Title: "A channel",
		Description: "The newest messages of a channel, oldest first", MIMEType: "text/markdown",
	}, g.readResource)
}

func (g *Channels) readResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	name, ok := g.channelOf(req.Params.URI)
	if !ok {
		return nil, mcp.ResourceNotFoundError(req.Params.URI)
	}
	g.settle(ctx)
	h, err := g.space.Read(ctx, anonymous, name, chat.DefaultLimit)
	if err != nil {
		return nil, err
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{
		URI: req.Params.URI, MIMEType: "text/markdown", Text: historyText(name, h),
	}}}, nil
}

// channelOf returns the channel of a URI.
func (g *Channels) channelOf(uri string) (name string, ok bool) {
	name, ok = strings.CutPrefix(uri, channelURI)
	return name, ok && slices.Contains(g.names(), name)
}

// Complete implements Completer for the names of channels.
func (g *Channels) Complete(p *mcp.CompleteParams) (values []string, mine bool) {
	template := p.Ref.Type == "ref/resource" && p.Ref.URI == channelURI+"{channel}"
	prompt := p.Ref.Type == "ref/prompt" && isPrompt(p.Ref.Name)
	if !template && !prompt || p.Argument.Name != "channel" {
		return nil, template || prompt
	}
	return slices.DeleteFunc(g.names(), func(name string) bool { return !strings.HasPrefix(name, p.Argument.Value) }), true
}

// Subscribe implements Subscriber.
func (g *Channels) Subscribe(ctx context.Context, s *Server, client *mcp.ServerSession, uri string) (mine bool, err error) {
	name, ok := g.channelOf(uri)
	if !ok {
		return false, nil
	}
	// Unknown during an outage: then the first check after it notifies, perhaps without a change.
	tips, _ := g.space.Tips(ctx, []string{name})
	subscriptionsOf(s, g).add(client, uri, math.MaxInt, func(ctx context.Context, changed func()) { g.watch(ctx, name, tips[name], changed) })
	return true, nil
}

// watch calls changed for each change of a channel until ctx ends. last is the sequence of the newest known message. An
// outage delays the call.
func (g *Channels) watch(ctx context.Context, name string, last uint64, changed func()) {
	for ctx.Err() == nil {
		news := g.space.Changed()
		if tips, err := g.space.Tips(ctx, []string{name}); err == nil && tips[name] != last {
			last = tips[name]
			changed()
		}
		select {
		case <-news:
			wait.Pause(ctx, watchEvery)
		case <-ctx.Done():
		}
	}
}
