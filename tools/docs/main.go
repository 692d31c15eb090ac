// Docs writes the files that are generated from the code:
//
//	go run ./tools/docs [-check] [-only cli,config,coverage,notice,schema,api,skills,contract]
//
// They are docs/cli.md, from the commands; docs/configuration.md, from the structs that config.yaml is read into,
// with their comments; docs/spec-coverage.md, the specifications' clauses with the tests that verify them; NOTICE,
// the licences of the modules that the programs are linked with; two JSON Schemas: that of .mcp-config.json,
// from its structs, and that of the agents' registry, from the file that the hub embeds; and docs/openapi.json and
// docs/asyncapi.json, from the methods of the hub's dialect and their types; and the skills of the plugins, from the
// one that parley install enters. The contracts in schema/contract, from the code's types, are extended, and an error where the code breaks
// one.
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

	"github.com/parleyhub/parley/internal/app/install"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	"github.com/parleyhub/parley/tools/docs/contract"
)

// files are the generated files. make may return both content and an error: then the described code or text has the
// error.
var files = []file{
	{"cli", "docs/cli.md", commandsDoc},
	{"config", "docs/configuration.md", configurationDoc},
	{"coverage", "docs/spec-coverage.md", coverageDoc},
	{"notice", "NOTICE", noticeFile},
	{"schema", "schema/mcp-config.schema.json", mcpSchema},
	{"schema", "schema/agent-registry.schema.json", registrySchema},
	{"api", "docs/openapi.json", openAPI},
	{"api", "docs/asyncapi.json", asyncAPI},
	{"skills", "plugins/claude/skills/parley/SKILL.md", skill},
	{"skills", "plugins/codex/skills/parley/SKILL.md", skill},
	{"skills", "plugins/gemini/GEMINI.md", func() ([]byte, error) { return []byte(install.Context()), nil }},
	contractOf("commands", "commands, flags, exit codes and JSON output", commandContract),
	contractOf("http", "HTTP", interfaceContract(openAPI)),
	contractOf("socket", "the Unix socket, streams and channels", interfaceContract(asyncAPI)),
	contractOf("tools", "MCP tools", toolContract),
	contractOf("configuration", "configuration", configurationContract),
	contractOf("wire", "what hubs and agents send each other", wireContract),
}

// file is a generated file.
type file = struct {
	name, path string
	make       func() ([]byte, error)
}

func contractOf(name, about string, read func(contract.Facts) error) file {
	path := "schema/contract/" + name + ".txt"
	return file{"contract", path, contractFile(path, about, read)}
}

func skill() ([]byte, error) { return []byte(install.Skill()), nil }

func mcpSchema() ([]byte, error) {
	schema, err := json.MarshalIndent(mcpconfig.Schema(), "", "  ")
	return append(schema, '\n'), err
}

// embedSchema reads a schema of the tree, to be part of another document.
func embedSchema(path string) (map[string]any, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var schema map[string]any
	err = json.Unmarshal(text, &schema)
	delete(schema, "$schema")
	delete(schema, "$id")
	return schema, err
}

func registrySchema() ([]byte, error) {
	text, err := os.ReadFile("internal/agentnet/registry/agent-registry.schema.json")
	return unix(text), err
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
	if !bytes.Equal(unix(have), content) {
		return fmt.Errorf("%s is not up to date; run: go run ./tools/docs", path)
	}
	return nil
}

// unix removes the line ends of Windows, with which Git may have checked a file out.
func unix(text []byte) []byte { return bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")) }
