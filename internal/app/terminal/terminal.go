// Package terminal shows a hub on screens in the terminal: what waits for the user, the agents, their tasks and
// conversations, swarms, the network, documents, what happened, and costs. Questions are answered in place.
//
// The screens never wait for the hub: every call runs beside the program, which shows what it last knew, says when the
// hub is away, and continues when it is back. All texts of agents are data: control sequences are removed.
//
// Of the charm.land libraries only bubbletea is used: what the others start when a program begins would cost every
// command of Parley.
package terminal

import (
	"context"
	"errors"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/swarm"
)

// Hub is what the screens need of a hub.
type Hub interface {
	Status(ctx context.Context) (*dialect.Status, error)
	Agents(ctx context.Context, health bool) ([]dialect.Agent, error)
	Tasks(ctx context.Context, p dialect.TasksListParams) (*dialect.TaskPage, error)
	Task(ctx context.Context, id string) (*dialect.Task, error)
	Trace(ctx context.Context, id string) (*dialect.TaskTrace, error)
	Cancel(ctx context.Context, id string) (*dialect.Task, error)
	Send(ctx context.Context, p dialect.SendParams) (*dialect.Task, error)
	Needs(ctx context.Context) (*dialect.Needs, error)
	DismissLoop(ctx context.Context, list string) error
	Work(ctx context.Context) (*dialect.WorkList, error)
	RetryWork(ctx context.Context, id string) error
	DiscardWork(ctx context.Context, id string) error
	Threads(ctx context.Context) ([]dialect.Thread, error)
	Thread(ctx context.Context, p dialect.ThreadParams) (*dialect.ThreadMessages, error)
	WriteThread(ctx context.Context, p dialect.WriteThreadParams) (*dialect.WrittenMessage, error)
	FileClaims(ctx context.Context) ([]dialect.FileClaim, error)
	BreakFileClaim(ctx context.Context, id string) (*dialect.BrokenClaim, error)
	Totals(ctx context.Context, p dialect.TotalsParams) (*dialect.Totals, error)
	Contexts(ctx context.Context, limit int) ([]dialect.Context, error)
	Swarms(ctx context.Context) ([]dialect.SwarmSummary, error)
	Swarm(ctx context.Context, id string) (*swarm.Session, error)
	Documents(ctx context.Context) ([]string, error)
	Document(ctx context.Context, name string) (*documents.Content, error)
	EditDocument(ctx context.Context, name string, edits []documents.Edit) (*documents.Content, error)
	SyncDocument(ctx context.Context, name string, has documents.Copy) (*documents.Rest, error)
	// HubEvents and FollowTask return streams, which the caller closes.
	HubEvents(ctx context.Context, p dialect.EventsParams) (Stream[events.Event], error)
	FollowTask(ctx context.Context, id string) (Stream[dialect.Event], error)
	Close() error
}

// Stream is a stream of events. Next blocks until the next one; it returns io.EOF at the end.
type Stream[E any] interface {
	Next(ctx context.Context) (E, error)
	Close() error
}

// socketHub is a hub behind its socket.
type socketHub struct{ *client.Client }

// Of returns the hub of a client. Closing it closes the client.
func Of(c *client.Client) Hub { return socketHub{c} }

func (h socketHub) HubEvents(ctx context.Context, p dialect.EventsParams) (Stream[events.Event], error) {
	s, err := h.Events(ctx, p)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (h socketHub) FollowTask(ctx context.Context, id string) (Stream[dialect.Event], error) {
	s, err := h.Follow(ctx, id)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Options are the options of [Run].
type Options struct {
	// Dial connects to the hub. It is called again after each failure, until it succeeds.
	Dial func(ctx context.Context) (Hub, error)
	// Where names the hub to the user, such as the path of its socket.
	Where string
	// Screen is the number of the first screen, from 1; 0 is 1.
	Screen int
	// NoMouse leaves the mouse to the terminal.
	NoMouse bool
	// Shell is the program that opens a directory; "" switches that off.
	Shell string
	// Input and Output are the terminal. Env has its variables.
	Input  io.Reader
	Output io.Writer
	Env    []string
}

// Run shows the screens until the user leaves them or ctx ends. It restores the terminal.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := newLink(ctx, o.Dial)
	defer l.close()
	m := newModel(ctx, o, l)
	p := tea.NewProgram(m, tea.WithInput(o.Input), tea.WithOutput(o.Output), tea.WithEnvironment(o.Env), tea.WithoutSignalHandler())
	stop := context.AfterFunc(ctx, p.Quit)
	defer stop()
	_, err := p.Run()
	cancel()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

const (
	callLimit  = 20 * time.Second       // of a call to the hub
	settle     = 250 * time.Millisecond // from a change to the next reload, so that bursts are one
	reloadIdle = 10 * time.Second       // between reloads without a change
)
