package server_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/bus"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// slowHub is a hub that admits each agent as the test says.
type slowHub struct {
	*nettest.Hub
	asked  chan struct{}                                                       // has a value for each request
	answer chan func(context.Context, registry.AdmissionRequest) (bool, error) // see admits and fails
}

func admits(context.Context, registry.AdmissionRequest) (bool, error) { return true, nil }

func isKilled(context.Context, registry.AdmissionRequest) (bool, error) {
	return false, &bus.Error{Code: bus.CodeNotRunning, Message: "the hub is not running", Remedy: "start it with parley start"}
}

func (h *slowHub) admit(ctx context.Context, r registry.AdmissionRequest) (agentnet.Admission, *bus.Bus, error) {
	select {
	case h.asked <- struct{}{}:
	case <-ctx.Done():
		return agentnet.Admission{}, nil, ctx.Err()
	}
	select {
	case answer := <-h.answer:
		if ok, err := answer(ctx, r); !ok {
			return agentnet.Admission{}, nil, err
		}
		return h.Admit(ctx, r)
	case <-ctx.Done():
		return agentnet.Admission{}, nil, ctx.Err()
	}
}

// openSlowly opens a project whose sessions are registered at a slow hub.
func openSlowly(t *testing.T) (*slowHub, *mcpserver.Project) {
	t.Helper()
	h := &slowHub{nettest.NewHub(t), make(chan struct{}), make(chan func(context.Context, registry.AdmissionRequest) (bool, error))}
	cfg := configOf("shop")
	cfg.ProjectPath, cfg.ProjectID = "/home/ann/shop", mcpconfig.ProjectID("/home/ann/shop")
	cfg.JoinLocalNetwork()
	p, err := mcpserver.OpenProject(cfg, mcpserver.ProjectOptions{Version: "1.0.0-test", RegisterSessions: true, EnterNetwork: h.admit, Logger: slog.New(slog.DiscardHandler),
		Dial:        func(context.Context) (*bus.Bus, error) { return nil, errors.New("there are no channels") },
		DialNetwork: func(context.Context) (*bus.Bus, error) { return nil, errors.New("nobody calls it") }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return h, p
}

// begin calls a tool in the background.
func (a *agent) begin(ctx context.Context, tool string, arguments map[string]any) (done chan called) {
	done = make(chan called, 1)
	go func() {
		c, err := a.try(ctx, tool, arguments)
		if err != nil {
			c = called{text: err.Error(), isError: true}
		}
		done <- c
	}()
	return done
}

var firstCalls = map[string]map[string]any{
	"get_my_registration": nil, "discover_agents": {}, "list_claims": nil, "claim_files": {"paths": []string{"x.go"}}, "claim_work_item": {}, "deregister_agent": nil,
	"send_direct_message": {"recipientGuid": "5c2e4a0e-1111-4222-8333-444455556666", "message": "hello"},
}

// A session's first call comes before the session is registered, or before the next attempt: it is served once that has succeeded.
func TestTheFirstCallOfASessionWaitsForItsRegistration(t *testing.T) {
	t.Parallel()
	for tool, arguments := range firstCalls {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			h, p := openSlowly(t)
			a := joinWith(t, p, "claude-code", "")
			<-h.asked
			h.answer <- isKilled // the next attempt in the background is a second later
			done := a.begin(t.Context(), tool, arguments)
			<-h.asked
			h.answer <- admits
			if c := <-done; strings.Contains(c.text, "not registered") {
				t.Error(c.text)
			}
			if tool == "deregister_agent" {
				a.fails("get_my_registration", nil, "NotRegisteredError", "Call register_agent first")
			} else if e := a.entry("claude"); e["vendor"] != "claude" {
				t.Errorf("%v", e)
			}
		})
	}
}

// The same with autoRegister, on a server that is slow to answer.
func TestTheFirstCallWaitsForTheServer(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	dialed, open := make(chan struct{}, 100), make(chan struct{})
	p := networkedWith(t, n, "shop", func(c *mcpconfig.Config) {
		c.CrossComputer.AutoRegister, c.CrossComputer.DefaultAgentType = true, "developer"
	}, func(o *mcpserver.ProjectOptions) {
		o.DialNetwork = func(ctx context.Context) (*bus.Bus, error) {
			dialed <- struct{}{}
			select {
			case <-open:
				return n.dial(ctx)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
	a := join(t, p)
	<-dialed
	done := a.begin(t.Context(), "get_work_item", map[string]any{"taskId": "T"})
	a.must("list_channels", nil) // begins after it, since that one may block
	close(open)
	if c := <-done; !strings.HasPrefix(c.text, "NotFoundError: ") {
		t.Error(c.text)
	}
}

// The hub is killed while a call waits: the call says why it is refused, and the next one is served.
func TestACallSaysWhyItsSessionIsNotRegistered(t *testing.T) {
	t.Parallel()
	h, p := openSlowly(t)
	a := joinWith(t, p, "claude-code", "")
	<-h.asked
	done := a.begin(t.Context(), "claim_files", map[string]any{"paths": []string{"x.go"}})
	h.answer <- isKilled
	var c called
	for end := false; !end; { // a second attempt may be that of the call, or of the background
		select {
		case <-h.asked:
			h.answer <- isKilled
		case c = <-done:
			end = true
		}
	}
	for _, part := range []string{"NotRegisteredError: ", "The hub is not running.", "parley start", "call the tool again"} {
		if !strings.Contains(c.text, part) {
			t.Errorf("%q lacks %q", c.text, part)
		}
	}
	done = a.begin(t.Context(), "get_my_registration", nil)
	<-h.asked
	h.answer <- admits
	if c := <-done; c.isError {
		t.Error(c.text)
	}
}

// A call that is canceled while it waits ends, and the registration goes on.
func TestACallThatWaitsForItsRegistrationIsCanceled(t *testing.T) {
	t.Parallel()
	h, p := openSlowly(t)
	a := joinWith(t, p, "claude-code", "")
	<-h.asked
	ctx, cancel := context.WithCancel(t.Context())
	done := a.begin(ctx, "get_my_registration", nil)
	cancel()
	<-done
	a.must("list_channels", nil) // begins when the other has ended
	h.answer <- admits
	a.entry("claude")
}

// The end of the service ends it, too.
func TestACallThatWaitsForItsRegistrationEndsWithTheService(t *testing.T) {
	t.Parallel()
	h, p := openSlowly(t)
	a := joinWith(t, p, "claude-code", "")
	<-h.asked
	done := a.begin(t.Context(), "get_my_registration", nil)
	p.Stop()
	if c := <-done; !c.isError {
		t.Errorf("it is registered: %s", c.text)
	}
}
