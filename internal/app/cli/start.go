package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/version"
	"github.com/parleyhub/parley/internal/config"
)

// startFlags are the flags of start.
type startFlags struct {
	foreground bool
	background bool // this process is the one in the background
	httpPort   int
	noHTTP     bool
	durability string
}

func (a *app) startCommand() *cobra.Command {
	var f startFlags
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Start the hub in the background",
		Long: "Start the hub in the background and return as soon as it serves. A hub that runs\n" +
			"already is left alone. Its log is logs/hub.log in the data directory.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			overrides, err := f.overrides(cmd)
			if err != nil {
				return err
			}
			cfg, err := a.load(overrides...)
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
			return a.start(cmd.Context(), cfg, f.arguments(cmd))
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.foreground, "foreground", false, "run here, with the log on standard error, until Ctrl-C")
	flags.IntVar(&f.httpPort, "http-port", 8080, "the port of the HTTP interface; 0 lets the system choose")
	flags.BoolVar(&f.noHTTP, "no-http", false, "serve on the Unix socket only")
	flags.StringVar(&f.durability, "durability", "commit", "when the bus acknowledges: commit, always, fast")
	flags.BoolVar(&f.background, "background", false, "run as the process in the background")
	cmd.MarkFlagsMutuallyExclusive("http-port", "no-http")
	cmd.MarkFlagsMutuallyExclusive("foreground", "background")
	if err := flags.MarkHidden("background"); err != nil {
		panic(err) // the flag is defined just above
	}
	return cmd
}

func (f *startFlags) overrides(cmd *cobra.Command) ([]config.Override, error) {
	var all []config.Override
	if cmd.Flags().Changed("http-port") {
		all = append(all, config.Override{Key: "http.port", Value: strconv.Itoa(f.httpPort), Flag: "--http-port"})
	}
	if f.noHTTP {
		all = append(all, config.Override{Key: "http.enabled", Value: "false", Flag: "--no-http"})
	}
	if cmd.Flags().Changed("durability") {
		all = append(all, config.Override{Key: "bus.durability", Value: f.durability, Flag: "--durability"})
	}
	return all, nil
}

// arguments are the flags that the process in the background gets as well.
func (f *startFlags) arguments(cmd *cobra.Command) []string {
	var args []string
	if cmd.Flags().Changed("http-port") {
		args = append(args, "--http-port="+strconv.Itoa(f.httpPort))
	}
	if f.noHTTP {
		args = append(args, "--no-http")
	}
	if cmd.Flags().Changed("durability") {
		args = append(args, "--durability="+f.durability)
	}
	return args
}

// warn tells what works but should be mended.
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

func (a *app) start(ctx context.Context, cfg *config.Loaded, args []string) error {
	info, already, err := a.startHub(ctx, cfg, args)
	if err != nil {
		return err
	}
	if a.json() {
		writeJSON(a.stdout, started{Info: info, AlreadyRunning: already})
		return nil
	}
	if already {
		fmt.Fprintf(a.stdout, "%s (process %d, since %s).\n", a.style.green("The hub runs already"), info.PID, info.StartedAt.Local().Format("2006-01-02 15:04:05"))
	} else {
		fmt.Fprintf(a.stdout, "%s (process %d).\n", a.style.green("The hub runs"), info.PID)
	}
	a.printPlaces(info)
	fmt.Fprintf(a.stdout, "\nNext: %s   %s   %s\n", a.style.bold(a.self()+` send echo "hello"`), a.style.bold(a.self()+" agents --health"), a.style.bold(a.self()+" stop"))
	return nil
}

func (a *app) printPlaces(info daemon.Info) {
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
}

// startHub starts a hub in the background and returns when it serves.
func (a *app) startHub(ctx context.Context, cfg *config.Loaded, args []string) (info daemon.Info, already bool, err error) {
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	program, err := daemon.Executable()
	if err != nil {
		return info, false, err
	}
	command := append([]string{program, "start", "--background"}, args...)
	// Absolute, because the process in the background changes its directory.
	command = append(command, "--socket="+cfg.Socket.Path, "--data-dir="+cfg.DataDir)
	if cfg.Found {
		command = append(command, "--config="+cfg.File)
	}
	if a.verbose {
		command = append(command, "--verbose")
	}
	spinner := a.spin("starting the hub")
	defer spinner.end()
	a.debugf("running %q", command)
	info, err = daemon.Start(ctx, cfg.DataDir, command)
	var de *daemon.Error
	if errors.As(err, &de) && de.Code == daemon.CodeRunning {
		return info, true, nil
	}
	return info, false, err
}

// serve runs the hub in this process until a signal.
func (a *app) serve(ctx context.Context, cfg *config.Loaded) error {
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	if info, running, err := daemon.Running(cfg.DataDir); err == nil && running && info.PID != 0 {
		return a.start(ctx, cfg, nil) // says that it runs
	}
	return daemon.Run(ctx, cfg, daemon.Options{
		Version: version.String(),
		Logger:  daemon.NewLogger(a.stderr, cfg.Logging, isTerminal(a.stderr)),
		Ready: func(info daemon.Info) {
			if a.json() {
				writeJSON(a.stdout, started{Info: info})
				return
			}
			fmt.Fprintf(a.stdout, "%s. Ctrl-C stops it.\n", a.style.green("The hub runs"))
			a.printPlaces(info)
		},
	})
}

// serveInBackground runs the hub as the detached process and reports to the one
// that started it.
func (a *app) serveInBackground(ctx context.Context, cfg *config.Loaded, configErr error) error {
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	return daemon.RunInBackground(ctx, cfg, configErr, os.Stdout, daemon.Options{Version: version.String()})
}
