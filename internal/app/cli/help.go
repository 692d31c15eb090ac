package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// The width of the help: that of the terminal up to maxHelp, and helpWidth elsewhere.
const (
	helpWidth = 80
	maxHelp   = 100
)

// help prints the help of a command. No line is longer than the terminal is wide, so none is broken within a word.
func (a *app) help(cmd *cobra.Command, _ []string) {
	width := helpWidth
	if n := a.columns(a.stdout); n > 0 {
		width = min(n, maxHelp)
	}
	sections := []string{wrapText(helpText(cmd), width)}
	add := func(title, body string) {
		if body = strings.TrimRight(body, "\n"); body != "" {
			sections = append(sections, title+"\n"+body)
		}
	}
	add("Usage:", usageLines(cmd, width))
	add("Examples:", wrapExamples(cmd.Example, width))
	for _, g := range cmd.Groups() {
		add(g.Title, commandLines(cmd, g.ID, width))
	}
	title := "Available Commands:"
	if len(cmd.Groups()) > 0 {
		title = "Additional Commands:"
	}
	add(title, commandLines(cmd, "", width))
	add("Flags:", cmd.LocalFlags().FlagUsagesWrapped(width))
	add("Global Flags:", cmd.InheritedFlags().FlagUsagesWrapped(width))
	if cmd.HasAvailableSubCommands() {
		sections = append(sections, wrapText(fmt.Sprintf("Use %q for more about a command.", cmd.CommandPath()+" [command] --help"), width))
	}
	fmt.Fprintln(a.stdout, strings.Join(sections, "\n\n"))
}

func helpText(cmd *cobra.Command) string {
	if cmd.Long != "" {
		return strings.TrimSpace(cmd.Long)
	}
	return cmd.Short + "."
}

func usageLines(cmd *cobra.Command, width int) string {
	var b strings.Builder
	if cmd.Runnable() {
		b.WriteString(hanging("  ", "      ", cmd.UseLine(), width))
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString(hanging("  ", "      ", cmd.CommandPath()+" [command]", width))
	}
	return b.String()
}

// commandLines lists the subcommands of a group.
func commandLines(cmd *cobra.Command, group string, width int) string {
	var b strings.Builder
	for _, c := range cmd.Commands() {
		if c.GroupID != group || !c.IsAvailableCommand() && c.Name() != "help" {
			continue
		}
		name := fmt.Sprintf("  %-*s ", c.NamePadding(), c.Name())
		b.WriteString(hanging(name, strings.Repeat(" ", len(name)), c.Short, width))
	}
	return b.String()
}

// wrapText wraps the paragraphs of a text. Lines that begin with white space are printed as they are.
func wrapText(text string, width int) string {
	var out []string
	paragraph := ""
	flush := func() {
		if paragraph != "" {
			out = append(out, strings.TrimRight(hanging("", "", paragraph, width), "\n"))
		}
		paragraph = ""
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && line[0] != ' ' && line[0] != '\t' {
			paragraph += " " + line
			continue
		}
		flush()
		out = append(out, line)
	}
	flush()
	return strings.Join(out, "\n")
}

// hanging wraps a text. The first line begins with first, the others with rest. A word that is longer than a line gets
// one of its own.
func hanging(first, rest, text string, width int) string {
	var b strings.Builder
	line := first
	empty := true // line has only its beginning
	for word := range strings.FieldsSeq(text) {
		switch {
		case empty:
			line += word
		case cells(line)+1+cells(word) <= width:
			line += " " + word
		default:
			b.WriteString(line + "\n")
			line = rest + word
		}
		empty = false
	}
	return b.String() + strings.TrimRight(line, " ") + "\n"
}

// wrapExamples makes the examples fit: a comment that does not fit behind its command is printed above it, and a
// command that is too long continues behind a backslash.
func wrapExamples(examples string, width int) string {
	var b strings.Builder
	for line := range strings.SplitSeq(examples, "\n") {
		if cells(line) <= width {
			b.WriteString(line + "\n")
			continue
		}
		command, comment, ok := strings.Cut(line, "  # ")
		if ok {
			b.WriteString(hanging("  # ", "  # ", comment, width))
		}
		command = strings.TrimRight(command, " ")
		if cells(command) > width {
			command = strings.ReplaceAll(strings.TrimRight(hanging("  ", "      ", command, width-2), "\n"), "\n", " \\\n")
		}
		b.WriteString(command + "\n")
	}
	return b.String()
}
