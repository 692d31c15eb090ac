// A2a-hub is parley with the program name that its specification requires.
package main

import (
	"os"

	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/internal/base/local"
)

func main() { os.Exit(cli.Main(local.ProgramHub, os.Args[1:])) }
