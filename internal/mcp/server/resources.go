package server

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/chat"
)

// channelURI begins the URIs of channels.
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

// channelOf is the channel that a URI means.
func (g *Channels) channelOf(uri string) (name string, ok bool) {
	name, ok = strings.CutPrefix(uri, channelURI)
	if !ok {
		return "", false
	}
	for _, c := range g.space.Channels() {
		if c.Name == name {
			return name, true
		}
	}
	return "", false
}

// Complete implements Completer: the names of channels.
func (g *Channels) Complete(p *mcp.CompleteParams) (values []string, mine bool) {
	template := p.Ref.Type == "ref/resource" && p.Ref.URI == channelURI+"{channel}"
	prompt := p.Ref.Type == "ref/prompt" && isPrompt(p.Ref.Name)
	if !template && !prompt {
		return nil, false
	}
	if p.Argument.Name != "channel" {
		return nil, true
	}
	for _, name := range g.names() {
		if strings.HasPrefix(name, p.Argument.Value) {
			values = append(values, name)
		}
	}
	return values, true
}

// Subscribe implements Subscriber.
func (g *Channels) Subscribe(ctx context.Context, s *Server, ss *mcp.ServerSession, uri string) (mine bool, err error) {
	name, ok := g.channelOf(uri)
	if !ok {
		return false, nil
	}
	// Unknown during an outage: then the first look after it notifies, perhaps
	// without need.
	tips, _ := g.space.Tips(ctx, []string{name})
	g.watcher(s).add(name, tips[name], ss)
	return true, nil
}

// Unsubscribe implements Subscriber.
func (g *Channels) Unsubscribe(s *Server, ss *mcp.ServerSession, uri string) {
	if name, ok := g.channelOf(uri); ok {
		g.watcher(s).remove(name, ss)
	}
}

type watcherKey struct{}

func (g *Channels) watcher(s *Server) *watcher {
	return s.Value(watcherKey{}, func() any {
		return &watcher{server: s, space: g.space, channels: map[string]*watched{}, notifying: map[string]bool{}}
	}).(*watcher)
}

// watcher tells the sessions of one server which of the channels that they have
// subscribed to changed. It runs while there are subscriptions.
type watcher struct {
	server *Server
	space  *chat.Space

	mu        sync.Mutex
	channels  map[string]*watched
	stop      context.CancelFunc // nil while it does not run
	notifying map[string]bool    // true: once more after this time
}

// watched is a channel with subscriptions.
type watched struct {
	last     uint64 // of the messages
	sessions map[*mcp.ServerSession]bool
}

func (w *watcher) add(channel string, last uint64, ss *mcp.ServerSession) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.channels[channel] == nil {
		w.channels[channel] = &watched{last, map[*mcp.ServerSession]bool{}}
	}
	w.channels[channel].sessions[ss] = true
	w.server.onEnd(ss, watcherKey{}, func() { w.removeAll(ss) })
	if w.stop == nil {
		var ctx context.Context
		ctx, w.stop = context.WithCancel(w.server.service.stopped)
		w.server.Go(func(context.Context) { w.run(ctx) })
	}
}

func (w *watcher) remove(channel string, ss *mcp.ServerSession) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(channel, ss)
}

func (w *watcher) removeAll(ss *mcp.ServerSession) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for channel := range w.channels {
		w.removeLocked(channel, ss)
	}
}

func (w *watcher) removeLocked(channel string, ss *mcp.ServerSession) {
	c, ok := w.channels[channel]
	if !ok {
		return
	}
	delete(c.sessions, ss)
	if len(c.sessions) == 0 {
		delete(w.channels, channel)
	}
	if len(w.channels) == 0 && w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

func (w *watcher) wanted() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for name := range w.channels {
		names = append(names, name)
	}
	return names
}

// The watcher looks at most this often: a channel in which much is said gives
// few notifications.
const watchEvery = 100 * time.Millisecond

func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		changed := w.space.Changed()
		w.look(ctx)
		select {
		case <-changed:
			wait.Pause(ctx, watchEvery)
		case <-ctx.Done():
		}
	}
}

// look compares the channels' ends with the known ones. During an outage it does
// nothing: the next look finds what changed.
func (w *watcher) look(ctx context.Context) {
	tips, err := w.space.Tips(ctx, w.wanted())
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, seq := range tips {
		if c := w.channels[name]; c != nil && c.last != seq {
			c.last = seq
			w.notify(ctx, name)
		}
	}
}

// notify sends a notification in a goroutine of its own, for a client that does
// not read blocks it; one for a channel at a time. The caller holds the lock.
func (w *watcher) notify(ctx context.Context, channel string) {
	if _, running := w.notifying[channel]; running {
		w.notifying[channel] = true
		return
	}
	w.notifying[channel] = false
	go func() { // ends when the client reads, or its connection
		for again := true; again && ctx.Err() == nil; again = w.notified(channel) {
			// Failures are the SDK's to log: the client has gone.
			_ = w.server.mcp.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: channelURI + channel})
		}
	}()
}

// notified tells whether the channel has changed meanwhile.
func (w *watcher) notified(channel string) (again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.notifying[channel] {
		w.notifying[channel] = false
		return true
	}
	delete(w.notifying, channel)
	return false
}
