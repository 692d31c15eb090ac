package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/base/version"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  exactly(),
		RunE: func(*cobra.Command, []string) error {
			if a.json() {
				writeJSON(a.stdout, version.Get())
				return nil
			}
			v := version.Get()
			fmt.Fprintf(a.stdout, "%s %s\n%s %s/%s\n", a.name, v.Version, v.Go, v.OS, v.Arch)
			return nil
		},
	}
}
