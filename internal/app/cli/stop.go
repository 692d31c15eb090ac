package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/config"
)

// stopped is what stop prints as JSON.
type stopped struct {
	Stopped bool `json:"stopped"` // false if none was running
	PID     int  `json:"pid,omitempty"`
}

func (a *app) stopCommand() *cobra.Command {
	cmd := command("stop", "Stop the hub and wait until it has ended",
		func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.interruptible(cmd.Context())
			defer cancel()
			cfg, err := a.load(ctx)
			if err != nil {
				return err
			}
			spinner := a.spin("stopping the hub")
			defer spinner.end()
			result, err := a.stopHub(ctx, cfg)
			spinner.end()
			if err != nil {
				return err
			}
			switch {
			case a.json():
				writeJSON(a.stdout, result)
			case result.Stopped:
				fmt.Fprintf(a.stdout, "The hub (process %d) has stopped.\n", result.PID)
			default:
				fmt.Fprintln(a.stdout, "No hub is running.")
			}
			return nil
		})
	cmd.Long = "Stop the hub and wait until it has ended. Running tasks fail with a message that says\n" +
		"why; ended tasks stay as they are."
	return cmd
}

// stopHub stops the hub that the configuration names; see [daemon.Locate].
func (a *app) stopHub(ctx context.Context, cfg *config.Loaded) (stopped, error) {
	if cfg.Names("socket.path") && !cfg.Names("dataDir") {
		return a.stopOn(ctx, cfg)
	}
	_, err := daemon.Locate(ctx, cfg)
	if errors.Is(err, client.ErrNotRunning) {
		return stopped{}, nil
	}
	if err != nil {
		return stopped{}, err
	}
	info, was, err := daemon.Stop(ctx, cfg.DataDir, func(ctx context.Context) error {
		c, err := a.dial(ctx, cfg)
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Shutdown(ctx)
	})
	return stopped{Stopped: was, PID: info.PID}, err
}

// stopOn stops the hub that listens on the socket if the hub does not tell its data directory, as one of an earlier
// version, and waits until it has closed the connection.
func (a *app) stopOn(ctx context.Context, cfg *config.Loaded) (stopped, error) {
	c, err := a.dial(ctx, cfg)
	if errors.Is(err, client.ErrNotRunning) {
		return stopped{}, nil
	}
	if err != nil {
		return stopped{}, err
	}
	defer c.Close()
	status, err := c.Status(ctx)
	if err != nil {
		return stopped{}, err
	}
	if err := c.Shutdown(ctx); err != nil {
		return stopped{}, err
	}
	return stopped{Stopped: true, PID: status.PID}, c.Wait(ctx)
}
