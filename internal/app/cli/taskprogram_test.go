package cli_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/parleyhub/parley"
	agentcard "github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	hubcards "github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/tasks"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// The variables of a connected program: its hub, the file in which it notes the turns that it begins, and the marks of its card.
const (
	programHub    = "PARLEY_TEST_HUB"
	programNotes  = "PARLEY_TEST_NOTES"
	programPublic = "PARLEY_TEST_PUBLIC"
)

// taskProgram runs as a Go program that does tasks.
func taskProgram() int {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { // the end of the test ends the program
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // it ends either way
		stop()
	}()
	if err := serveTasks(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serveTasks(ctx context.Context) error {
	at, err := hubcards.Endpoint(os.Getenv(programHub))
	if err != nil {
		return err
	}
	node, err := parley.New(parley.Options{Channels: channel.Options{
		ReconnectDelay: 10 * time.Millisecond,
		Dialers:        map[agentcard.Transport]transport.Dialer{agentcard.TransportWebSocket: &websocket.Dialer{}},
	}})
	if err != nil {
		return err
	}
	defer node.Close(context.Background()) //nolint:errcheck // the program ends
	card := agentcard.Card{ID: "counter", Name: "Counter", Version: "1.0.0", Tier: agentcard.L3, Capabilities: []agentcard.Capability{{ID: "count"}}}
	if os.Getenv(programPublic) != "" {
		card.Protocols = []string{tasks.Public}
	}
	me, err := node.Join(card, func(context.Context, *envelope.Envelope) {})
	if err != nil {
		return err
	}
	for ctx.Err() == nil { // the hub may be starting
		if err = me.ServeTasks(ctx, at, noted); err != nil {
			wait.Pause(ctx, 20*time.Millisecond)
		}
	}
	return nil
}

// noted does a task: it reports twice, and asks back in the first turn of a task that wants that.
func noted(ctx context.Context, t *tasks.Task) (tasks.Answer, error) {
	f, err := os.OpenFile(os.Getenv(programNotes), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return tasks.Answer{}, err
	}
	if _, err := fmt.Fprintf(f, "%s %d %s\n", t.ID, t.Turn, t.From); err != nil {
		return tasks.Answer{}, err
	}
	if err := f.Close(); err != nil {
		return tasks.Answer{}, err
	}
	for _, percent := range []float64{10, 90} {
		t.Report("counting", percent)
		if !wait.Pause(ctx, 15*time.Millisecond) {
			return tasks.Answer{}, ctx.Err()
		}
	}
	if t.Turn == 1 && strings.HasPrefix(t.Text, "ask") {
		return tasks.Question("which ones?"), nil
	}
	return tasks.Text("answer to " + t.Text), nil
}
