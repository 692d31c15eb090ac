// Genschema writes the JSON Schema of the MCP server's configuration to the
// file that is named as its argument.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: genschema FILE")
		os.Exit(2)
	}
	data, err := json.MarshalIndent(mcpconfig.Schema(), "", "  ")
	if err == nil {
		err = os.WriteFile(os.Args[1], append(data, '\n'), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "genschema:", err)
		os.Exit(1)
	}
}
