package cli

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/app/terminal"
)

func (a *app) uiCommand() *cobra.Command {
	var o terminal.Options
	var noStart bool
	var web webFlags
	cmd := command("ui", "Show what the agents do on screens in the terminal, and answer them", func(cmd *cobra.Command, _ []string) error {
		if web.page {
			return a.showPage(cmd.Context(), noStart, web)
		}
		if web.noOpen || web.viewOnly {
			return &failure{Exit: exitUsage, Kind: "usage", Message: "--no-open and --view-only are for --web"}
		}
		if a.json() || !isTerminal(a.stdin) || !isTerminal(a.stdout) {
			return &failure{Exit: exitUsage, Kind: "usage", Message: "the screens need a terminal", Remedy: "for programs there is: " + a.self() + " events -f --format json"}
		}
		if !noStart {
			c, err := a.connectOrStart(cmd.Context(), false)
			if err != nil {
				return err
			}
			if err := c.Close(); err != nil {
				return err
			}
		}
		return a.showScreens(cmd.Context(), o)
	})
	cmd.Long = "Show the hub on screens: what waits for you, the agents, tasks, conversations, swarms and queues,\n" +
		"the network, documents, what happened, and costs. Questions are answered with a key. The\n" +
		"screens need 80 columns and 24 rows; ? shows the keys. While the hub is away they say so,\n" +
		"and continue when it is back.\n\n" +
		"With --web the same screens open in the browser. The link is printed. It can be opened once, within\n" +
		"a minute; the browser that opened it may use the page until the hub stops."
	cmd.Example = "  " + a.name + " ui\n  ssh build-server -t " + a.name + " ui\n  " + a.name + " ui --web\n  " + a.name + " ui --web --view-only --no-open"
	flags := cmd.Flags()
	flags.BoolVar(&noStart, "no-start", false, "do not start a hub if none is running: wait for it")
	flags.BoolVar(&o.NoMouse, "no-mouse", false, "leave the mouse to the terminal")
	flags.BoolVar(&web.page, "web", false, "open the screens in the browser")
	flags.BoolVar(&web.noOpen, "no-open", false, "with --web, print the link only")
	flags.BoolVar(&web.viewOnly, "view-only", false, "with --web, the browser can change nothing")
	flags.IntVar(&o.Screen, "screen", 1, "the first screen, 1 to 9")
	a.mayStart(cmd)
	return cmd
}

// showScreens shows the screens until the user leaves them or a signal arrives.
func (a *app) showScreens(ctx context.Context, o terminal.Options) error {
	cfg, err := a.load(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	o.Dial = func(ctx context.Context) (terminal.Hub, error) {
		c, err := a.dial(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return terminal.Of(c), nil
	}
	o.Where = tilde(cfg.Socket.Path)
	return a.runScreens(ctx, o)
}

// runScreens shows the screens on this command's terminal.
func (a *app) runScreens(ctx context.Context, o terminal.Options) error {
	out, _ := fileOf(a.stdout)
	o.Shell, o.Env, o.Input, o.Output = a.getenv("SHELL"), os.Environ(), a.stdin, out
	return terminal.Run(ctx, o)
}
