package parley

import (
	"context"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/tasks"
)

// ServeTasks makes the agent one of a hub's agents: with the id, the name and the capabilities of its card it is in the
// hub's directory, and whoever can send to the hub's agents can give it tasks, which h does; see package tasks. at is the
// hub's endpoint, as the function Endpoint of package discovery/hub returns it, for which the node needs a dialer. An agent
// serves one hub at a time.
//
// It blocks until ctx ends or the agent leaves, and keeps connected meanwhile: tasks wait at the hub while it cannot be
// reached, or the program does not run, until their deadlines. An error is that of the first connection.
func (a *Agent) ServeTasks(ctx context.Context, at agent.Endpoint, h tasks.Handler) error {
	s, err := tasks.New(a.n.router, a.ID(), h, tasks.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	c, err := a.n.Connect(ctx, a.ID(), tasks.Hub, at)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer func() { _ = c.Close() }() // returns nil
	retry := wait.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.n.ctx.Done():
			return nil
		case <-a.gone:
			return nil
		case <-c.Done():
		}
		next, err := a.reconnect(ctx, at)
		if err == nil {
			c = next
			retry.Reset()
		} else if !retry.Pause(ctx) {
			return nil
		}
	}
}

// reconnect opens a channel to the hub unless the agent leaves meanwhile.
func (a *Agent) reconnect(ctx context.Context, at agent.Endpoint) (*channel.Channel, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the function
		select {
		case <-a.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	return a.n.Connect(ctx, a.ID(), tasks.Hub, at)
}
