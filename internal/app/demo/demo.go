// Package demo runs a hub for people who want to see one: in a temporary directory, with agents that need no model and no
// login. They find and share work, use tools, change files, ask for permission, fail and cost something; only what they say
// is made up. Nothing of it stays.
package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/swarm"
)

// Options are the options of [Start].
type Options struct {
	// Command is the command that plays an agent: its name and [Play]'s pace are added to it.
	Command []string
	Env     map[string]string // of the agents
	Pace    time.Duration     // of the agents' steps
	HTTP    bool              // on a port that the system chooses, for the page
	Version string
	Logger  *slog.Logger
}

// Hub is the hub of a demonstration.
type Hub struct {
	dir    string
	cfg    *config.Loaded
	cancel context.CancelFunc
	done   chan error
}

// Start starts a hub with the agents of the demonstration, and returns when it is ready. Close ends it.
func Start(ctx context.Context, o Options) (*Hub, error) {
	dir, err := os.MkdirTemp("", "parley-demo-")
	if err != nil {
		return nil, err
	}
	h := &Hub{dir: dir, done: make(chan error, 1), cancel: func() {}}
	if err := h.start(ctx, o); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return h, nil
}

func (h *Hub) start(ctx context.Context, o Options) error {
	if err := h.project(ctx); err != nil {
		return err
	}
	if err := h.configure(o); err != nil {
		return err
	}
	ready := make(chan struct{})
	opts := daemon.Options{Version: o.Version, Logger: o.Logger, Ready: func(daemon.Info) { close(ready) }}
	ctx, h.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() { h.done <- daemon.Run(ctx, h.cfg, opts) }()
	select {
	case <-ready:
		return nil
	case err := <-h.done:
		h.cancel()
		return errors.Join(errors.New("the demonstration's hub did not start"), err)
	}
}

// Project is the directory in which the agents work.
func (h *Hub) Project() string { return filepath.Join(h.dir, "guide") }

// Dial connects to the hub.
func (h *Hub) Dial(ctx context.Context) (*client.Client, error) { return daemon.Dial(ctx, h.cfg) }

// Close ends the hub and its agents, and removes all files of the demonstration.
func (h *Hub) Close() error {
	h.cancel()
	return errors.Join(<-h.done, os.RemoveAll(h.dir))
}

// project makes the project's files; with git, where it is installed, so that changes can be shown.
func (h *Hub) project(ctx context.Context) error {
	if err := os.Mkdir(h.Project(), 0o700); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"moons.md": "# Moons\n\nMost planets have some.\n", "planets.md": "# Planets\n\nEight, since Pluto is none.\n",
		"Makefile": "publish:\n\trsync -a --delete site/ web.example:/srv/guide\n",
	} {
		if err := os.WriteFile(filepath.Join(h.Project(), name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"add", "."}, {"-c", "user.name=demo", "-c", "user.email=demo@localhost", "-c", "commit.gpgsign=false", "commit", "-q", "-m", "a guide"},
	} {
		git := exec.CommandContext(ctx, "git", args...)
		git.Dir = h.Project()
		if err := git.Run(); err != nil {
			return ctx.Err() // without git, changes are not shown
		}
	}
	return nil
}

func (h *Hub) configure(o Options) error {
	agents := map[string]any{}
	for _, id := range []string{"claude-code", "codex", "gemini", "vibe", "echo"} {
		agents[id] = map[string]any{"disabled": true}
	}
	for _, a := range Agents() {
		args := append(append([]string{}, o.Command[1:]...), a.ID, o.Pace.String())
		agents[a.ID] = map[string]any{"driver": "acp", "command": o.Command[0], "args": args, "description": a.About, "env": map[string]any{"set": o.Env}}
	}
	text, err := yaml.Marshal(map[string]any{
		"version": 1, "http": map[string]any{"enabled": o.HTTP, "port": 0}, "bus": map[string]any{"durability": "fast"},
		"workdirs": map[string]any{"roots": []string{h.Project()}}, "agents": agents,
	})
	if err != nil {
		return err
	}
	data := filepath.Join(h.dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "config.yaml"), text, 0o600); err != nil {
		return err
	}
	h.cfg, err = config.Load(config.Options{
		LookupEnv: func(string) (string, bool) { return "", false }, // the user's settings are for the user's hub
		Overrides: []config.Override{{Key: "dataDir", Value: data}, {Key: "socket.path", Value: filepath.Join(h.dir, "hub.sock")}},
	})
	return err
}

// Perform begins the story: a swarm writes a guide, and each task goes to its agent. It returns when all is begun.
func (h *Hub) Perform(ctx context.Context) error {
	c, err := h.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	edits := []documents.Edit{
		{Op: documents.OpSet, Path: []string{"plan", "title"}, Value: "A guide to the solar system"},
		{Op: documents.OpSet, Path: []string{"plan", "owner"}, Value: "sun"},
		{Op: documents.OpText, Path: []string{"notes"}, Text: "Titan has lakes. Ask saturn for a review.\n"},
	}
	if _, err := c.EditDocument(ctx, "guide", edits); err != nil {
		return err
	}
	for _, t := range Tasks() {
		if err := h.send(ctx, c, t); err != nil {
			return err
		}
	}
	_, err = c.CreateSwarm(ctx, h.plan())
	return err
}

func (h *Hub) send(ctx context.Context, c *client.Client, t Task) error {
	_, err := c.Send(ctx, dialect.SendParams{
		Configuration: &dialect.SendConfig{Blocking: new(false)},
		Message: dialect.Message{
			Kind: dialect.KindMessage, MessageID: uuid.NewString(), Role: dialect.RoleUser, Parts: []dialect.Part{dialect.TextPart(t.Prompt)},
			Metadata: map[string]any{hub.MetaTargetAgent: t.Agent, hub.MetaWorkDir: h.Project()},
		},
	})
	if err != nil {
		return fmt.Errorf("the task of %s: %w", t.Agent, err)
	}
	return nil
}

// plan returns the swarm's plan: the chapters, and a review of all.
func (h *Hub) plan() swarm.Plan {
	p := swarm.Plan{TaskDescription: Guide, RequiredCapabilities: []string{}, Agents: []string{"mars", "saturn", "sun", "titan"}, Directory: &swarm.Directory{Path: h.Project()}, Unattended: true}
	for _, about := range Chapters() {
		p.SubTasks = append(p.SubTasks, swarm.SubTaskPlan{ID: about, Description: "Write a chapter about " + about})
	}
	p.SubTasks = append(p.SubTasks, swarm.SubTaskPlan{ID: "review", Description: "Read all of it", DependsOn: Chapters()})
	return p
}
