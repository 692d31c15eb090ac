// Docs writes the reference documents from the code that they describe:
// docs/cli.md from the commands, docs/configuration.md from the structs that
// config.yaml is read into, with their comments; and the JSON Schema of
// .mcp-config.json from its structs.
//
//	go run ./tools/docs [-check]
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"

	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	"github.com/parleyhub/parley/tools/internal/generated"
)

func main() {
	check := flag.Bool("check", false, "only tell whether the documents are up to date")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintf(os.Stderr, "docs: %v\n", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	configuration, err := configurationDoc()
	if err != nil {
		return err
	}
	schema, err := json.MarshalIndent(mcpconfig.Schema(), "", "  ")
	if err != nil {
		return err
	}
	const command = "go run ./tools/docs"
	return errors.Join(
		generated.Write("schema/mcp-config.schema.json", append(schema, '\n'), check, command),
		generated.Write("docs/configuration.md", configuration, check, command),
		generated.Write("docs/cli.md", commandsDoc(), check, command),
	)
}
