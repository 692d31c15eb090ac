package peers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/mcp/delegation"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// delegateTo makes the party's agent delegate the text after "hand " to an agent of its own hub.
func (p *party) delegateTo(to string) {
	service := delegation.New(delegation.Options{Hub: p.hub, Tokens: p.tokens})
	p.actor.hand = func(ctx context.Context, token, prompt string) (string, error) {
		caller, err := service.Identify(token)
		if err != nil {
			return "", err
		}
		served := mcpserver.NewService(mcpserver.Options{Groups: []mcpserver.Group{service}})
		defer served.Stop()
		server := served.NewServer(caller)
		defer server.End()
		near, far := mcp.NewInMemoryTransports()
		ss, err := server.MCP().Connect(ctx, far, nil)
		if err != nil {
			return "", err
		}
		cs, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, near, nil)
		if err != nil {
			return "", err
		}
		defer func() {
			_ = cs.Close() // the connection ends anyway
			_ = ss.Wait()
		}()
		result, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "delegate_task", Arguments: map[string]any{"agent": to, "task": prompt}})
		if err != nil {
			return "", err
		}
		return result.Content[0].(*mcp.TextContent).Text, nil
	}
}

// Work that is delegated in a circle over two hubs ends: the hubs exchange the delegation chain, in names that each
// understands, and the trace.
func TestDelegationsBetweenHubsKeepTheirChain(t *testing.T) {
	_, a, b := two(t)
	a.delegateTo("bob.worker")
	b.delegateTo("alice.worker")
	task := a.send(t, "worker", "hand hand dig")
	if text := textOf(task); !strings.Contains(text, "The delegation chain is alice.worker → worker: alice.worker is in it already") {
		t.Errorf("%s", text)
	}
	page, err := b.hub.Tasks(deadline(t), hub.TaskQuery{AgentID: "worker"})
	if err != nil || len(page.Tasks) != 1 {
		t.Fatalf("%+v %v", page, err)
	}
	d := hub.DelegationOf(page.Tasks[0])
	if d == nil || d.By != "alice.worker" || fmt.Sprint(d.Chain) != "[alice.worker]" {
		t.Fatalf("%+v", d)
	}
	there, err := a.hub.Tasks(deadline(t), hub.TaskQuery{AgentID: "bob.worker"})
	if err != nil || len(there.Tasks) != 1 {
		t.Fatalf("%+v %v", there, err)
	}
	sent := hub.DelegationOf(there.Tasks[0]).TraceParent
	if got := trace(t, page.Tasks[0]); sent == "" || got != sent {
		t.Errorf("the trace is %q at the other hub, %q at this one", got, sent)
	}

	// A user's request to the other hub has an empty chain, so its agent may delegate to ours.
	task = a.send(t, "bob.worker", "hand dig")
	if text := textOf(task); !strings.Contains(text, "did dig") {
		t.Errorf("%s", text)
	}
}

// trace returns the trace of the envelope that started a task.
func trace(t *testing.T, task *a2a.Task) string {
	t.Helper()
	data, err := json.Marshal(task.Metadata["envelope"])
	if err != nil {
		t.Fatal(err)
	}
	var about struct{ TraceParent string }
	if err := json.Unmarshal(data, &about); err != nil {
		t.Fatal(err)
	}
	return about.TraceParent
}

// A hub that stops cancels its tasks at other hubs as it does those of its own agents.
func TestAHubThatStopsEndsItsTurnsAtOthers(t *testing.T) {
	_, a, b := two(t)
	if _, err := a.hub.Send(deadline(t), hub.SendRequest{AgentID: "bob.worker", Message: message("wait")}); err != nil {
		t.Fatal(err)
	}
	<-b.actor.started
	a.end()
	wait.Eventually(t, "it is canceled there", func() bool {
		page, err := b.hub.Tasks(deadline(t), hub.TaskQuery{AgentID: "worker"})
		if err != nil || len(page.Tasks) != 1 {
			t.Fatalf("%+v %v", page, err)
		}
		return page.Tasks[0].Status.State == a2a.TaskStateCanceled
	})
}
