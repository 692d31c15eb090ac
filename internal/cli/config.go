package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/config"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show or check the hub's configuration",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return usage("there is no command %q; there are show, validate and path", "config "+args[0])
		},
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "show", Short: "Show what is in force and where each value comes from; secrets stay hidden", Args: exactly(),
			RunE: func(*cobra.Command, []string) error { return a.configShow() },
		},
		&cobra.Command{
			Use: "validate", Short: "Check the configuration and name every mistake with its line", Args: exactly(),
			RunE: func(*cobra.Command, []string) error { return a.configValidate() },
		},
		&cobra.Command{
			Use: "path", Short: "Print the path of the configuration file", Args: exactly(),
			RunE: func(*cobra.Command, []string) error { return a.configPath() },
		},
	)
	return cmd
}

// configValue is one value of config show --format json.
type configValue struct {
	Key    string            `json:"key"`
	Value  any               `json:"value"`
	Origin config.OriginKind `json:"origin"`
	Source string            `json:"source,omitempty"` // file, variable or flag
	Line   int               `json:"line,omitempty"`
}

func (a *app) configShow() error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	a.warn(cfg)
	values := cfg.Values()
	if a.json() {
		out := make([]configValue, len(values))
		for i, v := range values {
			out[i] = configValue{v.Key, v.Value, v.Origin.Kind, v.Origin.Name, v.Origin.Line}
		}
		writeJSON(a.stdout, out)
		return nil
	}
	t := table{headings: []string{"KEY", "ORIGIN", "VALUE"}, paint: a.paintFirst}
	for _, v := range values {
		text, err := json.Marshal(v.Value)
		if err != nil {
			return fmt.Errorf("show %s: %w", v.Key, err)
		}
		t.add(v.Key, v.Origin.String(), string(text))
	}
	t.write(a.stdout, a.style)
	return nil
}

func (a *app) configValidate() error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	if a.json() {
		warnings := cfg.Warnings
		if warnings == nil {
			warnings = []string{}
		}
		writeJSON(a.stdout, map[string]any{"file": cfg.File, "found": cfg.Found, "warnings": warnings})
		return nil
	}
	a.warn(cfg)
	if !cfg.Found {
		fmt.Fprintf(a.stdout, "There is no %s; the defaults are in force.\n", cfg.File)
		return nil
	}
	fmt.Fprintf(a.stdout, "%s %s\n", cfg.File, a.style.green("is valid."))
	return nil
}

func (a *app) configPath() error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	if a.json() {
		writeJSON(a.stdout, map[string]any{"file": cfg.File, "found": cfg.Found})
		return nil
	}
	fmt.Fprintln(a.stdout, cfg.File)
	return nil
}
