// Package shortcut answers `parley --version` while the program initializes, before the packages of the hub do: the NATS
// server, gRPC and Prometheus take most of the time of so short a command, and scripts call it often.
//
// Go initializes packages in the order of their import paths, as soon as the packages that they import are done. Therefore
// this package imports little. If it were later in the order, the answer would be the same and only take longer.
package shortcut

import (
	"io"
	"os"

	"github.com/parleyhub/parley/internal/app/version"
	"github.com/parleyhub/parley/internal/base/local"
)

func init() {
	if answer(os.Args, os.Stdout) {
		os.Exit(0)
	}
}

// answer writes the version if nothing else is asked for. It reports whether it did; an output that cannot be written is
// left to the command, which explains it.
func answer(args []string, out io.Writer) bool {
	if len(args) != 2 || args[1] != "--version" {
		return false
	}
	_, err := io.WriteString(out, local.ProgramOf(args[0])+" "+version.String()+"\n")
	return err == nil
}
