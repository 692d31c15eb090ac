// Package shortcut answers `parley --version` and the hooks of coding agents while the program initializes, before the packages of the
// hub do: the NATS server, gRPC and Prometheus take most of the time of so short a command. Scripts ask for the version often, and a
// session waits for its hook at each turn and tool.
//
// Go initializes packages in the order of their import paths, as soon as the packages that they import are done. Therefore
// this package imports little, and above all neither net/http nor what needs it. If it were later in the order, the answer would be the
// same and only take longer.
package shortcut

import (
	"io"
	"os"
	"strings"

	"github.com/parleyhub/parley/internal/app/version"
	"github.com/parleyhub/parley/internal/base/local"
)

// stdin is what the commands read: with what a hook that was left to them has read before.
var stdin io.Reader = os.Stdin

// Stdin returns standard input for the commands.
func Stdin() io.Reader { return stdin }

func init() {
	if answer(os.Args, os.Stdout) {
		os.Exit(0)
	}
	if len(os.Args) < 2 || !IsHook(os.Args[1:]) {
		return
	}
	h := hook{args: os.Args[2:], getenv: os.Getenv, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	code, done := h.run()
	if done {
		os.Exit(code)
	}
	stdin = h.stdin
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

// IsHook reports whether a command line is that of a hook without flags.
func IsHook(args []string) bool {
	return len(args) >= 2 && len(args) <= 3 && args[0] == "hook" && !strings.HasPrefix(args[1], "-") && !strings.HasPrefix(args[len(args)-1], "-")
}
