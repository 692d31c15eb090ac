// Parley is the meeting place for coding agents.
package main

import (
	"os"

	"github.com/parleyhub/parley/internal/app/cli"
)

func main() { os.Exit(cli.Main("parley", os.Args[1:])) }
