// A2a-hub is parley with the program name that its specification requires.
package main

import (
	"os"

	"github.com/parleyhub/parley/internal/app/cli"
)

func main() { os.Exit(cli.Main("a2a-hub", os.Args[1:])) }
