// Package cli is the command line: one file a command. Commands talk to the hub
// through package client and print through the two formats, pretty for people
// and json, whose shapes docs/json.md promises.
package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/base/version"
	"github.com/parleyhub/parley/internal/config"
)

// Main runs the program called name with args and returns its exit code. It
// reads standard input and writes standard output and error.
func Main(name string, args []string) int {
	a := &app{name: name, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	return a.run(context.Background(), args, signals)
}

// Command returns the commands of a program as they are described: nothing of
// it is to be run.
func Command(name string) *cobra.Command {
	a := &app{name: name, getenv: func(string) string { return "" }}
	return a.command()
}

// app is what the commands share.
type app struct {
	name           string // parley, a2a-hub or nats-mcp-server
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string

	// The global flags.
	socket     string
	dataDir    string
	configFile string
	format     string
	verbose    bool

	style, errStyle style
	lines           *bufio.Reader // over stdin, once the user is asked something
	// interrupts delivers the user's second thoughts: see send.
	interrupts <-chan os.Signal
}

// The output formats.
const (
	formatPretty = "pretty"
	formatJSON   = "json"
)

func (a *app) json() bool { return a.format == formatJSON }

// run executes one command line. The first signal ends the command's context
// with errInterrupted, unless the command takes the signals itself.
func (a *app) run(ctx context.Context, args []string, signals <-chan os.Signal) int {
	a.style, a.errStyle = styleOf(a.stdout, a.getenv), styleOf(a.stderr, a.getenv)
	a.interrupts = signals
	root := a.command()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	f := a.explain(err)
	a.tell(f)
	return f.Exit
}

// interruptible returns a context that ends with the first signal.
func (a *app) interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-a.interrupts:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// The groups of the help.
const (
	groupWork  = "work"
	groupHub   = "hub"
	groupSetup = "setup"
)

func (a *app) command() *cobra.Command {
	root := a.root()
	flags := root.PersistentFlags()
	flags.StringVar(&a.socket, "socket", "", "the hub's Unix socket (default "+config.Default("~").Socket.Path+")")
	flags.StringVar(&a.dataDir, "data-dir", "", "the hub's data directory (default ~/.a2a-hub)")
	flags.StringVar(&a.configFile, "config", "", "the hub's configuration (default config.yaml in the data directory)")
	flags.StringVar(&a.format, "format", formatPretty, "output format: json, pretty")
	flags.BoolVarP(&a.verbose, "verbose", "v", false, "enable debug logging")
	root.Version = version.String()
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &failure{Exit: exitUsage, Kind: "usage", Message: err.Error(), Remedy: "see: " + cmd.CommandPath() + " --help"}
	})
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if a.format != formatPretty && a.format != formatJSON {
			bad := a.format
			a.format = formatPretty
			return usage("--format %q is not one of pretty, json", bad)
		}
		return nil
	}
	return root
}

// root is the program's own command: the hub's commands, or the MCP server.
func (a *app) root() *cobra.Command {
	if a.name == MCPServer {
		return a.mcpRoot()
	}
	root := &cobra.Command{
		Use:   a.name,
		Short: "The meeting place for coding agents",
		Long: "Parley runs a hub on this machine through which coding agents of any vendor are\n" +
			"reached in one way: " + a.name + " send AGENT MESSAGE.",
		Example: "  " + a.name + ` send echo "hello"             # starts the hub when none runs
  ` + a.name + ` send claude-code "fix the tests"
  git diff | ` + a.name + ` send codex -
  ` + a.name + ` agents --health`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			message := fmt.Sprintf("there is no command %q", args[0])
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				message += "; did you mean " + strings.Join(near, " or ") + "?"
			}
			return usage("%s", message)
		},
		SuggestionsMinimumDistance: 2,
	}
	root.AddGroup(
		&cobra.Group{ID: groupWork, Title: "Work:"},
		&cobra.Group{ID: groupHub, Title: "The hub:"},
		&cobra.Group{ID: groupSetup, Title: "Setting up:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupWork, a.sendCommand(), a.tasksCommand(), a.taskCommand(), a.contextsCommand(), a.agentsCommand(), a.rosterCommand(), a.swarmCommand(), a.loopCommand(), a.replayCommand(), a.docCommand(), a.mcpCommand(), a.networkCommand(), a.peersCommand())
	add(groupHub, a.startCommand(), a.stopCommand(), a.statusCommand())
	add(groupSetup, a.doctorCommand(), a.configCommand(), a.manCommand(), a.demoCommand(), a.versionCommand())
	root.AddCommand(a.conformanceCommand())
	root.SetHelpCommandGroupID(groupSetup)
	root.SetCompletionCommandGroupID(groupSetup)
	return root
}

// exactly checks the number of arguments and names what is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		f := &failure{Exit: exitUsage, Kind: "usage", Remedy: "see: " + cmd.CommandPath() + " --help"}
		if len(args) < len(names) {
			f.Message = "missing " + strings.Join(names[len(args):], " and ")
		} else {
			f.Message = fmt.Sprintf("unexpected argument %q", args[len(names)])
		}
		return f
	}
}

// load reads the configuration with the global flags laid over it.
func (a *app) load(extra ...config.Override) (*config.Loaded, error) {
	overrides := extra
	if a.socket != "" {
		overrides = append(overrides, config.Override{Key: "socket.path", Value: a.socket, Flag: "--socket"})
	}
	if a.dataDir != "" {
		overrides = append(overrides, config.Override{Key: "dataDir", Value: a.dataDir, Flag: "--data-dir"})
	}
	if a.verbose {
		overrides = append(overrides, config.Override{Key: "logging.level", Value: "debug", Flag: "--verbose"})
	}
	return config.Load(config.Options{File: a.configFile, Overrides: overrides})
}

// connect connects to the hub that the configuration names.
func (a *app) connect(ctx context.Context) (*client.Client, error) {
	cfg, err := a.load()
	if err != nil {
		return nil, err
	}
	return a.dial(ctx, cfg)
}

func (a *app) dial(ctx context.Context, cfg *config.Loaded) (*client.Client, error) {
	a.debugf("connecting to %s", cfg.Socket.Path)
	return client.Dial(ctx, cfg.Socket.Path)
}

// self is how the user calls the program, for commands to copy: with the flags
// that say which hub is meant.
func (a *app) self() string {
	command := a.name
	for _, flag := range []struct{ name, value string }{{"socket", a.socket}, {"data-dir", a.dataDir}, {"config", a.configFile}} {
		if flag.value != "" {
			command += " --" + flag.name + " " + quote(flag.value)
		}
	}
	return command
}

// debugf tells what happens, with --verbose.
func (a *app) debugf(format string, args ...any) {
	if a.verbose {
		fmt.Fprintf(a.stderr, "%s\n", a.errStyle.dim("debug: "+fmt.Sprintf(format, args...)))
	}
}

// note tells people, never programs.
func (a *app) note(format string, args ...any) {
	if !a.json() {
		fmt.Fprintf(a.stderr, "%s\n", a.errStyle.dim(fmt.Sprintf(format, args...)))
	}
}

// withHub runs f with a connection and a context that the first signal ends.
func (a *app) withHub(cmd *cobra.Command, f func(context.Context, *client.Client) error) error {
	ctx, cancel := a.interruptible(cmd.Context())
	defer cancel()
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(ctx, c)
}
