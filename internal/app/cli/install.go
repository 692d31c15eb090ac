package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/app/install"
	"github.com/parleyhub/parley/internal/base/local"
)

// installed is one program in the output of install and uninstall.
type installed struct {
	Program string           `json:"program"`
	Changes []install.Change `json:"changes"`
	Next    string           `json:"next,omitempty"`
}

type installFlags struct{ project, user, dryRun, yes bool }

func (a *app) installCommand() *cobra.Command {
	return a.installation("install [CLI...]", "Enter Parley into Claude Code, Codex, Gemini CLI and others",
		`Enter Parley into coding agents' programs: its MCP server, the hooks that tell the hub of open
sessions, say what is new for them and wake them, and a skill that tells the agent what it can do.
Without names it takes the programs that are on this computer. The changes are shown before they are made; every other byte of the files
stays. A repetition changes nothing; what another program of Parley has entered gets this one's path.`, install.Program.Enter, true)
}

func (a *app) uninstallCommand() *cobra.Command {
	return a.installation("uninstall [CLI...]", "Take Parley out of the programs again",
		`Take out what install has entered. The files are as they were before, byte for byte, with what was
changed in them since; those that install has made are removed if nothing else is in them.`,
		func(p install.Program, at install.Place) ([]install.Change, error) {
			dir, err := a.installDir()
			if err != nil {
				return nil, err
			}
			return p.Leave(at, dir)
		}, false)
}

// installation is a command that changes the programs' configuration.
func (a *app) installation(use, short, long string, plan func(install.Program, install.Place) ([]install.Change, error), enters bool) *cobra.Command {
	var f installFlags
	cmd := command(use, short, func(cmd *cobra.Command, args []string) error {
		return a.changePrograms(cmd.Context(), args, f, plan, enters)
	})
	cmd.Long = long
	name, _, _ := strings.Cut(use, " ")
	cmd.Example = "  " + a.name + " " + name + "\n  " + a.name + " " + name + " claude codex --dry-run"
	cmd.Args = cobra.ArbitraryArgs
	flags := cmd.Flags()
	flags.BoolVar(&f.project, "project", false, "the configuration of the project here, not the user's")
	flags.BoolVar(&f.user, "user", false, "the user's configuration (default)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "only show the changes")
	flags.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	cmd.MarkFlagsMutuallyExclusive("project", "user")
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
		for _, p := range install.Programs() {
			names = append(names, p.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// installDir is the directory in which the changes are remembered.
func (a *app) installDir() (string, error) {
	cfg, err := a.load(context.Background())
	if err != nil {
		return "", err
	}
	return cfg.DataDir, nil
}

func (a *app) changePrograms(ctx context.Context, names []string, f installFlags, plan func(install.Program, install.Place) ([]install.Change, error), enters bool) error {
	dir, err := a.installDir()
	if err != nil {
		return err
	}
	at, err := a.place(f.project)
	if err != nil {
		return err
	}
	programs, err := chosenPrograms(names, enters, f.project)
	if err != nil {
		return err
	}
	results, all := []installed{}, []install.Change{}
	for _, p := range programs {
		changes, err := plan(p, at)
		if err != nil {
			return err
		}
		r := installed{Program: p.Name, Changes: append([]install.Change{}, changes...)}
		if enters && len(changes) > 0 {
			r.Next = p.After
		}
		results, all = append(results, r), append(all, changes...)
	}
	if !a.json() {
		a.showChanges(results)
	}
	if len(all) > 0 && !f.dryRun {
		if ok, err := a.agreed(ctx, f.yes); !ok {
			return err
		}
		if err := install.Apply(all, dir); err != nil {
			return err
		}
	}
	return a.print(results, func() { a.showInstalled(results, f.dryRun) })
}

// chosenPrograms returns the programs with names, by default those that are on this computer, and of a project those that it can configure.
func chosenPrograms(names []string, present, project bool) (programs []install.Program, err error) {
	for _, name := range names {
		p, err := install.Find(name)
		if err != nil {
			return nil, usage("%v", err)
		}
		programs = append(programs, p)
	}
	if len(names) > 0 {
		return programs, nil
	}
	for _, p := range install.Programs() {
		if (!present || p.Present(exec.LookPath)) && !(project && p.UserOnly) {
			programs = append(programs, p)
		}
	}
	if len(programs) == 0 {
		return nil, &failure{Exit: exitNotFound, Kind: "no-program", Message: "neither Claude Code nor Codex nor Gemini CLI is on this computer",
			Remedy: "install one of them, or name it: " + local.Program() + " install claude"}
	}
	return programs, nil
}

// place returns where the configuration is, with the command that runs this program.
func (a *app) place(project bool) (install.Place, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return install.Place{}, err
	}
	program, err := ownPath()
	if err != nil {
		return install.Place{}, err
	}
	at := install.Place{Home: home, Getenv: a.getenv, Program: program}
	if project {
		if at.Project, err = os.Getwd(); err != nil {
			return at, err
		}
	}
	return at, nil
}

// agreed asks the user, unless --yes was given.
func (a *app) agreed(ctx context.Context, yes bool) (bool, error) {
	if yes {
		return true, nil
	}
	if !a.interactive() {
		return false, usage("the changes need your agreement: repeat the command with --yes, or with --dry-run to see them")
	}
	line, err := a.readLine(ctx, "Make these changes? [y/N] ")
	if err != nil {
		return false, err
	}
	answer := strings.ToLower(strings.TrimSpace(line))
	if answer != "y" && answer != "yes" {
		fmt.Fprintln(a.stdout, "nothing was changed")
		return false, nil
	}
	return true, nil
}

// showChanges shows the text of a file that several programs get once.
func (a *app) showChanges(results []installed) {
	shown := map[string]string{} // the path, by the change
	for _, r := range results {
		for _, c := range r.Changes {
			fmt.Fprintln(a.stdout, a.style.bold(plain(c.Path)))
			change := fmt.Sprintf("%q", []any{c.Inserted, c.Removed, c.Replaced})
			if same, ok := shown[change]; ok {
				fmt.Fprintf(a.stdout, "  as in %s\n", plain(same))
				continue
			}
			shown[change] = c.Path
			a.showChange(c)
		}
	}
}

func (a *app) showChange(c install.Change) {
	a.showLines("+", c.Inserted, a.style.green)
	a.showLines("-", c.Removed, a.style.red)
	for _, r := range c.Replaced {
		a.showLines("-", []string{r.Old}, a.style.red)
		a.showLines("+", []string{r.New}, a.style.green)
	}
}

func (a *app) showLines(sign string, texts []string, color func(string) string) {
	for _, text := range texts {
		for line := range strings.Lines(strings.Trim(text, ",\r\n") + "\n") {
			fmt.Fprintln(a.stdout, color(sign+" "+plain(strings.TrimRight(line, "\r\n"))))
		}
	}
}

func (a *app) showInstalled(results []installed, dryRun bool) {
	for _, r := range results {
		p, _ := install.Find(r.Program) // it was found before
		switch {
		case len(r.Changes) == 0:
			fmt.Fprintf(a.stdout, "%s: nothing to change\n", p.Title)
		case dryRun:
			fmt.Fprintf(a.stdout, "%s: nothing was changed\n", p.Title)
		default:
			fmt.Fprintf(a.stdout, "%s: done\n", p.Title)
			if r.Next != "" {
				a.note("%s", r.Next)
			}
		}
	}
}
