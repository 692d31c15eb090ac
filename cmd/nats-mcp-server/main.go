// Nats-mcp-server is Parley's MCP server with the program name that its specification requires: the
// same as parley mcp.
package main

import (
	"os"

	"github.com/parleyhub/parley/internal/app/cli"
)

func main() { os.Exit(cli.Main(cli.MCPServer, os.Args[1:])) }
