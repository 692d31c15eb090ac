// Package cli implements the command lines of parley, a2a-hub and nats-mcp-server, one file
// for each command. Commands call the hub through package client. They print text for
// people, or with --format json the JSON that docs/json.md specifies.
package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/app/service"
	"github.com/parleyhub/parley/internal/app/shortcut"
	"github.com/parleyhub/parley/internal/app/version"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
)

// Main runs the program called name with args and returns its exit code. It uses the
// process's standard input, output and error, and handles its interrupts.
func Main(name string, args []string) int { return mainOf(name, args, 0) }

// mainOf is Main with app.idle.
func mainOf(name string, args []string, idle time.Duration) int {
	a := &app{name: name, stdin: shortcut.Stdin(), stdout: newOutput(os.Stdout), stderr: os.Stderr, getenv: os.Getenv, ownProcess: true, idle: idle}
	if slices.Equal(args, []string{"--version"}) { // scripts call it often: it does without the commands and signals
		a.printVersion()
		return a.exit(nil)
	}
	if daemon.LeaveParent() {
		return exitOK
	}
	if shortcut.IsHook(args) { // it runs without the other commands: a session waits
		return a.hook(context.Background(), args[1:])
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	return a.run(context.Background(), args, signals)
}

// Command returns the commands of a program, for their descriptions only: they must not be run.
func Command(name string) *cobra.Command {
	a := &app{name: name, stdout: newOutput(io.Discard), getenv: func(string) string { return "" }}
	return a.command()
}

// app is the state that the commands share.
type app struct {
	name   string // parley, a2a-hub or nats-mcp-server
	stdin  io.Reader
	stdout *output
	stderr io.Writer
	getenv func(string) string
	// ownProcess is set if nothing else runs in this process, so that its runtime's settings may be changed.
	ownProcess bool

	// The global flags.
	socket     string
	dataDir    string
	configFile string
	format     string
	verbose    bool
	httpPort   string // of the commands that may start the hub

	services service.Options // of the service commands; the zero value is for this user and system
	idle     time.Duration   // after which agents' connections and sessions rest; 0 for the defaults

	style, errStyle style
	lines           *bufio.Reader    // reads stdin; nil until the user is asked something
	interrupts      <-chan os.Signal // SIGINT and SIGTERM
}

// The output formats.
const (
	formatPretty = "pretty"
	formatJSON   = "json"
)

func (a *app) json() bool { return a.format == formatJSON }

// run executes one command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string, signals <-chan os.Signal) int {
	a.style, a.errStyle = styleOf(a.stdout, a.getenv), styleOf(a.stderr, a.getenv)
	a.interrupts = signals
	root := a.command()
	if slices.Contains(args, cobra.ShellCompRequestCmd) || slices.Contains(args, cobra.ShellCompNoDescRequestCmd) {
		completeRest(root)
	}
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	return a.exit(root.ExecuteContext(ctx))
}

// exit prints the failure of a command that has ended with err, nil if it succeeded, and returns the exit code.
func (a *app) exit(err error) int {
	f := a.stdout.failure()
	if f == nil && err == nil {
		return exitOK
	}
	if f == nil {
		f = a.explain(err)
	}
	a.printFailure(f)
	return f.Exit
}

// interruptible returns a context that the first signal ends, with errInterrupted as the cause.
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

// The groups of commands in the help.
const (
	groupWork  = "work"
	groupHub   = "hub"
	groupSetup = "setup"
)

// pathFlags are the flags whose value must not be empty: the variable of a script that is not set would select the
// user's main hub, or the current project.
var pathFlags = []string{"socket", "data-dir", "config", "dir"}

func (a *app) command() *cobra.Command {
	root := a.root()
	flags := root.PersistentFlags()
	flags.StringVar(&a.socket, "socket", "", "the hub's Unix socket (default hub.sock in the data directory)")
	flags.StringVar(&a.dataDir, "data-dir", "", "the hub's data directory (default ~/.a2a-hub)")
	flags.StringVar(&a.configFile, "config", "", "the hub's configuration (default config.yaml in the data directory)")
	flags.StringVar(&a.format, "format", formatPretty, "output format: json, pretty")
	flags.BoolVarP(&a.verbose, "verbose", "v", false, "enable debug logging")
	a.versionFlag(root)
	completeWords(root, "format", formatPretty, formatJSON)
	root.SetHelpFunc(a.help)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &failure{Exit: exitUsage, Kind: "usage", Message: err.Error(), Remedy: "see: " + cmd.CommandPath() + " --help"}
	})
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		for _, name := range pathFlags {
			if f := cmd.Flags().Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
				return usage("--%s is empty; name a path, or leave the flag out", name)
			}
		}
		if a.format != formatPretty && a.format != formatJSON {
			bad := a.format
			a.format = formatPretty
			return usage("--format %q is not one of pretty, json", bad)
		}
		return nil
	}
	return root
}

