// Parley is a hub for the coding agents of any vendor. Under the name a2a-hub or nats-mcp-server, as a link or a copy, it is
// that program.
package main

import (
	"os"

	"github.com/parleyhub/parley/internal/app/cli"
	_ "github.com/parleyhub/parley/internal/app/shortcut" // answers --version early
	"github.com/parleyhub/parley/internal/base/local"
)

func main() { os.Exit(cli.Main(local.Program(), os.Args[1:])) }
