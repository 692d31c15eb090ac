// Docs writes the files that are generated from the code:
//
//	go run ./tools/docs [-check] [-only cli,config,coverage,notice,schema]
//
// They are docs/cli.md, from the commands; docs/configuration.md, from the structs
// that config.yaml is read into, with their comments; docs/spec-coverage.md, the
// specifications' clauses with the tests that hold them; NOTICE, the licences of
// what the programs are linked with; and the JSON Schema of .mcp-config.json, from
// its structs.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// files are the generated files. An error of make may come with content: then it
// is an error in what the file describes.
var files = []struct {
	name, path string
	make       func() ([]byte, error)
}{
	{"cli", "docs/cli.md", commandsDoc},
	{"config", "docs/configuration.md", configurationDoc},
	{"coverage", "docs/spec-coverage.md", coverageDoc},
	{"notice", "NOTICE", noticeFile},
	{"schema", "schema/mcp-config.schema.json", mcpSchema},
}

func mcpSchema() ([]byte, error) {
	schema, err := json.MarshalIndent(mcpconfig.Schema(), "", "  ")
	return append(schema, '\n'), err
}

func main() {
	check := flag.Bool("check", false, "write nothing, and fail if a file is not up to date")
	only := flag.String("only", "", "the files to write, separated by commas; default all")
	flag.Parse()
	if err := run(*check, *only); err != nil {
		fmt.Fprintf(os.Stderr, "docs: %v\n", err)
		os.Exit(1)
	}
}

func run(check bool, only string) error {
	var errs []error
	for _, f := range files {
		if only != "" && !slices.Contains(strings.Split(only, ","), f.name) {
			continue
		}
		content, err := f.make()
		if content != nil {
			err = errors.Join(err, write(f.path, content, check))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// write writes content to a file below the repository's root, or with check set
// returns an error where the file differs.
func write(path string, content []byte, check bool) error {
	if !check {
		return os.WriteFile(path, content, 0o644)
	}
	have, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	// Git may have checked the file out with the line ends of Windows.
	if !bytes.Equal(bytes.ReplaceAll(have, []byte("\r\n"), []byte("\n")), content) {
		return fmt.Errorf("%s is not up to date; run: go run ./tools/docs", path)
	}
	return nil
}
