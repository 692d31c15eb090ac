package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/app/version"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/wait"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// MCPServer is the name of the program that runs the MCP server without a command.
const MCPServer = "nats-mcp-server"

// mcpLong is the help of the MCP server. It names the program that was called, which may be the only one there.
func (a *app) mcpLong() string {
	return `Serve MCP on standard input and output, for one coding agent. The agents of a
project share its channels: they see each other's messages; agents of other projects
do not. Add the server to an agent with:

  claude mcp add parley -- ` + a.name + ` mcp
  codex mcp add parley -- ` + a.name + ` mcp
  gemini mcp add parley ` + a.name + ` mcp

The project is the current directory, or the directory of the nearest .mcp-config.json
up to five levels above. Messages are stored on the NATS server of NATS_URL or natsUrl.
Without one they are stored on the bus of the hub, which is started in the background
if it is not running.`
}

func (a *app) mcpCommand() *cobra.Command {
	var dir string
	cmd := command("mcp", "Serve MCP to a coding agent: the channels of its project",
		func(cmd *cobra.Command, _ []string) error {
			if dir != "" {
				if err := os.Chdir(dir); err != nil {
					return usage("--dir %s cannot be used: %s", dir, local.Reason(err))
				}
			}
			return a.mcp(cmd.Context(), true)
		})
	cmd.Flags().StringVar(&dir, "dir", "", "the project's directory, for clients that have none (default the current one)")
	cmd.Long = a.mcpLong() + `

On the hub's bus the agent can also register in the agents' network of this computer:
it finds agents of other projects there, writes to them and shares work with them.`
	return a.mayStart(cmd)
}

const (
	// mcpMemory is the soft memory limit, in bytes. Below it the garbage collector runs
	// less often than by default, since the SDK allocates much for every call.
	mcpMemory = 64 << 20
	mcpGOGC   = 200
	// mcpStart is the time in which the server uses all processors, since a start has parts that run at the same time.
	mcpStart = 2 * time.Second
	// flushTimeout is how long the end waits until messages are stored.
	flushTimeout = 10 * time.Second
)

// useOneProcessor has the process use one processor after its start, unless its environment says how many, until stop is called. It
// waits for one client most of the time: with more processors Go's scheduler wakes an idle thread for nearly each goroutine that
// goes on, which costs more than what the goroutine does.
func useOneProcessor(lookup func(string) (string, bool)) (stop func()) {
	if _, set := lookup("GOMAXPROCS"); set {
		return func() {}
	}
	timer := time.AfterFunc(mcpStart, func() { runtime.GOMAXPROCS(1) })
	return func() { timer.Stop() }
}

