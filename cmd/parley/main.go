// Parley is a hub for the coding agents of any vendor.
package main

import (
	"os"

	"github.com/parleyhub/parley/internal/app/cli"
)

func main() { os.Exit(cli.Main("parley", os.Args[1:])) }
