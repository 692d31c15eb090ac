package cli

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/app/version"
	"github.com/parleyhub/parley/internal/config"
)

// startFlags are the flags of start.
type startFlags struct {
	foreground bool
	background bool // this process is the background process
	noHTTP     bool
	durability string
}

func (a *app) startCommand() *cobra.Command {
	var f startFlags
	cmd := command("start", "Start the hub in the background", func(cmd *cobra.Command, _ []string) error {
		overrides := f.overrides(cmd)
		cfg, err := a.load(cmd.Context(), overrides...)
		if f.background {
			return a.serveInBackground(cmd.Context(), cfg, err)
		}
		if err != nil {
			return err
		}
		a.warn(cfg)
		if f.foreground {
			return a.serve(cmd.Context(), cfg)
		}
		return a.start(cmd.Context(), cfg)
	})
	cmd.Long = "Start the hub in the background and return when it is ready. If a hub is already\n" +
		"running, the command does nothing. The log is logs/hub.log in the data directory."
	flags := cmd.Flags()
	flags.BoolVar(&f.foreground, "foreground", false, "run in this process, with the log on standard error, until Ctrl-C")
	flags.StringVar(&a.httpPort, "http-port", "", "the port of the HTTP interface; 0 lets the system choose (default 8080, or\nanother one if that is in use)")
	flags.BoolVar(&f.noHTTP, "no-http", false, "serve on the Unix socket only")
	flags.StringVar(&f.durability, "durability", "commit", "when the bus acknowledges a write: commit, always, fast")
	flags.BoolVar(&f.background, "background", false, "run as the background process")
	completeWords(cmd, "durability", "commit", "always", "fast")
	cmd.MarkFlagsMutuallyExclusive("http-port", "no-http")
	cmd.MarkFlagsMutuallyExclusive("foreground", "background")
	if err := flags.MarkHidden("background"); err != nil {
		panic(err) // the flag is defined just above
	}
	return cmd
}

// overrides returns the configuration that the flags set.
func (f *startFlags) overrides(cmd *cobra.Command) []config.Override {
	var all []config.Override
	if f.noHTTP {
		all = append(all, config.Override{Key: "http.enabled", Value: "false", Flag: "--no-http"})
	}
	if cmd.Flags().Changed("durability") {
		all = append(all, config.Override{Key: "bus.durability", Value: f.durability, Flag: "--durability"})
	}
	return all
}

// warn prints the configuration's warnings.
func (a *app) warn(cfg *config.Loaded) {
	for _, w := range cfg.Warnings {
		fmt.Fprintf(a.stderr, "%s %s\n", a.errStyle.yellow("warning:"), w)
	}
}

// started is what start prints as JSON.
type started struct {
	daemon.Info
	AlreadyRunning bool `json:"alreadyRunning"`
}

func (a *app) start(ctx context.Context, cfg *config.Loaded) error {
	info, already, err := a.startHub(ctx, cfg)
	if err != nil {
		return err
	}
	return a.print(started{Info: info, AlreadyRunning: already}, func() {
		if already {
			fmt.Fprintf(a.stdout, "%s (process %d, since %s).\n", a.style.green("The hub is already running"), info.PID, info.StartedAt.Local().Format(time.DateTime))
		} else {
			fmt.Fprintf(a.stdout, "%s (process %d).\n", a.style.green("The hub is running"), info.PID)
		}
		a.printAddresses(info)
		fmt.Fprintf(a.stdout, "\nNext: %s   %s   %s\n", a.style.bold(a.self()+` send echo "hello"`), a.style.bold(a.self()+" agents --health"), a.style.bold(a.self()+" stop"))
	})
}

func (a *app) printAddresses(info daemon.Info) {
	row := func(label, value string) {
		if value != "" {
			fmt.Fprintf(a.stdout, "  %-11s %s\n", label, value)
		}
	}
	row("socket", info.Socket)
	row("http", info.HTTP)
	row("grpc", info.GRPC)
	row("durability", info.Durability)
	row("data", info.DataDir)
	row("log", info.Log)
	a.printNotices(info.Notices)
}

// printNotices prints where an address of the hub is not the configured one.
func (a *app) printNotices(notices []string) {
	for _, n := range notices {
		fmt.Fprintf(a.stderr, "%s %s\n", a.errStyle.yellow("notice:"), oneLine(n))
	}
}

// startHub starts a hub in the background and returns when it is ready. It reports whether a
// hub was already running.
func (a *app) startHub(ctx context.Context, cfg *config.Loaded) (info daemon.Info, already bool, err error) {
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	command, err := daemon.Command(cfg)
	if err != nil {
		return info, false, err
	}
	if a.verbose {
		command = append(command, "--verbose")
	}
	spinner := a.spin("starting the hub")
	defer spinner.end()
	a.debugf("running %q", command)
	info, err = daemon.Start(ctx, cfg.DataDir, command)
	if daemon.CodeOf(err) != daemon.CodeRunning {
		return info, false, err
	}
	socket, err := daemon.Locate(ctx, cfg) // fails if socket and data directory are of different hubs
	if err == nil && cfg.Names("socket.path") && !daemon.SamePath(socket, info.Socket) {
		err = &failure{
			Exit: exitNotRunning, Kind: "hub-not-running",
			Message: fmt.Sprintf("no hub listens on %s, and the one of the data directory %s (process %d) listens on %s", socket, cfg.DataDir, info.PID, info.Socket),
			Remedy:  "use --socket " + info.Socket + ", or name another data directory with --data-dir",
		}
	}
	return info, true, err
}

// serve runs the hub in this process until a signal.
func (a *app) serve(ctx context.Context, cfg *config.Loaded) error {
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	if info, running, err := daemon.Running(cfg.DataDir); err == nil && running && info.PID != 0 {
		return a.start(ctx, cfg) // prints that it is running
	}
	return daemon.Run(ctx, cfg, daemon.Options{
		LimitMemory:  true,
		SuspendAfter: a.idle,
		Version:      version.String(),
		Logger:       daemon.NewLogger(a.stderr, cfg.Logging, isTerminal(a.stderr)),
		Ready: func(info daemon.Info) {
			_ = a.print(started{Info: info}, func() { // returns nil
				fmt.Fprintf(a.stdout, "%s. Ctrl-C stops it.\n", a.style.green("The hub is running"))
				a.printAddresses(info)
			})
		},
	})
}

// serveInBackground runs the hub as the background process, which reports on standard output
// to the process that started it.
func (a *app) serveInBackground(ctx context.Context, cfg *config.Loaded, configErr error) error {
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	return daemon.RunInBackground(ctx, cfg, configErr, os.Stdout, daemon.Options{Version: version.String(), LimitMemory: true, SuspendAfter: a.idle})
}
