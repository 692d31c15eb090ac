package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func (a *app) manCommand() *cobra.Command {
	return command("man DIRECTORY", "Write the manual pages into a directory",
		func(cmd *cobra.Command, args []string) error {
			dir := args[0]
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("create the directory of the manual pages: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			date := time.Unix(0, 0) // fixed: the pages of a version are always the same
			header := &doc.GenManHeader{Section: "1", Source: "Parley " + versionString(), Manual: "Parley", Date: &date}
			if err := doc.GenManTree(root, header, dir); err != nil {
				return fmt.Errorf("write the manual pages: %w", err)
			}
			pages, err := filepath.Glob(filepath.Join(dir, a.name+"*.1"))
			if err != nil {
				return err
			}
			return a.print(map[string]any{"pages": pages}, func() {
				fmt.Fprintf(a.stdout, "Wrote %d pages; read one with: man -l %s\n", len(pages), filepath.Join(dir, a.name+".1"))
			})
		})
}
