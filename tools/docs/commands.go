package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parleyhub/parley/internal/app/cli"
)

// commandsDoc describes every command that is not hidden.
func commandsDoc() ([]byte, error) {
	root := cli.Command("parley")
	var b bytes.Buffer
	b.WriteString("# Command line\n\nWritten by `go run ./tools/docs` from the commands.\n\n" +
		"`a2a-hub` has the same commands under the name of the hub's specification. The output for scripts and the\n" +
		"exit codes are described in [json.md](json.md). Manual pages: `parley man DIRECTORY`. Completion:\n" +
		"`parley completion bash|zsh|fish|powershell`.\n\n## Global flags\n\n")
	flags(&b, root.PersistentFlags())
	describe(&b, root)
	return b.Bytes(), nil
}

func describe(b *bytes.Buffer, parent *cobra.Command) {
	for _, c := range parent.Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		fmt.Fprintf(b, "\n## %s\n\n%s.\n", c.CommandPath(), c.Short)
		if c.Long != "" {
			fmt.Fprintf(b, "\n%s\n", c.Long)
		}
		if c.Runnable() && !c.HasSubCommands() {
			fmt.Fprintf(b, "\n```\n%s\n```\n", c.UseLine())
		}
		if c.Example != "" {
			fmt.Fprintf(b, "\n```sh\n%s\n```\n", unindent(c.Example))
		}
		if c.LocalNonPersistentFlags().HasAvailableFlags() {
			b.WriteString("\n")
			flags(b, c.LocalNonPersistentFlags())
		}
		describe(b, c)
	}
}

func flags(b *bytes.Buffer, set *pflag.FlagSet) {
	b.WriteString("| Flag | |\n|---|---|\n")
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if f.Value.Type() != "bool" {
			name += " " + strings.ToUpper(strings.TrimSuffix(f.Value.Type(), "64"))
		}
		usage := f.Usage
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" {
			usage += fmt.Sprintf(" (default `%s`)", f.DefValue)
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", name, usage)
	})
}

// unindent removes two spaces at the beginning of each line.
func unindent(text string) string { return strings.ReplaceAll("\n"+text, "\n  ", "\n")[1:] }
