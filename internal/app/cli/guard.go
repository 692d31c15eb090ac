package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/guard"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

// guardTime bounds the check of a commit.
const guardTime = 5 * time.Second

func (a *app) guardCommand() *cobra.Command {
	return group("guard", "Let git refuse commits of files that another agent has claimed",
		`Enter a pre-commit hook into the git repository here. It refuses commits of files that another
agent has claimed, whatever program has changed them, and says who has them, why, until when and
how to ask. Without a running hub every commit passes; a person passes with
git commit --no-verify. See docs/file-claims.md.`,
		a.guardInstallCommand(), a.guardUninstallCommand(), a.guardCheckCommand())
}

func (a *app) guardInstallCommand() *cobra.Command {
	cmd := command("install", "Enter the pre-commit hook into the repository here", func(cmd *cobra.Command, _ []string) error {
		program, err := ownPath()
		if err != nil {
			return err
		}
		c, err := guard.Install(cmd.Context(), "", program)
		if err != nil {
			return err
		}
		return a.print(c, func() {
			switch {
			case !c.Changed:
				fmt.Fprintf(a.stdout, "%s: nothing to change\n", plain(c.Path))
			case c.Kept != "":
				fmt.Fprintf(a.stdout, "%s: done; it calls the hook that was there, %s\n", plain(c.Path), plain(c.Kept))
			default:
				fmt.Fprintf(a.stdout, "%s: done\n", plain(c.Path))
			}
		})
	})
	cmd.Long = `Enter the pre-commit hook into the git repository here, for all its work trees, where git looks for
hooks (core.hooksPath). A hook that is there is kept beside it, and called first.`
	cmd.Example = "  " + a.name + " guard install"
	return cmd
}

func (a *app) guardUninstallCommand() *cobra.Command {
	cmd := command("uninstall", "Take the pre-commit hook out again", func(cmd *cobra.Command, _ []string) error {
		c, err := guard.Uninstall(cmd.Context(), "")
		if err != nil {
			return err
		}
		return a.print(c, func() {
			what := "done"
			if !c.Changed {
				what = "nothing to change"
			}
			fmt.Fprintf(a.stdout, "%s: %s\n", plain(c.Path), what)
		})
	})
	cmd.Long = "Take the pre-commit hook out again. The hook that was there before is there again, byte for byte."
	cmd.Example = "  " + a.name + " guard uninstall"
	return cmd
}

func (a *app) guardCheckCommand() *cobra.Command {
	cmd := command("check", "Check the files of the next commit: for the pre-commit hook", func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), guardTime)
		defer cancel()
		held, err := a.heldFiles(ctx)
		if err != nil {
			a.debugf("the commit is not checked: %v", err)
		}
		if a.json() {
			writeJSON(a.stdout, append([]dialect.HeldFile{}, held...))
		}
		if len(held) == 0 {
			return nil
		}
		return heldFailure(held)
	})
	cmd.Long = `Exit with 1 if another agent has claimed a file that the next commit changes, and say so on standard
error. It is silent and exits with 0 without a hub, and where it is in doubt.`
	cmd.Example = "  " + a.name + " guard check"
	return cmd
}

// maxHeld bounds the files that a refusal names.
const maxHeld = 5

// heldFailure is the refusal of a commit.
func heldFailure(held []dialect.HeldFile) error {
	var said, how []string
	for _, h := range held {
		said, how = append(said, oneLine(h.Held)), append(how, oneLine(h.Ask))
	}
	slices.Sort(how)
	how = slices.Compact(how)
	if rest := len(said) - maxHeld; rest > 0 {
		said = append(said[:maxHeld], fmt.Sprintf("And %d more.", rest))
	}
	return &failure{Exit: exitFailure, Kind: "claimed",
		Message: "nothing was committed, because another agent has claimed files of the commit. " + strings.Join(said, " "),
		Remedy:  strings.Join(how[:min(len(how), maxHeld)], " ") + " A person commits all the same with: git commit --no-verify"}
}

// heldFiles returns the files of the next commit that others hold exclusively.
func (a *app) heldFiles(ctx context.Context) (held []dialect.HeldFile, err error) {
	files, err := guard.Staged(ctx)
	if err != nil || len(files) == 0 {
		return nil, err
	}
	cfg, err := a.load(ctx)
	if err != nil {
		return nil, err
	}
	c, err := a.dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return a.heldByOthers(ctx, c, "", files)
}

// heldByOthers returns the files that other agents than the one in which this process runs hold exclusively. session is its vendor's id, "" if
// that is not known.
func (a *app) heldByOthers(ctx context.Context, c *client.Client, session string, files []string) (held []dialect.HeldFile, err error) {
	if len(files) == 0 {
		return nil, nil
	}
	guid, err := a.guidHere(ctx, c, session)
	if err != nil {
		return nil, err
	}
	token := taskToken(func(name string) (string, bool) { value := a.getenv(name); return value, value != "" })
	for some := range slices.Chunk(targets(ctx, files), dialect.MaxFiles) {
		found, err := c.CheckFiles(ctx, dialect.FileCheckParams{Files: some, GUID: guid, Token: token})
		if err != nil {
			return held, err
		}
		held = append(held, slices.DeleteFunc(found, func(h dialect.HeldFile) bool { return h.Mode != string(claims.Exclusive) })...)
	}
	return held, nil
}

// sessionIDs are the variables with which programs tell their commands the session.
var sessionIDs = []string{"CLAUDE_CODE_SESSION_ID", "CODEX_THREAD_ID", "GEMINI_SESSION_ID"}

// guidHere returns the agent of the session in which this process runs, "" for none.
func (a *app) guidHere(ctx context.Context, c *client.Client, session string) (string, error) {
	all, err := c.OpenSessions(ctx)
	if err != nil {
		return "", err
	}
	for _, s := range all {
		known := s.Session != "" && (s.Session == session || slices.ContainsFunc(sessionIDs, func(name string) bool { return a.getenv(name) == s.Session }))
		if s.GUID != "" && (known || s.PID > 1 && presence.Running(s.PID).IsAncestorOf(os.Getpid())) {
			return s.GUID, nil
		}
	}
	return "", nil
}
