package hub

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/parleyhub/parley/internal/runner"
)

// workDirs makes the directories that agents work in, as their definitions'
// policies say. A context's own directory is shared by the agents that take
// part in it, so that one finds what another made.
type workDirs struct {
	base string // the hub's data directory
}

// policy returns the policy of an agent's definition; "" for one that touches no
// files and gets no directory.
func policy(def runner.Definition) string {
	if def.Driver == runner.DriverEcho {
		return ""
	}
	return cmp.Or(def.WorkDir.Policy, runner.WorkDirContext)
}

// dirName names a context's directory: its id may hold anything.
func dirName(contextID string) string {
	sum := sha256.Sum256([]byte(contextID))
	return hex.EncodeToString(sum[:16])
}

// path returns the directory of an agent in a context; "" where it has none.
func (w workDirs) path(def runner.Definition, contextID string) (string, error) {
	switch p := policy(def); p {
	case "":
		return "", nil
	case runner.WorkDirFixed:
		if !filepath.IsAbs(def.WorkDir.Path) {
			return "", configError(def, "workdir.path must be an absolute directory")
		}
		return def.WorkDir.Path, nil
	case runner.WorkDirContext, runner.WorkDirWorktree:
		if w.base == "" {
			return "", configError(def, "the hub has no data directory, so workdir.policy must be fixed")
		}
		base, err := filepath.Abs(w.base)
		if err != nil {
			return "", err
		}
		if p == runner.WorkDirContext {
			return filepath.Join(base, "contexts", dirName(contextID)), nil
		}
		return filepath.Join(base, "worktrees", def.ID, dirName(contextID)), nil
	default:
		return "", configError(def, fmt.Sprintf("there is no workdir.policy %q", p))
	}
}

func configError(def runner.Definition, msg string) *runner.Error {
	return &runner.Error{Code: runner.CodeConfig, Message: fmt.Sprintf("agent %s: %s", def.ID, msg), Remedy: "correct the agent's workdir in config.yaml"}
}

// prepare returns the directory for a session, which is there then.
func (w workDirs) prepare(ctx context.Context, def runner.Definition, contextID string) (string, error) {
	dir, err := w.path(def, contextID)
	if err != nil || dir == "" {
		return dir, err
	}
	switch policy(def) {
	case runner.WorkDirFixed:
		if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
			return "", configError(def, fmt.Sprintf("workdir.path %s is not a directory", dir))
		}
	case runner.WorkDirContext:
		err = os.MkdirAll(dir, 0o700)
	case runner.WorkDirWorktree:
		err = addWorktree(ctx, def, dir)
	}
	if err != nil {
		if re, ok := errors.AsType[*runner.Error](err); ok {
			return "", re
		}
		return "", &runner.Error{Code: runner.CodeConfig, Message: fmt.Sprintf("the working directory of agent %s cannot be made", def.ID),
			Remedy: "check the data directory's permissions and free space", Err: err}
	}
	return dir, nil
}

func addWorktree(ctx context.Context, def runner.Definition, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, ".git")); err == nil {
		return nil
	}
	if !filepath.IsAbs(def.WorkDir.Path) {
		return configError(def, "workdir.path must be the absolute path of a git repository")
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	if err := git(ctx, def.WorkDir.Path, "worktree", "prune"); err != nil {
		return configError(def, err.Error())
	}
	if err := git(ctx, def.WorkDir.Path, "worktree", "add", "--detach", "--", dir); err != nil {
		return configError(def, err.Error())
	}
	return nil
}

func git(ctx context.Context, repo string, args ...string) error {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", repo}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %s in %s: %w: %s", args[0], repo, err, clip(strings.TrimSpace(string(out)), 500))
	}
	return nil
}

// remove removes a context's directory. A worktree with changes that are not
// committed stays: they may be wanted.
func (w workDirs) remove(ctx context.Context, def runner.Definition, contextID string) error {
	p := policy(def)
	if p != runner.WorkDirContext && p != runner.WorkDirWorktree {
		return nil
	}
	dir, err := w.path(def, contextID)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if p == runner.WorkDirWorktree {
		return git(ctx, def.WorkDir.Path, "worktree", "remove", "--", dir)
	}
	return os.RemoveAll(dir)
}
