package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/config"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// The two configurations: of the hub, and of the MCP server in the project of the current directory.
const (
	configHub = "hub"
	configMCP = "mcp"
)

func (a *app) configCommand() *cobra.Command {
	return group("config", "Show or check the configuration of the hub and of the project's MCP server",
		"Show or check two configurations: hub is the hub's config.yaml; mcp is the configuration\n"+
			"of the channels of the project in the current directory: .mcp-config.json,\n"+
			"~/.nats-mcp/config.json and the environment.",
		a.configSubcommand("show", "Show the values in force and their sources; secrets stay hidden", a.configShow),
		a.configSubcommand("validate", "Check the configuration and print each error with its line", a.configValidate),
		a.configSubcommand("path", "Print the path of the configuration file, the hub's by default", a.configPath),
	)
}

// configSubcommand returns a command with one optional argument: which configuration.
func (a *app) configSubcommand(name, short string, run func(ctx context.Context, which string) error) *cobra.Command {
	cmd := command(name+" ["+configHub+"|"+configMCP+"]", short,
		func(cmd *cobra.Command, args []string) error { return run(cmd.Context(), strings.Join(args, "")) })
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && !slices.Contains([]string{configHub, configMCP}, args[0]) {
			return usage("%q is not one of %s, %s", args[0], configHub, configMCP)
		}
		if len(args) > 1 {
			return usage("unexpected argument %q", args[1])
		}
		return nil
	}
	cmd.ValidArgs = []string{configHub, configMCP}
	return cmd
}

// configurations reads one configuration, or both if which is "". The other one is nil.
func (a *app) configurations(ctx context.Context, which string) (hub *config.Loaded, mcp *mcpconfig.Config, err error) {
	var hubErr, mcpErr error
	if which != configMCP {
		hub, hubErr = a.load(ctx)
	}
	if which != configHub {
		mcp, mcpErr = mcpconfig.Load(mcpconfig.Sources{})
	}
	return hub, mcp, errors.Join(hubErr, mcpErr)
}

// configValue is one value of config show --format json.
type configValue struct {
	Configuration string `json:"configuration"` // hub or mcp
	Key           string `json:"key"`
	Value         any    `json:"value"`
	Origin        string `json:"origin"`
	Source        string `json:"source,omitempty"` // file, variable or flag
	Line          int    `json:"line,omitempty"`

	shown string // the origin in text
}

func (a *app) configShow(ctx context.Context, which string) error {
	hub, mcp, err := a.configurations(ctx, which)
	if err != nil {
		return err
	}
	ofHub, ofMCP := []configValue{}, []configValue{}
	if hub != nil {
		a.warn(hub)
		for _, v := range hub.Values() {
			o := v.Origin
			ofHub = append(ofHub, configValue{configHub, v.Key, v.Value, string(o.Kind), o.Name, o.Line, o.String()})
		}
	}
	if mcp != nil {
		for _, v := range mcp.Values() {
			o := v.Origin
			ofMCP = append(ofMCP, configValue{configMCP, v.Key, v.Value, string(o.Layer), o.Name, o.Line, o.String()})
		}
	}
	if a.json() {
		writeJSON(a.stdout, append(ofHub, ofMCP...))
		return nil
	}
	if hub != nil {
		fmt.Fprintln(a.stdout, a.style.bold("The hub"))
		err = a.printValues(ofHub)
	}
	if hub != nil && mcp != nil {
		fmt.Fprintln(a.stdout)
	}
	if err == nil && mcp != nil {
		fmt.Fprintf(a.stdout, "%s in %s\n", a.style.bold("The MCP server"), plain(mcp.ProjectPath))
		err = a.printValues(ofMCP)
	}
	return err
}

func (a *app) printValues(values []configValue) error {
	rows := make([][]string, len(values))
	for i, v := range values {
		text, err := json.Marshal(v.Value)
		if err != nil {
			return fmt.Errorf("show %s: %w", v.Key, err)
		}
		rows[i] = []string{v.Key, v.shown, string(text)}
	}
	listing[[]string]{
		columns: []column{{heading: "KEY"}, {heading: "ORIGIN", weight: 1, least: 12}, {heading: "VALUE", weight: 2, least: 12}}, paint: a.paintFirst, row: func(row []string) []string { return row },
	}.table(a, a.stdout, rows)
	return nil
}

// mcpSummary is the MCP server's part of config validate --format json.
type mcpSummary struct {
	ProjectPath string `json:"projectPath"`
	ProjectID   string `json:"projectId"`
	Namespace   string `json:"namespace"`
	File        string `json:"file,omitempty"`
	UserFile    string `json:"userFile,omitempty"`
	Channels    int    `json:"channels"`
}

func (a *app) configValidate(ctx context.Context, which string) error {
	hub, mcp, err := a.configurations(ctx, which)
	if err != nil {
		return err
	}
	if a.json() {
		out := map[string]any{}
		if hub != nil {
			out["file"], out["found"], out["warnings"] = hub.File, hub.Found, append([]string{}, hub.Warnings...)
		}
		if mcp != nil {
			out[configMCP] = mcpSummary{mcp.ProjectPath, mcp.ProjectID, mcp.Namespace, mcp.File, mcp.UserFile, len(mcp.Channels)}
		}
		writeJSON(a.stdout, out)
		return nil
	}
	if hub != nil {
		a.warn(hub)
		if hub.Found {
			a.printValid(hub.File)
		} else {
			fmt.Fprintf(a.stdout, "There is no %s; the defaults are in force.\n", hub.File)
		}
	}
	if mcp != nil {
		a.printMCPValid(mcp)
	}
	return nil
}

func (a *app) printMCPValid(mcp *mcpconfig.Config) {
	if mcp.UserFile != "" {
		a.printValid(mcp.UserFile)
	}
	if mcp.File != "" {
		a.printValid(mcp.File)
	} else {
		fmt.Fprintf(a.stdout, "There is no %s in %s or above; the default channels are in force.\n", mcpconfig.ProjectFile, plain(mcp.ProjectPath))
	}
	var names []string
	for _, c := range mcp.Channels {
		names = append(names, c.Name)
	}
	fmt.Fprintf(a.stdout, "The project is %s, its namespace %s, its channels %s.\n", plain(mcp.ProjectPath), mcp.Namespace, strings.Join(names, ", "))
}

func (a *app) printValid(file string) {
	fmt.Fprintf(a.stdout, "%s %s\n", plain(file), a.style.green("is valid."))
}

func (a *app) configPath(ctx context.Context, which string) error {
	if which == "" {
		which = configHub
	}
	hub, mcp, err := a.configurations(ctx, which)
	if err != nil {
		return err
	}
	var file string
	var found bool
	if hub != nil {
		file, found = hub.File, hub.Found
	} else if file, found = mcp.File, mcp.File != ""; !found {
		file = filepath.Join(mcp.ProjectPath, mcpconfig.ProjectFile)
	}
	return a.print(map[string]any{"file": file, "found": found}, func() { fmt.Fprintln(a.stdout, file) })
}
