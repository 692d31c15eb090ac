// Package guard enters a pre-commit hook into a git repository, which refuses commits of files that another agent has claimed.
//
// A hook that is there already is kept under another name and called; it gets its name back when the guard is taken out.
package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
)

// Code says what is wrong.
type Code string

// The codes of errors.
const (
	CodeNoRepository Code = "no-repository"
	CodeReplaced     Code = "replaced"   // the hook is not Parley's any more
	CodeUnwritable   Code = "unwritable" // the hook cannot be changed
)

// Error is an error for the user.
type Error = fault.UserError[Code]

const (
	hookName = "pre-commit"
	keptName = hookName + ".parley-kept" // the hook that was there before
	marker   = "# Parley's guard"
	maxHook  = 1 << 20
)

// Change is what [Install] or [Uninstall] has done.
type Change struct {
	Path    string `json:"path"`           // of the hook
	Kept    string `json:"kept,omitempty"` // the hook of others that it calls
	Changed bool   `json:"changed"`
}

// script is the hook that calls a program of Parley. Without the program the commit is free.
func script(program string) []byte {
	program = text.ShellQuote(filepath.ToSlash(program))
	return fmt.Appendf(nil, `#!/bin/sh
%s refuses commits of files that another agent has claimed. It is entered and taken out with: parley guard
kept="${0%%/*}/%s"
if [ -x "$kept" ]; then "$kept" "$@" || exit $?; fi
if [ -x %s ]; then exec %s guard check; fi
`, marker, keptName, program, program)
}

// Install enters the hook into the repository of a directory.
func Install(ctx context.Context, dir, program string) (c Change, err error) {
	c, ours, err := state(ctx, dir)
	if err != nil {
		return c, err
	}
	want := script(program)
	switch {
	case bytes.Equal(ours, want):
		return c, nil
	case ours == nil && c.Kept != "":
		return c, &Error{Code: CodeReplaced, Message: c.Path + " was replaced since Parley entered its hook", Remedy: "move " + c.Kept + " away, or make it the hook again"}
	case ours == nil:
		if _, err := os.Lstat(c.Path); err == nil {
			c.Kept = filepath.Join(filepath.Dir(c.Path), keptName)
			if err := os.Rename(c.Path, c.Kept); err != nil {
				return c, unchanged(c.Path, err)
			}
		}
	}
	if err := write(c.Path, want); err != nil {
		if ours == nil && c.Kept != "" {
			err = errors.Join(err, os.Rename(c.Kept, c.Path))
		}
		return c, unchanged(c.Path, err)
	}
	c.Changed = true
	return c, nil
}

// Uninstall takes the hook out of the repository of a directory. The hook that was there before is there again.
func Uninstall(ctx context.Context, dir string) (c Change, err error) {
	c, ours, err := state(ctx, dir)
	if err != nil || ours == nil && c.Kept == "" {
		return c, err
	}
	if ours == nil {
		if _, err := os.Lstat(c.Path); err == nil {
			return c, &Error{Code: CodeReplaced, Message: c.Path + " was replaced since Parley entered its hook", Remedy: "the earlier hook is " + c.Kept}
		}
	}
	if c.Kept != "" {
		err = os.Rename(c.Kept, c.Path) // replaces the guard
	} else {
		err = os.Remove(c.Path)
	}
	if err != nil {
		return c, unchanged(c.Path, err)
	}
	c.Kept, c.Changed = "", true
	return c, nil
}

func unchanged(path string, err error) error {
	return &Error{Code: CodeUnwritable, Message: "cannot change " + path + ": " + err.Error(), Remedy: "check its permissions", Err: err}
}

// state returns where the hook of a repository is, and its content if it is Parley's, nil otherwise.
func state(ctx context.Context, dir string) (c Change, ours []byte, err error) {
	hooks, err := git(ctx, dir, "rev-parse", "--path-format=absolute", "--git-path", "hooks")
	if err != nil {
		return c, nil, &Error{Code: CodeNoRepository, Message: "there is no git repository here", Remedy: "run it in a work tree of one", Err: err}
	}
	hooks = strings.TrimSuffix(hooks, "\n")
	c.Path = filepath.Join(hooks, hookName)
	kept := filepath.Join(hooks, keptName)
	if _, err := os.Lstat(kept); err == nil {
		c.Kept = kept
	}
	info, err := os.Lstat(c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, nil, nil
	case err != nil:
		return c, nil, unchanged(c.Path, err)
	case info.IsDir():
		return c, nil, &Error{Code: CodeUnwritable, Message: c.Path + " is a directory", Remedy: "move it away"}
	case !info.Mode().IsRegular() || info.Size() > maxHook:
		return c, nil, nil // a link of others, or what is no script
	}
	data, err := os.ReadFile(c.Path)
	if err != nil {
		return c, nil, unchanged(c.Path, err)
	}
	if bytes.Contains(data, []byte("\n"+marker+" ")) {
		ours = data
	}
	return c, ours, nil
}

func write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := local.ReplaceFile(path, data); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

// Staged returns the absolute paths of the files that the next commit changes, in the work tree of the current directory.
func Staged(ctx context.Context) (files []string, err error) {
	top, err := git(ctx, "", "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	names, err := git(ctx, "", "diff", "--cached", "--name-only", "--no-renames", "--no-ext-diff", "-z")
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(names, "\x00") {
		if name != "" {
			files = append(files, filepath.Join(strings.TrimSuffix(top, "\n"), filepath.FromSlash(name)))
		}
	}
	return files, nil
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	return string(out), err
}
