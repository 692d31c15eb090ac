package server

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// watchEvery is the minimum time between two checks of a resource, which limits the notifications of a busy one.
const watchEvery = 100 * time.Millisecond

// subscriptions are the resources of one group that clients of one server have subscribed to. Each resource is watched
// while it has subscriptions.
type subscriptions struct {
	server *Server

	mu      sync.Mutex
	watched map[string]*watch // by URI
	clients map[*mcp.ServerSession]bool
}

// watch is a resource with subscriptions.
type watch struct {
	clients map[*mcp.ServerSession]bool
	stop    context.CancelFunc
}

// subscriptionsOf returns the subscriptions to the resources of a group at a server.
func subscriptionsOf(s *Server, g Group) *subscriptions {
	return s.Value(g, func() any {
		return &subscriptions{server: s, watched: map[string]*watch{}, clients: map[*mcp.ServerSession]bool{}}
	}).(*subscriptions)
}

// add subscribes a client to a resource. The first subscription runs watch in the background until the last one ends;
// watch calls changed for each change. It reports false if limit resources are watched already.
func (s *subscriptions) add(client *mcp.ServerSession, uri string, limit int, watchChanges func(ctx context.Context, changed func())) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watched[uri]
	if w == nil {
		if len(s.watched) >= limit {
			return false
		}
		ctx, stop := context.WithCancel(s.server.service.stopped)
		w = &watch{clients: map[*mcp.ServerSession]bool{}, stop: stop}
		s.watched[uri] = w
		s.server.Go(func(context.Context) { s.run(ctx, uri, watchChanges) })
	}
	w.clients[client] = true
	if !s.clients[client] {
		s.clients[client] = true
		go s.removeAtEnd(client)
	}
	return true
}

// run watches a resource and notifies its subscribers. Notifications that a slow client delays are merged.
func (s *subscriptions) run(ctx context.Context, uri string, watchChanges func(context.Context, func())) {
	updates := make(chan struct{}, 1)
	defer close(updates)
	go func() { // blocks while a client does not read; ends with watchChanges, and with the client's connection
		for range updates {
			// The SDK logs errors, which mean that the client has disconnected.
			_ = s.server.mcp.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: uri})
		}
	}()
	watchChanges(ctx, func() {
		select {
		case updates <- struct{}{}:
		default:
		}
	})
}

// remove ends a client's subscription, if there is one.
func (s *subscriptions) remove(client *mcp.ServerSession, uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watched[uri]
	if w == nil {
		return
	}
	delete(w.clients, client)
	if len(w.clients) == 0 {
		w.stop()
		delete(s.watched, uri)
	}
}

// removeAtEnd ends a client's subscriptions when it disconnects.
func (s *subscriptions) removeAtEnd(client *mcp.ServerSession) {
	_ = client.Wait() // the reason does not matter
	s.mu.Lock()
	delete(s.clients, client)
	uris := slices.Collect(maps.Keys(s.watched))
	s.mu.Unlock()
	for _, uri := range uris {
		s.remove(client, uri)
	}
}

// awaitClosed blocks until a channel is closed, the time is over or ctx ends.
func awaitClosed(ctx context.Context, closed <-chan struct{}, limit time.Duration) {
	select { // without a timer in the usual case
	case <-closed:
		return
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}

// exist reports whether a client has subscribed to anything.
func (s *subscriptions) exist() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watched) > 0
}
