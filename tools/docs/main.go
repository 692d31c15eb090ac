// Docs writes the reference documents from the code that they describe:
// docs/cli.md from the commands, docs/configuration.md from the structs that
// config.yaml is read into, with their comments.
//
//	go run ./tools/docs [-check]
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"

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
	const command = "go run ./tools/docs"
	return errors.Join(
		generated.Write("docs/configuration.md", configuration, check, command),
		generated.Write("docs/cli.md", commandsDoc(), check, command),
	)
}
