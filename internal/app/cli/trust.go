package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/config"
)

// trustedDir is one trusted directory in the output of trust.
type trustedDir struct {
	Directory string `json:"directory"`
	Trusted   bool   `json:"trusted"` // by itself or with a directory above it
	Changed   bool   `json:"changed"` // by this command
}

// listedDir is one line of trust --list.
type listedDir struct {
	Directory string `json:"directory"`
	Source    string `json:"source"` // trust, or workdirs.roots of the configuration
	Exists    bool   `json:"exists"`
}

func (a *app) trustCommand() *cobra.Command {
	var list, remove bool
	cmd := command("trust [DIR]", "Let agents work in a directory, by default the project here",
		func(cmd *cobra.Command, args []string) error {
			cfg, err := a.load(cmd.Context())
			if err != nil {
				return err
			}
			if list {
				return a.listTrusted(cfg)
			}
			trust := config.NewTrust(cfg.DataDir)
			dir, err := a.trustArgument(cfg.DataDir, args)
			if err != nil {
				return err
			}
			change := trust.Add
			if remove {
				change = trust.Remove
			}
			path, changed, err := change(cmd.Context(), dir)
			if err != nil {
				return trustFailure(err)
			}
			return a.printTrust(trust, path, changed, remove)
		})
	cmd.Long = `Let agents work in a directory and everything below it. Without DIR it is the project
here: the git repository of the current directory, else that directory. It takes effect
at once, also for a running hub. The home directory, what contains it, and
the directories of the system are refused.

An agent runs with your rights: the directory is where it starts, not a fence.`
	cmd.Example = "  " + a.name + ` trust
  ` + a.name + ` trust ~/src/shop
  ` + a.name + ` trust --list
  ` + a.name + ` trust --remove ~/src/shop`
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 1 || len(args) == 1 && list {
			return usage("unexpected argument %q", args[len(args)-1])
		}
		return nil
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 || list {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if !remove {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
		cfg, err := a.load(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		dirs, _ := config.NewTrust(cfg.DataDir).Dirs() // no completion is better than an error
		return dirs, cobra.ShellCompDirectiveNoFileComp
	}
	cmd.Flags().BoolVar(&list, "list", false, "list the directories in which agents may work")
	cmd.Flags().BoolVar(&remove, "remove", false, "no longer let agents work in the directory")
	cmd.MarkFlagsMutuallyExclusive("list", "remove")
	return cmd
}

// trustArgument returns the directory of the arguments, else the current project.
func (a *app) trustArgument(dataDir string, args []string) (string, error) {
	if len(args) == 1 && args[0] == "" {
		return "", usage("DIR is empty; name a directory, or leave it out for the project here")
	}
	if len(args) == 1 {
		return args[0], nil
	}
	dir, why := currentProject(dataDir)
	if why != "" {
		return "", &failure{Exit: exitUsage, Kind: "usage", Message: "there is no project here: " + why,
			Remedy: "name the directory of a project: " + a.self() + " trust DIR"}
	}
	return dir, nil
}

func (a *app) printTrust(trust *config.Trust, path string, changed, remove bool) error {
	covered, err := trust.Covers(path)
	if err != nil {
		return trustFailure(err)
	}
	return a.print(trustedDir{Directory: path, Trusted: covered, Changed: changed}, func() {
		name := plain(tilde(path))
		switch {
		case !remove && changed:
			fmt.Fprintf(a.stdout, "Agents may work in %s.\n", name)
		case !remove:
			fmt.Fprintf(a.stdout, "Agents may work in %s already.\n", name)
		case covered:
			fmt.Fprintf(a.stdout, "Agents may still work in %s: a directory above it is trusted. See: %s trust --list\n", name, a.self())
		case changed:
			fmt.Fprintf(a.stdout, "Agents may no longer work in %s.\n", name)
		default:
			fmt.Fprintf(a.stdout, "%s was not trusted.\n", name)
		}
	})
}

func (a *app) listTrusted(cfg *config.Loaded) error {
	dirs, err := config.NewTrust(cfg.DataDir).Dirs()
	if err != nil {
		return trustFailure(err)
	}
	all := []listedDir{}
	for _, dir := range dirs {
		all = append(all, listedDir{Directory: dir, Source: "trust", Exists: isDir(dir)})
	}
	for _, dir := range cfg.WorkDirs.Roots {
		all = append(all, listedDir{Directory: dir, Source: "workdirs.roots", Exists: isDir(dir)})
	}
	listing[listedDir]{
		none:    "No directory is trusted: agents work in directories of their conversations.",
		columns: headings("SOURCE", "DIRECTORY"),
		row: func(d listedDir) []string {
			name := tilde(d.Directory)
			if !d.Exists {
				name += " (does not exist)"
			}
			return []string{d.Source, name}
		},
	}.print(a, a.stdout, all)
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
