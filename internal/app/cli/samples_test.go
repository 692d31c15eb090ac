package cli

import (
	"bytes"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/swarm"
)

// Column is tested directly.
type Column = column

// NewColumn returns a column.
func NewColumn(heading string, weight, least int, extra bool) Column {
	return column{heading, weight, least, extra}
}

// RenderTable prints a table for a terminal of a width.
func RenderTable(w io.Writer, columns []Column, width int, rows [][]string) {
	listing[int]{columns: columns}.render(w, width, style{}, rows)
}

// CommandLines returns the words of every command of a program that is not hidden.
func CommandLines(name string) [][]string {
	var all [][]string
	var walk func(c *cobra.Command, words []string)
	walk = func(c *cobra.Command, words []string) {
		if all = append(all, words); c.Hidden {
			all = all[:len(all)-1]
		}
		for _, sub := range c.Commands() {
			walk(sub, append(words[:len(words):len(words)], sub.Name()))
		}
	}
	walk(Command(name), nil)
	return all
}

func sample[T any](w io.Writer, width int, l listing[T], items []T) {
	l.render(w, width, style{}, l.rows(items))
}

var sampleTime = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// SampleTasks prints the table of a few tasks.
func SampleTasks(w *bytes.Buffer, width int) {
	task := func(id string, state dialect.TaskState, agent, ask, dir string, cost float64) dialect.Task {
		return dialect.Task{ID: id, Status: dialect.TaskStatus{State: state}, Metadata: map[string]any{
			hub.MetaAgent: agent,
			hub.MetaDir:   map[string]any{"path": dir, "policy": "fixed"},
			hub.MetaSummary: map[string]any{
				"prompt": ask, "createdAt": sampleTime.Add(-5 * time.Minute).Format(time.RFC3339), "durationMs": 95_000.0, "usage": map[string]any{"costUsd": cost},
			},
		}}
	}
	tasks := []dialect.Task{
		task("019aab8a-d500-7000-8000-a1b2c3d4e5f6", dialect.StateWorking, "claude-code", "Find the bug in parser.go and mend it", "/home/ann/src/shop", 0),
		task("019aab8a-d500-7000-8000-b1b2c3d4e5f6", dialect.StateInputRequired, "codex", "Remove the build directory, then build again from scratch with the release flags and measure how long that took", "/home/ann/src/a-project-with-a-long-name", 1.234),
		task("019aab4b-d500-7000-8000-000000000001", dialect.StateFailed, "bob.a-remote-agent-with-a-name", "日本語でこのリポジトリを説明してください、できるだけ詳しくお願いします", "", 0.001),
	}
	sample(w, width, (&app{}).tasksListing(tasks, nil, sampleTime), tasks)
}

var sampleAgents = []dialect.Agent{
	{ID: "reviewer-2", Name: "reviewer", Place: dialect.Place{Kind: "session", Handle: "reviewer", Address: "reviewer.shop", State: "working", Project: "shop", Computer: "laptop",
		Since: dialect.Time{Time: sampleTime.Add(-3 * time.Minute)}, Working: &dialect.Work{TaskID: "t", Title: "is the change of the parser safe?"}, Vendor: "claude", Role: "reviewer"}},
	{ID: "claude-code", Name: "Claude Code CLI", Driver: "claude-stdio", Place: dialect.Place{Kind: "program", Handle: "claude-code", Address: "claude-code", State: "idle", Vendor: "claude",
		Since: dialect.Time{Time: sampleTime.Add(-2 * time.Hour)}, Model: "claude-opus-4-5"}, Tier: new(int), Capabilities: []string{"code", "review", "tests"}, Description: "Anthropic's coding agent, which reads, writes and runs code in a directory",
		Health: &dialect.Health{Status: "healthy", Version: "2.1.329 (Claude Code)", LastCheck: dialect.Time{Time: sampleTime.Add(-time.Minute)}}},
	{ID: "a-remote-agent-with-a-name", Name: "Bob", Driver: "peer", Description: "of another hub",
		Health: &dialect.Health{Status: "unhealthy", ErrorMessage: "the program was not found; install it with: npm install -g bob, then run parley agents --health again"}},
}

// SampleAgents prints the table of a few agents.
func SampleAgents(w *bytes.Buffer, width int) {
	sample(w, width, (&app{}).agentsListing(false, sampleTime), sampleAgents)
}

// SampleHealth prints the health of a few agents.
func SampleHealth(w *bytes.Buffer, width int) {
	sample(w, width, (&app{}).agentsListing(true, sampleTime), sampleAgents)
}

// SampleNetwork prints the table of a few agents of the network.
func SampleNetwork(w *bytes.Buffer, width int) {
	agents := []registry.Summary{
		{Handle: "claude-code-shop", AgentType: "claude-code", Hostname: "laptop.example.com", Status: "online", GUID: "8b3f0a52-7c1e-4b0a-9f6e-2d1c0b9a8f7e", Capabilities: []string{"go", "review", "documentation", "release"}},
		{Handle: "codex-a-project-with-a-long-name", AgentType: "codex", Hostname: "build-server-17", Status: "busy", PossiblyOffline: true, CurrentTaskCount: 3, GUID: "1b3f0a52-7c1e-4b0a-9f6e-2d1c0b9a8f7f"},
	}
	sample(w, width, (&app{}).networkListing(agents), agents)
}

// SampleSwarms prints the table of a few swarms.
func SampleSwarms(w *bytes.Buffer, width int) {
	swarms := []dialect.SwarmSummary{
		{ID: "8b3f0a52-7c1e-4b0a-9f6e-2d1c0b9a8f7e", Status: swarm.Recruiting, Completed: 1, SubTasks: 3, Participants: []string{"a", "b"}, CreatedAt: dialect.Time{Time: sampleTime.Add(-time.Hour)}, TaskDescription: "Review this repository: the command line, the tables, the help texts and the exit codes of all commands"},
	}
	sample(w, width, (&app{}).swarmsListing(swarms, sampleTime), swarms)
}
