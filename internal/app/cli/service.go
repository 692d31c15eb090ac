package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/app/service"
)

func (a *app) serviceCommand() *cobra.Command {
	cmd := group("service", "Let your system run the hub: at login, and again when it fails",
		`Let your system run the hub: it starts at login, and again when it has failed. It is
a systemd user unit on Linux, a launchd agent on macOS and a scheduled task on
Windows; none needs an administrator.`,
		a.serviceInstallCommand(), a.serviceUninstallCommand(), a.serviceStatusCommand())
	cmd.Args = exactly()
	cmd.RunE = func(*cobra.Command, []string) error {
		return usage("missing a command: install, uninstall or status")
	}
	return cmd
}

func (a *app) serviceInstallCommand() *cobra.Command {
	var now bool
	cmd := command("install", "Install the service and start it", func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := a.interruptible(cmd.Context())
		defer cancel()
		cfg, err := a.load(ctx)
		if err != nil {
			return err
		}
		s, err := service.New(a.services)
		if err != nil {
			return err
		}
		program, err := ownPath()
		if err != nil {
			return err
		}
		line, err := daemon.Command(cfg, program, "start", "--foreground")
		if err != nil {
			return err
		}
		err = s.Install(ctx, line, func() error {
			_, err := a.retire(ctx, cfg, now) // the hub that runs without the service
			return err
		})
		if err != nil {
			return err
		}
		return a.print(s.Status(ctx), func() {
			fmt.Fprintf(a.stdout, "The service is installed: %s\nIt starts the hub at login, and again when it fails. See: %s status\n", s.Status(ctx).File, a.self())
		})
	})
	cmd.Long = "Install the service and start it. A hub that runs already is replaced as soon as no task\nis being worked on."
	cmd.Example = "  " + a.name + " service install"
	cmd.Flags().BoolVar(&now, "now", false, "do not wait: running tasks of the hub that runs already fail")
	return cmd
}

func (a *app) serviceUninstallCommand() *cobra.Command {
	cmd := command("uninstall", "Stop the hub and remove the service", func(cmd *cobra.Command, _ []string) error {
		s, err := service.New(a.services)
		if err != nil {
			return err
		}
		if err := s.Uninstall(cmd.Context()); err != nil {
			return err
		}
		return a.print(s.Status(cmd.Context()), func() { fmt.Fprintln(a.stdout, "The service is removed. The hub's data stays.") })
	})
	cmd.Example = "  " + a.name + " service uninstall"
	return cmd
}

func (a *app) serviceStatusCommand() *cobra.Command {
	cmd := command("status", "Show whether the service is installed and running", func(cmd *cobra.Command, _ []string) error {
		s, err := service.New(a.services)
		if err != nil {
			return err
		}
		st := s.Status(cmd.Context())
		return a.print(st, func() {
			switch {
			case !st.Installed:
				fmt.Fprintf(a.stdout, "The service is not installed; install it with: %s service install\n", a.self())
			case st.Running:
				fmt.Fprintf(a.stdout, "%s (%s, %s)\n", a.style.green("The service is running"), st.Manager, st.File)
			case st.Package:
				fmt.Fprintf(a.stdout, "%s (%s, %s of a package); start it with: %s\n", a.style.red("The service is not running"), st.Manager, st.File, s.StartCommand())
			default:
				fmt.Fprintf(a.stdout, "%s (%s, %s); the log of the hub may say why\n", a.style.red("The service is not running"), st.Manager, st.File)
			}
		})
	})
	cmd.Example = "  " + a.name + " service status --format json"
	return cmd
}
