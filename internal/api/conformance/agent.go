// Package conformance is the system under test for the official test suites: for the A2A compatibility kits an agent
// whose answer depends on the message's id, for the MCP suite a server with the tools, resources and prompts that it
// calls. Only the hidden command "parley conformance" uses it; a normal hub does not.
package conformance

import (
	"context"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// AgentID is the id of the kits' agent.
const AgentID = "tck"

// Definition returns the definition of the kits' agent.
func Definition() runner.Definition {
	return runner.Definition{
		ID:          AgentID,
		Name:        "TCK agent",
		Description: "Does what the A2A compatibility kit's message ids say.",
		Driver:      "echo",
		Skills:      []runner.Skill{{ID: "tck", Name: "TCK", Description: "Answers the compatibility kit.", Tags: []string{"tck"}}},
		Limits:      runner.Limits{Concurrency: 64, Queue: 256},
	}
}

// agent is a runner.Agent without a process.
type agent struct {
	// hold is the duration of a task for the tests of resubscription.
	hold time.Duration
}

func (agent) Probe(context.Context) runner.Probe {
	return runner.Probe{Stage: runner.StageAuthenticated, AuthKnown: true, Version: "1"}
}

func (a agent) Open(runner.SessionSpec) (runner.Session, error) { return session(a), nil }

type session agent

func (session) Close(context.Context) error { return nil }

// scenario is the behaviour for a prefix of message ids.
type scenario struct {
	prefix string
	play   func(session, context.Context, runner.Handler) (runner.Outcome, error)
}

// scenarios are those of the kit for 1.0 (scenarios/*.feature) and the one of both
// kits. The first matching prefix counts.
var scenarios = []scenario{
	{"tck-complete-task", say("Hello from TCK")},
	{"tck-artifact-text", show(runner.Artifact{ID: "text", Name: "text", Parts: parts(a2a.NewTextPart("Generated text content"))})},
	{"tck-artifact-file-url", show(runner.Artifact{ID: "file", Name: "file", Parts: parts(fileURL())})},
	{"tck-artifact-file", show(runner.Artifact{ID: "file", Name: "file", Parts: parts(file())})},
	{"tck-artifact-data", show(runner.Artifact{ID: "data", Name: "data", Parts: parts(a2a.NewDataPart(map[string]any{"key": "value", "count": 42}))})},
	{"tck-reject-task", end(runner.OutcomeRejected, "rejected")},
	{"tck-stream-001", show(runner.Artifact{ID: "stream", Parts: parts(a2a.NewTextPart("Stream hello from TCK"))})},
	{"tck-stream-002", say("")},
	{"tck-stream-003", show(runner.Artifact{ID: "stream", Parts: parts(a2a.NewTextPart("Stream task lifecycle"))})},
	{"tck-stream-ordering-001", show(runner.Artifact{ID: "stream", Parts: parts(a2a.NewTextPart("Ordered output"))})},
	{"tck-stream-artifact-text", show(runner.Artifact{ID: "stream", Parts: parts(a2a.NewTextPart("Streamed text content"))})},
	{"tck-stream-artifact-file", show(runner.Artifact{ID: "stream", Parts: parts(file())})},
	{"tck-stream-artifact-chunked", show(
		runner.Artifact{ID: "stream", Parts: parts(a2a.NewTextPart("chunk-1 "))},
		runner.Artifact{ID: "stream", Parts: parts(a2a.NewTextPart("chunk-2")), Append: true, Last: true},
	)},
	{"test-resubscribe-message-id", hold},
	// The kit for 0.3 expects all other messages to leave their tasks open; that for
	// 1.0 sends tck-input-required for that.
	{"", end(runner.OutcomeInputRequired, "What next?")},
}

func (s session) Turn(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
	for _, sc := range scenarios {
		if strings.HasPrefix(turn.MessageID, sc.prefix) {
			return sc.play(s, ctx, h)
		}
	}
	return runner.Outcome{Status: runner.OutcomeCompleted}, nil
}

func say(text string) func(session, context.Context, runner.Handler) (runner.Outcome, error) {
	return end(runner.OutcomeCompleted, text)
}

func end(status runner.OutcomeStatus, text string) func(session, context.Context, runner.Handler) (runner.Outcome, error) {
	return func(session, context.Context, runner.Handler) (runner.Outcome, error) {
		return runner.Outcome{Status: status, Text: text}, nil
	}
}

func show(artifacts ...runner.Artifact) func(session, context.Context, runner.Handler) (runner.Outcome, error) {
	return func(_ session, _ context.Context, h runner.Handler) (runner.Outcome, error) {
		for _, a := range artifacts {
			h.Event(a)
		}
		return runner.Outcome{Status: runner.OutcomeCompleted}, nil
	}
}

// hold keeps the task working, so that the kit can resubscribe to it.
func hold(s session, ctx context.Context, _ runner.Handler) (runner.Outcome, error) {
	select {
	case <-ctx.Done():
		return runner.Outcome{Status: runner.OutcomeCanceled}, nil
	case <-time.After(s.hold):
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done"}, nil
	}
}

func parts(p ...*a2a.Part) []*a2a.Part { return p }

func file() *a2a.Part {
	p := a2a.NewRawPart([]byte("TCK file content"))
	p.Filename, p.MediaType = "output.txt", "text/plain"
	return p
}

func fileURL() *a2a.Part {
	p := a2a.NewFileURLPart("https://example.com/output.txt", "text/plain")
	p.Filename = "output.txt"
	return p
}
