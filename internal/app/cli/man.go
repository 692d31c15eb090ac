package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parleyhub/parley/internal/app/version"
	"github.com/parleyhub/parley/internal/base/text"
)

func (a *app) manCommand() *cobra.Command {
	return command("man DIRECTORY", "Write the manual pages into a directory",
		func(cmd *cobra.Command, args []string) error {
			dir := args[0]
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("create the directory of the manual pages: %w", err)
			}
			pages, err := writeManual(cmd.Root(), dir)
			if err != nil {
				return fmt.Errorf("write the manual pages: %w", err)
			}
			return a.print(map[string]any{"pages": pages}, func() {
				fmt.Fprintf(a.stdout, "Wrote %s; read one with: man -l %s\n", text.Count(len(pages), "page"), filepath.Join(dir, a.name+".1"))
			})
		})
}

// writeManual writes a page for cmd and one for each command below it, and returns their paths. Cobra's own generator
// converts Markdown, with libraries that would add half a megabyte to the program.
func writeManual(cmd *cobra.Command, dir string) ([]string, error) {
	page := filepath.Join(dir, manualName(cmd)+".1")
	if err := os.WriteFile(page, manualPage(cmd), 0o644); err != nil {
		return nil, err
	}
	pages := []string{page}
	for _, c := range manualChildren(cmd) {
		below, err := writeManual(c, dir)
		if err != nil {
			return nil, err
		}
		pages = append(pages, below...)
	}
	return pages, nil
}

func manualName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func manualChildren(cmd *cobra.Command) (children []*cobra.Command) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && !c.IsAdditionalHelpTopicCommand() {
			children = append(children, c)
		}
	}
	return children
}

// manualPage returns a command's page in the man macros of roff. It has no date: the pages of a version are always the same.
func manualPage(cmd *cobra.Command) []byte {
	cmd.InitDefaultHelpFlag()
	var b bytes.Buffer
	section := func(title string) { fmt.Fprintf(&b, ".SH %s\n", title) }
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"Parley\"\n.nh\n.ad l\n", strings.ToUpper(manualName(cmd)), "Parley "+version.String())
	section("NAME")
	fmt.Fprintf(&b, "%s \\- %s\n", roff(manualName(cmd)), roff(cmd.Short))
	section("SYNOPSIS")
	fmt.Fprintf(&b, ".B %s\n", roff(cmd.UseLine()))
	section("DESCRIPTION")
	description := cmd.Long
	if description == "" {
		description = cmd.Short
	}
	fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(description))
	if flags := cmd.NonInheritedFlags(); flags.HasAvailableFlags() {
		section("OPTIONS")
		manualFlags(&b, flags)
	}
	if flags := cmd.InheritedFlags(); flags.HasAvailableFlags() {
		section(`"OPTIONS OF EVERY COMMAND"`)
		manualFlags(&b, flags)
	}
	if cmd.Example != "" {
		section("EXAMPLES")
		fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(cmd.Example))
	}
	var others []string
	if cmd.HasParent() {
		others = append(others, `\fB`+roff(manualName(cmd.Parent()))+`\fP(1)`)
	}
	for _, c := range manualChildren(cmd) {
		others = append(others, `\fB`+roff(manualName(c))+`\fP(1)`)
	}
	if len(others) > 0 {
		section(`"SEE ALSO"`)
		b.WriteString(strings.Join(others, ", ") + "\n")
	}
	return b.Bytes()
}

func manualFlags(b *bytes.Buffer, flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		kind, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(b, ".TP\n\\fB%s\\fP", roff(name))
		if kind != "" {
			fmt.Fprintf(b, " \\fI%s\\fP", roff(kind))
		}
		fmt.Fprintf(b, "\n%s\n", roff(usage))
	})
}

// roff escapes text, whose lines must not begin with a control character.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
