package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/app/service"
	"github.com/parleyhub/parley/internal/app/version"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/config"
)

// upgraded is what upgrade prints as JSON.
type upgraded struct {
	Upgraded bool   `json:"upgraded"`       // false if no hub of another version was running
	From     string `json:"from,omitempty"` // the version of the hub that ran
	To       string `json:"to"`             // of this program
	PID      int    `json:"pid,omitempty"`  // of the hub that runs now; 0 if the service has started it
}

func (a *app) upgradeCommand() *cobra.Command {
	var now, again bool
	cmd := command("upgrade", "Replace the running hub by this version, without losing a task", func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := a.interruptible(cmd.Context())
		defer cancel()
		cfg, err := a.load(ctx)
		if err != nil {
			return err
		}
		result, err := a.upgrade(ctx, cfg, now, again)
		if err != nil {
			return err
		}
		return a.print(result, func() {
			switch {
			case result.Upgraded:
				fmt.Fprintf(a.stdout, "The hub is now version %s (it was %s).\n", result.To, plain(result.From))
			case result.From != "":
				fmt.Fprintf(a.stdout, "The hub is already version %s; restart it with --again.\n", result.To)
			default:
				fmt.Fprintf(a.stdout, "No hub is running. The next one is version %s.\n", result.To)
			}
		})
	})
	cmd.Long = `Replace the running hub by this version of the program. The hub ends as soon as no task
is being worked on, and the command says what it waits for. Meanwhile messages are
accepted and stored, and their turns begin in the new hub; if the hub has not become idle
after a minute, they begin in the old one. Tasks of sessions and queues, conversations,
documents and mail go on in the new hub. Nothing happens if the new version cannot read
the data.`
	cmd.Example = "  " + a.name + " upgrade"
	cmd.Flags().BoolVar(&now, "now", false, "do not wait: running tasks fail")
	cmd.Flags().BoolVar(&again, "again", false, "restart the hub also if it has this version already")
	return cmd
}

func (a *app) upgrade(ctx context.Context, cfg *config.Loaded, now, again bool) (upgraded, error) {
	result := upgraded{To: version.String()}
	if err := daemon.CheckFormat(cfg.DataDir, result.To); err != nil {
		return result, err
	}
	info, running, err := daemon.Running(cfg.DataDir)
	if err != nil || !running {
		return result, err
	}
	if result.From = info.Version; result.From == result.To && !again {
		return result, nil
	}
	s, err := service.New(a.services)
	serviced := err == nil && (s.Has("--data-dir="+cfg.DataDir) || s.Runs(ctx, info.PID))
	if _, err := a.retire(ctx, cfg, now); err != nil {
		return result, err
	}
	result.Upgraded = true
	if serviced {
		err := s.Restart(ctx)
		if err == nil {
			return result, nil
		}
		fmt.Fprintf(a.stderr, "%s the hub starts without the service: %s\n", a.errStyle.yellow("warning:"), plain(err.Error()))
	}
	started, _, err := a.startHub(ctx, cfg)
	result.PID = started.PID
	return result, err
}

// drainInterval is how often a busy hub is asked again.
const drainInterval = time.Second / 2

// retire stops the hub of the data directory when that interrupts no task, or at once with now, and waits until it has ended.
// It reports whether one was running.
func (a *app) retire(ctx context.Context, cfg *config.Loaded, now bool) (bool, error) {
	if now {
		result, err := a.stopHub(ctx, cfg)
		return result.Stopped, err
	}
	c, err := a.dial(ctx, cfg)
	if errors.Is(err, client.ErrNotRunning) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer c.Close()
	if err := a.drain(ctx, c); err != nil {
		return false, err
	}
	_, was, err := daemon.Stop(ctx, cfg.DataDir, func(context.Context) error { return nil }) // it stops already
	return was, err
}

// drain waits until the hub stops because no task is being worked on.
func (a *app) drain(ctx context.Context, c *client.Client) error {
	said := 0
	for {
		busy, err := a.drainOnce(ctx, c)
		if err != nil || busy == 0 {
			return err
		}
		if busy != said {
			fmt.Fprintf(a.stderr, "waiting until %s ended; Ctrl-C leaves the hub as it is, --now does not wait (see: %s tasks --state working)\n", haveEnded(busy), a.self())
			said = busy
		}
		if !wait.Pause(ctx, drainInterval) {
			return context.Cause(ctx)
		}
	}
}

func haveEnded(n int) string {
	if n == 1 {
		return "1 task has"
	}
	return text.Count(n, "task") + " have"
}

// drainOnce asks the hub to stop if it is idle. A hub of a version that cannot be asked is stopped when its status says that it is.
func (a *app) drainOnce(ctx context.Context, c *client.Client) (busy int, err error) {
	busy, err = c.Drain(ctx)
	if e, ok := errors.AsType[*jsonrpc.Error](err); !ok || e.Code != jsonrpc.CodeMethodNotFound {
		return busy, err
	}
	status, err := c.Status(ctx)
	if err != nil || status.ActiveTasks > 0 {
		return status.ActiveTasks, err
	}
	return 0, c.Shutdown(ctx)
}

// ownPath returns the path of this program, by the name in the PATH if that leads here: the file itself may be in the directory of
// one version.
func ownPath() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", &failure{Exit: exitFailure, Kind: "failure", Message: "the path of this program is not known: " + err.Error()}
	}
	if named, err := exec.LookPath(local.ProgramParley); err == nil && filepath.IsAbs(named) && daemon.SamePath(named, path) {
		return named, nil
	}
	return path, nil
}
