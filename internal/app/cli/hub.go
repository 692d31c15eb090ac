package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/config"
)

// load reads the configuration. The global flags and overrides take precedence over it. If only a socket is named, the
// data directory is that of the hub there: a command that reads or changes files of a hub does so with that hub's.
func (a *app) load(ctx context.Context, overrides ...config.Override) (*config.Loaded, error) {
	opts := a.configOptions(overrides...)
	if socket := opts.OnlySocket(); socket != "" {
		if dir := daemon.DataDirAt(ctx, socket); dir != "" {
			opts.Overrides = append(opts.Overrides, config.Override{Key: "dataDir", Value: dir, Flag: "--socket"})
		}
	}
	return config.Load(opts)
}

// configOptions are those of this command line, with overrides.
func (a *app) configOptions(overrides ...config.Override) config.Options {
	for _, o := range []config.Override{{Key: "socket.path", Value: a.socket, Flag: "--socket"}, {Key: "dataDir", Value: a.dataDir, Flag: "--data-dir"}} {
		if o.Value != "" {
			overrides = append(overrides, o)
		}
	}
	if a.httpPort != "" {
		overrides = append(overrides, config.Override{Key: "http.port", Value: a.httpPort, Flag: "--http-port"})
	}
	if a.verbose {
		overrides = append(overrides, config.Override{Key: "logging.level", Value: "debug", Flag: "--verbose"})
	}
	return config.Options{File: a.configFile, Overrides: overrides}
}

// mayStart adds the flags of a command that starts the hub if it is not running, or of all commands of a group.
func (a *app) mayStart(cmd *cobra.Command) *cobra.Command {
	for _, c := range cmd.Commands() {
		a.mayStart(c)
	}
	if cmd.HasSubCommands() {
		return cmd
	}
	cmd.Flags().StringVar(&a.httpPort, "http-port", "", "the port of the HTTP interface if this starts the hub; 0 lets the system choose")
	return cmd
}

// connect connects to the hub that the configuration names.
func (a *app) connect(ctx context.Context) (*client.Client, error) {
	cfg, err := a.load(ctx)
	if err != nil {
		return nil, err
	}
	return a.dial(ctx, cfg)
}

func (a *app) dial(ctx context.Context, cfg *config.Loaded) (*client.Client, error) {
	a.debugf("connecting to the hub of %s, by default on %s", cfg.DataDir, cfg.Socket.Path)
	return daemon.Dial(ctx, cfg)
}

// runE is how cobra runs a command.
type runE func(cmd *cobra.Command, args []string) error

// onHub returns the run function of a command that calls the hub: do gets a connection, and a
// context that the first signal ends, or output that cannot be written.
func (a *app) onHub(do func(ctx context.Context, c *client.Client, args []string) error) runE {
	return func(cmd *cobra.Command, args []string) error {
		ctx, cancel := a.reading(cmd.Context())
		defer cancel()
		c, err := a.connect(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		return do(ctx, c, args)
	}
}

// hubCall is onHub for one call whose result is printed: as JSON, or with pretty.
func hubCall[T any](a *app, call func(ctx context.Context, c *client.Client, args []string) (T, error), pretty func(T)) runE {
	return a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		v, err := call(ctx, c, args)
		if err != nil {
			return err
		}
		return a.print(v, func() { pretty(v) })
	})
}

const (
	// hubDownLimit is how long a command that follows something waits for a hub that is
	// down: a hub that was killed may be restarted meanwhile.
	hubDownLimit = time.Minute
	// hubRetryInterval is the pause between two attempts to reach it.
	hubRetryInterval = time.Second / 2
)

// hubRetry retries a command's calls while the hub is down. The zero value of down means that the hub is up.
type hubRetry struct {
	app    *app
	notice string // printed when the hub goes down
	down   time.Time
}

// after takes the result of each call to the hub. It returns nil if the command should
// continue: after a call that succeeded, and after a short pause while the hub is down. It
// returns any other error, and the last one when the hub was down for hubDownLimit.
func (r *hubRetry) after(ctx context.Context, err error) error {
	switch {
	case err == nil:
		r.down = time.Time{}
		return nil
	case !errors.Is(err, client.ErrLost) && !errors.Is(err, client.ErrNotRunning):
		return err
	case r.down.IsZero():
		r.down = time.Now()
		r.app.note("%s", r.notice)
	case time.Since(r.down) > hubDownLimit:
		return err
	}
	select {
	case <-time.After(hubRetryInterval):
	case <-ctx.Done():
	}
	return nil
}
