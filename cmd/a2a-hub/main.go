// A2a-hub is Parley's hub under the name of its specification.
package main

import (
	"os"

	"github.com/parleyhub/parley/internal/app/cli"
)

func main() { os.Exit(cli.Main("a2a-hub", os.Args[1:])) }