// mcp serves MCP. With network, the agent is on this computer's network unless its configuration says otherwise.
func (a *app) mcp(ctx context.Context, network bool) error {
	cfg, err := mcpconfig.Load(mcpconfig.Sources{})
	if err != nil {
		return a.logMCPConfig(err)
	}
	log := mcpserver.NewLogger(a.stderr, cfg.Logging, string(cfg.Credentials.Password))
	if a.ownProcess {
		debug.SetGCPercent(mcpGOGC)
		debug.SetMemoryLimit(mcpMemory)
		defer useOneProcessor(os.LookupEnv)()
	}
	stdoutFile := os.Stdout
	stdout := a.reserveStdout()
	if isTerminal(a.stdin) {
		fmt.Fprintf(a.stderr, "%s is an MCP server for programs: add it to an agent, see --help. Ctrl-C ends it.\n", a.name)
	}
	ctx, cancel := a.interruptibleServer(ctx)
	defer cancel()
	token := taskToken(os.LookupEnv)
	shared, err := a.shareTools(token, log.With("component", "hub-tools"))
	if err != nil {
		return err
	}
	defer shared.Close()
	channels := busfinder.ForProject(cfg)
	channels.Presence = shared
	finder := a.finder(channels, log.With("component", "nats-connection"))
	opts := mcpserver.ProjectOptions{
		Version: version.String(), Dial: finder.Dial, Logger: log, Documents: documentsAtHub{a, shared, shared}, KeepDir: mcpconfig.UnsentDir(),
		Idle: func() {
			if err := daemon.ReleaseMemory(); err != nil {
				log.Debug("cannot return memory to the system", "error", err)
			}
		},
	}
	reporter := a.newSessionReporter(token, log.With("component", "agentnet"))
	if network {
		cfg.JoinLocalNetwork()
		opts.RegisterSessions = cfg.CrossComputer.RegisterSessions && !cfg.CrossComputer.Enabled && reporter.token == ""
	}
	if opts.RegisterSessions || network && reporter.token != "" {
		opts.OnSession, opts.Conversation, opts.Quiet = reporter.serve, a.conversationOf, reporter.quiet
		defer shared.OnPresence(func() { wait.Nudge(reporter.kick) })()
	}
	if cfg.Networked() {
		if err := a.joinNetwork(ctx, cfg, &opts); err != nil {
			return err
		}
	}
	opts.Groups = append(opts.Groups, shared)
	project, err := mcpserver.OpenProject(cfg, opts)
	if err != nil {
		return err
	}
	shared.project.Store(project)
	if cfg.NATSURL == "" {
		go shared.connectAfter(ctx, project.Tried()) // ends with ctx at the latest
	} else {
		shared.connect()
	}
	log.Info("the MCP server is ready", "version", version.String(), "project", cfg.ProjectPath, "projectId", cfg.ProjectID,
		"namespace", cfg.Namespace, "channels", len(cfg.Channels), "configuration", cfg.File)
	if cfg.File == "" {
		log.Info("there is no " + mcpconfig.ProjectFile + ": the defaults are in force")
	}
	reporting, stop := context.WithCancel(ctx)
	var reports sync.WaitGroup
	reports.Go(func() { reporter.run(reporting) })
	in := a.stdin
	if f, ok := in.(*os.File); ok {
		in = local.Pollable(f, stdoutFile, os.Stderr)
	}
	err = project.ServeLines(ctx, mcpserver.Caller{}, io.NopCloser(in), stdout)
	if err != nil {
		log.Warn("the connection to the client was lost", "error", err)
	}
	stop()
	reports.Wait()
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	lost, err := project.Close(ctx)
	if err != nil {
		log.Warn("the connection to the bus did not end cleanly", "error", err)
	}
	log.Info("the MCP server has stopped", "lost", lost)
	return nil
}

// reserveStdout returns standard output for the protocol, and redirects other output of the
// process to standard error.
func (a *app) reserveStdout() io.Writer {
	stdout := a.stdout.stream
	if stdout == os.Stdout {
		os.Stdout = os.Stderr
	}
	return stdout
}

// interruptibleServer returns a context that the first SIGINT, SIGTERM or SIGHUP ends. It also catches SIGPIPE: the
// process must store queued messages after the client has disconnected.
func (a *app) interruptibleServer(ctx context.Context) (context.Context, context.CancelFunc) {
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	ctx, cancel := a.interruptible(ctx)
	context.AfterFunc(ctx, stop)
	return ctx, func() {
		cancel()
		signal.Stop(pipe)
	}
}

// logMCPConfig logs every problem of the configuration with its position: agents show the log
// to people. It returns the failure.
func (a *app) logMCPConfig(err error) error {
	log := mcpserver.NewLogger(a.stderr, mcpconfig.Logging{Level: "INFO", Format: os.Getenv("LOG_FORMAT")}).With("component", "configuration")
	failure := &failure{Exit: exitUsage, Kind: "configuration", Message: err.Error(), quiet: true}
	wrong, ok := errors.AsType[*mcpconfig.Error](err)
	if !ok {
		log.Error(err.Error())
		return failure
	}
	for _, p := range wrong.Problems {
		log.Error(p.String(), "source", p.Source, "line", p.Line, "column", p.Column, "path", p.Path)
	}
	log.Error("The server did not start. Correct the configuration, then check it with: " + local.Program() + " config validate")
	return failure
}