// root is the program's own command. The programs have the same commands under each name; without a command
// nats-mcp-server serves MCP, and the others print their help.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   a.name,
		Short: "A hub for the coding agents of any vendor",
		Long: "Parley runs a hub on this machine. Through it you reach coding agents of any vendor\n" +
			"with one command: " + a.name + " send AGENT MESSAGE.",
		Example: "  " + a.name + ` send echo "hello"             # starts the hub if it is not running
  ` + a.name + ` send claude-code "fix the tests"
  git diff | ` + a.name + ` send codex "review this"
  ` + a.name + ` agents --health`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && a.name == MCPServer {
				return a.mcp(cmd.Context(), false) // its specification has the network off
			}
			if len(args) == 0 {
				return cmd.Help()
			}
			message := fmt.Sprintf("there is no command %q", args[0])
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				message += "; did you mean " + strings.Join(near, " or ") + "?"
			}
			return &failure{Exit: exitUsage, Kind: "usage", Message: message, Remedy: "list them with: " + a.name + " --help"}
		},
		SuggestionsMinimumDistance: 2,
	}
	if a.name == MCPServer {
		root.Long = a.mcpLong() + "\n\nAll commands of parley work under this name too."
		a.mayStart(root)
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
	add(groupWork, a.sendCommand(), a.tasksCommand(), a.taskCommand(), a.contextsCommand(), a.trustCommand(), a.agentsCommand(), a.claimsCommand(), a.sendersCommand(), a.rosterCommand(), a.swarmCommand(), a.loopCommand(), a.replayCommand(), a.docCommand(), a.mcpCommand(), a.networkCommand(), a.peersCommand(), a.channelsCommand())
	add(groupHub, a.startCommand(), a.stopCommand(), a.statusCommand(), a.uiCommand(), a.eventsCommand(), a.totalsCommand(), a.logsCommand(), a.upgradeCommand(), a.repairCommand(), a.serviceCommand())
	add(groupSetup, a.installCommand(), a.uninstallCommand(), a.guardCommand(), a.hookCommand(), a.doctorCommand(), a.configCommand(), a.manCommand(), a.demoCommand(), a.versionCommand())
	root.AddCommand(a.conformanceCommand())
	root.SetHelpCommandGroupID(groupSetup)
	root.SetCompletionCommandGroupID(groupSetup)
	return root
}

// command returns a command whose arguments are the words that follow its name in use.
func command(use, short string, run runE) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: exactly(strings.Fields(use)[1:]...), RunE: run}
}

// commandOn returns a command whose first argument is one of the candidates.
func (a *app) commandOn(use string, from candidates, short string, run runE) *cobra.Command {
	cmd := command(use, short, run)
	cmd.ValidArgsFunction = a.completeFirst(from)
	return cmd
}

// group returns a command that only has subcommands.
func group(name, short, long string, commands ...*cobra.Command) *cobra.Command {
	names := make([]string, len(commands))
	for i, c := range commands {
		names[i] = c.Name()
	}
	last := len(names) - 1
	known := strings.Join(names[:last], ", ") + " and " + names[last]
	cmd := &cobra.Command{
		Use: name, Short: short, Long: long,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return usage("there is no command %q; %sthere are %s", name+" "+args[0], didYouMean(args[0], names), known)
		},
	}
	cmd.AddCommand(commands...)
	return cmd
}

// versionFlag adds --version to the root command. Cobra's own needs text/template, which keeps the linker from removing
// unused methods: several megabytes.
func (a *app) versionFlag(root *cobra.Command) {
	asked := root.Flags().Bool("version", false, "print the version")
	run := root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if *asked {
			a.printVersion()
			return nil
		}
		return run(cmd, args)
	}
}

func (a *app) printVersion() { fmt.Fprintf(a.stdout, "%s %s\n", a.name, version.String()) }

// didYouMean returns a clause for a message that names the candidate that word most likely means, "" without one.
func didYouMean(word string, candidates []string) string {
	if near := text.Nearest(word, candidates); near != "" {
		return fmt.Sprintf("did you mean %q? ", near)
	}
	return ""
}

func (a *app) versionCommand() *cobra.Command {
	return command("version", "Print the version", func(*cobra.Command, []string) error {
		v := version.Read()
		return a.print(v, func() {
			fmt.Fprintf(a.stdout, "%s %s\n%s %s/%s\n", a.name, v.Version, v.Go, v.OS, v.Arch)
		})
	})
}

// exactly requires one argument for each name; the error names the missing ones.
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

// self returns the command line of this program for remedies that the user can copy, with
// the flags that select the hub.
func (a *app) self() string {
	command := a.name
	if a.ownProcess {
		command = local.CommandOf(os.Args[0])
	}
	for _, flag := range []struct{ name, value string }{{"socket", a.socket}, {"data-dir", a.dataDir}, {"config", a.configFile}} {
		if flag.value != "" {
			command += " --" + flag.name + " " + text.ShellQuote(flag.value)
		}
	}
	return command
}

// debugf prints a debug message to stderr, with --verbose.
func (a *app) debugf(format string, args ...any) {
	if a.verbose {
		fmt.Fprintf(a.stderr, "%s\n", a.errStyle.dim("debug: "+fmt.Sprintf(format, args...)))
	}
}

// note prints a remark to stderr, unless the format is JSON.
func (a *app) note(format string, args ...any) {
	if !a.json() {
		fmt.Fprintf(a.stderr, "%s\n", a.errStyle.dim(fmt.Sprintf(format, args...)))
	}
}

// notice prints a note without commands to copy: at a terminal it is broken between words.
func (a *app) notice(words string) {
	if a.json() {
		return
	}
	words = plain(words)
	text := "note: " + words
	if width := a.columns(a.stderr); width > 0 {
		text = strings.TrimRight(hanging("note: ", "  ", words, width), "\n")
	}
	fmt.Fprintf(a.stderr, "%s\n", a.errStyle.dim(text))
}

// print writes v as JSON with --format json, and calls pretty otherwise. It returns nil.
func (a *app) print(v any, pretty func()) error {
	if a.json() {
		writeJSON(a.stdout, v)
	} else {
		pretty()
	}
	return nil
}
